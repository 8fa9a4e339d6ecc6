// Outputs that are also inputs, at sizes at which kernels work in tiles and by several threads; the table tries every
// operator with small ones.
#include <gtest/gtest.h>

#include <functional>

#include "base/memory.h"
#include "tests/support/compare.h"
#include "tutti/autograd.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti::test {
namespace {

constexpr int64_t kSize = 300;

Tensor square(DType dtype = f32) { return randint(-4, 4, {kSize, kSize}).to(dtype); }

/// `into(x)` leaves in x what `plain` gives of what x was.
void expect_same(const char* name, Tensor x, const std::function<Tensor(const Tensor&)>& plain,
                 const std::function<void(Tensor&)>& into) {
  Tensor expected = plain(x.clone());
  into(x);
  EXPECT_TRUE(identical(x, expected)) << name << " of " << to_string(x.dtype());
}

TEST(Alias, Products) {
  for (DType dtype : {f32, f64, bf16, i64, c64}) {
    Tensor b = square(dtype), c = square(dtype);
    expect_same("mm(x, b)", square(dtype), [&](auto& x) { return mm(x, b); }, [&](auto& x) { mm_out(x, x, b); });
    expect_same("mm(x, x)", square(dtype), [&](auto& x) { return mm(x, x); }, [&](auto& x) { mm_out(x, x, x); });
    expect_same(
        "mm(x, xᵀ)", square(dtype), [&](auto& x) { return mm(x, x.t()); }, [&](auto& x) { mm_out(x, x, x.t()); });
    expect_same(
        "addmm(x, x, b)", square(dtype), [&](auto& x) { return addmm(x, x, b, 2, 3); },
        [&](auto& x) { addmm_(x, x, b, 2, 3); });
    expect_same(
        "addmm(c, x, x)", square(dtype), [&](auto& x) { return addmm(c, x, x); },
        [&](auto& x) { addmm_out(x, c, x, x); });
    expect_same(
        "mv(b, x)", square(dtype)[0].clone(), [&](auto& x) { return mv(b, x); }, [&](auto& x) { mv_out(x, b, x); });
    expect_same(
        "bmm(x, x)", square(dtype).unsqueeze(0), [&](auto& x) { return bmm(x, x); },
        [&](auto& x) { bmm_out(x, x, x); });
    expect_same(
        "baddbmm(x, x, x)", square(dtype).unsqueeze(0), [&](auto& x) { return baddbmm(x, x, x); },
        [&](auto& x) { baddbmm_(x, x, x); });
  }
}

TEST(Alias, Indices) {
  Tensor order = randperm(kSize), places = randint(0, kSize, {kSize, kSize});
  expect_same(
      "index_select", square(), [&](auto& x) { return index_select(x, 0, order); },
      [&](auto& x) { index_select_out(x, x, 0, order); });
  expect_same(
      "gather", square(), [&](auto& x) { return gather(x, 1, places); }, [&](auto& x) { gather_out(x, x, 1, places); });
  expect_same(
      "gather by itself", places.clone(), [&](auto& x) { return gather(places, 0, x); },
      [&](auto& x) { gather_out(x, places, 0, x); });
  expect_same(
      "scatter_add of itself", square(), [&](auto& x) { return scatter_add(x, 0, places, x); },
      [&](auto& x) { x.scatter_add_(0, places, x); });
  expect_same(
      "index_add of itself", square(), [&](auto& x) { return index_add(x, 0, order, x); },
      [&](auto& x) { x.index_add_(0, order, x); });
  expect_same(
      "index_put of itself", square(), [&](auto& x) { return index_put(x, {order}, x); },
      [&](auto& x) { x.index_put_({order}, x); });
}

TEST(Alias, Orders) {
  expect_same(
      "sort", square(), [](auto& x) { return sort(x, 0, true).values; },
      [](auto& x) {
        ValuesIndices out{x, {}};
        sort_out(out, x, 0, true);
      });
  expect_same(
      "topk", square(), [](auto& x) { return topk(x, kSize).values; },
      [](auto& x) {
        ValuesIndices out{x, {}};
        topk_out(out, x, kSize);
      });
  expect_same(
      "the indices of sort", randperm(kSize), [](auto& x) { return sort(x).indices; },
      [](auto& x) {
        ValuesIndices out{{}, x};
        sort_out(out, x);
      });
}

TEST(Alias, AlongRows) {
  expect_same("cumsum", square(), [](auto& x) { return cumsum(x, 0); }, [](auto& x) { cumsum_(x, 0); });
  expect_same("cumprod", square(), [](auto& x) { return cumprod(x, 1); }, [](auto& x) { cumprod_(x, 1); });
  expect_same("softmax", square(), [](auto& x) { return softmax(x, 0); }, [](auto& x) { softmax_out(x, x, 0); });
  expect_same(
      "log_softmax", square(bf16), [](auto& x) { return log_softmax(x, 1); },
      [](auto& x) { log_softmax_out(x, x, 1); });
}

// What the gradient keeps of an overwritten input is also what the kernel reads: one copy, not two.
TEST(Alias, IsCopiedOnce) {
  Tensor weight = square().requires_grad_(), x = square();
  int64_t bytes = kSize * kSize * 4;
  auto taken = [&](Tensor& out) {
    int64_t before = memory::statistics().bytes_in_use;
    memory::reset_peak();
    mm_out(out, x, weight);
    return memory::statistics().bytes_peak - before;
  };
  Tensor other = square();
  int64_t product = taken(other);  // what the product needs for itself, and takes whatever its result is
  EXPECT_LT(taken(x), product + bytes + bytes / 2);
  // The copy is what x was: the gradient of the weight is its transpose by ones.
  Tensor was = square();
  x = was.clone();
  mm_out(x, x, weight);
  x.sum().backward();
  EXPECT_TRUE(identical(weight.grad(), mm(was.t(), ones({kSize, kSize}))));
}

}  // namespace
}  // namespace tutti::test
