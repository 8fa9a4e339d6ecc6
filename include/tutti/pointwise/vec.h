// Vec<T, N>: N lanes of T with the operators of T, and Mask<T, N>: the result of comparing them.
//
// Vec<T, 1> is a plain scalar; it is all that exists under nvcc. Otherwise a Vec that fits a machine register is one
// GCC/clang vector, and a wider one is two halves. The halves are there because GCC 12 keeps vectors wider than a
// register in memory and takes their comparisons apart lane by lane, while halves that each fit a register give the
// code one would write by hand. Users do not see the difference: they use load, store and the operators.
//
// Arithmetic constants convert to T before anything else happens, so `x * 0.5` is a float product when x holds floats.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tutti/pointwise/isa.h"
#include "tutti/pointwise/vec_mask.h"
#include "tutti/pointwise/vec_register.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

template <class T, int N>
struct Vec;

// One truth value per lane. T is the element type of the vectors compared; select() takes a mask of any T.
template <class T, int N>
struct Mask {
  using Element = T;
  static constexpr int lanes = N;
  using Register = detail::MaskRegister<T, N>;
  Register m;

  Mask() = default;
  TUTTI_HD explicit Mask(bool b) : m(detail::mask_splat<T, N>(b)) {}
  static TUTTI_HD Mask from_register(Register r) {
    Mask x;
    x.m = r;
    return x;
  }

  // One byte per lane; nonzero is true. The partial form reads n bytes; the other lanes are false.
  static TUTTI_HD Mask load(const uint8_t* p) { return from_register(detail::mask_load<T, N>(p)); }
  static TUTTI_HD Mask load(const uint8_t* p, int n) {
    uint8_t bytes[N] = {};
    for (int i = 0; i < n; ++i) bytes[i] = p[i];
    return load(bytes);
  }

  friend TUTTI_HD Mask operator&(Mask a, Mask b) { return from_register(detail::mask_and<T, N>(a.m, b.m)); }
  friend TUTTI_HD Mask operator|(Mask a, Mask b) { return from_register(detail::mask_or<T, N>(a.m, b.m)); }
  friend TUTTI_HD Mask operator^(Mask a, Mask b) { return from_register(detail::mask_xor<T, N>(a.m, b.m)); }
  friend TUTTI_HD Mask operator!(Mask a) { return from_register(detail::mask_not<T, N>(a.m)); }
};

template <class T, int N>
  requires(!detail::fits_register<T, N>)
struct Mask<T, N> {
  using Element = T;
  static constexpr int lanes = N;
  using Half = Mask<T, N / 2>;
  Half lo, hi;

  Mask() = default;
  TUTTI_HD explicit Mask(bool b) : lo(b), hi(b) {}
  TUTTI_HD Mask(Half l, Half h) : lo(l), hi(h) {}

  static TUTTI_HD Mask load(const uint8_t* p) { return Mask(Half::load(p), Half::load(p + N / 2)); }
  static TUTTI_HD Mask load(const uint8_t* p, int n) {
    uint8_t bytes[N] = {};
    for (int i = 0; i < n; ++i) bytes[i] = p[i];
    return load(bytes);
  }

  friend TUTTI_HD Mask operator&(Mask a, Mask b) { return Mask(a.lo & b.lo, a.hi & b.hi); }
  friend TUTTI_HD Mask operator|(Mask a, Mask b) { return Mask(a.lo | b.lo, a.hi | b.hi); }
  friend TUTTI_HD Mask operator^(Mask a, Mask b) { return Mask(a.lo ^ b.lo, a.hi ^ b.hi); }
  friend TUTTI_HD Mask operator!(Mask a) { return Mask(!a.lo, !a.hi); }
};

// A vector that is one register (or one scalar, N == 1).
template <class T, int N>
struct Vec {
  using Element = T;
  static constexpr int lanes = N;
  using MaskType = Mask<T, N>;
  using Register = detail::Register<T, N>;
  Register v;

  Vec() = default;
  template <class A>
    requires std::is_arithmetic_v<A>
  TUTTI_HD Vec(A a) : v(detail::splat<T, N>(static_cast<T>(a))) {}
  static TUTTI_HD Vec from_register(Register r) {
    Vec x;
    x.v = r;
    return x;
  }

  static TUTTI_HD Vec load(const T* p) { return from_register(detail::load<T, N>(p)); }
  TUTTI_HD void store(T* p) const { detail::store<T, N>(p, v); }
  // The first n lanes, 0 <= n <= N; no memory beyond them is touched, and the other lanes load as 0.
  static TUTTI_HD Vec load(const T* p, int n) { return from_register(detail::load<T, N>(p, n)); }
  TUTTI_HD void store(T* p, int n) const { detail::store<T, N>(p, v, n); }
  static TUTTI_HD Vec from_mask(MaskType m) { return select(m, Vec(1), Vec(0)); }
  static TUTTI_HD Vec multiply_add(Vec a, Vec b, Vec c) {
    return from_register(detail::fused_multiply_add<T, N>(a.v, b.v, c.v));
  }

  friend TUTTI_HD Vec operator+(Vec a, Vec b) { return from_register(detail::add<T, N>(a.v, b.v)); }
  friend TUTTI_HD Vec operator-(Vec a, Vec b) { return from_register(detail::subtract<T, N>(a.v, b.v)); }
  friend TUTTI_HD Vec operator*(Vec a, Vec b) { return from_register(detail::multiply<T, N>(a.v, b.v)); }
  friend TUTTI_HD Vec operator/(Vec a, Vec b) { return from_register(detail::divide<T, N>(a.v, b.v)); }
  friend TUTTI_HD Vec operator-(Vec a) { return from_register(detail::negate<T, N>(a.v)); }

  friend TUTTI_HD Vec operator%(Vec a, Vec b)
    requires std::is_integral_v<T>
  {
    return from_register(detail::remainder<T, N>(a.v, b.v));
  }
  friend TUTTI_HD Vec operator&(Vec a, Vec b)
    requires std::is_integral_v<T>
  {
    return from_register(a.v & b.v);
  }
  friend TUTTI_HD Vec operator|(Vec a, Vec b)
    requires std::is_integral_v<T>
  {
    return from_register(a.v | b.v);
  }
  friend TUTTI_HD Vec operator^(Vec a, Vec b)
    requires std::is_integral_v<T>
  {
    return from_register(a.v ^ b.v);
  }
  friend TUTTI_HD Vec operator~(Vec a)
    requires std::is_integral_v<T>
  {
    return from_register(~a.v);
  }
  // Shift counts must lie in [0, bits of T). >> keeps the sign of a signed T.
  friend TUTTI_HD Vec operator<<(Vec a, int n)
    requires std::is_integral_v<T>
  {
    return from_register(detail::shift_left<T, N>(a.v, n));
  }
  friend TUTTI_HD Vec operator>>(Vec a, int n)
    requires std::is_integral_v<T>
  {
    return from_register(detail::shift_right<T, N>(a.v, n));
  }
  friend TUTTI_HD Vec operator<<(Vec a, Vec n)
    requires std::is_integral_v<T>
  {
    return from_register(detail::shift_left_by<T, N>(a.v, n.v));
  }
  friend TUTTI_HD Vec operator>>(Vec a, Vec n)
    requires std::is_integral_v<T>
  {
    return from_register(detail::shift_right_by<T, N>(a.v, n.v));
  }

  friend TUTTI_HD MaskType operator==(Vec a, Vec b) { return compare<detail::Compare::eq>(a, b); }
  friend TUTTI_HD MaskType operator!=(Vec a, Vec b) { return compare<detail::Compare::ne>(a, b); }
  friend TUTTI_HD MaskType operator<(Vec a, Vec b) { return compare<detail::Compare::lt>(a, b); }
  friend TUTTI_HD MaskType operator<=(Vec a, Vec b) { return compare<detail::Compare::le>(a, b); }
  friend TUTTI_HD MaskType operator>(Vec a, Vec b) { return compare<detail::Compare::lt>(b, a); }
  friend TUTTI_HD MaskType operator>=(Vec a, Vec b) { return compare<detail::Compare::le>(b, a); }

  // a * b + c, rounded once.
  friend TUTTI_HD Vec fma(Vec a, Vec b, Vec c)
    requires std::is_floating_point_v<T>
  {
    return multiply_add(a, b, c);
  }

 private:
  template <detail::Compare op>
  static TUTTI_HD MaskType compare(Vec a, Vec b) {
    return MaskType::from_register(detail::compare<op, T, N>(a.v, b.v));
  }
};

// A vector wider than a register: two halves.
template <class T, int N>
  requires(!detail::fits_register<T, N>)
struct Vec<T, N> {
  using Element = T;
  static constexpr int lanes = N;
  using MaskType = Mask<T, N>;
  using Half = Vec<T, N / 2>;
  Half lo, hi;

  Vec() = default;
  template <class A>
    requires std::is_arithmetic_v<A>
  TUTTI_HD Vec(A a) : lo(a), hi(a) {}
  TUTTI_HD Vec(Half l, Half h) : lo(l), hi(h) {}

  static TUTTI_HD Vec load(const T* p) { return Vec(Half::load(p), Half::load(p + N / 2)); }
  TUTTI_HD void store(T* p) const {
    lo.store(p);
    hi.store(p + N / 2);
  }
  static TUTTI_HD Vec load(const T* p, int n) {
    T lanes_in[N] = {};
    if (n > 0) std::memcpy(lanes_in, p, sizeof(T) * static_cast<size_t>(n));
    return load(lanes_in);
  }
  TUTTI_HD void store(T* p, int n) const {
    T lanes_out[N];
    store(lanes_out);
    if (n > 0) std::memcpy(p, lanes_out, sizeof(T) * static_cast<size_t>(n));
  }
  static TUTTI_HD Vec from_mask(MaskType m) { return select(m, Vec(1), Vec(0)); }
  static TUTTI_HD Vec multiply_add(Vec a, Vec b, Vec c) {
    return Vec(Half::multiply_add(a.lo, b.lo, c.lo), Half::multiply_add(a.hi, b.hi, c.hi));
  }

  friend TUTTI_HD Vec operator+(Vec a, Vec b) { return Vec(a.lo + b.lo, a.hi + b.hi); }
  friend TUTTI_HD Vec operator-(Vec a, Vec b) { return Vec(a.lo - b.lo, a.hi - b.hi); }
  friend TUTTI_HD Vec operator*(Vec a, Vec b) { return Vec(a.lo * b.lo, a.hi * b.hi); }
  friend TUTTI_HD Vec operator/(Vec a, Vec b) { return Vec(a.lo / b.lo, a.hi / b.hi); }
  friend TUTTI_HD Vec operator-(Vec a) { return Vec(-a.lo, -a.hi); }

  friend TUTTI_HD Vec operator%(Vec a, Vec b)
    requires std::is_integral_v<T>
  {
    return Vec(a.lo % b.lo, a.hi % b.hi);
  }
  friend TUTTI_HD Vec operator&(Vec a, Vec b)
    requires std::is_integral_v<T>
  {
    return Vec(a.lo & b.lo, a.hi & b.hi);
  }
  friend TUTTI_HD Vec operator|(Vec a, Vec b)
    requires std::is_integral_v<T>
  {
    return Vec(a.lo | b.lo, a.hi | b.hi);
  }
  friend TUTTI_HD Vec operator^(Vec a, Vec b)
    requires std::is_integral_v<T>
  {
    return Vec(a.lo ^ b.lo, a.hi ^ b.hi);
  }
  friend TUTTI_HD Vec operator~(Vec a)
    requires std::is_integral_v<T>
  {
    return Vec(~a.lo, ~a.hi);
  }
  friend TUTTI_HD Vec operator<<(Vec a, int n)
    requires std::is_integral_v<T>
  {
    return Vec(a.lo << n, a.hi << n);
  }
  friend TUTTI_HD Vec operator>>(Vec a, int n)
    requires std::is_integral_v<T>
  {
    return Vec(a.lo >> n, a.hi >> n);
  }
  friend TUTTI_HD Vec operator<<(Vec a, Vec n)
    requires std::is_integral_v<T>
  {
    return Vec(a.lo << n.lo, a.hi << n.hi);
  }
  friend TUTTI_HD Vec operator>>(Vec a, Vec n)
    requires std::is_integral_v<T>
  {
    return Vec(a.lo >> n.lo, a.hi >> n.hi);
  }

  friend TUTTI_HD MaskType operator==(Vec a, Vec b) { return MaskType(a.lo == b.lo, a.hi == b.hi); }
  friend TUTTI_HD MaskType operator!=(Vec a, Vec b) { return MaskType(a.lo != b.lo, a.hi != b.hi); }
  friend TUTTI_HD MaskType operator<(Vec a, Vec b) { return MaskType(a.lo < b.lo, a.hi < b.hi); }
  friend TUTTI_HD MaskType operator<=(Vec a, Vec b) { return MaskType(a.lo <= b.lo, a.hi <= b.hi); }
  friend TUTTI_HD MaskType operator>(Vec a, Vec b) { return MaskType(a.lo > b.lo, a.hi > b.hi); }
  friend TUTTI_HD MaskType operator>=(Vec a, Vec b) { return MaskType(a.lo >= b.lo, a.hi >= b.hi); }

  friend TUTTI_HD Vec fma(Vec a, Vec b, Vec c)
    requires std::is_floating_point_v<T>
  {
    return multiply_add(a, b, c);
  }
};

namespace detail {

template <class A>
struct VecTraits {
  static constexpr bool is_vec = false;
};
template <class T, int N>
struct VecTraits<Vec<T, N>> {
  static constexpr bool is_vec = true;
  static constexpr int lanes = N;
};

// What select(Mask<T, N>, A, B) gives: the vector type among A and B, or Vec<T, N> when both are constants.
template <class T, int N, class A, class B>
using SelectResult =
    std::conditional_t<VecTraits<A>::is_vec, A, std::conditional_t<VecTraits<B>::is_vec, B, Vec<T, N>>>;

template <class A>
inline constexpr bool is_lane_value = VecTraits<A>::is_vec || std::is_arithmetic_v<A>;

template <class T, int N>
TUTTI_HD Vec<T, N> blend(Mask<T, N> m, Vec<T, N> a, Vec<T, N> b) {
  if constexpr (fits_register<T, N>) {
    return Vec<T, N>::from_register(blend_register<T, N>(m.m, a.v, b.v));
  } else {
    return Vec<T, N>(blend(m.lo, a.lo, b.lo), blend(m.hi, a.hi, b.hi));
  }
}

#if !defined(__CUDACC__) && defined(__SSE2__)
// 32 bytes of mask lanes narrowed to 16-bit lanes. The lanes are all ones or all zeros, so saturation changes nothing;
// a 64-bit lane is a pair of equal 32-bit lanes.
template <class T, int N>
TUTTI_HD __m128i pack_words(Mask<T, N> m) {
  static_assert(N * sizeof(T) == 32);
  if constexpr (fits_register<T, N>) {
    using I = IntOfSize<sizeof(T)>;
    return _mm_packs_epi32((__m128i)lower_half<I, N>(m.m), (__m128i)upper_half<I, N>(m.m));
  } else {
    return _mm_packs_epi32((__m128i)m.lo.m, (__m128i)m.hi.m);
  }
}
// 64 bytes of mask lanes as N bytes of 0 or 1.
template <class T, int N>
TUTTI_HD __m128i pack_bytes(Mask<T, N> m) {
  __m128i bytes = _mm_packs_epi16(pack_words(m.lo), pack_words(m.hi));
  if constexpr (sizeof(T) == 8) bytes = _mm_packs_epi16(bytes, bytes);
  return _mm_and_si128(bytes, _mm_set1_epi8(1));
}
#endif

}  // namespace detail

// The same lanes seen as another type of the same width.
template <class U, class T, int N>
TUTTI_HD Vec<U, N> bit_cast(Vec<T, N> x) {
  static_assert(sizeof(U) == sizeof(T));
  if constexpr (std::is_same_v<U, T>) {
    return x;
  } else if constexpr (detail::fits_register<T, N>) {
    return Vec<U, N>::from_register(detail::bit_cast_register<U, T, N>(x.v));
  } else {
    return Vec<U, N>(bit_cast<U>(x.lo), bit_cast<U>(x.hi));
  }
}

// a * b + c, rounded once; the operators' fma, for qualified calls.
template <class T, int N>
TUTTI_HD Vec<T, N> fma(Vec<T, N> a, std::type_identity_t<Vec<T, N>> b, std::type_identity_t<Vec<T, N>> c) {
  return Vec<T, N>::multiply_add(a, b, c);
}

// The correctly rounded square root.
template <class T, int N>
TUTTI_HD Vec<T, N> sqrt(Vec<T, N> a) {
  if constexpr (detail::fits_register<T, N>) {
    return Vec<T, N>::from_register(detail::square_root<T, N>(a.v));
  } else {
    return Vec<T, N>(sqrt(a.lo), sqrt(a.hi));
  }
}

// a < b ? a : b and a > b ? a : b, hence b when either is NaN. One instruction; min and max build on them.
template <class T, int N>
TUTTI_HD Vec<T, N> lesser(Vec<T, N> a, Vec<T, N> b) {
  if constexpr (detail::fits_register<T, N>) {
    return Vec<T, N>::from_register(detail::lesser<T, N>(a.v, b.v));
  } else {
    return Vec<T, N>(lesser(a.lo, b.lo), lesser(a.hi, b.hi));
  }
}
template <class T, int N>
TUTTI_HD Vec<T, N> greater(Vec<T, N> a, Vec<T, N> b) {
  if constexpr (detail::fits_register<T, N>) {
    return Vec<T, N>::from_register(detail::greater<T, N>(a.v, b.v));
  } else {
    return Vec<T, N>(greater(a.lo, b.lo), greater(a.hi, b.hi));
  }
}

// x * 2^k for integral-valued k, |k| <= 252 (float) or 2044 (double), rounded once.
template <class T, int N>
TUTTI_HD Vec<T, N> scale(Vec<T, N> x, Vec<T, N> k) {
  if constexpr (detail::fits_register<T, N>) {
    return Vec<T, N>::from_register(detail::scale<T, N>(x.v, k.v));
  } else {
    return Vec<T, N>(scale(x.lo, k.lo), scale(x.hi, k.hi));
  }
}

// The upper half of the 64-bit product.
template <int N>
TUTTI_HD Vec<uint32_t, N> multiply_high(Vec<uint32_t, N> a, Vec<uint32_t, N> b) {
  if constexpr (detail::fits_register<uint32_t, N>) {
    return Vec<uint32_t, N>::from_register(detail::multiply_high<uint32_t, N>(a.v, b.v));
  } else {
    return Vec<uint32_t, N>(multiply_high(a.lo, b.lo), multiply_high(a.hi, b.hi));
  }
}

// One byte per lane, 1 for true and 0 for false.
template <class T, int N>
TUTTI_HD void store_mask(uint8_t* p, Mask<T, N> m) {
  if constexpr (detail::fits_register<T, N>) {
    detail::mask_store<T, N>(p, m.m);
#if !defined(__CUDACC__) && defined(__SSE2__)
  } else if constexpr (N * sizeof(T) == 64) {
    __m128i packed = detail::pack_bytes(m);
    std::memcpy(p, &packed, N);
#endif
  } else {
    store_mask(p, m.lo);
    store_mask(p + N / 2, m.hi);
  }
}
template <class T, int N>
TUTTI_HD void store_mask(uint8_t* p, Mask<T, N> m, int n) {
  uint8_t bytes[N];
  store_mask(bytes, m);
  for (int i = 0; i < n; ++i) p[i] = bytes[i];
}

// The same truth values as a mask of another element type. Free when the widths agree.
template <class U, class T, int N>
TUTTI_HD Mask<U, N> mask_cast(Mask<T, N> m) {
  if constexpr (std::is_same_v<U, T>) {
    return m;
  } else if constexpr (sizeof(U) != sizeof(T)) {
    uint8_t bytes[N];
    store_mask(bytes, m);
    return Mask<U, N>::load(bytes);
  } else if constexpr (detail::fits_register<T, N>) {
    return Mask<U, N>::from_register(m.m);
  } else {
    return Mask<U, N>(mask_cast<U>(m.lo), mask_cast<U>(m.hi));
  }
}

// a where m holds, else b. Either may be an arithmetic constant.
template <class T, int N, class A, class B>
  requires(detail::is_lane_value<A> && detail::is_lane_value<B>)
TUTTI_HD detail::SelectResult<T, N, A, B> select(Mask<T, N> m, A a, B b) {
  using R = detail::SelectResult<T, N, A, B>;
  return detail::blend(mask_cast<typename R::Element>(m), R(a), R(b));
}

// Each lane converted as static_cast<U> would. A value outside the range of an integer U gives an unspecified lane.
template <class U, class T, int N>
TUTTI_HD Vec<U, N> convert(Vec<T, N> x) {
  if constexpr (std::is_same_v<U, T>) {
    return x;
  } else if constexpr (N == 1) {
    return Vec<U, 1>(x.v);
#if !defined(__CUDACC__)
  } else if constexpr (detail::fits_register<T, N> && detail::fits_register<U, N>) {
    return Vec<U, N>::from_register(__builtin_convertvector(x.v, detail::Register<U, N>));
  } else if constexpr (detail::fits_register<T, N>) {
    using H = Vec<T, N / 2>;
    return Vec<U, N>(convert<U>(H::from_register(detail::lower_half<T, N>(x.v))),
                     convert<U>(H::from_register(detail::upper_half<T, N>(x.v))));
  } else if constexpr (detail::fits_register<U, N>) {
    return Vec<U, N>::from_register(detail::join<U, N>(convert<U>(x.lo).v, convert<U>(x.hi).v));
  } else {
    return Vec<U, N>(convert<U>(x.lo), convert<U>(x.hi));
#endif
  }
}

// The integer types as wide as a floating type, and shorthands for moving between the two.
template <class T>
using IntOf = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
template <class T>
using UintOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
template <class T>
using FloatOf = std::conditional_t<sizeof(T) == 4, float, double>;

template <class T, int N>
TUTTI_HD Vec<IntOf<T>, N> as_int(Vec<T, N> x) {
  return bit_cast<IntOf<T>>(x);
}
template <class T, int N>
TUTTI_HD Vec<UintOf<T>, N> as_uint(Vec<T, N> x) {
  return bit_cast<UintOf<T>>(x);
}
template <class T, int N>
TUTTI_HD Vec<FloatOf<T>, N> as_float(Vec<T, N> x) {
  return bit_cast<FloatOf<T>>(x);
}

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise
