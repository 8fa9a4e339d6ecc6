// Tensor trees: any nesting of tensors, tuples, pairs, arrays, vectors, maps, optionals, variants, numbers, strings and
// structs with TUTTI_FIELDS. This is the one place that knows how to walk them. What a module takes and returns, what a
// batch is, what is scattered to devices, sent to other workers and kept in checkpoints are such trees.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/fields.h"
#include "tutti/tensor.h"

namespace tutti::tree {

/// What a child is called inside its parent: a field's name, a key or a position.
struct Key {
  const char* fields = nullptr;  // as field_names() gives them
  int64_t index = 0;
  const std::string* key = nullptr;
  std::string text() const;
};

namespace detail {
template <class T>
inline constexpr bool is_pair = false;
template <class A, class B>
inline constexpr bool is_pair<std::pair<A, B>> = true;
template <class T>
inline constexpr bool is_tuple = false;
template <class... T>
inline constexpr bool is_tuple<std::tuple<T...>> = true;
template <class T>
inline constexpr bool is_array = false;
template <class T, size_t n>
inline constexpr bool is_array<std::array<T, n>> = true;
template <class T>
inline constexpr bool is_vector = false;
template <class T, class A>
inline constexpr bool is_vector<std::vector<T, A>> = true;
template <class A>
inline constexpr bool is_vector<std::vector<bool, A>> = false;  // its elements are not objects; it counts as a leaf
template <class T>
inline constexpr bool is_map = false;
template <class K, class T, class C, class A>
inline constexpr bool is_map<std::map<K, T, C, A>> = true;
template <class T>
inline constexpr bool is_unordered_map = false;
template <class K, class T, class H, class E, class A>
inline constexpr bool is_unordered_map<std::unordered_map<K, T, H, E, A>> = true;
template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;
template <class T>
inline constexpr bool is_variant = false;
template <class... T>
inline constexpr bool is_variant<std::variant<T...>> = true;

template <class K>
std::string key_text(const K& key) {
  if constexpr (std::is_arithmetic_v<K>)
    return std::to_string(key);
  else
    return std::string(key);
}
}  // namespace detail

/// A tensor, or a type made of one (a parameter).
template <class T>
concept IsTensor = std::derived_from<std::remove_cvref_t<T>, Tensor>;
/// A struct that names its members by TUTTI_FIELDS.
template <class T>
concept HasFields = requires(T& t) {
  requires tutti::detail::is_fields<decltype(t.fields())>;
  std::remove_cvref_t<T>::field_names();
};
/// What has children.
template <class T, class U = std::remove_cvref_t<T>>
concept Composite = !IsTensor<U> && (detail::is_pair<U> || detail::is_tuple<U> || detail::is_array<U> ||
                                     detail::is_vector<U> || detail::is_map<U> || detail::is_unordered_map<U> ||
                                     detail::is_optional<U> || detail::is_variant<U> || HasFields<U>);

/// Specialise it to be true for a class of yours that is no part of the tree, so that nothing is looked for inside:
///   template <> inline constexpr bool tutti::tree::plain_leaf<Settings> = true;
template <class T>
inline constexpr bool plain_leaf = false;
template <>
inline constexpr bool plain_leaf<std::string> = true;
template <>
inline constexpr bool plain_leaf<std::vector<bool>> = true;
template <>
inline constexpr bool plain_leaf<Shape> = true;
template <class T>
inline constexpr bool plain_leaf<std::shared_ptr<T>> = true;  // what it points at is shared, not held

/// What is taken as it is: tensors, numbers, what is copied as bytes and so holds no tensor, and plain leaves. Any
/// other class must say what its members are, or the tensors among them would silently be left out.
template <class T, class U = std::remove_cvref_t<T>>
concept Leaf = IsTensor<U> || std::is_trivially_copyable_v<U> || plain_leaf<U>;

/// Calls f(key, child) for the direct children of a composite, in an order that depends on its value alone.
template <Composite T, class F>
void for_each_child(T& value, F&& f) {
  using U = std::remove_const_t<T>;
  if constexpr (HasFields<U>) {
    std::apply(
        [&](auto&... fields) {
          [[maybe_unused]] int64_t i = 0;
          (f(Key{.fields = U::field_names(), .index = i++}, fields), ...);
        },
        value.fields().tuple());
  } else if constexpr (detail::is_pair<U> || detail::is_tuple<U>) {
    std::apply(
        [&](auto&... parts) {
          [[maybe_unused]] int64_t i = 0;
          (f(Key{.index = i++}, parts), ...);
        },
        value);
  } else if constexpr (detail::is_array<U> || detail::is_vector<U>) {
    for (size_t i = 0; i < value.size(); ++i) f(Key{.index = static_cast<int64_t>(i)}, value[i]);
  } else if constexpr (detail::is_map<U>) {
    for (auto& [key, child] : value) {
      std::string text = detail::key_text(key);
      f(Key{.key = &text}, child);
    }
  } else if constexpr (detail::is_unordered_map<U>) {
    std::vector<std::pair<std::string, decltype(&value.begin()->second)>> children;
    for (auto& [key, child] : value) children.emplace_back(detail::key_text(key), &child);
    std::sort(children.begin(), children.end());
    for (auto& [key, child] : children) f(Key{.key = &key}, *child);
  } else if constexpr (detail::is_optional<U>) {
    if (value) f(Key{}, *value);
  } else {
    std::visit([&](auto& child) { f(Key{}, child); }, value);
  }
}

/// Whether a tree of this type can hold a tensor at all.
template <class T>
constexpr bool may_hold_tensors();

/// Calls f(leaf) for everything that has no children: tensors, numbers, strings, plain leaves.
template <class T, class F>
void for_each_leaf(T& value, F&& f) {
  if constexpr (Composite<T>) {
    for_each_child(value, [&](const Key&, auto& child) { for_each_leaf(child, f); });
  } else {
    static_assert(Leaf<T>, "a struct in a tensor tree names its members: TUTTI_FIELDS(...); see tree::plain_leaf");
    f(value);
  }
}

/// Calls f(tensor) for every tensor, undefined ones too. In a tree that is not const, f may replace them.
template <class T, class F>
void for_each_tensor(T& value, F&& f) {
  for_each_leaf(value, [&](auto& leaf) {
    if constexpr (IsTensor<decltype(leaf)>) f(leaf);
  });
}

/// All tensors of a tree, in its order.
template <class T>
TensorList tensors(const T& value) {
  TensorList list;
  for_each_tensor(value, [&](const Tensor& t) { list.push_back(t); });
  return list;
}

namespace detail {
[[noreturn]] void wrong_count(size_t given, size_t wanted);
}
/// Puts tensors in the places that tensors(value) lists.
template <class T>
void assign_tensors(T& value, const TensorList& list) {
  size_t i = 0;
  for_each_tensor(value, [&](Tensor& t) {
    if (i < list.size()) t = list[i];
    ++i;
  });
  if (i != list.size()) detail::wrong_count(list.size(), i);
}

/// A copy of the tree with f(tensor) in the place of every tensor.
template <class T, class F>
std::remove_cvref_t<T> map(T&& value, F&& f) {
  std::remove_cvref_t<T> result(std::forward<T>(value));
  for_each_tensor(result, [&](Tensor& t) { t = f(std::as_const(t)); });
  return result;
}

namespace detail {
template <class T>
struct MayHold : std::bool_constant<IsTensor<T>> {};
template <class A, class B>
struct MayHold<std::pair<A, B>> : std::bool_constant<MayHold<A>::value || MayHold<B>::value> {};
template <class... T>
struct MayHold<std::tuple<T...>> : std::bool_constant<(MayHold<T>::value || ...)> {};
template <class... T>
struct MayHold<std::variant<T...>> : std::bool_constant<(MayHold<T>::value || ...)> {};
template <class T>
  requires is_vector<T> || is_array<T> || is_optional<T>
struct MayHold<T> : MayHold<typename T::value_type> {};
template <class T>
  requires is_map<T> || is_unordered_map<T>
struct MayHold<T> : MayHold<typename T::mapped_type> {};
template <class T>
struct FieldsMayHold;
template <class... T>
struct FieldsMayHold<tutti::detail::Fields<T...>>
    : std::bool_constant<(MayHold<std::remove_const_t<T>>::value || ...)> {};
template <class T>
  requires HasFields<T>
struct MayHold<T> : FieldsMayHold<decltype(std::declval<T&>().fields())> {};
}  // namespace detail
template <class T>
constexpr bool may_hold_tensors() {
  return detail::MayHold<std::remove_cvref_t<T>>::value;
}

}  // namespace tutti::tree
