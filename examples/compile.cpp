// A training step that runs as a graph: traced once, checked against eager, printed.
#include <cstdio>
#include <iostream>

#include "flags.h"
#include "tutti/tutti.h"

using namespace tutti;

struct Net : nn::Module<Net> {
  nn::Linear fc1{16, 32}, fc2{32, 4};
  TUTTI_FIELDS(fc1, fc2)
  Tensor forward(const Tensor& x) { return fc2(gelu(fc1(x))); }
};

/// Batches of any size: says how many had a graph without being traced.
int64_t any_batch() {
  nn::Linear layer(4, 2);
  auto loss = [&](const Tensor& x, const Tensor& y) { return cross_entropy(layer(x), y); };
  Tensor x64 = randn({64, 4}), x8 = randn({8, 4}), x37 = randn({37, 4});
  Tensor y64 = randint(2, {64}), y8 = randint(2, {8}), y37 = randint(2, {37});
  auto step = compile(loss, {.dynamic_batch = true});
  step(x64, y64).backward();  // traced
  step(x8, y8).backward();    // traced: now it is known what depends on the batch size, and how
  step(x37, y37).backward();  // neither traced nor compiled: stats().fitted
  return step.stats().fitted;
}

int main(int argc, char** argv) {
  flags::Options("compile", "Compiles a training step, checks it against eager, and prints its graph.")
      .parse(argc, argv);
  manual_seed(1);
  Net net, eager = net.clone();
  auto loss_of = [](Net& model, const Tensor& x, const Tensor& y) { return cross_entropy(model(x), y); };

  auto step = compile([&](const Tensor& x, const Tensor& y) { return loss_of(net, x, y); }, {.name = "step"});
  optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  optim::SGD plain(eager.parameters(), {.lr = 0.1});

  for (int i = 0; i < 20; ++i) {
    Tensor x = randn({8, 16}), y = randint(4, {8});
    optimizer.zero_grad();
    Tensor loss = step(x, y);
    loss.backward();
    optimizer.step();

    plain.zero_grad();
    Tensor wanted = loss_of(eager, x, y);
    wanted.backward();
    plain.step();
    if (!equal(loss, wanted)) return std::printf("step %d differs from eager\n", i), 1;
  }
  for (size_t i = 0; i < net.parameters().size(); ++i)
    if (!equal(net.parameters()[i], eager.parameters()[i])) return std::printf("a parameter differs\n"), 1;

  std::cout << step.print() << step.explain();
  std::printf("20 steps, %lld of them from graphs, the same bits as eager; batch sizes without a trace: %lld\n",
              static_cast<long long>(step.stats().runs), static_cast<long long>(any_batch()));
}
