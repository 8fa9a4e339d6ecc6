#include "ops/index/indices.h"

#include <algorithm>

#include "base/check.h"
#include "base/parallel.h"
#include "tensor/call.h"
#include "tensor/defined.h"
#include "tensor/number.h"
#include "tutti/ops.h"

namespace tutti {
namespace {}  // namespace

Extremes extremes(const int64_t* index, int64_t count) {
  int64_t pieces = (count + kReadGrain - 1) / kReadGrain;
  SmallVector<Extremes, 4> found(static_cast<size_t>(pieces));
  parallel_for(count, kReadGrain, [&](int64_t begin, int64_t end) {
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (int64_t i = begin; i < end; ++i) {
      low = std::min(low, index[i]);
      high = std::max(high, index[i]);
    }
    found[static_cast<size_t>(begin / kReadGrain)] = {low, high};
  });
  Extremes all;
  for (auto& e : found) all = {std::min(all.low, e.low), std::max(all.high, e.high)};
  return all;
}

void check_index_dtype(const Tensor& index, const char* name) {
  check_defined(index, name);
  DType t = index.dtype();
  check<DTypeError>(t != DType::u8, name,
                    "{} is neither indices nor a mask: cast it to bool if it is a mask, to i64 if it holds indices",
                    index);
  check<DTypeError>(t == DType::i64 || t == DType::i32, name, "indices must be i64 or i32, not {}", index);
}

void check_together(std::span<const Tensor* const> tensors, const char* name) {
  const Tensor& first = *tensors[0];
  for (const Tensor* t : tensors) {
    check<ValueError>(t->defined(), name, "an input is undefined: it was never given a value");
    check<ValueError>(t->layout() == Layout::strided, name, "{} is sparse; to_dense() it first", *t);
    check<DeviceError>(t->device() == first.device(), name,
                       "{} and {} are on different devices; copy one with to(device)", first, *t);
  }
}

Tensor ready_indices(const Tensor& index, int64_t dim, int64_t size, const char* name) {
  NoGrad guard;
  Tensor ready = cast(index.detach(), DType::i64).contiguous();
  int64_t n = ready.numel();
  if (n == 0) return ready;
  const int64_t* p = ready.data<int64_t>();
  Extremes found = extremes(p, n);
  if (found.low < -size || found.high >= size) {
    const int64_t* bad = std::find_if(p, p + n, [&](int64_t i) { return i < -size || i >= size; });
    Shape at;
    int64_t rest = bad - p;
    for (size_t d = ready.sizes().size(); d-- > 0; rest /= ready.sizes()[d]) at.insert(0, rest % ready.sizes()[d]);
    check<IndexError>(size > 0, name, "index {} (at {} of indices {}) has nothing to name: dim {} has size 0", *bad, at,
                      ready.sizes(), dim);
    fail<IndexError>(name, "index {} is out of range for dim {} of size {}: use {} to {} (it is at {} of indices {})",
                     *bad, dim, size, -size, size - 1, at, ready.sizes());
  }
  if (found.low >= 0) return ready;
  Tensor wrapped = make_tensor(ready.sizes(), DType::i64, ready.device());
  auto* to = wrapped.data<int64_t>();
  parallel_for(n, kReadGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = p[i] < 0 ? p[i] + size : p[i];
  });
  return wrapped;
}

void start_from(const Tensor& input, const Tensor& out) {
  bool same =
      input.shares_storage(out) && input.storage_offset() == out.storage_offset() && input.strides() == out.strides();
  if (same || input.numel() == 0) return;
  BoxDims dims;
  for (size_t d = 0; d < input.sizes().size(); ++d)
    dims.push_back({input.sizes()[d], out.strides()[d], input.strides()[d]});
  move_box(bytes_of(out), bytes_of(input), input.element_size(), std::move(dims));
}

Tensor apart_from(const Tensor& input, const Tensor& out) {
  if (!input.shares_storage(out)) return input;
  NoGrad guard;
  return clone(input.detach());
}

TensorSpec spec_like(const Tensor& x, const Tensor& out) {
  TensorSpec spec{.sizes = x.sizes(), .dtype = x.dtype(), .device = x.device()};
  const Tensor& model = out.defined() ? out : x;
  if (!model.is_contiguous() && (out.defined() || is_dense(x.sizes(), x.strides()))) {
    spec.strides = model.strides();
    spec.strided = true;
  }
  return spec;
}

Tensor at_least_1d(const Tensor& x) { return x.dim() > 0 ? x : make_alias(x, {1}, {1}, x.storage_offset()); }

Tensor value_for(const Tensor& x, const Tensor& value, const char* name) {
  check<ValueError>(value.defined() && !value.is_sparse(), name, "the value is undefined or sparse");
  // Whole numbers may stand for true and false: mask.index_put_({i}, 1).
  bool whole = x.dtype() == DType::boolean && value.is_number() && category(value.dtype()) == Category::integer;
  check<DTypeError>(whole || category(value.dtype()) <= category(x.dtype()), name,
                    "{} cannot be put into {} without losing its kind; cast it first", value, x);
  check_fits(value, x.dtype(), name);
  Tensor ready = cast(value, x.dtype());
  if (value.is_number() && !(ready.device() == x.device())) ready = copy_to(ready, x.device());
  return ready;
}

// ---- Plans

RowPlan plan_rows(const Tensor& x, const Shape& dims, const Shape& rows_strides, size_t index_dim) {
  RowPlan plan;
  plan.row_stride = index_dim < rows_strides.size() ? rows_strides[index_dim] : 1;
  size_t next_row = 0;
  size_t behind = 0;  // how many of the plan's dims come after the indices
  for (size_t d = 0, k = 0; d < x.sizes().size(); ++d) {
    if (k < dims.size() && static_cast<int64_t>(d) == dims[k]) {
      ++k;
      continue;
    }
    if (next_row == index_dim) ++next_row;
    RowDim dim{x.sizes()[d], x.strides()[d], rows_strides[next_row]};
    bool after = next_row++ > index_dim;
    if (dim.size == 1) continue;
    RowDim* last = plan.outer.empty() ? nullptr : &plan.outer[plan.outer.size() - 1];
    bool merge =
        last && (!after || behind > 0) && last->indexed == dim.indexed * dim.size && last->rows == dim.rows * dim.size;
    if (merge)
      *last = {last->size * dim.size, dim.indexed, dim.rows};
    else
      plan.outer.push_back(dim);
    if (after && !merge) ++behind;
  }
  if (behind > 0) {
    plan.run = plan.outer[plan.outer.size() - 1];
    plan.outer.resize(plan.outer.size() - 1);
  }
  return plan;
}

}  // namespace tutti
