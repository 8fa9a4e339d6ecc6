// erf, erfc, erfinv, and the normal distribution.
#pragma once

#include "tutti/pointwise/prim_log.h"
#include "tutti/pointwise/vec_table.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {
namespace detail {

// Below this, erf(x) = x + x p(x^2); above, from 1 - erf(x).
template <class T>
inline constexpr T erf_split = T(0.75);

// erf(x) / x - 1 for |x| <= 0.75, as a polynomial in z = x^2.
template <class T, int N>
TUTTI_HD Vec<T, N> erf_slope(Vec<T, N> z) {
  if constexpr (Real<T>::is_float) {
    return polynomial(z, 0x1.06eba8p-3, -0x1.81273cp-2, 0x1.ce2b54p-4, -0x1.b7b2a4p-6, 0x1.4f79cep-8, -0x1.6384ap-11);
  } else {
    return polynomial(z, 0x1.06eba8214db69p-3, -0x1.812746b037ap-2, 0x1.ce2f21a0437e7p-4, -0x1.b82ce312abf0fp-6,
                      0x1.565bcd103fe3bp-8, -0x1.c02db379ebc88p-11, 0x1.f9a2f425b5c01p-14, -0x1.f4cacef7e21ccp-17,
                      0x1.b946a8baf3a17p-20, -0x1.57b0f7052f9e9p-23, 0x1.91aea81d11425p-27);
  }
}

// erfc(a) for a >= 0.75.
//
// e^(a^2) erfc(a) (a + 3/8) varies by only 6% from 0.75 to infinity, and is smooth in t = 1 / (a + 2.5): one polynomial
// about the middle of the t interval covers everything up to where erfc underflows. Being nearly constant it does not
// magnify errors of t. a^2, the quotient and the polynomial are pairs, so that the result has little more than its
// final rounding.
template <class T, int N>
TUTTI_HD Vec<T, N> erfc_large(Vec<T, N> a) {
  using V = Vec<T, N>;
  using P = Pair<V>;
  a = lesser(V(pick<T>(10.5, 28)), a);
  V u = 1 / (a + T(2.5)) - T(pick<T>(0.1875, 0.171875));
  V g;
  if constexpr (Real<T>::is_float) {
    g = polynomial(u, 0x1.e705f8p-4, -0x1.9d1f44p+0, -0x1.43f36ap+3, -0x1.ffbc64p+4, -0x1.a8ce74p+5, -0x1.469becp+1,
                   0x1.4e20e2p+7, 0x1.061a12p+7, -0x1.fcfb2p+8);
  } else {
    g = polynomial(u, 0x1.4c9300093ec7ep-3, -0x1.2f1e0c2ff6203p+0, -0x1.081df31ce776ap+3, -0x1.bdd953a6a0d49p+4,
                   -0x1.a023b344f87a8p+5, -0x1.3ec7e65cec74p+4, 0x1.1f881293fbc5dp+7, 0x1.c24ba25eac2e2p+7,
                   -0x1.a699f8e464478p+8, -0x1.22a79c5e0cc4ep+10, 0x1.c606f1ce3e577p+10, 0x1.5ffa7f72fb99dp+12,
                   -0x1.630f3c3f87d39p+13, -0x1.8b4edec3247dp+14, 0x1.46d1e2dc6bf0fp+16, 0x1.411ef51a830e4p+16,
                   -0x1.26abc792383c6p+19, 0x1.d47660d7578ccp+14, 0x1.bf3bbf00aa658p+21, -0x1.c38e2e46c2cb4p+20,
                   -0x1.a73f46badea8ep+23);
  }
  P f = fast_two_sum(V(pick<T>(0x1.35af86p-1, 0x1.348d2fcc4c578p-1)),
                     fma(u, g, V(pick<T>(-0x1.9dce6cp-26, -0x1.bde29fa9056d9p-55))));
  P square = two_product(a, a);
  ExpParts<V> e = exp_parts(-square.hi, -square.lo);
  P p = fast_two_sum(V(1), e.r);
  p = fast_two_sum(p.hi, p.lo + e.tail);
  P q = divide(multiply(p, f), fast_two_sum(a, V(0.375)));
  return scale(q.hi + q.lo, e.k);
}

// 1 - erfc(a) for a >= 0.75 where floats suffice: erfc(a) = e^p(a), and since it is at most 0.29 and falls fast, p
// needs no more than ordinary accuracy. The error of the fit, relative to 1, is 2^-28.
template <int N>
TUTTI_HD Vec<float, N> erf_large_float(Vec<float, N> a) {
  using V = Vec<float, N>;
  a = lesser(V(4), a);
  V p = polynomial(a, -0x1.ec67eep-16, -0x1.20de8p0, -0x1.4596dap-1, -0x1.ae724p-4, 0x1.75ac7ep-6, -0x1.a2ac1p-9,
                   0x1.bc4f86p-13);
  V shifted = fma(p, V(1.4426950408889634), V(Real<float>::magic));
  V r = fma(shifted - Real<float>::magic, V(-0.6931471805599453), p);
  V e = 1 + fma(r * r, exp_tail(r), r);
  // 2^k by adding k to the exponent: nothing here is near the ends of the range.
  return 1 - as_float(as_uint(e) + (as_uint(shifted) << 23));
}

// Φ(a) - 1/2 for a >= 0, Φ being the normal distribution's: a polynomial of degree 5 about each multiple of 23/64 up to
// where the rest rounds away. The error of the fit is 2^-26. Coefficients from a table cost less than the exponential
// that erf needs.
template <int N>
TUTTI_HD Vec<float, N> normal_half(Vec<float, N> a) {
  using V = Vec<float, N>;
  alignas(64) static constexpr float table[6][16] = {
      {0, 0x1.1f6cp-3f, 0x1.0e2f5ap-2f, 0x1.7023a8p-2f, 0x1.b2e7b4p-2f, 0x1.daf43ap-2f, 0x1.f0185cp-2f, 0x1.f9ea96p-2f,
       0x1.fdee6ep-2f, 0x1.ff6036p-2f, 0x1.ffd546p-2f, 0x1.fff5e4p-2f, 0x1.fffde2p-2f, 0x1.ffff9cp-2f, 0x1.fffffp-2f,
       0x1.fffffep-2f},
      {0x1.988452p-2f, 0x1.7ef876p-2f, 0x1.3b85f6p-2f, 0x1.c8eafap-3f, 0x1.22c102p-3f, 0x1.4533dp-4f, 0x1.3fa9c4p-5f,
       0x1.1425ecp-6f, 0x1.a34ea4p-8f, 0x1.17c578p-9f, 0x1.481b48p-11f, 0x1.522bf6p-13f, 0x1.325108p-15f,
       0x1.e7b0c6p-18f, 0x1.553132p-20f, 0x1.a38f82p-23f},
      {0x1.1b006ep-22f, -0x1.134104p-4f, -0x1.c58eacp-4f, -0x1.ec9c5ep-4f, -0x1.a1f5bp-4f, -0x1.242d62p-4f,
       -0x1.58a472p-5f, -0x1.5b58e4p-6f, -0x1.2d6074p-7f, -0x1.c46da2p-9f, -0x1.26c20ap-10f, -0x1.4e270ep-12f,
       -0x1.4a271ep-14f, -0x1.1cacfap-16f, -0x1.acdedap-19f, -0x1.1a71fap-21f},
      {-0x1.105e72p-4f, -0x1.bcad22p-5f, -0x1.96bb56p-6f, 0x1.8b9b66p-8f, 0x1.9d68dcp-6f, 0x1.e3329p-6f, 0x1.84dcfep-6f,
       0x1.ea7a6p-7f, 0x1.fbc286p-8f, 0x1.b929a4p-9f, 0x1.45c786p-10f, 0x1.9c312ep-12f, 0x1.c12ad6p-14f,
       0x1.a72436p-16f, 0x1.599222p-18f, 0x1.ea5a36p-21f},
      {0x1.e05408p-15f, 0x1.0562c6p-6f, 0x1.75011p-6f, 0x1.2c7fbcp-6f, 0x1.04c0fcp-7f, -0x1.53486ep-10f,
       -0x1.774f3ap-8f, -0x1.7fd198p-8f, -0x1.0889bcp-8f, -0x1.1a8374p-9f, -0x1.eb4d4ap-11f, -0x1.644fb2p-12f,
       -0x1.b50e86p-14f, -0x1.c9591ap-16f, -0x1.9ab874p-18f, -0x1.3de6bep-20f},
      {0x1.3fcac2p-7f, 0x1.c7ab4cp-8f, 0x1.cfdfbap-12f, -0x1.3d0034p-8f, -0x1.8b98c8p-8f, -0x1.0182dep-8f,
       -0x1.1a6f82p-10f, 0x1.6f60e4p-11f, 0x1.2e0286p-10f, 0x1.cec0c4p-11f, 0x1.fa263cp-12f, 0x1.b32804p-13f,
       0x1.31e5d8p-14f, 0x1.66f9aep-16f, 0x1.6403fep-18f, 0x1.2cd6d4p-20f},
  };
  a = lesser(V(5.5625), a);
  V shifted = fma(a, V(64.0 / 23), V(Real<float>::magic));
  V r = fma(shifted - Real<float>::magic, V(-23.0 / 64), a);
  auto index = as_uint(shifted);
  V p = lookup(table[5], index);
  for (int i = 4; i >= 0; --i) p = fma(p, r, lookup(table[i], index));
  return p;
}

// a (1 - Φ(a)) for a >= 0: a polynomial of degree 5 about each multiple of 25/64, the last of which is where the rest
// is taken for 0. The error of the fit is 2^-26; relative to the result it is 2^-21 up to 3.3 and 2^-15 up to 5.6.
template <int N>
TUTTI_HD Vec<float, N> normal_shortfall(Vec<float, N> a) {
  using V = Vec<float, N>;
  alignas(64) static constexpr float table[6][16] = {
      {0, 0x1.166e04p-3f, 0x1.5bb972p-3f, 0x1.217f28p-3f, 0x1.7a2512p-4f, 0x1.967034p-5f, 0x1.6e8be4p-6f, 0x1.17feap-7f,
       0x1.6c2508p-9f, 0x1.945316p-11f, 0x1.7ff522p-13f, 0x1.3830a8p-15f, 0x1.b2ff96p-18f, 0x1.03cdep-20f,
       0x1.0a232ep-23f, 0},
      {0x1p-1f, 0x1.a111f8p-3f, -0x1.957726p-7f, -0x1.d5a1dep-4f, -0x1.ff3f82p-4f, -0x1.71cf8cp-4f, -0x1.9d25e2p-5f,
       -0x1.760716p-6f, -0x1.18591p-7f, -0x1.5feeacp-9f, -0x1.747742p-11f, -0x1.4dc62ep-13f, -0x1.fbfe4ep-16f,
       -0x1.48f5a4p-18f, -0x1.6b19b6p-21f, -0x1.c739dp-19f},
      {-0x1.98841p-2f, -0x1.5da036p-2f, -0x1.a26502p-3f, -0x1.01b5f6p-4f, 0x1.a98a7ap-6f, 0x1.b845bap-5f,
       0x1.6e2a78p-5f, 0x1.a9df5p-6f, 0x1.808a5cp-7f, 0x1.187108p-8f, 0x1.50e28p-10f, 0x1.510a6ep-12f, 0x1.1ad17cp-14f,
       0x1.8fff0cp-17f, 0x1.de6012p-20f, -0x1.12b176p-13f},
      {-0x1.a129p-15f, 0x1.7b3aa6p-4f, 0x1.09c36ep-3f, 0x1.a5dfc4p-4f, 0x1.87528ap-5f, 0x1.d47c0ap-9f, -0x1.e8f726p-7f,
       -0x1.ecbb0ap-7f, -0x1.295e04p-7f, -0x1.0938cp-8f, -0x1.74a786p-10f, -0x1.a884bp-12f, -0x1.8e57b2p-14f,
       -0x1.36eb74p-16f, -0x1.9664e2p-19f, -0x1.e36f6ep-10f},
      {0x1.137f04p-4f, 0x1.723a4ap-5f, 0x1.74c538p-10f, -0x1.f8be78p-6f, -0x1.1c8032p-5f, -0x1.4988a4p-6f,
       -0x1.31fd88p-8f, 0x1.7d184ap-9f, 0x1.fc3c76p-9f, 0x1.3d5c36p-9f, 0x1.159514p-10f, 0x1.756b5cp-12f,
       0x1.918ddp-14f, 0x1.603e6ep-16f, 0x1.fe5046p-19f, -0x1.5cab88p-7f},
      {-0x1.345daep-8f, -0x1.3f0bfep-6f, -0x1.6bcde2p-6f, -0x1.2f3eb2p-7f, 0x1.2202f6p-8f, 0x1.268aa4p-7f,
       0x1.8aed0cp-8f, 0x1.cf150cp-10f, -0x1.edde8p-12f, -0x1.b38cdep-11f, -0x1.0cea12p-11f, -0x1.bcd77p-13f,
       -0x1.15b1b6p-14f, -0x1.11d0e4p-16f, -0x1.b4acd4p-19f, -0x1.616b58p-6f},
  };
  a = lesser(V(15 * 25.0 / 64), a);
  V shifted = fma(a, V(64.0 / 25), V(Real<float>::magic));
  V r = fma(shifted - Real<float>::magic, V(-25.0 / 64), a);
  auto index = as_uint(shifted);
  V p = lookup(table[5], index);
  for (int i = 4; i >= 0; --i) p = fma(p, r, lookup(table[i], index));
  return p;
}

}  // namespace detail

template <class T, int N>
TUTTI_HD Vec<T, N> erf(Vec<T, N> x) {
  using V = Vec<T, N>;
  V a = abs(x);
  V small = fma(a, detail::erf_slope(a * a), a);
  V large;
  if constexpr (detail::Real<T>::is_float) {
    large = detail::erf_large_float(a);
  } else {
    large = 1 - detail::erfc_large(a);
  }
  // This way round, NaN takes the side that keeps it.
  return copysign(select(a >= detail::erf_split<T>, large, small), x);
}

template <class T, int N>
TUTTI_HD Vec<T, N> erfc(Vec<T, N> x) {
  using V = Vec<T, N>;
  V a = abs(x);
  detail::Pair<V> lead = detail::fast_two_sum(V(1), -x);
  V small = lead.hi + fma(-x, detail::erf_slope(x * x), lead.lo);
  V large = detail::erfc_large(a);
  return select(a < detail::erf_split<T>, small, select(x < 0, 2 - large, large));
}

// Φ(x), the probability that a normal variable is below x. Of floats to an absolute 2^-24, of doubles to a relative few
// units in the last place.
template <class T, int N>
TUTTI_HD Vec<T, N> normal_cdf(Vec<T, N> x) {
  if constexpr (detail::Real<T>::is_float) {
    return 0.5 + copysign(detail::normal_half(abs(x)), x);
  } else {
    return erfc(x * -0.70710678118654752440) * 0.5;
  }
}

namespace detail {

// x Φ(x) by its formula. Far out it is max(x, 0): products in it or in its derivative would be ∞ · 0.
template <class X>
TUTTI_HD auto normal_ramp_formula(X x) {
  return select(abs(x) > 1000.0, select(x > 0.0, x, 0.0), x * normal_cdf(x));
}

}  // namespace detail

// x Φ(x), which is max(x, 0) less a bump about 0. Of floats to a relative 2^-22 down to -2, below to an absolute 2^-26;
// of doubles to what Φ has.
template <class T, int N>
TUTTI_HD Vec<T, N> normal_ramp(Vec<T, N> x) {
  using V = Vec<T, N>;
  if constexpr (detail::Real<T>::is_float) {
    // Fitted as it is, the bump costs no product with x and no care for ∞ · 0: 18 instructions a vector instead of 24.
    return greater(V(0), x) - detail::normal_shortfall(abs(x));
  } else {
    return detail::normal_ramp_formula(x);
  }
}

// With a = |x|: up to 0.99, x p(w) with w = -log(1 - x^2); beyond, s q(1/s) with s = sqrt(-log(1 - a)), both smooth
// functions of their arguments. One logarithm serves both.
template <class T, int N>
TUTTI_HD Vec<T, N> erfinv(Vec<T, N> x) {
  using V = Vec<T, N>;
  using R = detail::Real<T>;
  using P = detail::Pair<V>;
  using detail::pick;
  using detail::polynomial;
  V a = abs(x);
  auto tail = a > T(0.99);
  P square = detail::two_product(a, a);
  P u = detail::fast_two_sum(V(1), -square.hi);
  u = {select(tail, 1 - a, u.hi), select(tail, 0, u.lo - square.lo)};
  V w = -detail::log_pair(u, V(0));
  P s = detail::square_root(P{w, V(0)});
  V inverse = 1 / s.hi;
  P c = detail::two_sum(w, V(-2));
  V t = inverse - T(pick<T>(0.34375, 0.3125));
  V p, q;
  if constexpr (R::is_float) {
    p = 0x1.ff8666p-3 + fma(c.hi,
                            polynomial(c.hi, -0x1.01f798p-9, -0x1.bb96bcp-10, 0x1.c4cfc2p-13, 0x1.fdc9b4p-18,
                                       -0x1.4630a2p-18, 0x1.49d09cp-22, 0x1.18e7a8p-24, -0x1.5c8c42p-27),
                            V(0x1.c79a26p-28));
    q = polynomial(t, -0x1.a7580ep-2, -0x1.125a8ap-3, 0x1.9ff494p-2, -0x1.a83162p-2, 0x1.983996p-2, -0x1.eae1b6p-2);
  } else {
    p = 0x1.ff8666bb1460ep-3 +
        fma(c.hi,
            polynomial(c.hi, -0x1.01f7f04aa4672p-9, -0x1.bb9627a1f0e39p-10, 0x1.c4dab7c61c338p-13,
                       0x1.fcca0b2bafcabp-18, -0x1.471ec4e160479p-18, 0x1.5450991f0a74ap-22, 0x1.289ea5c5422b8p-24,
                       -0x1.bb1adf6cd00bep-27, -0x1.19d8d1f6ab5dep-32, 0x1.432c23addfb91p-32, -0x1.7579e848e37e9p-36,
                       -0x1.30e6103ae3edcp-38, 0x1.db05ae3ad105ep-41, 0x1.3dd35e19fbcc5p-46, -0x1.5d1a462ea5c44p-46,
                       0x1.5e9cb8706c58cp-50, 0x1.2bcfffff1f62ep-52, -0x1.370c50ae540aap-55),
            V(-0x1.193b6f0719b26p-57));
    q = polynomial(t, -0x1.9d7f6e20ffa6cp-2, -0x1.6595f5aa20e87p-3, 0x1.d92269645bb3ap-2, -0x1.ed3073b7d5477p-2,
                   0x1.006b80bc0912ep-1, -0x1.9121c0e383fc9p-1, 0x1.8d718f73829dep+0, -0x1.9db38605195bbp+1,
                   0x1.bc635337858b2p+2, -0x1.f0865ab474052p+3, 0x1.2020e95d206a2p+5, -0x1.5855b8189e957p+6,
                   0x1.a096dd05062bcp+7, -0x1.0953eb0b2eaffp+9, 0x1.82365e63fc528p+10, -0x1.d107942b9cc58p+11,
                   0x1.8ffcb5dfa3ad2p+11, -0x1.d5a8bf31bbb73p+13, 0x1.4e02db6b4125bp+17, -0x1.8ab16a64fbff2p+18);
  }
  // The two leading coefficients of p are pairs, because |c| goes up to 2.
  // (factor.hi + factor.lo) (lead + rest), the leading product exact.
  V lead = select(tail, pick<T>(0x1.cd1f3ap-1, 0x1.d3a9c68a02bd5p-1), pick<T>(0x1.60912ep+0, 0x1.60912d150286bp+0));
  V rest = select(tail, fma(t, q, V(pick<T>(-0x1.aa704p-27, -0x1.6b8bb21a9dfffp-57))),
                  fma(c.hi, p, fma(c.lo, p, V(pick<T>(-0x1.dd1a82p-25, 0x1.5caa230e099ap-54)))));
  V factor = select(tail, s.hi, a), factor_lo = select(tail, s.lo, 0);
  P product = detail::two_product(factor, lead);
  V y = product.hi + fma(factor, rest, fma(factor_lo, lead + rest, product.lo));
  y = select(a < 1, y, select(a == 1, R::infinity, R::nan));
  return copysign(y, x);
}

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise
