// Sums and what is counted rather than compared: sum, mean, prod, all, any, count_nonzero.
#include <algorithm>

#include "base/check.h"
#include "base/named.h"
#include "base/parallel.h"
#include "ops/blocked/blocked.h"
#include "ops/reduce/cumulative.h"
#include "ops/reduce/fold.h"
#include "ops/reduce/reduce.h"
#include "tensor/impl.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

using namespace reduction;

void run(const Call& c, const Request& request) {
  const Tensor& x = c.input(0);
  fold_tensor(c.output(), x, mark_dims(x.sizes().size(), c.as<Dims>().dims), request);
}

// Integers and bools add up to i64 unless another dtype is asked for.
DType sum_dtype(DType input, const std::optional<DType>& asked) {
  return asked ? *asked : category(input) < Category::floating ? DType::i64 : input;
}

void infer_sum(const Call& c, std::span<TensorSpec> out) {
  const auto& a = c.as<Dims>();
  const Tensor& x = c.input(0);
  out[0] = {.sizes = reduced_sizes(x.sizes(), a.dims, a.keepdim),
            .dtype = sum_dtype(x.dtype(), a.dtype),
            .device = x.device()};
}

template <DType result>
void infer_as(const Call& c, std::span<TensorSpec> out) {
  infer_sum(c, out);
  out[0].dtype = result;
}

// Sums of complex numbers are sums of their parts; the fold reads bools as they are.
Request sum_request(const Call& c, Finish finish = Finish::none) {
  const Tensor& x = c.input(0);
  DType computing = computing_dtype(c.output().dtype());
  auto number = static_cast<double>(reduced_count(x.sizes(), c.as<Dims>().dims));
  if (x.dtype() == DType::boolean && computing == DType::i64)
    return {.operation = Operation::count, .element = DType::boolean};
  return {.operation = Operation::sum, .element = to_real(computing), .finish = finish, .number = number};
}

Tensor spread(GradientCall& c, const Tensor& g) {
  return expand(restore_dims(g, c.input_sizes(0), c.as<Dims>().dims), c.input_sizes(0));
}

const Operator sum_op{
    .name = "sum",
    .infer = infer_sum,
    .cpu = [](const Call& c) { run(c, sum_request(c)); },
    .gradient = [](GradientCall& c) { c.set(0, spread(c, c.grad())); },
    .reduction = true,
    .autocast = AutocastPolicy::full_precision,
};

const Operator mean_op{
    .name = "mean",
    .infer = infer_sum,
    .cpu = [](const Call& c) { run(c, sum_request(c, Finish::divide)); },
    .gradient =
        [](GradientCall& c) { c.set(0, spread(c, c.grad() / reduced_count(c.input_sizes(0), c.as<Dims>().dims))); },
    .reduction = true,
    .autocast = AutocastPolicy::full_precision,
};

// Each factor's gradient is the product of all the others: of those before it and of those behind it, which is right
// whatever number of them is zero, and can be differentiated again.
void prod_gradient(GradientCall& c) {
  const Shape& dims = c.as<Dims>().dims;
  const Shape& sizes = c.input_sizes(0);
  Tensor x = c.input(0), g = restore_dims(c.grad(), sizes, dims);
  if (dims.empty()) return c.set(0, g);
  if (x.numel() == 0) return c.set(0, zeros_like(x));
  Shape order, moved, inverse = Shape::filled(sizes.size(), 0);
  for (size_t d = 0; d < sizes.size(); ++d)
    if (!mark_dims(sizes.size(), dims)[d]) order.push_back(static_cast<int64_t>(d));
  for (int64_t d : dims) order.push_back(d);
  for (size_t i = 0; i < order.size(); ++i) {
    moved.push_back(sizes[static_cast<size_t>(order[i])]);
    inverse[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  // The reduced dims as one, at the end.
  Tensor flat = reshape(permute(x, order), {-1, reduced_count(sizes, dims)});
  Tensor others = exclusive_cumprod(flat, 1, false) * exclusive_cumprod(flat, 1, true);
  others = permute(reshape(others, moved), inverse);
  c.set(0, g * (others.is_complex() ? conj(others) : others));
}

const Operator prod_op{
    .name = "prod",
    .infer = infer_sum,
    .cpu =
        [](const Call& c) {
          DType computing = computing_dtype(c.output().dtype());
          run(c, {.operation = Operation::prod, .element = computing});
        },
    .gradient = prod_gradient,
    .saves_inputs = 1,
    .reduction = true,
    .autocast = AutocastPolicy::full_precision,
};

template <Finish finish>
void run_count(const Call& c) {
  auto number = static_cast<double>(reduced_count(c.input(0).sizes(), c.as<Dims>().dims));
  run(c, {.operation = Operation::count, .element = DType::boolean, .finish = finish, .number = number});
}

const Operator all_op{
    .name = "all", .infer = infer_as<DType::boolean>, .cpu = run_count<Finish::all>, .reduction = true};
const Operator any_op{
    .name = "any", .infer = infer_as<DType::boolean>, .cpu = run_count<Finish::any>, .reduction = true};
const Operator count_nonzero_op{
    .name = "count_nonzero", .infer = infer_as<DType::i64>, .cpu = run_count<Finish::none>, .reduction = true};

// Over all but the channels of an image in blocks, as sum() does without them: each channel of an entry, then those.
const Operator blocked_sum_op{
    .name = "sum_blocked",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor& x = c.input(0);
          int64_t channels = x.size(1) * x.size(4);
          out[0] = {.sizes = c.as<Dims>().keepdim ? Shape{1, channels, 1, 1} : Shape{channels},
                    .dtype = x.dtype(),
                    .device = x.device()};
        },
    .cpu =
        [](const Call& c) {
          const Tensor& x = c.input(0);
          int64_t images = x.size(0) * x.size(1), pixels = x.size(2) * x.size(3);
          Tensor rows = make_tensor({x.size(0), x.size(1) * x.size(4)}, DType::f32, x.device());
          const auto* from = x.data<float>();
          auto* to = rows.data<float>();
          parallel_for(images, std::max<int64_t>(1, 4096 / pixels), [&](int64_t begin, int64_t end) {
            sum_blocks_pointer()(from + begin * pixels * 16, end - begin, pixels, to + begin * 16);
          });
          blocked::add_rows(rows, c.output());
        },
};

Tensor& reduce(const Operator& op, Tensor& out, const Tensor& x, const Shape& dims, bool keepdim,
               std::optional<DType> dtype = {}) {
  Dims a{normalize_dims(x, dims, op.name), keepdim, dtype};
  if (dtype && x.is_complex() && !is_complex(*dtype))
    fail<DTypeError>(op.name,
                     "{} cannot be computed in {}, which has no imaginary part; take real() or abs() of it first", x,
                     *dtype);
  return call_out(op, {&x}, out, attributes(a));
}
Tensor reduced(const Operator& op, const Tensor& x, const Shape& dims, bool keepdim, std::optional<DType> dtype = {}) {
  Tensor out;
  return reduce(op, out, x, dims, keepdim, dtype);
}

void check_mean(const Tensor& x, DType computing) {
  if (is_differentiable(computing)) return;
  check<DTypeError>(!is_differentiable(x.dtype()), "mean",
                    "{} was asked for, and the mean of {} need not be a whole number", computing, x);
  fail<DTypeError>(
      "mean", "{} holds whole numbers, and their mean need not be one: x.to(f32).mean(), or mean(x, {{}}, false, f32)",
      x);
}

}  // namespace

Tensor sum(const Tensor& x, const Shape& dims, bool keepdim, std::optional<DType> dtype) {
  return reduced(sum_op, x, dims, keepdim, dtype);
}

Tensor mean(const Tensor& x, const Shape& dims, bool keepdim, std::optional<DType> dtype) {
  check_strided(x, "mean");
  check_mean(x, dtype.value_or(x.dtype()));
  return reduced(mean_op, x, dims, keepdim, dtype);
}

Tensor& sum_out(Tensor& out, const Tensor& x, const Shape& dims, bool keepdim) {
  return reduce(sum_op, out, x, dims, keepdim);
}
Tensor& mean_out(Tensor& out, const Tensor& x, const Shape& dims, bool keepdim) {
  check_strided(x, "mean");
  check_mean(x, x.dtype());
  return reduce(mean_op, out, x, dims, keepdim);
}

Tensor trace(const Tensor& x) {
  check_strided(x, "trace");
  check<ShapeError>(x.dim() == 2, "trace", "takes a matrix, not {}", x);
  return named("trace", [&] { return sum(diagonal(x)); });
}

Tensor prod(const Tensor& x, const Shape& dims, bool keepdim, std::optional<DType> dtype) {
  return reduced(prod_op, x, dims, keepdim, dtype);
}
Tensor& prod_out(Tensor& out, const Tensor& x, const Shape& dims, bool keepdim) {
  return reduce(prod_op, out, x, dims, keepdim);
}

Tensor all(const Tensor& x, const Shape& dims, bool keepdim) { return reduced(all_op, x, dims, keepdim); }
Tensor& all_out(Tensor& out, const Tensor& x, const Shape& dims, bool keepdim) {
  return reduce(all_op, out, x, dims, keepdim);
}
Tensor any(const Tensor& x, const Shape& dims, bool keepdim) { return reduced(any_op, x, dims, keepdim); }
Tensor& any_out(Tensor& out, const Tensor& x, const Shape& dims, bool keepdim) {
  return reduce(any_op, out, x, dims, keepdim);
}
Tensor count_nonzero(const Tensor& x, const Shape& dims, bool keepdim) {
  return reduced(count_nonzero_op, x, dims, keepdim);
}

}  // namespace tutti

namespace tutti::blocked {

const Operator& sum() { return blocked_sum_op; }

void add_rows(const Tensor& rows, const Tensor& out) {
  using namespace reduction;
  fold_tensor(out, rows, {1, 0}, {.operation = Operation::sum, .element = DType::f32});
}

Form sum_form(const Asked& asked) {
  using namespace reduction;
  if (&asked.op != &sum_op) return {};
  const auto& a = *static_cast<const Dims*>(asked.attributes.data);
  const Shape& x = asked.inputs[0];
  // Where sum() adds up each row by itself, as one unit: see Note [How a reduction is cut].
  bool suits = a.dims == Shape{0, 2, 3} && !a.dtype && x.size() == 4 && x[0] > 1 && x[1] > 1;
  if (!suits || x[2] * x[3] < 32 || x[2] * x[3] > kRows * kWidth) return {};
  return {.op = &blocked_sum_op, .inputs = 1};
}

}  // namespace tutti::blocked
