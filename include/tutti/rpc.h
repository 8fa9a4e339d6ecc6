// Remote procedure calls: workers with names, calls of functions and of methods of objects that live elsewhere.
#pragma once

#include "tutti/rpc/autograd.h"   // IWYU pragma: export
#include "tutti/rpc/call.h"       // IWYU pragma: export
#include "tutti/rpc/future.h"     // IWYU pragma: export
#include "tutti/rpc/module.h"     // IWYU pragma: export
#include "tutti/rpc/optimizer.h"  // IWYU pragma: export
#include "tutti/rpc/session.h"    // IWYU pragma: export
#include "tutti/rpc/value.h"      // IWYU pragma: export
