#include <cstdio>

#include "tutti/tutti.h"

using namespace tutti;

int main() {
  launch(4, [] {  // 4 threads of this process, or the ranks that `tutti run`, mpirun or srun started
    manual_seed(1);
    Tensor x = randn({1024, 8}), y = x.square().sum(1, true);
    data::TensorDataset samples(x, y);
    data::DataLoader loader(samples, {.batch_size = 32, .sampler = data::distributed_sampler(samples.size())});
    parallel::DistributedDataParallel net(nn::Sequential{nn::Linear(8, 64), nn::ReLU(), nn::Linear(64, 1)});
    optim::Adam adam(net.parameters(), {.lr = 0.01});
    for (int epoch = 1; epoch <= 60; ++epoch) {
      Tensor loss;
      for (auto& [input, target] : loader) {  // this rank's quarter of the samples
        adam.zero_grad();
        loss = mse_loss(net(input), target);
        loss.backward();  // averages the gradients of all ranks while it runs
        adam.step();
      }
      if (epoch % 20 == 0 && rank() == 0) std::printf("epoch %2d: loss %.3f\n", epoch, loss.item<double>());
    }
  });
}
