// What many tests need, and everything of the library.
#pragma once

#include "tests/support/expect_ops.h"  // IWYU pragma: export
#include "tutti/tutti.h"               // IWYU pragma: export
