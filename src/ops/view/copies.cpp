// Shape operators that rearrange or repeat elements and so must copy; and the view of bytes as another dtype.
#include <algorithm>

#include "base/check.h"
#include "base/parallel.h"
#include "base/stream.h"
#include "ops/view/box.h"
#include "tensor/defined.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

struct Dims {
  Shape dims;
  TUTTI_FIELDS(dims)
};
struct Shifts {
  Shape shifts, dims;  // each dim once, shifts within [0, size)
  TUTTI_FIELDS(shifts, dims)
};
struct Repeats {
  Shape repeats;
  TUTTI_FIELDS(repeats)
};
struct RepeatAlong {
  int64_t dim, repeats;
  TUTTI_FIELDS(dim, repeats)
};
struct Target {
  DType dtype;
  TUTTI_FIELDS(dtype)
};

constexpr int64_t kShortRow = 65536;  // bytes

void check_strided(const Tensor& x, const char* name) {
  check<ValueError>(x.layout() == Layout::strided, name, "{} is sparse; to_dense() it first", x);
}

// A size, and how often it is to be there, which may be any number.
int64_t times(int64_t size, int64_t count, const char* name) {
  int64_t product = 0;
  check<ShapeError>(!__builtin_mul_overflow(size, count, &product), name, "{} times {} elements are too many", count,
                    size);
  return product;
}

// The result of an operator that keeps shape and dtype.
void infer_same(const Call& c, std::span<TensorSpec> out) {
  check_strided(c.input(0), c.op.name);
  out[0] = {.sizes = c.input(0).sizes(), .dtype = c.input(0).dtype(), .device = c.input(0).device()};
}

// The same, and in the memory order of the input where that is dense: channels-last stays channels-last.
void infer_like(const Call& c, std::span<TensorSpec> out) {
  infer_same(c, out);
  const Tensor& x = c.input(0);
  if (x.is_contiguous() || !is_dense(x.sizes(), x.strides())) return;
  out[0].strides = x.strides();
  out[0].strided = true;
}

// A box that copies all of x into a tensor of the same shape.
BoxDims whole(const Tensor& to, const Tensor& from) {
  BoxDims dims;
  for (size_t d = 0; d < to.sizes().size(); ++d) dims.push_back({from.sizes()[d], to.strides()[d], from.strides()[d]});
  return dims;
}

// ---- flip

const Operator flip_op{
    .name = "flip",
    .infer = infer_like,
    .cpu =
        [](const Call& c) {
          const Tensor &x = c.input(0), &out = c.output();
          if (x.numel() == 0) return;
          BoxDims dims = whole(out, x);
          int64_t start = 0;
          for (int64_t d : c.as<Dims>().dims) {
            start += (x.size(d) - 1) * x.stride(d);
            dims[position(d)].from = -x.stride(d);
          }
          size_t element = x.element_size();
          move_box(bytes_of(out), bytes_of(x) + start * static_cast<int64_t>(element), element, std::move(dims));
        },
    .gradient = [](GradientCall& c) { c.set(0, flip(c.grad(), c.as<Dims>().dims)); },
};

// ---- roll

// Along each rolled dim the tensor is cut in two and the parts change places: 2^dims boxes.
void roll_from(const Call& c, size_t which, const BoxDims& dims, int64_t to, int64_t from) {
  const auto& a = c.as<Shifts>();
  const Tensor &x = c.input(0), &out = c.output();
  BoxDims part;
  for (auto& d : dims) part.push_back(d);
  if (which == a.dims.size()) {
    auto element = static_cast<int64_t>(x.element_size());
    move_box(bytes_of(out) + to * element, bytes_of(x) + from * element, x.element_size(), std::move(part));
    return;
  }
  int64_t dim = a.dims[which], shift = a.shifts[which], size = x.size(dim);
  part[position(dim)].size = size - shift;
  roll_from(c, which + 1, part, to + shift * out.stride(dim), from);
  part[position(dim)].size = shift;
  roll_from(c, which + 1, part, to, from + (size - shift) * x.stride(dim));
}

// Short rows, from the last rolled dim on, are written as a whole, both of their parts, each where it belongs: boxes of
// all first parts and then of all second ones would go through the memory twice, by pieces of cache lines.
bool roll_rows(const Call& c) {
  const auto& a = c.as<Shifts>();
  const Tensor &x = c.input(0), &out = c.output();
  if (a.dims.empty() || !x.is_contiguous() || !out.is_contiguous()) return false;
  size_t last = position(a.dims.back());
  auto inner = static_cast<int64_t>(x.element_size());
  for (size_t d = last + 1; d < x.sizes().size(); ++d) inner *= x.sizes()[d];
  int64_t row = inner * x.sizes()[last], cut = inner * a.shifts.back(), rows = 1;
  if (row > kShortRow) return false;
  Shape shifts = Shape::filled(last, 0);
  for (size_t i = 0; i + 1 < a.dims.size(); ++i) shifts[position(a.dims[i])] = a.shifts[i];
  for (size_t d = 0; d < last; ++d) rows *= x.sizes()[d];
  const std::byte* from = bytes_of(x);
  std::byte* to = bytes_of(out);
  parallel_for(rows, std::max<int64_t>(1, kShortRow / row), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t rest = i, source = 0, step = 1;
      for (size_t d = last; d-- > 0; rest /= x.sizes()[d], step *= x.sizes()[d])
        source += (rest % x.sizes()[d] + x.sizes()[d] - shifts[d]) % x.sizes()[d] * step;
      shifted_copy(to + i * row, from + source * row + row - cut, static_cast<size_t>(cut));
      shifted_copy(to + i * row + cut, from + source * row, static_cast<size_t>(row - cut));
    }
  });
  return true;
}

const Operator roll_op{
    .name = "roll",
    .infer = infer_like,
    .cpu =
        [](const Call& c) {
          if (c.input(0).numel() > 0 && !roll_rows(c)) roll_from(c, 0, whole(c.output(), c.input(0)), 0, 0);
        },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Shifts>();
          Shape back = a.shifts;
          for (auto& s : back) s = -s;
          c.set(0, a.dims.empty() ? c.grad() : roll(c.grad(), back, a.dims));
        },
};

// ---- repeat

const Operator repeat_op{
    .name = "repeat",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          infer_same(c, out);
          const Shape &repeats = c.as<Repeats>().repeats, &sizes = c.input(0).sizes();
          size_t fresh = repeats.size() - sizes.size();
          out[0].sizes = repeats;
          for (size_t d = 0; d < sizes.size(); ++d)
            out[0].sizes[d + fresh] = times(sizes[d], repeats[d + fresh], "repeat");
          check_sizes(out[0].sizes, "repeat");
        },
    .cpu =
        [](const Call& c) {
          const Tensor &x = c.input(0), &out = c.output();
          const Shape& repeats = c.as<Repeats>().repeats;
          size_t fresh = repeats.size() - x.sizes().size();
          BoxDims dims;
          for (size_t d = 0; d < repeats.size(); ++d) {
            int64_t size = d < fresh ? 1 : x.sizes()[d - fresh], stride = d < fresh ? 0 : x.strides()[d - fresh];
            dims.push_back({repeats[d], out.strides()[d] * size, 0});
            dims.push_back({size, out.strides()[d], stride});
          }
          move_box(bytes_of(out), bytes_of(x), x.element_size(), std::move(dims));
        },
    .gradient =
        [](GradientCall& c) {
          // [r·s, ...] seen as [r, s, ...], then summed over the repeats.
          const Shape &repeats = c.as<Repeats>().repeats, &sizes = c.input_sizes(0);
          size_t fresh = repeats.size() - sizes.size();
          Shape split, over;
          for (size_t d = 0; d < repeats.size(); ++d) {
            over.push_back(static_cast<int64_t>(split.size()));
            split.push_back(repeats[d]);
            if (d >= fresh) split.push_back(sizes[d - fresh]);
          }
          c.set(0, over.empty() ? c.grad() : sum(reshape(c.grad(), split), over));
        },
};

const Operator repeat_interleave_op{
    .name = "repeat_interleave",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          infer_same(c, out);
          const auto& a = c.as<RepeatAlong>();
          int64_t& size = out[0].sizes[position(a.dim)];
          size = times(size, a.repeats, "repeat_interleave");
          check_sizes(out[0].sizes, "repeat_interleave");
        },
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<RepeatAlong>();
          const Tensor &x = c.input(0), &out = c.output();
          BoxDims dims = whole(out, x);
          dims[position(a.dim)].to *= a.repeats;
          dims.push_back({a.repeats, out.stride(a.dim), 0});
          move_box(bytes_of(out), bytes_of(x), x.element_size(), std::move(dims));
        },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<RepeatAlong>();
          Shape split = c.input_sizes(0);
          split.insert(position(a.dim) + 1, a.repeats);
          c.set(0, sum(reshape(c.grad(), split), a.dim + 1));
        },
};

// ---- view_dtype

const Operator view_dtype_op{
    .name = "view_dtype",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor& x = c.input(0);
          DType dtype = c.as<Target>().dtype;
          auto was = static_cast<int64_t>(x.element_size()), is = static_cast<int64_t>(size_of(dtype));
          out[0] = {.sizes = x.sizes(),
                    .strides = x.strides(),
                    .offset = x.storage_offset(),
                    .dtype = dtype,
                    .device = x.device(),
                    .strided = true};
          if (was == is) return;
          check<ShapeError>(x.dim() > 0, "view_dtype", "{} is zero-dimensional and has no last dim to divide into {}",
                            x, dtype);
          check<ShapeError>(
              x.stride(-1) == 1 || x.size(-1) <= 1, "view_dtype",
              "the last dim of {} has stride {}, not 1: its elements cannot be seen as {}; use contiguous() first", x,
              x.stride(-1), dtype);
          size_t last = x.sizes().size() - 1;
          auto rescale = [&](int64_t v, const char* what) {
            check<ShapeError>(v * was % is == 0, "view_dtype",
                              "{}: the {} {} is not a whole number of {} elements ({} bytes)", x, what, v, dtype, is);
            return v * was / is;
          };
          out[0].sizes[last] = rescale(x.size(-1), "size of the last dim");
          check_sizes(out[0].sizes, "view_dtype");
          out[0].offset = rescale(x.storage_offset(), "storage offset");
          for (size_t d = 0; d < last; ++d)
            if (x.sizes()[d] > 1) out[0].strides[d] = rescale(x.strides()[d], "stride");
          out[0].strides[last] = 1;
        },
    .view_of = 0,
};

Shape wrap_dims(const Shape& dims, const Tensor& x, const char* name) {
  Shape wrapped, seen = Shape::filled(std::max<size_t>(x.sizes().size(), 1), 0);
  for (int64_t d : dims) {
    int64_t w = wrap_dim(d, x, name);
    check<ValueError>(seen[position(w)]++ == 0, name, "dim {} of {} is given twice: {}", d, x, dims);
    if (x.dim() > 0) wrapped.push_back(w);
  }
  return wrapped;
}

}  // namespace

Tensor flip(const Tensor& x, const Shape& dims) {
  check_defined(x, "flip");
  Dims a{wrap_dims(dims, x, "flip")};
  if (dims.empty())
    for (int64_t d = 0; d < x.dim(); ++d) a.dims.push_back(d);
  return call(flip_op, {&x}, attributes(a));
}

Tensor roll(const Tensor& x, const Shape& shifts, const Shape& dims) {
  check_defined(x, "roll");
  check_strided(x, "roll");
  if (dims.empty()) {
    check<ValueError>(shifts.size() == 1, "roll", "without dims there must be one shift, not {}", shifts);
    return x.dim() == 1 ? roll(x, shifts, 0) : reshape(roll(reshape(x, {-1}), shifts, 0), x.sizes());
  }
  check<ValueError>(shifts.size() == dims.size(), "roll", "{} shifts were given for {} dims: {} and {}", shifts.size(),
                    dims.size(), shifts, dims);
  Shape total = Shape::filled(std::max<size_t>(x.sizes().size(), 1), 0);
  for (size_t i = 0; i < dims.size(); ++i) {
    int64_t d = wrap_dim(dims[i], x, "roll"), size = x.dim() == 0 ? 1 : x.size(d);
    if (size == 0) continue;
    // Both within (-size, size), so that the sum cannot overflow.
    total[position(d)] = (total[position(d)] + shifts[i] % size + size) % size;
  }
  Shifts a;
  for (size_t d = 0; d < total.size(); ++d) {
    if (total[d] == 0) continue;
    a.shifts.push_back(total[d]);
    a.dims.push_back(static_cast<int64_t>(d));
  }
  return call(roll_op, {&x}, attributes(a));
}

Tensor repeat(const Tensor& x, const Shape& repeats) {
  check_defined(x, "repeat");
  check<ShapeError>(repeats.size() >= x.sizes().size(), "repeat", "{} has {} dims, but only {} repeats were given: {}",
                    x, x.dim(), repeats.size(), repeats);
  for (int64_t r : repeats) check<ValueError>(r >= 0, "repeat", "repeats must not be negative: {}", repeats);
  Repeats a{repeats};
  return call(repeat_op, {&x}, attributes(a));
}

Tensor repeat_interleave(const Tensor& x, int64_t repeats, int64_t dim) {
  check_defined(x, "repeat_interleave");
  check<ValueError>(repeats >= 0, "repeat_interleave", "repeats must not be negative: {}", repeats);
  if (x.dim() == 0) return repeat_interleave(view(x, {1}), repeats, dim);
  RepeatAlong a{wrap_dim(dim, x, "repeat_interleave"), repeats};
  return call(repeat_interleave_op, {&x}, attributes(a));
}

Tensor view_dtype(const Tensor& x, DType dtype) {
  check_defined(x, "view_dtype");
  check_strided(x, "view_dtype");
  if (x.dtype() == dtype) return x;
  check<DTypeError>(dtype != DType::boolean, "view_dtype",
                    "the bytes of {} may hold more than the 0 and 1 that bool allows; use x != 0", x);
  Target a{dtype};
  return call(view_dtype_op, {&x}, attributes(a));
}

}  // namespace tutti
