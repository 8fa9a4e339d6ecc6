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
//   const io::State loaded = io::load_state("run.ckpt");
//   net.load_state_dict(io::from_state<nn::StateDict>(loaded["model"].as<io::State>()));
//   int64_t epoch = loaded["epoch"].as<int64_t>();
#pragma once

#include <concepts>
#include <initializer_list>
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

template <class T>
concept StateStruct = tree::HasFields<T> || tree::detail::is_map<T>;
/// What the fields of a struct (TUTTI_FIELDS) hold, or a map by its keys: numbers, flags, strings, tensors, and
/// vectors, structs and maps of those.
template <StateStruct T>
State to_state(const T& value);
/// The other way. FileError when a field is missing or of another kind.
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
template <class T>
Value to_value(const T& value) {
  if constexpr (tree::IsTensor<T>) {
    return Value(Tensor(value));
  } else if constexpr (StateStruct<T>) {
    return to_state(value);
  } else if constexpr (tree::detail::is_vector<T>) {
    ValueList list;
    for (const auto& entry : value) list.push_back(to_value(entry));
    return list;
  } else {
    return Value(value);
  }
}

template <class T>
T from_value(const Value& value) {
  if constexpr (StateStruct<T>) {
    return from_state<T>(value.as<State>());
  } else if constexpr (tree::detail::is_vector<T>) {
    T list;
    for (const Value& entry : value.as<ValueList>()) list.push_back(from_value<typename T::value_type>(entry));
    return list;
  } else if constexpr (std::integral<T> && !std::same_as<T, bool>) {
    return static_cast<T>(value.as<int64_t>());
  } else if constexpr (std::floating_point<T>) {
    return static_cast<T>(value.as<double>());
  } else {
    return value.as<T>();
  }
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
      result.emplace(name, detail::from_value<typename T::mapped_type>(value));
  return result;
}

}  // namespace tutti::io
