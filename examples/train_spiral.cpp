// Teaches a small network to tell three intertwined spirals apart, and draws what it learned.
#include <cstdio>

#include "flags.h"
#include "tutti/tutti.h"

using namespace tutti;

struct Dataset {
  Tensor points, labels;  // [n, 2], [n]
};

Dataset make_spirals(int64_t arms, int64_t points_per_arm) {
  TensorList points, labels;
  for (int64_t arm = 0; arm < arms; ++arm) {
    Tensor radius = linspace(0.1, 1, points_per_arm);
    Tensor angle = radius * 5 + 6.2831853 * double(arm) / double(arms) + randn({points_per_arm}) * 0.12;
    points.push_back(stack({radius * cos(angle), radius * sin(angle)}, 1));
    labels.push_back(full({points_per_arm}, arm));
  }
  return {cat(points), cat(labels)};
}

struct Network : nn::Module<Network> {
  nn::Linear fc1{2, 64}, fc2{64, 64}, fc3{64, 3};
  TUTTI_FIELDS(fc1, fc2, fc3)
  Tensor forward(const Tensor& x) { return fc3(gelu(fc2(gelu(fc1(x))))); }
};

double accuracy(Network& network, const Dataset& data) {
  NoGrad guard;
  return (network(data.points).argmax(1) == data.labels).to(f32).mean().item<double>();
}

// The plane as the network sees it: one character a class, dots of the data in bold.
void draw(Network& network) {
  constexpr int64_t rows = 24, columns = 56;
  NoGrad guard;
  Tensor y = linspace(1.1, -1.1, rows).view({rows, 1, 1}).expand({rows, columns, 1});
  Tensor x = linspace(-1.1, 1.1, columns).view({1, columns, 1}).expand({rows, columns, 1});
  auto best = network(cat({x, y}, 2).view({rows * columns, 2})).argmax(1).to_vector<int64_t>();
  const char* colours[] = {"\033[34m░", "\033[33m▒", "\033[35m▓"};
  for (int64_t r = 0; r < rows; ++r) {
    std::printf("  ");
    for (int64_t c = 0; c < columns; ++c) std::printf("%s", colours[best[size_t(r * columns + c)]]);
    std::printf("\033[0m\n");
  }
}

int main(int argc, char** argv) {
  flags::Options("train_spiral", "Teaches a small network to tell three spirals apart, and draws what it learned.")
      .parse(argc, argv);
  manual_seed(7);
  Dataset data = make_spirals(3, 400);
  data::DataLoader loader(data::TensorDataset(data.points, data.labels), {.batch_size = 128, .shuffle = true});
  Network network;
  optim::Adam adam(network.parameters(), {.lr = 0.01});
  std::printf("training a 2-64-64-3 network on %ld points of three spirals\n", long(data.points.size(0)));
  for (int epoch = 1; epoch <= 60; ++epoch) {
    double total = 0;
    for (auto& [points, labels] : loader) {
      Tensor loss = cross_entropy(network(points), labels);
      adam.zero_grad();
      loss.backward();
      adam.step();
      total += loss.item<double>();
    }
    if (epoch % 5 && epoch != 1) continue;
    double right = accuracy(network, data);
    std::printf("epoch %3d   loss %.4f   accuracy %5.1f %%  ", epoch, total / double(loader.size()), right * 100);
    for (int i = 0; i < int(right * 30); ++i) std::printf("█");
    std::printf("\n");
  }
  std::printf("\nwhat it learned:\n");
  draw(network);
  return accuracy(network, data) > 0.95 ? 0 : 1;
}
