// Copies: to another dtype, device or layout, or into a tensor that exists.
#include "base/check.h"
#include "base/cores.h"
#include "base/named.h"
#include "ops/sparse/arithmetic.h"
#include "ops/sparse/sparse.h"
#include "tensor/call.h"
#include "tensor/defined.h"
#include "tensor/impl.h"
#include "tensor/number.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

struct Target {
  DType dtype;
  Device device;
  Shape strides;  // empty: contiguous
  TUTTI_FIELDS(dtype, device, strides)
};

// Differentiable: the gradient is converted back.
void copy_gradient(GradientCall& c) {
  Tensor g = c.grad();
  if (!(g.device() == c.input_device(0))) g = copy_to(g, c.input_device(0));
  c.set(0, g);
}

const Operator copy_op{
    .name = "copy",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const auto& a = c.as<Target>();
          check<DeviceError>(!c.input(0).device().is_meta() || a.device.is_meta(), "copy",
                             "{} has no values to copy to {}", c.input(0), a.device);
          out[0] = {.sizes = c.input(0).sizes(),
                    .strides = a.strides,
                    .dtype = a.dtype,
                    .device = a.device,
                    .strided = !a.strides.empty()};
        },
    .cpu = [](const Call& c) { copy_into(c.output(), c.input(0)); },
    .gradient = copy_gradient,
};

// Writes into the output, which is always given; any dtype goes into any other.
const Operator copy_into_op{
    .name = "copy_",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor& to = c.output();
          check<DeviceError>(!c.input(0).device().is_meta() || to.device().is_meta(), "copy_",
                             "{} has no values to copy into {}", c.input(0), to);
          out[0] = {.sizes = to.sizes(),
                    .strides = to.strides(),
                    .dtype = to.dtype(),
                    .device = to.device(),
                    .strided = true};
        },
    .cpu = [](const Call& c) { copy_into(c.output(), c.input(0)); },
    .gradient = copy_gradient,
    .in_place = 1,
};

struct Place {
  Device device;
  TUTTI_FIELDS(device)
};

const Operator view_on_op{
    .name = "view_on",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor& x = c.input(0);
          out[0] = {.sizes = x.sizes(),
                    .strides = x.strides(),
                    .offset = x.storage_offset(),
                    .dtype = x.dtype(),
                    .device = c.as<Place>().device,
                    .strided = true};
        },
    .gradient =
        [](GradientCall& c) {
          Tensor g = c.grad();
          c.set(0, g.is_sparse() ? copy_to(g, c.input_device(0)) : view_on(g, c.input_device(0)));
        },
    .view_of = 0,
    .sparse = true,  // gradients may be
};

Shape strides_of(const Tensor& x, MemoryFormat format) {
  check<ShapeError>(format != MemoryFormat::channels_last || x.dim() == 4 || x.dim() == 5, "clone",
                    "channels-last needs 4 or 5 dims, not {}", x);
  if (format == MemoryFormat::channels_last) return channels_last_strides(x.sizes());
  if (format == MemoryFormat::preserve && !x.is_contiguous() && is_dense(x.sizes(), x.strides())) return x.strides();
  return {};
}

Tensor copy_as(const Tensor& x, DType dtype, Device device, MemoryFormat format) {
  if (x.is_sparse()) return sparse_copy(x, dtype, device);
  Target a{dtype, device, strides_of(x, format)};
  return call(copy_op, {&x}, attributes(a));
}

}  // namespace

Tensor cast(const Tensor& x, DType dtype) {
  check_defined(x, "cast");
  if (x.dtype() == dtype && !x.is_number()) return x;
  return named("cast", [&] { return copy_as(x, dtype, x.device(), MemoryFormat::preserve); });
}
Tensor copy_to(const Tensor& x, Device device) {
  check_defined(x, "copy_to");
  check_device(device, "copy_to");
  return named("copy_to", [&] { return copy_as(x, x.dtype(), device, MemoryFormat::preserve); });
}
Tensor view_on(const Tensor& x, Device device) {
  check_defined(x, "view_on");
  check_device(device, "view_on");
  check<DeviceError>(x.device().kind == device.kind, "view_on", "{} is not in the memory of {}: use copy_to", x,
                     device);
  check<ValueError>(!x.is_sparse(), "view_on", "{} is sparse; use its values() and indices(), or copy_to", x);
  if (x.device() == device) return x;
  Place a{device};
  return call(view_on_op, {&x}, attributes(a));
}
Tensor clone(const Tensor& x, MemoryFormat format) {
  check_defined(x, "clone");
  return named("clone", [&] { return copy_as(x, x.dtype(), x.device(), format); });
}
Tensor contiguous(const Tensor& x, MemoryFormat format) {
  check_defined(x, "contiguous");
  // One channel lies both ways at once; who asks for channels-last gets the strides that operators go by as well.
  bool last = format == MemoryFormat::channels_last;
  if (x.is_contiguous(format) && (!last || x.strides() == channels_last_strides(x.sizes()))) return x;
  return named("contiguous",
               [&] { return clone(x, format == MemoryFormat::preserve ? MemoryFormat::contiguous : format); });
}

Tensor& Tensor::copy_(const Tensor& source) {
  check_defined(*this, "copy_");
  check_defined(source, "copy_");
  check_fits(source, dtype(), "copy_");
  if (is_sparse()) {
    check<ShapeError>(source.sizes() == sizes(), "copy_",
                      "{} has not the shape of {}: sparse tensors are not broadcast", source, *this);
    sparse_assign(*this, sparse_copy(tutti::to_sparse(source, sparse_dim()), dtype(), device()), "copy_");
    return *this;
  }
  Tensor from = source.is_sparse() ? tutti::to_dense(source) : source;
  if (!(from.sizes() == sizes())) {
    bool fits = from.dim() <= dim();
    for (int64_t d = 1; fits && d <= from.dim(); ++d) fits = from.size(-d) == 1 || from.size(-d) == size(-d);
    check<ShapeError>(fits, "copy_", "{} does not broadcast to {}", from, *this);
    from = tutti::expand(from, sizes());
  }
  return call_out(copy_into_op, {&from}, *this);
}

const Operator& copy_operator() { return copy_into_op; }
const Operator& clone_operator() { return copy_op; }

}  // namespace tutti
