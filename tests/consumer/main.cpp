// Uses an installed Tutti: the gradient of sum(x * x) is 2x. Exits with 1 if it is not.

#include <tutti/tutti.h>

#include <iostream>

int main() {
  tutti::Tensor x = tutti::tensor({{1.0, 2.0}, {3.0, 4.0}});
  x.requires_grad_();
  auto y = tutti::sum(x * x);
  y.backward();

  const tutti::Tensor expected = tutti::tensor({{2.0, 4.0}, {6.0, 8.0}});
  std::cout << x.grad() << std::endl;
  // A sum of squared differences; it is 0 exactly, since every value here is a small integer.
  const tutti::Tensor difference = x.grad() - expected;
  return tutti::sum(difference * difference).item<double>() == 0.0 ? 0 : 1;
}
