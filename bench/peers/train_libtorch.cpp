// The models of bench/train.cpp, by libtorch: the same layers, sizes, losses and optimizer, as its users write them.
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <torch/csrc/api/include/torch/torch.h>

#include <functional>
#include <string_view>

#include "bench/support/peer.h"

namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using Step = std::function<void()>;

constexpr double kRate = 1e-4;

template <class Net, class Loss>
Step step_of(Net net, Loss loss) {
  std::vector<at::Tensor> parameters = net->parameters();
  auto adam = std::make_shared<torch::optim::Adam>(parameters, torch::optim::AdamOptions(kRate));
  return [=]() mutable {
    for (auto& p : parameters) p.mutable_grad().reset();  // faster than its zero_grad(), which writes zeros
    loss(net).backward();
    adam->step();
  };
}

Step mlp() {
  nn::Sequential net(nn::Linear(1024, 1024), nn::ReLU(), nn::Linear(1024, 1024), nn::ReLU(), nn::Linear(1024, 1024),
                     nn::ReLU());
  at::Tensor x = torch::randn({64, 1024}), y = torch::randn({64, 1024});
  return step_of(net, [=](auto& n) { return torch::mse_loss(n->forward(x), y); });
}

struct SequenceNetImpl : nn::Module {
  nn::LSTM lstm{nn::LSTMOptions(256, 256).num_layers(3)};
  nn::Linear head{256, 1};
  SequenceNetImpl() {
    register_module("lstm", lstm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) { return head(std::get<0>(lstm(x))); }
};
TORCH_MODULE(SequenceNet);
Step lstm() {
  at::Tensor x = torch::randn({100, 12, 256}), y = torch::randn({100, 12, 1});
  return step_of(SequenceNet(), [=](auto& n) { return torch::mse_loss(n->forward(x), y); });
}

nn::Conv2d conv(int64_t in, int64_t out) { return nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1)); }
Step cnn() {
  nn::Sequential net(conv(3, 32), nn::ReLU(), conv(32, 64), nn::ReLU(), nn::MaxPool2d(2), conv(64, 64), nn::ReLU(),
                     nn::MaxPool2d(2), nn::Flatten(), nn::Linear(4096, 10));
  at::Tensor x = torch::randn({32, 3, 32, 32}), y = torch::randint(0, 10, {32}, torch::kLong);
  return step_of(net, [=](auto& n) { return F::cross_entropy(n->forward(x), y); });
}

constexpr int64_t kVocabulary = 96, kWidth = 128, kHeads = 4, kLayers = 4, kLength = 64, kBatch = 8;
struct BlockImpl : nn::Module {
  nn::LayerNorm norm1{nn::LayerNormOptions({kWidth})}, norm2{nn::LayerNormOptions({kWidth})};
  nn::Linear qkv{kWidth, 3 * kWidth}, out{kWidth, kWidth}, up{kWidth, 4 * kWidth}, down{4 * kWidth, kWidth};
  at::Tensor mask = torch::ones({kLength, kLength}).triu(1).to(torch::kBool);
  BlockImpl() {
    register_module("norm1", norm1), register_module("norm2", norm2), register_module("qkv", qkv);
    register_module("out", out), register_module("up", up), register_module("down", down);
  }
  at::Tensor attend(const at::Tensor& x) {
    auto parts = qkv(x).chunk(3, -1);
    auto heads = [](const at::Tensor& t) { return t.view({kBatch, kLength, kHeads, kWidth / kHeads}).transpose(1, 2); };
    at::Tensor scores = heads(parts[0]).matmul(heads(parts[1]).transpose(-2, -1)) / std::sqrt(double(kWidth / kHeads));
    at::Tensor weights = scores.masked_fill(mask, -INFINITY).softmax(-1);
    return out(weights.matmul(heads(parts[2])).transpose(1, 2).reshape({kBatch, kLength, kWidth}));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x + attend(norm1(x));
    return y + down(torch::gelu(up(norm2(y))));
  }
};
TORCH_MODULE(Block);
struct GptImpl : nn::Module {
  nn::Embedding tokens{kVocabulary, kWidth}, places{kLength, kWidth};
  nn::Sequential body;
  nn::LayerNorm norm{nn::LayerNormOptions({kWidth})};
  nn::Linear head{kWidth, kVocabulary};
  GptImpl() {
    for (int64_t i = 0; i < kLayers; ++i) body->push_back(Block());
    register_module("tokens", tokens), register_module("places", places), register_module("body", body);
    register_module("norm", norm), register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) {
    return head(norm(body->forward(tokens(x) + places(torch::arange(x.size(1))))));
  }
};
TORCH_MODULE(Gpt);
Step gpt() {
  at::Tensor x = torch::randint(0, kVocabulary, {kBatch, kLength}, torch::kLong);
  at::Tensor y = torch::randint(0, kVocabulary, {kBatch * kLength}, torch::kLong);
  return step_of(Gpt(), [=](auto& n) { return F::cross_entropy(n->forward(x).view({-1, kVocabulary}), y); });
}

Step prepare(std::string_view work) {
  if (work == "mlp") return mlp();
  if (work == "lstm") return lstm();
  if (work == "cnn") return cnn();
  if (work == "gpt") return gpt();
  return {};
}

}  // namespace

BenchPeerWork bench_libtorch_prepare(const char* work, const int64_t*, int) {
  Step step = prepare(work);
  if (!step) return {};
  return {new Step(std::move(step)),
          [](void* state, int64_t n) {
            for (; n > 0; --n) (*static_cast<Step*>(state))();
          },
          [](void* state) { delete static_cast<Step*>(state); }};
}

void bench_libtorch_set_threads(int threads) {
  at::set_num_threads(threads);
  // Its products are OpenBLAS's, which has threads of its own.
  using Set = void (*)(int);
  if (auto set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))) set(threads);
}

const char* bench_libtorch_version() { return TORCH_VERSION; }
