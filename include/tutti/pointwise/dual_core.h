// Dual numbers and their arithmetic; dual.h has the derivative rules of the primitives.
//
// Note [Levels of duals]
// A quantity that does not vary is never a Dual: it stays a plain value, so no product with a zero tangent is ever
// formed (0 · ∞ would be NaN, and the work would be wasted). To keep that promise for derivatives of derivatives, where
// each differentiation may choose another argument, a Dual carries the level of the differentiation it belongs to. Of
// two operands of different levels the lower one is a constant to the higher one, whether it is a Dual itself or not.
// For the same reason value and tangent may have different types: the tangent of the variable itself is the type Unit,
// which costs nothing to multiply with, and a tangent that is the same number everywhere is a double.
//
// Every rule below is written in primitives of the value, so that a value may be a Vec, a Complex, a Dual of a lower
// level, or any other type with these functions; one that cannot be made from a double also has constant_like(x, c).
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "tutti/pointwise/isa.h"
#include "tutti/pointwise/primitives.h"
#include "tutti/pointwise/vec.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

template <class X>
struct LevelOf {
  static constexpr int value = 0;
};

/// A value and how fast it changes. Dual<Vec> is first order, Dual<Dual<Vec>> second.
template <class V, class T = V, int Level = LevelOf<V>::value + 1>
struct Dual {
  V value;
  T tangent;
};

template <class V, class T, int Level>
struct LevelOf<Dual<V, T, Level>> {
  static constexpr int value = Level;
};

template <class... X>
TUTTI_HD constexpr int highest_level() {
  int highest = 0;
  ((highest = LevelOf<X>::value > highest ? LevelOf<X>::value : highest), ...);
  return highest;
}

template <class... X>
concept AnyDual = (highest_level<X...>() > 0);

/// The tangent of the variable itself, and of a constant.
struct Unit {};
struct Zero {};

/// The value below all levels of Dual.
template <class X>
TUTTI_HD auto plain_value(X x) {
  if constexpr (LevelOf<X>::value > 0) {
    return plain_value(x.value);
  } else {
    return x;
  }
}

/// The constant c as a value of the same type (and shape, where the type has one) as x.
template <std::constructible_from<double> V>
TUTTI_HD V constant_like(const V&, double c) {
  return V(c);
}

/// Vectors of integers, for which some formulas are others.
template <class X>
concept IntegerValue = std::is_integral_v<typename X::Element>;

namespace detail {

// The value and the tangent that an operand has at a level, and the Dual made of such.
template <int Level>
struct At {
  template <class X>
  TUTTI_HD static auto value(X x) {
    if constexpr (Level > 0 && LevelOf<X>::value == Level) {
      return x.value;
    } else {
      return x;
    }
  }
  template <class X>
  TUTTI_HD static auto tangent(X x) {
    if constexpr (LevelOf<X>::value == Level) {
      return x.tangent;
    } else {
      return Zero{};
    }
  }
  template <class V, class T>
  TUTTI_HD static Dual<V, T, Level> dual(V value, T tangent) {
    return {value, tangent};
  }
};

// Arithmetic of tangents. Members, so that no function of the same name is found through the types of the arguments.
struct Tangent {
  // A tangent as something to calculate with.
  template <class T>
  TUTTI_HD static auto operand(T t) {
    if constexpr (std::is_same_v<T, Unit>) {
      return 1.0;
    } else if constexpr (std::is_same_v<T, Zero>) {
      return 0.0;
    } else {
      return t;
    }
  }

  template <class T, class D>
  TUTTI_HD static auto times(T t, D factor) {
    if constexpr (std::is_same_v<T, Zero> || std::is_same_v<D, Unit>) {
      return t;
    } else if constexpr (std::is_same_v<T, Unit>) {
      return factor;
    } else {
      return t * factor;
    }
  }
  template <class T>
  TUTTI_HD static auto minus(T t) {
    if constexpr (std::is_same_v<T, Zero>) {
      return t;
    } else {
      return -operand(t);
    }
  }
  template <class S, class T>
  TUTTI_HD static auto plus(S s, T t) {
    if constexpr (std::is_same_v<S, Zero>) {
      return t;
    } else if constexpr (std::is_same_v<T, Zero>) {
      return s;
    } else {
      return operand(s) + operand(t);
    }
  }
  template <class S, class T>
  TUTTI_HD static auto minus(S s, T t) {
    if constexpr (std::is_same_v<S, Zero>) {
      return minus(t);
    } else if constexpr (std::is_same_v<T, Zero>) {
      return s;
    } else {
      return operand(s) - operand(t);
    }
  }

  // s where the mask holds, else t; `like` gives the type when both are constants.
  template <class M, class S, class T, class V>
  TUTTI_HD static auto choose(M mask, S s, T t, V like) {
    constexpr bool constant_s = std::is_arithmetic_v<decltype(operand(s))>;
    constexpr bool constant_t = std::is_arithmetic_v<decltype(operand(t))>;
    if constexpr (std::is_same_v<S, T> && (std::is_same_v<S, Unit> || std::is_same_v<S, Zero>)) {
      return s;
    } else if constexpr (constant_s && constant_t) {
      return select(mask, constant_like(plain_value(like), operand(s)), constant_like(plain_value(like), operand(t)));
    } else {
      return select(mask, operand(s), operand(t));
    }
  }
};

// y = f(x) where f'(x) is the slope.
template <class X, class Y, class D>
TUTTI_HD auto chain(X x, Y y, D slope) {
  return At<LevelOf<X>::value>::dual(y, Tangent::times(x.tangent, slope));
}

// A constant operand of a function of two arguments, as a value; other operands are left alone.
template <class A, class B>
TUTTI_HD auto as_value(A a, B other) {
  if constexpr (std::is_arithmetic_v<A>) {
    return constant_like(plain_value(other), static_cast<double>(a));
  } else {
    return a;
  }
}

template <class X>
inline constexpr bool is_complex_value = requires(X x) {
  x.re;
  x.im;
};
template <class X>
TUTTI_HD void require_real(X x) {
  static_assert(!is_complex_value<decltype(plain_value(x))>,
                "this function has no complex derivative: it is not holomorphic");
}

// c / |(c, d)|, where r is that length: the component of the direction, 0 for the zero vector.
template <class C, class R>
TUTTI_HD auto direction(C c, R r) {
  return select((r == 0.0) | isinf(c), sign(c), c / r);
}

}  // namespace detail

// ---- Functions with a rule of their own. A formula uses these where the derivative that follows from its operations
// would be inaccurate or not finite.

/// Rule::value(x), with the derivative Rule::slope(x, y), where y is that value.
template <class Rule, class X>
TUTTI_HD auto with_slope(X x) {
  if constexpr (AnyDual<X>) {
    auto y = with_slope<Rule>(x.value);
    return detail::chain(x, y, Rule::slope(x.value, y));
  } else {
    return Rule::value(x);
  }
}

/// Rule::value(a, b), with the partial derivatives Rule::first(a, b, y) and Rule::second(a, b, y), each of which is
/// calculated only if its argument varies.
template <class Rule, class A, class B>
TUTTI_HD auto with_slopes(A a, B b) {
  using At = detail::At<highest_level<A, B>()>;
  auto u = detail::as_value(At::value(a), b);
  auto v = detail::as_value(At::value(b), a);
  if constexpr (!AnyDual<A, B>) {
    return Rule::value(u, v);
  } else {
    auto y = with_slopes<Rule>(u, v);
    if constexpr (LevelOf<A>::value < LevelOf<B>::value) {
      return At::dual(y, detail::Tangent::times(b.tangent, Rule::second(u, v, y)));
    } else if constexpr (LevelOf<B>::value < LevelOf<A>::value) {
      return At::dual(y, detail::Tangent::times(a.tangent, Rule::first(u, v, y)));
    } else {
      return At::dual(y, detail::Tangent::plus(detail::Tangent::times(a.tangent, Rule::first(u, v, y)),
                                               detail::Tangent::times(b.tangent, Rule::second(u, v, y))));
    }
  }
}

// ---- Arithmetic

template <AnyDual X>
TUTTI_HD auto operator-(X x) {
  return detail::At<LevelOf<X>::value>::dual(-x.value, detail::Tangent::minus(x.tangent));
}

template <class A, AnyDual<A> B>
TUTTI_HD auto operator+(A a, B b) {
  using At = detail::At<highest_level<A, B>()>;
  return At::dual(At::value(a) + At::value(b), detail::Tangent::plus(At::tangent(a), At::tangent(b)));
}

template <class A, AnyDual<A> B>
TUTTI_HD auto operator-(A a, B b) {
  using At = detail::At<highest_level<A, B>()>;
  return At::dual(At::value(a) - At::value(b), detail::Tangent::minus(At::tangent(a), At::tangent(b)));
}

namespace detail {

template <class At, class A, class B>
TUTTI_HD auto tangent_of_product(A a, B b) {
  return Tangent::plus(Tangent::times(At::tangent(a), At::value(b)), Tangent::times(At::tangent(b), At::value(a)));
}

}  // namespace detail

template <class A, AnyDual<A> B>
TUTTI_HD auto operator*(A a, B b) {
  using At = detail::At<highest_level<A, B>()>;
  return At::dual(At::value(a) * At::value(b), detail::tangent_of_product<At>(a, b));
}

template <class A, AnyDual<A> B>
TUTTI_HD auto operator/(A a, B b) {
  using At = detail::At<highest_level<A, B>()>;
  auto y = At::value(a) / At::value(b);
  auto numerator = detail::Tangent::minus(At::tangent(a), detail::Tangent::times(At::tangent(b), y));
  return At::dual(y, detail::Tangent::operand(numerator) / At::value(b));
}

template <class A, class B, AnyDual<A, B> C>
TUTTI_HD auto fma(A a, B b, C c) {
  using At = detail::At<highest_level<A, B, C>()>;
  return At::dual(fma(At::value(a), At::value(b), At::value(c)),
                  detail::Tangent::plus(detail::tangent_of_product<At>(a, b), At::tangent(c)));
}

// ---- Masks: they look at values only

template <class A, AnyDual<A> B>
TUTTI_HD auto operator==(A a, B b) {
  return plain_value(a) == plain_value(b);
}
template <class A, AnyDual<A> B>
TUTTI_HD auto operator!=(A a, B b) {
  return plain_value(a) != plain_value(b);
}
template <class A, AnyDual<A> B>
TUTTI_HD auto operator<(A a, B b) {
  return plain_value(a) < plain_value(b);
}
template <class A, AnyDual<A> B>
TUTTI_HD auto operator<=(A a, B b) {
  return plain_value(a) <= plain_value(b);
}
template <class A, AnyDual<A> B>
TUTTI_HD auto operator>(A a, B b) {
  return plain_value(a) > plain_value(b);
}
template <class A, AnyDual<A> B>
TUTTI_HD auto operator>=(A a, B b) {
  return plain_value(a) >= plain_value(b);
}

TUTTI_HD auto isnan(AnyDual auto x) { return isnan(plain_value(x)); }
TUTTI_HD auto isinf(AnyDual auto x) { return isinf(plain_value(x)); }
TUTTI_HD auto isfinite(AnyDual auto x) { return isfinite(plain_value(x)); }
TUTTI_HD auto signbit(AnyDual auto x) { return signbit(plain_value(x)); }

template <class M, class A, AnyDual<A> B>
TUTTI_HD auto select(M mask, A a, B b) {
  using At = detail::At<highest_level<A, B>()>;
  auto y = select(mask, At::value(a), At::value(b));
  return At::dual(y, detail::Tangent::choose(mask, At::tangent(a), At::tangent(b), y));
}

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise
