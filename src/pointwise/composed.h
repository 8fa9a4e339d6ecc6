// Composed: the value type that turns a formula into public operators on tensors. It carries derivatives of any order,
// because the operators do. Constants are folded: the zeros and ones of derivative rules cost nothing, and 0·∞ never
// arises from them.
#pragma once

#include <utility>

#include "tutti/tensor.h"

namespace tutti::pointwise {

class Composed {
 public:
  Composed(double constant) : constant_(constant) {}  // NOLINT
  Composed(int constant) : constant_(constant) {}     // NOLINT
  explicit Composed(Tensor tensor) : tensor_(std::move(tensor)) {}
  bool is_constant() const { return !tensor_.defined(); }
  bool is(double value) const { return is_constant() && constant_ == value; }
  double constant() const { return constant_; }
  Tensor tensor() const { return is_constant() ? Tensor(constant_) : tensor_; }

 private:
  Tensor tensor_;
  double constant_ = 0;
};

Composed operator+(const Composed& a, const Composed& b);
Composed operator-(const Composed& a, const Composed& b);
Composed operator*(const Composed& a, const Composed& b);
Composed operator/(const Composed& a, const Composed& b);
Composed operator-(const Composed& a);
Composed operator==(const Composed& a, const Composed& b);
Composed operator!=(const Composed& a, const Composed& b);
Composed operator<(const Composed& a, const Composed& b);
Composed operator<=(const Composed& a, const Composed& b);
Composed operator>(const Composed& a, const Composed& b);
Composed operator>=(const Composed& a, const Composed& b);
Composed operator&(const Composed& a, const Composed& b);
Composed operator|(const Composed& a, const Composed& b);
Composed operator^(const Composed& a, const Composed& b);
Composed operator!(const Composed& a);
Composed select(const Composed& condition, const Composed& a, const Composed& b);
Composed fma(const Composed& a, const Composed& b, const Composed& c);

Composed abs(const Composed& a);
Composed sqrt(const Composed& a);
Composed rsqrt(const Composed& a);
Composed exp(const Composed& a);
Composed exp2(const Composed& a);
Composed expm1(const Composed& a);
Composed log(const Composed& a);
Composed log2(const Composed& a);
Composed log10(const Composed& a);
Composed log1p(const Composed& a);
Composed sin(const Composed& a);
Composed cos(const Composed& a);
Composed tan(const Composed& a);
Composed asin(const Composed& a);
Composed acos(const Composed& a);
Composed atan(const Composed& a);
Composed sinh(const Composed& a);
Composed cosh(const Composed& a);
Composed tanh(const Composed& a);
Composed asinh(const Composed& a);
Composed acosh(const Composed& a);
Composed atanh(const Composed& a);
Composed erf(const Composed& a);
Composed erfc(const Composed& a);
Composed erfinv(const Composed& a);
Composed normal_cdf(const Composed& a);
Composed lgamma(const Composed& a);
Composed digamma(const Composed& a);
Composed trigamma(const Composed& a);
Composed sigmoid(const Composed& a);
Composed floor(const Composed& a);
Composed ceil(const Composed& a);
Composed trunc(const Composed& a);
Composed round(const Composed& a);
Composed sign(const Composed& a);
Composed conj(const Composed& a);
Composed isnan(const Composed& a);
Composed isinf(const Composed& a);
Composed isfinite(const Composed& a);
Composed signbit(const Composed& a);
Composed pow(const Composed& a, const Composed& b);
Composed atan2(const Composed& a, const Composed& b);
Composed fmod(const Composed& a, const Composed& b);
Composed remainder(const Composed& a, const Composed& b);
Composed min(const Composed& a, const Composed& b);
Composed max(const Composed& a, const Composed& b);
Composed copysign(const Composed& a, const Composed& b);
Composed hypot(const Composed& a, const Composed& b);

}  // namespace tutti::pointwise
