#include "tools/tutti/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iostream>

namespace tutti::tool {
namespace {

template <class T>
T parse_as(const std::string& text, const std::string& name) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw UsageError(fmt::format("{} takes a number, not '{}'", name, text));
  return value;
}

}  // namespace

std::string bytes_text(int64_t bytes) {
  for (auto [unit, shift] : {std::pair{'G', 30}, {'M', 20}, {'K', 10}})
    if (bytes >= int64_t{1} << shift && bytes % (int64_t{1} << shift) == 0)
      return fmt::format("{}{}", bytes >> shift, unit);
  return fmt::format("{}", bytes);
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> list(1);
  for (char c : text)
    if (c != at)
      list.back() += c;
    else if (!list.back().empty())
      list.emplace_back();
  if (list.back().empty()) list.pop_back();
  return list;
}

void Options::add(const std::string& names, const std::string& what, const std::string& about,
                  std::function<void(const std::string&)> set) {
  Option option{{}, what, about, std::move(set), advanced_};
  for (size_t at = 0; at < names.size();) {
    size_t end = std::min(names.find(", ", at), names.size());
    option.names.push_back(names.substr(at, end - at));
    at = end + 2;
  }
  options_.push_back(std::move(option));
}

void Options::flag(const std::string& names, const std::string& about, bool& value) {
  add(names, "", about, [&value](const std::string&) { value = true; });
}

void Options::number(const std::string& names, const std::string& what, const std::string& about, int64_t& value,
                     int64_t least, int64_t most) {
  add(names, what, about, [&value, least, most, names](const std::string& text) {
    value = parse_as<int64_t>(text, names);
    if (value >= least && value <= most) return;
    std::string limits =
        most == INT64_MAX ? fmt::format("{} or more", least) : fmt::format("from {} to {}", least, most);
    throw UsageError(fmt::format("{} cannot be {}: it is {}", names, value, limits));
  });
}

void Options::real(const std::string& names, const std::string& what, const std::string& about, double& value) {
  add(names, what, about, [&value, names](const std::string& text) {
    value = parse_as<double>(text, names);
    if (!(value >= 0)) throw UsageError(fmt::format("{} cannot be {}", names, value));
  });
}

void Options::bytes(const std::string& names, const std::string& about, int64_t& value) {
  add(names, "BYTES", about, [&value, names](const std::string& text) {
    static const std::string units = "KMG";
    size_t unit = text.empty() ? std::string::npos : units.find(text.back());
    bool has_unit = unit != std::string::npos;
    value = parse_as<int64_t>(has_unit ? text.substr(0, text.size() - 1) : text, names);
    int shift = has_unit ? static_cast<int>(unit + 1) * 10 : 0;
    if (value < 0 || value > INT64_MAX >> shift) throw UsageError(fmt::format("{} cannot be {}", names, text));
    value <<= shift;
  });
}

void Options::text(const std::string& names, const std::string& what, const std::string& about, std::string& value) {
  add(names, what, about, [&value](const std::string& text) { value = text; });
}

void Options::list(const std::string& names, const std::string& what, const std::string& about,
                   std::vector<std::string>& value) {
  add(names, what, about, [&value](const std::string& text) { value.push_back(text); });
}

void Options::help(bool all) const {
  std::string text = fmt::format("usage: {}\n\n{}\n\n", usage_, about_);
  size_t width = 0;
  auto head = [](const Option& o) {
    return fmt::format("  {}{}{}", fmt::join(o.names, ", "), o.what.empty() ? "" : " ", o.what);
  };
  for (const auto& [command, about] : examples_) width = std::max(width, command.size() + 2);
  for (const auto& [command, about] : examples_) text += fmt::format("  {:<{}}  {}\n", command, width - 2, about);
  if (!examples_.empty()) text += '\n';
  width = 0;
  for (const Option& o : options_)
    if (all || !o.advanced) width = std::max(width, head(o).size());
  for (const Option& o : options_)
    if (all || !o.advanced) text += fmt::format("{:<{}}  {}\n", head(o), width, o.about);
  if (advanced_ && !all) text += fmt::format("{:<{}}  {}\n", "  --help-all", width, "lists the other options too");
  std::cout << text << std::flush;
  std::exit(0);
}

std::vector<std::string> Options::parse(const std::vector<std::string>& words) const { return parse(words, false); }
std::vector<std::string> Options::parse_all(const std::vector<std::string>& words) const { return parse(words, true); }

std::vector<std::string> Options::parse(const std::vector<std::string>& words, bool all) const {
  std::vector<std::string> rest;
  size_t i = 0;
  for (; i < words.size(); ++i) {
    std::string word = words[i], value;
    if (word == "--") {
      ++i;
      break;
    }
    if (word.size() < 2 || word[0] != '-') {
      if (!all) break;
      rest.push_back(word);
      continue;
    }
    if (word == "--help" || word == "--help-all" || word == "-h") help(word == "--help-all");
    size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    bool has_value = equals != std::string::npos;
    if (has_value) {
      value = word.substr(equals + 1);
      word.resize(equals);
    }
    auto named = [&](const std::string& name) {
      return std::find_if(options_.begin(), options_.end(), [&](const Option& o) {
        return std::find(o.names.begin(), o.names.end(), name) != o.names.end();
      });
    };
    auto found = named(word);
    if (found == options_.end() && !word.starts_with("--")) {  // -n4
      found = named(word.substr(0, 2));
      if (found != options_.end() && found->what.empty()) found = options_.end();
      has_value = found != options_.end();
      if (has_value) value = word.substr(2);
    }
    if (found == options_.end())
      throw UsageError(fmt::format("there is no option {} (--help lists those there are)", word));
    if (found->what.empty() && has_value) throw UsageError(fmt::format("{} takes no value", word));
    if (!found->what.empty() && !has_value) {
      if (i + 1 == words.size()) throw UsageError(fmt::format("{} wants a value: {}", word, found->what));
      value = words[++i];
    }
    found->set(value);
  }
  rest.insert(rest.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
  return rest;
}

}  // namespace tutti::tool
