// What --help prints, and what an error suggests.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "tools/flags/flags.h"

namespace tutti::flags {
namespace {

constexpr size_t kWidth = 80;  // columns of the screen
constexpr size_t kHead = 34;   // columns of names at most, where their explanation is beside them

// In characters: a byte 10xxxxxx goes on with the one before.
size_t columns(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string padded(const std::string& text, size_t width) {
  size_t there = columns(text);
  return text + std::string(width > there ? width - there : 0, ' ');
}

// The text in lines that end before kWidth; from the second on they begin with `indent` spaces. An empty line in it
// stays; a tab is a space at which no line ends.
std::string wrapped(const std::string& text, size_t indent) {
  std::string out, word;
  size_t at = indent;
  size_t newlines = 0;
  auto end_word = [&] {
    if (word.empty()) return;
    if (newlines > 1) {
      out += "\n\n" + std::string(indent, ' ');
      at = indent;
    } else if (at > indent && at + 1 + columns(word) > kWidth) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
    } else if (at > indent) {
      out += " ";
      ++at;
    }
    out += word;
    at += columns(word);
    word.clear();
    newlines = 0;
  };
  for (char c : text) {
    if (c != ' ' && c != '\n') {
      word += c == '\t' ? ' ' : c;
      continue;
    }
    end_word();
    if (c == '\n') ++newlines;
  }
  end_word();
  return out + "\n";
}

// "--Log_Folder" is "log-folder".
std::string bare(const std::string& name) {
  std::string text = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return c == '_' ? '-' : static_cast<char>(std::tolower(c)); });
  return text;
}

// The letters to insert, take out, replace, or exchange with their neighbor to make one of the other.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& names) {
  std::string typed = bare(word), best;
  size_t least = SIZE_MAX;
  for (const std::string& name : names) {
    std::string known = bare(name);
    size_t changes = edit_distance(typed, known),
           allowed = std::max<size_t>(1, std::min(typed.size(), known.size()) / 3);
    if (typed.empty() || (changes > 0 && std::min(typed.size(), known.size()) < 2)) continue;
    // What it begins is the next best after what is a slip of the fingers.
    if (changes > allowed) {
      if (!known.starts_with(typed)) continue;
      changes += 100;
    }
    if (changes < least) least = changes, best = name;
  }
  return best;
}

std::string bytes_text(int64_t bytes) {
  for (auto [unit, shift] : {std::pair{'G', 30}, {'M', 20}, {'K', 10}})
    if (bytes >= int64_t{1} << shift && bytes % (int64_t{1} << shift) == 0)
      return fmt::format("{}{}", bytes >> shift, unit);
  return fmt::format("{}", bytes);
}

std::string Options::name() const { return usage_.substr(0, usage_.find(" [")); }

std::string Options::usage_line() const {
  if (usage_ != name()) return usage_;
  std::string line = usage_;
  if (!options_.empty()) line += " [options]";
  for (const Argument& a : arguments_) {
    std::string what = a.all ? a.what + " ..." : a.what;
    line += a.all || !a.one->empty() ? fmt::format(" [{}]", what) : " " + what;
  }
  return line;
}

std::string Options::where_all_are_listed() const {
  bool any = std::any_of(options_.begin(), options_.end(), [](const Option& o) { return o.advanced; });
  return any ? "--help-all lists all" : "--help lists all";
}

std::string Options::help(bool all) const {
  struct Line {
    std::string head, about;
  };
  std::vector<Line> lines;
  auto with_default = [](const std::string& about, const std::string& initial) {
    std::string shown = "(default " + initial + ")";
    std::replace(shown.begin(), shown.end(), ' ', '\t');
    return initial.empty() ? about : about + " " + shown;
  };
  for (const Argument& a : arguments_)
    lines.push_back({a.all ? a.what + " ..." : a.what, with_default(a.about, a.one ? *a.one : "")});
  size_t hidden = 0;
  for (const Option& o : options_) {
    if (o.advanced && !all) {
      ++hidden;
      continue;
    }
    std::string head = fmt::format("{}{}{}", fmt::join(o.names, ", "), o.what.empty() ? "" : " ", o.what);
    lines.push_back({head, with_default(o.about, o.initial)});
  }
  lines.push_back({"-h, --help", "print this and end"});

  size_t width = 0;
  for (const Line& line : lines)
    if (columns(line.head) <= kHead) width = std::max(width, columns(line.head));
  std::string text = fmt::format("usage: {}\n\n{}\n", usage_line(), wrapped(about_, 0));
  for (const Line& line : lines) {
    bool beside = columns(line.head) <= width;
    text += "  " + (beside ? padded(line.head, width) : line.head + "\n  " + std::string(width, ' '));
    text += "  " + wrapped(line.about, width + 4);
  }
  if (!examples_.empty()) {
    text += "\nexamples:\n";
    width = 0;
    for (const Example& e : examples_) width = std::max(width, columns(e.command));
    for (const Example& e : examples_) {
      bool beside = 2 + width + 4 + columns(e.about) <= kWidth;
      text += beside ? fmt::format("  {}  # {}\n", padded(e.command, width), e.about)
                     : fmt::format("  # {}\n  {}\n", e.about, e.command);
    }
  }
  if (hidden > 0) text += fmt::format("\n--help-all lists {} more option{}.\n", hidden, hidden > 1 ? "s" : "");
  return text;
}

}  // namespace tutti::flags
