#include "tutti/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "data/random.h"
#include "tutti/context.h"
#include "tutti/data/dataset.h"

namespace tutti::data {
namespace {

// With cumulative[i] the sum of the weights up to i.
std::vector<int64_t> draw_with_replacement(const std::vector<double>& cumulative, size_t count, Random random) {
  std::vector<int64_t> drawn(count);
  for (auto& index : drawn) {
    double at = random.uniform() * cumulative.back();
    index = std::upper_bound(cumulative.begin(), cumulative.end(), at) - cumulative.begin();
    index = std::min(index, static_cast<int64_t>(cumulative.size()) - 1);
  }
  return drawn;
}

// The largest of log(u)/w for uniform u: as if drawn one after the other (Efraimidis and Spirakis, 2006).
std::vector<int64_t> draw_without_replacement(const std::vector<double>& weights, size_t count, Random random) {
  std::vector<std::pair<double, int64_t>> keys;
  for (size_t i = 0; i < weights.size(); ++i) {
    double u = random.uniform();
    if (weights[i] > 0) keys.emplace_back(std::log(1 - u) / weights[i], static_cast<int64_t>(i));
  }
  std::partial_sort(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(count), keys.end(), std::greater<>());
  std::vector<int64_t> drawn(count);
  for (size_t i = 0; i < count; ++i) drawn[i] = keys[i].second;
  return drawn;
}

std::vector<int64_t> counting(size_t size) {
  std::vector<int64_t> indices(size);
  std::iota(indices.begin(), indices.end(), int64_t{0});
  return indices;
}

}  // namespace

std::vector<int64_t> permutation(size_t size, uint64_t seed, uint64_t epoch) {
  std::vector<int64_t> indices = counting(size);
  Random random(mix(seed, epoch));
  for (size_t i = size; i > 1; --i) std::swap(indices[i - 1], indices[random.below(i)]);
  return indices;
}

std::vector<int64_t> Sampler::indices(uint64_t epoch) const {
  std::vector<int64_t> result = indices_(epoch);
  check<ValueError>(result.size() == size_, "sampler", "it gave {} indices and had promised {}", result.size(), size_);
  return result;
}

Sampler sequential_sampler(size_t size) {
  return {size, [size](uint64_t) { return counting(size); }};
}

Sampler random_sampler(size_t size, uint64_t seed) {
  return {size, [=](uint64_t epoch) { return permutation(size, seed, epoch); }};
}

Sampler weighted_sampler(const Tensor& weights, size_t count, bool replacement, uint64_t seed) {
  check<ShapeError>(weights.dim() == 1, "weighted_sampler", "weights are a vector, not {}", weights);
  std::vector<double> list = weights.to_vector<double>();
  auto bad = std::find_if(list.begin(), list.end(), [](double w) { return !(w >= 0 && w <= 1e300); });
  check<ValueError>(bad == list.end(), "weighted_sampler", "weight {} is {}: each must be finite and at least 0",
                    bad - list.begin(), bad == list.end() ? 0.0 : *bad);
  auto positive = static_cast<size_t>(std::count_if(list.begin(), list.end(), [](double w) { return w > 0; }));
  check<ValueError>(count == 0 || positive >= (replacement ? 1 : count), "weighted_sampler",
                    "{} samples cannot be drawn of {} with a weight above 0", count, positive);
  if (replacement) std::partial_sum(list.begin(), list.end(), list.begin());
  return {count, [=, list = std::move(list)](uint64_t epoch) {
            Random random(mix(seed, epoch));
            return replacement ? draw_with_replacement(list, count, random)
                               : draw_without_replacement(list, count, random);
          }};
}

Sampler distributed_sampler(size_t size, const DistributedOptions& options) {
  int world = options.world_size >= 0 ? options.world_size : std::max(context().world_size, 1);
  int rank = options.rank >= 0 ? options.rank : std::max(context().rank, 0);
  check<ValueError>(world > 0 && rank < world, "distributed_sampler", "there is no rank {} in a world of {}", rank,
                    world);
  auto ranks = static_cast<size_t>(world), first = static_cast<size_t>(rank);
  size_t each = options.drop_last ? size / ranks : (size + ranks - 1) / ranks;
  return {each,
          [=, shuffle = options.shuffle, seed = options.seed](uint64_t epoch) {
            std::vector<int64_t> all = shuffle ? permutation(size, seed, epoch) : counting(size), mine(each);
            // Past the end it begins again: some samples come twice so that all ranks have equally many.
            for (size_t i = 0; i < each; ++i) mine[i] = all[(first + i * ranks) % size];
            return mine;
          },
          [=, shuffle = options.shuffle, seed = options.seed](uint64_t epoch) {
            uint64_t hash = mix(mix(size, ranks), each);
            return shuffle ? mix(mix(hash, seed), epoch) : hash;
          }};
}

BatchSampler::BatchSampler(Sampler sampler, size_t batch_size, bool drop_last) {
  check<ValueError>(batch_size > 0, "batch_sampler", "a batch has at least one sample");
  identity_ = sampler.identity();
  size_ = drop_last ? sampler.size() / batch_size : (sampler.size() + batch_size - 1) / batch_size;
  batches_ = [=, size = size_, sampler = std::move(sampler)](uint64_t epoch) {
    std::vector<int64_t> indices = sampler.indices(epoch);
    std::vector<std::vector<int64_t>> batches(size);
    for (size_t i = 0; i < size; ++i) {
      auto begin = indices.begin() + static_cast<std::ptrdiff_t>(i * batch_size);
      auto length = static_cast<std::ptrdiff_t>(std::min(batch_size, indices.size() - i * batch_size));
      batches[i].assign(begin, begin + length);
    }
    return batches;
  };
}

std::vector<std::vector<int64_t>> BatchSampler::batches(uint64_t epoch) const {
  auto batches = batches_(epoch);
  check<ValueError>(batches.size() == size_, "batch sampler", "promised {} batches and gave {}", size_, batches.size());
  return batches;
}

namespace detail {

void check_index(size_t index, size_t size) {
  check<IndexError>(index < size, "dataset", "there is no sample {}: there are {}, counted from 0", index, size);
}

void check_subset(std::span<const int64_t> indices, size_t size) {
  for (int64_t index : indices)
    check<IndexError>(index >= 0 && static_cast<size_t>(index) < size, "subset",
                      "there is no sample {}: there are {}, counted from 0", index, size);
}

void check_rows(std::span<const Tensor> tensors) {
  for (auto& t : tensors) {
    check<ShapeError>(t.dim() > 0, "TensorDataset", "{} has no rows", t);
    check<ShapeError>(t.size(0) == tensors[0].size(0), "TensorDataset", "{} and {} have different numbers of rows",
                      tensors[0], t);
  }
}

Tensor take_rows(const Tensor& tensor, std::span<const int64_t> indices) {
  NoGrad guard;
  return index_select(tensor, 0, tutti::tensor(indices, {.dtype = i64, .device = tensor.device()}));
}

std::vector<std::vector<int64_t>> split_indices(size_t size, std::span<const size_t> lengths, uint64_t seed) {
  std::vector<int64_t> order = permutation(size, seed);
  std::vector<std::vector<int64_t>> parts;
  size_t at = 0;
  for (size_t length : lengths) {
    check<ValueError>(length <= size - at, "random_split", "the lengths add up to more than {}", size);
    parts.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(at),
                       order.begin() + static_cast<std::ptrdiff_t>(at + length));
    at += length;
  }
  return parts;
}

}  // namespace detail
}  // namespace tutti::data
