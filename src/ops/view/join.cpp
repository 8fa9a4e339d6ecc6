// cat and stack.
#include <algorithm>

#include "base/check.h"
#include "base/named.h"
#include "ops/view/box.h"
#include "tensor/call.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

struct Along {
  int64_t dim;
  TUTTI_FIELDS(dim)
};

bool fits(const Shape& a, const Shape& b, size_t dim) {
  if (a.size() != b.size()) return false;
  for (size_t d = 0; d < a.size(); ++d)
    if (d != dim && a[d] != b[d]) return false;
  return true;
}

// Channels-last when every input is, and none of them could as well be called contiguous.
bool all_channels_last(std::span<const Tensor* const> inputs) {
  return std::all_of(inputs.begin(), inputs.end(), [](const Tensor* x) {
    return x->is_contiguous(MemoryFormat::channels_last) && !x->is_contiguous();
  });
}

void infer_cat(const Call& c, std::span<TensorSpec> out) {
  const Tensor& first = c.input(0);
  auto dim = static_cast<size_t>(c.as<Along>().dim);
  out[0] = {.sizes = first.sizes(), .dtype = first.dtype(), .device = first.device()};
  out[0].sizes[dim] = 0;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const Tensor& x = c.input(i);
    check<ValueError>(x.layout() == Layout::strided, "cat", "{} is sparse; to_dense() it first", x);
    check<ShapeError>(fits(x.sizes(), first.sizes(), dim), "cat",
                      "tensor {}, {}, does not fit the first, {}: all sizes but that of dim {} must agree", i, x, first,
                      dim);
    check<DeviceError>(x.device() == first.device(), "cat",
                       "tensor {}, {}, and the first, {}, are on different devices", i, x, first);
    out[0].sizes[dim] += x.sizes()[dim];
    check<ShapeError>(out[0].sizes[dim] < kMostElements, "cat", "{} tensors like {} have too many elements",
                      c.inputs.size(), first);
    out[0].dtype = promote(out[0].dtype, x.dtype());
  }
  if (all_channels_last(c.inputs)) {
    out[0].strides = channels_last_strides(out[0].sizes);
    out[0].strided = true;
  }
}

void run_cat(const Call& c) {
  const Tensor& out = c.output();
  int64_t dim = c.as<Along>().dim, start = 0;
  for (const Tensor* x : c.inputs) {
    if (x->numel() > 0) {
      int64_t offset = start * out.stride(dim);
      if (x->dtype() == out.dtype()) {
        BoxDims dims;
        for (size_t d = 0; d < x->sizes().size(); ++d)
          dims.push_back({x->sizes()[d], out.strides()[d], x->strides()[d]});
        move_box(bytes_of(out) + offset * static_cast<int64_t>(out.element_size()), bytes_of(*x), out.element_size(),
                 std::move(dims));
      } else {
        copy_into(make_alias(out, x->sizes(), out.strides(), out.storage_offset() + offset), *x);
      }
    }
    start += x->size(dim);
  }
}

const Operator cat_op{
    .name = "cat",
    .infer = infer_cat,
    .cpu = run_cat,
    .gradient =
        [](GradientCall& c) {
          int64_t dim = c.as<Along>().dim, start = 0;
          for (size_t i = 0; i < c.inputs(); ++i) {
            int64_t length = c.input_sizes(i)[static_cast<size_t>(dim)];
            if (c.needs(i)) c.set(i, narrow(c.grad(), dim, start, length));
            start += length;
          }
        },
};

void join(Tensor& result, const TensorList& tensors, int64_t dim) {
  SmallVector<const Tensor*, 8> inputs;
  for (auto& t : tensors) inputs.push_back(&t);
  Along a{dim};
  call(cat_op, inputs.span(), attributes(a), {&result, 1});
}

}  // namespace

Tensor cat(const TensorList& tensors, int64_t dim) {
  Tensor result;
  return cat_out(result, tensors, dim);
}

Tensor& cat_out(Tensor& out, const TensorList& tensors, int64_t dim) {
  check<ValueError>(!tensors.empty(), "cat", "needs at least one tensor");
  // An empty one-dimensional tensor fits everything, as a list that nothing has been put into yet.
  TensorList kept;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    check<ValueError>(t.defined(), "cat", "tensor {} of {} is undefined: it was never given a value", i,
                      tensors.size());
    check<ShapeError>(t.dim() > 0, "cat", "{} is zero-dimensional; stack() makes a dim for such", t);
    if (!(t.dim() == 1 && t.numel() == 0)) kept.push_back(t);
  }
  const TensorList& list = kept.empty() ? tensors : kept;
  join(out, list, wrap_dim(dim, list[0], "cat"));
  return out;
}

Tensor stack(const TensorList& tensors, int64_t dim) {
  Tensor result;
  return stack_out(result, tensors, dim);
}

Tensor& stack_out(Tensor& out, const TensorList& tensors, int64_t dim) {
  check<ValueError>(!tensors.empty(), "stack", "needs at least one tensor");
  for (size_t i = 0; i < tensors.size(); ++i)
    check<ValueError>(tensors[i].defined(), "stack", "tensor {} of {} is undefined: it was never given a value", i,
                      tensors.size());
  dim = wrap_dim(dim, tensors[0].dim() + 1, "stack");
  TensorList rows;
  for (size_t i = 0; i < tensors.size(); ++i) {
    check<ShapeError>(tensors[i].sizes() == tensors[0].sizes(), "stack",
                      "tensor {}, {}, has not the shape of the first, {}", i, tensors[i], tensors[0]);
    check<DeviceError>(tensors[i].device() == tensors[0].device(), "stack",
                       "tensor {}, {}, and the first, {}, are on different devices", i, tensors[i], tensors[0]);
    rows.push_back(named("stack", [&] { return unsqueeze(tensors[i], dim); }));
  }
  join(out, rows, dim);
  return out;
}

}  // namespace tutti
