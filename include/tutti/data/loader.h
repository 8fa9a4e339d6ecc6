// DataLoader: batches of a dataset, made ahead of time by worker threads.
//
//   data::DataLoader loader(dataset, {.batch_size = 64, .shuffle = true, .workers = 2});
//   for (int epoch = 0; epoch < 10; ++epoch)
//     for (auto& [x, y] : loader) ...
//
// Which batches come, in which order and with which random numbers depends on the seed and the epoch alone, never on
// the workers. Each pass over the loader is the next epoch.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>

#include "tutti/context.h"
#include "tutti/data/collate.h"
#include "tutti/data/dataset.h"
#include "tutti/data/sampler.h"
#include "tutti/error.h"
#include "tutti/io/state.h"

namespace tutti::data {

struct LoaderOptions {
  size_t batch_size = 1;
  bool shuffle = false;                            // sampler: random_sampler(size, seed) instead of sequential
  bool drop_last = false;                          // a last batch that is smaller than the others
  int workers = 0;                                 // threads; 0: batches are made when they are asked for
  int prefetch = 2;                                // batches that each worker may be ahead
  uint64_t seed = 0;                               // of shuffle, and of the random numbers in the dataset
  std::optional<Sampler> sampler = {};             // instead of shuffle
  std::optional<BatchSampler> batch_sampler = {};  // instead of sampler, batch_size and drop_last
};

/// A sample or a batch could not be made. What the dataset or the collation threw is nested in it
/// (std::rethrow_if_nested).
struct SampleError : Error {
  using Error::Error;
};

namespace detail {

using Order = std::vector<std::vector<int64_t>>;  // the samples of each batch

struct Position {
  uint64_t epoch = 0;
  size_t batch = 0;                         // batches of the epoch that were handed out, or could not be made
  bool resumed = false;                     // load_state was called, or a pass failed to start: the next goes on here
  std::shared_ptr<const Order> order = {};  // of this epoch, once it is known
};
/// A number that tells orders apart.
int64_t hash_of(const Order& order);

/// Makes batches first ... last-1 in order, ahead of time. What is in flight when it is destroyed is dropped.
class Prefetcher {
 public:
  /// Makes one batch; looks at `stop` between samples and may return null once it is set.
  using Make = std::function<std::shared_ptr<void>(size_t batch, const std::atomic<bool>& stop)>;
  Prefetcher(size_t first, size_t last, int workers, int prefetch, Make make);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  /// The next batch, or null after the last. Rethrows what making it threw.
  std::shared_ptr<void> next();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

/// Inside, the thread's generator is the sample's or the batch's own.
class SampleRandom {
 public:
  SampleRandom();
  ~SampleRandom();
  SampleRandom(const SampleRandom&) = delete;
  SampleRandom& operator=(const SampleRandom&) = delete;
  void seed_sample(uint64_t seed, uint64_t epoch, int64_t index);
  void seed_batch(uint64_t seed, uint64_t epoch, size_t batch);

 private:
  std::shared_ptr<Generator> saved_;
};

BatchSampler batches_of(size_t size, const LoaderOptions& options);
void check_indices(const Order& batches, size_t size);
/// Inside a catch block: throws a SampleError that names the sample, or the batch.
[[noreturn]] void rethrow_for(int64_t index, size_t batch, uint64_t epoch);
[[noreturn]] void rethrow_for(const std::vector<int64_t>& indices, size_t batch, uint64_t epoch);
/// An iterator that has no batch was asked for it.
[[noreturn]] void no_batch(const std::exception_ptr& error);
/// What decides whether two loaders would go on with the same data.
struct Identity {
  size_t samples;
  const LoaderOptions& options;
  const BatchSampler& batches;
};
io::State position_state(const Position& position, const Identity& identity);
void load_position(Position& position, const io::State& state, const Identity& identity);
}  // namespace detail

/// The default collation.
struct Collate {
  template <class T>
  BatchOf<T> operator()(const std::vector<T>& samples) const {
    return collate(samples);
  }
};

template <Dataset D, class C = Collate>
class DataLoader {
 public:
  using Sample = SampleOf<D>;
  using Batch = std::invoke_result_t<const C&, const std::vector<Sample>&>;

  /// `collate` makes a batch of a std::vector of samples; it runs in the workers.
  explicit DataLoader(D dataset, LoaderOptions options = {}, C collate = {})
      : source_(std::make_shared<Source>(std::move(dataset), std::move(collate))),
        options_(std::move(options)),
        batches_(detail::batches_of(source_->dataset.size(), options_)) {}

  const D& dataset() const { return source_->dataset; }
  /// Batches in an epoch.
  size_t size() const { return batches_.size(); }
  /// The epoch of the current pass, or of the next one between passes.
  uint64_t epoch() const { return position_->epoch; }
  /// The next pass is this epoch, from its beginning.
  void set_epoch(uint64_t epoch) { *position_ = {epoch, 0, false}; }

  /// Where the loader is: the epoch, and how many of its batches were handed out or failed.
  io::State state() const { return detail::position_state(*position_, identity()); }
  /// The next pass goes on where the state was taken, with the batches that would have come then. ValueError when this
  /// loader would give others: another seed, size, option, or order of the epoch's samples.
  void load_state(const io::State& state) { detail::load_position(*position_, state, identity()); }

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using reference = Batch&;
    using pointer = Batch*;
    /// Of a batch that could not be made: throws once more what ++ threw.
    Batch& operator*() const {
      if (!batch_) detail::no_batch(error_);
      return *batch_;
    }
    Batch* operator->() const { return &**this; }
    /// Throws what making the batch threw. The iterator is then at that batch, and the next step goes on behind it.
    Iterator& operator++() {
      batch_.reset();  // its memory can serve the batches to come
      error_ = nullptr;
      ++position_->batch;
      try {
        batch_ = std::static_pointer_cast<Batch>(prefetcher_->next());
      } catch (...) {
        error_ = std::current_exception();
        throw;
      }
      if (!batch_) *position_ = {position_->epoch + 1, 0, false};
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& it, std::default_sentinel_t) { return !it.batch_ && !it.error_; }

   private:
    friend DataLoader;
    std::shared_ptr<detail::Prefetcher> prefetcher_;
    std::shared_ptr<detail::Position> position_;
    std::shared_ptr<Batch> batch_;
    std::exception_ptr error_;  // of the batch where this is
  };

  /// Starts a pass: the next epoch, or the rest of the one that load_state named. A pass may be left at any time. If
  /// its first batch cannot be made, begin() throws, and once more called goes on behind that batch, as ++ does.
  Iterator begin() {
    if (position_->batch > 0 && !position_->resumed) *position_ = {position_->epoch + 1, 0, false};
    position_->resumed = true;  // until there is an iterator to go on with
    uint64_t epoch = position_->epoch;
    auto order = std::make_shared<const detail::Order>(batches_.batches(epoch));
    detail::check_indices(*order, source_->dataset.size());
    position_->order = order;
    Iterator it;
    it.position_ = position_;
    it.prefetcher_ = std::make_shared<detail::Prefetcher>(
        std::min(position_->batch, order->size()), order->size(), options_.workers, options_.prefetch,
        [source = source_, order, epoch, seed = options_.seed](size_t batch, const std::atomic<bool>& stop) {
          return source->make((*order)[batch], batch, epoch, seed, stop);
        });
    ++it;
    position_->resumed = false;
    return it;
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  struct Source {
    Source(D d, C c) : dataset(std::move(d)), collate(std::move(c)) {}
    std::shared_ptr<void> make(const std::vector<int64_t>& indices, size_t batch, uint64_t epoch, uint64_t seed,
                               const std::atomic<bool>& stop) const {
      detail::SampleRandom random;
      std::vector<Sample> samples;
      constexpr bool whole = BatchDataset<D> && std::same_as<C, Collate>;
      if constexpr (!whole) {
        samples.reserve(indices.size());
        for (int64_t index : indices) {
          if (stop) return nullptr;
          random.seed_sample(seed, epoch, index);
          try {
            samples.push_back(dataset.get(static_cast<size_t>(index)));
          } catch (...) {
            detail::rethrow_for(index, batch, epoch);
          }
        }
      }
      random.seed_batch(seed, epoch, batch);
      try {
        if constexpr (whole)
          return std::make_shared<Batch>(dataset.get_batch(indices));
        else
          return std::make_shared<Batch>(collate(samples));
      } catch (...) {
        detail::rethrow_for(indices, batch, epoch);
      }
    }
    const D dataset;
    const C collate;
  };

  detail::Identity identity() const { return {source_->dataset.size(), options_, batches_}; }

  std::shared_ptr<const Source> source_;
  LoaderOptions options_;
  BatchSampler batches_;
  std::shared_ptr<detail::Position> position_ = std::make_shared<detail::Position>();
};
namespace detail {
// Says in words what the concept says in expressions.
template <class D>
struct Checked {
  static_assert(Dataset<D>, "a dataset needs size() const and get(i) const");
  using type = D;
};
}  // namespace detail
template <class D>
DataLoader(D, LoaderOptions) -> DataLoader<typename detail::Checked<D>::type>;
template <class D>
DataLoader(D) -> DataLoader<D>;
template <class D, class C>
DataLoader(D, LoaderOptions, C) -> DataLoader<typename detail::Checked<D>::type, C>;

}  // namespace tutti::data
