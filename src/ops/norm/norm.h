// What the operators of this family share: checks, conversions, and the gradient of their gradients.
#pragma once

#include "tutti/operator.h"

namespace tutti::normalization {

/// f32 for bf16 and f16: what statistics are computed and given in.
inline DType computing_dtype(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

/// x floating; weight and bias, where there are any, of its dtype or the computing one, on its device.
void check_operands(const Call& c, size_t x, std::initializer_list<size_t> others);

/// By its strides: a tensor of one channel, or of one pixel, can be either.
bool is_channels_last(const Tensor& x);
/// t dense in this dtype, contiguous or channels-last; as it is where that is so.
Tensor arranged(const Tensor& t, DType dtype, bool last = false);
/// Null for no tensor.
inline const void* data_or_null(const Tensor& t) { return t.defined() ? t.raw_data() : nullptr; }
/// Where a kernel that computes in `dtype` writes what belongs into out: finish() copies it there if need be.
class Result {
 public:
  Result(const Tensor& out, DType dtype);
  void* data() const { return target_.raw_data(); }
  const Tensor& tensor() const { return target_; }
  void finish() const;

 private:
  const Tensor& out_;
  Tensor target_;
};

/// How a normalisation looks at its input: seen with `sizes`, it runs over `dims`.
struct Over {
  Shape sizes, dims;
  bool centered;
  double eps;
  Shape weights;  // that of weight and bias, so that they broadcast against x
};

/// The gradient of an operator that takes (g, x, weight, statistics...) to the gradients (dx, dweight, dbias), in
/// public operators. The statistics are x's own, so that what is found for x is all that there is.
void differentiate_gradient(GradientCall& c, const Over& over);

}  // namespace tutti::normalization
