// Views that cut a tensor into pieces.
#include <algorithm>

#include "base/check.h"
#include "base/named.h"
#include "ops/view/box.h"
#include "tensor/defined.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

struct Lengths {
  Shape lengths;
  int64_t dim;
  bool drops;  // the dim, of pieces of one
  TUTTI_FIELDS(lengths, dim, drops)
};

// A spec that starts as the input itself.
TensorSpec like(const Tensor& x) {
  return {.sizes = x.sizes(),
          .strides = x.strides(),
          .offset = x.storage_offset(),
          .dtype = x.dtype(),
          .device = x.device(),
          .strided = true};
}

// All pieces by one node: its gradient is put together once, not a whole tensor for each piece.
const Operator split_op{
    .name = "split",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const auto& a = c.as<Lengths>();
          auto d = position(a.dim);
          int64_t start = 0;
          for (size_t i = 0; i < out.size(); ++i) {
            out[i] = like(c.input(0));
            out[i].offset += start * out[i].strides[d];
            out[i].sizes[d] = a.lengths[i];
            start += a.lengths[i];
            if (!a.drops) continue;
            out[i].sizes.erase(d);
            out[i].strides.erase(d);
          }
        },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Lengths>();
          Options options{.dtype = c.input_dtype(0), .device = c.input_device(0)};
          TensorList parts;
          for (size_t i = 0; i < a.lengths.size(); ++i) {
            Shape sizes = c.input_sizes(0);
            sizes[position(a.dim)] = a.lengths[i];
            const Tensor& g = c.grad(i);
            parts.push_back(!g.defined() ? zeros(sizes, options) : a.drops ? unsqueeze(g, a.dim) : g);
          }
          c.set(0, cat(parts, a.dim));
        },
    .view_of = 0,
};

TensorList pieces(const Tensor& x, const Shape& lengths, int64_t dim, bool drops = false) {
  TensorList parts(lengths.size());
  Lengths a{lengths, dim, drops};
  const Tensor* inputs[] = {&x};
  if (!parts.empty()) call(split_op, inputs, attributes(a), parts);
  return parts;
}

}  // namespace

TensorList split(const Tensor& x, const Shape& lengths, int64_t dim) {
  dim = wrap_dim(dim, x, "split");
  int64_t total = 0;
  bool wraps = false;
  for (int64_t l : lengths) {
    check<ShapeError>(l >= 0, "split", "lengths must not be negative: {} for dim {} of {}", lengths, dim, x);
    wraps = __builtin_add_overflow(total, l, &total) || wraps;
  }
  check<ShapeError>(x.dim() > 0 && !wraps && total == x.size(dim), "split",
                    "lengths {} do not add up to the size of dim {} of {}", lengths, dim, x);
  return pieces(x, lengths, dim);
}

TensorList split(const Tensor& x, int64_t length, int64_t dim) {
  dim = wrap_dim(dim, x, "split");
  check<ValueError>(x.dim() > 0 && length > 0, "split", "cannot split {} into pieces of {}", x, length);
  Shape lengths;
  int64_t size = x.size(dim);
  for (int64_t start = 0; start < size || start == 0; start += length)
    lengths.push_back(std::min(length, size - start));
  return pieces(x, lengths, dim);
}

TensorList chunk(const Tensor& x, int64_t chunks, int64_t dim) {
  check_defined(x, "chunk");
  check<ShapeError>(x.dim() > 0, "chunk", "a zero-dimensional tensor has nothing to divide");
  check<ValueError>(chunks > 0, "chunk", "{} chunks asked for; give at least 1", chunks);
  dim = wrap_dim(dim, x, "chunk");
  int64_t size = x.size(dim);
  if (size == 0) return named("chunk", [&] { return pieces(x, Shape::filled(position(chunks), 0), dim); });
  return named("chunk", [&] { return split(x, std::max<int64_t>(1, (size + chunks - 1) / chunks), dim); });
}

TensorList unbind(const Tensor& x, int64_t dim) {
  check_defined(x, "unbind");
  check<ShapeError>(x.dim() > 0, "unbind", "{} is zero-dimensional and has no slices", x);
  dim = wrap_dim(dim, x, "unbind");
  return named("unbind", [&] { return pieces(x, Shape::filled(position(x.size(dim)), 1), dim, true); });
}

}  // namespace tutti
