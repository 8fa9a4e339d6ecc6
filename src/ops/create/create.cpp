// New tensors from nothing, from numbers and from foreign memory; and filling.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/cores.h"
#include "base/named.h"
#include "ops/sparse/arithmetic.h"
#include "pointwise/renamed.h"
#include "tensor/call.h"
#include "tensor/defined.h"
#include "tensor/impl.h"
#include "tensor/number.h"
#include "tutti/operator.h"
#include "tutti/ops.h"
#include "tutti/trace.h"

namespace tutti {
namespace {

Device device_or_current(const Options& o) { return o.device.value_or(context().device); }
DType dtype_or_default(const Options& o) { return o.dtype.value_or(context().default_dtype); }

// A new tensor, with errors that name the function that was called.
template <class Make>
Tensor with_memory(const char* name, const Shape& sizes, DType dtype, Make&& make) {
  try {
    return make();
  } catch (const MemoryError& e) {
    fail<MemoryError>(name, "no memory for a tensor {}{}: {}", dtype, sizes, e.what());
  }
}
// Tracers see operators alone; memory that none of them made is told them here.
Tensor told(Tensor t) {
  if (Tracer* tracer = tracing()) tracer->made(t);
  return t;
}
Tensor make_new(const char* name, const Shape& sizes, DType dtype, Device device) {
  check_new(sizes, device, name);
  check_sizes(sizes, name);
  return told(with_memory(name, sizes, dtype, [&] { return make_tensor(sizes, dtype, device); }));
}

Tensor finish(Tensor t, const Options& o) {
  if (context().modes & kInferenceMode) impl(t)->inference = true;
  if (o.requires_grad) t.requires_grad_();
  return t;
}

// Writes a value everywhere. Gradients flow to the value, and no more to what was there.
const Operator fill_op{
    .name = "fill_",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor& to = c.output();
          check<ShapeError>(c.input(0).numel() == 1, c.op.name,
                            "the value must be a number or a one-element tensor, not {}", c.input(0));
          check<DeviceError>(!c.input(0).device().is_meta() || to.device().is_meta(), c.op.name,
                             "{} has no value to write into {}", c.input(0), to);
          out[0] = {.sizes = to.sizes(),
                    .strides = to.strides(),
                    .dtype = to.dtype(),
                    .device = to.device(),
                    .strided = true};
        },
    .cpu =
        [](const Call& c) {
          Tensor value = make_alias(c.input(0), {}, {}, c.input(0).storage_offset());
          copy_into(c.output(), value);
        },
    .gradient = [](GradientCall& c) { c.set(0, reshape(sum(c.grad()), c.input_sizes(0))); },
};

// Errors, and who asks what changed a tensor, should hear of zero_ where zero_ was called.
const Operator zero_op = [] {
  Operator op = fill_op;
  op.name = "zero_";
  return op;
}();

struct Gathered {
  std::vector<std::complex<double>> values;
  std::vector<int64_t> integers;
  Category kind = Category::boolean;
};

void gather_values(const NestedList& list, size_t depth, Shape& sizes, Gathered& to) {
  if (!list.is_list()) {
    check<ShapeError>(depth == sizes.size(), "tensor",
                      "the nested list is uneven: a number stands where a list of {} is expected",
                      depth < sizes.size() ? sizes[depth] : 0);
    to.values.push_back(list.value());
    to.integers.push_back(list.integer());
    to.kind = std::max(to.kind, list.kind());
    return;
  }
  auto count = static_cast<int64_t>(list.list().size());
  check<ShapeError>(depth < sizes.size() && sizes[depth] == count, "tensor",
                    "the nested list is uneven: {} entries at depth {} where others have {}", count, depth,
                    depth < sizes.size() ? sizes[depth] : 0);
  for (auto& entry : list.list()) gather_values(entry, depth + 1, sizes, to);
}

DType dtype_of_category(Category kind) {
  switch (kind) {
    case Category::boolean:
      return DType::boolean;
    case Category::integer:
      return DType::i64;
    case Category::floating:
      return context().default_dtype;
    default:
      return to_complex(context().default_dtype);
  }
}

struct Fill {
  double start, step;
  int64_t istart, istep;
  int64_t length;
  bool integers;
  DType dtype;
  Device device;
  TUTTI_FIELDS(start, step, istart, istep, length, integers, dtype, device)
};

void infer_sequence(const Call& c, std::span<TensorSpec> out) {
  const auto& a = c.as<Fill>();
  out[0] = {.sizes = {a.length}, .dtype = a.dtype, .device = a.device};
}

const Operator sequence_op{
    .name = "arange",
    .infer = infer_sequence,
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Fill>();
          with_type(a.dtype, [&]<class T>() {
            T* p = c.output().data<T>();
            for (int64_t i = 0; i < a.length; ++i) {
              double value = a.start + static_cast<double>(i) * a.step;
              if constexpr (std::is_integral_v<T>)
                p[i] = a.integers ? static_cast<T>(a.istart + i * a.istep) : static_cast<T>(value);
              else
                p[i] = T(static_cast<double>(a.integers ? static_cast<double>(a.istart + i * a.istep) : value));
            }
          });
        },
};

struct Triangle {
  int64_t diagonal;
  bool lower;
  TUTTI_FIELDS(diagonal, lower)
};

Tensor triangle_mask(int64_t rows, int64_t columns, int64_t diagonal, bool lower, Device device) {
  Tensor i = arange(rows, {.device = device}).unsqueeze(1), j = arange(columns, {.device = device}).unsqueeze(0);
  diagonal = std::clamp(diagonal, -rows, columns);  // further out nothing changes but overflows
  return lower ? j <= i + diagonal : j >= i + diagonal;
}

Tensor& triangle(Tensor& out, const Tensor& x, int64_t diagonal, bool lower, const char* name) {
  check_defined(x, name);
  check<ValueError>(!x.is_sparse(), name, "{} is sparse; to_dense() it first", x);
  check<ShapeError>(x.dim() >= 2, name, "needs at least 2 dims, not {}", x);
  Tensor mask = triangle_mask(x.size(-2), x.size(-1), diagonal, lower, x.device());
  static const auto tril_op = pointwise::renamed(pointwise::where_operator(), "tril");
  static const auto triu_op = pointwise::renamed(pointwise::where_operator(), "triu");
  Tensor zero = zeros({}, {.dtype = x.dtype(), .device = x.device()});
  return call_out(lower ? tril_op : triu_op, {&mask, &x, &zero}, out);
}

Tensor triangle_indices(int64_t rows, int64_t columns, int64_t offset, bool lower, const char* name) {
  check<ShapeError>(rows >= 0 && columns >= 0, name, "the size must not be negative: {} by {}", rows, columns);
  return named(name,
               [&] { return nonzero(triangle_mask(rows, columns, offset, lower, context().device)).t().contiguous(); });
}

Tensor like(const Tensor& x, const Options& o, const char* name) {
  check_defined(x, name);
  DType dtype = o.dtype.value_or(x.dtype());
  Device device = o.device.value_or(x.device());
  if (o.device) check_device(device, name);
  if (x.layout() == Layout::strided && !x.is_contiguous() && is_dense(x.sizes(), x.strides()))
    return told(make_tensor(x.sizes(), x.strides(), dtype, device));
  return told(make_tensor(x.sizes(), dtype, device));
}

Tensor& fill_now(Tensor& t, const Tensor& value) {
  NoGrad guard;
  return t.fill_(value);
}

Tensor filled(const char* name, const Shape& sizes, const Tensor& value, const Options& options) {
  check<ValueError>(value.defined(), name, "the value is undefined");
  return named(name, [&] {
    DType dtype =
        options.dtype.value_or(value.is_number() ? dtype_of_category(category(value.dtype())) : value.dtype());
    Tensor t = make_new(name, sizes, dtype, device_or_current(options));
    return finish(fill_now(t, value), options);
  });
}

Tensor filled_like(const char* name, const Tensor& x, const Tensor& value, const Options& options) {
  return named(name, [&] {
    Tensor t = like(x, options, name);
    return finish(fill_now(t, value), options);
  });
}

// How many numbers arange gives.
int64_t count_steps(int64_t from, int64_t to, int64_t by) {
  check<ValueError>(by != 0, "arange", "cannot go from {} to {} by steps of {}", from, to, by);
  auto way = static_cast<__int128>(to) - from, step = static_cast<__int128>(by);
  check<ValueError>(way == 0 || (way > 0) == (step > 0), "arange", "steps of {} never lead from {} to {}", by, from,
                    to);
  auto count = (way + step - (step > 0 ? 1 : -1)) / step;
  check<ShapeError>(count < kMostElements, "arange", "from {} to {} by steps of {} there are too many numbers", from,
                    to, by);
  return static_cast<int64_t>(count);
}
int64_t count_steps(double from, double to, double by) {
  check<ValueError>(by != 0 && std::isfinite(by) && std::isfinite(to - from), "arange",
                    "cannot go from {} to {} by steps of {}", from, to, by);
  double steps = (to - from) / by, count = std::ceil(steps);
  check<ValueError>(steps >= 0 || to == from, "arange", "steps of {} never lead from {} to {}", by, from, to);
  check<ShapeError>(count < static_cast<double>(kMostElements), "arange",
                    "from {} to {} by steps of {} there are too many numbers", from, to, by);
  return static_cast<int64_t>(count);
}

}  // namespace

Tensor& Tensor::fill_(const Tensor& value) {
  check_defined(*this, "fill_");
  check<ValueError>(!is_sparse(), "fill_", "{} is sparse: only zero_() leaves it so; to_dense() it first", *this);
  check<ValueError>(value.defined(), "fill_", "the value is undefined");
  check_fits(value, dtype(), "fill_");
  return call_out(fill_op, {&value}, *this);
}
Tensor& Tensor::zero_() {
  check_defined(*this, "zero_");
  if (is_sparse()) {
    sparse_assign(*this, sparse_zeros(*this, dtype(), device()), "zero_");
    return *this;
  }
  Tensor zero = 0;
  return call_out(zero_op, {&zero}, *this);
}

Tensor tensor(std::initializer_list<NestedList> list, const Options& options) {
  NestedList all(list);
  Shape sizes;
  for (const NestedList* level = &all; level->is_list(); level = &level->list()[0]) {
    sizes.push_back(static_cast<int64_t>(level->list().size()));
    if (level->list().empty()) break;
  }
  Gathered found;
  gather_values(all, 0, sizes, found);
  if (found.values.empty()) found.kind = Category::floating;
  Options plain{.dtype = options.dtype.value_or(dtype_of_category(found.kind)), .device = options.device};
  Tensor full = found.kind <= Category::integer ? tensor(std::span<const int64_t>(found.integers), plain)
                                                : tensor(std::span<const std::complex<double>>(found.values), plain);
  return finish(view(full, sizes).detach(), options);
}

Tensor detail::tensor_of_number(const Tensor& number, const Options& options) {
  DType dtype = options.dtype.value_or(dtype_of_category(category(number.dtype())));
  check_fits(number, dtype, "tensor");
  Tensor t = make_new("tensor", {}, dtype, device_or_current(options));
  return finish(fill_now(t, number), options);
}

Tensor detail::tensor_of_values(const void* values, size_t count, DType dtype, const Options& options) {
  Tensor t = make_new("tensor", static_cast<int64_t>(count), options.dtype.value_or(dtype), device_or_current(options));
  check_fits(values, t.numel(), dtype, t.dtype(), "tensor");
  if (t.device().is_cpu() && count > 0)
    copy_into(t, from_blob(values, t.sizes(), {.dtype = dtype, .device = t.device()}));
  return finish(t, options);
}

Tensor tensor(const std::vector<bool>& values, const Options& options) {
  auto copy = std::make_unique<bool[]>(values.size());
  std::copy(values.begin(), values.end(), copy.get());
  return detail::tensor_of_values(copy.get(), values.size(), DType::boolean, options);
}

Tensor from_blob(const void* data, const Shape& sizes, const Options& options, std::function<void()> release,
                 std::optional<Shape> strides) {
  DType dtype = dtype_or_default(options);
  check_new(sizes, device_or_current(options), "from_blob");
  check<ShapeError>(!strides || strides->size() == sizes.size(), "from_blob",
                    "sizes {} and strides {} differ in length", sizes, strides.value_or(Shape()));
  Shape steps = strides.value_or(contiguous_strides(sizes));
  check_geometry(sizes, steps, 0, "from_blob");
  auto* t = new TensorImpl;
  Tensor result(t);
  t->dtype = dtype;
  t->device = device_or_current(options);
  t->set_geometry(sizes, steps, 0);
  check<ValueError>(data || t->numel == 0, "from_blob", "a null pointer cannot hold {} elements", t->numel);
  t->storage = make_storage(const_cast<void*>(data), static_cast<size_t>(span_elements(sizes, steps)) * size_of(dtype),
                            t->device, std::move(release));
  return finish(result, options);
}

Tensor empty(const Shape& sizes, const Options& options, MemoryFormat format) {
  if (format == MemoryFormat::channels_last)
    return named("empty", [&] { return empty_strided(sizes, channels_last_strides(sizes), options); });
  return finish(make_new("empty", sizes, dtype_or_default(options), device_or_current(options)), options);
}
Tensor empty_strided(const Shape& sizes, const Shape& strides, const Options& options) {
  check<ShapeError>(sizes.size() == strides.size(), "empty_strided", "sizes {} and strides {} differ in length", sizes,
                    strides);
  DType dtype = dtype_or_default(options);
  Device device = device_or_current(options);
  check_new(sizes, device, "empty_strided");
  return finish(
      told(with_memory("empty_strided", sizes, dtype, [&] { return make_tensor(sizes, strides, dtype, device); })),
      options);
}
Tensor full(const Shape& sizes, const Tensor& value, const Options& options) {
  return filled("full", sizes, value, options);
}
Tensor zeros(const Shape& sizes, const Options& options) {
  Tensor t = make_new("zeros", sizes, dtype_or_default(options), device_or_current(options));
  if (t.device().is_cpu() && t.numel() > 0 && t.numel() < 4096 && !tracing()) {
    std::memset(impl(t)->storage->data, 0, impl(t)->storage->bytes);
    return finish(t, options);
  }
  return finish(fill_now(t, 0), options);
}
Tensor ones(const Shape& sizes, const Options& options) {
  return filled("ones", sizes, 1,
                {.dtype = dtype_or_default(options), .device = options.device, .requires_grad = options.requires_grad});
}
Tensor empty_like(const Tensor& x, const Options& o) {
  return named("empty_like", [&] { return finish(like(x, o, "empty_like"), o); });
}
Tensor full_like(const Tensor& x, const Tensor& value, const Options& o) {
  return filled_like("full_like", x, value, o);
}
Tensor zeros_like(const Tensor& x, const Options& o) {
  check_defined(x, "zeros_like");
  if (!x.is_sparse()) return filled_like("zeros_like", x, 0, o);
  if (o.device) check_device(*o.device, "zeros_like");
  return finish(sparse_zeros(x, o.dtype.value_or(x.dtype()), o.device.value_or(x.device())), o);
}
Tensor ones_like(const Tensor& x, const Options& o) { return filled_like("ones_like", x, 1, o); }

Tensor arange(const Tensor& stop, const Options& options) { return arange(0, stop, 1, options); }
Tensor arange(const Tensor& start, const Tensor& stop, const Tensor& step, const Options& options) {
  bool integers = true;
  for (const Tensor* x : {&start, &stop, &step}) {
    check_defined(*x, "arange");
    integers = integers && category(x->dtype()) < Category::floating;
  }
  Fill a{};
  a.integers = integers;
  a.dtype = options.dtype.value_or(integers ? DType::i64 : context().default_dtype);
  a.device = device_or_current(options);
  check_device(a.device, "arange");
  return named("arange", [&] {
    if (integers) {
      a.istart = start.item<int64_t>();
      a.istep = step.item<int64_t>();
      a.length = count_steps(a.istart, stop.item<int64_t>(), a.istep);
      int64_t ends[] = {a.istart, a.istart + (a.length - 1) * a.istep};
      check_fits(ends, a.length > 0 ? 2 : 0, DType::i64, a.dtype, "arange");
    } else {
      a.start = start.item<double>();
      a.step = step.item<double>();
      a.length = count_steps(a.start, stop.item<double>(), a.step);
      double ends[] = {a.start, a.start + static_cast<double>(a.length - 1) * a.step};
      check_fits(ends, a.length > 0 ? 2 : 0, DType::f64, a.dtype, "arange");
    }
    return finish(call(sequence_op, {}, attributes(a)), options);
  });
}

Tensor linspace(double start, double stop, int64_t steps, const Options& options) {
  check<ValueError>(steps >= 0, "linspace", "steps must not be negative: {}", steps);
  Fill a{};
  a.dtype = dtype_or_default(options);
  a.device = device_or_current(options);
  check_device(a.device, "linspace");
  for (double end : {start, stop}) check_fits(&end, 1, DType::f64, a.dtype, "linspace");
  a.start = start;
  a.step = steps > 1 ? (stop - start) / static_cast<double>(steps - 1) : 0;
  a.length = steps;
  return named("linspace", [&] {
    Tensor t = call(sequence_op, {}, attributes(a));
    if (steps > 1) t.select(0, -1).fill_(stop);  // exactly, whatever the rounding on the way
    return finish(t, options);
  });
}

Tensor eye(int64_t rows, std::optional<int64_t> columns, const Options& options) {
  check<ShapeError>(rows >= 0 && columns.value_or(0) >= 0, "eye", "the size must not be negative: {} by {}", rows,
                    columns.value_or(rows));
  return named("eye", [&] {
    Tensor t = zeros({rows, columns.value_or(rows)}, {.dtype = options.dtype, .device = options.device});
    t.diagonal().fill_(1);
    return finish(t, options);
  });
}

Tensor tril(const Tensor& x, int64_t diagonal) {
  Tensor out;
  return tril_out(out, x, diagonal);
}
Tensor& tril_(Tensor& x, int64_t diagonal) { return tril_out(x, x, diagonal); }
Tensor& tril_out(Tensor& out, const Tensor& x, int64_t diagonal) { return triangle(out, x, diagonal, true, "tril"); }
Tensor triu(const Tensor& x, int64_t diagonal) {
  Tensor out;
  return triu_out(out, x, diagonal);
}
Tensor& triu_(Tensor& x, int64_t diagonal) { return triu_out(x, x, diagonal); }
Tensor& triu_out(Tensor& out, const Tensor& x, int64_t diagonal) { return triangle(out, x, diagonal, false, "triu"); }
Tensor tril_indices(int64_t rows, int64_t columns, int64_t offset) {
  return triangle_indices(rows, columns, offset, true, "tril_indices");
}
Tensor triu_indices(int64_t rows, int64_t columns, int64_t offset) {
  return triangle_indices(rows, columns, offset, false, "triu_indices");
}

}  // namespace tutti
