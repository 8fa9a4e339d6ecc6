// Modules, layers and initialisers.
#pragma once

#include "tutti/nn/activation.h"  // IWYU pragma: export
#include "tutti/nn/any_module.h"  // IWYU pragma: export
#include "tutti/nn/container.h"   // IWYU pragma: export
#include "tutti/nn/init.h"        // IWYU pragma: export
#include "tutti/nn/linear.h"      // IWYU pragma: export
#include "tutti/nn/module.h"      // IWYU pragma: export
