// index and index_put: numbers, slices, masks and tensors of indices, in any mixture.
#include <algorithm>

#include "base/check.h"
#include "base/named.h"
#include "base/parallel.h"
#include "ops/index/indices.h"
#include "tensor/defined.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

struct Indexed {
  Shape dims;  // of x, ascending: the one that input k of the indices is for
  bool accumulate;
  TUTTI_FIELDS(dims, accumulate)
};

constexpr size_t kMostIndices = 28;  // so that the bits of saves_inputs reach them all

// ---- Shapes. The dims of the (broadcast) indices stand where the indexed dims were, or in front if those are apart.

struct Result {
  Shape index_sizes;  // of all indices together
  size_t index_dim;   // where they start in the result
  Shape sizes;
};

Shape broadcast_indices(std::span<const Tensor* const> indices, const char* name) {
  Shape sizes;
  for (const Tensor* t : indices) {
    try {
      sizes = broadcast_shapes(sizes, t->sizes());
    } catch (const ShapeError&) {
      std::string all;
      for (const Tensor* i : indices) all += (all.empty() ? "" : ", ") + to_string(i->sizes());
      fail<IndexError>(name, "the index tensors do not broadcast to one shape: {}", all);
    }
  }
  return sizes;
}

Result result_of(const Shape& x, const Shape& dims, const Shape& index_sizes) {
  bool adjacent = dims.back() - dims[0] == static_cast<int64_t>(dims.size()) - 1;
  Result r{index_sizes, adjacent ? position(dims[0]) : 0, {}};
  auto is_indexed = [&](size_t d) {
    return std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
  };
  for (size_t d = 0; d < x.size(); ++d)
    if (!is_indexed(d)) r.sizes.push_back(x[d]);
  for (size_t d = 0; d < index_sizes.size(); ++d) r.sizes.insert(r.index_dim + d, index_sizes[d]);
  return r;
}

Result infer_result(const Tensor& x, std::span<const Tensor* const> indices, const Shape& dims, const char* name) {
  for (const Tensor* i : indices) check_index_dtype(*i, name);
  return result_of(x.sizes(), dims, broadcast_indices(indices, name));
}

// ---- Offsets

// Where the indices point to in x, as offsets = at · scale.
struct Offsets {
  Tensor at;
  int64_t scale;
};

Offsets offsets_of(const Tensor& x, std::span<const Tensor* const> indices, const Shape& dims, const Shape& sizes,
                   const char* name) {
  NoGrad guard;
  // All are checked before the first is used.
  std::vector<Tensor> ready;
  for (size_t k = 0; k < indices.size(); ++k) {
    Tensor one = ready_indices(*indices[k], dims[k], x.size(dims[k]), name);
    ready.push_back(one.sizes() == sizes ? one : expand(one, sizes).contiguous());
  }
  if (ready.size() == 1) return {ready[0], x.stride(dims[0])};
  Tensor sum = make_tensor(sizes, DType::i64, x.device());
  auto* to = sum.data<int64_t>();
  parallel_for(sum.numel(), kMovedGrain, [&](int64_t begin, int64_t end) {
    for (size_t k = 0; k < ready.size(); ++k) {
      const auto* from = ready[k].data<int64_t>();
      int64_t stride = x.stride(dims[k]);
      for (int64_t i = begin; i < end; ++i) to[i] = (k ? to[i] : 0) + from[i] * stride;
    }
  });
  return {sum, 1};
}

// `rows` is a tensor of the result's shape; its index dims must lie in memory as one.
RowPlan plan_for(const Tensor& x, const Shape& dims, const Result& r, const Offsets& offsets, Shape rows_strides) {
  // The index dims become one, whose stride is that of the last of them that matters.
  size_t n = r.index_sizes.size();
  int64_t stride = 1;
  for (size_t d = 0; d < n; ++d)
    if (r.index_sizes[d] != 1) stride = rows_strides[r.index_dim + d];
  for (size_t d = 0; d < n; ++d) rows_strides.erase(r.index_dim);
  rows_strides.insert(r.index_dim, stride);
  RowPlan plan = plan_rows(x, dims, rows_strides, r.index_dim);
  plan.at = offsets.at.data<int64_t>();
  plan.count = offsets.at.numel();
  plan.scale = offsets.scale;
  return plan;
}

// ---- Gradients are written with the public functions, which take a list of entries.

std::vector<Index> entries(GradientCall& c, size_t first, const Shape& dims) {
  std::vector<Index> list;
  size_t k = 0;
  for (int64_t d = 0; d <= dims.back(); ++d) {
    if (d == dims[k])
      list.emplace_back(c.input(first + k++));
    else
      list.emplace_back(Slice());
  }
  return list;
}

// ---- Operators. Inputs: x, the indices.

const Operator index_op{
    .name = "index",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          check_together(c.inputs, "index");
          const Tensor& x = c.input(0);
          Result r = infer_result(x, c.inputs.subspan(1), c.as<Indexed>().dims, "index");
          out[0] = {.sizes = r.sizes, .dtype = x.dtype(), .device = x.device()};
        },
    .cpu =
        [](const Call& c) {
          const Tensor &x = c.input(0), &out = c.output();
          const Shape& dims = c.as<Indexed>().dims;
          auto indices = c.inputs.subspan(1);
          Result r = infer_result(x, indices, dims, "index");
          Offsets offsets = offsets_of(x, indices, dims, r.index_sizes, "index");
          take_rows(plan_for(x, dims, r, offsets, out.strides()), bytes_of(out), bytes_of(x), x.element_size());
        },
    .gradient =
        [](GradientCall& c) {
          Tensor whole = zeros(c.input_sizes(0), {.dtype = c.grad().dtype(), .device = c.grad().device()});
          c.set(0, whole.index_put_(entries(c, 1, c.as<Indexed>().dims), c.grad(), true));
        },
    .saves_inputs = ~uint32_t{1},
};

// Of the indices (from the second input on) into a tensor like the first: which no later ones repeat.
const Operator put_last_writers_op{
    .name = "index_put_last_writers",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = {.sizes = broadcast_indices(c.inputs.subspan(1), "index_put"),
                    .dtype = DType::boolean,
                    .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          const Shape& dims = c.as<Indexed>().dims;
          const Tensor& x = c.input(0);
          Tensor dense = make_alias(x, x.sizes(), contiguous_strides(x.sizes()), x.storage_offset());  // never read
          Offsets offsets = offsets_of(dense, c.inputs.subspan(1), dims, c.output().sizes(), "index_put");
          size_t places = 1;  // an empty dim has room for none, but indices of other dims still point somewhere
          for (int64_t s : x.sizes()) places *= position(std::max<int64_t>(s, 1));
          std::vector<bool> written(places);
          const auto* at = offsets.at.data<int64_t>();
          bool* last = c.output().data<bool>();
          for (int64_t k = offsets.at.numel(); k-- > 0;) {
            size_t target = position(at[k] * offsets.scale);
            last[k] = !written[target];
            written[target] = true;
          }
        },
};

// The gradient of the value that was put: nothing where a later index overwrote it.
Tensor value_gradient(GradientCall& c, const std::vector<Index>& where_to) {
  const auto& a = c.as<Indexed>();
  Tensor g = index(c.grad(), where_to);
  if (a.accumulate) return g;
  std::vector<Tensor> kept{c.grad()};
  for (size_t k = 0; k < a.dims.size(); ++k) kept.push_back(c.input(k + 2));
  std::vector<const Tensor*> inputs;
  for (auto& t : kept) inputs.push_back(&t);
  Tensor last;
  call(put_last_writers_op, inputs, attributes(a), {&last, 1});
  Result r = result_of(c.input_sizes(0), a.dims, last.sizes());
  Shape sizes = last.sizes();
  while (r.index_dim + sizes.size() < r.sizes.size()) sizes.push_back(1);
  return where(view(last, sizes), g, 0);
}

// Inputs: x, the value, the indices.
const Operator index_put_op{
    .name = "index_put",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          check_together(c.inputs, "index_put");
          const Tensor &x = c.input(0), &value = c.input(1);
          Result r = infer_result(x, c.inputs.subspan(2), c.as<Indexed>().dims, "index_put");
          check<DTypeError>(value.dtype() == x.dtype(), "index_put", "{} and {} differ in dtype", value, x);
          bool fits = value.dim() <= static_cast<int64_t>(r.sizes.size());
          for (size_t d = 0; fits && d < value.sizes().size(); ++d) {
            int64_t size = value.sizes()[value.sizes().size() - 1 - d];
            fits = size == 1 || size == r.sizes[r.sizes.size() - 1 - d];
          }
          check<ShapeError>(fits, "index_put",
                            "the value {} does not broadcast to {}, the shape of what is indexed in {}", value, r.sizes,
                            x);
          out[0] = spec_like(x, c.output());
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          const auto& a = c.as<Indexed>();
          const Tensor& out = c.output();
          std::vector<Tensor> apart;
          std::vector<const Tensor*> indices;
          for (const Tensor* i : c.inputs.subspan(2)) apart.push_back(apart_from(*i, out));
          for (auto& i : apart) indices.push_back(&i);
          Result r = infer_result(out, indices, a.dims, "index_put");
          Offsets offsets = offsets_of(out, indices, a.dims, r.index_sizes, "index_put");
          Tensor value = expand(apart_from(c.input(1), out).detach(), r.sizes);
          // One value for all may stay one; others are laid out so that the index dims are one.
          if (c.input(1).numel() != 1 && r.index_sizes.size() != 1) value = value.contiguous();
          start_from(c.input(0), out);
          RowPlan plan = plan_for(out, a.dims, r, offsets, value.strides());
          if (a.accumulate)
            add_rows(plan, bytes_of(out), bytes_of(value), out.dtype());
          else
            put_rows(plan, bytes_of(out), bytes_of(value), out.element_size());
        },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Indexed>();
          auto where_to = entries(c, 2, a.dims);
          if (c.needs(0)) c.set(0, a.accumulate ? c.grad() : index_put(c.grad(), where_to, 0));
          if (c.needs(1)) c.set(1, value_gradient(c, where_to));
        },
    .saves_inputs = ~uint32_t{3},
    .in_place = 1,
};

// ---- From entries to views and indices

// x after the numbers, slices and new axes, and the indices that remain, by its dims.
struct Parsed {
  Tensor view;
  TensorList indices;
  Shape dims;
};

class Parser {
 public:
  Parser(const Tensor& x, const std::vector<Index>& entries, const char* name) : x_(x), name_(name) {
    check_defined(x, name);
    check<ValueError>(x.layout() == Layout::strided, name, "{} is sparse; to_dense() it first", x);
    for (auto& e : entries)
      if (const auto* t = std::get_if<Tensor>(&e.value())) check_defined(*t, name);
    parsed_.view = x;
    int64_t used = count_dims(entries);
    for (auto& e : entries) std::visit([&](const auto& v) { apply(v, used); }, e.value());
    check<ValueError>(parsed_.indices.size() <= kMostIndices, name_, "{} indices are too many", parsed_.indices.size());
  }
  Parsed take() { return std::move(parsed_); }

 private:
  int64_t count_dims(const std::vector<Index>& entries) {
    int64_t used = 0;
    int ellipses = 0;
    for (auto& e : entries) {
      if (std::holds_alternative<EllipsisTag>(e.value()))
        ++ellipses;
      else if (auto* t = std::get_if<Tensor>(&e.value())) {
        check<ValueError>(t->defined(), name_, "an index tensor is undefined");
        used += t->dtype() == DType::boolean ? t->dim() : 1;
      } else if (!std::holds_alternative<NewAxisTag>(e.value()))
        ++used;
    }
    check<IndexError>(ellipses <= 1, name_, "only one Ellipsis can stand for the dims that are left");
    check<IndexError>(used <= x_.dim(), name_, "{} dims are indexed, but {} has {}", used, x_, x_.dim());
    return used;
  }

  void apply(int64_t i, int64_t) {
    int64_t size = x_.size(source_);
    check<IndexError>(i >= -size && i < size, name_, "index {} is out of range for dim {} of {}: use {} to {}", i,
                      source_, x_, -size, size - 1);
    parsed_.view = select(parsed_.view, at_, i);
    ++source_;
  }
  void apply(const Slice& s, int64_t) {
    if (s.start || s.stop || s.step != 1) parsed_.view = slice(parsed_.view, at_, s.start, s.stop, s.step);
    ++at_;
    ++source_;
  }
  void apply(EllipsisTag, int64_t used) {
    at_ += x_.dim() - used;
    source_ += x_.dim() - used;
  }
  void apply(NewAxisTag, int64_t) { parsed_.view = unsqueeze(parsed_.view, at_++); }
  void apply(const Tensor& given, int64_t) {
    Tensor t = given.detach();
    if (t.is_number() && !(t.device() == x_.device())) t = copy_to(t, x_.device());
    if (t.dtype() == DType::boolean) return apply_mask(t);
    check_index_dtype(t, name_);
    add(t);
    ++source_;
  }
  // A mask is the list of the places where it holds, one tensor for each of its dims.
  void apply_mask(Tensor mask) {
    check<DeviceError>(mask.device() == x_.device(), name_, "the mask {} and {} are on different devices", mask, x_);
    if (mask.dim() == 0) {
      // It chooses all or nothing of a new dim.
      parsed_.view = unsqueeze(parsed_.view, at_);
      mask = view(mask, {1});
    } else {
      for (int64_t d = 0; d < mask.dim(); ++d)
        check<IndexError>(mask.size(d) == x_.size(source_ + d), name_,
                          "the mask {} does not fit {}: its dim {} has size {}, but dim {} there has {}", mask, x_, d,
                          mask.size(d), source_ + d, x_.size(source_ + d));
      source_ += mask.dim();
    }
    NoGrad guard;
    Tensor places = nonzero(mask);
    for (int64_t d = 0; d < mask.dim(); ++d) add(select(places, 1, d).detach());
  }
  void add(const Tensor& indices) {
    parsed_.indices.push_back(indices);
    parsed_.dims.push_back(at_++);
  }

  const Tensor& x_;
  const char* name_;
  Parsed parsed_;
  int64_t at_ = 0;      // the dim of the view that comes next
  int64_t source_ = 0;  // the dim of x that comes next
};

Parsed parse(const Tensor& x, const std::vector<Index>& entries, const char* name) {
  return named(name, [&] { return Parser(x, entries, name).take(); });
}

// Dims of size 1 in front of a value, more than it is put into, do not matter.
Tensor without_leading_ones(const Tensor& value, size_t dims) {
  Shape sizes = value.sizes();
  while (sizes.size() > dims && sizes[0] == 1) sizes.erase(0);
  return sizes.size() == value.sizes().size() ? value : reshape(value, sizes);
}

size_t result_dims(const Parsed& p) {
  size_t most = 0;
  for (auto& i : p.indices) most = std::max(most, i.sizes().size());
  return p.view.sizes().size() - p.indices.size() + most;
}

// The shapes are compared here, so that the error names index_put_.
void copy_checked(Tensor& view, const Tensor& value) {
  bool fits = value.dim() <= view.dim();
  for (int64_t d = 1; fits && d <= value.dim(); ++d) fits = value.size(-d) == 1 || value.size(-d) == view.size(-d);
  check<ShapeError>(fits, "index_put_", "the value {} does not broadcast to {}, the shape of what is indexed", value,
                    view.sizes());
  check<DeviceError>(value.device() == view.device(), "index_put_", "{} cannot be put into {}: copy it with to(device)",
                     value, view);
  view.copy_(value);
}

void put(const Parsed& p, const Tensor& value, bool accumulate, Tensor& result) {
  std::vector<const Tensor*> inputs{&p.view, &value};
  for (auto& i : p.indices) inputs.push_back(&i);
  Indexed a{p.dims, accumulate};
  call(index_put_op, inputs, attributes(a), {&result, 1});
}

}  // namespace

Index::Index(const char* dots) : value_(Ellipsis) {
  check<IndexError>(dots && std::string_view(dots) == "...", "index",
                    "'{}' is no index; of texts only \"...\" is, which stands for Ellipsis", dots ? dots : "null");
}

Tensor index(const Tensor& x, const std::vector<Index>& indices) {
  Parsed p = parse(x, indices, "index");
  if (p.indices.empty()) return p.view;
  std::vector<const Tensor*> inputs{&p.view};
  for (auto& i : p.indices) inputs.push_back(&i);
  Indexed a{p.dims, false};
  Tensor result;
  call(index_op, inputs, attributes(a), {&result, 1});
  return result;
}

Tensor& Tensor::index_put_(const std::vector<Index>& indices, const Tensor& value, bool accumulate) {
  Parsed p = parse(*this, indices, "index_put_");
  Tensor ready = without_leading_ones(value_for(*this, value, "index_put_"), result_dims(p));
  if (!p.indices.empty())
    put(p, ready, accumulate, p.view);
  else if (accumulate)
    p.view.add_(ready);
  else
    copy_checked(p.view, ready);
  return *this;
}

Tensor index_put(const Tensor& x, const std::vector<Index>& indices, const Tensor& value, bool accumulate) {
  Parsed p = parse(x, indices, "index_put");
  if (!p.view.is_same(x) || p.indices.empty()) {
    Tensor result = clone(x);
    result.index_put_(indices, value, accumulate);
    return result;
  }
  Tensor result;
  put(p, without_leading_ones(value_for(x, value, "index_put"), result_dims(p)), accumulate, result);
  return result;
}

}  // namespace tutti
