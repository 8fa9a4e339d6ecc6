// Tensors filled with random numbers. See Note [Random streams] in philox.h for who gets which number.
#include "tutti/random.h"

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/cores.h"
#include "base/launched.h"
#include "base/named.h"
#include "base/parallel.h"
#include "ops/random/draw.h"
#include "ops/random/kernels.h"
#include "tensor/convert.h"
#include "tensor/defined.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"
#include "tutti/trace.h"

namespace tutti {
namespace {

struct Interval {
  double low, high;
  Shape sizes;
  DType dtype;
  Device device;
  TUTTI_FIELDS(low, high, sizes, dtype, device)
};
struct Bell {
  double mean, std;
  Shape sizes;
  DType dtype;
  Device device;
  TUTTI_FIELDS(mean, std, sizes, dtype, device)
};
struct Chance {
  double p;
  Shape sizes;
  DType dtype;
  Device device;
  TUTTI_FIELDS(p, sizes, dtype, device)
};

struct Rate {
  double rate;
  Shape sizes;
  DType dtype;
  Device device;
  TUTTI_FIELDS(rate, sizes, dtype, device)
};

template <class A>
void infer_from(const Call& c, std::span<TensorSpec> out) {
  const auto& a = c.as<A>();
  out[0] = {.sizes = a.sizes, .dtype = a.dtype, .device = a.device};
}

// Calls make(range, pointer to T) for pieces of `out`, which is contiguous and seen as `count` numbers of `dtype`; what
// it makes is converted where dtype is not T's.
template <class T, class Make>
void fill_pieces(const Tensor& out, DType dtype, int64_t count, Generator::State state, Make&& make) {
  if (count == 0) return;
  auto* data = static_cast<std::byte*>(out.raw_data());
  auto size = static_cast<int64_t>(size_of(dtype));
  Convert convert = dtype == dtype_of<T> ? nullptr : converter(dtype, dtype_of<T>);
  parallel_for(count, kRandomGrain, [&](int64_t begin, int64_t end) {
    if (!convert)
      return make(RandomRange{state.seed, state.position, begin, end - begin}, reinterpret_cast<T*>(data) + begin);
    constexpr int64_t tile = 1024;
    alignas(64) T buffer[tile];
    for (; begin < end; begin += tile) {
      int64_t n = std::min(tile, end - begin);
      make(RandomRange{state.seed, state.position, begin, n}, buffer);
      convert(data + begin * size, 1, buffer, 1, n);
    }
  });
}

// The largest value of the dtype below `high`, or `low` if there is none from there on.
template <class T>
double last_below(double low, double high) {
  double l = static_cast<double>(T(static_cast<float>(low))), h = static_cast<double>(T(static_cast<float>(high)));
  if (!(l < h)) return l;
  T t(static_cast<float>(h));
  // One step towards zero, or away from it for what is not positive.
  auto bits = std::bit_cast<uint16_t>(t);
  bits = h > 0 ? static_cast<uint16_t>(bits - 1) : h < 0 ? static_cast<uint16_t>(bits + 1) : uint16_t{0x8001};
  return static_cast<double>(static_cast<float>(std::bit_cast<T>(bits)));
}
template <>
double last_below<float>(double low, double high) {
  auto l = static_cast<float>(low), h = static_cast<float>(high);
  return l < h ? std::nextafter(h, l) : l;
}
template <>
double last_below<double>(double low, double high) {
  return low < high ? std::nextafter(high, low) : low;
}

const Operator uniform_op{
    .name = "uniform",
    .infer = infer_from<Interval>,
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Interval>();
          bool complex = is_complex(a.dtype);
          DType real = to_real(a.dtype);
          int64_t count = c.output().numel() * (complex ? 2 : 1);
          if (real == DType::f64) {
            auto state = reserve_words(count, 2);
            double last = last_below<double>(a.low, a.high);
            fill_pieces<double>(c.output(), real, count, state, [&](const RandomRange& r, double* to) {
              random_uniform_f64_pointer()(r, a.low, a.high - a.low, last, to);
            });
            return;
          }
          // As many bits as the dtype has between 1/2 and 1, so that no number is rounded up to 1.
          int bits = real == DType::bf16 ? 8 : real == DType::f16 ? 11 : 24;
          auto last = static_cast<float>(real == DType::bf16  ? last_below<BFloat16>(a.low, a.high)
                                         : real == DType::f16 ? last_below<Half>(a.low, a.high)
                                                              : last_below<float>(a.low, a.high));
          auto low = static_cast<float>(a.low), width = static_cast<float>(a.high - a.low);
          fill_pieces<float>(c.output(), real, count, reserve_words(count, 1), [&](const RandomRange& r, float* to) {
            random_uniform_f32_pointer()(r, low, width, last, bits, to);
          });
        },
    .random = true,
};

const Operator normal_op{
    .name = "normal",
    .infer = infer_from<Bell>,
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Bell>();
          bool complex = is_complex(a.dtype);
          DType real = to_real(a.dtype);
          int64_t count = c.output().numel() * (complex ? 2 : 1);
          // The parts of a complex number share its variance.
          double std = complex ? a.std * M_SQRT1_2 : a.std;
          if (real == DType::f64) {
            fill_pieces<double>(
                c.output(), real, count, reserve_words(count, 2),
                [&](const RandomRange& r, double* to) { random_normal_f64_pointer()(r, a.mean, std, to); });
            return;
          }
          fill_pieces<float>(c.output(), real, count, reserve_words(count, 1), [&](const RandomRange& r, float* to) {
            random_normal_f32_pointer()(r, static_cast<float>(a.mean), static_cast<float>(std), to);
          });
        },
    .random = true,
};

const Operator exponential_op{
    .name = "exponential_",
    .infer = infer_from<Rate>,
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Rate>();
          int64_t count = c.output().numel();
          fill_pieces<double>(c.output(), a.dtype, count, reserve_words(count, 2),
                              [&](const RandomRange& r, double* to) {
                                random_exponential_f64_pointer()(r, to);
                                for (int64_t i = 0; i < r.count; ++i) to[i] /= a.rate;
                              });
        },
    .random = true,
};

const Operator chance_op{
    .name = "bernoulli_",
    .infer = infer_from<Chance>,
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Chance>();
          int64_t count = c.output().numel();
          if (a.p <= 0 || a.p >= 1) {
            NoGrad guard;
            Tensor out = c.output();
            out.fill_(a.p >= 1 ? 1 : 0);
            return;
          }
          uint32_t threshold = drop_threshold(1 - a.p);
          fill_pieces<bool>(c.output(), a.dtype, count, reserve_words(count, 1), [&](const RandomRange& r, bool* to) {
            random_mask_pointer()(r, threshold, reinterpret_cast<uint8_t*>(to));
          });
        },
    .random = true,
};

// Each element has a probability of its own.
const Operator bernoulli_op{
    .name = "bernoulli",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = {.sizes = c.input(0).sizes(), .dtype = c.input(0).dtype(), .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          Tensor p = c.input(0).detach().to(DType::f64).contiguous();
          int64_t count = p.numel();
          const double* chance = count ? p.data<double>() : nullptr;
          for (int64_t i = 0; i < count; ++i)
            check<ValueError>(chance[i] >= 0 && chance[i] <= 1, "bernoulli",
                              "probabilities must lie in [0, 1]; element {} of {} is {}", i, c.input(0), chance[i]);
          fill_pieces<double>(c.output(), c.output().dtype(), count, reserve_words(count, 2),
                              [&](const RandomRange& r, double* to) {
                                random_uniform_f64_pointer()(r, 0, 1, 1, to);
                                for (int64_t i = 0; i < r.count; ++i) to[i] = to[i] < chance[r.begin + i] ? 1 : 0;
                              });
        },
    .gradient =
        [](GradientCall& c) {
          c.set(0, zeros(c.input_sizes(0), {.dtype = c.input_dtype(0), .device = c.input_device(0)}));
        },
    .random = true,
};

void check_real(DType dtype, const char* name) {
  check<DTypeError>(is_differentiable(dtype), name,
                    "makes floating-point and complex numbers, not {}; use randint for integers", dtype);
}

Interval interval(double low, double high, const Shape& sizes, DType dtype, Device device, const char* name) {
  check_real(dtype, name);
  DType real = to_real(dtype);
  double limit = real == DType::f64    ? std::numeric_limits<double>::max()
                 : real == DType::f16  ? 65504
                 : real == DType::bf16 ? 0x1.fep127
                                       : static_cast<double>(std::numeric_limits<float>::max());
  check<ValueError>(low <= high && low >= -limit && high <= limit && high - low <= limit, name,
                    "cannot draw {} from [{}, {}): give finite bounds, low <= high, not further apart than {}", dtype,
                    low, high, limit);
  return {low, high, sizes, dtype, device};
}
Bell bell(double mean, double std, const Shape& sizes, DType dtype, Device device, const char* name) {
  check_real(dtype, name);
  check<ValueError>(std >= 0, name, "the deviation must not be negative: {}", std);
  return {mean, std, sizes, dtype, device};
}

Device device_of(const Options& o, const Shape& sizes, const char* name) {
  Device device = o.device.value_or(context().device);
  check_new(sizes, device, name);
  check_sizes(sizes, name);
  return device;
}
DType dtype_of_options(const Options& o) { return o.dtype.value_or(context().default_dtype); }

Tensor with_options(Tensor t, const Options& o) {
  if (o.requires_grad) t.requires_grad_();
  return t;
}

// A new tensor of x's shape (and layout), filled by `fill`.
template <class Fill>
Tensor filled_like(const Tensor& x, const Options& o, Fill&& fill) {
  Tensor t = empty_like(x, {.dtype = o.dtype, .device = o.device});
  fill(t);
  return with_options(t, o);
}

}  // namespace

uint32_t drop_threshold(double p) {
  double scaled = std::round(p * 0x1p32);
  return scaled >= 0x1p32 ? UINT32_MAX : static_cast<uint32_t>(scaled);
}

Generator::State reserve_words(int64_t elements, int64_t words) {
  int64_t in_group = words == 1 ? kElementsOfOneWord : kElementsOfTwoWords;
  return generator().reserve(static_cast<uint64_t>((elements + in_group - 1) / in_group * kBlocksInGroup));
}

// ---- The generator

namespace {
// Ranks and threads of one program start apart. The main thread is number 0, ranks come next, then threads that the
// library knows nothing of, in the order in which they first draw.
uint64_t seed_number(int rank) {
  static std::atomic<uint64_t> threads{0};
  if (rank >= 0) return static_cast<uint64_t>(rank) + 1;
  return gettid() == getpid() ? 0 : ++threads << 32;
}
}  // namespace

Generator& generator() {
  Context& c = context();
  if (!c.generator) {
    // As spawn_ranks gives it to its ranks: the same program draws the same numbers, however it was started.
    static std::atomic<bool> taken = false;
    auto me = launched();
    if (me && me->rank == c.rank && !taken.exchange(true)) {
      c.generator = std::make_shared<Generator>(static_cast<uint64_t>(c.rank), c.rank);
      return *c.generator;
    }
    // The finaliser of splitmix64 spreads neighbouring numbers over all seeds.
    auto seed =
        (seed_number(me ? -1 : c.rank) + (me ? static_cast<uint64_t>(me->rank) << 20 : 0)) * 0x9E3779B97F4A7C15ull;
    seed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9ull;
    seed = (seed ^ (seed >> 27)) * 0x94D049BB133111EBull;
    c.generator = std::make_shared<Generator>(seed ^ (seed >> 31));
  }
  return *c.generator;
}

void manual_seed(uint64_t seed) {
  if (Tracer* tracer = tracing()) tracer->untraceable("manual_seed() changes the random generator");
  generator().set_state({seed, 0});
}

// ---- Public functions

Tensor rand(const Shape& sizes, const Options& o) {
  Interval a = interval(0, 1, sizes, dtype_of_options(o), device_of(o, sizes, "rand"), "rand");
  return with_options(call(uniform_op, {}, attributes(a)), o);
}
Tensor randn(const Shape& sizes, const Options& o) {
  Bell a = bell(0, 1, sizes, dtype_of_options(o), device_of(o, sizes, "randn"), "randn");
  return with_options(call(normal_op, {}, attributes(a)), o);
}
Tensor rand_like(const Tensor& x, const Options& o) {
  return named("rand_like", [&] { return filled_like(x, o, [](Tensor& t) { t.uniform_(); }); });
}
Tensor randn_like(const Tensor& x, const Options& o) {
  return named("randn_like", [&] { return filled_like(x, o, [](Tensor& t) { t.normal_(); }); });
}

Tensor& Tensor::uniform_(double low, double high) {
  check_defined(*this, "uniform_");
  Interval a = interval(low, high, sizes(), dtype(), device(), "uniform_");
  return call_out(uniform_op, {}, *this, attributes(a));
}
Tensor& Tensor::normal_(double mean, double std) {
  check_defined(*this, "normal_");
  Bell a = bell(mean, std, sizes(), dtype(), device(), "normal_");
  return call_out(normal_op, {}, *this, attributes(a));
}
Tensor& Tensor::bernoulli_(double p) {
  check_defined(*this, "bernoulli_");
  check<ValueError>(p >= 0 && p <= 1, "bernoulli_", "the probability must lie in [0, 1], not {}", p);
  Chance a{p, sizes(), dtype(), device()};
  return call_out(chance_op, {}, *this, attributes(a));
}

Tensor& Tensor::exponential_(double rate) {
  check_defined(*this, "exponential_");
  check<DTypeError>(is_floating(), "exponential_", "makes floating-point numbers, not {}", dtype());
  check<ValueError>(rate > 0, "exponential_", "the rate must be positive, not {}", rate);
  Rate a{rate, sizes(), dtype(), device()};
  return call_out(exponential_op, {}, *this, attributes(a));
}

Tensor bernoulli(const Tensor& p) {
  check<ValueError>(p.defined(), "bernoulli", "the input is undefined: it was never given a value");
  check<DTypeError>(p.is_floating(), "bernoulli", "needs floating-point probabilities, not {}", p);
  return call(bernoulli_op, {&p});
}

}  // namespace tutti
