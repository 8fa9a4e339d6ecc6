// Modules, layers and initialisers.
#pragma once

#include "tutti/nn/activation.h"  // IWYU pragma: export
#include "tutti/nn/any_module.h"  // IWYU pragma: export
#include "tutti/nn/attention.h"   // IWYU pragma: export
#include "tutti/nn/container.h"   // IWYU pragma: export
#include "tutti/nn/conv.h"        // IWYU pragma: export
#include "tutti/nn/embedding.h"   // IWYU pragma: export
#include "tutti/nn/init.h"        // IWYU pragma: export
#include "tutti/nn/linear.h"      // IWYU pragma: export
#include "tutti/nn/module.h"      // IWYU pragma: export
#include "tutti/nn/norm.h"        // IWYU pragma: export
#include "tutti/nn/pool.h"        // IWYU pragma: export
#include "tutti/nn/rnn.h"         // IWYU pragma: export
