#include "ops/blocked/blocked.h"

#include "base/check.h"
#include "tensor/call.h"
#include "tensor/impl.h"
#include "tutti/ops.h"

namespace tutti::blocked {

Shape blocked_sizes(const Shape& plain) { return {plain[0], plain[1] / kChannels, plain[2], plain[3], kChannels}; }
Shape plain_sizes(const Shape& blocked) { return {blocked[0], blocked[1] * kChannels, blocked[2], blocked[3]}; }

bool divides(const Shape& plain) {
  return plain.size() == 4 && plain[1] > 0 && plain[1] % kChannels == 0 && plain.product() > 0;
}

namespace {

// The blocked tensor under the sizes [batch, channels / 16, 16, height, width].
Tensor turned(const Tensor& blocked) { return permute(make_alias(blocked), {0, 1, 4, 2, 3}); }

void run_to(const Call& c) {
  const Tensor &x = c.input(0), &out = c.output();
  if (x.dtype() == DType::f32 && x.is_contiguous()) return reorder(x, out);
  NoGrad guard;
  const Shape& s = out.sizes();
  copy_into(turned(out), reshape(make_alias(x), {s[0], s[1], s[4], s[2], s[3]}));
}
void run_from(const Call& c) {
  const Tensor &x = c.input(0), &out = c.output();
  if (x.dtype() == DType::f32 && x.is_contiguous()) return reorder(x, out);
  NoGrad guard;
  const Shape& s = x.sizes();
  copy_into(reshape(make_alias(out), {s[0], s[1], s[4], s[2], s[3]}), turned(x));
}

const Operator to_op{
    .name = "to_blocked",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor& x = c.input(0);
          out[0] = {.sizes = blocked_sizes(x.sizes()), .dtype = x.dtype(), .device = x.device()};
        },
    .cpu = run_to,
};
const Operator from_op{
    .name = "from_blocked",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor& x = c.input(0);
          out[0] = {.sizes = plain_sizes(x.sizes()), .dtype = x.dtype(), .device = x.device()};
        },
    .cpu = run_from,
};

}  // namespace

const Operator& to_blocked() { return to_op; }
const Operator& from_blocked() { return from_op; }

Form form_of(const Asked& asked) {
  for (auto* family : {convolution_form, norm_form, pool_form, sum_form})
    if (Form form = family(asked); form.op) {
      if (!form.owner) form.attributes = asked.attributes;
      return form;
    }
  return {};
}

}  // namespace tutti::blocked
