#include <cstdio>

#include "tutti/tutti.h"

using namespace tutti;

int main() {
  launch(4, [] {  // four threads, or the ranks that `tutti run`, mpirun or srun started
    manual_seed(rank());
    nn::Sequential mlp{nn::Linear(8, 64), nn::ReLU(), nn::Linear(64, 1)};
    parallel::DistributedDataParallel net(mlp);
    optim::Adam adam(net.parameters(), {.lr = 0.01});
    for (int step = 1; step <= 600; ++step) {
      Tensor x = randn({32, 8});  // the samples of this rank
      Tensor loss = mse_loss(net(x), x.square().sum(1, true));
      adam.zero_grad();
      loss.backward();  // averages the gradients of all ranks while it runs
      adam.step();
      if (step % 200 == 0 && rank() == 0) std::printf("step %d: %.3f\n", step, loss.item<double>());
    }
  });
}
