#include "tutti/data/loader.h"

#include <condition_variable>
#include <map>
#include <mutex>

#include "base/check.h"
#include "base/workers.h"
#include "data/random.h"
#include "tutti/context.h"
#include "tutti/random.h"

namespace tutti::data::detail {

// Workers take batch numbers in order and leave what they made under its number; a worker that is too far ahead waits.
struct Prefetcher::Shared {
  struct Result {
    std::shared_ptr<void> batch;
    std::exception_ptr error;
  };
  size_t taken, given, last, depth;  // next number for a worker; next for the user; end; how far apart they may be
  Make make;
  std::mutex mutex;
  std::condition_variable room, ready;
  std::map<size_t, Result> results;
  std::atomic<bool> stop{false};
  Jobs jobs;  // the last member: they use the others

  Result run(size_t number) {
    Result result;
    try {
      result.batch = make(number, stop);
    } catch (...) {
      result.error = std::current_exception();
    }
    return result;
  }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      room.wait(lock, [&] { return stop || taken >= last || taken < given + depth; });
      if (stop || taken >= last) return;
      size_t number = taken++;
      lock.unlock();
      Result result = run(number);
      lock.lock();
      results.emplace(number, std::move(result));
      ready.notify_one();
    }
  }

  ~Shared() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    room.notify_all();
  }
};

Prefetcher::Prefetcher(size_t first, size_t last, int workers, int prefetch, Make make)
    : shared_(std::make_shared<Shared>()) {
  shared_->taken = shared_->given = first;
  shared_->last = last;
  shared_->depth = static_cast<size_t>(workers) * static_cast<size_t>(prefetch);
  shared_->make = std::move(make);
  Context inherited = context();
  inherited.threads = 1;  // the workers are the parallelism
  for (int i = 0; i < workers; ++i)
    shared_->jobs.start(inherited.device, [shared = shared_.get(), inherited] {
      ContextGuard guard(inherited);
      shared->work();
    });
}

Prefetcher::~Prefetcher() = default;

std::shared_ptr<void> Prefetcher::next() {
  Shared& s = *shared_;
  if (s.given >= s.last) return nullptr;
  Shared::Result result;
  if (s.jobs.empty()) {
    result = s.run(s.given++);
  } else {
    std::unique_lock lock(s.mutex);
    s.ready.wait(lock, [&] { return s.results.contains(s.given); });
    result = std::move(s.results.extract(s.given).mapped());
    ++s.given;
    lock.unlock();
    s.room.notify_one();
  }
  if (result.error) std::rethrow_exception(result.error);
  return std::move(result.batch);
}

SampleRandom::SampleRandom() : saved_(std::move(context().generator)) {
  context().generator = std::make_shared<Generator>();
}
SampleRandom::~SampleRandom() { context().generator = std::move(saved_); }
void SampleRandom::seed_sample(uint64_t seed, uint64_t epoch, int64_t index) {
  context().generator->set_state({mix(mix(seed, epoch), static_cast<uint64_t>(index)), 0});
}
void SampleRandom::seed_batch(uint64_t seed, uint64_t epoch, size_t batch) {
  context().generator->set_state({mix(mix(seed, epoch), ~static_cast<uint64_t>(batch)), 0});  // as no sample is
}

BatchSampler batches_of(size_t size, const LoaderOptions& options) {
  check<ValueError>(!options.sampler || !options.shuffle, "data loader",
                    "shuffle and a sampler both say which samples come when: give one, or a random_sampler");
  check<ValueError>(!options.batch_sampler || (!options.sampler && !options.shuffle && !options.drop_last),
                    "data loader", "a batch_sampler says what is in each batch: give no sampler, shuffle or drop_last");
  check<ValueError>(options.workers >= 0 && options.workers <= 1024, "data loader",
                    "workers must be between 0 and 1024, not {}", options.workers);
  check<ValueError>(options.prefetch >= 1 && options.prefetch <= 1 << 20, "data loader",
                    "prefetch must be between 1 and {}, not {}", 1 << 20, options.prefetch);
  if (options.batch_sampler) return *options.batch_sampler;
  Sampler sampler = options.sampler   ? *options.sampler
                    : options.shuffle ? random_sampler(size, options.seed)
                                      : sequential_sampler(size);
  size_t samples = sampler.size();
  BatchSampler batches(std::move(sampler), options.batch_size, options.drop_last);
  check<ValueError>(batches.size() > 0 || samples == 0, "data loader",
                    "{} samples make no batch of {}, and drop_last leaves out what is smaller: nothing would ever come",
                    samples, options.batch_size);
  return batches;
}

void check_indices(const Order& batches, size_t size) {
  for (auto& batch : batches) {
    check<ValueError>(!batch.empty(), "data loader", "the sampler gave a batch without samples");
    for (int64_t index : batch)
      check<IndexError>(index >= 0 && static_cast<size_t>(index) < size, "data loader",
                        "the sampler gave sample {} of a dataset of {}", index, size);
  }
}

namespace {
// Inside a catch block: a SampleError about `what` around it.
[[noreturn]] void rethrow_about(const std::string& what) {
  std::string text = "an exception of unknown type";
  try {
    throw;
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {  // NOLINT: it is nested below all the same
  }
  std::throw_with_nested(SampleError(fmt::format("data loader: {}: {}", what, text), "data loader"));
}
}  // namespace

void rethrow_for(int64_t index, size_t batch, uint64_t epoch) {
  rethrow_about(fmt::format("sample {} (of batch {}, epoch {})", index, batch, epoch));
}
void rethrow_for(const std::vector<int64_t>& indices, size_t batch, uint64_t epoch) {
  constexpr size_t kShown = 8;
  std::string list;
  for (size_t i = 0; i < std::min(indices.size(), kShown); ++i) list += fmt::format("{}{}", i ? ", " : "", indices[i]);
  if (indices.size() > kShown) list += fmt::format(", ... {} in all", indices.size());
  rethrow_about(fmt::format("batch {} of epoch {} (samples {})", batch, epoch, list));
}

void no_batch(const std::exception_ptr& error) {
  if (error) std::rethrow_exception(error);
  fail<IndexError>("data loader", "there is no batch behind the last");
}

int64_t hash_of(const Order& order) {
  uint64_t hash = order.size();
  for (const auto& batch : order) {
    hash = mix(hash, batch.size());
    for (int64_t index : batch) hash = mix(hash, static_cast<uint64_t>(index));
  }
  return static_cast<int64_t>(hash);
}

io::State position_state(const Position& position, const Identity& identity) {
  const LoaderOptions& options = identity.options;
  const auto& known = identity.batches.identity();
  int64_t order = known            ? static_cast<int64_t>(known(position.epoch))
                  : position.order ? hash_of(*position.order)
                                   : hash_of(identity.batches.batches(position.epoch));
  return {{"epoch", static_cast<int64_t>(position.epoch)},
          {"batch", static_cast<int64_t>(position.batch)},
          {"seed", static_cast<int64_t>(options.seed)},
          {"samples", static_cast<int64_t>(identity.samples)},
          {"batch_size", static_cast<int64_t>(options.batch_size)},
          {"shuffle", static_cast<int64_t>(options.shuffle)},
          {"drop_last", static_cast<int64_t>(options.drop_last)},
          {"order", order}};
}

void load_position(Position& position, const io::State& state, const Identity& identity) {
  int64_t epoch = state["epoch"].as<int64_t>(), batch = state["batch"].as<int64_t>();
  check<ValueError>(epoch >= 0 && batch >= 0, "data loader", "epoch {} and batch {} cannot be", epoch, batch);
  Position next{static_cast<uint64_t>(epoch), static_cast<size_t>(batch), true};
  const io::State here = position_state(next, identity);
  for (const char* name : {"seed", "samples", "batch_size", "shuffle", "drop_last"})
    check<ValueError>(state[name].as<int64_t>() == here[name].as<int64_t>(), "data loader",
                      "the state was taken with {} = {}, and this loader has {}: it would not go on with the same data",
                      name, state[name].as<int64_t>(), here[name].as<int64_t>());
  check<ValueError>(
      state["order"].as<int64_t>() == here["order"].as<int64_t>(), "data loader",
      "the state was taken where epoch {} had other samples or another order: the sampler is not the same", epoch);
  check<ValueError>(next.batch <= identity.batches.size(), "data loader", "batch {} of {} cannot be", batch,
                    identity.batches.size());
  position = std::move(next);
}

}  // namespace tutti::data::detail
