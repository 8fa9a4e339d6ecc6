#include "ops/norm/norm.h"

#include "base/check.h"
#include "tensor/call.h"
#include "tensor/impl.h"
#include "tutti/ops.h"

namespace tutti::normalization {

void check_operands(const Call& c, size_t at, std::initializer_list<size_t> others) {
  const Tensor& x = c.input(at);
  check<DTypeError>(x.is_floating(), c.op.name, "needs floating-point elements, not {}; cast it first", x);
  for (size_t i : others) {
    const Tensor& t = c.input(i);
    if (!t.defined()) continue;
    check<DTypeError>(t.dtype() == x.dtype() || t.dtype() == computing_dtype(x.dtype()), c.op.name,
                      "for the input {}, {} must be {} or {}; cast it first", x, t, x.dtype(),
                      computing_dtype(x.dtype()));
    check<DeviceError>(t.device() == x.device(), c.op.name,
                       "operands are on different devices: {}, {}; copy them to one with to(device)", x, t);
  }
}

bool is_channels_last(const Tensor& x) {
  return x.is_contiguous(MemoryFormat::channels_last) && !(x.strides() == contiguous_strides(x.sizes()));
}

Tensor arranged(const Tensor& t, DType dtype, bool last) {
  if (!t.defined()) return t;
  bool fits = last ? t.is_contiguous(MemoryFormat::channels_last) : t.is_contiguous();
  if (fits && t.dtype() == dtype) return t;
  Tensor copy = last ? make_tensor(t.sizes(), channels_last_strides(t.sizes()), dtype, t.device())
                     : make_tensor(t.sizes(), dtype, t.device());
  copy_into(copy, t);
  return copy;
}

Result::Result(const Tensor& out, DType dtype)
    : out_(out), target_(out.dtype() == dtype ? out : make_tensor(out.sizes(), out.strides(), dtype, out.device())) {}

void Result::finish() const {
  if (!target_.is_same(out_)) copy_into(out_, target_);
}

namespace {

// x normalised, and the derivative of that: with r = 1/σ and ⟨·⟩ the mean over the dims,
//   x̂ = r·(x - ⟨x⟩),  dx̂ = P(dx),  P(a) = r·(a - ⟨a⟩ - x̂·⟨a·x̂⟩).
// P is symmetric, so it is also the gradient. Where the mean is not taken away, ⟨x⟩ and ⟨a⟩ are left out.
class Normal {
 public:
  Normal(const Tensor& x, const Over& over) : over_(over) {
    Tensor seen = see(x), centre = over.centered ? seen - mean(seen) : seen;
    r_ = rsqrt(mean(square(centre)) + over.eps);
    normal_ = centre * r_;
  }
  Tensor see(const Tensor& t) const {
    Tensor wide = computing_dtype(t.dtype()) == t.dtype() ? t : cast(t, computing_dtype(t.dtype()));
    return over_.sizes.empty() ? wide : reshape(wide, over_.sizes);
  }
  Tensor mean(const Tensor& t) const { return tutti::mean(t, over_.dims, true); }
  Tensor project(const Tensor& a) const {
    Tensor rest = over_.centered ? a - mean(a) : a;
    return r_ * (rest - normal_ * mean(a * normal_));
  }
  /// The gradient by x of Σ v·P(a), with v and a held fixed.
  Tensor by_x(const Tensor& v, const Tensor& a) const {
    Tensor va = mean(v * a), vx = mean(v * normal_), ax = mean(a * normal_);
    if (over_.centered) va = va - mean(v) * mean(a);
    return -(square(r_) * (va - vx * ax) * normal_) - r_ * (ax * project(v) + vx * project(a));
  }
  const Tensor& values() const { return normal_; }

 private:
  const Over& over_;
  Tensor r_, normal_;
};

void accumulate(Tensor& to, const Tensor& t) { to = to.defined() ? to + t : t; }

}  // namespace

void differentiate_gradient(GradientCall& c, const Over& over) {
  Tensor g = c.input(0), x = c.input(1), w = c.input(2);
  Normal normal(x, over);
  DType computing = computing_dtype(x.dtype());
  auto whole = [&](const Tensor& t) { return t.sizes() == x.sizes() ? t : reshape(t, x.sizes()); };
  auto wide = [&](const Tensor& t) { return t.dtype() == computing ? t : cast(t, computing); };
  auto affine = [&](const Tensor& t) { return expand(reshape(wide(t), over.weights), x.sizes()); };
  g = wide(g);
  Tensor of_g, of_x, of_w;
  if (const Tensor& given = c.grad(0); given.defined()) {
    Tensor v = normal.see(given), a = normal.see(w.defined() ? g * affine(w) : g), of_a = whole(normal.project(v));
    if (c.needs(1)) accumulate(of_x, whole(normal.by_x(v, a)));
    if (c.needs(0)) accumulate(of_g, w.defined() ? of_a * affine(w) : of_a);
    if (c.needs(2)) accumulate(of_w, sum_to(of_a * g, over.weights));
  }
  if (c.grad(1).defined()) {
    Tensor h = affine(c.grad(1));
    if (c.needs(0)) accumulate(of_g, h * whole(normal.values()));
    if (c.needs(1)) accumulate(of_x, whole(normal.project(normal.see(h * g))));
  }
  if (c.grad(2).defined() && c.needs(0)) accumulate(of_g, affine(c.grad(2)));
  c.set(0, of_g);
  c.set(1, of_x);
  if (of_w.defined()) c.set(2, reshape(of_w, c.input_sizes(2)));
}

}  // namespace tutti::normalization
