// pad: more (or, by negative pads, fewer) elements at the ends of dims.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/view/box.h"
#include "tensor/convert.h"
#include "tensor/defined.h"
#include "tensor/impl.h"
#include "tensor/number.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

struct Pads {
  Shape before, after;  // by dim, from the first
  PadMode mode;
  double value;
  TUTTI_FIELDS(before, after, mode, value)
};

void infer_pad(const Call& c, std::span<TensorSpec> out) {
  const auto& a = c.as<Pads>();
  const Tensor& x = c.input(0);
  check<ValueError>(x.layout() == Layout::strided, "pad", "{} is sparse; to_dense() it first", x);
  out[0] = {.sizes = x.sizes(), .dtype = x.dtype(), .device = x.device()};
  for (size_t d = 0; d < a.before.size(); ++d) out[0].sizes[d] += a.before[d] + a.after[d];
  if (x.is_contiguous(MemoryFormat::channels_last) && !x.is_contiguous()) {
    out[0].strides = channels_last_strides(out[0].sizes);
    out[0].strided = true;
  }
}

// ---- With a constant

// What the input and the output have in common, along dim d: [start, start + length) of the output.
struct Common {
  int64_t start, length, from;
};
Common common_part(const Pads& a, const Tensor& x, const Tensor& out, size_t d) {
  int64_t start = std::clamp<int64_t>(a.before[d], 0, out.sizes()[d]);
  int64_t from = std::max<int64_t>(-a.before[d], 0);
  int64_t length = std::min(x.sizes()[d] - from, out.sizes()[d] - start);
  return {start, std::max<int64_t>(length, 0), from};
}

void pad_constant(const Call& c) {
  const auto& a = c.as<Pads>();
  const Tensor &x = c.input(0), &out = c.output();
  size_t n = x.sizes().size(), element = x.element_size();
  alignas(16) std::byte value[16];
  converter(x.dtype(), DType::f64)(value, 1, &a.value, 1, 1);

  SmallVector<Common, 8> part;
  for (size_t d = 0; d < n; ++d) part.push_back(common_part(a, x, out, d));
  // The border: for each dim a slab before and one after, inside of the common part of the dims in front of it.
  auto slab = [&](size_t dim, int64_t start, int64_t length) {
    BoxDims dims;
    int64_t offset = start * out.strides()[dim];
    for (size_t d = 0; d < n; ++d) {
      if (d < dim) offset += part[d].start * out.strides()[d];
      dims.push_back({d < dim ? part[d].length : d == dim ? length : out.sizes()[d], out.strides()[d], 0});
    }
    move_box(bytes_of(out) + offset * static_cast<int64_t>(element), value, element, std::move(dims));
  };
  BoxDims inside;
  int64_t to = 0, from = 0;
  for (size_t d = 0; d < n; ++d) {
    slab(d, 0, part[d].start);
    slab(d, part[d].start + part[d].length, out.sizes()[d] - part[d].start - part[d].length);
    inside.push_back({part[d].length, out.strides()[d], x.strides()[d]});
    to += part[d].start * out.strides()[d];
    from += part[d].from * x.strides()[d];
  }
  auto bytes = static_cast<int64_t>(element);
  if (x.numel() > 0 && out.numel() > 0)
    move_box(bytes_of(out) + to * bytes, bytes_of(x) + from * bytes, element, std::move(inside));
}

// ---- With elements of the input

// Which element of a dim of `size` stands at i of the padded dim.
int64_t source_of(int64_t i, int64_t size, PadMode mode) {
  if (mode == PadMode::replicate) return std::clamp<int64_t>(i, 0, size - 1);
  if (mode == PadMode::circular) return i < 0 ? i + size : i >= size ? i - size : i;
  return i < 0 ? -i : i >= size ? 2 * (size - 1) - i : i;
}

std::vector<int64_t> sources(const Pads& a, size_t d, int64_t size) {
  std::vector<int64_t> table(static_cast<size_t>(size + a.before[d] + a.after[d]));
  for (size_t i = 0; i < table.size(); ++i) table[i] = source_of(static_cast<int64_t>(i) - a.before[d], size, a.mode);
  return table;
}

struct PaddedDim {
  int64_t size, to;           // of the output, and its stride
  std::vector<int64_t> from;  // offset in the input by index
};

template <class B>
void pad_row(B* to, const B* from, const PaddedDim& dim, int64_t copied, int64_t copied_end) {
  for (int64_t i = 0; i < copied; ++i) to[i * dim.to] = from[dim.from[static_cast<size_t>(i)]];
  if (copied < copied_end)
    std::memcpy(to + copied, from + dim.from[static_cast<size_t>(copied)],
                static_cast<size_t>(copied_end - copied) * sizeof(B));
  for (int64_t i = copied_end; i < dim.size; ++i) to[i * dim.to] = from[dim.from[static_cast<size_t>(i)]];
}

void pad_repeating(const Call& c) {
  const auto& a = c.as<Pads>();
  const Tensor &x = c.input(0), &out = c.output();
  if (out.numel() == 0) return;
  std::vector<size_t> order;
  for (size_t d = 0; d < out.sizes().size(); ++d) order.push_back(d);
  std::stable_sort(order.begin(), order.end(), [&](size_t p, size_t q) { return out.strides()[p] > out.strides()[q]; });
  std::vector<PaddedDim> dims;
  for (size_t d : order) {
    dims.push_back({out.sizes()[d], out.strides()[d], sources(a, d, x.sizes()[d])});
    for (auto& offset : dims.back().from) offset *= x.strides()[d];
  }
  if (dims.empty()) dims.push_back({1, 1, {0}});
  // Of each row, what lies in one piece in the input is copied as one piece.
  PaddedDim run = std::move(dims.back());
  dims.pop_back();
  int64_t copied = 0, copied_end = 0;
  if (!order.empty() && run.to == 1 && x.strides()[order.back()] == 1) {
    Common middle = common_part(a, x, out, order.back());
    copied = middle.start;
    copied_end = middle.start + middle.length;
  }
  int64_t rows = out.numel() / run.size;
  with_bytes(x.element_size(), [&]<class B>() {
    auto* to = reinterpret_cast<B*>(bytes_of(out));
    const auto* from = reinterpret_cast<const B*>(bytes_of(x));
    parallel_for(rows, std::max<int64_t>(1, kBoxGrain / run.size), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        int64_t rest = row, to_at = 0, from_at = 0;
        for (size_t d = dims.size(); d-- > 0;) {
          int64_t i = rest % dims[d].size;
          rest /= dims[d].size;
          to_at += i * dims[d].to;
          from_at += dims[d].from[static_cast<size_t>(i)];
        }
        pad_row(to + to_at, from + from_at, run, copied, copied_end);
      }
    });
  });
}

// pads for the public function, from the last dim on, with the sign changed or not.
Shape reversed(const Pads& a, int64_t sign) {
  Shape pads;
  for (size_t d = a.before.size(); d-- > 0;) {
    pads.push_back(sign * a.before[d]);
    pads.push_back(sign * a.after[d]);
  }
  return pads;
}

void pad_gradient(GradientCall& c) {
  const auto& a = c.as<Pads>();
  if (a.mode == PadMode::constant) {
    c.set(0, pad(c.grad(), reversed(a, -1)));
    return;
  }
  // Each dim is padded for itself, so the gradient can be gathered dim by dim.
  Tensor g = c.grad();
  bool last = !g.is_contiguous() && g.is_contiguous(MemoryFormat::channels_last);
  for (size_t d = 0; d < a.before.size(); ++d) {
    if (a.before[d] == 0 && a.after[d] == 0) continue;
    Shape sizes = g.sizes();
    sizes[d] = c.input_sizes(0)[d];
    Tensor from = tensor(sources(a, d, sizes[d]), {.device = g.device()});
    Tensor folded = zeros(sizes, {.dtype = g.dtype(), .device = g.device()});
    if (last) folded = folded.contiguous(MemoryFormat::channels_last);
    g = index_add_(folded, static_cast<int64_t>(d), from, g);
  }
  c.set(0, g);
}

const Operator pad_op{
    .name = "pad",
    .infer = infer_pad,
    .cpu = [](const Call& c) { c.as<Pads>().mode == PadMode::constant ? pad_constant(c) : pad_repeating(c); },
    .gradient = pad_gradient,
};

const char* mode_name(PadMode mode) {
  constexpr const char* names[] = {"constant", "reflect", "replicate", "circular"};
  return names[static_cast<int>(mode)];
}

void check_reach(const Tensor& x, size_t d, int64_t pad, PadMode mode) {
  if (pad <= 0 || mode == PadMode::constant) return;
  int64_t size = x.sizes()[d], most = mode == PadMode::reflect ? size - 1 : size;
  check<ValueError>(
      size > 0 && (mode == PadMode::replicate || pad <= most), "pad",
      "{} padding of {} at dim {} of {} needs more elements than the {} there are: at most {} can be added",
      mode_name(mode), pad, d, x, size, mode == PadMode::replicate ? 0 : std::max<int64_t>(most, 0));
}

}  // namespace

Tensor pad(const Tensor& x, const Shape& pads, PadMode mode, double value) {
  check_defined(x, "pad");
  size_t n = x.sizes().size();
  check<ValueError>(pads.size() % 2 == 0 && pads.size() <= 2 * n, "pad",
                    "{} has {} dims, so pads are up to {} numbers, two a dim from the last on, not {}", x, n, 2 * n,
                    pads);
  if (mode == PadMode::constant) check_fits(&value, 1, DType::f64, x.dtype(), "pad");
  Pads a{Shape::filled(n, 0), Shape::filled(n, 0), mode, value};
  for (size_t i = 0; i < pads.size() / 2; ++i) {
    size_t d = n - 1 - i;
    a.before[d] = pads[2 * i];
    a.after[d] = pads[2 * i + 1];
    for (int64_t p : {a.before[d], a.after[d]})
      check<ShapeError>(p < kMostElements && p > -kMostElements, "pad", "{} elements at dim {} of {} are too many", p,
                        d, x);
    int64_t size = x.sizes()[d] + a.before[d] + a.after[d];
    check<ShapeError>(size >= 0, "pad", "pads {} and {} leave dim {} of {} with a negative size", a.before[d],
                      a.after[d], d, x);
    check_reach(x, d, a.before[d], mode);
    check_reach(x, d, a.after[d], mode);
  }
  return call(pad_op, {&x}, attributes(a));
}

}  // namespace tutti
