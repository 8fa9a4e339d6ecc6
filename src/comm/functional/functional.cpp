// Functional collectives: descriptors over the collectives of comm/collectives.h, with gradients that are functional
// collectives again.
#include "tutti/comm/functional.h"

#include <algorithm>

#include "autograd/homes.h"
#include "comm/algorithm/reduce.h"
#include "comm/functional/arguments.h"
#include "comm/functional/attributes.h"
#include "comm/functional/start.h"
#include "comm/group/call.h"
#include "comm/group/check_call.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti::fn {
namespace {

using comm::check_at;

thread_local Work* starting = nullptr;  // see StartGuard

// A backward pass is a collective of its own: ranks of which only some will make it must learn so now.
bool will_be_recorded(std::span<const Tensor* const> inputs) {
  // In a backward pass that is recorded itself ranks may differ, and often no further pass comes.
  if (!grad_enabled() || homes_of_pass()) return false;
  return std::any_of(inputs.begin(), inputs.end(), [](const Tensor* x) { return x->defined() && x->requires_grad(); });
}
Tensor result(const Operator& op, const Tensor& x, const Collective& a) {
  const Tensor* input = &x;
  comm::RecordingGuard guard(will_be_recorded({&input, 1}));
  return call(op, {&x}, attributes(a));
}
TensorList results(const Operator& op, const TensorList& xs, const Collective& a, size_t count) {
  std::vector<const Tensor*> inputs;
  for (const Tensor& x : xs) inputs.push_back(&x);
  TensorList outputs(count);
  comm::RecordingGuard guard(will_be_recorded(inputs));
  call(op, inputs, attributes(a), outputs);
  return outputs;
}

// ---- What descriptors share

TensorSpec like(const Tensor& x, const Shape& sizes) {
  return {.sizes = sizes, .dtype = x.dtype(), .device = x.device()};
}
void infer_each(const Call& c, std::span<TensorSpec> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = like(c.input(i), c.input(i).sizes());
}
void infer_shapes(const Call& c, std::span<TensorSpec> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = like(c.input(0), c.as<Collective>().shapes[i]);
}
void infer_mine(const Call& c, std::span<TensorSpec> out) {
  out[0] = like(c.input(0), c.input(c.as<Collective>().rank()).sizes());
}
void infer_reduce(const Call& c, std::span<TensorSpec> out) {
  const auto& a = c.as<Collective>();
  for (size_t i = 0; i < out.size(); ++i) comm::check_reduces(c.op.name, a.op, c.input(i).dtype());
  infer_each(c, out);
}

TensorList inputs_of(const Call& c) {
  TensorList list;
  for (const Tensor* x : c.inputs) list.push_back(x->detach());
  return list;
}
TensorList outputs_of(const Call& c) { return {c.outputs.begin(), c.outputs.end()}; }

// Note [Undefined gradients]
// Backward through a collective is one too, and needs every rank's gradient of every result. A rank whose loss does not
// depend on a result has none. Zeros would be exact, but more often the result was forgotten, on one of the ranks, and
// nothing would ever say so: that is an error, unless the call was made by the library or in a backward pass that is
// recorded itself, whose results are whatever gradients happen to be differentiated further.
Tensor gradient_of(const GradientCall& c, size_t i, const Shape& sizes) {
  if (c.grad(i).defined()) return c.grad(i);
  const auto& a = c.as<Collective>();
  bool nothing = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();  // no numbers, so none is missing
  check_at<GradError>(a.place, !a.own || nothing, c.op().name,
                      "no loss of rank {} depends on result {} of this call, so its gradient is undefined, and all "
                      "ranks' backward needs it: use the result (0 * y.sum() added to the loss is enough), or detach() "
                      "what goes in",
                      context().rank, i);
  return zeros(sizes, {.dtype = c.input_dtype(0), .device = c.input_device(0)});
}
TensorList grads(const GradientCall& c, const std::vector<Shape>& shapes) {
  TensorList list;
  for (size_t i = 0; i < shapes.size(); ++i) list.push_back(gradient_of(c, i, shapes[i]));
  return list;
}
std::vector<Shape> input_shapes(const GradientCall& c) {
  std::vector<Shape> shapes;
  for (size_t i = 0; i < c.inputs(); ++i) shapes.push_back(c.input_sizes(i));
  return shapes;
}
void set_all(GradientCall& c, const TensorList& gradients) {
  for (size_t i = 0; i < c.inputs(); ++i)
    if (c.needs(i)) c.set(i, gradients[i]);
}

// ---- Reductions
//
// Note [Gradients of reductions]
// y = r(x0, x1, ...) reaches some ranks; g is the sum of the gradients that those have for it, brought to all ranks by
// the collective that is the other way round: all_reduce for all_reduce, broadcast for reduce, all_gather for
// reduce_scatter. What is left to do is local (sum, average), or asks what the other ranks' x were (product) or how
// many of them were chosen (min, max).

bool is_linear(Reduce op) { return op == Reduce::sum || op == Reduce::average; }

// By what a rank's x is multiplied in a sum or average.
double linear_scale(const Collective& a) {
  if (a.op == Reduce::sum) return a.factor.value_or(1);
  if (!a.weight) return 1 / static_cast<double>(a.size());
  NoGrad guard;
  Tensor all = full({}, *a.weight, {.dtype = DType::f64, .device = Device()});
  tutti::all_reduce(all, a.sum_options());
  return *a.weight / all.item<double>();
}
Tensor scaled(const Tensor& g, double scale) { return scale == 1 ? g : g * scale; }

// The product of the other ranks' x: not y/x, which is nothing where x is 0.
Tensor product_of_others(const Tensor& x, const Collective& a) {
  TensorList all = fn::all_gather(x, a.options());
  Tensor product;
  for (size_t k = 0; k < all.size(); ++k)
    if (k != a.rank()) product = product.defined() ? product * all[k] : all[k];
  return product.defined() ? product : ones_like(x);
}

// Of x, which took part in a product, minimum or maximum y.
Tensor chosen_gradient(const Collective& a, const Tensor& g, const Tensor& x, const Tensor& y) {
  if (a.op == Reduce::product) {
    Tensor others = product_of_others(x, a);
    return g * (x.is_complex() ? conj(others) : others);
  }
  check<GradError>(a.op == Reduce::min || a.op == Reduce::max, "reduction", "bitwise reductions have no gradient");
  Tensor chosen = x == y, count;
  {
    NoGrad guard;
    count = chosen.to(g.dtype() == DType::f64 ? DType::f64 : DType::f32);
    tutti::all_reduce(count, a.sum_options());
  }
  return where(chosen, g / count.to(g.dtype()), 0);
}

void run_all_reduce(const Call& c) {
  NoGrad guard;
  TensorList outputs = outputs_of(c);
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(c.input(i).detach());
  ReduceOptions options = c.as<Collective>().reduce_options();
  if (starting && std::none_of(outputs.begin(), outputs.end(), [](const Tensor& y) { return y.is_sparse(); }))
    *starting = tutti::all_reduce_async(outputs, options);
  else
    tutti::all_reduce(outputs, options);
}

const Operator all_reduce_op{
    .name = "all_reduce",
    .infer = infer_reduce,
    .cpu = run_all_reduce,
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Collective>();
          TensorList all = fn::all_reduce(grads(c, input_shapes(c)), a.sum_options());
          double scale = linear_scale(a);
          for (Tensor& g : all) g = scaled(g, scale);
          set_all(c, all);
        },
    .collective = true,
    .can_start = true,
    .can_join = true,
    .same_shapes = true,
};
const Operator all_reduce_chosen_op{
    .name = "all_reduce",
    .infer = infer_reduce,
    .cpu = run_all_reduce,
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Collective>();
          c.set(0, chosen_gradient(a, fn::all_reduce(c.grad(), a.sum_options()), c.input(0), c.output()));
        },
    .saves_inputs = 1,
    .saves_outputs = 1,
    .collective = true,
    .can_start = true,
    .can_join = true,
    .same_shapes = true,
};

void run_reduce(const Call& c) {
  const auto& a = c.as<Collective>();
  NoGrad guard;
  c.output().copy_(c.input(0).detach());
  tutti::reduce(c.output(), a.reduce_options());
  if (!a.is_root()) c.output().zero_();
}

const Operator reduce_op{
    .name = "reduce",
    .infer = infer_reduce,
    .cpu = run_reduce,
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Collective>();
          Tensor g = fn::broadcast(c.grad(), a.root_options());
          c.set(0, scaled(g, linear_scale(a)));
        },
    .collective = true,
    .same_shapes = true,
};
const Operator reduce_chosen_op{
    .name = "reduce",
    .infer = infer_reduce,
    .cpu = run_reduce,
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Collective>();
          Tensor g = fn::broadcast(c.grad(), a.root_options()), y = c.output().detach().clone();
          tutti::broadcast(y, a.root_options());
          c.set(0, chosen_gradient(a, g, c.input(0), y));
        },
    .saves_inputs = 1,
    .saves_outputs = 1,
    .collective = true,
    .same_shapes = true,
};

void infer_scatter_rows(const Call& c, std::span<TensorSpec> out) {
  const auto& a = c.as<Collective>();
  infer_reduce(c, out);
  out[0].sizes = with_rows(c.input(0).sizes(), a.rows[a.rank()]);
}
void run_reduce_scatter_rows(const Call& c) {
  const auto& a = c.as<Collective>();
  NoGrad guard;
  TensorList parts = split(c.input(0).detach(), a.rows, 0);
  if (starting)
    *starting = tutti::reduce_scatter_async(c.output(), parts, a.reduce_options());
  else
    tutti::reduce_scatter(c.output(), parts, a.reduce_options());
}

const Operator reduce_scatter_rows_op{
    .name = "reduce_scatter",
    .infer = infer_scatter_rows,
    .cpu = run_reduce_scatter_rows,
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Collective>();
          c.set(0, scaled(fn::all_gather_single(c.grad(), a.options(), a.rows), linear_scale(a)));
        },
    .collective = true,
    .can_start = true,
};
const Operator reduce_scatter_rows_chosen_op{
    .name = "reduce_scatter",
    .infer = infer_scatter_rows,
    .cpu = run_reduce_scatter_rows,
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Collective>();
          Tensor g = fn::all_gather_single(c.grad(), a.options(), a.rows),
                 y = fn::all_gather_single(c.output().detach(), a.options(), a.rows);
          c.set(0, chosen_gradient(a, g, c.input(0), y));
        },
    .saves_inputs = 1,
    .saves_outputs = 1,
    .collective = true,
    .can_start = true,
};
const Operator reduce_scatter_op{
    .name = "reduce_scatter",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          infer_reduce(c, out);
          infer_mine(c, out);
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          ReduceOptions options = c.as<Collective>().reduce_options();
          if (starting)
            *starting = tutti::reduce_scatter_async(c.output(), inputs_of(c), options);
          else
            tutti::reduce_scatter(c.output(), inputs_of(c), options);
        },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Collective>();
          TensorList all = fn::all_gather(c.grad(), a.options(), input_shapes(c));
          double scale = linear_scale(a);
          for (Tensor& g : all) g = scaled(g, scale);
          set_all(c, all);
        },
    .collective = true,
    .can_start = true,
};

// ---- Copies

const Operator broadcast_op{
    .name = "broadcast",
    .infer = infer_each,
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Collective>();
          NoGrad guard;
          if (a.is_root()) c.output().copy_(c.input(0).detach());
          if (starting)
            *starting = tutti::broadcast_async(c.output(), a.root_options());
          else
            tutti::broadcast(c.output(), a.root_options());
        },
    .gradient = [](GradientCall& c) { c.set(0, fn::reduce(c.grad(), c.as<Collective>().sum_options())); },
    .collective = true,
    .can_start = true,
    .same_shapes = true,
};

const Operator all_gather_op{
    .name = "all_gather",
    .infer = infer_shapes,
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          CollectiveOptions options = c.as<Collective>().options();
          if (starting)
            *starting = tutti::all_gather_async(outputs_of(c), c.input(0).detach(), options);
          else
            tutti::all_gather(outputs_of(c), c.input(0).detach(), options);
        },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Collective>();
          c.set(0, fn::reduce_scatter(grads(c, a.shapes), a.sum_options()));
        },
    .collective = true,
    .can_start = true,
};
const Operator all_gather_rows_op{
    .name = "all_gather",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = like(c.input(0), with_rows(c.input(0).sizes(), total(c.as<Collective>().rows)));
        },
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Collective>();
          NoGrad guard;
          TensorList parts = split(c.output(), a.rows, 0);
          if (starting)
            *starting = tutti::all_gather_async(parts, c.input(0).detach(), a.options());
          else
            tutti::all_gather(parts, c.input(0).detach(), a.options());
        },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Collective>();
          c.set(0, fn::reduce_scatter(c.grad(), a.sum_options(), a.rows));
        },
    .collective = true,
    .can_start = true,
};

const Operator gather_op{
    .name = "gather",
    .infer = infer_shapes,
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Collective>();
          NoGrad guard;
          tutti::gather(a.is_root() ? outputs_of(c) : TensorList{}, c.input(0).detach(), a.root_options());
          if (!a.is_root())
            for (Tensor& y : c.outputs) y.zero_();
        },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Collective>();
          c.set(0, fn::scatter(grads(c, a.shapes), a.root_options()));
        },
    .collective = true,
};
const Operator scatter_op{
    .name = "scatter",
    .infer = infer_mine,
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Collective>();
          NoGrad guard;
          tutti::scatter(c.output(), a.is_root() ? inputs_of(c) : TensorList{}, a.root_options());
        },
    .gradient =
        [](GradientCall& c) { set_all(c, fn::gather(c.grad(), c.as<Collective>().root_options(), input_shapes(c))); },
    .collective = true,
};

const Operator all_to_all_op{
    .name = "all_to_all",
    .infer = infer_shapes,
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          CollectiveOptions options = c.as<Collective>().options();
          if (starting) return void(*starting = tutti::all_to_all_async(outputs_of(c), inputs_of(c), options));
          tutti::all_to_all(outputs_of(c), inputs_of(c), options);
        },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Collective>();
          set_all(c, fn::all_to_all(grads(c, a.shapes), a.options(), input_shapes(c)));
        },
    .collective = true,
    .can_start = true,
};
const Operator all_to_all_rows_op{
    .name = "all_to_all",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = like(c.input(0), with_rows(c.input(0).sizes(), total(c.as<Collective>().rows)));
        },
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Collective>();
          NoGrad guard;
          if (starting)
            *starting = tutti::all_to_all_async(c.output(), c.input(0).detach(), a.rows, a.input_rows, a.options());
          else
            tutti::all_to_all(c.output(), c.input(0).detach(), a.rows, a.input_rows, a.options());
        },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Collective>();
          c.set(0, fn::all_to_all_single(c.grad(), a.input_rows, a.rows, a.options()));
        },
    .collective = true,
    .can_start = true,
};

}  // namespace

StartGuard::StartGuard(Work& work) : outer_(std::exchange(starting, &work)) {}
StartGuard::~StartGuard() { starting = outer_; }

// ---- The functions

Tensor all_reduce(const Tensor& x, const ReduceOptions& o) {
  Collective a = begin_reduce(o, "all_reduce");
  check_defined(x, a, "all_reduce");
  return result(is_linear(o.op) ? all_reduce_op : all_reduce_chosen_op, x, a);
}
TensorList all_reduce(const TensorList& xs, const ReduceOptions& o) {
  Collective a = begin_reduce(o, "all_reduce");
  if (xs.empty()) return {};
  for (const Tensor& x : xs) check_defined(x, a, "all_reduce");
  if (is_linear(o.op)) return results(all_reduce_op, xs, a, xs.size());
  TensorList list;
  for (const Tensor& x : xs) list.push_back(fn::all_reduce(x, o));
  return list;
}
Tensor reduce(const Tensor& x, const ReduceOptions& o) {
  Collective a = begin_reduce(o, "reduce", true);
  check_defined(x, a, "reduce");
  return result(is_linear(o.op) ? reduce_op : reduce_chosen_op, x, a);
}
Tensor broadcast(const Tensor& x, const RootOptions& o) {
  Collective a = begin_rooted(o, "broadcast");
  check_defined(x, a, "broadcast");
  return result(broadcast_op, x, a);
}

TensorList all_gather(const Tensor& x, const CollectiveOptions& o, const std::vector<Shape>& shapes) {
  Collective a = begin(o, "all_gather");
  a.shapes = shapes_for(x, shapes, a, "all_gather");
  return results(all_gather_op, {x}, a, a.size());
}
Tensor all_gather_single(const Tensor& x, const CollectiveOptions& o, const Shape& rows) {
  Collective a = begin(o, "all_gather");
  check_rows(x, a, "all_gather");
  a.rows = rows.empty() ? Shape::filled(a.size(), x.size(0)) : rows;
  check_at<ShapeError>(a.place, a.rows.size() == a.size() && a.rows[a.rank()] == x.size(0), "all_gather",
                       "rows {} are not those of {} ranks of which rank {} has {}", a.rows, a.size(), a.rank(), x);
  return result(all_gather_rows_op, x, a);
}
TensorList gather(const Tensor& x, const RootOptions& o, const std::vector<Shape>& shapes) {
  Collective a = begin_rooted(o, "gather");
  a.shapes = shapes_for(x, shapes, a, "gather");
  return results(gather_op, {x}, a, a.size());
}
Tensor scatter(const TensorList& xs, const RootOptions& o) {
  Collective a = begin_rooted(o, "scatter");
  check_list(xs, a, "scatter");
  return results(scatter_op, xs, a, 1)[0];
}

Tensor reduce_scatter(const TensorList& xs, const ReduceOptions& o) {
  Collective a = begin_reduce(o, "reduce_scatter");
  check_list(xs, a, "reduce_scatter");
  if (is_linear(o.op)) return results(reduce_scatter_op, xs, a, 1)[0];
  // The gradient needs all inputs; as one tensor they are one to save.
  TensorList flat;
  Shape counts;
  for (const Tensor& x : xs) {
    flat.push_back(x.reshape({-1}));
    counts.push_back(x.numel());
  }
  return fn::reduce_scatter(cat(flat), o, counts).reshape(xs[a.rank()].sizes());
}
Tensor reduce_scatter(const Tensor& x, const ReduceOptions& o, const Shape& rows) {
  Collective a = begin_reduce(o, "reduce_scatter");
  a.rows = rows_of(x, rows, a, "reduce_scatter");
  return result(is_linear(o.op) ? reduce_scatter_rows_op : reduce_scatter_rows_chosen_op, x, a);
}

TensorList all_to_all(const TensorList& xs, const CollectiveOptions& o, const std::vector<Shape>& shapes) {
  Collective a = begin(o, "all_to_all");
  check_list(xs, a, "all_to_all");
  check_at<ValueError>(a.place, shapes.empty() || shapes.size() == a.size(), "all_to_all",
                       "{} shapes were given for a group of {}", shapes.size(), a.size());
  a.shapes = shapes;
  if (shapes.empty())
    for (const Tensor& x : xs) a.shapes.push_back(x.sizes());
  return results(all_to_all_op, xs, a, a.size());
}
Tensor all_to_all_single(const Tensor& x, const Shape& output_splits, const Shape& input_splits,
                         const CollectiveOptions& o) {
  Collective a = begin(o, "all_to_all");
  a.input_rows = rows_of(x, input_splits, a, "all_to_all");
  a.rows = output_splits.empty() ? rows_of(x, {}, a, "all_to_all") : output_splits;
  check_at<ShapeError>(a.place, a.rows.size() == a.size(), "all_to_all",
                       "{} output splits were given for a group of {}", a.rows.size(), a.size());
  for (int64_t r : a.rows) check_at<ValueError>(a.place, r >= 0, "all_to_all", "a part cannot have {} rows", r);
  return result(all_to_all_rows_op, x, a);
}
Tensor all_to_all_single(const Tensor& x, const Tensor& output_splits, const Tensor& input_splits,
                         const CollectiveOptions& o) {
  return fn::all_to_all_single(x, Shape(output_splits.to_vector<int64_t>()), Shape(input_splits.to_vector<int64_t>()),
                               o);
}

}  // namespace tutti::fn
