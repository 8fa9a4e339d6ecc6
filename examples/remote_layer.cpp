// A layer that lives on another worker, trained as if it were here.
#include <cstdio>

#include "flags.h"
#include "learned.h"
#include "tutti/rpc.h"
#include "tutti/tutti.h"

using namespace tutti;

void train() {
  rpc::RemoteModule<nn::Linear> far("worker1/cpu", 2, 16);  // nn::Linear(2, 16), made there
  nn::Linear near(16, 1);
  auto parameters = far.remote_parameters();
  for (auto& p : dist_autograd::references(near.parameters())) parameters.push_back(p);
  dist_autograd::DistributedOptimizer<optim::SGD> sgd(parameters, {.lr = 0.1});

  Learned learned;
  for (int step = 0; step < 100; ++step) {
    Tensor x = randn({32, 2}), y = x.sum(1, true);
    dist_autograd::Context context;
    Tensor loss = mse_loss(near(tanh(far(x))), y);
    dist_autograd::backward(context, {loss});
    sgd.step(context);
    learned.add(loss.item<double>());
  }
  if (learned.status() != 0) throw Error("it has not learned");
  nn::Linear copy = far.to_here();
  std::printf("the layer there has weights of norm %.2f\n", (copy.weight * copy.weight).sum().sqrt().item<double>());
}

int main(int argc, char** argv) {
  flags::Options("remote_layer", "Trains a layer that lives on another worker as if it were here.").parse(argc, argv);
  spawn_processes(2, [] {
    rpc::Session session;
    if (rank() == 0) train();
  });
}
