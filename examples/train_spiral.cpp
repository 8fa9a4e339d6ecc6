// Teaches a small network to tell three intertwined spirals apart, and draws what it learned.
#include <cstdio>

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

struct Network {
  Tensor w1 = randn({2, 64}) * 0.7, b1 = zeros({64});
  Tensor w2 = randn({64, 64}) * 0.125, b2 = zeros({64});
  Tensor w3 = randn({64, 3}) * 0.125, b3 = zeros({3});

  TensorList parameters() { return {w1, b1, w2, b2, w3, b3}; }
  Tensor operator()(const Tensor& x) const { return addmm(b3, gelu(addmm(b2, gelu(addmm(b1, x, w1)), w2)), w3); }
};

Tensor cross_entropy(const Tensor& scores, const Tensor& labels) {
  return -mean(gather(log_softmax(scores, 1), 1, labels.unsqueeze(1)));
}

struct Adam {
  TensorList parameters, first, second;
  double rate = 0.01;
  int step_count = 0;

  explicit Adam(TensorList list) : parameters(std::move(list)) {
    for (auto& p : parameters) {
      p.requires_grad_();
      first.push_back(zeros_like(p));
      second.push_back(zeros_like(p));
    }
  }
  void step() {
    NoGrad guard;
    ++step_count;
    double c1 = 1 - std::pow(0.9, step_count), c2 = 1 - std::pow(0.999, step_count);
    for (size_t i = 0; i < parameters.size(); ++i) {
      Tensor g = parameters[i].grad();
      first[i].lerp_(g, 0.1);
      second[i].lerp_(g * g, 0.001);
      parameters[i] -= first[i] / c1 / (sqrt(second[i] / c2) + 1e-8) * rate;
      parameters[i].zero_grad();
    }
  }
};

// The plane as the network sees it: one character a class, dots of the data in bold.
void draw(const Network& network) {
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

int main() {
  manual_seed(7);
  auto [points, labels] = make_spirals(3, 400);
  Network network;
  Adam adam(network.parameters());
  int64_t batch = 128, count = points.size(0);
  std::printf("training a 2-64-64-3 network on %ld points of three spirals\n", long(count));
  for (int epoch = 1; epoch <= 60; ++epoch) {
    Tensor order = randperm(count);
    double total = 0;
    for (int64_t at = 0; at < count; at += batch) {
      Tensor rows = order.slice(0, at, at + batch);
      Tensor loss = cross_entropy(network(index_select(points, 0, rows)), index_select(labels, 0, rows));
      loss.backward();
      adam.step();
      total += loss.item<double>() * double(rows.numel());
    }
    if (epoch % 5 && epoch != 1) continue;
    NoGrad guard;
    double right = (network(points).argmax(1) == labels).to(f32).mean().item<double>();
    std::printf("epoch %3d   loss %.4f   accuracy %5.1f %%  ", epoch, total / double(count), right * 100);
    for (int i = 0; i < int(right * 30); ++i) std::printf("█");
    std::printf("\n");
  }
  std::printf("\nwhat it learned:\n");
  draw(network);
  NoGrad guard;
  return (network(points).argmax(1) == labels).to(f32).mean().item<double>() > 0.95 ? 0 : 1;
}
