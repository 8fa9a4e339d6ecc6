// Operators whose kernels share their work out to threads, on inputs that are large enough for it: with several threads
// they give the bits that they give with one, and so do calls from several threads at once. What this is for above all
// is ThreadSanitizer, which looks on (make tsan LABEL=threads): a lean choice of operators, one for each way in which
// kernels cut their work.
#include <array>
#include <functional>
#include <latch>
#include <thread>

#include "tests/support/expect_ops.h"
#include "tutti/ops/attention.h"
#include "tutti/ops/norm.h"
#include "tutti/ops/pool.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using Work = std::function<TensorList()>;

void expect_bits(const TensorList& found, const TensorList& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(equal(found[i], wanted[i])) << "result " << i;
}

// By one thread, by 2 and 4 of them; then from two threads at once, each of which has two.
void expect_same_by_threads(const char* name, const Work& work) {
  SCOPED_TRACE(name);
  TensorList wanted;
  {
    ThreadsGuard one(1);
    wanted = work();
  }
  for (int threads : {2, 4}) {
    ThreadsGuard guard(threads);
    expect_bits(work(), wanted);
  }
  std::array<TensorList, 2> found;
  std::latch start(2);
  auto run = [&](TensorList& mine) {
    ThreadsGuard guard(2);
    start.arrive_and_wait();
    mine = work();
  };
  std::thread other(run, std::ref(found[1]));
  run(found[0]);
  other.join();
  for (auto& list : found) expect_bits(list, wanted);
}

// The result and its gradients with respect to x.
Work with_gradient(const Tensor& x, std::function<Tensor(const Tensor&)> f) {
  return [x, f = std::move(f)]() -> TensorList {
    Tensor leaf = x.detach().requires_grad_(), y = f(leaf);
    return {y.detach(), grad(sum(y * y), leaf)};
  };
}

TEST(OperatorsByThreads, Pointwise) {
  manual_seed(1);
  Tensor x = randn({180, 400}), row = randn({400}), turned = randn({400, 180}).t(), whole = randint(-9, 9, {180, 400});
  expect_same_by_threads("gelu", with_gradient(x, [](auto& t) { return gelu(t); }));
  expect_same_by_threads("broadcast", with_gradient(x, [=](auto& t) { return t * row + turned; }));
  expect_same_by_threads("strided", [=]() -> TensorList { return {turned.exp(), add(x, turned)}; });
  expect_same_by_threads("converted", [=]() -> TensorList { return {whole.to(f32) / 3, x.to(bf16) + 1, x > turned}; });
  expect_same_by_threads("in place", [=]() -> TensorList {
    Tensor y = x.clone();
    y.mul_(turned).add_(row).t().masked_fill_(x.t() > 0, 2);
    return {y, where(y > 0, y, whole)};
  });
  expect_same_by_threads("copies", [=]() -> TensorList {
    return {turned.contiguous(), cat({x, turned}, 1), flip(x, {0, 1}), roll(x, {3, 5}, {0, 1}), repeat(x, {2, 1})};
  });
}

TEST(OperatorsByThreads, Reductions) {
  manual_seed(2);
  Tensor x = randn({180, 400}), line = randn({100000}), turned = randn({400, 180}).t();
  expect_same_by_threads("sums", [=]() -> TensorList {
    return {sum(x), sum(line), sum(x, 0), sum(x, 1), sum(turned, 0), mean(turned, 1), prod(line.sign())};
  });
  expect_same_by_threads("extremes", [=]() -> TensorList {
    return {amax(line), argmax(line), argmin(x, 0), max(x, 1).indices, any(line > 4), count_nonzero(line > 0)};
  });
  expect_same_by_threads("moments", [=]() -> TensorList { return {var(x, 0), stddev(line), norm(x, 2, 1)}; });
  expect_same_by_threads("softmax", with_gradient(x, [](auto& t) { return softmax(t, 1) + log_softmax(t, 0); }));
  expect_same_by_threads("logsumexp", with_gradient(x, [](auto& t) { return logsumexp(t, 0); }));
  expect_same_by_threads("cumulative", [=]() -> TensorList { return {cumsum(line, 0), cumsum(x, 0), cumprod(x, 1)}; });
  expect_same_by_threads("norms", with_gradient(x, [](auto& t) { return layer_norm(t, {400}); }));
}

TEST(OperatorsByThreads, Products) {
  manual_seed(3);
  Tensor a = randn({70, 320}), b = randn({320, 210}), deep = randn({4, 20000}), many = randn({24, 40, 40});
  Tensor v = randn({20000}), q = randn({2, 4, 40, 16});
  expect_same_by_threads("mm", with_gradient(a, [=](auto& t) { return mm(t, b); }));
  expect_same_by_threads("turned", [=]() -> TensorList { return {mm(b.t(), a.t()), mm(deep, deep.t())}; });
  expect_same_by_threads("mv",
                         [=]() -> TensorList { return {mv(deep, v), dot(v, v), mv(deep.t(), v.slice(0, 0, 4))}; });
  expect_same_by_threads("bmm", with_gradient(many, [=](auto& t) { return bmm(t, many); }));
  expect_same_by_threads("bf16", [=]() -> TensorList { return {mm(a.to(bf16), b.to(bf16))}; });
  expect_same_by_threads("attention", with_gradient(q, [=](auto& t) { return scaled_dot_product_attention(t, q, q); }));
}

TEST(OperatorsByThreads, OrdersAndIndices) {
  manual_seed(4);
  Tensor x = randn({180, 400}), line = randn({60000}), list = randint(0, 180, {300}), table = randn({300, 400});
  Tensor places = randint(0, 180, {180, 400}), far = randint(0, 500, {60000});
  expect_same_by_threads("sort", [=]() -> TensorList {
    return {sort(line).values, argsort(x, 0), sort(x, 1, true).indices, topk(x, 7, 1).values, topk(line, 9).indices};
  });
  expect_same_by_threads("taken", [=]() -> TensorList {
    return {gather(x, 0, places), index_select(x, 0, list), x.index({list}), masked_select(x, x > 0), nonzero(x > 1)};
  });
  expect_same_by_threads("put", [=]() -> TensorList {
    return {scatter_add(x, 0, places, x), index_add(x, 0, list, table), index_copy(x, 0, list, table),
            index_put(zeros({500}), {far}, line, true), index_add(x.to(bf16), 0, list, table.to(bf16))};
  });
  expect_same_by_threads("gradients", with_gradient(x, [=](auto& t) { return index_select(t, 0, list); }));
  expect_same_by_threads("counted", [=]() -> TensorList { return {unique(far).counts, bincount(far), one_hot(list)}; });
}

TEST(OperatorsByThreads, RandomAndPools) {
  manual_seed(5);
  Tensor images = randn({4, 6, 40, 40});
  expect_same_by_threads("random", []() -> TensorList {
    manual_seed(7);  // of this thread
    return {rand({70000}), randn({70000}), randperm(40000), dropout(ones({70000}), 0.3)};
  });
  expect_same_by_threads("pools", with_gradient(images, [](auto& t) { return max_pool2d(t, 2) + avg_pool2d(t, 2); }));
}

}  // namespace
}  // namespace tutti
