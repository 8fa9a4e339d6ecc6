// Groups of ranks and collectives.
#pragma once

#include "tutti/comm/collectives.h"  // IWYU pragma: export
#include "tutti/comm/fault.h"        // IWYU pragma: export
#include "tutti/comm/functional.h"   // IWYU pragma: export
#include "tutti/comm/group.h"        // IWYU pragma: export
#include "tutti/comm/objects.h"      // IWYU pragma: export
#include "tutti/comm/record.h"       // IWYU pragma: export
#include "tutti/comm/store.h"        // IWYU pragma: export
#include "tutti/comm/work.h"         // IWYU pragma: export
