// Views: the same storage seen with other sizes, strides or offset. Each operator is an `infer`; no kernel runs.
#include <algorithm>

#include "base/check.h"
#include "base/named.h"
#include "ops/sparse/sparse.h"
#include "ops/view/box.h"
#include "tensor/defined.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

struct Sizes {
  Shape sizes;
  TUTTI_FIELDS(sizes)
};
struct Order {
  Shape dims;
  TUTTI_FIELDS(dims)
};
struct Geometry {
  Shape sizes, strides;
  int64_t offset;
  TUTTI_FIELDS(sizes, strides, offset)
};
struct Range {
  int64_t dim, start, length, step;
  TUTTI_FIELDS(dim, start, length, step)
};
struct Pick {
  int64_t dim, index;
  TUTTI_FIELDS(dim, index)
};
struct Windows {
  int64_t dim, size, step;
  TUTTI_FIELDS(dim, size, step)
};
struct Diagonal {
  int64_t offset, dim1, dim2;
  TUTTI_FIELDS(offset, dim1, dim2)
};

// A spec that starts as the input itself.
TensorSpec view_of(const Tensor& x) {
  const TensorImpl* t = impl(x);
  return {.sizes = t->sizes,
          .strides = t->strides,
          .offset = t->offset,
          .dtype = t->dtype,
          .device = t->device,
          .strided = true};
}

// Strides under which x can be seen with these sizes, if any.
std::optional<Shape> view_strides(const TensorImpl* x, const Shape& sizes) {
  if (x->contiguous) return contiguous_strides(sizes);
  if (x->numel == 0) return contiguous_strides(sizes);
  Shape strides;
  strides.resize(sizes.size());
  int64_t d = static_cast<int64_t>(sizes.size()) - 1;
  int64_t chunk = 1, base = 0;
  bool open = false;
  // Walk the old dims from the back; each run of them that lies in memory as one is cut into new dims.
  for (int64_t old = static_cast<int64_t>(x->sizes.size()) - 1; old >= 0; --old) {
    if (!open) {
      base = x->strides[position(old)];
      open = true;
    }
    chunk *= x->sizes[position(old)];
    bool ends = old == 0 || (x->sizes[position(old - 1)] != 1 && x->strides[position(old - 1)] != chunk * base);
    if (!ends) continue;
    int64_t filled = 1;
    while (d >= 0 && (filled < chunk || sizes[position(d)] == 1)) {
      strides[position(d)] = base * filled;
      filled *= sizes[position(d)];
      --d;
    }
    if (filled != chunk) return {};
    chunk = 1;
    open = false;
  }
  for (; d >= 0; --d) {
    if (sizes[position(d)] != 1) return {};
    strides[position(d)] = 1;
  }
  return strides;
}

// Replaces a -1 by what the other sizes leave for it.
Shape complete_sizes(const Tensor& x, Shape sizes, const char* name) {
  int64_t known = 1, unknown = -1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == -1) {
      check<ShapeError>(unknown < 0, name, "only one size may be -1: {}", sizes);
      unknown = static_cast<int64_t>(d);
    } else {
      check<ShapeError>(sizes[d] >= 0, name, "sizes must not be negative: {}", sizes);
      known *= sizes[d];
    }
  }
  Shape all = sizes;
  if (unknown >= 0) all[position(unknown)] = 1;
  check_sizes(all, name);  // `known` did not wrap, then
  if (unknown >= 0) {
    check<ShapeError>(known > 0 && x.numel() % known == 0, name,
                      "{} cannot be seen as {}: {} elements do not divide by {}", x, sizes, x.numel(), known);
    sizes[position(unknown)] = x.numel() / known;
  }
  check<ShapeError>(sizes.product() == x.numel(), name, "{} has {} elements; {} would have {}", x, x.numel(), sizes,
                    sizes.product());
  return sizes;
}

const Operator view_op{
    .name = "view",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const auto& sizes = c.as<Sizes>().sizes;
          out[0] = view_of(c.input(0));
          auto strides = view_strides(impl(c.input(0)), sizes);
          check<ShapeError>(strides.has_value(), "view",
                            "{} with strides {} cannot be seen as {} without a copy; use reshape", c.input(0),
                            c.input(0).strides(), sizes);
          out[0].sizes = sizes;
          out[0].strides = *strides;
        },
    .gradient = [](GradientCall& c) { c.set(0, reshape(c.grad(), c.input_sizes(0))); },
    .view_of = 0,
};

const Operator permute_op{
    .name = "permute",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Shape& dims = c.as<Order>().dims;
          const Tensor& x = c.input(0);
          out[0] = view_of(x);
          for (size_t i = 0; i < dims.size(); ++i) {
            out[0].sizes[i] = x.sizes()[position(dims[i])];
            out[0].strides[i] = x.strides()[position(dims[i])];
          }
        },
    .gradient =
        [](GradientCall& c) {
          const Shape& dims = c.as<Order>().dims;
          Shape back = Shape::filled(dims.size(), 0);
          for (size_t i = 0; i < dims.size(); ++i) back[position(dims[i])] = static_cast<int64_t>(i);
          c.set(0, permute(c.grad(), back));
        },
    .view_of = 0,
};

const Operator expand_op{
    .name = "expand",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Shape& sizes = c.as<Sizes>().sizes;
          const Tensor& x = c.input(0);
          out[0] = view_of(x);
          out[0].sizes = sizes;
          out[0].strides = Shape::filled(sizes.size(), 0);
          size_t missing = sizes.size() - x.sizes().size();
          for (size_t d = missing; d < sizes.size(); ++d) {
            int64_t size = x.sizes()[d - missing];
            check<ShapeError>(size == sizes[d] || size == 1, "expand",
                              "{} cannot be expanded to {}: dim {} has size {}, not 1", x, sizes, d, size);
            if (size == sizes[d]) out[0].strides[d] = x.strides()[d - missing];
          }
        },
    .gradient = [](GradientCall& c) { c.set(0, sum_to(c.grad(), c.input_sizes(0))); },
    .view_of = 0,
};

const Operator slice_op{
    .name = "slice",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const auto& r = c.as<Range>();
          out[0] = view_of(c.input(0));
          auto d = position(r.dim);
          out[0].offset += r.start * out[0].strides[d];
          out[0].sizes[d] = r.length;
          out[0].strides[d] *= r.step;
        },
    .gradient =
        [](GradientCall& c) {
          const auto& r = c.as<Range>();
          Tensor whole = zeros(c.input_sizes(0), {.dtype = c.grad().dtype(), .device = c.grad().device()});
          Tensor part = slice(whole, r.dim, r.start, r.start + (r.length - 1) * r.step + 1, r.step);
          if (r.length > 0) part.copy_(c.grad());
          c.set(0, whole);
        },
    .view_of = 0,
};

const Operator select_op{
    .name = "select",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const auto& p = c.as<Pick>();
          out[0] = view_of(c.input(0));
          out[0].offset += p.index * out[0].strides[position(p.dim)];
          out[0].sizes.erase(position(p.dim));
          out[0].strides.erase(position(p.dim));
        },
    .gradient =
        [](GradientCall& c) {
          const auto& p = c.as<Pick>();
          Tensor whole = zeros(c.input_sizes(0), {.dtype = c.grad().dtype(), .device = c.grad().device()});
          whole.select(p.dim, p.index).copy_(c.grad());
          c.set(0, whole);
        },
    .view_of = 0,
};

const Operator diagonal_op{
    .name = "diagonal",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const auto& a = c.as<Diagonal>();
          const Tensor& x = c.input(0);
          out[0] = view_of(x);
          int64_t rows = x.size(a.dim1), columns = x.size(a.dim2), s1 = x.stride(a.dim1), s2 = x.stride(a.dim2);
          int64_t length = std::max<int64_t>(
              0, a.offset >= 0 ? std::min(rows, columns - a.offset) : std::min(rows + a.offset, columns));
          if (length > 0) out[0].offset += a.offset >= 0 ? a.offset * s2 : -a.offset * s1;
          for (int64_t d : {std::max(a.dim1, a.dim2), std::min(a.dim1, a.dim2)}) {
            out[0].sizes.erase(position(d));
            out[0].strides.erase(position(d));
          }
          out[0].sizes.push_back(length);
          out[0].strides.push_back(s1 + s2);
        },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Diagonal>();
          Tensor whole = zeros(c.input_sizes(0), {.dtype = c.grad().dtype(), .device = c.grad().device()});
          diagonal(whole, a.offset, a.dim1, a.dim2).copy_(c.grad());
          c.set(0, whole);
        },
    .view_of = 0,
};

// ---- as_strided and its gradient, which adds up where elements of the view share memory.

struct StridedGradient {
  Shape input_sizes, input_strides;
  int64_t input_offset;
  Shape sizes, strides;
  int64_t offset;
  TUTTI_FIELDS(input_sizes, input_strides, input_offset, sizes, strides, offset)
};

void for_each_offset(const Shape& sizes, const Shape& strides, int64_t offset,
                     const std::function<void(int64_t)>& visit) {
  int64_t n = sizes.product();
  Shape at = Shape::filled(sizes.size(), 0);
  for (int64_t i = 0; i < n; ++i) {
    visit(offset);
    for (size_t d = sizes.size(); d-- > 0;) {
      offset += strides[d];
      if (++at[d] < sizes[d]) break;
      offset -= strides[d] * sizes[d];
      at[d] = 0;
    }
  }
}

const Operator as_strided_gradient_op{
    .name = "as_strided_gradient",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = {
              .sizes = c.as<StridedGradient>().input_sizes, .dtype = c.input(0).dtype(), .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<StridedGradient>();
          Tensor g = c.input(0).contiguous();
          with_type(g.dtype(), [&]<class T>() {
            using Sum = std::conditional_t<sizeof(T) == 2, float, T>;
            // In a picture of the storage, so that the two geometries meet.
            int64_t low = std::min(a.input_offset, a.offset);
            int64_t high = std::max(a.input_offset + span_elements(a.input_sizes, a.input_strides),
                                    a.offset + span_elements(a.sizes, a.strides));
            std::vector<Sum> storage(static_cast<size_t>(std::max<int64_t>(high - low, 0)));
            const T* from = g.data<T>();
            for_each_offset(a.sizes, a.strides, a.offset - low, [&](int64_t o) {
              Sum slot = storage[static_cast<size_t>(o)];
              storage[static_cast<size_t>(o)] = static_cast<Sum>(slot + *from++);
            });
            T* to = c.output().data<T>();
            for_each_offset(a.input_sizes, a.input_strides, a.input_offset - low,
                            [&](int64_t o) { *to++ = static_cast<T>(storage[static_cast<size_t>(o)]); });
          });
        },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<StridedGradient>();
          Tensor g =
              empty_strided(a.input_sizes, a.input_strides, {.dtype = c.grad().dtype(), .device = c.grad().device()});
          g = g.copy_(c.grad());
          c.set(0, as_strided(g, a.sizes, a.strides, a.offset - a.input_offset));
        },
};

const Operator as_strided_op{
    .name = "as_strided",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const auto& a = c.as<StridedGradient>();
          out[0] = view_of(c.input(0));
          out[0].sizes = a.sizes;
          out[0].strides = a.strides;
          // As far from where the input begins as when this was asked for: a graph may be run with another.
          out[0].offset = c.input(0).storage_offset() + a.offset - a.input_offset;
        },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<StridedGradient>();
          check<GradError>(
              !overlaps_itself(a.input_sizes, a.input_strides), "as_strided",
              "the gradient of a tensor of sizes {} and strides {}, whose elements share memory, is not defined; use "
              "contiguous() first",
              a.input_sizes, a.input_strides);
          Tensor g = c.grad();
          c.set(0, call(as_strided_gradient_op, {&g}, c.attributes()));
        },
    .view_of = 0,
};

void open_windows(const Windows& w, Shape& sizes, Shape& strides) {
  int64_t stride = strides[position(w.dim)], count = (sizes[position(w.dim)] - w.size) / w.step + 1;
  sizes[position(w.dim)] = count;
  strides[position(w.dim)] = count > 1 ? stride * w.step : stride;  // one window's step may be any number
  sizes.push_back(w.size);
  strides.push_back(stride);
}

const Operator unfold_op{
    .name = "unfold",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = view_of(c.input(0));
          open_windows(c.as<Windows>(), out[0].sizes, out[0].strides);
        },
    .gradient =
        [](GradientCall& c) {
          // As if the input were contiguous: elements that share memory still have gradients of their own.
          StridedGradient a{c.input_sizes(0), contiguous_strides(c.input_sizes(0)), 0, c.input_sizes(0), {}, 0};
          a.strides = a.input_strides;
          open_windows(c.as<Windows>(), a.sizes, a.strides);
          Tensor g = c.grad();
          c.set(0, call(as_strided_gradient_op, {&g}, attributes(a)));
        },
    .view_of = 0,
};

}  // namespace

Tensor view(const Tensor& x, const Shape& sizes) {
  check_defined(x, "view");
  Sizes a{complete_sizes(x, sizes, "view")};
  return call(view_op, {&x}, attributes(a));
}

Tensor reshape(const Tensor& x, const Shape& sizes) {
  check_defined(x, "reshape");
  Sizes a{complete_sizes(x, sizes, "reshape")};
  if (a.sizes == x.sizes()) return x;
  return named("reshape", [&] {
    if (view_strides(impl(x), a.sizes)) return call(view_op, {&x}, attributes(a));
    Tensor copy = clone(x, MemoryFormat::contiguous);
    return call(view_op, {&copy}, attributes(a));
  });
}

Tensor permute(const Tensor& x, const Shape& dims) {
  check_defined(x, "permute");
  check<ShapeError>(dims.size() == x.sizes().size(), "permute", "{} has {} dims, but {} were given: {}", x, x.dim(),
                    dims.size(), dims);
  Order a;
  Shape seen = Shape::filled(dims.size(), 0);
  for (int64_t d : dims) {
    int64_t w = wrap_dim(d, x, "permute");
    check<ShapeError>(seen[position(w)]++ == 0, "permute", "dim {} is given twice: {}", d, dims);
    a.dims.push_back(w);
  }
  return call(permute_op, {&x}, attributes(a));
}

Tensor transpose(const Tensor& x, int64_t dim0, int64_t dim1) {
  dim0 = wrap_dim(dim0, x, "transpose");
  dim1 = wrap_dim(dim1, x, "transpose");
  if (x.dim() == 0) return x;
  if (x.is_sparse()) return dim0 == dim1 ? x : sparse_transpose(x);
  Order a;
  for (int64_t d = 0; d < x.dim(); ++d) a.dims.push_back(d == dim0 ? dim1 : d == dim1 ? dim0 : d);
  return call(permute_op, {&x}, attributes(a));
}

Tensor squeeze(const Tensor& x) {
  check_defined(x, "squeeze");
  Shape sizes;
  for (int64_t s : x.sizes())
    if (s != 1) sizes.push_back(s);
  return named("squeeze", [&] { return view(x, sizes); });
}

Tensor squeeze(const Tensor& x, int64_t dim) {
  dim = wrap_dim(dim, x, "squeeze");
  if (x.dim() == 0 || x.size(dim) != 1) return x;
  return named("squeeze", [&] { return select(x, dim, 0); });
}

Tensor unsqueeze(const Tensor& x, int64_t dim) {
  check_defined(x, "unsqueeze");
  check<IndexError>(dim >= -x.dim() - 1 && dim <= x.dim(), "unsqueeze",
                    "there can be no dim {} in {} with one more: use {} to {}", dim, x, -x.dim() - 1, x.dim());
  if (dim < 0) dim += x.dim() + 1;
  Shape sizes = x.sizes(), strides = x.strides();
  strides.insert(position(dim), dim < x.dim() ? sizes[position(dim)] * strides[position(dim)] : 1);
  sizes.insert(position(dim), 1);
  Sizes a{sizes};
  return named("unsqueeze", [&] { return call(view_op, {&x}, attributes(a)); });
}

Tensor expand(const Tensor& x, const Shape& sizes) {
  check_defined(x, "expand");
  check<ShapeError>(sizes.size() >= x.sizes().size(), "expand", "{} has more dims than {}", x, sizes);
  Sizes a{sizes};
  size_t missing = sizes.size() - x.sizes().size();
  for (size_t d = 0; d < sizes.size(); ++d) {
    check<ShapeError>(sizes[d] >= -1, "expand", "sizes must not be negative (-1 keeps a size): {}", sizes);
    if (sizes[d] == -1) {
      check<ShapeError>(d >= missing, "expand", "-1 keeps a size, but dim {} of {} is new", d, sizes);
      a.sizes[d] = x.sizes()[d - missing];
    }
  }
  if (a.sizes == x.sizes()) return x;
  check_sizes(a.sizes, "expand");
  return call(expand_op, {&x}, attributes(a));
}

Tensor slice(const Tensor& x, int64_t dim, std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step) {
  check_defined(x, "slice");
  check<ShapeError>(x.dim() > 0, "slice", "a zero-dimensional tensor has nothing to slice");
  check<ValueError>(step > 0, "slice", "step must be positive, not {}; flip() reverses", step);
  dim = wrap_dim(dim, x, "slice");
  int64_t size = x.size(dim);
  auto clamp = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + size : v, 0, size); };
  int64_t from = clamp(start.value_or(0)), to = std::max(from, clamp(stop.value_or(size)));
  int64_t length = to > from ? (to - from - 1) / step + 1 : 0;
  Range a{dim, from, length, length > 1 ? step : 1};
  return call(slice_op, {&x}, attributes(a));
}

Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length) {
  check_defined(x, "narrow");
  check<ShapeError>(x.dim() > 0, "narrow", "a zero-dimensional tensor has nothing to narrow");
  dim = wrap_dim(dim, x, "narrow");
  int64_t size = x.size(dim), from = start < 0 ? start + size : start;
  check<IndexError>(from >= 0 && length >= 0 && from <= size && length <= size - from, "narrow",
                    "[{}, {}+{}) is outside of dim {} of {}", start, start, length, dim, x);
  Range a{dim, from, length, 1};
  return named("narrow", [&] { return call(slice_op, {&x}, attributes(a)); });
}

Tensor select(const Tensor& x, int64_t dim, int64_t index) {
  check_defined(x, "select");
  check<ShapeError>(x.dim() > 0, "select", "a zero-dimensional tensor cannot be indexed; use item()");
  dim = wrap_dim(dim, x, "select");
  int64_t size = x.size(dim);
  check<IndexError>(index >= -size && index < size, "select", "index {} is out of range for dim {} of {}: use {} to {}",
                    index, dim, x, -size, size - 1);
  Pick a{dim, index < 0 ? index + size : index};
  return call(select_op, {&x}, attributes(a));
}

Tensor flatten(const Tensor& x, int64_t start, int64_t end) {
  check_defined(x, "flatten");
  if (x.dim() == 0) return view(x, {1});
  start = wrap_dim(start, x, "flatten");
  end = wrap_dim(end, x, "flatten");
  check<ValueError>(start <= end, "flatten", "start {} comes after end {}", start, end);
  Shape sizes;
  int64_t merged = 1;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (d < start || d > end)
      sizes.push_back(x.size(d));
    else
      merged *= x.size(d);
    if (d == end) sizes.push_back(merged);
  }
  return named("flatten", [&] { return reshape(x, sizes); });
}

Tensor as_strided(const Tensor& x, const Shape& sizes, const Shape& strides, std::optional<int64_t> offset) {
  check_defined(x, "as_strided");
  check<ShapeError>(sizes.size() == strides.size(), "as_strided", "sizes {} and strides {} differ in length", sizes,
                    strides);
  StridedGradient a{x.sizes(), x.strides(), x.storage_offset(), sizes, strides, offset.value_or(x.storage_offset())};
  check<IndexError>(a.offset >= 0, "as_strided", "offset {} is negative", a.offset);
  check_geometry(sizes, strides, a.offset, "as_strided");
  size_t needed =
      static_cast<size_t>(sizes.product() == 0 ? 0 : a.offset + span_elements(sizes, strides)) * x.element_size();
  check<IndexError>(needed <= x.storage_bytes(), "as_strided",
                    "sizes {}, strides {} and offset {} need {} bytes, but the storage has {}", sizes, strides,
                    a.offset, needed, x.storage_bytes());
  return call(as_strided_op, {&x}, attributes(a));
}

Tensor diagonal(const Tensor& x, int64_t offset, int64_t dim1, int64_t dim2) {
  dim1 = wrap_dim(dim1, x, "diagonal");
  dim2 = wrap_dim(dim2, x, "diagonal");
  check<ValueError>(x.dim() >= 2 && dim1 != dim2, "diagonal", "needs two different dims of {}, not {} and {}", x, dim1,
                    dim2);
  Diagonal a{offset, dim1, dim2};
  return call(diagonal_op, {&x}, attributes(a));
}

Tensor unfold(const Tensor& x, int64_t dim, int64_t size, int64_t step) {
  dim = wrap_dim(dim, x, "unfold");
  check<ValueError>(x.dim() > 0 && size >= 0 && size <= x.size(dim) && step > 0, "unfold",
                    "windows of {} every {} do not fit dim {} of {}", size, step, dim, x);
  Windows a{dim, size, step};
  return call(unfold_op, {&x}, attributes(a));
}

Shape broadcast_shapes(const Shape& a, const Shape& b) {
  size_t n = std::max(a.size(), b.size());
  Shape result = Shape::filled(n, 1);
  for (size_t i = 0; i < n; ++i) {
    int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1, y = i < b.size() ? b[b.size() - 1 - i] : 1;
    check<ShapeError>(x == y || x == 1 || y == 1, "broadcast",
                      "{} and {} do not broadcast: sizes {} and {} differ and neither is 1", a, b, x, y);
    result[n - 1 - i] = x == 1 ? y : x;
  }
  return result;
}

namespace {
bool broadcasts(const Shape& a, const Shape& b) {
  for (size_t i = 1; i <= std::min(a.size(), b.size()); ++i) {
    int64_t x = a[a.size() - i], y = b[b.size() - i];
    if (x != y && x != 1 && y != 1) return false;
  }
  return true;
}
}  // namespace

TensorList broadcast_tensors(const TensorList& tensors) {
  Shape sizes;
  for (auto& t : tensors) {
    check_defined(t, "broadcast_tensors");
    check<ShapeError>(broadcasts(sizes, t.sizes()), "broadcast_tensors",
                      "{} does not broadcast with those before it, which give {}: sizes must be equal or 1", t, sizes);
    sizes = broadcast_shapes(sizes, t.sizes());
  }
  TensorList result;
  for (auto& t : tensors) result.push_back(named("broadcast_tensors", [&] { return expand(t, sizes); }));
  return result;
}

Tensor sum_to(const Tensor& x, const Shape& sizes) {
  check_defined(x, "sum_to");
  if (x.sizes() == sizes) return x;
  size_t missing = x.sizes().size() - sizes.size();
  bool fits = sizes.size() <= x.sizes().size() && broadcasts(x.sizes(), sizes) &&
              broadcast_shapes(x.sizes(), sizes) == x.sizes();
  check<ShapeError>(fits, "sum_to", "{} cannot be summed to {}", x, sizes);
  Shape dims;
  for (size_t d = 0; d < x.sizes().size(); ++d)
    if (d < missing || (sizes[d - missing] == 1 && x.sizes()[d] != 1)) dims.push_back(static_cast<int64_t>(d));
  return named("sum_to", [&] {
    Tensor result = dims.empty() ? x : sum(x, dims, true);
    return missing ? view(result.contiguous(), sizes) : result;
  });
}

}  // namespace tutti
