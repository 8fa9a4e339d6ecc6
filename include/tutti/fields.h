// TUTTI_FIELDS names the data members of a struct once. From it come comparison, hashing, printing, copying and
// visiting: of an operator's attributes here, of a module's parameters and children in nn.
//
//   std::apply([](auto&... member) { ... }, x.fields().tuple());
#pragma once

#include <cstddef>
#include <memory>
#include <tuple>
#include <utility>

namespace tutti::detail {

/// The members of a struct. Not a tuple itself, since each kind of those takes the compiler some ten milliseconds, and
/// headers name a hundred structs: one is made where it is used.
template <class... T>
struct Fields {
  const void* at[sizeof...(T) + 1];

  std::tuple<T&...> tuple() const {
    return [this]<size_t... i>(std::index_sequence<i...>) {
      return std::tuple<T&...>(*static_cast<T*>(const_cast<void*>(at[i]))...);
    }(std::index_sequence_for<T...>());
  }
};
template <class T>
inline constexpr bool is_fields = false;
template <class... T>
inline constexpr bool is_fields<Fields<T...>> = true;
template <class... T>
Fields<T...> fields_of(T&... members) {
  return {{std::addressof(members)..., nullptr}};
}

}  // namespace tutti::detail

#define TUTTI_FIELDS(...)                                                 \
  auto fields() { return ::tutti::detail::fields_of(__VA_ARGS__); }       \
  auto fields() const { return ::tutti::detail::fields_of(__VA_ARGS__); } \
  static const char* field_names() { return #__VA_ARGS__; }
