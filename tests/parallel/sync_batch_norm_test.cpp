// Batch norms over all ranks against one that sees all batches.
#include "tests/parallel/support.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using testing::HasSubstr;

struct SyncBatchNormTest : QuickTest<1, 2, 3> {};

// Rank r's rows of x: uneven, and the first rank's may be none.
Tensor uneven(const Tensor& x, bool empty_first) {
  int64_t row = 0, mine = 0;
  for (int r = 0; r <= rank(); ++r) {
    row += mine;
    mine = empty_first && r == 0 ? 0 : r + 2;
  }
  return x.narrow(0, row, mine);
}
int64_t all_rows(bool empty_first) {
  int64_t rows = 0;
  for (int r = 0; r < world_size(); ++r) rows += empty_first && r == 0 ? 0 : r + 2;
  return rows;
}

void compare_norms(const Shape& rest, bool empty_first) {
  Shape sizes{all_rows(empty_first)};
  for (int64_t s : rest) sizes.push_back(s);
  if (sizes[0] == 0) return;
  parallel::SyncBatchNorm norm(rest[0]);
  norm.to(f64);
  nn::AnyModule whole =
      rest.size() == 1 ? nn::AnyModule(nn::BatchNorm1d(rest[0])) : nn::AnyModule(nn::BatchNorm2d(rest[0]));
  whole.module().to(f64);
  for (uint64_t step = 0; step < 3; ++step) {
    Tensor x = numbers(sizes, step).requires_grad_(), w = numbers(sizes, 50 + step);
    Tensor mine = uneven(x, empty_first).detach().clone().requires_grad_();
    norm.zero_grad();
    whole.module().zero_grad();
    Tensor y = norm(mine), z = whole(x);
    expect_close(y, uneven(z, empty_first), "values");
    (y * y * uneven(w, empty_first)).sum().backward();
    (z * z * w).sum().backward();
    expect_close(mine.grad(), uneven(x.grad(), empty_first), "gradients of inputs", 1e-10);
    // Each rank has its share of the parameters' gradients.
    for (auto& [name, p] : norm.named_parameters()) {
      Tensor sum = p.grad().clone();
      all_reduce(sum);
      auto all = whole.module().named_parameters();
      for (auto& [other, q] : all)
        if (other == name) expect_close(sum, q.grad(), name, 1e-10);
    }
    for (auto& [name, b] : norm.named_buffers()) expect_close(b, whole.module().state_dict().at(name), name);
  }
  norm.eval();
  whole.module().eval();
  Tensor x = numbers({2, rest[0]}, 9);
  if (rest.size() == 1) expect_close(norm(x), whole(x), "evaluation");
}

TUTTI_RANK_TEST(SyncBatchNormTest, UnevenBatches) {
  compare_norms({4}, false);
  compare_norms({3, 2, 2}, false);
}
TUTTI_RANK_TEST(SyncBatchNormTest, AnEmptyBatch) { compare_norms({4}, true); }

TUTTI_RANK_TEST(SyncBatchNormTest, GradientsOfGradients) {
  parallel::SyncBatchNorm norm(2, {.track_running_stats = false});
  norm.to(f64);
  Tensor x = numbers({2, 2}, static_cast<uint64_t>(rank())).requires_grad_();
  auto f = [&](const TensorList& xs) { return TensorList{sin(norm(xs[0]))}; };
  EXPECT_TRUE(fn::gradcheck(f, {x}));
  EXPECT_TRUE(fn::gradgradcheck(f, {x}));
}

TUTTI_RANK_TEST(SyncBatchNormTest, ConvertsInPlace) {
  nn::Sequential net(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Sequential(nn::Linear(4, 4), nn::BatchNorm1d(4)));
  net.to(f64);
  broadcast(net.parameters()[0].detach());
  auto names = net.state_dict();
  nn::Sequential whole = net.clone();
  auto norms = parallel::sync_batch_norms(net);
  EXPECT_EQ(norms.layers, 2);
  EXPECT_EQ(net.state_dict().size(), names.size());
  DistributedDataParallel ddp(net);
  whole.load_state_dict(ddp.state_dict());
  Tensor x = numbers({4 * world_size(), 3}, 1);
  ddp(mine(x, 4)).square().mean().backward();
  whole(x).square().mean().backward();
  expect_same_gradients(ddp, whole, 1e-10);
  EXPECT_EQ(net.clone()[1].module().type_name(), "BatchNorm1d");
}

TUTTI_RANK_TEST(SyncBatchNormTest, InHalfPrecision) {
  parallel::SyncBatchNorm norm(3);
  Tensor x = numbers({4, 3}, static_cast<uint64_t>(rank())).to(bf16);
  EXPECT_EQ(norm(x).dtype(), bf16);
  EXPECT_EQ(norm.running_mean.dtype(), f32);
}

TUTTI_RANK_TEST(SyncBatchNormTest, OneValueIsNoBatch) {
  parallel::SyncBatchNorm norm(3);
  auto text = message_of<ValueError>([&] { norm(ones({rank() == 0 ? 1 : 0, 3})); });
  EXPECT_THAT(text, HasSubstr("all ranks' batches together have 1 values a channel"));
}

}  // namespace
}  // namespace tutti
