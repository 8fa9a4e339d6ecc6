// Partial loads and stores of vectors: nothing outside is read or written.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tutti/pointwise/primitives.h"

namespace tutti::pointwise {
namespace {

template <class T>
class LanesTest : public testing::Test {};
using Elements = testing::Types<float, double, int64_t, int32_t, uint32_t, uint64_t>;
TYPED_TEST_SUITE(LanesTest, Elements);

template <class T>
using Wide = Vec<T, 64 / sizeof(T)>;

template <class V>
std::vector<typename V::Element> lanes_of(V v) {
  std::vector<typename V::Element> out(V::lanes);
  v.store(out.data());
  return out;
}
template <class T, int N>
std::vector<int> lanes_of(Mask<T, N> m) {
  uint8_t bytes[N];
  store_mask(bytes, m);
  return std::vector<int>(bytes, bytes + N);
}

TYPED_TEST(LanesTest, PartialLoadsAndStoresTouchNothingElse) {
  using T = TypeParam;
  using V = Wide<T>;
  for (int n = 0; n <= V::lanes; ++n) {
    // A buffer of just n elements: the address sanitizer sees any access beyond.
    std::vector<T> in(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) in[i] = static_cast<T>(i + 1);
    V v = V::load(in.data(), n);
    std::vector<T> all = lanes_of(v);
    for (int i = 0; i < V::lanes; ++i) EXPECT_EQ(all[i], i < n ? static_cast<T>(i + 1) : T(0));
    std::vector<T> out(V::lanes, T(77));
    (v + 1).store(out.data(), n);
    for (int i = 0; i < V::lanes; ++i) EXPECT_EQ(out[i], i < n ? static_cast<T>(i + 2) : T(77));

    std::vector<uint8_t> flags(V::lanes, 9);
    store_mask(flags.data(), v > 1, n);
    for (int i = 0; i < V::lanes; ++i) EXPECT_EQ(flags[i], i < n ? i >= 1 : 9);
    std::vector<int> back = lanes_of(Mask<T, V::lanes>::load(flags.data(), n));
    for (int i = 0; i < V::lanes; ++i) EXPECT_EQ(back[i], i < n && i >= 1);
  }
}

}  // namespace
}  // namespace tutti::pointwise
