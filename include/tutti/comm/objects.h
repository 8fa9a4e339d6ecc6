// Collectives of values that are no tensors: numbers, enums, strings (of any bytes), shapes, tensors, io::Value and
// io::State, and structs (TUTTI_FIELDS), vectors, arrays, maps, pairs, tuples, optionals and variants of those.
//
//   struct Plan { std::string name; std::vector<int64_t> sizes; TUTTI_FIELDS(name, sizes) };
//   Plan plan = rank() == 0 ? make_plan() : Plan();
//   broadcast_object(plan);                                  // now everyone's
//   std::vector<double> losses = all_gather_object(loss);    // [rank]
//
// They say how large they are, then go as bytes: two collectives each. Bytes from which a rank cannot make what it asks
// for are a FileError there; a MismatchError that names both types if the rank they come from gave another.
#pragma once

#include <complex>
#include <limits>
#include <typeinfo>

#include "tutti/comm/collectives.h"
#include "tutti/io/state.h"

namespace tutti {

namespace detail {
io::Value string_to_value(const std::string& text);
std::string string_from_value(const io::Value& value);
[[noreturn]] void wrong_object(const std::string& wanted);

template <class T>
inline constexpr bool is_complex_number = false;
template <class T>
inline constexpr bool is_complex_number<std::complex<T>> = true;
template <class T>
concept MapObject = tree::detail::is_map<T> || tree::detail::is_unordered_map<T>;
template <class T>
concept ListObject = tree::detail::is_vector<T> || tree::detail::is_array<T> || std::same_as<T, Shape> ||
                     std::same_as<T, std::vector<bool>>;
template <class T>
concept TupleObject = tree::detail::is_pair<T> || tree::detail::is_tuple<T>;
template <class T>
concept ReadyObject = std::same_as<T, io::Value> || std::same_as<T, io::ValueList> || std::same_as<T, io::State>;

template <class T>
io::Value object_to_value(const T& value) {
  if constexpr (tree::IsTensor<T>) {
    return io::Value(Tensor(value));
  } else if constexpr (ReadyObject<T>) {
    return io::Value(value);
  } else if constexpr (tree::HasFields<T>) {
    io::State state;
    tree::for_each_child(value, [&](const tree::Key& key, const auto& child) {
      state.entries.emplace_back(key.text(), object_to_value(child));
    });
    return state;
  } else if constexpr (MapObject<T>) {
    io::ValueList list;
    for (const auto& [key, child] : value) list.push_back(io::ValueList{object_to_value(key), object_to_value(child)});
    return list;
  } else if constexpr (std::same_as<T, std::vector<bool>>) {
    io::ValueList list;
    for (bool flag : value) list.emplace_back(flag);
    return list;
  } else if constexpr (ListObject<T>) {
    io::ValueList list;
    for (const auto& child : value) list.push_back(object_to_value(child));
    return list;
  } else if constexpr (TupleObject<T>) {
    io::ValueList list;
    std::apply([&](const auto&... parts) { (list.push_back(object_to_value(parts)), ...); }, value);
    return list;
  } else if constexpr (tree::detail::is_optional<T>) {
    return value ? io::ValueList{object_to_value(*value)} : io::ValueList{};
  } else if constexpr (tree::detail::is_variant<T>) {
    io::ValueList list{value.index()};
    std::visit([&](const auto& child) { list.push_back(object_to_value(child)); }, value);
    return list;
  } else if constexpr (is_complex_number<T>) {
    return io::ValueList{static_cast<double>(value.real()), static_cast<double>(value.imag())};
  } else if constexpr (std::is_enum_v<T>) {
    return io::Value(static_cast<std::underlying_type_t<T>>(value));
  } else if constexpr (std::floating_point<T>) {
    return io::Value(static_cast<double>(value));
  } else if constexpr (std::convertible_to<T, std::string>) {
    return string_to_value(value);
  } else {
    static_assert(std::integral<T>, "objects are made of numbers, strings, tensors, containers and TUTTI_FIELDS");
    return io::Value(value);
  }
}

template <class T>
T object_from_value(const io::Value& value);

/// The elements, of which there must be `count`.
const io::ValueList& entries(const io::Value& value, size_t count);

template <class T, size_t k = 0>
void variant_from_value(T& to, const io::ValueList& list, size_t index) {
  if constexpr (k == std::variant_size_v<T>)
    wrong_object("one of " + std::to_string(k) + " kinds");
  else if (index == k)
    to.template emplace<k>(object_from_value<std::variant_alternative_t<k, T>>(list[1]));
  else
    variant_from_value<T, k + 1>(to, list, index);
}

template <std::integral T>
T integer_from_value(const io::Value& value) {
  if constexpr (std::same_as<T, bool>) {
    return value.as<bool>();
  } else {
    auto number = value.as<int64_t>();
    if constexpr (sizeof(T) < 8)
      if (number < int64_t{std::numeric_limits<T>::min()} || number > int64_t{std::numeric_limits<T>::max()})
        wrong_object("a smaller integer than " + std::to_string(number));
    return static_cast<T>(number);
  }
}

template <class T>
T object_from_value(const io::Value& value) {
  if constexpr (tree::IsTensor<T>) {
    return T(value.as<Tensor>());
  } else if constexpr (std::same_as<T, io::Value>) {
    return value;
  } else if constexpr (ReadyObject<T>) {
    return value.as<T>();
  } else if constexpr (tree::HasFields<T>) {
    T result{};
    const auto& state = value.as<io::State>();
    tree::for_each_child(result, [&](const tree::Key& key, auto& child) {
      child = object_from_value<std::remove_cvref_t<decltype(child)>>(state[key.text()]);
    });
    return result;
  } else if constexpr (MapObject<T>) {
    T result;
    for (const io::Value& entry : value.as<io::ValueList>()) {
      const io::ValueList& pair = entries(entry, 2);
      result.emplace(object_from_value<typename T::key_type>(pair[0]),
                     object_from_value<typename T::mapped_type>(pair[1]));
    }
    return result;
  } else if constexpr (tree::detail::is_array<T>) {
    T result{};
    const io::ValueList& list = entries(value, result.size());
    for (size_t i = 0; i < result.size(); ++i) result[i] = object_from_value<typename T::value_type>(list[i]);
    return result;
  } else if constexpr (std::same_as<T, Shape>) {
    return Shape(object_from_value<std::vector<int64_t>>(value));
  } else if constexpr (ListObject<T>) {
    T result;
    for (const io::Value& entry : value.as<io::ValueList>())
      result.push_back(object_from_value<typename T::value_type>(entry));
    return result;
  } else if constexpr (TupleObject<T>) {
    T result;
    const io::ValueList& list = entries(value, std::tuple_size_v<T>);
    size_t i = 0;
    std::apply(
        [&](auto&... parts) { ((parts = object_from_value<std::remove_cvref_t<decltype(parts)>>(list[i++])), ...); },
        result);
    return result;
  } else if constexpr (tree::detail::is_optional<T>) {
    const auto& list = value.as<io::ValueList>();
    return list.empty() ? T() : T(object_from_value<typename T::value_type>(entries(value, 1)[0]));
  } else if constexpr (tree::detail::is_variant<T>) {
    T result;
    const io::ValueList& list = entries(value, 2);
    variant_from_value(result, list, integer_from_value<size_t>(list[0]));
    return result;
  } else if constexpr (is_complex_number<T>) {
    using Real = typename T::value_type;
    const io::ValueList& list = entries(value, 2);
    return {static_cast<Real>(list[0].as<double>()), static_cast<Real>(list[1].as<double>())};
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<T>(integer_from_value<std::underlying_type_t<T>>(value));
  } else if constexpr (std::floating_point<T>) {
    return static_cast<T>(value.as<double>());
  } else if constexpr (std::same_as<T, std::string>) {
    return string_from_value(value);
  } else {
    return integer_from_value<T>(value);
  }
}

template <class T>
std::string object_to_bytes(const T& value) {
  io::State state;
  state["type"] = std::string(typeid(T).name());  // for errors
  state["value"] = object_to_value(value);
  return io::state_to_bytes(state);
}

/// `from` names where the bytes came from, for errors.
template <class T>
T object_from_bytes(std::string bytes, const std::string& from) {
  const io::State state = io::state_from_bytes(std::move(bytes), from);
  return object_from_value<T>(state["value"]);
}

/// Objects as they came: whose they are, and by which call.
struct ObjectSource {
  const char* collective;
  Place place;
  std::vector<int> ranks;  // in the world, of each of the states
  std::vector<io::State> states;
};
ObjectSource objects_from(std::vector<std::string> bytes, const char* collective, const CollectiveOptions& options);
ObjectSource object_from_root(std::string bytes, const char* collective, const RootOptions& options);
/// Rethrows the FileError of the k-th object, as a MismatchError if it was not given as what it is taken as.
[[noreturn]] void wrong_type(const ObjectSource& objects, size_t k, const std::type_info& taken);

template <class T>
std::vector<T> take_objects(const ObjectSource& objects) {
  std::vector<T> values;
  for (const io::State& state : objects.states) try {
      values.push_back(object_from_value<T>(state["value"]));
    } catch (const FileError&) {
      wrong_type(objects, values.size(), typeid(T));
    }
  return values;
}

// The bytes of all ranks, in their order; on those that get none, empty.
std::string broadcast_bytes(const std::string& mine, const RootOptions& options);
std::vector<std::string> all_gather_bytes(const std::string& mine, const CollectiveOptions& options);
std::vector<std::string> gather_bytes(const std::string& mine, const RootOptions& options);
std::string scatter_bytes(const std::vector<std::string>& mine, const RootOptions& options);
bool is_root(const RootOptions& options);
}  // namespace detail

/// value becomes the root's.
template <class T>
void broadcast_object(T& value, const RootOptions& options = {}) {
  bool mine = detail::is_root(options);
  std::string bytes = detail::broadcast_bytes(mine ? detail::object_to_bytes(value) : std::string(), options);
  if (mine) return;
  value =
      std::move(detail::take_objects<T>(detail::object_from_root(std::move(bytes), "broadcast_object", options))[0]);
}

/// Every rank's value, in the order of ranks.
template <class T>
std::vector<T> all_gather_object(const T& value, const CollectiveOptions& options = {}) {
  return detail::take_objects<T>(detail::objects_from(detail::all_gather_bytes(detail::object_to_bytes(value), options),
                                                      "all_gather_object", options));
}

/// The same on the root; nothing on others.
template <class T>
std::vector<T> gather_object(const T& value, const RootOptions& options = {}) {
  return detail::take_objects<T>(
      detail::objects_from(detail::gather_bytes(detail::object_to_bytes(value), options), "gather_object",
                           {.group = options.group, .timeout = options.timeout, .place = options.place}));
}

/// The root's values[rank]; what others give does not matter.
template <class T>
T scatter_object(const std::vector<T>& values, const RootOptions& options = {}) {
  std::vector<std::string> bytes;
  if (detail::is_root(options))
    for (const T& value : values) bytes.push_back(detail::object_to_bytes(value));
  return std::move(detail::take_objects<T>(
      detail::object_from_root(detail::scatter_bytes(bytes, options), "scatter_object", options))[0]);
}

}  // namespace tutti
