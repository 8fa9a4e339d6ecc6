// Collation: a batch of samples made of a list of them. The batch has the form of a sample, with in each place
//   a tensor         of a tensor                 one more dim in front
//   a tensor         of a number                 integers as i64, float as f32, double as f64, bool as boolean
//   a vector         of a string or unknown type
//   the same         of tuples, pairs, arrays, vectors, maps, optionals; all samples must have the same keys and
//   lengths the same struct  of a struct with TUTTI_FIELDS whose fields are all made of tensors; else a tuple of its
//   fields.
#pragma once

#include <span>
#include <string>

#include "tutti/tree.h"

namespace tutti::data {

namespace detail {
Tensor stack_samples(const TensorList& tensors);
Tensor tensor_of(const std::vector<int64_t>& values);
Tensor tensor_of(const std::vector<float>& values);
Tensor tensor_of(const std::vector<double>& values);
Tensor tensor_of_bools(const std::vector<uint8_t>& values);
/// Throws: samples 0 and `sample` differ in `what`.
[[noreturn]] void samples_differ(size_t sample, const char* what);

template <class T>
struct Collated;  // type: of a batch of Ts; make(samples): a batch of pointers to Ts

template <class T>
using Pointers = std::vector<const T*>;

/// The batch of what `part(sample)` refers to in each.
template <class T, class F>
auto collate_part(const Pointers<T>& samples, F&& part) {
  using P = std::remove_cvref_t<decltype(part(*samples[0]))>;
  Pointers<P> parts;
  parts.reserve(samples.size());
  for (const T* sample : samples) parts.push_back(&part(*sample));
  return Collated<P>::make(parts);
}

template <class Tuple>
struct CollatedFields;
template <class... T>
struct CollatedFields<std::tuple<T...>> {
  using type = std::tuple<typename Collated<std::remove_cvref_t<T>>::type...>;
  static constexpr bool same =
      (std::same_as<typename Collated<std::remove_cvref_t<T>>::type, std::remove_cvref_t<T>> && ...);
};

template <class T>
struct Collated {
  using type = std::vector<T>;
  static type make(const Pointers<T>& samples) {
    type list;
    list.reserve(samples.size());
    for (const T* sample : samples) list.push_back(*sample);
    return list;
  }
};

template <tree::IsTensor T>
struct Collated<T> {
  using type = Tensor;
  static type make(const Pointers<T>& samples) {
    TensorList list;
    list.reserve(samples.size());
    for (const T* sample : samples) list.push_back(*sample);
    return stack_samples(list);
  }
};

template <class T>
  requires std::is_arithmetic_v<T>
struct Collated<T> {
  using type = Tensor;
  static type make(const Pointers<T>& samples) {
    using V =
        std::conditional_t<std::is_floating_point_v<T>, T, std::conditional_t<std::same_as<T, bool>, uint8_t, int64_t>>;
    std::vector<V> values;
    values.reserve(samples.size());
    for (const T* sample : samples) values.push_back(static_cast<V>(*sample));
    if constexpr (std::same_as<T, bool>)
      return tensor_of_bools(values);
    else
      return tensor_of(values);
  }
};

template <class A, class B>
struct Collated<std::pair<A, B>> {
  using S = std::pair<A, B>;
  using type = std::pair<typename Collated<A>::type, typename Collated<B>::type>;
  static type make(const Pointers<S>& samples) {
    return {collate_part(samples, [](const S& s) -> const A& { return s.first; }),
            collate_part(samples, [](const S& s) -> const B& { return s.second; })};
  }
};

template <class... T>
struct Collated<std::tuple<T...>> {
  using S = std::tuple<T...>;
  using type = std::tuple<typename Collated<T>::type...>;
  static type make(const Pointers<S>& samples) {
    return [&]<size_t... i>(std::index_sequence<i...>) {
      return type{collate_part(samples, [](const S& s) -> const auto& { return std::get<i>(s); })...};
    }(std::index_sequence_for<T...>());
  }
};

template <class T, size_t n>
struct Collated<std::array<T, n>> {
  using S = std::array<T, n>;
  using type = std::array<typename Collated<T>::type, n>;
  static type make(const Pointers<S>& samples) {
    type result;
    for (size_t i = 0; i < n; ++i) result[i] = collate_part(samples, [&](const S& s) -> const T& { return s[i]; });
    return result;
  }
};

template <class T>
  requires(!std::same_as<T, bool>)
struct Collated<std::vector<T>> {
  using S = std::vector<T>;
  using type = std::vector<typename Collated<T>::type>;
  static type make(const Pointers<S>& samples) {
    for (size_t k = 0; k < samples.size(); ++k)
      if (samples[k]->size() != samples[0]->size()) samples_differ(k, "the length of a vector");
    type result;
    for (size_t i = 0; i < samples[0]->size(); ++i)
      result.push_back(collate_part(samples, [&](const S& s) -> const T& { return s[i]; }));
    return result;
  }
};

template <class T>
  requires(tree::detail::is_map<T> || tree::detail::is_unordered_map<T>)
struct Collated<T> {
  using V = typename T::mapped_type;
  using type = std::map<typename T::key_type, typename Collated<V>::type>;
  static type make(const Pointers<T>& samples) {
    type result;
    for (auto& [key, first] : *samples[0]) {
      for (size_t k = 0; k < samples.size(); ++k)
        if (samples[k]->size() != samples[0]->size() || !samples[k]->contains(key))
          samples_differ(k, "the keys of a map");
      result.emplace(key, collate_part(samples, [&](const T& s) -> const V& { return s.at(key); }));
    }
    return result;
  }
};

template <class T>
struct Collated<std::optional<T>> {
  using S = std::optional<T>;
  using type = std::optional<typename Collated<T>::type>;
  static type make(const Pointers<S>& samples) {
    for (size_t k = 0; k < samples.size(); ++k)
      if (samples[k]->has_value() != samples[0]->has_value()) samples_differ(k, "whether an optional has a value");
    if (!samples[0]->has_value()) return {};
    return collate_part(samples, [](const S& s) -> const T& { return *s; });
  }
};

template <tree::HasFields T>
struct Collated<T> {
  using Fields = decltype(std::declval<const T&>().fields().tuple());
  static constexpr bool same = CollatedFields<Fields>::same;
  using type = std::conditional_t<same, T, typename CollatedFields<Fields>::type>;
  static type make(const Pointers<T>& samples) {
    return [&]<size_t... i>(std::index_sequence<i...>) {
      typename CollatedFields<Fields>::type parts{
          collate_part(samples, [](const T& s) -> const auto& { return std::get<i>(s.fields().tuple()); })...};
      if constexpr (same) {
        T result(*samples[0]);
        result.fields().tuple() = std::move(parts);
        return result;
      } else {
        return parts;
      }
    }(std::make_index_sequence<std::tuple_size_v<Fields>>());
  }
};
}  // namespace detail

/// The type of a batch of samples of type T.
template <class T>
using BatchOf = typename detail::Collated<T>::type;

/// One batch of at least one sample.
template <class T>
BatchOf<T> collate(const std::vector<T>& samples) {
  detail::Pointers<T> pointers;
  pointers.reserve(samples.size());
  for (const T& sample : samples) pointers.push_back(&sample);
  if (samples.empty()) detail::samples_differ(0, "that there are none");
  return detail::Collated<T>::make(pointers);
}

}  // namespace tutti::data
