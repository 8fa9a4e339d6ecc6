// The only file that includes CLI11, which costs the compiler some eight seconds.
#include "tools/flags/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iostream>

namespace tutti::flags {
namespace {

using Words = std::vector<std::string>;

template <class T>
T parse_as(const std::string& text, const std::string& name, const char* kind, const std::string& example) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw UsageError(fmt::format("{} takes {}, not '{}'; write for example {} {}", name, kind, text, name, example));
  return value;
}

bool is_number(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && (std::isdigit(static_cast<unsigned char>(word[1])) || word[1] == '.');
}
bool is_long(const std::string& name) { return name.starts_with("--"); }
// mpirun's -np: CLI11 knows names of one letter after one dash, and would read it as -n with the value "p".
bool is_long_with_one_dash(const std::string& name) { return name.size() > 2 && !is_long(name); }

std::string with_underscores(const std::string& name) {
  std::string other = name;
  std::replace(other.begin() + 2, other.end(), '-', '_');
  return other;
}

// "-n", "-np" and "--log-folder" as CLI11 takes them: "-n,--np,--log-folder,--log_folder".
std::string cli_names(const Words& names) {
  Words all;
  for (const std::string& name : names) {
    all.push_back(is_long_with_one_dash(name) ? "-" + name : name);
    if (is_long(name) && with_underscores(name) != name) all.push_back(with_underscores(name));
  }
  return fmt::format("{}", fmt::join(all, ","));
}

// The words as CLI11 sees them. It finds options and values in them, but looks into values, too: it takes the next word
// for a value that is empty, and divides "[::1],[::2]" at the comma. So it gets places instead of values: `kWord` 3 for
// words[3], `--out=` `kAfterEquals` 4 for what is behind the "=" in words[4].
class Encoded {
 public:
  static constexpr char kWord = '\1', kAfterEquals = '\2';

  Encoded(const Words& words, const Words& names) : words_(words) {
    bool over = false;  // "--" has been seen
    for (size_t i = 0; i < words.size(); ++i) {
      const std::string& word = words[i];
      size_t equals = word.find('=');
      bool is_option = !over && word.size() > 1 && word[0] == '-' && !is_number(word);
      if (!is_option)
        encoded_.push_back(fmt::format("{}{}", kWord, i));
      else if (is_long(word) && equals != std::string::npos)
        encoded_.push_back(fmt::format("{}={}{}", word.substr(0, equals), kAfterEquals, i));
      else if (is_long_with_one_dash(word) && std::find(names.begin(), names.end(), word) != names.end())
        encoded_.push_back("-" + word);
      else
        encoded_.push_back(word);
      over = over || word == "--";
    }
  }
  /// In the order in which CLI11 takes them: the last one first.
  Words reversed() const { return {encoded_.rbegin(), encoded_.rend()}; }
  static bool is_word(const std::string& text) { return text.starts_with(kWord); }
  static bool is_after_equals(const std::string& text) { return text.starts_with(kAfterEquals); }
  std::string decode(const std::string& text) const {
    size_t place = text.find_first_of("\1\2");
    if (place == std::string::npos) return text;
    const std::string& word = words_[std::stoul(text.substr(place + 1))];
    return is_after_equals(text) ? word.substr(word.find('=') + 1) : word;
  }

 private:
  const Words& words_;
  Words encoded_;
};

std::string did_you_mean(const std::string& nearest) {
  return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
}

}  // namespace

// ---- Declarations

void Options::add(const std::string& names, const std::string& what, const std::string& about,
                  const std::string& initial, std::function<void(const std::string&, const std::string&)> set) {
  Option option{{}, what, about, initial, is_advanced_, std::move(set)};
  for (size_t at = 0; at < names.size();) {
    size_t end = std::min(names.find(", ", at), names.size());
    option.names.push_back(names.substr(at, end - at));
    at = end + 2;
  }
  options_.push_back(std::move(option));
}

void Options::flag(const std::string& names, const std::string& about, bool& value) {
  add(names, "", about, "", [&value](const std::string&, const std::string&) { value = true; });
}

void Options::number(const std::string& names, const std::string& what, const std::string& about, int64_t& value,
                     int64_t least, int64_t most) {
  bool has_default = value >= least && value <= most;
  std::string example = fmt::format("{}", has_default ? value : least);
  auto set = [&value, least, most, example](const std::string& text, const std::string& name) {
    auto number = parse_as<int64_t>(text, name, "a whole number", example);
    if (number < least || number > most) {
      std::string limits =
          most == INT64_MAX ? fmt::format("{} or more", least) : fmt::format("from {} to {}", least, most);
      throw UsageError(fmt::format("{} cannot be {}: it is {}", name, text, limits));
    }
    value = number;
  };
  add(names, what, about, has_default ? example : "", set);
}

void Options::real(const std::string& names, const std::string& what, const std::string& about, double& value,
                   double least) {
  bool has_default = value >= least;
  std::string example = fmt::format("{}", has_default ? value : least);
  auto set = [&value, least, example](const std::string& text, const std::string& name) {
    auto number = parse_as<double>(text, name, "a number", example);
    if (!std::isfinite(number) || number < least)
      throw UsageError(fmt::format("{} cannot be {}: it is {} or more", name, text, least));
    value = number;
  };
  add(names, what, about, has_default ? example : "", set);
}

void Options::bytes(const std::string& names, const std::string& about, int64_t& value) {
  auto set = [&value](const std::string& text, const std::string& name) {
    static const std::string units = "KMG";
    size_t unit = text.empty() ? std::string::npos : units.find(text.back());
    bool has_unit = unit != std::string::npos;
    int shift = has_unit ? static_cast<int>(unit + 1) * 10 : 0;
    int64_t number = 0;
    const char* end = text.data() + text.size() - (has_unit ? 1 : 0);
    auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || stop != end || number < 0 || number > INT64_MAX >> shift)
      throw UsageError(
          fmt::format("{} takes a number of bytes, not '{}'; write for example 4096, 64K, 16M or 1G", name, text));
    value = number << shift;
  };
  add(names, "BYTES", about, bytes_text(value), set);
}

void Options::text(const std::string& names, const std::string& what, const std::string& about, std::string& value) {
  add(names, what, about, value, [&value](const std::string& text, const std::string&) { value = text; });
}

void Options::choice(const std::string& names, const std::string& about, std::string& value,
                     const std::vector<std::string>& choices) {
  constexpr size_t kWide = 24;
  std::string what = fmt::format("{}", fmt::join(choices, "|")), text = about;
  if (what.size() > kWide) {
    text += fmt::format(": {}", fmt::join(choices, ", "));
    what = names.substr(names.rfind(' ') + 1);  // --dtype
    what = what.substr(what.find_first_not_of('-'));
    std::transform(what.begin(), what.end(), what.begin(), [](unsigned char c) { return std::toupper(c); });
  }
  add(names, what, text, value, [&value, choices](const std::string& word, const std::string& name) {
    if (std::find(choices.begin(), choices.end(), word) == choices.end())
      throw UsageError(fmt::format("{} cannot be '{}': it is one of {}{}", name, word, fmt::join(choices, ", "),
                                   did_you_mean(nearest(word, choices))));
    value = word;
  });
}

void Options::list(const std::string& names, const std::string& what, const std::string& about,
                   std::vector<std::string>& value) {
  add(names, what, about, fmt::format("{}", fmt::join(value, ", ")),
      [&value](const std::string& text, const std::string&) { value.push_back(text); });
}

void Options::argument(const std::string& what, const std::string& about, std::string& value) {
  arguments_.push_back({what, about, &value, nullptr});
}

void Options::arguments(const std::string& what, const std::string& about, std::vector<std::string>& value) {
  arguments_.push_back({what, about, nullptr, &value});
}

// ---- Parsing

std::vector<std::string> Options::option_names() const {
  Words all{"-h", "--help"};
  for (const Option& option : options_) all.insert(all.end(), option.names.begin(), option.names.end());
  return all;
}

const Options::Option* Options::find(const std::string& name) const {
  for (const Option& option : options_)
    for (const std::string& known : option.names)
      if (name == known || (is_long(known) && name == with_underscores(known))) return &option;
  return nullptr;
}

// As the user wrote its name: -n or --ranks.
std::string Options::spelling(const Option& option, const Words& words) const {
  for (const std::string& word : words) {
    std::string name = is_long(word) ? word.substr(0, word.find('=')) : word;
    if (find(name) == &option) return name;
    if (!is_long(word) && find(word.substr(0, 2)) == &option) return word.substr(0, 2);  // -n4
  }
  return option.names.front();
}

void Options::unknown_option(const std::string& word) const {
  std::string name = is_long(word) ? word.substr(0, word.find('=')) : word, near = nearest(name, option_names());
  throw UsageError(near.empty()
                       ? fmt::format("there is no option {}; {}", name, where_all_are_listed())
                       : fmt::format("there is no option {}{} {}", name, did_you_mean(near), where_all_are_listed()));
}

void Options::missing_value(const Option& option, const std::string& name) const {
  std::string example = option.initial.empty() ? "" : fmt::format(", for example {} {}", name, option.initial);
  throw UsageError(fmt::format("{} has no value; write {} {}{}", name, name, option.what, example));
}

void Options::set_values(const Option& option, const Words& results, const Words& words) const {
  Encoded encoded(words, option_names());
  std::string name = spelling(option, words);
  for (const std::string& result : results) {
    if (option.what.empty() && Encoded::is_after_equals(result))
      throw UsageError(fmt::format("{} takes no value; write {} alone", name, name));
    // The next word was taken for the value, and is an option itself.
    bool is_option = result == "--" || result == "--help" || result == "-h" || find(result) ||
                     (is_long(result) && find(result.substr(1)));
    if (!option.what.empty() && is_option) missing_value(option, name);
    option.set(encoded.decode(result), name);
  }
}

std::vector<std::string> Options::set_arguments(const Words& rest) const {
  size_t next = 0;
  for (const Argument& argument : arguments_) {
    if (argument.all) {
      argument.all->insert(argument.all->end(), rest.begin() + static_cast<std::ptrdiff_t>(next), rest.end());
      next = rest.size();
    } else if (next < rest.size()) {
      *argument.one = rest[next++];
    } else if (argument.one->empty()) {
      throw UsageError(fmt::format("{} is missing ({}); --help says more", argument.what, argument.about));
    }
  }
  return {rest.begin() + static_cast<std::ptrdiff_t>(next), rest.end()};
}

std::vector<std::string> Options::parse(const Words& words, bool all) const {
  CLI::App app;
  app.set_help_flag();  // help is ours
  app.allow_extras();
  app.prefix_command(!all);
  CLI::Option* help_flag = app.add_flag("-h,--help");
  CLI::Option* help_all_flag = app.add_flag("--help-all,--help_all");
  std::vector<CLI::Option*> parsed;
  for (const Option& option : options_) {
    CLI::Option* added =
        option.what.empty() ? app.add_flag(cli_names(option.names)) : app.add_option(cli_names(option.names));
    parsed.push_back(added->take_all());
  }
  Encoded encoded(words, option_names());
  try {
    app.parse(encoded.reversed());
  } catch (
      const CLI::ArgumentMismatch&) {  // the last word is an option that wants a value: -n, or -n at the end of -qn
    std::string name = words.back();
    if (!find(name)) name = fmt::format("-{}", name.back());
    if (const Option* option = find(name)) missing_value(*option, name);
    throw UsageError(fmt::format("{} has no value; {}", words.back(), where_all_are_listed()));
  }
  if (help_flag->count() + help_all_flag->count() > 0) {
    std::cout << help(help_all_flag->count() > 0) << std::flush;
    std::exit(0);
  }
  for (size_t k = 0; k < options_.size(); ++k) set_values(options_[k], parsed[k]->results(), words);

  Words extras = app.remaining(), rest;
  for (size_t k = 0; k < extras.size(); ++k) {
    bool is_mark = extras[k] == "--";                        // what is behind it is encoded
    if (!all && (is_mark || Encoded::is_word(extras[k]))) {  // the program; all behind it is as it was
      size_t count = extras.size() - k - (is_mark ? 1 : 0);
      return {words.end() - static_cast<std::ptrdiff_t>(count), words.end()};
    }
    if (is_mark) continue;
    if (!Encoded::is_word(extras[k])) unknown_option(encoded.decode(extras[k]));
    rest.push_back(encoded.decode(extras[k]));
  }
  return rest;
}

std::vector<std::string> Options::parse(const Words& words) const { return parse(words, false); }

std::vector<std::string> Options::parse_all(const Words& words) const {
  Words rest = set_arguments(parse(words, true));
  if (!arguments_.empty() && !rest.empty())
    throw UsageError(fmt::format("'{}' is one word too many; --help says which there may be", rest[0]));
  return rest;
}

void Options::parse(int argc, const char* const* argv) const {
  try {
    Words rest = parse_all(Words(argv + std::min(argc, 1), argv + argc));
    if (rest.empty()) return;
    std::string near = nearest(rest[0].substr(0, rest[0].find('=')), option_names());  // steps=20
    throw UsageError(fmt::format("'{}' is no option{} {}", rest[0], near.empty() ? ";" : did_you_mean(near),
                                 where_all_are_listed()));
  } catch (const UsageError& e) {
    std::cerr << name() << ": " << e.what() << std::endl;
    std::exit(2);
  }
}

}  // namespace tutti::flags
