// Sums over any dims of two tensors, as one matrix product.
#include "base/check.h"
#include "base/named.h"
#include "ops/reduce/reduce.h"
#include "tensor/defined.h"
#include "tensor/impl.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

// x as a matrix: its free dims by the summed ones.
struct Side {
  Shape free, summed;  // dims
  Shape sizes;         // of the free dims
  int64_t rows = 1, depth = 1;

  Side(const Tensor& x, const Shape& dims) {
    Shape marks = Shape::filled(x.sizes().size(), 0);
    for (int64_t d : dims) {
      int64_t w = wrap_dim(d, x, "tensordot");
      check<ShapeError>(x.dim() > 0 && marks[static_cast<size_t>(w)]++ == 0, "tensordot",
                        "dim {} of {} is given twice, or there is none: {}", d, x, dims);
      summed.push_back(w);
      depth *= x.size(w);
    }
    for (size_t d = 0; d < marks.size(); ++d) {
      if (marks[d]) continue;
      free.push_back(static_cast<int64_t>(d));
      sizes.push_back(x.sizes()[d]);
      rows *= x.sizes()[d];
    }
  }
};

Shape joined(Shape a, const Shape& b) {
  for (int64_t v : b) a.push_back(v);
  return a;
}

}  // namespace

Tensor tensordot(const Tensor& a, const Tensor& b, const Shape& a_dims, const Shape& b_dims) {
  check_defined(a, "tensordot");
  check_defined(b, "tensordot");
  check<ShapeError>(a_dims.size() == b_dims.size(), "tensordot", "{} dims of one meet {} of the other: {}, {}",
                    a_dims.size(), b_dims.size(), a_dims, b_dims);
  check<DTypeError>(a.dtype() == b.dtype(), "tensordot", "operands must have the same dtype, not {} and {}", a, b);
  check<DeviceError>(a.device() == b.device(), "tensordot", "operands are on different devices: {}, {}", a, b);
  Side left(a, a_dims), right(b, b_dims);
  for (size_t k = 0; k < left.summed.size(); ++k)
    check<ShapeError>(a.size(left.summed[k]) == b.size(right.summed[k]), "tensordot",
                      "dim {} of {} and dim {} of {} differ in size", left.summed[k], a, right.summed[k], b);
  return named("tensordot", [&] {
    Tensor rows = reshape(permute(a, joined(left.free, left.summed)), {left.rows, left.depth});
    Tensor columns = reshape(permute(b, joined(right.summed, right.free)), {right.depth, right.rows});
    return reshape(mm(rows, columns), joined(left.sizes, right.sizes));
  });
}

Tensor tensordot(const Tensor& a, const Tensor& b, int64_t dims) {
  check_defined(a, "tensordot");
  check_defined(b, "tensordot");
  check<ShapeError>(dims >= 0 && dims <= a.dim() && dims <= b.dim(), "tensordot",
                    "{} dims cannot be summed over in {} and {}", dims, a, b);
  Shape last, first;
  for (int64_t d = 0; d < dims; ++d) {
    last.push_back(a.dim() - dims + d);
    first.push_back(d);
  }
  return tensordot(a, b, last, first);
}

Tensor& tensordot_out(Tensor& out, const Tensor& a, const Tensor& b, const Shape& a_dims, const Shape& b_dims) {
  return reduction::write_out(out, tensordot(a, b, a_dims, b_dims), "tensordot");
}
Tensor& tensordot_out(Tensor& out, const Tensor& a, const Tensor& b, int64_t dims) {
  return reduction::write_out(out, tensordot(a, b, dims), "tensordot");
}

}  // namespace tutti
