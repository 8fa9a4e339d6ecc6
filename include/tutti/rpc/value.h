// Values on their way between workers: numbers, enums, strings (of any bytes), tensors, shapes, references, and structs
// (TUTTI_FIELDS), vectors, arrays, maps, pairs, tuples, optionals and variants of those.
//
// A value arrives as a copy, whatever carries it: what a worker does to a tensor that it was given does not show to the
// worker that gave it, even where both are threads of one process. Tensors keep dtype, shape, device, layout and memory
// format; they come without gradients and history (but see distributed autograd).
#pragma once

#include <chrono>
#include <complex>
#include <cstring>
#include <memory>

#include "tutti/tree.h"

namespace tutti::rpc {

template <class T>
class RemoteRef;

namespace detail {
struct Message;
class RefHandle;
}  // namespace detail

/// Makes a message.
class Writer {
 public:
  explicit Writer(detail::Message& message) : message_(message) {}
  void bytes(const void* data, size_t size);
  /// How many follow.
  void count(size_t count);
  void string(std::string_view text);
  void tensor(const Tensor& tensor);
  void reference(const std::shared_ptr<detail::RefHandle>& reference);
  template <class T>
  void number(T value) {
    bytes(&value, sizeof value);
  }

 private:
  detail::Message& message_;
};

/// Takes a message apart. What cannot be is a ValueError; nothing is allocated that the message has no bytes for.
class Reader {
 public:
  explicit Reader(detail::Message& message) : message_(message) {}
  void bytes(void* data, size_t size);
  /// At most as many as there are bytes left, divided by the least that each takes.
  size_t count(size_t each = 1);
  std::string string();
  Tensor tensor();
  std::shared_ptr<detail::RefHandle> reference();
  template <class T>
  T number() {
    T value;
    bytes(&value, sizeof value);
    return value;
  }
  /// Nothing may be left.
  void end() const;
  [[noreturn]] void wrong(const std::string& what) const;

  /// Around what may contain itself: a message cannot make the stack as deep as it likes.
  class Level {
   public:
    explicit Level(Reader& reader);
    ~Level() { --reader_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Reader& reader_;
  };

 private:
  detail::Message& message_;
  size_t at_ = 0, tensors_ = 0, references_ = 0;
  int depth_ = 0;
};

namespace detail {
template <class T>
inline constexpr bool is_complex = false;
template <class T>
inline constexpr bool is_complex<std::complex<T>> = true;
template <class T>
inline constexpr bool is_duration = false;
template <class R, class P>
inline constexpr bool is_duration<std::chrono::duration<R, P>> = true;
template <class T>
inline constexpr bool is_reference = false;
template <class T>
inline constexpr bool is_reference<RemoteRef<T>> = true;
template <class T>
concept Plain = std::is_arithmetic_v<T> || is_complex<T>;
template <class T>
concept Map = tree::detail::is_map<T> || tree::detail::is_unordered_map<T>;
template <class T>
concept Tuple = tree::detail::is_pair<T> || tree::detail::is_tuple<T>;
/// Sets, deques, lists: what knows its size, can be walked through, and takes elements one by one.
template <class T>
concept Collection = !tree::HasFields<T> && requires(T& c, const T& given, typename T::value_type element) {
  { given.size() } -> std::convertible_to<size_t>;
  { *given.begin() } -> std::convertible_to<typename T::value_type>;
  c.insert(c.end(), std::move(element));
};
}  // namespace detail

template <class T>
void write(Writer& out, const T& value) {
  if constexpr (tree::IsTensor<T>) {
    out.tensor(value);
  } else if constexpr (detail::is_reference<T>) {
    out.reference(value.handle());
  } else if constexpr (std::same_as<T, std::string>) {
    out.string(value);
  } else if constexpr (detail::Plain<T>) {
    out.number(value);
  } else if constexpr (std::is_enum_v<T>) {
    out.number(static_cast<std::underlying_type_t<T>>(value));
  } else if constexpr (detail::is_duration<T>) {
    out.number(value.count());
  } else if constexpr (std::same_as<T, Device>) {
    out.string(value.str());
  } else if constexpr (std::same_as<T, Shape>) {
    out.count(value.size());
    out.bytes(value.data(), value.size() * sizeof(int64_t));
  } else if constexpr (std::same_as<T, std::vector<bool>>) {
    out.count(value.size());
    for (bool flag : value) out.number(flag);
  } else if constexpr (tree::detail::is_vector<T>) {
    out.count(value.size());
    using E = typename T::value_type;
    if constexpr (detail::Plain<E>)
      out.bytes(value.data(), value.size() * sizeof(E));
    else
      for (const E& element : value) write(out, element);
  } else if constexpr (tree::detail::is_array<T>) {
    for (const auto& element : value) write(out, element);
  } else if constexpr (detail::Collection<T> && !detail::Map<T>) {
    out.count(value.size());
    for (const auto& element : value) write(out, element);
  } else if constexpr (detail::Map<T>) {
    out.count(value.size());
    for (const auto& [key, child] : value) write(out, key), write(out, child);
  } else if constexpr (detail::Tuple<T>) {
    std::apply([&](const auto&... parts) { (write(out, parts), ...); }, value);
  } else if constexpr (tree::detail::is_optional<T>) {
    out.number(value.has_value());
    if (value) write(out, *value);
  } else if constexpr (tree::detail::is_variant<T>) {
    out.number(static_cast<uint8_t>(value.index()));
    std::visit([&](const auto& child) { write(out, child); }, value);
  } else if constexpr (std::same_as<T, std::monostate>) {
    out.number(uint8_t{0});
  } else {
    static_assert(tree::HasFields<T>,
                  "what goes to another worker is made of numbers, strings, tensors, references, "
                  "containers, and structs that name their members: TUTTI_FIELDS(...)");
    out.number(uint8_t{0});
    std::apply([&](const auto&... fields) { (write(out, fields), ...); }, value.fields().tuple());
  }
}

template <class T>
T read(Reader& in);

namespace detail {
template <class T, size_t k = 0>
void read_variant(Reader& in, T& to, size_t index) {
  if constexpr (k == std::variant_size_v<T>)
    in.wrong("a variant of more kinds than there are");
  else if (index == k)
    to.template emplace<k>(read<std::variant_alternative_t<k, T>>(in));
  else
    read_variant<T, k + 1>(in, to, index);
}
template <class T, class... Parts>
T read_parts(Reader& in, std::type_identity<std::tuple<Parts...>>) {
  return T{read<Parts>(in)...};  // braces: in this order
}
template <class A, class B>
std::tuple<A, B> tuple_of(const std::pair<A, B>&);
template <class... T>
std::tuple<T...> tuple_of(const std::tuple<T...>&);
template <class T>
std::vector<T> read_plain(Reader& in) {
  std::vector<T> values(in.count(sizeof(T)));
  in.bytes(values.data(), values.size() * sizeof(T));
  return values;
}
bool read_flag(Reader& in);
DType read_dtype(Reader& in);
}  // namespace detail

template <class T>
T read(Reader& in) {
  if constexpr (tree::IsTensor<T>) {
    return T(in.tensor());
  } else if constexpr (detail::is_reference<T>) {
    return T(in.reference());
  } else if constexpr (std::same_as<T, std::string>) {
    return in.string();
  } else if constexpr (std::same_as<T, bool>) {
    return detail::read_flag(in);
  } else if constexpr (std::same_as<T, DType>) {
    return detail::read_dtype(in);
  } else if constexpr (detail::Plain<T>) {
    return in.number<T>();
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<T>(in.number<std::underlying_type_t<T>>());
  } else if constexpr (detail::is_duration<T>) {
    return T(in.number<typename T::rep>());
  } else if constexpr (std::same_as<T, Device>) {
    return Device(std::string_view(in.string()));
  } else if constexpr (std::same_as<T, Shape>) {
    return Shape(detail::read_plain<int64_t>(in));
  } else if constexpr (std::same_as<T, std::vector<bool>>) {
    T values(in.count());
    for (size_t i = 0; i < values.size(); ++i) values[i] = detail::read_flag(in);
    return values;
  } else if constexpr (std::same_as<T, std::monostate>) {
    in.number<uint8_t>();
    return {};
  } else {
    Reader::Level level(in);
    if constexpr (tree::detail::is_vector<T>) {
      using E = typename T::value_type;
      if constexpr (detail::Plain<E>) {
        return detail::read_plain<E>(in);
      } else {
        T values;
        for (size_t left = in.count(); left > 0; --left) values.push_back(read<E>(in));
        return values;
      }
    } else if constexpr (tree::detail::is_array<T>) {
      T values{};
      for (auto& value : values) value = read<typename T::value_type>(in);
      return values;
    } else if constexpr (detail::Collection<T> && !detail::Map<T>) {
      T values;
      for (size_t left = in.count(); left > 0; --left) values.insert(values.end(), read<typename T::value_type>(in));
      return values;
    } else if constexpr (detail::Map<T>) {
      T values;
      for (size_t left = in.count(); left > 0; --left) {
        auto key = read<typename T::key_type>(in);
        values.emplace(std::move(key), read<typename T::mapped_type>(in));
      }
      return values;
    } else if constexpr (detail::Tuple<T>) {
      return detail::read_parts<T>(in, std::type_identity<decltype(detail::tuple_of(std::declval<T>()))>());
    } else if constexpr (tree::detail::is_optional<T>) {
      return detail::read_flag(in) ? T(read<typename T::value_type>(in)) : T();
    } else if constexpr (tree::detail::is_variant<T>) {
      T value;
      detail::read_variant(in, value, in.number<uint8_t>());
      return value;
    } else {
      static_assert(tree::HasFields<T>, "a struct names its members: TUTTI_FIELDS(...)");
      static_assert(std::default_initializable<T>,
                    "a struct that comes from another worker is made empty, T{}, and then filled");
      T value{};
      in.number<uint8_t>();
      std::apply([&](auto&... fields) { ((fields = read<std::remove_cvref_t<decltype(fields)>>(in)), ...); },
                 value.fields().tuple());
      return value;
    }
  }
}

}  // namespace tutti::rpc
