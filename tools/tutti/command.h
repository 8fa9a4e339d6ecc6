// The command line of `tutti`: options before the first word that is none.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tutti::tool {

/// The user asked for something that cannot be: the text says what. The program ends with code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The options of one command.
///
///   Options options("tutti run [options] program [arguments]", "Starts a program as several ranks.");
///   options.number("-n", "N", "ranks on this host", n, 1);
///   auto rest = options.parse(arguments);
class Options {
 public:
  Options(std::string usage, std::string about) : usage_(std::move(usage)), about_(std::move(about)) {}
  /// `names`: "-n" or "-n, --ranks". The value that the variable has is the default.
  void flag(const std::string& names, const std::string& about, bool& value);
  void number(const std::string& names, const std::string& what, const std::string& about, int64_t& value,
              int64_t least = 0, int64_t most = INT64_MAX);
  /// 4096, 64K, 16M, 1G.
  void bytes(const std::string& names, const std::string& about, int64_t& value);
  void real(const std::string& names, const std::string& what, const std::string& about, double& value);
  void text(const std::string& names, const std::string& what, const std::string& about, std::string& value);
  /// May be repeated.
  void list(const std::string& names, const std::string& what, const std::string& about,
            std::vector<std::string>& value);
  /// Options that are added after this are rarely used: --help leaves them out, --help-all has them.
  void advanced() { advanced_ = true; }
  /// A command that --help shows, and what it does.
  void example(const std::string& command, const std::string& about) { examples_.emplace_back(command, about); }
  /// Sets the variables; returns the words from the first on that is no option (a "--" before it is dropped). --help
  /// prints what there is, and ends the program.
  std::vector<std::string> parse(const std::vector<std::string>& words) const;
  /// The same where options may come after other words too.
  std::vector<std::string> parse_all(const std::vector<std::string>& words) const;

 private:
  struct Option {
    std::vector<std::string> names;
    std::string what;  // "" for a flag
    std::string about;
    std::function<void(const std::string& value)> set;
    bool advanced;
  };
  void add(const std::string& names, const std::string& what, const std::string& about,
           std::function<void(const std::string&)> set);
  std::vector<std::string> parse(const std::vector<std::string>& words, bool all) const;
  [[noreturn]] void help(bool all) const;
  std::string usage_, about_;
  bool advanced_ = false;
  std::vector<std::pair<std::string, std::string>> examples_;
  std::vector<Option> options_;
};

/// "512", "64K": as short as it is exact.
std::string bytes_text(int64_t bytes);

/// The parts between separators; empty ones are left out.
std::vector<std::string> split(const std::string& text, char at);

using Words = std::vector<std::string>;
int run(const Words& words);
int bench(const Words& words);
int info(const Words& words);
int trace(const Words& words);
int graph(const Words& words);

}  // namespace tutti::tool
