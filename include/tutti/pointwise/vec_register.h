// The operations on one machine register (or one scalar) from which vec.h builds Vec and Mask. Nothing here is for
// users of the library.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tutti/pointwise/isa.h"

#if !defined(__CUDACC__) && defined(__SSE2__)
#include <immintrin.h>
#endif

namespace tutti::pointwise {
inline namespace TUTTI_ISA {
namespace detail {

#if defined(__CUDACC__)
inline constexpr int register_bytes = 0;
inline constexpr bool has_k_masks = false;
#elif defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
inline constexpr int register_bytes = 64;
inline constexpr bool has_k_masks = true;
#elif defined(__AVX2__) && defined(__FMA__)
inline constexpr int register_bytes = 32;
inline constexpr bool has_k_masks = false;
#else
inline constexpr int register_bytes = 16;
inline constexpr bool has_k_masks = false;
#endif

template <class T, int N>
inline constexpr bool fits_register = N == 1 || N * static_cast<int>(sizeof(T)) <= register_bytes;

// Registers that use k-masks.
template <class T, int N>
inline constexpr bool is_k_masked = has_k_masks && N > 1 && N * sizeof(T) == 64;

template <class T, int N>
struct RegisterOf {
#if !defined(__CUDACC__)
  typedef T type __attribute__((vector_size(sizeof(T) * N)));
#endif
};
template <class T>
struct RegisterOf<T, 1> {
  using type = T;
};
template <class T, int N>
using Register = typename RegisterOf<T, N>::type;

template <size_t Bytes>
using IntOfSize = std::conditional_t<Bytes == 4, int32_t, int64_t>;

template <class U, class T, int N>
TUTTI_HD Register<U, N> bit_cast_register(Register<T, N> x) {
  Register<U, N> r;
  static_assert(sizeof(r) == sizeof(x));
  std::memcpy(&r, &x, sizeof(r));
  return r;
}

// ---- loads, stores, constants

template <class T, int N, size_t... I>
TUTTI_HD Register<T, N> splat_lanes(T a, std::index_sequence<I...>) {
  return Register<T, N>{(static_cast<void>(I), a)...};
}
template <class T, int N>
TUTTI_HD Register<T, N> splat(T a) {
  if constexpr (N == 1) {
    return a;
  } else {
    return splat_lanes<T, N>(a, std::make_index_sequence<N>());
  }
}

template <class T, int N>
TUTTI_HD Register<T, N> load(const T* p) {
  Register<T, N> r;
  std::memcpy(&r, p, sizeof(r));
  return r;
}
template <class T, int N>
TUTTI_HD void store(T* p, Register<T, N> x) {
  std::memcpy(p, &x, sizeof(x));
}

template <class T, int N>
TUTTI_HD Register<T, N> load(const T* p, int n) {
#if !defined(__CUDACC__) && defined(__AVX512F__)
  if constexpr (is_k_masked<T, N>) {
    if constexpr (sizeof(T) == 4) {
      return (Register<T, N>)_mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << n) - 1), p);
    } else {
      return (Register<T, N>)_mm512_maskz_loadu_epi64(static_cast<__mmask8>((1u << n) - 1), p);
    }
  }
#endif
  T lanes[N] = {};
  if (n > 0) std::memcpy(lanes, p, sizeof(T) * static_cast<size_t>(n));
  return load<T, N>(lanes);
}
template <class T, int N>
TUTTI_HD void store(T* p, Register<T, N> x, int n) {
#if !defined(__CUDACC__) && defined(__AVX512F__)
  if constexpr (is_k_masked<T, N>) {
    if constexpr (sizeof(T) == 4) {
      _mm512_mask_storeu_epi32(p, static_cast<__mmask16>((1u << n) - 1), (__m512i)x);
    } else {
      _mm512_mask_storeu_epi64(p, static_cast<__mmask8>((1u << n) - 1), (__m512i)x);
    }
    return;
  }
#endif
  if (n > 0) std::memcpy(p, &x, sizeof(T) * static_cast<size_t>(n));
}

#if !defined(__CUDACC__)
template <class T, int N, size_t... I>
TUTTI_HD Register<T, N / 2> lower_lanes(Register<T, N> x, std::index_sequence<I...>) {
  if constexpr (N == 2) {
    return x[0];
  } else {
    return __builtin_shufflevector(x, x, static_cast<int>(I)...);
  }
}
template <class T, int N, size_t... I>
TUTTI_HD Register<T, N / 2> upper_lanes(Register<T, N> x, std::index_sequence<I...>) {
  if constexpr (N == 2) {
    return x[1];
  } else {
    return __builtin_shufflevector(x, x, static_cast<int>(I + N / 2)...);
  }
}
template <class T, int N, size_t... I>
TUTTI_HD Register<T, N> join_lanes(Register<T, N / 2> lo, Register<T, N / 2> hi, std::index_sequence<I...>) {
  if constexpr (N == 2) {
    return Register<T, N>{lo, hi};
  } else {
    return __builtin_shufflevector(lo, hi, static_cast<int>(I)...);
  }
}
template <class T, int N>
TUTTI_HD Register<T, N / 2> lower_half(Register<T, N> x) {
  return lower_lanes<T, N>(x, std::make_index_sequence<N / 2>());
}
template <class T, int N>
TUTTI_HD Register<T, N / 2> upper_half(Register<T, N> x) {
  return upper_lanes<T, N>(x, std::make_index_sequence<N / 2>());
}
template <class T, int N>
TUTTI_HD Register<T, N> join(Register<T, N / 2> lo, Register<T, N / 2> hi) {
  return join_lanes<T, N>(lo, hi, std::make_index_sequence<N>());
}
#endif

// ---- arithmetic. Scalar integers go through the unsigned type, so that they wrap whatever the flags.

template <class T, int N>
TUTTI_HD Register<T, N> add(Register<T, N> a, Register<T, N> b) {
  if constexpr (N == 1 && std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}
template <class T, int N>
TUTTI_HD Register<T, N> subtract(Register<T, N> a, Register<T, N> b) {
  if constexpr (N == 1 && std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
  } else {
    return a - b;
  }
}
template <class T, int N>
TUTTI_HD Register<T, N> multiply(Register<T, N> a, Register<T, N> b) {
  if constexpr (N == 1 && std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  } else {
    return a * b;
  }
}
template <class T, int N>
TUTTI_HD Register<T, N> negate(Register<T, N> a) {
  if constexpr (N == 1 && std::is_integral_v<T>) {
    return subtract<T, N>(0, a);
  } else {
    return -a;
  }
}

// Integer division truncates. It never traps: x / 0 is 0, and x / -1 wraps.
template <class T>
TUTTI_HD T divide_lane(T a, T b) {
  using U = std::make_unsigned_t<T>;
  T minus_one = static_cast<T>(-1);
  bool negates = std::is_signed_v<T> && b == minus_one;
  T q = a / (b == 0 || negates ? T(1) : b);
  return b == 0 ? T(0) : negates ? static_cast<T>(U(0) - static_cast<U>(a)) : q;
}
// x % 0 and x % -1 are 0; otherwise the sign is that of a.
template <class T>
TUTTI_HD T remainder_lane(T a, T b) {
  bool negates = std::is_signed_v<T> && b == static_cast<T>(-1);
  return a % (b == 0 || negates ? T(1) : b);
}
template <class T, int N>
TUTTI_HD Register<T, N> divide(Register<T, N> a, Register<T, N> b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a / b;
  } else if constexpr (N == 1) {
    return divide_lane<T>(a, b);
  } else {
    T x[N], y[N];
    store<T, N>(x, a);
    store<T, N>(y, b);
    for (int i = 0; i < N; ++i) x[i] = divide_lane<T>(x[i], y[i]);
    return load<T, N>(x);
  }
}
template <class T, int N>
TUTTI_HD Register<T, N> remainder(Register<T, N> a, Register<T, N> b) {
  if constexpr (N == 1) {
    return remainder_lane<T>(a, b);
  } else {
    T x[N], y[N];
    store<T, N>(x, a);
    store<T, N>(y, b);
    for (int i = 0; i < N; ++i) x[i] = remainder_lane<T>(x[i], y[i]);
    return load<T, N>(x);
  }
}

// Only AVX-512 shifts 64-bit lanes right with their sign; elsewhere the sign bit is spread by (x ^ s) - s, s being
// where the sign bit lands after an unsigned shift.
template <class T, int N>
inline constexpr bool lacks_signed_shift = std::is_signed_v<T> && sizeof(T) == 8 && N > 1 && !is_k_masked<T, N>;

template <class T, int N, class Count>
TUTTI_HD Register<T, N> shift_right_any(Register<T, N> a, Count n) {
  if constexpr (lacks_signed_shift<T, N>) {
    using U = std::make_unsigned_t<T>;
    using RegisterU = Register<U, N>;
    RegisterU counts = bit_cast_register<U, T, N>(n);
    RegisterU x = bit_cast_register<U, T, N>(a) >> counts;
    RegisterU s = splat<U, N>(U(1) << 63) >> counts;
    return bit_cast_register<T, U, N>((x ^ s) - s);
  } else {
    return a >> n;
  }
}
template <class T, int N>
TUTTI_HD Register<T, N> shift_left(Register<T, N> a, int n) {
  if constexpr (N == 1) {
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << n);
  } else {
    return a << n;
  }
}
template <class T, int N>
TUTTI_HD Register<T, N> shift_right(Register<T, N> a, int n) {
  if constexpr (lacks_signed_shift<T, N>) {
    using U = std::make_unsigned_t<T>;
    using RegisterU = Register<U, N>;
    RegisterU x = bit_cast_register<U, T, N>(a) >> n;
    RegisterU s = splat<U, N>((U(1) << 63) >> n);
    return bit_cast_register<T, U, N>((x ^ s) - s);
  } else {
    return a >> n;
  }
}
template <class T, int N>
TUTTI_HD Register<T, N> shift_left_by(Register<T, N> a, Register<T, N> n) {
  if constexpr (N == 1) {
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << n);
  } else {
    return a << n;
  }
}
template <class T, int N>
TUTTI_HD Register<T, N> shift_right_by(Register<T, N> a, Register<T, N> n) {
  return shift_right_any<T, N>(a, n);
}

// ---- fused multiply-add and square root
//
// Some unmasked AVX-512 intrinsics pass an undefined register as the value of masked-off lanes, about which GCC 12
// warns
// (-Wmaybe-uninitialized). Their maskz forms with all lanes on give the same instruction and no warning.

#if !defined(__CUDACC__)
#if defined(__SSE2__) && !defined(__FMA__)
// Correctly rounded a * b + c for floats without an FMA instruction. In double the product is exact and only the sum
// rounds; rounding that sum to odd (when inexact, take the neighbour whose last bit is 1) makes the second rounding, to
// float, give what a single rounding of the exact value would. Doubles have enough bits for that: 53 >= 2 * 24 + 2.
TUTTI_HD Register<double, 2> multiply_add_to_odd(Register<double, 2> a, Register<double, 2> b, Register<double, 2> c) {
  Register<double, 2> p = a * b;
  Register<double, 2> s = p + c;
  Register<double, 2> part = s - p;
  Register<double, 2> e = (p - (s - part)) + (c - part);
  Register<int64_t, 2> bits = bit_cast_register<int64_t, double, 2>(s);
  Register<uint64_t, 2> differ = (Register<uint64_t, 2>)(bits ^ bit_cast_register<int64_t, double, 2>(e)) >> 63;
  Register<int64_t, 2> step = 1 - (Register<int64_t, 2>)(differ << 1);
  Register<int64_t, 2> is_even = (bits & 1) - 1;
  // e is NaN when s is infinite or NaN: ordered comparisons leave those alone.
  Register<int64_t, 2> inexact = (Register<int64_t, 2>)(e < 0.0) | (Register<int64_t, 2>)(e > 0.0);
  return bit_cast_register<double, int64_t, 2>(bits + (step & is_even & inexact));
}
// Functions of their own, because inlined at every fma they would make the baseline objects huge.
inline __attribute__((noinline)) __m128 multiply_add_sse2(__m128 a, __m128 b, __m128 c) {
  __m128 ah = _mm_movehl_ps(a, a), bh = _mm_movehl_ps(b, b), ch = _mm_movehl_ps(c, c);
  __m128d lo = multiply_add_to_odd(_mm_cvtps_pd(a), _mm_cvtps_pd(b), _mm_cvtps_pd(c));
  __m128d hi = multiply_add_to_odd(_mm_cvtps_pd(ah), _mm_cvtps_pd(bh), _mm_cvtps_pd(ch));
  return _mm_movelh_ps(_mm_cvtpd_ps(lo), _mm_cvtpd_ps(hi));
}
inline __attribute__((noinline)) __m128d multiply_add_sse2(__m128d a, __m128d b, __m128d c) {
  return __m128d{::fma(a[0], b[0], c[0]), ::fma(a[1], b[1], c[1])};
}
#endif
#endif

template <class T, int N>
TUTTI_HD Register<T, N> fused_multiply_add(Register<T, N> a, Register<T, N> b, Register<T, N> c) {
  if constexpr (N == 1) {
    if constexpr (std::is_same_v<T, float>) {
      return ::fmaf(a, b, c);
    } else {
      return ::fma(a, b, c);
    }
  } else {
#if !defined(__CUDACC__)
#if defined(__AVX512F__)
    if constexpr (sizeof(a) == 64) {
      if constexpr (std::is_same_v<T, float>) {
        return _mm512_fmadd_ps(a, b, c);
      } else {
        return _mm512_fmadd_pd(a, b, c);
      }
    }
#endif
#if defined(__FMA__)
    if constexpr (sizeof(a) == 32) {
      if constexpr (std::is_same_v<T, float>) {
        return _mm256_fmadd_ps(a, b, c);
      } else {
        return _mm256_fmadd_pd(a, b, c);
      }
    }
    if constexpr (sizeof(a) == 16) {
      if constexpr (std::is_same_v<T, float>) {
        return _mm_fmadd_ps(a, b, c);
      } else {
        return _mm_fmadd_pd(a, b, c);
      }
    }
#elif defined(__SSE2__)
    if constexpr (sizeof(a) == 16) return multiply_add_sse2(a, b, c);
#endif
    Register<T, N> r;
    for (int i = 0; i < N; ++i) r[i] = fused_multiply_add<T, 1>(a[i], b[i], c[i]);
    return r;
#endif
  }
}

template <class T, int N>
TUTTI_HD Register<T, N> square_root(Register<T, N> a) {
  if constexpr (N == 1) {
    if constexpr (std::is_same_v<T, float>) {
      return ::sqrtf(a);
    } else {
      return ::sqrt(a);
    }
  } else {
#if !defined(__CUDACC__)
#if defined(__AVX512F__)
    if constexpr (sizeof(a) == 64) {
      if constexpr (std::is_same_v<T, float>) {
        return _mm512_maskz_sqrt_ps(0xffff, a);
      } else {
        return _mm512_maskz_sqrt_pd(0xff, a);
      }
    }
#endif
#if defined(__AVX__)
    if constexpr (sizeof(a) == 32) {
      if constexpr (std::is_same_v<T, float>) {
        return _mm256_sqrt_ps(a);
      } else {
        return _mm256_sqrt_pd(a);
      }
    }
#endif
#if defined(__SSE2__)
    if constexpr (sizeof(a) == 16) {
      if constexpr (std::is_same_v<T, float>) {
        return _mm_sqrt_ps(a);
      } else {
        return _mm_sqrt_pd(a);
      }
    }
#endif
    Register<T, N> r;
    for (int i = 0; i < N; ++i) r[i] = square_root<T, 1>(a[i]);
    return r;
#endif
  }
}

// x * 2^k for integral k, |k| <= 252 (float) or 2044 (double), rounded once. Two factors, because 2^k itself may be out
// of range; the first product is exact unless the whole underflows to 0. k / 2 is rounded by adding a number so large
// that only its integer part survives, and the integer is then read off the low bits.
template <class T, int N>
TUTTI_HD Register<T, N> scale(Register<T, N> x, Register<T, N> k) {
#if !defined(__CUDACC__) && defined(__AVX512F__)
  if constexpr (is_k_masked<T, N> && sizeof(T) == 4) return _mm512_maskz_scalef_ps(0xffff, x, k);
  if constexpr (is_k_masked<T, N> && sizeof(T) == 8) return _mm512_maskz_scalef_pd(0xff, x, k);
#endif
  if constexpr (!is_k_masked<T, N>) {
    using I = IntOfSize<sizeof(T)>;
    using U = std::make_unsigned_t<I>;
    constexpr int mantissa = sizeof(T) == 4 ? 23 : 52;
    Register<T, N> magic = splat<T, N>(sizeof(T) == 4 ? T(0x1.8p23) : T(0x1.8p52));
    Register<U, N> one = splat<U, N>(U(sizeof(T) == 4 ? 127 : 1023) << mantissa);
    Register<T, N> t1 = fused_multiply_add<T, N>(k, splat<T, N>(T(0.5)), magic);
    Register<T, N> t2 = (k - (t1 - magic)) + magic;
    Register<U, N> s1 = (bit_cast_register<U, T, N>(t1) << mantissa) + one;
    Register<U, N> s2 = (bit_cast_register<U, T, N>(t2) << mantissa) + one;
    return (x * bit_cast_register<T, U, N>(s1)) * bit_cast_register<T, U, N>(s2);
  }
}

// The upper half of the 64-bit product.
template <class T, int N>
TUTTI_HD Register<T, N> multiply_high(Register<T, N> a, Register<T, N> b) {
  static_assert(std::is_same_v<T, uint32_t>);
  if constexpr (N == 1) {
    return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
  } else {
#if !defined(__CUDACC__)
    // Products of the even lanes, then of the odd lanes, each in 64-bit lanes.
#if defined(__AVX512F__)
    if constexpr (sizeof(a) == 64) {
      using W = Register<uint64_t, 8>;
      W even = (W)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b) >> 32;
      __m512i odd = _mm512_maskz_mul_epu32(0xff, (__m512i)((W)a >> 32), (__m512i)((W)b >> 32));
      return (Register<T, N>)_mm512_mask_blend_epi32(0xaaaa, (__m512i)even, odd);
    }
#endif
#if defined(__AVX2__)
    if constexpr (sizeof(a) == 32) {
      __m256i x = (__m256i)a, y = (__m256i)b;
      __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x, y), 32);
      __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(y, 32));
      return (Register<T, N>)_mm256_blend_epi32(even, odd, 0xaa);
    }
#endif
#if defined(__SSE2__)
    if constexpr (sizeof(a) == 16) {
      __m128i x = (__m128i)a, y = (__m128i)b;
      __m128i even = _mm_srli_epi64(_mm_mul_epu32(x, y), 32);
      __m128i odd = _mm_mul_epu32(_mm_srli_epi64(x, 32), _mm_srli_epi64(y, 32));
      return (Register<T, N>)_mm_or_si128(even, _mm_and_si128(odd, _mm_set_epi32(-1, 0, -1, 0)));
    }
#endif
    Register<T, N> r;
    for (int i = 0; i < N; ++i) r[i] = multiply_high<T, 1>(a[i], b[i]);
    return r;
#endif
  }
}

}  // namespace detail
}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise
