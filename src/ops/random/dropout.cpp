// Dropout. The random part is one small operator that takes numbers from the generator and says where they begin;
// dropping is then a plain operator of that place. So the gradient makes the same mask again instead of keeping it.
#include <cmath>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/random/draw.h"
#include "ops/random/kernels.h"
#include "tensor/call.h"
#include "tensor/convert.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

struct Reserve {
  int64_t elements;
  Device device;
  TUTTI_FIELDS(elements, device)
};
struct Drop {
  double p;
  TUTTI_FIELDS(p)
};

// i64 [2]: the seed and the position.
const Operator random_state_op{
    .name = "random_state",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = {.sizes = {2}, .dtype = DType::i64, .device = c.as<Reserve>().device};
        },
    .cpu =
        [](const Call& c) {
          auto state = reserve_words(c.as<Reserve>().elements, 1);
          auto* p = c.output().data<int64_t>();
          p[0] = static_cast<int64_t>(state.seed);
          p[1] = static_cast<int64_t>(state.position);
        },
    .random = true,
};

template <class T>
void drop_complex(const RandomRange& range, uint32_t threshold, T scale, const std::complex<T>* in,
                  std::complex<T>* out) {
  uint8_t keep[1024];
  for (int64_t k = 0; k < range.count; k += 1024) {
    int64_t n = std::min<int64_t>(1024, range.count - k);
    random_mask_pointer()({range.seed, range.position, range.begin + k, n}, threshold, keep);
    for (int64_t i = 0; i < n; ++i) out[k + i] = keep[i] ? in[k + i] * scale : std::complex<T>(0);
  }
}

// bf16 and f16, computed as f32.
void drop_half(DType dtype, const RandomRange& range, uint32_t threshold, float scale, const std::byte* in,
               std::byte* out) {
  Convert load = converter(DType::f32, dtype), store = converter(dtype, DType::f32);
  alignas(64) float buffer[1024];
  for (int64_t k = 0; k < range.count; k += 1024) {
    int64_t n = std::min<int64_t>(1024, range.count - k);
    load(buffer, 1, in + 2 * k, 1, n);
    random_drop_f32_pointer()({range.seed, range.position, range.begin + k, n}, threshold, scale, buffer, buffer);
    store(out + 2 * k, 1, buffer, 1, n);
  }
}

void drop_range(DType dtype, const RandomRange& range, double p, const std::byte* in, std::byte* out) {
  uint32_t threshold = drop_threshold(p);
  double scale = 1 / (1 - p);
  auto offset = range.begin * static_cast<int64_t>(size_of(dtype));
  const void* from = in + offset;
  void* to = out + offset;
  switch (dtype) {
    case DType::f32:
      return random_drop_f32_pointer()(range, threshold, static_cast<float>(scale), static_cast<const float*>(from),
                                       static_cast<float*>(to));
    case DType::f64:
      return random_drop_f64_pointer()(range, threshold, scale, static_cast<const double*>(from),
                                       static_cast<double*>(to));
    case DType::c64:
      return drop_complex(range, threshold, static_cast<float>(scale), static_cast<const std::complex<float>*>(from),
                          static_cast<std::complex<float>*>(to));
    case DType::c128:
      return drop_complex(range, threshold, scale, static_cast<const std::complex<double>*>(from),
                          static_cast<std::complex<double>*>(to));
    default:
      return drop_half(dtype, range, threshold, static_cast<float>(scale), in + offset, out + offset);
  }
}

// Element by element in row-major order, so that the mask does not depend on x's strides; the result keeps them.
extern const Operator dropout_op;
const Operator dropout_op{
    .name = "dropout",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor& x = c.input(0);
          out[0] = {.sizes = x.sizes(), .dtype = x.dtype(), .device = x.device()};
          if (x.is_contiguous() || !is_dense(x.sizes(), x.strides())) return;
          out[0].strides = x.strides();
          out[0].strided = true;
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          double p = c.as<Drop>().p;
          Tensor x = c.input(0).detach(), out = c.output();
          if (p >= 1) {
            out.zero_();
            return;
          }
          if (x.numel() == 0) return;
          x = x.contiguous();
          Tensor to = out.is_contiguous() ? out : make_tensor(out.sizes(), out.dtype(), out.device());
          const auto* state = c.input(1).data<int64_t>();
          const auto* from = static_cast<const std::byte*>(x.raw_data());
          auto* data = static_cast<std::byte*>(to.raw_data());
          parallel_for(x.numel(), kRandomGrain, [&](int64_t begin, int64_t end) {
            RandomRange range{static_cast<uint64_t>(state[0]), static_cast<uint64_t>(state[1]), begin, end - begin};
            drop_range(x.dtype(), range, p, from, data);
          });
          if (!to.is_same(out)) copy_into(out, to);
        },
    .gradient =
        [](GradientCall& c) {
          Tensor state = c.input(1);
          c.set(0, call(dropout_op, {&c.grad(), &state}, c.attributes()));
        },
    .saves_inputs = 0b10,
    .in_place = 1,
};

bool drops(const Tensor& x, double p, bool training) {
  check<ValueError>(x.defined(), "dropout", "the input is undefined: it was never given a value");
  check<ValueError>(p >= 0 && p <= 1, "dropout", "the probability must lie in [0, 1], not {}", p);
  if (!training || p == 0) return false;
  check<DTypeError>(is_differentiable(x.dtype()), "dropout", "needs floating-point or complex numbers, not {}", x);
  return true;
}

}  // namespace

Tensor random_state(int64_t elements, Device device) {
  Reserve r{elements, device};
  return call(random_state_op, {}, attributes(r));
}

Tensor dropout(const Tensor& x, double p, bool training) {
  if (!drops(x, p, training)) return x;
  Tensor state = random_state(x.numel(), x.device());
  Drop a{p};
  return call(dropout_op, {&x, &state}, attributes(a));
}
Tensor& dropout_(Tensor& x, double p, bool training) {
  if (!drops(x, p, training)) return x;
  Tensor state = random_state(x.numel(), x.device());
  Drop a{p};
  return call_out(dropout_op, {&x, &state}, x, attributes(a));
}

}  // namespace tutti
