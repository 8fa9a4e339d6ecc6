// Comparison, selection and masks of one machine register. Nothing here is for users of the library.
//
// A mask register is a bool (N == 1), an AVX-512 k-mask (64-byte registers), or an integer vector whose lanes are all
// ones or all zeros.
#pragma once

#include "tutti/pointwise/vec_register.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {
namespace detail {

template <class T, int N>
struct MaskRegisterOf {
  using type = typename std::conditional_t<is_k_masked<T, N>, std::conditional<N == 16, uint16_t, uint8_t>,
                                           RegisterOf<IntOfSize<sizeof(T)>, is_k_masked<T, N> ? 1 : N>>::type;
};
template <class T>
struct MaskRegisterOf<T, 1> {
  using type = bool;
};
template <class T, int N>
using MaskRegister = typename MaskRegisterOf<T, N>::type;

enum class Compare { eq, ne, lt, le };

// ---- comparison and selection

#if !defined(__CUDACC__) && defined(__AVX512F__)
template <Compare op, class T, int N>
TUTTI_HD MaskRegister<T, N> compare_k(Register<T, N> a, Register<T, N> b) {
  constexpr int real = op == Compare::eq   ? _CMP_EQ_OQ
                       : op == Compare::ne ? _CMP_NEQ_UQ
                       : op == Compare::lt ? _CMP_LT_OQ
                                           : _CMP_LE_OQ;
  constexpr auto whole = op == Compare::eq   ? _MM_CMPINT_EQ
                         : op == Compare::ne ? _MM_CMPINT_NE
                         : op == Compare::lt ? _MM_CMPINT_LT
                                             : _MM_CMPINT_LE;
  if constexpr (std::is_same_v<T, float>) {
    return _mm512_cmp_ps_mask(a, b, real);
  } else if constexpr (std::is_same_v<T, double>) {
    return _mm512_cmp_pd_mask(a, b, real);
  } else if constexpr (sizeof(T) == 4 && std::is_signed_v<T>) {
    return _mm512_cmp_epi32_mask((__m512i)a, (__m512i)b, whole);
  } else if constexpr (sizeof(T) == 4) {
    return _mm512_cmp_epu32_mask((__m512i)a, (__m512i)b, whole);
  } else if constexpr (std::is_signed_v<T>) {
    return _mm512_cmp_epi64_mask((__m512i)a, (__m512i)b, whole);
  } else {
    return _mm512_cmp_epu64_mask((__m512i)a, (__m512i)b, whole);
  }
}
#endif

#if !defined(__CUDACC__) && defined(__SSE2__) && !defined(__SSE4_2__)
// SSE2 compares no 64-bit integers. Equality is that of both 32-bit halves; a < b is the sign of a - b, put right
// where the subtraction overflows.
template <class T>
TUTTI_HD Register<int64_t, 2> equal_sse2(Register<T, 2> a, Register<T, 2> b) {
  __m128i e = _mm_cmpeq_epi32((__m128i)a, (__m128i)b);
  return (Register<int64_t, 2>)_mm_and_si128(e, _mm_shuffle_epi32(e, _MM_SHUFFLE(2, 3, 0, 1)));
}
template <class T>
TUTTI_HD Register<int64_t, 2> less_sse2(Register<T, 2> a, Register<T, 2> b) {
  using U = Register<uint64_t, 2>;
  uint64_t bias = std::is_signed_v<T> ? 0 : uint64_t(1) << 63;
  U x = (U)a ^ bias, y = (U)b ^ bias;
  U d = x - y;
  U s = d ^ ((x ^ y) & (d ^ x));
  return (Register<int64_t, 2>)_mm_shuffle_epi32(_mm_srai_epi32((__m128i)s, 31), _MM_SHUFFLE(3, 3, 1, 1));
}
#endif

template <Compare op, class T, int N>
TUTTI_HD MaskRegister<T, N> compare(Register<T, N> a, Register<T, N> b) {
  if constexpr (is_k_masked<T, N>) {
#if !defined(__CUDACC__) && defined(__AVX512F__)
    return compare_k<op, T, N>(a, b);
#endif
#if !defined(__CUDACC__) && defined(__SSE2__) && !defined(__SSE4_2__)
  } else if constexpr (std::is_integral_v<T> && sizeof(T) == 8 && N == 2) {
    if constexpr (op == Compare::eq) {
      return equal_sse2<T>(a, b);
    } else if constexpr (op == Compare::ne) {
      return ~equal_sse2<T>(a, b);
    } else if constexpr (op == Compare::lt) {
      return less_sse2<T>(a, b);
    } else {
      return ~less_sse2<T>(b, a);
    }
#endif
  } else {
    using M = MaskRegister<T, N>;
    if constexpr (op == Compare::eq) {
      return (M)(a == b);
    } else if constexpr (op == Compare::ne) {
      return (M)(a != b);
    } else if constexpr (op == Compare::lt) {
      return (M)(a < b);
    } else {
      return (M)(a <= b);
    }
  }
}

template <class T, int N>
TUTTI_HD Register<T, N> blend_register(MaskRegister<T, N> m, Register<T, N> a, Register<T, N> b) {
  if constexpr (N == 1) {
    return m ? a : b;
  } else {
#if !defined(__CUDACC__)
    using R = Register<T, N>;
#if defined(__AVX512F__)
    if constexpr (is_k_masked<T, N> && sizeof(T) == 4) return (R)_mm512_mask_blend_ps(m, (__m512)b, (__m512)a);
    if constexpr (is_k_masked<T, N> && sizeof(T) == 8) return (R)_mm512_mask_blend_pd(m, (__m512d)b, (__m512d)a);
#endif
#if defined(__AVX__)
    if constexpr (sizeof(R) == 32 && sizeof(T) == 4) return (R)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)m);
    if constexpr (sizeof(R) == 32 && sizeof(T) == 8) return (R)_mm256_blendv_pd((__m256d)b, (__m256d)a, (__m256d)m);
#endif
    if constexpr (!is_k_masked<T, N>) {
      using I = MaskRegister<T, N>;
      return (R)((m & (I)a) | (~m & (I)b));
    }
#endif
  }
}

// a < b ? a : b and a > b ? a : b: the second operand when either is NaN, which is what the x86 instructions do.
template <class T, int N>
TUTTI_HD Register<T, N> lesser(Register<T, N> a, Register<T, N> b) {
  static_assert(std::is_floating_point_v<T>);
  if constexpr (N == 1) {
    return a < b ? a : b;
  } else {
#if !defined(__CUDACC__)
#if defined(__AVX512F__)
    if constexpr (sizeof(a) == 64 && sizeof(T) == 4) return _mm512_maskz_min_ps(0xffff, a, b);
    if constexpr (sizeof(a) == 64 && sizeof(T) == 8) return _mm512_maskz_min_pd(0xff, a, b);
#endif
#if defined(__AVX__)
    if constexpr (sizeof(a) == 32 && sizeof(T) == 4) return _mm256_min_ps(a, b);
    if constexpr (sizeof(a) == 32 && sizeof(T) == 8) return _mm256_min_pd(a, b);
#endif
#if defined(__SSE2__)
    if constexpr (sizeof(a) == 16 && sizeof(T) == 4) return _mm_min_ps(a, b);
    if constexpr (sizeof(a) == 16 && sizeof(T) == 8) return _mm_min_pd(a, b);
#endif
    return blend_register<T, N>(compare<Compare::lt, T, N>(a, b), a, b);
#endif
  }
}
template <class T, int N>
TUTTI_HD Register<T, N> greater(Register<T, N> a, Register<T, N> b) {
  static_assert(std::is_floating_point_v<T>);
  if constexpr (N == 1) {
    return a > b ? a : b;
  } else {
#if !defined(__CUDACC__)
#if defined(__AVX512F__)
    if constexpr (sizeof(a) == 64 && sizeof(T) == 4) return _mm512_maskz_max_ps(0xffff, a, b);
    if constexpr (sizeof(a) == 64 && sizeof(T) == 8) return _mm512_maskz_max_pd(0xff, a, b);
#endif
#if defined(__AVX__)
    if constexpr (sizeof(a) == 32 && sizeof(T) == 4) return _mm256_max_ps(a, b);
    if constexpr (sizeof(a) == 32 && sizeof(T) == 8) return _mm256_max_pd(a, b);
#endif
#if defined(__SSE2__)
    if constexpr (sizeof(a) == 16 && sizeof(T) == 4) return _mm_max_ps(a, b);
    if constexpr (sizeof(a) == 16 && sizeof(T) == 8) return _mm_max_pd(a, b);
#endif
    return blend_register<T, N>(compare<Compare::lt, T, N>(b, a), a, b);
#endif
  }
}

// ---- masks. The k-mask intrinsics keep masks in k registers; plain & would move them through general registers.

template <class T, int N>
TUTTI_HD MaskRegister<T, N> mask_splat(bool b) {
  if constexpr (N == 1) {
    return b;
  } else if constexpr (is_k_masked<T, N>) {
    return static_cast<MaskRegister<T, N>>(b ? ~0u : 0u);
  } else {
    using I = IntOfSize<sizeof(T)>;
    return splat<I, N>(b ? I(-1) : I(0));
  }
}
template <class T, int N>
TUTTI_HD MaskRegister<T, N> mask_and(MaskRegister<T, N> a, MaskRegister<T, N> b) {
#if !defined(__CUDACC__) && defined(__AVX512DQ__)
  if constexpr (is_k_masked<T, N> && N == 16) return _kand_mask16(a, b);
  if constexpr (is_k_masked<T, N> && N == 8) return _kand_mask8(a, b);
#endif
  if constexpr (!is_k_masked<T, N>) return a & b;
}
template <class T, int N>
TUTTI_HD MaskRegister<T, N> mask_or(MaskRegister<T, N> a, MaskRegister<T, N> b) {
#if !defined(__CUDACC__) && defined(__AVX512DQ__)
  if constexpr (is_k_masked<T, N> && N == 16) return _kor_mask16(a, b);
  if constexpr (is_k_masked<T, N> && N == 8) return _kor_mask8(a, b);
#endif
  if constexpr (!is_k_masked<T, N>) return a | b;
}
template <class T, int N>
TUTTI_HD MaskRegister<T, N> mask_xor(MaskRegister<T, N> a, MaskRegister<T, N> b) {
#if !defined(__CUDACC__) && defined(__AVX512DQ__)
  if constexpr (is_k_masked<T, N> && N == 16) return _kxor_mask16(a, b);
  if constexpr (is_k_masked<T, N> && N == 8) return _kxor_mask8(a, b);
#endif
  if constexpr (!is_k_masked<T, N>) return a ^ b;
}
template <class T, int N>
TUTTI_HD MaskRegister<T, N> mask_not(MaskRegister<T, N> a) {
#if !defined(__CUDACC__) && defined(__AVX512DQ__)
  if constexpr (is_k_masked<T, N> && N == 16) return _knot_mask16(a);
  if constexpr (is_k_masked<T, N> && N == 8) return _knot_mask8(a);
#endif
  if constexpr (N == 1) {
    return !a;
  } else if constexpr (!is_k_masked<T, N>) {
    return ~a;
  }
}

template <class T, int N>
TUTTI_HD MaskRegister<T, N> mask_load(const uint8_t* p) {
  if constexpr (N == 1) {
    return *p != 0;
  } else {
#if !defined(__CUDACC__)
#if defined(__AVX512BW__)
    if constexpr (is_k_masked<T, N>) {
      __m128i bytes = _mm_setzero_si128();
      std::memcpy(&bytes, p, N);
      return static_cast<MaskRegister<T, N>>(_mm_test_epi8_mask(bytes, bytes));
    }
#endif
    if constexpr (!is_k_masked<T, N>) {
      using I = IntOfSize<sizeof(T)>;
      I wide[N];
      for (int i = 0; i < N; ++i) wide[i] = p[i];
      return ~(MaskRegister<T, N>)compare<Compare::eq, I, N>(load<I, N>(wide), splat<I, N>(0));
    }
#endif
  }
}

template <class T, int N>
TUTTI_HD void mask_store(uint8_t* p, MaskRegister<T, N> m) {
  if constexpr (N == 1) {
    *p = m;
  } else {
#if !defined(__CUDACC__)
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    if constexpr (is_k_masked<T, N>) {
      __m128i bytes = _mm_maskz_set1_epi8(m, 1);
      std::memcpy(p, &bytes, N);
    }
#endif
    if constexpr (!is_k_masked<T, N>) {
      for (int i = 0; i < N; ++i) p[i] = static_cast<uint8_t>(m[i] & 1);
    }
#endif
  }
}

}  // namespace detail
}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise
