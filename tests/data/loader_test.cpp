#include "tutti/data/loader.h"

#include <thread>

#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"
#include "tests/support/few_threads.h"
#include "tutti/data.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using testing::ElementsAre;
using testing::HasSubstr;

// Samples with random numbers of their own; sample 13 can be made to fail, and some take longer.
struct Noisy {
  size_t count = 20;
  int bad = -1;
  bool slow = false;
  size_t size() const { return count; }
  std::tuple<Tensor, int> get(size_t i) const {
    if (static_cast<int>(i) == bad) throw IndexError("it is not here", "noisy");
    if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(i * 7 % 5));
    return {rand({3}), static_cast<int>(i)};
  }
};

template <class L>
std::vector<std::pair<Tensor, Tensor>> all(L& loader, size_t most = 1000) {
  std::vector<std::pair<Tensor, Tensor>> list;
  for (auto& [x, y] : loader) {
    list.emplace_back(x, y);
    if (list.size() == most) break;
  }
  return list;
}

void expect_same(const std::vector<std::pair<Tensor, Tensor>>& a, const std::vector<std::pair<Tensor, Tensor>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(identical(a[i].first, b[i].first)) << i;
    EXPECT_TRUE(identical(a[i].second, b[i].second)) << i;
  }
}

TEST(DataLoader, MakesBatches) {
  data::DataLoader loader(Noisy{}, {.batch_size = 8});
  EXPECT_EQ(loader.size(), 3u);
  auto batches = all(loader);
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_EQ(batches[0].first.sizes(), Shape({8, 3}));
  EXPECT_EQ(values(batches[2].second), (Doubles{16, 17, 18, 19}));
  data::DataLoader whole(Noisy{}, {.batch_size = 8, .drop_last = true});
  EXPECT_EQ(whole.size(), 2u);
  EXPECT_EQ(all(whole).size(), 2u);
  data::DataLoader none(Noisy{.count = 0}, {.batch_size = 8, .workers = 2});
  EXPECT_TRUE(all(none).empty());
}

TEST(DataLoader, IsTheSameWithAnyWorkers) {
  data::DataLoader plain(Noisy{}, {.batch_size = 3, .shuffle = true, .seed = 5});
  auto first = all(plain), second = all(plain);
  EXPECT_FALSE(identical(first[0].second, second[0].second));  // another epoch
  EXPECT_EQ(plain.epoch(), 2u);
  for (int workers : {1, 2, 5})
    for (int prefetch : {1, 4}) {
      data::DataLoader loader(Noisy{.slow = true},
                              {.batch_size = 3, .shuffle = true, .workers = workers, .prefetch = prefetch, .seed = 5});
      expect_same(all(loader), first);
      expect_same(all(loader), second);
      loader.set_epoch(0);
      expect_same(all(loader), first);
    }
}

TEST(DataLoader, LeavesTheCallersRandomNumbersAlone) {
  manual_seed(1);
  Tensor expected = rand({4});
  manual_seed(1);
  data::DataLoader loader(Noisy{}, {.batch_size = 3});
  all(loader);
  EXPECT_TRUE(identical(rand({4}), expected));
}

TEST(DataLoader, TakesBatchesFromTensors) {
  data::TensorDataset dataset(arange(20).reshape({10, 2}), arange(10));
  data::DataLoader loader(dataset, {.batch_size = 4, .shuffle = true, .workers = 1});
  int count = 0;
  for (auto& [x, y] : loader) {
    EXPECT_TRUE(identical(x, stack({y * 2, y * 2 + 1}, 1)));
    count += static_cast<int>(y.numel());
  }
  EXPECT_EQ(count, 10);
  data::DataLoader single(data::TensorDataset(arange(3)), {.batch_size = 2});
  Doubles seen;
  for (Tensor& x : single) seen.push_back(x.sum().item<double>());
  EXPECT_EQ(seen, (Doubles{1, 2}));
}

TEST(DataLoader, TakesOtherSamplersAndCollations) {
  data::DataLoader reversed(
      Noisy{.count = 3},
      {.batch_size = 2, .sampler = data::Sampler(3, [](uint64_t) { return std::vector<int64_t>{2, 1, 0}; })});
  EXPECT_EQ(values(all(reversed)[0].second), (Doubles{2, 1}));
  data::DataLoader uneven(Noisy{}, {.batch_sampler = data::BatchSampler(
                                        2, [](uint64_t) { return std::vector<std::vector<int64_t>>{{3}, {1, 2}}; })});
  EXPECT_EQ(values(all(uneven)[1].second), (Doubles{1, 2}));
  data::DataLoader custom(Noisy{}, {.batch_size = 8, .workers = 2},
                          [](const std::vector<std::tuple<Tensor, int>>& samples) { return samples.size(); });
  std::vector<size_t> sizes;
  for (size_t n : custom) sizes.push_back(n);
  EXPECT_THAT(sizes, ElementsAre(8, 8, 4));
  data::DataLoader wrong(Noisy{.count = 3}, {.sampler = data::sequential_sampler(4)});
  EXPECT_THROW(all(wrong), IndexError);
  EXPECT_THROW(all(wrong = data::DataLoader(Noisy{}, {.workers = -1})), ValueError);
}

TEST(DataLoader, ThrowsInOrderAndNamesTheSample) {
  for (int workers : {0, 3}) {
    data::DataLoader loader(Noisy{.bad = 13}, {.batch_size = 4, .workers = workers});
    size_t batches = 0;
    std::string message = message_of<data::SampleError>([&] {
      for (auto& batch : loader) {
        (void)batch;
        ++batches;
      }
    });
    EXPECT_EQ(batches, 3u) << workers;
    EXPECT_THAT(message, HasSubstr("sample 13 (of batch 3, epoch 0)"));
    EXPECT_THAT(message, HasSubstr("it is not here"));
    try {
      loader.set_epoch(0);
      all(loader);
    } catch (const data::SampleError& error) {
      EXPECT_THROW(std::rethrow_if_nested(error), IndexError);
    }
  }
}

// A batch that could not be made is behind the loader, like one that was: what comes after it comes once.
TEST(DataLoader, GoesOnBehindABatchThatFailed) {
  for (int workers : {0, 3}) {
    data::DataLoader loader(Noisy{.bad = 5}, {.batch_size = 4, .workers = workers});
    auto it = loader.begin();
    EXPECT_THROW(++it, data::SampleError);
    EXPECT_FALSE(it == loader.end());
    EXPECT_THROW((void)*it, data::SampleError);
    ++it;
    EXPECT_EQ(values(std::get<1>(*it)), (Doubles{8, 9, 10, 11}));
    data::DataLoader resumed(Noisy{.bad = 5}, {.batch_size = 4, .workers = workers});
    resumed.load_state(loader.state());
    auto rest = all(resumed);
    ASSERT_EQ(rest.size(), 2u);
    EXPECT_EQ(values(rest[0].second), (Doubles{12, 13, 14, 15}));
    ++it, ++it;
    EXPECT_FALSE(it == loader.end());
    ++it;
    EXPECT_TRUE(it == loader.end());
    EXPECT_THROW((void)*it, IndexError);
    EXPECT_EQ(loader.epoch(), 1u);
    // The last one of an epoch.
    data::DataLoader last(Noisy{.count = 6, .bad = 5}, {.batch_size = 4, .workers = workers});
    auto end = last.begin();
    EXPECT_THROW(++end, data::SampleError);
    EXPECT_FALSE(end == last.end());
    ++end;
    EXPECT_TRUE(end == last.end());
    EXPECT_EQ(last.epoch(), 1u);
    // The first one: there is no iterator to go on with, so the next pass does.
    data::DataLoader first(Noisy{.bad = 1}, {.batch_size = 4, .workers = workers});
    EXPECT_THROW(first.begin(), data::SampleError);
    EXPECT_EQ(values(std::get<1>(*first.begin())), (Doubles{4, 5, 6, 7}));
    EXPECT_EQ(first.epoch(), 0u);
    data::DataLoader only(Noisy{.count = 2, .bad = 1}, {.batch_size = 4, .workers = workers});
    EXPECT_THROW(only.begin(), data::SampleError);
    EXPECT_TRUE(only.begin() == only.end());
    EXPECT_EQ(only.epoch(), 1u);
  }
}

// Nothing would ever come, and a training loop over it would seem to work.
TEST(DataLoader, RefusesToDropAllThereIs) {
  EXPECT_THAT(message_of<ValueError>([] { data::DataLoader(Noisy{.count = 3}, {.batch_size = 4, .drop_last = true}); }),
              HasSubstr("3 samples make no batch of 4"));
  EXPECT_EQ(data::DataLoader(Noisy{.count = 0}, {.batch_size = 4, .drop_last = true}).size(), 0u);
}

// Makes whole batches, with random numbers of their own.
struct NoisyBatches {
  int bad = -1;
  size_t size() const { return 20; }
  std::tuple<Tensor, Tensor> get(size_t i) const { return get_batch(std::vector<int64_t>{static_cast<int64_t>(i)}); }
  std::tuple<Tensor, Tensor> get_batch(std::span<const int64_t> indices) const {
    for (int64_t i : indices)
      if (i == bad) throw IndexError("it is not here", "noisy");
    return {rand({static_cast<int64_t>(indices.size()), 2}), tensor(indices)};
  }
};

TEST(DataLoader, WholeBatchesHaveRandomNumbersOfTheirOwn) {
  manual_seed(1);
  Tensor expected = rand({4});
  manual_seed(1);
  data::DataLoader plain(NoisyBatches{}, {.batch_size = 3, .shuffle = true, .seed = 5});
  auto first = all(plain), second = all(plain);
  EXPECT_TRUE(identical(rand({4}), expected));  // the caller's are left alone
  EXPECT_FALSE(identical(first[0].first, first[1].first));
  EXPECT_FALSE(identical(first[0].first, second[0].first));
  manual_seed(77);  // and do not matter
  for (int workers : {0, 1, 4}) {
    data::DataLoader loader(NoisyBatches{}, {.batch_size = 3, .shuffle = true, .workers = workers, .seed = 5});
    expect_same(all(loader), first);
    expect_same(all(loader), second);
  }
  data::DataLoader other(NoisyBatches{}, {.batch_size = 3, .shuffle = true, .seed = 6});
  EXPECT_FALSE(identical(all(other)[0].first, first[0].first));
}

TEST(DataLoader, CollationsHaveRandomNumbersOfTheirOwn) {
  auto mix = [](const std::vector<std::tuple<Tensor, int>>& samples) {
    return std::tuple{rand({2}), Tensor(static_cast<int64_t>(samples.size()))};
  };
  data::DataLoader plain(Noisy{}, {.batch_size = 3}, mix), threads(Noisy{}, {.batch_size = 3, .workers = 3}, mix);
  manual_seed(1);
  auto first = all(plain);
  manual_seed(2);
  expect_same(all(threads), first);
  EXPECT_FALSE(identical(first[0].first, first[1].first));
}

struct Ragged {
  size_t size() const { return 20; }
  Tensor get(size_t i) const { return zeros({i == 13 ? 2 : 1}); }
};

TEST(DataLoader, NamesTheBatchThatCouldNotBeMade) {
  for (int workers : {0, 3}) {
    data::DataLoader whole(NoisyBatches{.bad = 13}, {.batch_size = 4, .workers = workers});
    auto made = [&](auto& loader) {
      return message_of<data::SampleError>([&] {
        for (auto& batch : loader) (void)batch;
      });
    };
    EXPECT_THAT(made(whole), HasSubstr("batch 3 of epoch 0 (samples 12, 13, 14, 15)"));
    whole.set_epoch(2);
    EXPECT_THAT(made(whole), HasSubstr("batch 3 of epoch 2"));
    whole.set_epoch(0);
    try {
      for (auto& batch : whole) (void)batch;
      FAIL();
    } catch (const data::SampleError& error) {
      EXPECT_THAT(error.what(), HasSubstr("it is not here"));
      EXPECT_THROW(std::rethrow_if_nested(error), IndexError);
    }
    data::DataLoader ragged(Ragged{}, {.batch_size = 10, .workers = workers});
    EXPECT_THAT(made(ragged), HasSubstr("batch 1 of epoch 0 (samples 10, 11, 12, 13, 14, 15, 16, 17, ... 10 in all)"));
    data::DataLoader thrown(Ragged{}, {.batch_size = 2, .workers = workers},
                            [](const std::vector<Tensor>&) -> int { throw 7; });
    EXPECT_THAT(made(thrown), HasSubstr("batch 0 of epoch 0 (samples 0, 1): an exception of unknown type"));
  }
}

struct Counting {
  std::shared_ptr<std::atomic<int>> made = std::make_shared<std::atomic<int>>(0);
  size_t size() const { return 1000000; }
  int get(size_t i) const {
    ++*made;
    return static_cast<int>(i);
  }
};

TEST(DataLoader, CanBeLeftEarly) {
  Counting dataset;
  {
    data::DataLoader loader(dataset, {.batch_size = 10, .workers = 3, .prefetch = 2});
    for (int pass = 0; pass < 20; ++pass)
      for (auto& x : loader) {
        if (x[0].item<int>() >= 20) break;
      }
    EXPECT_EQ(loader.epoch(), 19u);
  }
  int after = *dataset.made;
  EXPECT_LE(after, 20 * (3 + 6 + 3) * 10);  // what was asked for, and what may be ahead
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(*dataset.made, after);
  // An iterator outlives its loader.
  auto it = data::DataLoader(dataset, {.batch_size = 2, .workers = 2}).begin();
  ++it;
  EXPECT_EQ(values(*it), (Doubles{2, 3}));
}

TEST(DataLoader, ABatchSamplerKeepsItsPromise) {
  data::DataLoader loader(Noisy{}, {.batch_sampler = data::BatchSampler(
                                        3, [](uint64_t) { return std::vector<std::vector<int64_t>>{{0, 1}, {2}}; })});
  EXPECT_THAT(message_of<ValueError>([&] { loader.begin(); }), HasSubstr("promised 3 batches and gave 2"));
}

#ifdef TUTTI_TEST_FEW_THREADS
// In a process of its own, whose memory does not suffice for the stacks of all workers.
TEST(DataLoader, ThreadsThatCannotBeHadAreAnError) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  auto body = [] {
    leave_few_threads();
    // So many samples that none of them is done when the last is started.
    data::DataLoader loader(Noisy{.count = 5000}, {.batch_size = 1, .workers = 1000, .prefetch = 1});
    for (int round = 0; round < 3; ++round) {
      try {
        loader.begin();
        std::_Exit(1);
      } catch (const std::system_error&) {
      }
    }
    data::DataLoader smaller(Noisy{}, {.batch_size = 5, .workers = 2});
    std::_Exit(all(smaller).size() == 4 ? 0 : 2);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}
#endif

TEST(DataLoader, GoesOnFromAState) {
  data::LoaderOptions options{.batch_size = 3, .shuffle = true, .workers = 2, .seed = 9};
  data::DataLoader straight(Noisy{}, options);
  std::vector<std::pair<Tensor, Tensor>> expected;
  for (int pass = 0; pass < 3; ++pass)
    for (auto& batch : all(straight)) expected.push_back(batch);
  // Stop after each number of batches, in the midst of the second epoch and at its ends.
  for (size_t stop = 0; stop <= 7; ++stop) {
    std::vector<std::pair<Tensor, Tensor>> got;
    std::string saved;
    {
      data::DataLoader loader(Noisy{}, options);
      got = all(loader);
      size_t taken = 0;
      if (stop > 0)
        for (auto& [x, y] : loader) {
          got.emplace_back(x, y);
          if (++taken == stop) {
            saved = io::state_to_bytes(loader.state());
            break;
          }
        }
      else
        saved = io::state_to_bytes(loader.state());
    }
    data::DataLoader loader(Noisy{}, options);
    loader.load_state(io::state_from_bytes(saved, "memory"));
    EXPECT_EQ(loader.epoch(), 1u);
    for (; loader.epoch() < 3;)
      for (auto& [x, y] : loader) got.emplace_back(x, y);
    expect_same(got, expected);
  }
}

TEST(DataLoader, RefusesAStateOfOtherData) {
  data::DataLoader loader(Noisy{}, {.batch_size = 3});
  auto state = loader.state();
  EXPECT_THAT(message_of<ValueError>([&] { data::DataLoader(Noisy{}, {.batch_size = 4}).load_state(state); }),
              HasSubstr("batch_size = 3"));
  EXPECT_THROW(data::DataLoader(Noisy{.count = 7}, {.batch_size = 3}).load_state(state), ValueError);
  EXPECT_THROW(data::DataLoader(Noisy{}, {.batch_size = 3, .seed = 1}).load_state(state), ValueError);
  state["batch"] = -1;
  EXPECT_THROW(loader.load_state(state), ValueError);
  state["batch"] = 8;
  EXPECT_THAT(message_of<ValueError>([&] { loader.load_state(state); }), HasSubstr("batch 8 of 7"));
  EXPECT_THROW(loader.load_state({}), FileError);
}

TEST(DataLoader, RefusesAStateOfAnotherOrder) {
  auto order = [](std::vector<int64_t> list) {
    return data::LoaderOptions{.batch_size = 2,
                               .sampler = data::Sampler(list.size(), [list](uint64_t) { return list; })};
  };
  Noisy data{.count = 5};
  data::DataLoader loader(data, order({4, 3, 2, 1, 0})), shuffled(data, {.batch_size = 2, .shuffle = true}),
      dropped(data, {.batch_size = 2, .drop_last = true}), plain(data, {.batch_size = 2});
  auto state = loader.state();
  auto refused = [](auto& loader, const io::State& state, const char* text) {
    EXPECT_THAT(message_of<ValueError>([&] { loader.load_state(state); }), HasSubstr(text));
  };
  data::DataLoader other(data, order({4, 3, 2, 0, 1})), shorter(data, order({4, 3, 2, 1}));
  refused(other, state, "another order");
  refused(shorter, state, "another order");
  refused(plain, state, "another order");
  refused(shuffled, plain.state(), "shuffle = 0");
  refused(plain, shuffled.state(), "shuffle = 1");
  refused(plain, dropped.state(), "drop_last = 1");
  // In the middle of a pass as between passes.
  for (auto& batch : loader) {
    (void)batch;
    break;
  }
  refused(other, loader.state(), "another order");
  data::DataLoader same(data, order({4, 3, 2, 1, 0}));
  same.load_state(loader.state());
  EXPECT_EQ(values(all(same)[0].second), (Doubles{2, 1}));
}

TEST(DataLoader, RefusesOptionsThatContradictEachOther) {
  data::Sampler sampler = data::sequential_sampler(5);
  Noisy data{.count = 5};
  EXPECT_THAT(message_of<ValueError>([&] { data::DataLoader(data, {.shuffle = true, .sampler = sampler}); }),
              HasSubstr("shuffle and a sampler"));
  data::BatchSampler batches(sampler, 2, false);
  EXPECT_THROW(data::DataLoader(data, {.shuffle = true, .batch_sampler = batches}), ValueError);
  EXPECT_THAT(message_of<ValueError>([&] { data::DataLoader(data, {.workers = -1}); }),
              HasSubstr("workers must be between 0 and 1024, not -1"));
  EXPECT_THAT(message_of<ValueError>([&] { data::DataLoader(data, {.prefetch = 0}); }), HasSubstr("prefetch"));
}

}  // namespace
}  // namespace tutti
