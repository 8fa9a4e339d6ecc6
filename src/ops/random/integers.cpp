// Random integers and permutations.
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/cores.h"
#include "base/parallel.h"
#include "ops/random/draw.h"
#include "ops/random/kernels.h"
#include "ops/random/philox.h"
#include "tensor/call.h"
#include "tensor/convert.h"
#include "tensor/defined.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

struct Integers {
  int64_t low, high;
  Shape sizes;
  DType dtype;
  Device device;
  TUTTI_FIELDS(low, high, sizes, dtype, device)
};
struct Permutation {
  int64_t n;
  DType dtype;
  Device device;
  TUTTI_FIELDS(n, dtype, device)
};

// 64-bit numbers for elements in order, made a tile at a time.
class Numbers {
 public:
  explicit Numbers(Generator::State state) : state_(state) {}

  uint64_t at(int64_t i) {
    if (i < begin_ || i >= begin_ + kTile) load(i / kTile * kTile);
    int64_t k = i - begin_, word = k / 32 * 64 + k / 16 % 2 * 32 + k % 16;
    return static_cast<uint64_t>(words_[word]) << 32 | words_[word + 16];
  }
  // Uniform in [0, range): the high half of number·range. Where that would favour some values, the element's next
  // number is taken (Lemire, "Fast random integer generation in an interval", 2019): no value is likelier than another.
  uint64_t below(uint64_t range, int64_t i) {
    unsigned __int128 product = static_cast<unsigned __int128>(at(i)) * range;
    if (static_cast<uint64_t>(product) < range) {
      uint64_t excess = (0 - range) % range;
      for (uint32_t attempt = 1; static_cast<uint64_t>(product) < excess; ++attempt)
        product = static_cast<unsigned __int128>(another(i, attempt)) * range;
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  static constexpr int64_t kTile = 512;

  void load(int64_t begin) {
    begin_ = begin;
    random_words_pointer()(state_.seed, state_.position, begin / kElementsOfTwoWords, kTile / kElementsOfTwoWords,
                           words_);
  }
  uint64_t another(int64_t i, uint32_t attempt) const {
    uint64_t block =
        state_.position + static_cast<uint64_t>(i / kElementsOfTwoWords * kBlocksInGroup + i % kBlocksInGroup);
    auto b = philox<1>(state_.seed, block, attempt);
    auto p = static_cast<size_t>(i / 16 % 2 * 2);
    return static_cast<uint64_t>(b.word[p].v) << 32 | b.word[p + 1].v;
  }

  Generator::State state_;
  int64_t begin_ = -kTile;
  alignas(64) uint32_t words_[kTile * 2];
};

const Operator randint_op{
    .name = "randint",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const auto& a = c.as<Integers>();
          out[0] = {.sizes = a.sizes, .dtype = a.dtype, .device = a.device};
        },
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Integers>();
          int64_t count = c.output().numel();
          if (count == 0) return;
          auto state = reserve_words(count, 2);
          uint64_t range = static_cast<uint64_t>(a.high) - static_cast<uint64_t>(a.low);
          auto* data = static_cast<std::byte*>(c.output().raw_data());
          Convert convert = converter(a.dtype, DType::i64);
          auto size = static_cast<int64_t>(size_of(a.dtype));
          parallel_for(count, kRandomGrain, [&](int64_t begin, int64_t end) {
            Numbers numbers(state);
            int64_t values[512];
            for (; begin < end; begin += 512) {
              int64_t n = std::min<int64_t>(512, end - begin);
              for (int64_t i = 0; i < n; ++i)
                values[i] = static_cast<int64_t>(static_cast<uint64_t>(a.low) + numbers.below(range, begin + i));
              convert(data + begin * size, 1, values, 1, n);
            }
          });
        },
    .random = true,
};

// Fisher and Yates: element i changes places with one of those up to it.
const Operator randperm_op{
    .name = "randperm",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const auto& a = c.as<Permutation>();
          out[0] = {.sizes = {a.n}, .dtype = a.dtype, .device = a.device};
        },
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Permutation>();
          if (a.n == 0) return;
          Tensor order = a.dtype == DType::i64 ? c.output() : make_tensor({a.n}, DType::i64, a.device);
          auto* p = order.data<int64_t>();
          for (int64_t i = 0; i < a.n; ++i) p[i] = i;
          Numbers numbers(reserve_words(a.n, 2));
          for (int64_t i = a.n - 1; i > 0; --i) std::swap(p[i], p[numbers.below(static_cast<uint64_t>(i) + 1, i)]);
          if (a.dtype != DType::i64) copy_into(c.output(), order);
        },
    .random = true,
};

// Whether every integer in [low, high] is a value of the dtype.
bool holds(DType dtype, int64_t low, int64_t high) {
  auto within = [&](int64_t from, int64_t to) { return low >= from && high <= to; };
  auto mantissa = [&](int bits) { return within(-(int64_t{1} << bits), int64_t{1} << bits); };
  switch (dtype) {
    case DType::boolean:
      return within(0, 1);
    case DType::u8:
      return within(0, 255);
    case DType::i8:
      return within(INT8_MIN, INT8_MAX);
    case DType::i16:
      return within(INT16_MIN, INT16_MAX);
    case DType::i32:
      return within(INT32_MIN, INT32_MAX);
    case DType::i64:
      return true;
    case DType::bf16:
      return mantissa(8);
    case DType::f16:
      return mantissa(11);
    case DType::f32:
    case DType::c64:
      return mantissa(24);
    default:
      return mantissa(53);
  }
}

void check_range(const Integers& a, const char* name) {
  check<ValueError>(a.low < a.high, name, "[{}, {}) is empty: give low < high", a.low, a.high);
  check<ValueError>(holds(a.dtype, a.low, a.high - 1), name, "{} cannot hold all integers in [{}, {})", a.dtype, a.low,
                    a.high);
}

}  // namespace

Tensor& Tensor::random_(int64_t low, int64_t high) {
  check_defined(*this, "random_");
  Integers a{low, high, sizes(), dtype(), device()};
  check_range(a, "random_");
  return call_out(randint_op, {}, *this, attributes(a));
}

Tensor randint(int64_t low, int64_t high, const Shape& sizes, const Options& o) {
  Integers a{low, high, sizes, o.dtype.value_or(DType::i64), o.device.value_or(context().device)};
  check_new(sizes, a.device, "randint");
  check_range(a, "randint");
  Tensor t = call(randint_op, {}, attributes(a));
  if (o.requires_grad) t.requires_grad_();
  return t;
}

Tensor randperm(int64_t n, const Options& o) {
  check<ValueError>(n >= 0, "randperm", "the length must not be negative: {}", n);
  Permutation a{n, o.dtype.value_or(DType::i64), o.device.value_or(context().device)};
  check_device(a.device, "randperm");
  check<ValueError>(n == 0 || holds(a.dtype, 0, n - 1), "randperm", "{} cannot hold all integers in [0, {})", a.dtype,
                    n);
  Tensor t = call(randperm_op, {}, attributes(a));
  if (o.requires_grad) t.requires_grad_();
  return t;
}

}  // namespace tutti
