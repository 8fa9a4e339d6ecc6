// Whether a text is well-formed XML, as much of it as pictures use: elements, attributes and text, no declarations.
#pragma once

#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::test {

/// What is wrong with it; "" if nothing is.
inline std::string xml_error(std::string_view text) {
  size_t at = 0;
  auto wrong = [&](const std::string& what) {
    return what + " at byte " + std::to_string(at) + ": " + std::string(text.substr(at, 60));
  };
  auto name = [&] {
    size_t begin = at;
    while (at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) || text[at] == '-')) ++at;
    return std::string(text.substr(begin, at - begin));
  };
  auto space = [&] {
    while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at]))) ++at;
  };
  // Text up to a character: only complete entities, and nothing that has to be one.
  auto content = [&](char end) {
    for (; at < text.size() && text[at] != end; ++at) {
      auto byte = static_cast<unsigned char>(text[at]);
      if (byte < 0x20 && byte != '\n') return false;
      if (byte == '<') return false;
      if (byte != '&') continue;
      size_t semicolon = text.find(';', at);
      if (semicolon == std::string_view::npos) return false;
      static const std::set<std::string_view> known{"amp", "lt", "gt", "quot", "#39"};
      if (!known.contains(text.substr(at + 1, semicolon - at - 1))) return false;
    }
    return at < text.size();
  };
  std::vector<std::string> open;
  bool any = false;
  for (space(); at < text.size();) {
    if (any && open.empty()) return wrong("more than one element");
    if (text[at] != '<') {
      if (!any) return wrong("text outside of elements");
      if (!content('<')) return wrong("bad text");
      continue;
    }
    ++at;
    if (at < text.size() && text[at] == '/') {
      ++at;
      if (std::string end = name(); open.empty() || open.back() != end) return wrong("an end that fits no beginning");
      open.pop_back();
      if (at >= text.size() || text[at++] != '>') return wrong("no end of a tag");
      if (open.empty()) space();
      continue;
    }
    any = true;
    open.push_back(name());
    if (open.back().empty()) return wrong("no name");
    std::set<std::string> attributes;
    for (;;) {
      space();
      if (at >= text.size()) return wrong("no end of a tag");
      if (text[at] == '>' || text[at] == '/') break;
      std::string attribute = name();
      if (attribute.empty() || !attributes.insert(attribute).second) return wrong("a bad or repeated attribute");
      if (text.substr(at, 2) != "='") return wrong("an attribute without a value");
      at += 2;
      if (!content('\'')) return wrong("a bad value");
      ++at;
    }
    if (text[at] == '/') {
      ++at;
      open.pop_back();
    }
    if (at >= text.size() || text[at++] != '>') return wrong("no end of a tag");
    if (open.empty()) space();
  }
  return !any ? "nothing" : open.empty() ? "" : "no end of " + open.back();
}

}  // namespace tutti::test
