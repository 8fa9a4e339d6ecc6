// Datasets: anything with size() and get(i). A sample is a tensor tree (tree.h): a tensor, a tuple, a struct with
// TUTTI_FIELDS, ... Loaders call get from several threads at once, which is why it is const.
#pragma once

#include <concepts>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "tutti/ops.h"
#include "tutti/tensor.h"

namespace tutti::data {

template <class D>
concept Dataset = requires(const D& dataset, size_t i) {
  { dataset.size() } -> std::convertible_to<size_t>;
  dataset.get(i);
};
template <class D>
using SampleOf = std::remove_cvref_t<decltype(std::declval<const D&>().get(size_t{0}))>;

/// A dataset that makes a batch faster than sample by sample; the batch must be what collate() would have made.
template <class D>
concept BatchDataset =
    Dataset<D> && requires(const D& dataset, std::span<const int64_t> indices) { dataset.get_batch(indices); };

namespace detail {
void check_index(size_t index, size_t size);
void check_subset(std::span<const int64_t> indices, size_t size);
void check_rows(std::span<const Tensor> tensors);
Tensor take_rows(const Tensor& tensor, std::span<const int64_t> indices);
/// Pieces of a random permutation of 0 ... size-1.
std::vector<std::vector<int64_t>> split_indices(size_t size, std::span<const size_t> lengths, uint64_t seed);
}  // namespace detail

/// Row i of each tensor: TensorDataset(images, labels) has samples (image, label), TensorDataset(x) has samples x[i].
template <class... T>
class TensorDataset {
 public:
  explicit TensorDataset(T... tensors) : tensors_{std::move(tensors)...} { detail::check_rows(tensors_); }
  size_t size() const { return static_cast<size_t>(tensors_[0].size(0)); }
  auto get(size_t index) const {
    detail::check_index(index, size());
    return each([&](const Tensor& t) { return t.select(0, static_cast<int64_t>(index)); });
  }
  auto get_batch(std::span<const int64_t> indices) const {
    return each([&](const Tensor& t) { return detail::take_rows(t, indices); });
  }

 private:
  template <class F>
  auto each(F&& f) const {
    if constexpr (sizeof...(T) == 1)
      return f(tensors_[0]);
    else
      return [&]<size_t... i>(std::index_sequence<i...>) {
        return std::tuple{f(tensors_[i])...};
      }(std::index_sequence_for<T...>());
  }
  Tensor tensors_[sizeof...(T)];
};

/// f(sample) of every sample, computed when it is asked for.
template <Dataset D, class F>
class MapDataset {
 public:
  MapDataset(D dataset, F f) : dataset_(std::move(dataset)), f_(std::move(f)) {}
  size_t size() const { return dataset_.size(); }
  auto get(size_t index) const { return f_(dataset_.get(index)); }

 private:
  D dataset_;
  F f_;
};
template <Dataset D, class F>
auto map(D dataset, F f) {
  return MapDataset<D, F>(std::move(dataset), std::move(f));
}

/// The samples of these indices, in their order.
template <Dataset D>
class Subset {
 public:
  Subset(D dataset, std::vector<int64_t> indices) : dataset_(std::move(dataset)), indices_(std::move(indices)) {
    detail::check_subset(indices_, dataset_.size());
  }
  size_t size() const { return indices_.size(); }
  auto get(size_t index) const {
    detail::check_index(index, size());
    return dataset_.get(static_cast<size_t>(indices_[index]));
  }
  auto get_batch(std::span<const int64_t> indices) const
    requires BatchDataset<D>
  {
    std::vector<int64_t> inner;
    inner.reserve(indices.size());
    for (int64_t i : indices) inner.push_back(indices_.at(static_cast<size_t>(i)));
    return dataset_.get_batch(inner);
  }

 private:
  D dataset_;
  std::vector<int64_t> indices_;
};

/// Divides a dataset at random: random_split(all, {900, 100}, seed). The lengths may add up to less than the whole.
template <Dataset D>
std::vector<Subset<D>> random_split(const D& dataset, const std::vector<size_t>& lengths, uint64_t seed = 0) {
  std::vector<Subset<D>> parts;
  for (auto& indices : detail::split_indices(dataset.size(), lengths, seed)) parts.emplace_back(dataset, indices);
  return parts;
}

/// One after the other; all must have the same type of samples.
template <Dataset First, Dataset... Rest>
class ConcatDataset {
 public:
  explicit ConcatDataset(First first, Rest... rest) : parts_(std::move(first), std::move(rest)...) {}
  size_t size() const {
    return std::apply([](auto&... part) { return (size_t{0} + ... + static_cast<size_t>(part.size())); }, parts_);
  }
  SampleOf<First> get(size_t index) const {
    detail::check_index(index, size());
    return find<0>(index);
  }

 private:
  template <size_t i>
  SampleOf<First> find(size_t index) const {
    auto& part = std::get<i>(parts_);
    if constexpr (i < sizeof...(Rest))
      if (index >= part.size()) return find<i + 1>(index - part.size());
    return part.get(index);
  }
  std::tuple<First, Rest...> parts_;
};
template <Dataset... D>
auto concat(D... parts) {
  return ConcatDataset<D...>(std::move(parts)...);
}

}  // namespace tutti::data
