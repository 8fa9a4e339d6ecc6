// Training on several ranks that survives the death of any of them: tutti run starts all ranks again, and they go on
// from the last checkpoint, to the same weights, bit for bit.
//
//   tutti run -n 2 --max-restarts 20 build/release/examples/restart --checkpoint /tmp/restart.ckpt
//
// To see it die, let the library kill rank 1 at its 100th call after each start:
//
//   tutti run -n 2 --max-restarts 20 --env "TUTTI_FAULTS=kill rank=1 call=100" build/release/examples/restart ...
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "flags.h"
#include "tutti/tutti.h"

using namespace tutti;

struct Net : nn::Module<Net> {
  nn::Linear fc1{784, 32}, fc2{32, 10};
  TUTTI_FIELDS(fc1, fc2)
  Tensor forward(const Tensor& x) { return fc2(relu(fc1(x.flatten(1)))); }
};

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int64_t steps = 100, batch = 32, every = 5;
  std::string path;
  flags::Options options("restart", "Training that survives the death of any of its ranks.");
  options.number("--steps", "N", "steps of training", steps, 1);
  options.text("--checkpoint", "FILE", "what ranks that are started again go on from", path);
  options.example("tutti run -n 2 --max-restarts 20 restart --checkpoint /tmp/restart.ckpt", "starts them again");
  options.parse(argc, argv);

  manual_seed(1);  // all ranks know the same digits
  data::Digits digits = data::digits(1'000, 1);
  parallel::DistributedDataParallel net(Net{});  // all ranks begin with rank 0's weights
  optim::Adam adam(net.parameters(), {.lr = 1e-3});
  int64_t step = 0;
  double last = 0;

  // Rank 0 writes it, everybody reads it. A kill at any moment leaves the old one or the new one, never a piece.
  io::Checkpoint checkpoint(path.empty() ? "unused" : path,
                            {{"model", net}, {"adam", adam}, {"step", step}, {"loss", last}});
  if (!path.empty() && checkpoint.load() && rank() == 0) std::printf("goes on at step %ld\n", long(step));
  barrier();  // nobody writes while others read

  for (; step < steps;) {
    int64_t first = ((step * world_size() + rank()) * batch) % (1'000 - batch);  // its own part of every batch
    adam.zero_grad();
    Tensor loss = cross_entropy(net(digits.images.narrow(0, first, batch)), digits.labels.narrow(0, first, batch));
    loss.backward();  // gradients are averages over all ranks
    adam.step();
    last = loss.item<double>();
    if (++step % every == 0 && rank() == 0 && !path.empty()) checkpoint.save();
  }

  double sum = 0;
  for (Tensor& p : net.parameters()) sum += p.detach().to(f64).abs().sum().item<double>();
  if (rank() == 0) std::printf("%ld steps, the last loss is %.9g, the weights are %.17g\n", long(step), last, sum);
  return last < std::log(10.0) ? 0 : 1;
}
