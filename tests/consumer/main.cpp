// Uses an installed Tutti: the gradient of sum(x * x) is 2x; layers and an optimizer, whose code is in the library; a
// compiled function (with an argument, by generated code, for which the installed libtutti_native.so must be found).
// Exits with 1 if something is not as it should be.

#include <tutti/tutti.h>

#include <iostream>

using namespace tutti;

struct Net : nn::Module<Net> {
  nn::LSTM lstm{3, 4};
  nn::Sequential head{nn::Linear(4, 4), nn::ReLU(), nn::LayerNorm(4), nn::Linear(4, 1)};
  TUTTI_FIELDS(lstm, head)
  Tensor forward(const Tensor& x) { return head(lstm(x).output); }
};

int main(int count, char**) {
  Tensor x = tensor({{1.0, 2.0}, {3.0, 4.0}});
  x.requires_grad_();
  sum(x * x).backward();
  std::cout << x.grad() << std::endl;
  if (!equal(x.grad(), tensor({{2.0, 4.0}, {6.0, 8.0}}))) return 1;

  auto chain = compile([](const Tensor& t) { return tanh(t * 2) + t; }, {.backend = count > 1 ? "native" : ""});
  if (!equal(chain(x), tanh(x * 2) + x)) return 1;

  manual_seed(1);
  Net net;
  Net before = net.clone();
  optim::AdamW adam(net.parameters());
  Tensor inputs = randn({5, 2, 3});
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    adam.zero_grad();
    Tensor loss = mean(square(net(inputs) - 1));
    loss.backward();
    adam.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::cout << net << "\nloss " << first << " -> " << last << std::endl;
  return last < first && !equal(net.parameters()[0], before.parameters()[0]) ? 0 : 1;
}
