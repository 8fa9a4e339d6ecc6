// Checkpoints of sharded models: whole ones and such of many files, into worlds of other sizes.
#include <filesystem>
#include <fstream>

#include "tests/parallel/support.h"
#include "tests/support/compare.h"
#include "tests/support/scratch.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using parallel::fully_shard;

struct SavedNet : nn::Module<SavedNet> {
  nn::Conv2d conv{2, 4, 3, {.padding = 1}};
  nn::BatchNorm2d norm{4};
  nn::Linear body{4 * 16, 8}, out{8, 3};
  TUTTI_FIELDS(conv, norm, body, out)
  Tensor forward(const Tensor& x) { return out(tanh(body(norm(relu(conv(x))).flatten(1)))); }
};

struct Trainer {
  SavedNet net = seeded<SavedNet>();
  std::unique_ptr<optim::Adam> adam;
  /// `how`: 0 not sharded, 1 or 2: into other units.
  explicit Trainer(int how, uint64_t seed = 11, bool channels_last = false) {
    manual_seed(seed);
    if (seed != 11) net = SavedNet(), net.to(f64);
    if (channels_last) net.to(MemoryFormat::channels_last);
    if (how == 1) fully_shard(net.conv);
    if (how == 2) fully_shard(net.body);
    if (how > 0) fully_shard(net);
    adam = std::make_unique<optim::Adam>(net.parameters(), optim::AdamOptions{.lr = 0.05});
  }
  // All ranks have the same rows, so that worlds of any size do the same.
  void step(uint64_t number) {
    adam->zero_grad();
    net(numbers({3, 2, 4, 4}, number)).pow(2).mean().backward();
    adam->step();
  }
};

void expect_equal(const nn::StateDict& found, const nn::StateDict& wanted, double tolerance) {
  ASSERT_EQ(found.size(), wanted.size());
  for (auto& [name, value] : wanted) expect_close(found.at(name), value, name, tolerance);
}

/// What a process alone has after so many steps.
Trainer alone(uint64_t steps) {
  Trainer trainer(0);
  for (uint64_t i = 0; i < steps; ++i) trainer.step(i);
  return trainer;
}

struct FsdpState : QuickTest<1, 2, 3> {};

TUTTI_RANK_TEST(FsdpState, WholeAsIfNotSharded) {
  for (bool channels_last : {false, true}) {
    Trainer sharded(1, 11, channels_last), whole = alone(2);
    for (uint64_t i = 0; i < 2; ++i) sharded.step(i);
    int root = world_size() - 1;
    nn::StateDict model = parallel::full_state_dict(sharded.net, root);
    io::State optimizer = parallel::full_state(*sharded.adam, root);
    if (rank() != root) {
      EXPECT_TRUE(model.empty());
      EXPECT_EQ(optimizer.size(), 0u);
      continue;
    }
    expect_equal(model, whole.net.state_dict(), 1e-12);
    // A process that knows nothing of ranks goes on with it.
    Trainer next(0, 5);
    next.net.load_state_dict(model);
    next.adam->load_state(optimizer);
    next.step(2);
    whole.step(2);
    expect_equal(next.net.state_dict(), whole.net.state_dict(), 1e-12);
  }
}

TUTTI_RANK_TEST(FsdpState, WholeIntoAnyWorld) {
  for (bool channels_last : {false, true}) {
    Trainer whole = alone(2), sharded(2, 5, channels_last);
    parallel::load_full_state_dict(sharded.net, whole.net.state_dict());
    parallel::load_full_state(*sharded.adam, whole.adam->state());
    sharded.step(2);
    whole.step(2);
    nn::StateDict state = parallel::full_state_dict(sharded.net);
    if (rank() == 0) expect_equal(state, whole.net.state_dict(), 1e-12);
  }
}

TUTTI_RANK_TEST(FsdpState, WhatDoesNotFit) {
  Trainer sharded(1), whole = alone(1);
  nn::StateDict state = whole.net.state_dict(), before = sharded.net.state_dict();
  for (auto& [name, value] : before) value = value.clone();
  state["body.weight"] = zeros({3, 3});
  std::string text = message_of<ValueError>([&] { parallel::load_full_state_dict(sharded.net, state); });
  EXPECT_NE(text.find("body.weight"), std::string::npos) << text;
  state.erase("body.weight");
  EXPECT_THROW(parallel::load_full_state_dict(sharded.net, state), ValueError);
  for (auto& [name, value] : sharded.net.state_dict()) EXPECT_TRUE(identical(value, before.at(name))) << name;
  EXPECT_EQ(parallel::load_full_state_dict(sharded.net, state, {.strict = false}).missing.size(), 1u);
  EXPECT_THROW(parallel::load_full_state(*sharded.adam, io::State{}), ValueError);
  optim::Adam other(whole.net.body.parameters());
  EXPECT_THROW(parallel::load_full_state(*sharded.adam, other.state()), ValueError);
  EXPECT_THROW(parallel::full_state_dict(whole.net), ValueError) << "nothing is sharded";
  EXPECT_THROW(parallel::full_state_dict(sharded.net, 99), ValueError);
}

// Saved by W ranks, loaded by W', cut into other units, or not at all.
TEST(FsdpShardedState, AnyWorldToAnyOther) {
  auto runners = harness::every_transport();
  for (const auto& runner : {runners.front(), runners.back()})
    for (int from : {1, 2, 3})
      for (int to : {1, 2, 4}) {
        SCOPED_TRACE(runner.name + " " + std::to_string(from) + " to " + std::to_string(to));
        Scratch scratch;
        std::string folder = scratch / "run";
        harness::run_ranks(
            from,
            [&] {
              Trainer t(1);
              EXPECT_FALSE(parallel::load_sharded(folder, t.net, t.adam.get()));
              t.step(0);
              parallel::save_sharded(folder, t.net, t.adam.get());
              t.step(1);
              parallel::save_sharded(folder, t.net, t.adam.get());
            },
            {}, runner);
        harness::run_ranks(
            to,
            [&] {
              Trainer t(2, 5, to == 4), whole = alone(3);
              EXPECT_TRUE(parallel::load_sharded(folder, t.net, t.adam.get()));
              t.step(2);
              nn::StateDict state = parallel::full_state_dict(t.net);
              if (rank() == 0) expect_equal(state, whole.net.state_dict(), 1e-12);
            },
            {}, runner);
        Trainer plain(0, 5), whole = alone(3);
        EXPECT_TRUE(parallel::load_sharded(folder, plain.net, plain.adam.get()));
        plain.step(2);
        expect_equal(plain.net.state_dict(), whole.net.state_dict(), 1e-12);
        size_t sets = 0;
        for (const auto& entry : std::filesystem::directory_iterator(folder)) sets += entry.is_directory();
        EXPECT_EQ(sets, 1u) << "files of the save before are gone";
      }
}

TEST(FsdpShardedState, Hybrid) {
  Scratch scratch;
  std::string folder = scratch / "run";
  harness::run_ranks(4, [&] {
    SavedNet net = seeded<SavedNet>();
    fully_shard(net, {.group = world().split(rank() / 2), .replicas = world().split(rank() % 2)});
    optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
    net(numbers({3, 2, 4, 4}, 0)).pow(2).mean().backward();
    sgd.step();
    parallel::save_sharded(folder, net, &sgd);
    nn::StateDict before = net.state_dict();
    for (auto& [name, value] : before) value = value.clone();
    for (Tensor p : net.parameters()) p.detach().zero_();
    EXPECT_TRUE(parallel::load_sharded(folder, net, &sgd));
    for (auto& [name, value] : net.state_dict()) EXPECT_TRUE(identical(value, before.at(name))) << name;
  });
}

// Ranks on other hosts may not see what has been written; here they look elsewhere.
TEST(FsdpShardedState, NotSeenByAll) {
  auto runners = harness::every_transport();
  for (const auto& runner : {runners.front(), runners.back()}) {
    SCOPED_TRACE(runner.name);
    Scratch scratch;
    std::string folder = scratch / "run", older = scratch / "older", nowhere = scratch / "nowhere",
                broken = scratch / "broken";
    auto body = [&](bool hybrid) {
      SavedNet net = seeded<SavedNet>();
      parallel::FullyShardOptions options;
      if (hybrid) options = {.group = world().split(rank() / 2), .replicas = world().split(rank() % 2)};
      fully_shard(net, options);
      parallel::save_sharded(folder, net);
      parallel::save_sharded(folder, net);
      parallel::save_sharded(older, net);
      if (rank() == 0) {
        std::filesystem::create_directories(broken);
        std::ofstream(broken + "/checkpoint") << "nonsense";
      }
      barrier();
      NoGrad guard;
      for (Tensor p : net.parameters()) p.zero_();
      auto expect = [&](const std::string& where, const std::vector<std::string>& words) {
        std::string text = message_of<FileError>([&] { parallel::load_sharded(where, net); });
        for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
        double sum = 0;
        for (const Tensor& p : net.parameters()) sum += p.abs().sum().item<double>();
        EXPECT_EQ(sum, 0) << "nothing was loaded";
      };
      expect(rank() == 1 ? nowhere : folder, {"rank 1 sees none"});
      expect(rank() >= 2 ? nowhere : folder, {"rank 2 sees none", "rank 3 sees none"});
      expect(rank() == 2 ? older : folder, {"rank 2 sees number 1, not 2"});
      if (rank() == 3)
        expect(broken, {});
      else
        expect(folder, {"rank 3 cannot read it"});
      EXPECT_FALSE(parallel::load_sharded(nowhere, net));
      EXPECT_TRUE(parallel::load_sharded(folder, net));
    };
    for (bool hybrid : {false, true}) {
      std::filesystem::remove_all(folder);
      std::filesystem::remove_all(older);
      harness::run_ranks(4, [&] { body(hybrid); }, {}, runner);
    }
  }
}

TEST(FsdpShardedState, BrokenFiles) {
  Scratch scratch;
  std::string folder = scratch / "run";
  harness::run_ranks(2, [&] {
    Trainer t(1);
    t.step(0);
    parallel::save_sharded(folder, t.net, t.adam.get());
  });
  SavedNet other = seeded<SavedNet>();
  other.body = nn::Linear(4 * 16, 9);
  std::string text = message_of<ValueError>([&] { parallel::load_sharded(folder, other); });
  EXPECT_NE(text.find("body.weight"), std::string::npos) << text;
  std::filesystem::rename(folder + "/1/rank-1.safetensors", folder + "/1/rank-0.safetensors");
  Trainer plain(0);
  EXPECT_THROW(parallel::load_sharded(folder, plain.net), FileError) << "a file is gone";
  std::filesystem::copy_file(folder + "/1/rank-0.safetensors", folder + "/1/rank-1.safetensors");
  EXPECT_THROW(parallel::load_sharded(folder, plain.net), FileError) << "elements are missing";
  std::ofstream(folder + "/1/rank-1.safetensors") << "nonsense";
  EXPECT_THROW(parallel::load_sharded(folder, plain.net), FileError);
}

}  // namespace
}  // namespace tutti
