// Matrix products of sparse and dense matrices.
#include "ops/sparse/product.h"

#include "base/check.h"
#include "base/parallel.h"
#include "ops/sparse/arithmetic.h"
#include "ops/sparse/coalesce.h"
#include "ops/sparse/sparse.h"
#include "tensor/call.h"
#include "tutti/operator.h"

namespace tutti {
namespace {

Tensor sampled_product(const Tensor& indices, const Tensor& a, const Tensor& b);

// Where each row of a sorted list of rows begins; one more entry than rows.
std::vector<int64_t> row_starts(const int64_t* sorted, int64_t entries, int64_t rows) {
  std::vector<int64_t> starts(static_cast<size_t>(rows) + 1, 0);
  for (int64_t k = 0; k < entries; ++k) ++starts[static_cast<size_t>(sorted[k]) + 1];
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) starts[r + 1] += starts[r];
  return starts;
}

Tensor prepared(const Tensor& x, DType dtype) { return cast(x.detach(), dtype).contiguous(); }

// Pieces of about 64 K products.
int64_t grain_of(int64_t work_each) { return std::max<int64_t>(1, 65536 / std::max<int64_t>(work_each, 1)); }

// conj(x) transposed, for x a sparse matrix.
Tensor adjoint(const Tensor& x) {
  Tensor t = sparse_transpose(x);
  return t.is_complex() ? conj(t) : t;
}

const Operator sparse_mm_op{
    .name = "sparse_mm",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor &a = c.input(0), &b = c.input(1);
          out[0] = {.sizes = {a.size(0), b.size(1)}, .dtype = promote(a.dtype(), b.dtype()), .device = a.device()};
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          const Tensor& out = c.output();
          if (out.numel() == 0) return;
          Tensor a = coalesced(c.input(0));
          DType dtype = computing_dtype(out.dtype());
          Tensor values = prepared(sparse_parts(a).values, dtype), dense = prepared(c.input(1), dtype);
          Tensor indices = sparse_parts(a).indices.contiguous();
          Tensor to = out.dtype() == dtype ? out : make_tensor(out.sizes(), dtype, out.device());
          int64_t entries = values.size(0), rows = out.size(0), width = out.size(1);
          const int64_t* index = entries ? indices.data<int64_t>() : nullptr;
          auto starts = row_starts(index, entries, rows);
          parallel_for(rows, grain_of(width * (entries / rows + 1)), [&](int64_t begin, int64_t end) {
            sparse_rows_product_pointer()(dtype, starts.data(), index + entries, values.raw_data(), dense.raw_data(),
                                          width, begin, end, to.raw_data());
          });
          if (!to.is_same(out)) copy_into(out, to);
        },
    .gradient =
        [](GradientCall& c) {
          Tensor g = to_dense(c.grad());
          if (c.needs(0)) {
            Tensor a = coalesce(c.input(0));
            c.set(0, sparse_with_values(a, sampled_product(sparse_parts(a).indices, g, c.input(1))));
          }
          if (c.needs(1)) c.set(1, sparse_mm("mm", adjoint(c.input(0)), g));
        },
    .saves_inputs = 0b11,
    .sparse = true,
};

// The entries of a·conj(b)ᵀ at these indices, and no others.
struct Sampled {
  int64_t rows, columns;
  TUTTI_FIELDS(rows, columns)
};
const Operator sampled_product_op{
    .name = "sampled_product",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = {.sizes = {c.input(0).size(1)},
                    .dtype = promote(c.input(1).dtype(), c.input(2).dtype()),
                    .device = c.input(1).device()};
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          const Tensor& out = c.output();
          if (out.numel() == 0) return;
          DType dtype = computing_dtype(out.dtype());
          Tensor indices = c.input(0).contiguous(), a = prepared(c.input(1), dtype), b = prepared(c.input(2), dtype);
          Tensor to = out.dtype() == dtype ? out : make_tensor(out.sizes(), dtype, out.device());
          int64_t entries = out.numel(), width = a.size(1);
          const auto* index = indices.data<int64_t>();
          parallel_for(entries, grain_of(width), [&](int64_t begin, int64_t end) {
            sampled_rows_product_pointer()(dtype, index, index + entries, a.raw_data(), b.raw_data(), width, begin, end,
                                           to.raw_data());
          });
          if (!to.is_same(out)) copy_into(out, to);
        },
    .gradient =
        [](GradientCall& c) {
          Tensor indices = c.input(0), g = to_dense(c.grad());
          auto matrix = [&](const Tensor& values) {
            return sparse_coo(indices, values, {c.as<Sampled>().rows, c.as<Sampled>().columns});
          };
          if (c.needs(1)) c.set(1, sparse_mm("mm", matrix(g), c.input(2)));
          if (c.needs(2)) c.set(2, sparse_mm("mm", sparse_transpose(matrix(g.is_complex() ? conj(g) : g)), c.input(1)));
        },
    .saves_inputs = 0b111,
    .sparse = true,
};

Tensor sampled_product(const Tensor& indices, const Tensor& a, const Tensor& b) {
  Sampled s{a.size(0), b.size(0)};
  return call(sampled_product_op, {&indices, &a, &b}, attributes(s));
}

const Operator sparse_transpose_op{
    .name = "sparse_transpose",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor& x = c.input(0);
          out[0] = {.sizes = {x.size(1), x.size(0)}, .dtype = x.dtype(), .device = x.device()};
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          const Tensor& x = c.input(0);
          const SparseParts& p = sparse_parts(x);
          Tensor indices = make_tensor(p.indices.sizes(), DType::i64, p.indices.device());
          copy_into(indices.select(0, 0), p.indices.select(0, 1));
          copy_into(indices.select(0, 1), p.indices.select(0, 0));
          c.output() = make_sparse(indices, p.values, {x.size(1), x.size(0)}, false);
        },
    .meta =
        [](const Call& c) {
          const SparseParts& p = sparse_parts(c.input(0));
          c.output() = make_sparse(p.indices, p.values, {c.input(0).size(1), c.input(0).size(0)}, false);
        },
    .gradient =
        [](GradientCall& c) {
          c.set(0, c.grad().is_sparse() ? sparse_transpose(c.grad()) : transpose(c.grad(), 0, 1));
        },
    .dynamic_shape = true,
    .sparse = true,
};

void check_matrix(const char* name, const Tensor& x) {
  check<ShapeError>(x.dim() == 2 && (!x.is_sparse() || x.sparse_dim() == 2), name,
                    "needs matrices (sparse ones with both dims sparse), not {}", x);
}

}  // namespace

DType computing_dtype(DType dtype) {
  switch (category(dtype)) {
    case Category::boolean:
    case Category::integer:
      return DType::i64;
    case Category::floating:
      return dtype == DType::f64 ? DType::f64 : DType::f32;
    default:
      return dtype;
  }
}

Tensor sparse_transpose(const Tensor& x) {
  check_matrix("transpose", x);
  return call(sparse_transpose_op, {&x});
}

Tensor sparse_mm(const char* name, const Tensor& a, const Tensor& b) {
  check_matrix(name, a);
  check_matrix(name, b);
  check<ShapeError>(a.size(1) == b.size(0), name, "inner sizes {} and {} differ: {}, {}", a.size(1), b.size(0), a, b);
  check<DeviceError>(a.device() == b.device(), name, "inputs are on different devices: {}, {}", a, b);
  check<ValueError>(a.is_sparse() || b.is_sparse(), name, "neither {} nor {} is sparse", a, b);
  if (!a.is_sparse()) return transpose(sparse_mm(name, sparse_transpose(b), transpose(a, 0, 1)), 0, 1);
  Tensor dense = to_dense(b);
  return call(sparse_mm_op, {&a, &dense});
}

}  // namespace tutti
