// Collectives of values that are no tensors: numbers, flags, strings (UTF-8), tensors, io::Value and io::State, and
// vectors, string-keyed maps and structs (TUTTI_FIELDS) of those.
//
//   struct Plan { std::string name; std::vector<int64_t> sizes; TUTTI_FIELDS(name, sizes) };
//   Plan plan = rank() == 0 ? make_plan() : Plan();
//   broadcast_object(plan);                                  // now everyone's
//   std::vector<double> losses = all_gather_object(loss);    // [rank]
//
// They say how large they are, then go as bytes: two collectives each. Bytes that are not what a rank asks for (another
// struct, say) are a FileError there.
#pragma once

#include "tutti/comm/collectives.h"
#include "tutti/io/state.h"

namespace tutti {

namespace detail {
/// `from` names where the bytes came from, for errors.
template <class T>
std::string object_to_bytes(const T& value) {
  io::State state;
  state["value"] = io::detail::to_value(value);
  return io::state_to_bytes(state);
}
template <class T>
T object_from_bytes(std::string bytes, const std::string& from) {
  const io::State state = io::state_from_bytes(std::move(bytes), from);
  if constexpr (std::same_as<T, io::Value>)
    return state["value"];
  else if constexpr (std::same_as<T, io::ValueList> || std::same_as<T, io::State>)
    return state["value"].as<T>();
  else
    return io::detail::from_value<T>(state["value"]);
}

// The bytes of all ranks, in their order; on those that get none, empty.
std::string broadcast_bytes(const std::string& mine, const RootOptions& options);
std::vector<std::string> all_gather_bytes(const std::string& mine, const CollectiveOptions& options);
std::vector<std::string> gather_bytes(const std::string& mine, const RootOptions& options);
std::string scatter_bytes(const std::vector<std::string>& mine, const RootOptions& options);
bool is_root(const RootOptions& options);
std::string object_name(int rank);

template <class T>
std::vector<T> objects_from_bytes(std::vector<std::string> bytes) {
  std::vector<T> values;
  for (size_t k = 0; k < bytes.size(); ++k)
    values.push_back(object_from_bytes<T>(std::move(bytes[k]), object_name(static_cast<int>(k))));
  return values;
}
}  // namespace detail

/// value becomes the root's.
template <class T>
void broadcast_object(T& value, const RootOptions& options = {}) {
  bool mine = detail::is_root(options);
  std::string bytes = detail::broadcast_bytes(mine ? detail::object_to_bytes(value) : std::string(), options);
  if (!mine) value = detail::object_from_bytes<T>(std::move(bytes), detail::object_name(options.root));
}

/// Every rank's value, in the order of ranks.
template <class T>
std::vector<T> all_gather_object(const T& value, const CollectiveOptions& options = {}) {
  return detail::objects_from_bytes<T>(detail::all_gather_bytes(detail::object_to_bytes(value), options));
}

/// The same on the root; nothing on others.
template <class T>
std::vector<T> gather_object(const T& value, const RootOptions& options = {}) {
  return detail::objects_from_bytes<T>(detail::gather_bytes(detail::object_to_bytes(value), options));
}

/// The root's values[rank]; what others give does not matter.
template <class T>
T scatter_object(const std::vector<T>& values, const RootOptions& options = {}) {
  std::vector<std::string> bytes;
  if (detail::is_root(options))
    for (const T& value : values) bytes.push_back(detail::object_to_bytes(value));
  return detail::object_from_bytes<T>(detail::scatter_bytes(bytes, options), detail::object_name(options.root));
}

}  // namespace tutti
