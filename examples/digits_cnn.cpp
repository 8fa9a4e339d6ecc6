// A convolutional network learns to read handwritten digits, drawn by data::digits: nothing is downloaded.
#include <cstdio>

#include "flags.h"
#include "tutti/tutti.h"

using namespace tutti;

struct Net : nn::Module<Net> {
  nn::Conv2d conv1{1, 16, 3, {.padding = 1}}, conv2{16, 32, 3, {.padding = 1}};
  nn::Dropout dropout{0.25};
  nn::Linear fc1{32 * 7 * 7, 64}, fc2{64, 10};
  TUTTI_FIELDS(conv1, conv2, dropout, fc1, fc2)

  Tensor forward(const Tensor& images) {
    Tensor h = max_pool2d(relu(conv1(images)), 2);
    h = max_pool2d(relu(conv2(h)), 2);
    return fc2(relu(fc1(dropout(h.flatten(1)))));
  }
};

// The share of images that the network reads right, and the first that it does not.
double accuracy(Net& net, const data::Digits& test, std::string* mistakes = nullptr) {
  NoGrad no_grad;
  net.eval();
  Tensor guess = net(test.images).argmax(1);
  net.train();
  auto read = guess.to_vector<int64_t>(), real = test.labels.to_vector<int64_t>();
  for (size_t i = 0; mistakes && i < read.size() && mistakes->size() < 72; ++i)
    if (read[i] != real[i]) *mistakes += "  " + std::to_string(real[i]) + " as " + std::to_string(read[i]);
  return (guess == test.labels).to(f32).mean().item<double>();
}

int main(int argc, char** argv) {
  int64_t steps = 600;
  flags::Options options("digits_cnn", "A convolutional network learns to read handwritten digits.");
  options.number("--steps", "N", "steps of training", steps, 1);
  options.parse(argc, argv);

  manual_seed(1);
  data::Digits train = data::digits(10'000, 1), test = data::digits(1'000, 2);
  data::DataLoader loader(data::TensorDataset(train.images, train.labels),
                          {.batch_size = 64, .shuffle = true, .workers = 1});
  Net net;
  std::printf("%s\n", to_string(net).c_str());
  optim::AdamW adam(net.parameters(), {.lr = 2e-3, .weight_decay = 0.01});
  optim::Scheduler schedule(adam, optim::one_cycle(steps));

  double begin = accuracy(net, test), end = begin;
  int64_t step = 0;
  while (step < steps) {
    Progress bar(std::min(int64_t(loader.size()), steps - step),
                 {.label = "epoch " + std::to_string(loader.epoch() + 1)});
    for (auto& [images, labels] : loader) {
      Tensor loss = cross_entropy(net(images), labels);
      adam.zero_grad();
      loss.backward();
      adam.step();
      schedule.step();
      bar.step({{"loss", loss.item<double>()}});
      if (++step == steps) break;
    }
    bar.finish();
    end = accuracy(net, test);
    std::printf("accuracy %.1f %% on 1000 digits it has not seen\n", end * 100);
  }
  std::string mistakes;
  accuracy(net, test, &mistakes);
  if (!mistakes.empty()) std::printf("read wrong:%s\n", mistakes.c_str());
  return end > begin ? 0 : 1;
}
