// Complex numbers and their parts. (Arithmetic, conj and abs are pointwise operators.)
#include <cmath>

#include "base/check.h"
#include "base/named.h"
#include "base/parallel.h"
#include "tensor/call.h"
#include "tensor/defined.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

const Operator view_as_real_op{
    .name = "view_as_real",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const TensorImpl* x = impl(c.input(0));
          out[0] = {.sizes = x->sizes,
                    .strides = x->strides,
                    .offset = 2 * x->offset,
                    .dtype = to_real(x->dtype),
                    .device = x->device,
                    .strided = true};
          for (auto& s : out[0].strides) s *= 2;
          out[0].sizes.push_back(2);
          out[0].strides.push_back(1);
        },
    .gradient = [](GradientCall& c) { c.set(0, view_as_complex(contiguous(c.grad()))); },
    .view_of = 0,
};

const Operator view_as_complex_op{
    .name = "view_as_complex",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const TensorImpl* x = impl(c.input(0));
          out[0] = {.sizes = x->sizes,
                    .strides = x->strides,
                    .offset = x->offset / 2,
                    .dtype = to_complex(x->dtype),
                    .device = x->device,
                    .strided = true};
          out[0].sizes.erase(x->sizes.size() - 1);
          out[0].strides.erase(x->sizes.size() - 1);
          for (auto& s : out[0].strides) s /= 2;
        },
    .gradient = [](GradientCall& c) { c.set(0, view_as_real(c.grad())); },
    .view_of = 0,
};

template <class T>
void interleave(const Tensor& out, const Tensor& re, const Tensor& im) {
  const T *a = re.data<T>(), *b = im.data<T>();
  T* to = static_cast<T*>(out.raw_data());
  parallel_for(out.numel(), 16384, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      to[2 * i] = a[i];
      to[2 * i + 1] = b[i];
    }
  });
}

// A part of a complex tensor, as a strided view of its storage.
Tensor part_of(const Tensor& z, int64_t part) {
  Shape strides = z.strides();
  for (auto& s : strides) s *= 2;
  Tensor view = make_alias(z, z.sizes(), strides, 2 * z.storage_offset() + part);
  impl(view)->dtype = to_real(z.dtype());
  return view;
}

const Operator complex_op{
    .name = "complex",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor &re = c.input(0), &im = c.input(1);
          auto real_dtype = [](const Tensor& x) { return x.is_number() ? context().default_dtype : x.dtype(); };
          DType dtype = re.is_number()   ? real_dtype(im)
                        : im.is_number() ? real_dtype(re)
                                         : promote(real_dtype(re), real_dtype(im));
          out[0] = {.sizes = broadcast_shapes(re.sizes(), im.sizes()),
                    .dtype = to_complex(dtype),
                    .device = re.is_number() ? im.device() : re.device()};
        },
    .cpu =
        [](const Call& c) {
          const Tensor &re = c.input(0), &im = c.input(1), &out = c.output();
          if (out.numel() == 0) return;
          DType real = to_real(out.dtype());
          auto plain = [&](const Tensor& x) {
            return x.is_contiguous() && x.sizes() == out.sizes() && x.dtype() == real;
          };
          if (plain(re) && plain(im))
            return real == DType::f32 ? interleave<float>(out, re, im) : interleave<double>(out, re, im);
          copy_into(part_of(out, 0), re);
          copy_into(part_of(out, 1), im);
        },
    .gradient =
        [](GradientCall& c) {
          if (c.needs(0)) c.set(0, real(c.grad()));
          if (c.needs(1)) c.set(1, imag(c.grad()));
        },
};

// 0 or pi, by the sign; NaN for NaN.
Tensor angle_of_real(const Tensor& x, DType dtype) {
  Options like{.dtype = dtype, .device = x.device()};
  Tensor angle = where(x < 0, full({}, M_PI, like), zeros({}, like));
  return category(x.dtype()) < Category::floating ? angle : where(isnan(x), x, angle);
}

const Operator angle_op{
    .name = "angle",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          DType dtype = c.input(0).dtype();
          out[0] = {.sizes = c.input(0).sizes(),
                    .dtype = category(dtype) < Category::floating ? context().default_dtype : to_real(dtype),
                    .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          Tensor x = c.input(0).detach(), out = c.output();
          if (x.is_complex())
            atan2_out(out, imag(x), real(x));
          else
            copy_into(out, angle_of_real(x, out.dtype()));
        },
    .gradient =
        [](GradientCall& c) {
          if (!is_complex(c.input_dtype(0))) {
            c.set(0, zeros(c.input_sizes(0), {.dtype = c.input_dtype(0), .device = c.input_device(0)}));
            return;
          }
          // The angle grows by (re·d im - im·d re) / |x|²; at zero, where it has no direction, the gradient is zero.
          Tensor x = c.input(0), re = real(x), im = imag(x);
          Tensor size = hypot(where((re == 0) & (im == 0), 1, re), im);
          Tensor g = c.grad() / size;
          c.set(0, complex(neg(g * (im / size)), g * (re / size)));
        },
    .saves_inputs = 1,
};

}  // namespace

Tensor view_as_real(const Tensor& x) {
  check_defined(x, "view_as_real");
  check<DTypeError>(x.is_complex(), "view_as_real", "needs a complex tensor, not {}", x);
  return call(view_as_real_op, {&x});
}

Tensor view_as_complex(const Tensor& x) {
  check_defined(x, "view_as_complex");
  check<DTypeError>(x.dtype() == DType::f32 || x.dtype() == DType::f64, "view_as_complex", "needs f32 or f64, not {}",
                    x);
  check<ShapeError>(x.dim() > 0 && x.size(-1) == 2, "view_as_complex",
                    "needs a last dim of size 2 (real and imaginary parts), not {}", x);
  bool fits = x.stride(-1) == 1 && x.storage_offset() % 2 == 0;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) fits = fits && (x.stride(d) % 2 == 0 || x.size(d) <= 1);
  check<ShapeError>(fits, "view_as_complex",
                    "{} with strides {} and offset {} is not made of pairs: the last stride must be 1, the others and "
                    "the offset even; use "
                    "contiguous(), or complex(re, im)",
                    x, x.strides(), x.storage_offset());
  return call(view_as_complex_op, {&x});
}

Tensor real(const Tensor& x) {
  check_defined(x, "real");
  return x.is_complex() ? named("real", [&] { return select(view_as_real(x), -1, 0); }) : x;
}

Tensor imag(const Tensor& x) {
  check_defined(x, "imag");
  check<DTypeError>(x.is_complex(), "imag", "{} is real: it has no imaginary part", x);
  return named("imag", [&] { return select(view_as_real(x), -1, 1); });
}

Tensor angle(const Tensor& x) { return call(angle_op, {&x}); }

Tensor complex(const Tensor& re, const Tensor& im) {
  for (const Tensor* x : {&re, &im}) check_defined(*x, "complex");
  for (const Tensor* x : {&re, &im})
    check<DTypeError>(x->is_floating() || x->is_number(), "complex", "needs floating-point parts, not {}", *x);
  check<DTypeError>(!re.is_complex() && !im.is_complex(), "complex", "needs real parts, not {} and {}", re, im);
  check<DeviceError>(re.device() == im.device() || re.is_number() || im.is_number(), "complex",
                     "the parts are on different devices: {} and {}", re, im);
  try {
    broadcast_shapes(re.sizes(), im.sizes());
  } catch (const ShapeError&) {
    fail<ShapeError>("complex", "the parts {} and {} do not broadcast: sizes must be equal or 1, counted from the last",
                     re, im);
  }
  return call(complex_op, {&re, &im});
}

}  // namespace tutti
