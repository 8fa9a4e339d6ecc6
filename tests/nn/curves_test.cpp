// Whole trainings, step by step as PyTorch's (tests/golden/curves.py): models, losses, clipping, optimizers, schedules.
#include "tests/nn/golden.h"
#include "tutti/optim.h"

namespace tutti::test {
namespace {

const Npz& golden_curves() {
  static const Npz file("tests/golden/curves.npz");
  return file;
}

struct Pictures : nn::Module<Pictures> {
  nn::Conv2d conv1{1, 4, 3, {.padding = 1, .bias = false}}, conv2{4, 6, 3};
  nn::BatchNorm2d norm{4};
  nn::Linear head{6, 3};
  TUTTI_FIELDS(conv1, conv2, norm, head)
  Tensor forward(const Tensor& x) {
    Tensor h = max_pool2d(relu(norm(conv1(x))), 2);
    return head(mean(gelu(conv2(h)), {2, 3}));
  }
};

struct Letters : nn::Module<Letters> {
  nn::Embedding embedding{7, 6};
  nn::LSTM lstm{6, 8};
  nn::TransformerEncoderLayer attention{8, 2, {.feedforward = 12, .dropout = 0, .norm_first = true}};
  nn::Linear head{8, 7};
  TUTTI_FIELDS(embedding, lstm, attention, head)
  Tensor forward(const Tensor& x) {
    return head(attention(lstm(embedding(x)).output, nn::AttendOptions{.causal = true}));
  }
};

struct Rows : nn::Module<Rows> {
  nn::Sequential net{nn::Linear(5, 16), nn::Tanh(), nn::LayerNorm(16), nn::Linear(16, 1)};
  TUTTI_FIELDS(net)
  Tensor forward(const Tensor& x) { return net(x); }
};

// The models of the examples digits_cnn and char_gpt, smaller and without dropout.
struct Digits : nn::Module<Digits> {
  nn::Conv2d conv1{1, 4, 3, {.padding = 1}}, conv2{4, 8, 3, {.padding = 1}};
  nn::Linear fc1{8 * 3 * 3, 16}, fc2{16, 10};
  TUTTI_FIELDS(conv1, conv2, fc1, fc2)
  Tensor forward(const Tensor& images) {
    Tensor h = max_pool2d(relu(conv1(images)), 2);
    h = max_pool2d(relu(conv2(h)), 2);
    return fc2(relu(fc1(h.flatten(1))));
  }
};

struct Gpt : nn::Module<Gpt> {
  nn::Embedding tokens{11, 16}, places{12, 16};
  nn::TransformerEncoder body{
      16, 2, 2, {.feedforward = 64, .dropout = 0, .gelu = true, .batch_first = true, .norm_first = true}};
  nn::Linear head{16, 11};
  TUTTI_FIELDS(tokens, places, body, head)
  Tensor forward(const Tensor& text) {
    Tensor x = tokens(text) + places(arange(text.size(1)));
    return head(body(x, nn::AttendOptions{.causal = true}));
  }
};

struct Allowed {
  double f64, f32;
};

// make(parameters) gives an optimizer; schedule, if it is one, is stepped after it.
template <class M, class Make, class Loss>
void follow(const std::string& key, Make make, Loss loss_of, Allowed allowed,
            const std::optional<optim::Schedule>& schedule = {}) {
  for (DType dtype : {f64, f32}) {
    SCOPED_TRACE(key + (dtype == f64 ? " in f64" : " in f32"));
    double tolerance = dtype == f64 ? allowed.f64 : allowed.f32;
    M model;
    model.to(dtype);
    model.load_state_dict(entries(golden_curves(), key + "/state/"));
    Tensor x = golden_curves().read(key + "/x"), y = golden_curves().read(key + "/y");
    if (x.is_floating()) x = x.to(dtype);
    if (y.is_floating()) y = y.to(dtype);
    Doubles expected = values(golden_curves().read(key + "/losses"));
    auto optimizer = make(model.parameters());
    std::optional<optim::Scheduler> scheduler;
    if (schedule) scheduler.emplace(optimizer, *schedule);
    ASSERT_EQ(expected.size(), 50u);
    EXPECT_LT(expected.back(), expected.front());
    for (size_t step = 0; step < expected.size(); ++step) {
      auto batch = static_cast<int64_t>(step) % x.size(0);
      optimizer.zero_grad();
      Tensor loss = loss_of(model(x[batch]), y[batch]);
      loss.backward();
      optim::clip_grad_norm_(model.parameters(), 1);
      optimizer.step();
      if (scheduler) scheduler->step();
      ASSERT_NEAR(loss.item<double>(), expected[step], tolerance * expected[step]) << "at step " << step;
    }
    nn::StateDict after = entries(golden_curves(), key + "/after/");
    double weights = std::min(100 * tolerance, 1e-3);
    for (const auto& [name, t] : model.state_dict()) {
      Tensor got = t, wanted = after.at(name);
      // A bias of the keys changes nothing, so that its gradient is noise, which Adam makes as large as any other.
      if (name.ends_with("in_proj_bias"))
        for (Tensor* x : {&got, &wanted}) *x = cat({x->chunk(3)[0], x->chunk(3)[2]});
      EXPECT_TRUE(close(got, wanted, weights)) << name;
    }
  }
}

TEST(Curves, ConvolutionsWithAdam) {
  follow<Pictures>(
      "pictures", [](const TensorList& p) { return optim::Adam(p, {.lr = 0.01}); },
      [](const Tensor& y, const Tensor& target) { return cross_entropy(y, target); }, {1e-9, 1e-4});
}

TEST(Curves, SequencesWithMomentum) {
  follow<Letters>(
      "letters",
      [](const TensorList& p) {
        return optim::SGD(p, {.lr = 0.3, .momentum = 0.9, .weight_decay = 1e-3, .nesterov = true});
      },
      [](const Tensor& y, const Tensor& target) {
        return cross_entropy(y.flatten(0, 1), target.flatten(), {.label_smoothing = 0.1});
      },
      {1e-9, 1e-3}, optim::cosine(50));
}

TEST(Curves, DigitsOfTheExample) {
  follow<Digits>(
      "digits", [](const TensorList& p) { return optim::AdamW(p, {.lr = 5e-3, .weight_decay = 0.01}); },
      [](const Tensor& y, const Tensor& target) { return cross_entropy(y, target); }, {1e-9, 1e-5},
      optim::one_cycle(60));
}

TEST(Curves, GptOfTheExample) {
  follow<Gpt>(
      "gpt", [](const TensorList& p) { return optim::AdamW(p, {.lr = 5e-3, .beta2 = 0.99, .weight_decay = 0.01}); },
      [](const Tensor& y, const Tensor& target) { return cross_entropy(y.flatten(0, 1), target.flatten()); },
      {1e-9, 1e-5}, optim::warmup(5) * optim::cosine(50, 0.1));
}

TEST(Curves, RowsWithAdamW) {
  follow<Rows>(
      "rows", [](const TensorList& p) { return optim::AdamW(p, {.lr = 0.02, .weight_decay = 0.1, .amsgrad = true}); },
      [](const Tensor& y, const Tensor& target) { return smooth_l1_loss(y, target); }, {1e-9, 1e-4});
}

}  // namespace
}  // namespace tutti::test
