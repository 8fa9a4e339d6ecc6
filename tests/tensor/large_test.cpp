// More than 2^31 elements, of one byte each. They run once, in the release build: Slow keeps them from the sanitizers.
#include <sys/mman.h>

#include "tests/support/expect_ops.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

using testing::StartsWith;
using namespace test;  // NOLINT

constexpr int64_t kBeyond = (int64_t{1} << 31) + 5;

TEST(Large, PointwiseAndReductionsSlow) {
  Tensor x = zeros({kBeyond}, {u8});
  x[kBeyond - 1].fill_(7);
  x.add_(1);
  EXPECT_EQ(x[kBeyond - 1].item<int>(), 8);
  EXPECT_EQ(x[kBeyond - 2].item<int>(), 1);
  EXPECT_EQ(x.sum().item<int64_t>(), kBeyond + 7);
  EXPECT_EQ(x.argmax().item<int64_t>(), kBeyond - 1);
  EXPECT_EQ(x.amax().item<int>(), 8);
}

TEST(Large, ComparisonsAndLogicSlow) {
  Tensor x = zeros({kBeyond}, {u8});
  x.slice(0, kBeyond - 3).fill_(9);
  Tensor mask = x > 3;
  EXPECT_EQ(count_nonzero(mask).item<int64_t>(), 3);
  EXPECT_EQ(nonzero(mask)[0].item<int64_t>(), kBeyond - 3);
  EXPECT_EQ(masked_select(x, mask).numel(), 3);
  EXPECT_FALSE(all(mask).item<bool>());
  mask.bitwise_not_();
  EXPECT_EQ(count_nonzero(mask).item<int64_t>(), kBeyond - 3);
}

TEST(Large, CopiesSlow) {
  // Two columns, of which one is copied: strides and offsets beyond 2^31.
  Tensor x = zeros({kBeyond / 2 + 1, 2}, {u8});
  x[-1].copy_(tensor({3, 4}, u8));
  Tensor column = x.select(1, 1).clone();
  EXPECT_EQ(column.numel(), kBeyond / 2 + 1);
  EXPECT_EQ(column[-1].item<int>(), 4);
  EXPECT_EQ(column.sum().item<int64_t>(), 4);
  Tensor turned = x.t().contiguous();
  EXPECT_EQ(turned[0][-1].item<int>(), 3);
  EXPECT_EQ(turned[1].sum().item<int64_t>(), 4);
}

TEST(Large, JoinsAndIndicesSlow) {
  Tensor half = zeros({kBeyond / 2, 1}, {u8}), last = full({2, 1}, 5, u8);
  Tensor x = cat({half, half, last});
  EXPECT_EQ(x.size(0), kBeyond / 2 * 2 + 2);
  EXPECT_EQ(x.sum().item<int64_t>(), 10);
  Tensor chosen = index_select(x, 0, tensor({x.size(0) - 1, int64_t{0}, x.size(0) - 2}));
  EXPECT_EQ(values(chosen), (Doubles{5, 0, 5}));
  x.index_put_({tensor({x.size(0) - 1})}, 6);
  EXPECT_EQ(x[-1].item<int>(), 6);
  EXPECT_EQ(values(flip(x, 0).slice(0, 0, 3)), (Doubles{6, 5, 0}));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A row for which there is no working memory is said to be one; nothing of it is read before.
TEST(Large, RowsWithoutRoomAreAnError) {
  int64_t n = int64_t{1} << 38;
  size_t bytes = static_cast<size_t>(n) * 2;
  void* memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "this system gives no address space of 512 GiB";
  Tensor x = from_blob(memory, {n}, {.dtype = bf16}, [=] { munmap(memory, bytes); });
  EXPECT_THAT(message_of<MemoryError>([&] { logsumexp(x); }),
              StartsWith("logsumexp: no memory to hold a row of bf16["));
}
#endif

}  // namespace
}  // namespace tutti
