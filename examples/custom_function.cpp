// A function with a gradient of its own. Where a planet is at a given time follows from Kepler's equation,
//   E - e·sin(E) = M,
// which has no closed solution: it is solved by iteration. Recording the iterations would be wasteful; the implicit
// function theorem gives the gradient from the solution alone. With it, an orbit is found from observations.
#include <cstdio>

#include "flags.h"
#include "learned.h"
#include "tutti/tutti.h"

using namespace tutti;

struct Kepler : Function<Kepler> {
  // Mean anomaly M (time as an angle), eccentricity e; not recorded.
  Tensor forward(const Tensor& m, const Tensor& e) {
    Tensor x = m + e * sin(m);
    for (int i = 0; i < 20; ++i) x = x - (x - e * sin(x) - m) / (1 - e * cos(x));
    save(x, e);
    return x;
  }
  // Recorded when gradients of gradients are asked for: it is made of ordinary operators.
  TensorList backward(const TensorList& g) {
    Tensor x = saved(0), e = saved(1);
    Tensor by_m = g[0] / (1 - e * cos(x));
    return {by_m, sum_to(by_m * sin(x), e.sizes())};
  }
};

// Where the planet is at each time, [n, 2]: an ellipse with the sun in one focus.
Tensor positions(const Tensor& times, const Tensor& axis, const Tensor& e, const Tensor& phase) {
  Tensor x = Kepler::apply(times + phase, e);
  return stack({axis * (cos(x) - e), axis * sqrt(1 - e * e) * sin(x)}, 1);
}

int main(int argc, char** argv) {
  int64_t steps = 300;
  flags::Options options("custom_function", "Finds a planet's orbit by a function with a gradient of its own.");
  options.number("--steps", "N", "steps of training", steps, 1);
  options.parse(argc, argv);

  manual_seed(1);
  auto f64_leaf = [](Tensor t) { return t.to(f64).requires_grad_(); };
  auto kepler = [](const TensorList& in) { return TensorList{Kepler::apply(in[0], in[1])}; };
  TensorList inputs{f64_leaf(linspace(0.1, 6, 8)), f64_leaf(tensor(0.4))};
  gradcheck(kepler, inputs);
  gradgradcheck(kepler, inputs);
  std::printf("first and second derivatives agree with differences\n");

  Tensor times = linspace(0, 12, 60, {.dtype = f64});
  Tensor seen = positions(times, tensor(1.52), tensor(0.35), tensor(0.8)) + randn({60, 2}, {.dtype = f64}) * 0.01;
  Tensor axis = f64_leaf(tensor(1.0)), e = f64_leaf(tensor(0.1)), phase = f64_leaf(tensor(0.0));
  optim::Adam adam({axis, e, phase}, {.lr = 0.02});
  optim::Scheduler schedule(adam, optim::cosine(steps));
  Learned learned;
  for (int64_t step = 1; step <= steps; ++step) {
    Tensor loss = mse_loss(positions(times, axis, e, phase), seen);
    adam.zero_grad();
    loss.backward();
    adam.step();
    schedule.step();
    double error = std::sqrt(learned.add(loss.item<double>()));
    if (step % 50 == 0 || step == steps)
      std::printf("step %3ld   error %.5f   axis %.3f   eccentricity %.3f   phase %.3f\n", long(step), error,
                  axis.item<double>(), e.item<double>(), phase.item<double>());
  }
  std::printf("the truth:               axis 1.520   eccentricity 0.350   phase 0.800\n");
  return learned.status();
}
