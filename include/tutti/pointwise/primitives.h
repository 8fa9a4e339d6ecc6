// The accurate math functions all pointwise operators are written from, as templates over Vec<float, N> and
// Vec<double, N>.
//
// Every one is straight-line code: selects instead of branches, no table look-ups, no calls, fma only where written.
// Given the same rounding mode and no flushing of denormals, each gives the same bits for every N, on every instruction
// set and on the GPU; only the sign and payload of a NaN may differ. Compile with -ffp-contract=off (nvcc:
// --fmad=false), without -ffast-math.
//
// Errors are below 1.5 units in the last place for every argument; for lgamma and digamma, whose roots are not
// representable, units of max(1, |result|).
#pragma once

#include "tutti/pointwise/prim_atan.h"
#include "tutti/pointwise/prim_basic.h"
#include "tutti/pointwise/prim_erf.h"
#include "tutti/pointwise/prim_exp.h"
#include "tutti/pointwise/prim_gamma.h"
#include "tutti/pointwise/prim_log.h"
#include "tutti/pointwise/prim_pow.h"
#include "tutti/pointwise/prim_trig.h"
