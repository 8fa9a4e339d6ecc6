// Section E: collectives with gradients, on every transport. Losses are sums of sines, so that gradients depend on the
// values that passed from rank to rank; each also under differences of first and second order.
#include <numeric>

#include "tests/parity/support.h"
#include "tests/support/expect.h"
#include "tutti/comm.h"
#include "tutti/testing.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT

struct ParityE : harness::TransportTest<1, 2, 3, 4> {};

// Ones and the rank, as every rank's input begins.
Tensor input(int rank) { return full({5, 5}, 1.0 + rank, {f64}).requires_grad_(); }
double sum_of_inputs() { return world_size() * (world_size() + 1) / 2.0; }
Tensor fives(double value) { return full({5, 5}, value, {f64}); }
int root() { return world_size() > 1 ? 1 : 0; }

void expect_near(const Tensor& found, const Tensor& wanted) {
  EXPECT_TRUE(found.defined());
  EXPECT_TRUE(found.allclose(wanted, 1e-12, 1e-12));
}
void check_twice(const std::function<TensorList(const TensorList&)>& f) {
  Tensor x = (rand({2}, {f64}) + 0.5).requires_grad_();
  EXPECT_TRUE(fn::gradcheck(f, {x}));
  EXPECT_TRUE(fn::gradgradcheck(f, {x}));
}
void backward_of_sines(const Tensor& y) { sin(y).sum().backward(); }

TUTTI_RANK_TEST(ParityE, Broadcast) {
  Tensor x = input(rank());
  Tensor y = fn::broadcast(x, {.root = root()});
  EXPECT_TRUE(equal(y, fives(1 + root())));
  backward_of_sines(y);
  expect_near(x.grad(), rank() == root() ? cos(fives(1 + root())) * world_size() : fives(0));
  check_twice([](const TensorList& xs) { return TensorList{fn::broadcast(sin(xs[0]), {.root = root()}) * xs[0]}; });
}

TUTTI_RANK_TEST(ParityE, Reduce) {
  Tensor x = input(rank());
  Tensor y = fn::reduce(x, {.root = root()});
  EXPECT_TRUE(equal(y, fives(rank() == root() ? sum_of_inputs() : 0)));
  backward_of_sines(y);
  expect_near(x.grad(), cos(fives(sum_of_inputs())));
  check_twice([](const TensorList& xs) { return TensorList{sin(fn::reduce(xs[0] * xs[0], {.root = root()}))}; });
}

TUTTI_RANK_TEST(ParityE, Allreduce) {
  Tensor x = input(rank());
  Tensor y = fn::all_reduce(x);
  EXPECT_TRUE(equal(y, fives(sum_of_inputs())));
  backward_of_sines(y);
  expect_near(x.grad(), cos(fives(sum_of_inputs())) * world_size());
  for (Reduce op : {Reduce::sum, Reduce::average, Reduce::product, Reduce::min, Reduce::max})
    check_twice([&](const TensorList& xs) { return TensorList{sin(fn::all_reduce(xs[0] * xs[0], {.op = op}))}; });
}

TUTTI_RANK_TEST(ParityE, AllGather) {
  Tensor x = input(rank());
  TensorList all = fn::all_gather(x);
  for (int k = 0; k < world_size(); ++k) EXPECT_TRUE(equal(all[at(k)], fives(1 + k)));
  backward_of_sines(stack(all).sum(Shape{0}));
  expect_near(x.grad(), cos(fives(sum_of_inputs())) * world_size());
  check_twice([](const TensorList& xs) { return TensorList{sin(stack(fn::all_gather(xs[0] * xs[0])))}; });
}

TUTTI_RANK_TEST(ParityE, AllToAll) {
  TensorList xs;
  for (int k = 0; k < world_size(); ++k) xs.push_back(fives(1 + world_size() * rank() + k).requires_grad_());
  TensorList ys = fn::all_to_all(xs);
  for (int k = 0; k < world_size(); ++k) EXPECT_TRUE(equal(ys[at(k)], fives(1 + world_size() * k + rank())));
  Tensor total = zeros({5, 5}, {f64});
  for (int k = 0; k < world_size(); ++k) total = total + ys[at(k)] * (k + 1);
  backward_of_sines(total);
  for (int to = 0; to < world_size(); ++to) {  // what I gave rank `to` counts rank()+1 times in its sum
    double there = 0;
    for (int k = 0; k < world_size(); ++k) there += (k + 1) * (1.0 + world_size() * k + to);
    expect_near(xs[at(to)].grad(), cos(fives(there)) * (rank() + 1));
  }
  check_twice([](const TensorList& in) {
    TensorList parts;
    for (int k = 0; k < world_size(); ++k) parts.push_back(in[0] * in[0] * (k + 1));
    return TensorList{sin(stack(fn::all_to_all(parts)))};
  });
}

TUTTI_RANK_TEST(ParityE, AllToAllSingle) {
  int n = world_size();
  Shape rows;
  for (int k = 0; k < n; ++k) rows.push_back(rank() + k);
  int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0}), start = 0;
  Tensor x = full({total, 5}, 1.0 + rank(), {f64}).requires_grad_();
  Tensor y = fn::all_to_all_single(x, rows, rows);
  backward_of_sines(y * (rank() + 1));
  for (int k = 0; k < n; start += rows[at(k++)]) {
    EXPECT_TRUE(equal(y.narrow(0, start, rows[at(k)]), full({rows[at(k)], 5}, 1.0 + k, {f64})));
    expect_near(x.grad().narrow(0, start, rows[at(k)]),
                cos(full({rows[at(k)], 5}, (1.0 + rank()) * (k + 1), {f64})) * (k + 1));
  }
  check_twice([](const TensorList& xs) {
    return TensorList{sin(fn::all_to_all_single((xs[0] * xs[0]).repeat({world_size()})))};
  });
}

TUTTI_RANK_TEST(ParityE, Gather) {
  Tensor x = input(rank());
  TensorList all = fn::gather(x, {.root = root()});
  for (int k = 0; k < world_size(); ++k) EXPECT_TRUE(equal(all[at(k)], fives(rank() == root() ? 1 + k : 0)));
  backward_of_sines(stack(all).sum(Shape{0}));
  expect_near(x.grad(), cos(fives(sum_of_inputs())));
  check_twice([](const TensorList& xs) { return TensorList{sin(stack(fn::gather(xs[0] * xs[0], {.root = root()})))}; });
}

TUTTI_RANK_TEST(ParityE, Scatter) {
  TensorList xs;
  for (int k = 0; k < world_size(); ++k) xs.push_back(input(k));
  Tensor y = fn::scatter(xs, {.root = root()});
  EXPECT_TRUE(equal(y, fives(1 + rank())));
  backward_of_sines(y);
  for (int k = 0; k < world_size(); ++k) expect_near(xs[at(k)].grad(), rank() == root() ? cos(fives(1 + k)) : fives(0));
  check_twice([](const TensorList& in) {
    TensorList parts;
    for (int k = 0; k < world_size(); ++k) parts.push_back(in[0] * in[0] * (k + 1));
    return TensorList{sin(fn::scatter(parts, {.root = root()}))};
  });
}

}  // namespace
}  // namespace tutti
