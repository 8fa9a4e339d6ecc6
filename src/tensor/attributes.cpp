// Printing and hashing of attributes.
#include "base/check.h"
#include "tutti/operator.h"

namespace tutti::detail {

std::string print_field(const std::string& v) { return '"' + v + '"'; }
std::string print_field(const char* v) { return print_field(std::string(v)); }
std::string print_field(bool v) { return v ? "true" : "false"; }
std::string print_field(double v) { return fmt::format("{}", v); }
std::string print_field(int64_t v) { return fmt::format("{}", v); }
std::string print_field(uint64_t v) { return fmt::format("{}", v); }
std::string print_field(DType v) { return std::string(name(v)); }
std::string print_field(Device v) { return v.str(); }
std::string print_field(const Shape& v) { return to_string(v); }

std::string join_fields(const char* names, std::initializer_list<std::string> values) {
  std::string text;
  std::string_view rest = names;
  for (auto& value : values) {
    auto end = rest.find(',');
    std::string_view one = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    while (!one.empty() && one.front() == ' ') one.remove_prefix(1);
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", one, value);
  }
  return text;
}

size_t hash_text(const std::string& text) { return std::hash<std::string>()(text); }

}  // namespace tutti::detail
