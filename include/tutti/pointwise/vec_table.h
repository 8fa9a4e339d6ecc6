// Tables of sixteen floats, one of which each lane picks: one instruction where registers are wide enough.
#pragma once

#include "tutti/pointwise/vec.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {
namespace detail {

template <int N>
TUTTI_HD Register<float, N> lookup_register(const float* table, Register<uint32_t, N> index) {
  if constexpr (N == 1) {
    return table[index & 15];
  } else {
#if !defined(__CUDACC__)
#if defined(__AVX512F__)
    if constexpr (N == 16)
      return _mm512_maskz_permutexvar_ps(0xffff, (__m512i)index, load<float, 16>(table));  // see fused_multiply_add
#endif
#if defined(__AVX2__)
    if constexpr (N == 8) {
      __m256 low = _mm256_permutevar8x32_ps(load<float, 8>(table), (__m256i)index);
      __m256 high = _mm256_permutevar8x32_ps(load<float, 8>(table + 8), (__m256i)index);
      return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32((__m256i)index, 28)));
    }
#endif
    Register<float, N> r;
    for (int i = 0; i < N; ++i) r[i] = table[index[i] & 15];
    return r;
#endif
  }
}

}  // namespace detail

/// table[index mod 16] of each lane; table has sixteen floats.
template <int N>
TUTTI_HD Vec<float, N> lookup(const float* table, Vec<uint32_t, N> index) {
  if constexpr (detail::fits_register<float, N>) {
    return Vec<float, N>::from_register(detail::lookup_register<N>(table, index.v));
  } else {
    return Vec<float, N>(lookup(table, index.lo), lookup(table, index.hi));
  }
}

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise
