// Activation functions. Where a parameter is learned, its gradient is as good as that of x.
#include "pointwise/define.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

namespace detail {

// For functions that are x on the far right and 0 on the far left: y where x is moderate. Further out, products in y or
// in its derivative would be ∞ · 0.
template <class X, class Y>
TUTTI_HD auto rectified_far_out(X x, Y y) {
  return select(abs(x) > 1000.0, select(x > 0.0, x, 0.0), y);
}

// log(1 + eˣ). A rule of its own, since the formula has a kink at 0, which the function has not.
struct SoftplusRule {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return select(x > 0.0, x, 0.0) + log1p(exp(-abs(x)));
  }
  template <class X, class Y>
  TUTTI_HD static auto slope(X x, Y) {
    return sigmoid(x);
  }
};

// x / (1 + |x|). A rule of its own, since the derivative of the quotient is a difference of nearly equal numbers.
struct SoftsignRule {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return select(isinf(x), sign(x), x / (abs(x) + 1.0));
  }
  template <class X, class Y>
  TUTTI_HD static auto slope(X x, Y) {
    auto r = 1.0 / (abs(x) + 1.0);
    return r * r;
  }
};

}  // namespace detail

/// max(x, 0). Its derivative at 0 is 0.
struct Relu : Real, KeepsZero {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return select(x <= 0.0, 0.0, x);
  }
};

/// x between 0 and 6, its nearest of these elsewhere.
struct Relu6 : Real {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return select(x <= 0.0, 0.0, select(x >= 6.0, 6.0, x));
  }
};

/// x where it is positive, slope · x elsewhere. With a slope per channel it is PReLU.
struct LeakyRelu : Floating {
  template <class X, class S>
  TUTTI_HD static auto value(X x, S slope) {
    return select(x > 0.0, x, x * slope);
  }
};

/// x where it is positive, alpha · (eˣ - 1) elsewhere.
struct Elu : Floating {
  template <class X, class A>
  TUTTI_HD static auto value(X x, A alpha) {
    return select(x > 0.0, x, expm1(x) * alpha);
  }
};

/// The scaled exponential linear unit: Elu with the constants that keep mean 0 and variance 1.
struct Selu : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    constexpr double scale = 1.0507009873554804934193349852946, alpha = 1.6732632423543772848170429916717;
    return select(x > 0.0, x * scale, expm1(x) * (scale * alpha));
  }
};

/// x where it is positive, alpha · (exp(x / alpha) - 1) elsewhere.
struct Celu : Floating {
  template <class X, class A>
  TUTTI_HD static auto value(X x, A alpha) {
    return select(x > 0.0, x, expm1(x / alpha) * alpha);
  }
};

/// Gaussian error linear unit, exact: x·Φ(x).
struct Gelu : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return normal_ramp(x);
  }
};

/// Gaussian error linear unit with Φ approximated by tanh.
struct GeluTanh : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    auto inner = x * (1.0 + x * x * 0.044715) * 0.79788456080286535588;
    return detail::rectified_far_out(x, x * 0.5 * (1.0 + tanh(inner)));
  }
};

/// x · sigmoid(x), also called swish.
struct Silu : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return detail::rectified_far_out(x, x * sigmoid(x));
  }
};

/// x · tanh(softplus(x)).
struct Mish : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    // tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2), which is 1 to all digits from e²⁰ on.
    auto e = exp(select(x < 20.0, x, 20.0));
    auto n = e * (e + 2.0);
    return detail::rectified_far_out(x, x * (n / (n + 2.0)));
  }
};

/// log(1 + exp(beta · x)) / beta, a smooth max(x, 0).
struct Softplus : Floating, FullPrecision {
  template <class X, class B>
  TUTTI_HD static auto value(X x, B beta) {
    return with_slope<detail::SoftplusRule>(x * beta) / beta;
  }
};

/// x / (1 + |x|).
struct Softsign : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return with_slope<detail::SoftsignRule>(x);
  }
};

/// x between low and high, the nearest of these elsewhere. Unlike clamp, no gradient passes at the bounds.
struct Hardtanh : Real {
  template <class X, class L, class H>
  TUTTI_HD static auto value(X x, L low, H high) {
    return select(x <= low, low, select(x >= high, high, x));
  }
};

/// A line from 0 at x = -3 to 1 at x = 3.
struct Hardsigmoid : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return select(x <= -3.0, 0.0, select(x >= 3.0, 1.0, x * (1.0 / 6.0) + 0.5));
  }
};

/// x · hardsigmoid(x).
struct Hardswish : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return select(x < -3.0, 0.0, select(x > 3.0, x, x * (x * (1.0 / 6.0) + 0.5)));
  }
};

/// 0 where |x| <= bound, x elsewhere.
struct Hardshrink : Floating {
  template <class X, class B>
  TUTTI_HD static auto value(X x, B bound) {
    return select(abs(x) <= bound, 0.0, x);
  }
};

/// x moved towards 0 by bound, and 0 where |x| <= bound.
struct Softshrink : Floating {
  template <class X, class B>
  TUTTI_HD static auto value(X x, B bound) {
    return select(abs(x) <= bound, 0.0, select(x > 0.0, x - bound, x + bound));
  }
};

/// x where it is above the limit, value elsewhere.
struct Threshold : Real {
  template <class X, class L, class V>
  TUTTI_HD static auto value(X x, L limit, V value) {
    return select(x <= limit, value, x);
  }
};

/// x - tanh(x).
struct Tanhshrink : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return x - tanh(x);
  }
};

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise

TUTTI_POINTWISE(Relu, relu, x)
TUTTI_POINTWISE(Relu6, relu6, x)
TUTTI_DEFAULTS(leaky_relu, slope = 0.01)
TUTTI_POINTWISE(LeakyRelu, leaky_relu, x, slope)
TUTTI_DEFAULTS(elu, alpha = 1)
TUTTI_POINTWISE(Elu, elu, x, alpha)
TUTTI_POINTWISE(Selu, selu, x)
TUTTI_DEFAULTS(celu, alpha = 1)
TUTTI_POINTWISE(Celu, celu, x, alpha)
TUTTI_POINTWISE(Gelu, gelu, x)
TUTTI_POINTWISE(GeluTanh, gelu_tanh, x)
TUTTI_POINTWISE(Silu, silu, x)
TUTTI_POINTWISE(Mish, mish, x)
TUTTI_DEFAULTS(softplus, beta = 1)
TUTTI_POINTWISE(Softplus, softplus, x, beta)
TUTTI_POINTWISE(Softsign, softsign, x)
TUTTI_DEFAULTS(hardtanh, low = -1, high = 1)
TUTTI_POINTWISE(Hardtanh, hardtanh, x, low, high)
TUTTI_POINTWISE(Hardsigmoid, hardsigmoid, x)
TUTTI_POINTWISE(Hardswish, hardswish, x)
TUTTI_DEFAULTS(hardshrink, bound = 0.5)
TUTTI_POINTWISE(Hardshrink, hardshrink, x, bound)
TUTTI_DEFAULTS(softshrink, bound = 0.5)
TUTTI_POINTWISE(Softshrink, softshrink, x, bound)
TUTTI_POINTWISE(Threshold, threshold, x, limit, value)
TUTTI_POINTWISE(Tanhshrink, tanhshrink, x)
