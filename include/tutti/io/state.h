// State: what something needs to go on later where it is now. A tree of named values; modules, optimizers, schedulers,
// generators and loaders each give one and take it back, and a checkpoint is a State of those.
//
//   io::State checkpoint;
//   checkpoint["model"] = io::to_state(net.state_dict());
//   checkpoint["optimizer"] = adam.state();
//   checkpoint["random"] = io::to_state(generator().state());
//   checkpoint["epoch"] = 3;
//   io::save_state("run.ckpt", checkpoint);
//
// A State shares memory with what it was taken from, as state_dict() does: training goes on changing its tensors. That
// is what saving wants. To keep one in memory, the best so far say, keep io::clone(state).
//
//   const io::State loaded = io::load_state("run.ckpt");
//   net.load_state_dict(io::from_state<nn::StateDict>(loaded["model"].as<io::State>()));
//   int64_t epoch = loaded["epoch"].as<int64_t>();
#pragma once

#include <concepts>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/tree.h"

namespace tutti::io {

struct Value;
struct Entry;  // {name, value}

/// Named values in the order in which they were added.
struct State {
  std::vector<Entry> entries;

  State(std::initializer_list<Entry> list);
  State();  // these are defined where an entry is a complete type
  State(const State&);
  State(State&&) noexcept;
  State& operator=(const State&);
  State& operator=(State&&) noexcept;
  ~State();
  /// The entry of this name; made (as 0) if there is none.
  Value& operator[](std::string_view name);
  /// FileError if there is none.
  const Value& operator[](std::string_view name) const;
  const Value* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name); }
  size_t size() const;
};

using ValueList = std::vector<Value>;

struct Value {
  std::variant<int64_t, double, bool, std::string, Tensor, ValueList, State> value;

  Value() = default;
  template <class T>
    requires(std::integral<T> && !std::same_as<T, bool>)
  Value(T number) : value(static_cast<int64_t>(number)) {}  // NOLINT: state["epoch"] = 3 should read well
  Value(double number) : value(number) {}                   // NOLINT
  Value(bool flag) : value(flag) {}                         // NOLINT
  Value(std::string text) : value(std::move(text)) {}       // NOLINT
  Value(const char* text) : value(std::string(text)) {}     // NOLINT
  Value(Tensor tensor) : value(std::move(tensor)) {}        // NOLINT
  Value(ValueList list) : value(std::move(list)) {}         // NOLINT
  Value(State state) : value(std::move(state)) {}           // NOLINT

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(value);
  }
  /// The value, which must be a T: int64_t, double (an integer is taken too), bool, std::string, Tensor, ValueList or
  /// State. FileError naming what it is otherwise.
  template <class T>
  std::conditional_t<std::same_as<T, double>, double, const T&> as() const {
    if constexpr (std::same_as<T, double>)
      if (is<int64_t>()) return static_cast<double>(std::get<int64_t>(value));
    if (const T* found = std::get_if<T>(&value)) return *found;
    wrong_kind(Value(T()));
  }

 private:
  [[noreturn]] void wrong_kind(const Value& wanted) const;
};

struct Entry {
  std::string name;
  Value value;
};
inline size_t State::size() const { return entries.size(); }

/// The same with tensors of its own.
State clone(const State& state);

template <class T>
concept StateStruct = tree::HasFields<T> || tree::detail::is_map<T> || tree::detail::is_unordered_map<T>;
/// What the fields of a struct (TUTTI_FIELDS) hold, or a map by its keys: numbers, flags, enumerations, strings,
/// tensors, States, and any tensor tree (tree.h) of those. Tuples, pairs and arrays become lists, an optional a list of
/// one or none, a variant a list of its index and its value.
template <StateStruct T>
State to_state(const T& value);
/// The other way. FileError when a field is missing or of another kind, or a number does not fit.
template <StateStruct T>
T from_state(const State& state);

/// One safetensors file, written atomically: the tensors under their paths ("model/fc1/weight"), so that other tools
/// can read them too, and everything else as JSON in its metadata. Strings must be UTF-8. A tensor comes back with the
/// same bits (c64 and c128 too); an undefined one as undefined. Sharing between tensors is not kept.
void save_state(const std::string& path, const State& state);
State load_state(const std::string& path);

/// The same in memory.
std::string state_to_bytes(const State& state);
State state_from_bytes(std::string bytes, const std::string& name);

namespace detail {
[[noreturn]] void wrong_length(size_t length, size_t wanted);
[[noreturn]] void does_not_fit(int64_t number);
[[noreturn]] void no_alternative(int64_t index, size_t count);
int64_t key_number(const std::string& text);

template <class T>
Value to_value(const T& value) {
  if constexpr (tree::IsTensor<T>) {
    return Value(Tensor(value));
  } else if constexpr (StateStruct<T>) {
    return to_state(value);
  } else if constexpr (tree::Composite<T>) {
    ValueList list;
    if constexpr (tree::detail::is_variant<T>) list.emplace_back(value.index());
    tree::for_each_child(value, [&](const tree::Key&, const auto& child) { list.push_back(to_value(child)); });
    return list;
  } else if constexpr (std::same_as<T, std::vector<bool>>) {
    return ValueList(value.begin(), value.end());
  } else if constexpr (std::is_enum_v<T>) {
    return Value(static_cast<std::underlying_type_t<T>>(value));
  } else {
    static_assert(std::convertible_to<T, Value>, "this cannot be kept in a State: give its struct TUTTI_FIELDS");
    return Value(value);
  }
}

template <class T>
T from_value(const Value& value);

template <class T>
T integer_from(int64_t number) {
  // Of 64 bits all are kept, of a seed say; others must fit.
  auto result = static_cast<T>(number);
  if (sizeof(T) < sizeof(int64_t) && static_cast<int64_t>(result) != number) does_not_fit(number);
  return result;
}

template <class T>
T variant_from(const ValueList& list) {
  constexpr size_t count = std::variant_size_v<T>;
  if (list.size() != 2) wrong_length(list.size(), 2);
  int64_t index = list[0].as<int64_t>();
  std::optional<T> result;
  [&]<size_t... i>(std::index_sequence<i...>) {
    ((index == static_cast<int64_t>(i) &&
      (result.emplace(std::in_place_index<i>, from_value<std::variant_alternative_t<i, T>>(list[1])), true)) ||
     ...);
  }(std::make_index_sequence<count>());
  if (!result) no_alternative(index, count);
  return std::move(*result);
}

template <class T>
T list_from(const ValueList& list) {
  T result{};
  if constexpr (tree::detail::is_vector<T> || std::same_as<T, std::vector<bool>>) {
    for (const Value& entry : list) result.push_back(from_value<typename T::value_type>(entry));
  } else if constexpr (tree::detail::is_optional<T>) {
    if (list.size() > 1) wrong_length(list.size(), 1);
    if (list.size() == 1) result = from_value<typename T::value_type>(list[0]);
  } else {
    size_t count = 0, at = 0;
    tree::for_each_child(result, [&](const tree::Key&, auto&) { ++count; });
    if (list.size() != count) wrong_length(list.size(), count);
    tree::for_each_child(result, [&](const tree::Key&, auto& child) {
      child = from_value<std::remove_cvref_t<decltype(child)>>(list[at++]);
    });
  }
  return result;
}

template <class T>
T from_value(const Value& value) {
  if constexpr (std::same_as<T, Value>) {
    return value;
  } else if constexpr (tree::IsTensor<T>) {
    return T(value.as<Tensor>());
  } else if constexpr (StateStruct<T>) {
    return from_state<T>(value.as<State>());
  } else if constexpr (tree::detail::is_variant<T>) {
    return variant_from<T>(value.as<ValueList>());
  } else if constexpr (tree::Composite<T> || std::same_as<T, std::vector<bool>>) {
    return list_from<T>(value.as<ValueList>());
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<T>(integer_from<std::underlying_type_t<T>>(value.as<int64_t>()));
  } else if constexpr (std::integral<T> && !std::same_as<T, bool>) {
    return integer_from<T>(value.as<int64_t>());
  } else if constexpr (std::floating_point<T>) {
    return static_cast<T>(value.as<double>());
  } else {
    return value.as<T>();
  }
}

template <class K>
K key_from(const std::string& text) {
  if constexpr (std::integral<K>)
    return integer_from<K>(key_number(text));
  else
    return K(text);
}
}  // namespace detail

template <StateStruct T>
State to_state(const T& value) {
  State state;
  tree::for_each_child(value, [&](const tree::Key& key, const auto& child) {
    state.entries.emplace_back(key.text(), detail::to_value(child));
  });
  return state;
}

template <StateStruct T>
T from_state(const State& state) {
  T result{};
  if constexpr (tree::HasFields<T>)
    tree::for_each_child(result, [&](const tree::Key& key, auto& child) {
      child = detail::from_value<std::remove_cvref_t<decltype(child)>>(state[key.text()]);
    });
  else
    for (const auto& [name, value] : state.entries)
      result.emplace(detail::key_from<typename T::key_type>(name), detail::from_value<typename T::mapped_type>(value));
  return result;
}

}  // namespace tutti::io
