// JSON, as much as file headers need: a strict parser with bounded depth, and a writer. Own code because a header may
// come from anywhere: what it accepts, how deep it recurses and what it allocates is all decided here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tutti::io {

struct Json {
  using List = std::vector<Json>;
  using Map = std::vector<std::pair<std::string, Json>>;  // in the file's order; no key twice
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, List, Map> value = nullptr;

  Json() = default;
  Json(bool flag) : value(flag) {}       // NOLINT: trees of values should read well
  Json(int64_t whole) : value(whole) {}  // NOLINT
  Json(double real) : value(real) {}     // NOLINT
  Json(std::string text);                // NOLINT
  Json(List list);                       // NOLINT
  Json(Map map);                         // NOLINT
  // Not inline: GCC 12 sees uninitialised members in a variant that is moved.
  Json(Json&&) noexcept;
  Json& operator=(Json&&) noexcept;
  Json(const Json&);
  Json& operator=(const Json&);
  ~Json();

  template <class T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
  /// The value of a key of a map; null where this is no map or has no such key.
  const Json* find(std::string_view key) const;
};

/// The one value in `text`. FileError, naming the byte, where it is not exactly that. A number without fraction and
/// exponent is int64_t, and one that does not fit there is refused.
Json parse_json(std::string_view text, const char* operation, const std::string& name);
std::string to_json(const Json& json);
/// In quotes, with what must be escaped escaped.
void append_json_string(std::string& out, std::string_view text);
bool is_utf8(std::string_view text);
void append_utf8(std::string& out, uint32_t code);

}  // namespace tutti::io
