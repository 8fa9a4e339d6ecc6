// sin, cos and tan, accurate for every argument.
//
// The hard part is to reduce x to a quadrant n and a remainder r with |r| <= pi/4. x is M 2^E with an integer M, and
// only x / (2 pi) modulo 1 matters, so from the binary expansion of 1 / (2 pi) times 2^E one drops everything above the
// point and keeps a window of 96 bits (float) or 192 bits (double): M times the window, modulo 1, is the angle in
// turns. Arguments closest to a multiple of pi/2 cancel about 30 and 62 bits; enough are left. The window is cut out of
// the constant by a shifter made of selects, one per bit of the word index, so there is no table look-up, and the same
// code serves arguments of every size: nothing is gained by branching on it.
#pragma once

#include "tutti/pointwise/prim_log.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {
namespace detail {

template <class V, class N>
struct Reduced {
  Pair<V> r;
  N quadrant;  // modulo 4
};

// words[k .. k + 3] for k = index, where index < 2^bits and there are 2^bits + 3 words.
template <class U, int N, int Count>
struct Words {
  Vec<U, N> word[Count];
};
template <int Bit, class U, int N, int Count>
TUTTI_HD Words<U, N, 4> pick_words(const Words<U, N, Count>& w, Vec<U, N> index) {
  constexpr int left = Count - (1 << Bit);
  auto skip = (index & (U(1) << Bit)) != 0;
  Words<U, N, left> rest;
  for (int i = 0; i < left; ++i) rest.word[i] = select(skip, w.word[i + (1 << Bit)], w.word[i]);
  if constexpr (Bit == 0) {
    return rest;
  } else {
    return pick_words<Bit - 1>(rest, index);
  }
}

// Three words of the constant's bits, starting at bit number `from`.
template <int IndexBits, class U, int N, int Count>
TUTTI_HD Words<U, N, 3> cut_window(const U (&constant)[Count], Vec<U, N> from) {
  constexpr int width = 8 * sizeof(U), log_width = width == 32 ? 5 : 6;
  Words<U, N, Count> all;
  for (int i = 0; i < Count; ++i) all.word[i] = constant[i];
  Words<U, N, 4> w = pick_words<IndexBits - 1>(all, from >> log_width);
  Vec<U, N> left = from & U(width - 1), right = U(width - 1) - left;
  Words<U, N, 3> window;
  for (int i = 0; i < 3; ++i) window.word[i] = (w.word[i] << left) | ((w.word[i + 1] >> 1) >> right);
  return window;
}

// |x| >= 1. In integers: the 64-bit fraction of a turn is built from 32-bit products.
template <int N>
TUTTI_HD Reduced<Vec<float, N>, Vec<uint32_t, N>> reduce_large(Vec<float, N> a) {
  using V = Vec<float, N>;
  using U = Vec<uint32_t, N>;
  // 2^-23 / (2 pi)
  constexpr uint32_t constant[7] = {0x00000051, 0x7cc1b727, 0x220a94fe, 0x13abe8fa, 0x9a6ee06d, 0xb14acc9e, 0x21c820ff};
  U bits = as_uint(a);
  U m = (bits & 0x7fffffu) | 0x800000u;
  Words<uint32_t, N, 3> w = cut_window<2>(constant, ((bits >> 23) - 127u) & 127u);
  U middle = m * w.word[1];
  U lo = middle + multiply_high(m, w.word[2]);
  U carry = U::from_mask(lo < middle);
  U hi = m * w.word[0] + multiply_high(m, w.word[1]) + carry;
  // hi.lo is the fraction of a turn. Subtract the nearest quarter; what is left is signed.
  U quadrant = (hi + 0x20000000u) >> 30;
  hi = hi - (quadrant << 30);
  V top = convert<float>(bit_cast<int32_t>(hi & 0xffffff00u)) * 0x1p-32f;
  V mid = convert<float>(bit_cast<int32_t>(((hi & 0xffu) << 16) | (lo >> 16))) * 0x1p-48f;
  V low = convert<float>(bit_cast<int32_t>(lo & 0xffffu)) * 0x1p-64f;
  Pair<V> s = fast_two_sum(top, mid);
  return {fast_two_sum(s.hi, s.lo + low), quadrant & 3u};
}

// |x| >= 1. There are no 64-bit products with a high half, so the window becomes four doubles of 52 bits, and the
// products and sums are made exact with fma and two_sum.
template <int N>
TUTTI_HD Reduced<Vec<double, N>, Vec<uint64_t, N>> reduce_large(Vec<double, N> a) {
  using V = Vec<double, N>;
  using U = Vec<uint64_t, N>;
  // 2^-52 / (2 pi)
  constexpr uint64_t constant[19] = {0x000000000000028b, 0xe60db9391054a7f0, 0x9d5f47d4d377036d, 0x8a5664f10e4107f9,
                                     0x458eaf7aef1586dc, 0x91b8e909374b8019, 0x24bba827464873f8, 0x77ac72c4a69cfba2,
                                     0x08d7d4baed1213a6, 0x71c09ad17df904e6, 0x4758e60d4ce7d272, 0x117e2ef7e4a0ec7f,
                                     0xe25fff7816603fbc, 0xbc462d6829b47db4, 0xd9fb3c9f2c26dd3d, 0x18fd9a797fa8b5d4,
                                     0x9eeb1faf97c5ecf4, 0x1ce7de294a4ba9af, 0xed7ec47e35742158};
  U bits = as_uint(a);
  V m = as_float((bits & Real<double>::mantissa_mask) | as_uint(V(0x1p52)));
  Words<uint64_t, N, 3> w = cut_window<4>(constant, ((bits >> 52) - uint64_t(1023)) & uint64_t(1023));
  // Each piece: 52 bits under the exponent of the unit they count from, less that unit.
  U w0 = w.word[0], w1 = w.word[1], w2 = w.word[2];
  V p1 = as_float((w0 >> 12) | as_uint(V(1))) - 1;
  V p2 = as_float(((w0 & uint64_t(0xfff)) << 40) | (w1 >> 24) | as_uint(V(0x1p-52))) - 0x1p-52;
  V p3 = as_float(((w1 & uint64_t(0xffffff)) << 28) | (w2 >> 36) | as_uint(V(0x1p-104))) - 0x1p-104;
  V p4 = as_float(((w2 & uint64_t(0xfffffffff)) << 16) | as_uint(V(0x1p-156))) - 0x1p-156;

  Pair<V> t1 = two_product(m, p1), t2 = two_product(m, p2), t3 = two_product(m, p3);
  // Whole turns do not count: take off a multiple of 8, leaving at most 4.
  V g = t1.hi - ((t1.hi + 0x1.8p55) - 0x1.8p55);
  Pair<V> a1 = two_sum(g, t2.hi);
  Pair<V> a2 = two_sum(a1.hi, t1.lo);
  V shifted = fma(a2.hi, V(4), V(Real<double>::magic));
  V lead = fma(shifted - Real<double>::magic, V(-0.25), a2.hi);
  // lead may be zero and the next terms may cancel too, so their errors are kept.
  Pair<V> b1 = two_sum(a1.lo, a2.lo);
  Pair<V> b2 = two_sum(b1.hi, t3.hi);
  Pair<V> b3 = two_sum(b2.hi, t2.lo);
  V tail = (b1.lo + b2.lo) + (b3.lo + fma(m, p4, t3.lo));
  Pair<V> sum = two_sum(lead, b3.hi);
  return {fast_two_sum(sum.hi, sum.lo + tail), as_uint(shifted) & uint64_t(3)};
}

// a = quadrant * pi/2 + r (modulo a full turn), for a >= 0; garbage for infinity and NaN.
template <class T, int N>
TUTTI_HD Reduced<Vec<T, N>, Vec<UintOf<T>, N>> reduce_angle(Vec<T, N> a) {
  using V = Vec<T, N>;
  using U = Vec<UintOf<T>, N>;
  Reduced<V, U> large = reduce_large(a);
  // From turns to radians.
  V s = large.r.hi;
  V hi = s * T(pick<T>(0x1.921fb6p+2, 0x1.921fb54442d18p+2));
  V lo = fma(s, V(pick<T>(0x1.921fb6p+2, 0x1.921fb54442d18p+2)), -hi);
  lo = fma(large.r.lo, V(pick<T>(0x1.921fb6p+2, 0x1.921fb54442d18p+2)),
           fma(s, V(pick<T>(-0x1.777a5cp-23, 0x1.1a62633145c07p-52)), lo));
  // Below 1 the quadrant is 0 or 1, and 0 leaves a as it is.
  auto direct = a <= T(0.7853981633974483);
  auto small = a < 1;
  V near_hi = a - T(pick<T>(0x1.921fb6p+0, 0x1.921fb54442d18p+0));
  V near_lo = pick<T>(0x1.777a5cp-25, -0x1.1a62633145c07p-54);
  hi = select(direct, a, select(small, near_hi, hi));
  lo = select(direct, 0, select(small, near_lo, lo));
  U quadrant = select(direct, 0, select(small, 1, large.quadrant));
  return {{hi, lo}, quadrant};
}

template <class V>
struct SinCos {
  Pair<V> sin, cos;
};
// For |r| <= pi/4. The pairs are not normalised: lo may be some percent of hi.
template <class T, int N>
TUTTI_HD SinCos<Vec<T, N>> sin_cos(Pair<Vec<T, N>> r) {
  using V = Vec<T, N>;
  V z = r.hi * r.hi;
  V s, c;
  if constexpr (Real<T>::is_float) {
    s = polynomial(z, -0x1.555546p-3, 0x1.11077ep-7, -0x1.9956bp-13);
    c = polynomial(z, 0x1.55554ap-5, -0x1.6c0c3p-10, 0x1.99ebacp-16);
  } else {
    s = polynomial(z, -0x1.5555555555549p-3, 0x1.111111110f8a6p-7, -0x1.a01a019c1608ep-13, 0x1.71de357afc556p-19,
                   -0x1.ae5e6879952dp-26, 0x1.5d9396376d1e7p-33);
    c = polynomial(z, 0x1.555555555554cp-5, -0x1.6c16c16c15221p-10, 0x1.a01a019cbfa52p-16, -0x1.27e4f812e7a89p-22,
                   0x1.1ee9f1714b281p-29, -0x1.8fb13e95259f1p-37);
  }
  V half = z * T(0.5);
  Pair<V> cosine = fast_two_sum(V(1), -half);
  // sin(r + l) = sin r + l cos r and cos(r + l) = cos r - l sin r, to first order.
  V sin_tail = fma(r.hi * z, s, r.lo * cosine.hi);
  V cos_tail = fma(z * z, c, fma(-r.hi, r.lo, cosine.lo));
  return {{r.hi, sin_tail}, {cosine.hi, cos_tail}};
}

template <class T, int N>
TUTTI_HD Vec<T, N> flip_sign(Vec<T, N> x, Vec<UintOf<T>, N> sign) {
  return as_float(as_uint(x) ^ sign);
}

// The value for quadrant n: sin for even n, cos for odd, negated for n of 2 and 3.
template <class T, int N>
TUTTI_HD Vec<T, N> sin_of_quadrant(SinCos<Vec<T, N>> v, Vec<UintOf<T>, N> n) {
  auto odd = (n & 1) != 0;
  Vec<T, N> y = select(odd, v.cos.hi, v.sin.hi) + select(odd, v.cos.lo, v.sin.lo);
  return flip_sign(y, (n & 2) << (8 * int(sizeof(T)) - 2));
}

}  // namespace detail

template <class T, int N>
TUTTI_HD Vec<T, N> sin(Vec<T, N> x) {
  using R = detail::Real<T>;
  Vec<T, N> a = abs(x);
  auto reduced = detail::reduce_angle(a);
  Vec<T, N> y = detail::sin_of_quadrant(detail::sin_cos(reduced.r), reduced.quadrant);
  return select(a < R::infinity, detail::flip_sign(y, as_uint(x) & R::sign_bit), R::nan);
}

template <class T, int N>
TUTTI_HD Vec<T, N> cos(Vec<T, N> x) {
  using R = detail::Real<T>;
  Vec<T, N> a = abs(x);
  auto reduced = detail::reduce_angle(a);
  Vec<T, N> y = detail::sin_of_quadrant(detail::sin_cos(reduced.r), reduced.quadrant + 1);
  return select(a < R::infinity, y, R::nan);
}

template <class T, int N>
TUTTI_HD Vec<T, N> tan(Vec<T, N> x) {
  using V = Vec<T, N>;
  using R = detail::Real<T>;
  using P = detail::Pair<V>;
  V a = abs(x);
  auto reduced = detail::reduce_angle(a);
  detail::SinCos<V> v = detail::sin_cos(reduced.r);
  P s = detail::fast_two_sum(v.sin.hi, v.sin.lo), c = detail::fast_two_sum(v.cos.hi, v.cos.lo);
  // sin / cos, or -cos / sin in odd quadrants.
  auto odd = (reduced.quadrant & 1) != 0;
  P q = detail::divide(P{select(odd, -c.hi, s.hi), select(odd, -c.lo, s.lo)},
                       P{select(odd, s.hi, c.hi), select(odd, s.lo, c.lo)});
  return select(a < R::infinity, detail::flip_sign(q.hi + q.lo, as_uint(x) & R::sign_bit), R::nan);
}

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise
