// Kernels compiled once for each instruction set (files named *.isa.cpp), chosen at run time. All of them give the same
// bits: they differ in width only.
#pragma once

namespace tutti {

enum class Isa { base, v3, v4 };

/// The best instruction set of this machine that the library was built for; TUTTI_ISA=base|v3|v4 lowers it.
Isa best_isa();

}  // namespace tutti

#ifdef TUTTI_HAVE_ISA_V3
#define TUTTI_IF_V3(...) __VA_ARGS__
#else
#define TUTTI_IF_V3(...)
#endif
#ifdef TUTTI_HAVE_ISA_V4
#define TUTTI_IF_V4(...) __VA_ARGS__
#else
#define TUTTI_IF_V4(...)
#endif

// Declares `Result name(Args)` as compiled for each instruction set, and name_pointer(), which picks the best of them:
//   TUTTI_ISA_DECLARE(sum_rows, void, (const float* x, int64_t n, float* y))        // in a header
//   TUTTI_ISA_DEFINE(sum_rows, void, (const float* x, int64_t n, float* y)) { ... } // in the .isa.cpp
//   sum_rows_pointer()(x, n, y);                                                    // elsewhere
// The first two stand in the same namespace.
#define TUTTI_ISA_DECLARE(name, Result, Args)                           \
  namespace kernels_base {                                              \
  Result name Args;                                                     \
  }                                                                     \
  TUTTI_IF_V3(namespace kernels_v3 { Result name Args; })               \
  TUTTI_IF_V4(namespace kernels_v4 { Result name Args; })               \
  inline auto name##_pointer() {                                        \
    static const auto chosen = [] {                                     \
      TUTTI_IF_V4(if (best_isa() >= Isa::v4) return &kernels_v4::name;) \
      TUTTI_IF_V3(if (best_isa() >= Isa::v3) return &kernels_v3::name;) \
      return &kernels_base::name;                                       \
    }();                                                                \
    return chosen;                                                      \
  }

// The namespace of this compilation's kernels; the build defines TUTTI_ISA_BASE, _V3 or _V4 for each.
#if defined(TUTTI_ISA_BASE)
#define TUTTI_KERNELS kernels_base
#define TUTTI_ISA_SUFFIX(name) name##_base
#elif defined(__AVX512F__)
#define TUTTI_KERNELS kernels_v4
#define TUTTI_ISA_SUFFIX(name) name##_v4
#else
#define TUTTI_KERNELS kernels_v3
#define TUTTI_ISA_SUFFIX(name) name##_v3
#endif
#define TUTTI_ISA_DEFINE(name, Result, Args) Result TUTTI_KERNELS::name Args
