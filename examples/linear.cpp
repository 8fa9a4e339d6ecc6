// A line is fitted to points by gradient descent, with tensors and autograd alone.
#include <cstdio>

#include "flags.h"
#include "tutti/tutti.h"

using namespace tutti;

int main(int argc, char** argv) {
  flags::Options("linear", "Fits a line to points by gradient descent, with tensors and autograd alone.")
      .parse(argc, argv);
  manual_seed(1);
  Tensor x = randn({256, 3});  // data: y = x·w + 0.5, w = (1, -2, 3)
  Tensor y = matmul(x, tensor({1.0, -2.0, 3.0})) + 0.5;
  Tensor w = zeros({3}, {.requires_grad = true});
  Tensor b = zeros({}, {.requires_grad = true});
  for (int step = 0; step < 200; ++step) {
    Tensor loss = square(matmul(x, w) + b - y).mean();
    loss.backward();
    NoGrad guard;
    for (Tensor p : {w, b}) {
      p -= p.grad() * 0.1;
      p.zero_grad();
    }
  }
  std::printf("w = %s, b = %s\n", to_string(w).c_str(), to_string(b).c_str());
  return allclose(w, tensor({1.0, -2.0, 3.0}), 1e-3) ? 0 : 1;
}
