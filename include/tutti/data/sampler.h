// Samplers: which samples an epoch takes, in which order. The order is a function of the epoch alone, so that any
// place in a run can be found again.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tutti/tensor.h"

namespace tutti::data {

/// 0 ... size-1 in an order that depends on nothing but the seed and the epoch, on every machine.
std::vector<int64_t> permutation(size_t size, uint64_t seed, uint64_t epoch = 0);

/// A value: `size` indices an epoch, made by a function of the epoch. Your own is Sampler(size, function).
class Sampler {
 public:
  using Function = std::function<std::vector<int64_t>(uint64_t epoch)>;
  /// `identity` tells orders of epochs apart, for loaders that go on in the middle of one: a number that is the same
  /// on all ranks whose shares are of one order. None: the indices themselves do.
  using Identity = std::function<uint64_t(uint64_t epoch)>;
  Sampler(size_t size, Function indices, Identity identity = {})
      : size_(size), indices_(std::move(indices)), identity_(std::move(identity)) {}
  size_t size() const { return size_; }
  std::vector<int64_t> indices(uint64_t epoch) const;
  const Identity& identity() const { return identity_; }

 private:
  size_t size_;
  Function indices_;
  Identity identity_;
};

Sampler sequential_sampler(size_t size);
Sampler random_sampler(size_t size, uint64_t seed = 0);
/// `count` indices drawn by their weights, with or without putting back.
Sampler weighted_sampler(const Tensor& weights, size_t count, bool replacement = true, uint64_t seed = 0);

struct DistributedOptions {
  int rank = -1, world_size = -1;  // -1: the thread context's, which is rank 0 of 1 outside of a world
  bool shuffle = true;             // in the same order on every rank: the seed must be the same
  bool drop_last = false;          // ranks get equally many: the rest is dropped, or else some samples come twice
  uint64_t seed = 0;
};
/// Every world_size-th sample beginning with rank.
Sampler distributed_sampler(size_t size, const DistributedOptions& options = {});

/// The indices of each batch of an epoch.
class BatchSampler {
 public:
  using Function = std::function<std::vector<std::vector<int64_t>>(uint64_t epoch)>;
  BatchSampler(size_t size, Function batches) : size_(size), batches_(std::move(batches)) {}
  /// Batches of `batch_size` in the sampler's order; the last may be smaller unless it is dropped.
  BatchSampler(Sampler sampler, size_t batch_size, bool drop_last = false);
  /// Batches in an epoch.
  size_t size() const { return size_; }
  std::vector<std::vector<int64_t>> batches(uint64_t epoch) const;
  const Sampler::Identity& identity() const { return identity_; }

 private:
  size_t size_;
  Function batches_;
  Sampler::Identity identity_;
};

}  // namespace tutti::data
