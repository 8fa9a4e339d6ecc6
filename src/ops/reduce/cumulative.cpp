// cumsum and cumprod, in either direction, and the linear recurrence that their derivatives of any order lead to.
#include "ops/reduce/cumulative.h"

#include <algorithm>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/reduce/reduce.h"
#include "tensor/call.h"
#include "tensor/impl.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

using namespace reduction;

struct Along {
  int64_t dim;
  bool reverse;
  TUTTI_FIELDS(dim, reverse)
};
struct Recurrence {
  int64_t dim;
  bool reverse;
  bool source;  // each y is multiplied by the factor at its own place, not at that of the next
  TUTTI_FIELDS(dim, reverse, source)
};

// Splits a contiguous tensor into groups of sequences along dim; calls body(offset of the first, group).
template <class Body>
void for_each_group(const Shape& sizes, int64_t dim, bool reverse, Body&& body) {
  int64_t outer = 1, length = 1, inner = 1;
  for (size_t d = 0; d < sizes.size(); ++d)
    (static_cast<int64_t>(d) < dim ? outer : static_cast<int64_t>(d) == dim ? length : inner) *= sizes[d];
  if (outer * length * inner == 0) return;
  // Side by side in memory where there are inner dims; otherwise a few at a time, so that their sums overlap.
  bool rows = inner == 1;
  int64_t across = rows ? outer : inner, width = rows ? kRowSequences : kMaxSequences,
          groups = (across + width - 1) / width;
  int64_t units = rows ? groups : outer * groups;
  parallel_for(units, std::max<int64_t>(1, 32768 / (length * std::min(width, across))),
               [&](int64_t begin, int64_t end) {
                 for (int64_t unit = begin; unit < end; ++unit) {
                   int64_t first = unit % groups * width, count = std::min(width, across - first);
                   Sequences s{length, inner, count, rows ? length : 1, reverse};
                   body(rows ? first * length : unit / groups * length * inner + first, s);
                 }
               });
}

std::byte* bytes_at(const Tensor& x, int64_t offset) {
  return impl(x)->data() + offset * static_cast<int64_t>(x.element_size());
}

// The input as kernels read it: contiguous, in the dtype that they compute in.
Tensor prepare(const Tensor& x, DType computing) {
  NoGrad no_grad;
  return contiguous(x.dtype() == computing ? x : cast(x, computing));
}

// Runs body(y), with y the output or, where its dtype is another, something to be copied there.
template <class Body>
void with_output(const Tensor& out, DType computing, Body&& body) {
  Tensor y = out.dtype() == computing ? out : make_tensor(out.sizes(), computing, out.device());
  body(y);
  if (!y.is_same(out)) copy_into(out, y);
}

void infer_cumulative(const Call& c, std::span<TensorSpec> out) {
  const Tensor& x = c.input(0);
  out[0] = {.sizes = x.sizes(),
            .dtype = category(x.dtype()) < Category::floating ? DType::i64 : x.dtype(),
            .device = x.device()};
}

template <Running running>
void run_along(const Call& c) {
  const auto& a = c.as<Along>();
  DType computing = computing_dtype(c.output().dtype());
  Tensor x = prepare(c.input(0), computing);
  with_output(c.output(), computing, [&](Tensor& y) {
    for_each_group(x.sizes(), a.dim, a.reverse, [&](int64_t at, const Sequences& s) {
      run_cumulative_pointer()(running, computing, bytes_at(x, at), bytes_at(y, at), s);
    });
  });
}

Tensor conjugate(const Tensor& x) { return x.is_complex() ? conj(x) : x; }

// Each place gets what is before it along dim (behind it, if reverse); the first gets `fill`.
Tensor shift(const Tensor& x, int64_t dim, bool reverse, double fill) {
  if (x.numel() == 0) return x;
  int64_t rest = x.size(dim) - 1;
  Tensor first = full_like(narrow(x, dim, 0, 1), fill);
  return reverse ? cat({narrow(x, dim, 1, rest), first}, dim) : cat({first, narrow(x, dim, 0, rest)}, dim);
}

const Operator cumsum_op{
    .name = "cumsum",
    .infer = infer_cumulative,
    .cpu = run_along<Running::sum>,
    .gradient =
        [](GradientCall& c) {
          Along a = c.as<Along>();
          a.reverse = !a.reverse;
          Tensor g = c.grad();
          c.set(0, call(cumsum_op, {&g}, attributes(a)));
        },
    .in_place = 1,
    .autocast = AutocastPolicy::full_precision,
};

// y[k] = b[k] + a·y[the one before]. With λ the same recurrence of the gradient in the other direction, λ is b's
// gradient, and a's is λ times the y that a multiplied: so derivatives of any order stay among recurrences, and nothing
// is divided.
const Operator recurrence_op{
    .name = "linear_recurrence",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor& a = c.input(0);
          out[0] = {.sizes = a.sizes(), .dtype = promote(a.dtype(), c.input(1).dtype()), .device = a.device()};
        },
    .cpu =
        [](const Call& c) {
          const auto& r = c.as<Recurrence>();
          DType computing = computing_dtype(c.output().dtype());
          Tensor a = prepare(c.input(0), computing), b = prepare(c.input(1), computing);
          with_output(c.output(), computing, [&](Tensor& y) {
            for_each_group(a.sizes(), r.dim, r.reverse, [&](int64_t at, const Sequences& s) {
              run_recurrence_pointer()(computing, bytes_at(a, at), bytes_at(b, at), bytes_at(y, at), s, r.source);
            });
          });
        },
    .gradient =
        [](GradientCall& c) {
          auto r = c.as<Recurrence>();
          Recurrence back{r.dim, !r.reverse, !r.source};
          Tensor factor = conjugate(c.input(0)), g = c.grad(), y = conjugate(c.output());
          Tensor lambda = call(recurrence_op, {&factor, &g}, attributes(back));
          if (c.needs(0))
            c.set(0, r.source ? shift(lambda, r.dim, !r.reverse, 0) * y : lambda * shift(y, r.dim, r.reverse, 0));
          c.set(1, lambda);
        },
    .saves_inputs = 1,
    .saves_outputs = 1,
};

// The gradient of x[k] is what comes before it, times the sum over all that follow of their gradients, each times what
// lies between.
const Operator cumprod_op{
    .name = "cumprod",
    .infer = infer_cumulative,
    .cpu = run_along<Running::prod>,
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Along>();
          Recurrence r{a.dim, !a.reverse, true};
          Tensor factor = conjugate(c.input(0)), g = c.grad();
          Tensor rest = call(recurrence_op, {&factor, &g}, attributes(r));
          c.set(0, conjugate(shift(c.output(), a.dim, a.reverse, 1)) * rest);
        },
    .saves_inputs = 1,
    .saves_outputs = 1,
    .in_place = 1,
    .autocast = AutocastPolicy::full_precision,
};

Tensor& cumulate(const Operator& op, Tensor& out, const Tensor& x, int64_t dim, bool reverse = false) {
  check_strided(x, op.name);
  Along a{wrap_dim(dim, x, op.name), reverse};
  if (x.dim() > 0) return call_out(op, {&x}, out, attributes(a));
  Tensor row = reshape(x, {1});
  return write_out(out, reshape(call(op, {&row}, attributes(a)), {}), op.name);
}

}  // namespace

Tensor reduction::exclusive_cumprod(const Tensor& x, int64_t dim, bool reverse) {
  Tensor product;
  return shift(cumulate(cumprod_op, product, x, dim, reverse), dim, reverse, 1);
}

Tensor cumsum(const Tensor& x, int64_t dim, std::optional<DType> dtype) {
  Tensor out;
  return cumsum_out(out, cast_first(x, dtype, "cumsum"), dim);
}
Tensor& cumsum_(Tensor& x, int64_t dim) { return cumsum_out(x, x, dim); }
Tensor& cumsum_out(Tensor& out, const Tensor& x, int64_t dim) { return cumulate(cumsum_op, out, x, dim); }
Tensor cumprod(const Tensor& x, int64_t dim, std::optional<DType> dtype) {
  Tensor out;
  return cumprod_out(out, cast_first(x, dtype, "cumprod"), dim);
}
Tensor& cumprod_(Tensor& x, int64_t dim) { return cumprod_out(x, x, dim); }
Tensor& cumprod_out(Tensor& out, const Tensor& x, int64_t dim) { return cumulate(cumprod_op, out, x, dim); }

}  // namespace tutti
