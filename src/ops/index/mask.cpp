// Masks and what they select: nonzero, masked_select, masked_fill.
#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/index/indices.h"
#include "ops/reduce/reduce.h"
#include "pointwise/renamed.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

constexpr int64_t kPiece = 32768;  // elements of a mask that one thread looks at

struct Sizes {
  Shape sizes;
  TUTTI_FIELDS(sizes)
};

Shape common_shape(const Tensor& x, const Tensor& mask, const char* name) {
  check<DTypeError>(mask.dtype() == DType::boolean, name, "the mask must be bool, not {}", mask);
  try {
    return broadcast_shapes(x.sizes(), mask.sizes());
  } catch (const ShapeError&) {
    fail<ShapeError>(name, "the mask {} and {} do not broadcast", mask, x);
  }
}

int64_t count_true(const bool* mask, int64_t begin, int64_t end) {
  int64_t n = 0;
  for (int64_t i = begin; i < end; ++i) n += mask[i];
  return n;
}

// The places where a contiguous mask holds, in order, as i64 [n].
Tensor true_places(const Tensor& mask) {
  const bool* m = mask.data<bool>();
  int64_t total = mask.numel();
  std::vector<int64_t> starts(static_cast<size_t>((total + kPiece - 1) / kPiece) + 1);
  parallel_for(total, kPiece, [&](int64_t begin, int64_t end) {
    starts[static_cast<size_t>(begin / kPiece) + 1] = count_true(m, begin, end);
  });
  for (size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
  Tensor places = make_tensor({starts.back()}, DType::i64, mask.device());
  auto* to = places.data<int64_t>();
  parallel_for(total, kPiece, [&](int64_t begin, int64_t end) {
    auto piece = static_cast<size_t>(begin / kPiece);
    int64_t* next = to + starts[piece];
    // Without a branch as long as a place too many still lies inside of this piece's part.
    int64_t left = starts[piece + 1] - starts[piece], i = begin;
    for (; left > 0 && i < end; ++i) {
      *next = i;
      next += m[i];
      left -= m[i];
    }
  });
  return places;
}

// ---- nonzero

// From places to coordinates. They ascend, so that most lie in the same row as the one before.
void write_coordinates(const Shape& sizes, const int64_t* places, int64_t begin, int64_t end, int64_t* out) {
  size_t dims = sizes.size();
  int64_t inner = sizes[dims - 1], row_start = 0, row_end = 0;
  Shape at = Shape::filled(dims, 0);
  for (int64_t k = begin; k < end; ++k) {
    int64_t place = places[k];
    if (place >= row_end) {
      int64_t rest = place / inner;
      row_start = rest * inner;
      row_end = row_start + inner;
      for (size_t d = dims - 1; d-- > 0; rest /= sizes[d]) at[d] = rest % sizes[d];
    }
    int64_t* to = out + k * static_cast<int64_t>(dims);
    for (size_t d = 0; d + 1 < dims; ++d) to[d] = at[d];
    to[dims - 1] = place - row_start;
  }
}

const Operator nonzero_op{
    .name = "nonzero",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          check_together(c.inputs, "nonzero");
          out[0] = {.sizes = {0, c.input(0).dim()}, .dtype = DType::i64, .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          const Tensor& x = c.input(0);
          Tensor places = true_places(cast(x.detach(), DType::boolean).contiguous());
          int64_t n = places.numel(), dims = x.dim();
          c.output() = make_tensor({n, dims}, DType::i64, x.device());
          if (dims == 0 || n == 0) return;
          auto* to = c.output().data<int64_t>();
          const auto* from = places.data<int64_t>();
          parallel_for(n, kPiece,
                       [&](int64_t begin, int64_t end) { write_coordinates(x.sizes(), from, begin, end, to); });
        },
    .dynamic_shape = true,
};

// ---- masked_select and its counterpart, which puts values where a mask holds and zeros elsewhere

RowPlan plan_flat(const Tensor& places) {
  RowPlan plan;
  plan.at = places.data<int64_t>();
  plan.count = places.numel();
  return plan;
}

const Operator& masked_place_operator();

const Operator masked_select_op{
    .name = "masked_select",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          check_together(c.inputs, "masked_select");
          common_shape(c.input(0), c.input(1), "masked_select");
          out[0] = {.sizes = {0}, .dtype = c.input(0).dtype(), .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          Shape sizes = common_shape(c.input(0), c.input(1), "masked_select");
          Tensor x = expand(c.input(0).detach(), sizes).contiguous();
          Tensor places = true_places(expand(c.input(1).detach(), sizes).contiguous());
          c.output() = make_tensor(places.sizes(), x.dtype(), x.device());
          take_rows(plan_flat(places), bytes_of(c.output()), bytes_of(x), x.element_size());
        },
    .gradient =
        [](GradientCall& c) {
          Tensor g = c.grad(), mask = c.input(1);
          Sizes a{broadcast_shapes(c.input_sizes(0), mask.sizes())};
          c.set(0, call(masked_place_operator(), {&g, &mask}, attributes(a)));
        },
    .saves_inputs = 0b10,
    .dynamic_shape = true,
};

const Operator masked_place_op{
    .name = "masked_place",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          check_together(c.inputs, "masked_place");
          out[0] = {.sizes = c.as<Sizes>().sizes, .dtype = c.input(0).dtype(), .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          const Tensor& out = c.output();
          Tensor values = c.input(0).detach().contiguous();
          Tensor places = true_places(expand(c.input(1).detach(), out.sizes()).contiguous());
          TUTTI_ASSERT(places.numel() == values.numel());
          c.output().zero_();
          with_bytes(out.element_size(), [&]<class B>() {
            auto* to = reinterpret_cast<B*>(bytes_of(out));
            const auto* from = reinterpret_cast<const B*>(bytes_of(values));
            const auto* at = places.data<int64_t>();
            parallel_for(places.numel(), kPiece, [&](int64_t begin, int64_t end) {
              for (int64_t k = begin; k < end; ++k) to[at[k]] = from[k];
            });
          });
        },
    .gradient = [](GradientCall& c) { c.set(0, masked_select(c.grad(), c.input(1))); },
    .saves_inputs = 0b10,
};
const Operator& masked_place_operator() { return masked_place_op; }

// The value as one of x's own kind.
Tensor fill_value(const Tensor& x, const Tensor& mask, const Tensor& value, const char* name) {
  check<DTypeError>(mask.dtype() == DType::boolean, name, "the mask must be bool, not {}", mask);
  check<ValueError>(value.defined(), name, "the value is undefined");
  check<ShapeError>(value.numel() == 1, name, "the value must be a number or a one-element tensor, not {}", value);
  common_shape(x, mask, name);
  Tensor ready = value_for(x, value, name);
  return ready.dim() == 0 ? ready : reshape(ready, {});
}

}  // namespace

Tensor nonzero(const Tensor& x) { return call(nonzero_op, {&x}); }
// How many there are is known only when they have been found.
Tensor& nonzero_out(Tensor& out, const Tensor& x) { return reduction::write_out(out, nonzero(x), "nonzero"); }

Tensor masked_select(const Tensor& x, const Tensor& mask) { return call(masked_select_op, {&x, &mask}); }
Tensor& masked_select_out(Tensor& out, const Tensor& x, const Tensor& mask) {
  return reduction::write_out(out, masked_select(x, mask), "masked_select");
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value) {
  Tensor out;
  return masked_fill_out(out, x, mask, value);
}
Tensor& masked_fill_out(Tensor& out, const Tensor& x, const Tensor& mask, const Tensor& value) {
  check_together(std::array{&x, &mask}, "masked_fill");
  static const auto op = pointwise::renamed(pointwise::where_operator(), "masked_fill");
  Tensor number = fill_value(x, mask, value, "masked_fill");
  return call_out(op, {&mask, &number, &x}, out);
}
Tensor& masked_fill_(Tensor& x, const Tensor& mask, const Tensor& value) { return x.masked_fill_(mask, value); }

Tensor& Tensor::masked_fill_(const Tensor& mask, const Tensor& value) {
  check_together(std::array<const Tensor*, 2>{this, &mask}, "masked_fill_");
  Tensor number = fill_value(*this, mask, value, "masked_fill_");
  check<ShapeError>(
      broadcast_shapes(sizes(), mask.sizes()) == sizes(), "masked_fill_",
      "the mask {} is larger than {}, which is to be filled in place; masked_fill() gives a larger result", mask,
      *this);
  static const auto op = pointwise::renamed(pointwise::where_operator(), "masked_fill_");
  return call_out(op, {&mask, &number, this}, *this);
}

}  // namespace tutti
