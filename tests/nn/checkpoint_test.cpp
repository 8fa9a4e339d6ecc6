// A run that is stopped in the middle of an epoch and goes on in fresh objects from one file, bit for bit.
#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tests/support/scratch.h"
#include "tutti/amp.h"
#include "tutti/data.h"
#include "tutti/io.h"
#include "tutti/optim.h"

namespace tutti::test {
namespace {

struct CheckpointedNet : nn::Module<CheckpointedNet> {
  nn::Linear first{6, 16};
  nn::BatchNorm1d norm{16};
  nn::Dropout drop{0.4};
  nn::Linear last{16, 3};
  TUTTI_FIELDS(first, norm, drop, last)
  Tensor forward(const Tensor& x) { return last(drop(relu(norm(first(x))))); }
};

Tensor noisy(const Tensor& x) { return x + randn(x.sizes()) * 0.1; }  // by the sample's own random numbers

auto make_dataset() {
  ContextGuard guard([&] {
    Context c = context();
    c.generator = std::make_shared<Generator>(77);
    return c;
  }());
  Tensor x = randn({37, 6}), y = randint(0, 3, {37});
  return data::map(data::TensorDataset(x, y), [](const std::tuple<Tensor, Tensor>& sample) {
    return std::tuple{noisy(std::get<0>(sample)), std::get<1>(sample)};
  });
}

// All that a run consists of. `seed` decides what the weights are before a state is loaded.
struct Training {
  explicit Training(uint64_t seed, int workers)
      : loader(make_dataset(), {.batch_size = 5, .shuffle = true, .workers = workers, .seed = 11}) {
    manual_seed(seed);
    net = CheckpointedNet();
    adam.emplace(net.parameters(), optim::AdamOptions{.lr = 0.05, .amsgrad = true});
    scheduler.emplace(*adam, optim::warmup(3) * optim::cosine(40));
    scaler.emplace(amp::ScalerOptions{.scale = 8, .growth_interval = 4});
  }

  io::State state() {
    io::State s;
    s["model"] = io::to_state(net.state_dict());
    s["optimizer"] = adam->state();
    s["scheduler"] = scheduler->state();
    s["scaler"] = io::to_state(scaler->state());
    s["random"] = io::to_state(generator().state());
    s["loader"] = loader.state();
    return s;
  }
  void load(const io::State& s) {
    net.load_state_dict(io::from_state<nn::StateDict>(s["model"].as<io::State>()));
    adam->load_state(s["optimizer"].as<io::State>());
    scheduler->load_state(s["scheduler"].as<io::State>());
    scaler->load_state(io::from_state<amp::GradScaler::State>(s["scaler"].as<io::State>()));
    generator().set_state(io::from_state<Generator::State>(s["random"].as<io::State>()));
    loader.load_state(s["loader"].as<io::State>());
  }

  // Trains until `total` steps were done in all, adding losses; the state after `stop` of them is kept as bytes.
  std::string train(size_t total, Doubles& losses, size_t stop = 0) {
    std::string kept;
    while (losses.size() < total)
      for (auto& [x, y] : loader) {
        adam->zero_grad();
        Tensor loss = cross_entropy(net(x), y);
        scaler->scale(loss).backward();
        scaler->step(*adam);
        scaler->update();
        scheduler->step();
        losses.push_back(loss.item<double>());
        if (losses.size() == stop) kept = io::state_to_bytes(state());
        if (losses.size() == total) break;
      }
    return kept;
  }

  data::DataLoader<decltype(make_dataset())> loader;
  CheckpointedNet net;
  std::optional<optim::Adam> adam;
  std::optional<optim::Scheduler> scheduler;
  std::optional<amp::GradScaler> scaler;
};

TEST(Checkpoint, ContinuesBitForBit) {
  constexpr size_t kTotal = 30;               // of 8 batches an epoch
  for (size_t stop : {1u, 7u, 8u, 11u, 16u})  // in the middle of an epoch, before its last batch, at its end
    for (int workers : {0, 2}) {
      SCOPED_TRACE(testing::Message() << "stopped after " << stop << " steps, " << workers << " workers");
      Scratch scratch;
      Doubles whole;
      Training first(1, workers);
      std::string bytes = first.train(kTotal, whole, stop);
      io::save_state(scratch / "run.ckpt", io::state_from_bytes(bytes, "kept"));
      Doubles parts(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(stop));
      nn::StateDict expected = first.net.state_dict();

      Training second(999, 2 - workers);
      second.load(io::load_state(scratch / "run.ckpt"));
      second.train(kTotal, parts);
      EXPECT_EQ(parts, whole);
      for (const auto& [name, t] : second.net.state_dict()) EXPECT_TRUE(identical(t, expected.at(name))) << name;
      EXPECT_EQ(second.adam->lr(), first.adam->lr());
      EXPECT_EQ(second.scaler->scale(), first.scaler->scale());
      EXPECT_GT(first.scaler->scale(), 8);
    }
}

TEST(Checkpoint, WhatIsLeftOutMatters) {
  // The test above could not fail if one of the parts did not matter.
  for (std::string part : {"model", "optimizer", "scheduler", "random", "loader"}) {
    Doubles whole;
    Training first(1, 0);
    io::State state = io::state_from_bytes(first.train(30, whole, 11), "kept");
    Doubles parts(whole.begin(), whole.begin() + 11);
    Training second(999, 0);
    Training blank(998, 0);
    state[part] = blank.state()[part];
    second.load(state);
    second.train(30, parts);
    EXPECT_NE(parts, whole) << part;
  }
}

struct Inner {
  std::vector<double> numbers;
  bool flag = false;
  TUTTI_FIELDS(numbers, flag)
};
struct Outer {
  uint64_t large = 0;
  float small = 0;
  std::string text;
  Inner inner;
  std::map<std::string, Tensor> tensors;
  TUTTI_FIELDS(large, small, text, inner, tensors)
};

TEST(Checkpoint, StructsAreStates) {
  Outer outer;
  outer.large = ~uint64_t{5};
  outer.small = 0.1f;
  outer.text = "words";
  outer.inner.numbers = {1.5, INFINITY};
  outer.inner.flag = true;
  outer.tensors["a"] = tensor({1, 2});
  Outer back = io::from_state<Outer>(io::state_from_bytes(io::state_to_bytes(io::to_state(outer)), "here"));
  EXPECT_EQ(back.large, outer.large);
  EXPECT_EQ(back.small, outer.small);
  EXPECT_EQ(back.text, "words");
  EXPECT_EQ(back.inner.numbers, outer.inner.numbers);
  EXPECT_TRUE(back.inner.flag);
  EXPECT_EQ(values(back.tensors.at("a")), (Doubles{1, 2}));
  io::State state = io::to_state(outer);
  state["text"] = 3;
  EXPECT_THROW(io::from_state<Outer>(state), FileError);
  state.entries.erase(state.entries.begin());
  EXPECT_THAT(message_of<FileError>([&] { io::from_state<Outer>(state); }), testing::HasSubstr("large"));
}

}  // namespace
}  // namespace tutti::test
