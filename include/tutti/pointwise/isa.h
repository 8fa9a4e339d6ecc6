// Which instruction set this translation unit is compiled for.
//
// Kernels are compiled several times with different -march flags. An inline function that two such objects share would
// be merged by the linker, and the AVX-512 body could end up being called on a machine without AVX-512. So everything
// in tutti::pointwise lives in an inline namespace named after the compiler's own target macros.
#pragma once

#if defined(__CUDACC__)
#define TUTTI_ISA isa_cuda
#elif defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define TUTTI_ISA isa_v4
#elif defined(__AVX2__) && defined(__FMA__)
#define TUTTI_ISA isa_v3
#else
#define TUTTI_ISA isa_base
#endif

#if defined(__CUDACC__)
#define TUTTI_HD __host__ __device__ __forceinline__
#elif defined(TUTTI_ISA_BASE) || defined(TUTTI_OUTLINE) || defined(TUTTI_SANITIZE_ADDRESS) || \
    defined(TUTTI_SANITIZE_THREAD)
// Baseline objects, tests and sanitizers, where small code and a short compile matter more than the call of a
// primitive.
#define TUTTI_HD inline
#else
#define TUTTI_HD inline __attribute__((always_inline))
#endif
