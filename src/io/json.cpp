#include "io/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"

namespace tutti::io {
namespace {

constexpr int kMaxJsonDepth = 64;

class Parser {
 public:
  Parser(std::string_view text, const char* operation, const std::string& name)
      : text_(text), operation_(operation), name_(name) {}

  Json whole() {
    check<FileError>(is_utf8(text_), operation_, "{}: the JSON is not UTF-8", name_);
    Json json = value(0);
    space();
    if (at_ != text_.size()) wrong("more text after the value");
    return json;
  }

 private:
  [[noreturn]] void wrong(const char* what) {
    fail<FileError>(operation_, "{}: bad JSON at byte {}: {}", name_, at_, what);
  }
  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }
  char peek() {
    space();
    if (at_ == text_.size()) wrong("it ends too early");
    return text_[at_];
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) wrong("an unknown word");
    at_ += expected.size();
  }

  Json value(int depth) {
    if (depth > kMaxJsonDepth) wrong("nested too deep");
    switch (peek()) {
      case '{':
        return map(depth);
      case '[':
        return list(depth);
      case '"':
        return {string()};
      case 't':
        word("true");
        return {true};
      case 'f':
        word("false");
        return {false};
      case 'n':
        word("null");
        return {};
      default:
        return number();
    }
  }

  Json map(int depth) {
    Json::Map entries;
    ++at_;
    if (take('}')) return {std::move(entries)};
    do {
      if (peek() != '"') wrong("a key is wanted");
      std::string key = string();
      if (!take(':')) wrong("':' is wanted");
      entries.emplace_back(std::move(key), value(depth + 1));
    } while (take(','));
    if (!take('}')) wrong("',' or '}' is wanted");
    refuse_twins(entries);
    return {std::move(entries)};
  }

  void refuse_twins(const Json::Map& entries) {
    std::vector<std::string_view> keys;
    keys.reserve(entries.size());
    for (auto& entry : entries) keys.emplace_back(entry.first);
    std::sort(keys.begin(), keys.end());
    if (std::adjacent_find(keys.begin(), keys.end()) != keys.end()) wrong("a key is there twice in the map before");
  }

  Json list(int depth) {
    Json::List entries;
    ++at_;
    if (take(']')) return {std::move(entries)};
    do entries.push_back(value(depth + 1));
    while (take(','));
    if (!take(']')) wrong("',' or ']' is wanted");
    return {std::move(entries)};
  }

  std::string string() {
    std::string out;
    for (++at_;; ++at_) {
      if (at_ >= text_.size()) wrong("a string does not end");
      char c = text_[at_];
      if (c == '"') break;
      if (static_cast<unsigned char>(c) < 0x20) wrong("a control character in a string");
      if (c == '\\')
        escape(out);
      else
        out += c;
    }
    ++at_;
    return out;
  }

  // at_ is on the backslash, and afterwards on the escape's last character.
  void escape(std::string& out) {
    if (++at_ >= text_.size()) wrong("a string does not end");
    constexpr std::string_view from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
    if (size_t i = from.find(text_[at_]); i != std::string_view::npos) {
      out += to[i];
    } else if (text_[at_] == 'u') {
      uint32_t code = hex4();
      if (code >= 0xd800 && code < 0xdc00) {
        if (text_.substr(at_ + 1, 2) != "\\u") wrong("half of a surrogate pair");
        at_ += 2;
        uint32_t low = hex4();
        if (low < 0xdc00 || low > 0xdfff) wrong("half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      } else if (code >= 0xdc00 && code < 0xe000) {
        wrong("half of a surrogate pair");
      }
      append_utf8(out, code);
    } else {
      wrong("an unknown escape");
    }
  }

  uint32_t hex4() {
    uint32_t code = 0;
    const char* begin = text_.data() + at_ + 1;
    if (text_.size() - at_ < 5 || std::from_chars(begin, begin + 4, code, 16).ptr != begin + 4) wrong("a bad \\u");
    at_ += 4;
    return code;
  }

  Json number() {
    size_t start = at_, digits_from = at_ + (text_[at_] == '-' ? 1 : 0);
    auto digits = [&] {
      size_t from = at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
      if (at_ == from) wrong("a value is wanted");
    };
    at_ = digits_from;
    digits();
    if (text_[digits_from] == '0' && at_ > digits_from + 1) wrong("a number begins with 0");
    bool integer = true;
    if (at_ < text_.size() && text_[at_] == '.') {
      integer = false;
      ++at_;
      digits();
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      integer = false;
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      digits();
    }
    const char *begin = text_.data() + start, *end = text_.data() + at_;
    int64_t whole = 0;
    if (integer) {
      if (std::from_chars(begin, end, whole).ec != std::errc()) wrong("a number does not fit 64 bits");
      return {whole};
    }
    double value = 0;
    if (std::from_chars(begin, end, value).ec != std::errc()) wrong("a number does not fit a double");
    return {value};
  }

  std::string_view text_;
  const char* operation_;
  const std::string& name_;
  size_t at_ = 0;
};

void append(std::string& out, const Json& json) {
  char digits[32];
  if (auto* flag = json.as<bool>()) {
    out += *flag ? "true" : "false";
  } else if (auto* whole = json.as<int64_t>()) {
    out.append(digits, std::to_chars(digits, digits + 32, *whole).ptr);
  } else if (auto* real = json.as<double>()) {
    TUTTI_ASSERT(std::isfinite(*real));  // JSON has no others
    std::string_view text(digits, static_cast<size_t>(std::to_chars(digits, digits + 32, *real).ptr - digits));
    out += text;
    if (text.find_first_of(".e") == std::string_view::npos) out += ".0";
  } else if (auto* text = json.as<std::string>()) {
    append_json_string(out, *text);
  } else if (auto* list = json.as<Json::List>()) {
    for (size_t i = 0; i < list->size(); ++i) append(out += i ? "," : "[", (*list)[i]);
    out += list->empty() ? "[]" : "]";
  } else if (auto* map = json.as<Json::Map>()) {
    for (size_t i = 0; i < map->size(); ++i) {
      append_json_string(out += i ? "," : "{", (*map)[i].first);
      append(out += ":", (*map)[i].second);
    }
    out += map->empty() ? "{}" : "}";
  } else {
    out += "null";
  }
}

}  // namespace

Json::Json(std::string text) : value(std::move(text)) {}
Json::Json(List list) : value(std::move(list)) {}
Json::Json(Map map) : value(std::move(map)) {}
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(Json&&) noexcept = default;
Json::Json(const Json&) = default;
Json& Json::operator=(const Json&) = default;
Json::~Json() = default;

const Json* Json::find(std::string_view key) const {
  if (auto* map = as<Map>())
    for (auto& [name, entry] : *map)
      if (name == key) return &entry;
  return nullptr;
}

Json parse_json(std::string_view text, const char* operation, const std::string& name) {
  return Parser(text, operation, name).whole();
}

std::string to_json(const Json& json) {
  std::string out;
  append(out, json);
  return out;
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (char c : text) {
    if (c == '"' || c == '\\') {
      (out += '\\') += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    auto lead = static_cast<unsigned char>(text[i]);
    size_t more = lead < 0x80 ? 0 : lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4 || text.size() - i <= more) return false;
    uint32_t code = more == 0 ? lead : lead & (0x3fu >> more);
    for (size_t k = 1; k <= more; ++k) {
      auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0) != 0x80) return false;
      code = code << 6 | (next & 0x3f);
    }
    constexpr uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    if (code < least[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    i += more + 1;
  }
  return true;
}

}  // namespace tutti::io
