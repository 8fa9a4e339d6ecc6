// The parts of training that the other examples leave out, each in a few lines: docs/training.md walks through them.
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "flags.h"
#include "tutti/tutti.h"

using namespace tutti;

struct Net : nn::Module<Net> {
  nn::Linear body{16, 64}, head{64, 4};
  nn::Dropout dropout{0.1};
  TUTTI_FIELDS(body, head, dropout)
  Tensor forward(const Tensor& x) { return head(dropout(relu(body(x)))); }
};

// Points of four kinds, each around a corner of its own.
struct Batch {
  Tensor x, y;
  TUTTI_FIELDS(x, y)
};
Batch make_batch(int64_t size) {
  Tensor y = randint(0, 4, {size});
  return {randn({size, 16}) + one_hot(y, 16).to(f32) * 4.0, y};
}

void look_inside() {
  Net net;
  std::printf("%s\n", to_string(net).c_str());
  for (auto& [name, parameter] : net.named_parameters())
    std::printf("%-12s %s\n", name.c_str(), to_string(parameter.sizes()).c_str());

  Net twin = net;          // shares its tensors
  Net copy = net.clone();  // has its own
  net.body.requires_grad_(false);
  std::printf("the twin's body is %s, the copy's is %s\n", twin.body.weight.requires_grad() ? "free" : "frozen",
              copy.body.weight.requires_grad() ? "free" : "frozen");
}

void hooks() {
  Net net;
  HookHandle watch =
      net.body.register_forward_hook([](nn::ModuleBase& module, const TensorList& inputs, TensorList& outputs) {
        double mean = outputs[0].mean().item<double>();
        std::printf("%s got %s and gave a mean of %.3f\n", module.type_name().c_str(),
                    to_string(inputs[0].sizes()).c_str(), mean);
      });
  net.head.register_backward_hook([](nn::ModuleBase&, TensorList& grad_inputs, const TensorList&) {
    grad_inputs[0] = grad_inputs[0].clamp(-0.01, 0.01);  // gradients may be changed on their way
  });
  auto [x, y] = make_batch(8);
  cross_entropy(net(x), y).backward();
  watch.remove();
}

bool groups_and_averages() {
  Net net;
  optim::SGD sgd({{net.body.parameters(), {.lr = 0.01, .momentum = 0.9}}, {net.head.parameters(), {.lr = 0.1}}});
  optim::Scheduler schedule(sgd, optim::warmup(10) * optim::cosine(100));
  optim::Ema average(net, 0.98);
  for (int step = 0; step < 100; ++step) {
    auto [x, y] = make_batch(64);
    sgd.zero_grad();
    cross_entropy(net(x), y).backward();
    optim::clip_grad_norm_(net.parameters(), 1.0);
    sgd.step();
    schedule.step();
    average.update(net);
  }
  NoGrad no_grad;
  auto [x, y] = make_batch(1000);
  double right = (average.module(x).argmax(1) == y).to(f32).mean().item<double>();
  std::printf("the averaged network is right in %.1f %%\n", right * 100);
  return right > 0.5;  // of four kinds
}

bool mixed_precision() {
  Net net;
  optim::Adam adam(net.parameters(), {.lr = 1e-2});
  amp::GradScaler scaler;  // for f16; bf16 has the range of f32 and needs none
  double last = 0;
  for (int step = 0; step < 50; ++step) {
    auto [x, y] = make_batch(64);
    adam.zero_grad();
    Tensor loss;
    {
      amp::Autocast cast(f16);
      loss = cross_entropy(net(x), y);
    }
    scaler.scale(loss).backward();
    scaler.unscale_(adam);
    optim::clip_grad_norm_(net.parameters(), 1.0);
    scaler.step(adam);  // skipped when a gradient overflowed
    scaler.update();
    last = loss.item<double>();
  }
  std::printf("in f16: loss %.3f, scale %g\n", last, scaler.scale());
  return last < 1;  // it begins at log 4
}

bool files(const std::string& folder) {
  Net net;
  io::save_safetensors(folder + "/net.safetensors", net.state_dict(), {{"made by", "examples/tour"}});
  Net other;
  other.load_state_dict(io::load_safetensors(folder + "/net.safetensors"));

  io::EventWriter events(folder + "/events");  // tensorboard --logdir shows them
  events.add_scalar("loss", 0.5, 1);
  events.add_histogram("body.weight", other.body.weight, 1);
  bool same = equal(net.body.weight, other.body.weight);
  std::printf("the loaded network is %s\n", same ? "the same" : "DIFFERENT");
  return same;
}

int main(int argc, char** argv) {
  flags::Options("tour", "The parts of training that the other examples leave out, each in a few lines.")
      .parse(argc, argv);
  manual_seed(1);
  look_inside();
  hooks();
  bool learned = groups_and_averages();
  learned = mixed_precision() && learned;
  auto folder = std::filesystem::temp_directory_path() / ("tutti-tour-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  bool kept = files(folder.string());
  std::filesystem::remove_all(folder);
  return learned && kept ? 0 : 1;
}
