#include "ops/random/kernels.h"

#include <algorithm>

#include "ops/random/philox.h"
#include "tutti/pointwise/prim_trig.h"

namespace tutti {
namespace {

using namespace pointwise;

constexpr int kLanes = 16;
using F32 = Vec<float, kLanes>;
using F64 = Vec<double, kLanes>;
using U32 = Vec<uint32_t, kLanes>;
using Block = PhiloxBlock<kLanes>;

// Calls put(block, k) for each group, k being the first of its Elements elements counted from range.begin.
template <int64_t Elements, class Put>
TUTTI_HD void for_each_group(const RandomRange& range, Put&& put) {
  uint64_t block = range.position + static_cast<uint64_t>(range.begin / Elements * kBlocksInGroup);
  for (int64_t k = 0; k < range.count; k += Elements, block += kBlocksInGroup)
    put(philox<kLanes>(range.seed, block, 0), k);
}

// Stores 16 lanes at out[k], or as many as there is room for.
template <class T>
TUTTI_HD void store_lanes(T* out, Vec<T, kLanes> v, int64_t k, int64_t count) {
  if (k + kLanes <= count)
    v.store(out + k);
  else if (k < count)
    v.store(out + k, static_cast<int>(count - k));
}
template <class T>
TUTTI_HD Vec<T, kLanes> load_lanes(const T* in, int64_t k, int64_t count) {
  if (k + kLanes <= count) return Vec<T, kLanes>::load(in + k);
  return Vec<T, kLanes>::load(in + k, static_cast<int>(std::clamp<int64_t>(count - k, 0, kLanes)));
}

// 53 bits of two words as a number in [0, 1).
TUTTI_HD F64 fraction(U32 a, U32 b) {
  F64 high = convert<double>(bit_cast<int32_t>(a >> 5)), low = convert<double>(bit_cast<int32_t>(b >> 6));
  return (high * 0x1p26 + low) * 0x1p-53;
}

template <class V>
struct TwoNormals {
  V first, second;
};

// Box and Muller: the angle is exact in turns, so that no reduction is needed before sine and cosine.
TUTTI_HD TwoNormals<F32> two_normals(U32 a, U32 b) {
  // 31 bits and a half, in (0, 1]: the smallest gives 6.66 deviations.
  F32 u = convert<float>(bit_cast<int32_t>(a >> 1)) * 0x1p-31f + 0x1p-32f;
  F32 radius = sqrt(log(u) * -2);
  U32 quadrant = (b + 0x20000000u) >> 30;
  F32 turn = convert<float>(bit_cast<int32_t>(b - (quadrant << 30)));
  auto v = detail::sin_cos(detail::Pair<F32>{turn * 0x1.921fb6p-30f, 0});
  return {radius * detail::sin_of_quadrant(v, quadrant + 1u), radius * detail::sin_of_quadrant(v, quadrant)};
}
TUTTI_HD TwoNormals<F64> two_normals(F64 u, F64 turns) {
  F64 radius = sqrt(log(1 - u) * -2);
  F64 shifted = turns * 4 + detail::Real<double>::magic;
  F64 rest = turns * 4 - (shifted - detail::Real<double>::magic);
  auto quadrant = as_uint(shifted) & uint64_t(3);
  auto v = detail::sin_cos(detail::Pair<F64>{rest * 0x1.921fb54442d18p+0, 0});
  return {radius * detail::sin_of_quadrant(v, quadrant + uint64_t(1)), radius * detail::sin_of_quadrant(v, quadrant)};
}

template <class T>
TUTTI_HD void drop(const RandomRange& range, uint32_t threshold, T scale, const T* in, T* out) {
  for_each_group<kElementsOfOneWord>(range, [&](const Block& b, int64_t k) __attribute__((always_inline)) {
    for (int w = 0; w < 4; ++w) {
      int64_t at = k + w * kLanes;
      if (at >= range.count) return;
      Vec<T, kLanes> x = load_lanes(in, at, range.count) * scale;
      store_lanes(out, select(mask_cast<T>(b.word[w] >= U32(threshold)), x, T(0)), at, range.count);
    }
  });
}

}  // namespace

TUTTI_ISA_DEFINE(random_words, void,
                 (uint64_t seed, uint64_t position, int64_t first_group, int64_t groups, uint32_t* out)) {
  uint64_t block = position + static_cast<uint64_t>(first_group * kBlocksInGroup);
  for (int64_t g = 0; g < groups; ++g, block += kBlocksInGroup, out += 4 * kLanes) {
    Block b = philox<kLanes>(seed, block, 0);
    for (int w = 0; w < 4; ++w) b.word[w].store(out + w * kLanes);
  }
}

TUTTI_ISA_DEFINE(random_uniform_f32, void,
                 (const RandomRange& range, float low, float width, float last, int bits, float* out)) {
  float unit = 1;
  for (int i = 0; i < bits; ++i) unit *= 0.5f;
  for_each_group<kElementsOfOneWord>(range, [&](const Block& b, int64_t k) __attribute__((always_inline)) {
    for (int w = 0; w < 4; ++w) {
      F32 u = convert<float>(bit_cast<int32_t>(b.word[w] >> (32 - bits))) * unit;
      store_lanes(out, lesser(u * width + low, F32(last)), k + w * kLanes, range.count);
    }
  });
}

TUTTI_ISA_DEFINE(random_uniform_f64, void,
                 (const RandomRange& range, double low, double width, double last, double* out)) {
  for_each_group<kElementsOfTwoWords>(range, [&](const Block& b, int64_t k) __attribute__((always_inline)) {
    for (int p = 0; p < 2; ++p) {
      F64 u = fraction(b.word[2 * p], b.word[2 * p + 1]);
      store_lanes(out, lesser(u * width + low, F64(last)), k + p * kLanes, range.count);
    }
  });
}

TUTTI_ISA_DEFINE(random_normal_f32, void, (const RandomRange& range, float mean, float std, float* out)) {
  for_each_group<kElementsOfOneWord>(range, [&](const Block& b, int64_t k) __attribute__((always_inline)) {
    for (int p = 0; p < 2; ++p) {
      auto z = two_normals(b.word[2 * p], b.word[2 * p + 1]);
      store_lanes(out, z.first * std + mean, k + 2 * p * kLanes, range.count);
      store_lanes(out, z.second * std + mean, k + (2 * p + 1) * kLanes, range.count);
    }
  });
}

TUTTI_ISA_DEFINE(random_normal_f64, void, (const RandomRange& range, double mean, double std, double* out)) {
  for_each_group<kElementsOfTwoWords>(range, [&](const Block& b, int64_t k) __attribute__((always_inline)) {
    auto z = two_normals(fraction(b.word[0], b.word[1]), fraction(b.word[2], b.word[3]));
    store_lanes(out, z.first * std + mean, k, range.count);
    store_lanes(out, z.second * std + mean, k + kLanes, range.count);
  });
}

TUTTI_ISA_DEFINE(random_exponential_f64, void, (const RandomRange& range, double* out)) {
  for_each_group<kElementsOfTwoWords>(range, [&](const Block& b, int64_t k) __attribute__((always_inline)) {
    for (int p = 0; p < 2; ++p) {
      F64 u = fraction(b.word[2 * p], b.word[2 * p + 1]);
      store_lanes(out, -log(1 - u), k + p * kLanes, range.count);
    }
  });
}

TUTTI_ISA_DEFINE(random_mask, void, (const RandomRange& range, uint32_t threshold, uint8_t* out)) {
  for_each_group<kElementsOfOneWord>(range, [&](const Block& b, int64_t k) __attribute__((always_inline)) {
    for (int w = 0; w < 4; ++w) {
      int64_t at = k + w * kLanes, room = range.count - at;
      if (room >= kLanes)
        store_mask(out + at, b.word[w] >= U32(threshold));
      else if (room > 0)
        store_mask(out + at, b.word[w] >= U32(threshold), static_cast<int>(room));
    }
  });
}

TUTTI_ISA_DEFINE(random_drop_f32, void,
                 (const RandomRange& range, uint32_t threshold, float scale, const float* in, float* out)) {
  drop(range, threshold, scale, in, out);
}
TUTTI_ISA_DEFINE(random_drop_f64, void,
                 (const RandomRange& range, uint32_t threshold, double scale, const double* in, double* out)) {
  drop(range, threshold, scale, in, out);
}

}  // namespace tutti
