// A model in three stages, each on a worker of its own. A batch goes through in micro-batches, so that all stages are
// busy at the same time, forward and backward. Workers are threads here; with --as processes they are processes.
#include <cstdio>

#include "flags.h"
#include "learned.h"
#include "tutti/rpc.h"
#include "tutti/tutti.h"

using namespace tutti;

constexpr int kStages = 3;
constexpr int64_t kWidth = 64, kBatch = 128, kMicroBatches = 8;

/// A part of the model, and a reference to the next one.
class Stage {
 public:
  Stage(int64_t in, int64_t out, const rpc::RemoteRef<Stage>& next) : layer_(in, out), next_(next) {}
  // While the stages behind it are at work, it holds no thread.
  rpc::Future<Tensor> forward(Tensor x) {
    if (!next_.defined()) co_return layer_(x);
    co_return co_await next_.async<&Stage::forward>(tanh(layer_(x)));
  }
  std::vector<rpc::RemoteRef<Tensor>> parameters() { return dist_autograd::references(layer_.parameters()); }

 private:
  nn::Linear layer_;
  rpc::RemoteRef<Stage> next_;
};

// Is the point inside of the ring?
Tensor ring(const Tensor& x) {
  Tensor r = (x * x).sum(1, true);
  return ((r > 0.3) & (r < 1.2)).to(f32);
}

void drive(int64_t steps) {
  rpc::RemoteRef<Stage> stage;  // from the last to the first
  std::vector<rpc::RemoteRef<Tensor>> parameters;
  for (int k = kStages; k >= 1; --k) {
    stage = rpc::remote<Stage>(k, k == 1 ? 2 : kWidth, k == kStages ? 1 : kWidth, stage);
    for (const auto& p : stage.call<&Stage::parameters>()) parameters.push_back(p);
  }
  dist_autograd::DistributedOptimizer<optim::Adam> adam(parameters, {.lr = 0.01});

  manual_seed(1);
  Learned learned;
  for (int64_t step = 0; step < steps; ++step) {
    Tensor x = randn({kBatch, 2}), y = ring(x);
    dist_autograd::Context context;
    std::vector<rpc::Future<Tensor>> outputs;
    for (const Tensor& micro : chunk(x, kMicroBatches)) outputs.push_back(stage.async<&Stage::forward>(micro));
    TensorList losses;
    TensorList labels = chunk(y, kMicroBatches);
    for (size_t k = 0; k < outputs.size(); ++k)
      losses.push_back(binary_cross_entropy_with_logits(outputs[k].wait(), labels[k]) / kMicroBatches);
    dist_autograd::backward(context, losses);  // of all micro-batches, each as soon as it can
    adam.step(context);

    double loss = 0;
    for (const Tensor& l : losses) loss += l.item<double>();
    learned.add(loss);
    if (step % 20 == 0 || step + 1 == steps) std::printf("step %3ld  loss %.4f\n", long(step), loss);
  }
  if (learned.status() != 0) throw Error("it has not learned");
}

int main(int argc, char** argv) {
  int64_t steps = 200;
  std::string as = "threads";
  flags::Options options("pipeline", "Trains a model in three stages, each on a worker of its own.");
  options.number("--steps", "N", "steps of training", steps, 1);
  options.choice("--as", "what the workers are", as, {"threads", "processes"});
  options.parse(argc, argv);

  auto body = [&] {
    rpc::Session session({.name = rank() == 0 ? "driver" : ""});  // the others: worker1, worker2, worker3
    if (rank() == 0) drive(steps);
  };
  as == "processes" ? spawn_processes(kStages + 1, body) : spawn_ranks(kStages + 1, body);
}
