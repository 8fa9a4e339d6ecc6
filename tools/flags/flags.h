// Parser for the command line of a program: options with defaults, --help, and errors that suggest what to type.
//
//   int64_t steps = 1000;
//   std::string out = ".";
//   flags::Options options("train_gpt", "Trains a small GPT on several ranks.");
//   options.number("-s, --steps", "N", "steps of training", steps, 1);
//   options.text("--out", "FOLDER", "where the loss curve goes", out);
//   options.example("train_gpt --steps 20", "a short run");
//   options.parse(argc, argv);
//
// A user may type `--steps 20`, `--steps=20`, `-s 20` or `-s20`; `-ab` for the flags -a and -b; `--out_dir` for
// `--out-dir`; negative numbers as values; `--` before arguments that look like options. If an option is repeated, its
// last value counts, so that a script can append to a command line. Names cannot be abbreviated: `--step` is an error
// that suggests `--steps`. Every program has -h and --help.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace tutti::flags {

/// An invalid command line. The text says what is wrong and what to type. Programs exit with code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The options and arguments of a program. Holds references to the variables that parsing sets; they must outlive it.
class Options {
 public:
  /// `usage` is the program's name, or a whole usage line: "tutti run [options] program [arguments]". Errors begin with
  /// the words before the first bracket. `about` describes the program in a sentence or two.
  Options(std::string usage, std::string about) : usage_(std::move(usage)), about_(std::move(about)) {}

  // Each of the next functions declares an option. `names` is "-n", "--ranks" or several: "-n, -np, --ranks". `what`
  // stands for the value in the help: "N", "FOLDER". The help shows the variable's current value as the default; a
  // number below `least` or an empty text means that there is no default.

  /// Declares a flag: the option sets value to true.
  void flag(const std::string& names, const std::string& about, bool& value);
  /// Declares an option that takes a whole number from `least` to `most`.
  void number(const std::string& names, const std::string& what, const std::string& about, int64_t& value,
              int64_t least = 0, int64_t most = INT64_MAX);
  /// Declares an option that takes a number of bytes: 4096, 64K, 16M, 1G.
  void bytes(const std::string& names, const std::string& about, int64_t& value);
  /// Declares an option that takes a finite number, at least `least`.
  void real(const std::string& names, const std::string& what, const std::string& about, double& value,
            double least = 0);
  /// Declares an option that takes any text.
  void text(const std::string& names, const std::string& what, const std::string& about, std::string& value);
  /// Declares an option that takes one of `choices`.
  void choice(const std::string& names, const std::string& about, std::string& value,
              const std::vector<std::string>& choices);
  /// Declares an option that may be repeated; each use appends a value.
  void list(const std::string& names, const std::string& what, const std::string& about,
            std::vector<std::string>& value);

  /// Declares a positional argument; the command line has them in the order of their declaration. It is required if the
  /// variable is empty.
  void argument(const std::string& what, const std::string& about, std::string& value);
  /// Declares the list of all further positional arguments.
  void arguments(const std::string& what, const std::string& about, std::vector<std::string>& value);

  /// Hides options declared after this call from --help; --help-all shows them.
  void advanced() { is_advanced_ = true; }
  /// Adds an example to the end of the help: a command line and what it does.
  void example(const std::string& command, const std::string& about) { examples_.push_back({command, about}); }

  /// Parses the command line and sets the variables. On --help, prints the help and exits with code 0. On an invalid
  /// command line, prints a message to standard error and exits with code 2.
  void parse(int argc, const char* const* argv) const;
  /// Parses `words` for a program that starts another one: options end at the first word that is no option. Returns
  /// that word and all that follow it, without a "--" before them. Throws UsageError. On --help, exits as above.
  std::vector<std::string> parse(const std::vector<std::string>& words) const;
  /// Parses `words`, where options may also follow arguments. Returns the words for which no argument was declared.
  /// Throws UsageError. On --help, exits as above.
  std::vector<std::string> parse_all(const std::vector<std::string>& words) const;

  /// Returns the text that --help prints, or that of --help-all if `all`.
  std::string help(bool all = false) const;

 private:
  struct Option {
    std::vector<std::string> names;
    std::string what;  // "" for a flag
    std::string about;
    std::string initial;  // the default, as a user would type it; "" for none
    bool advanced;
    std::function<void(const std::string& value, const std::string& name)> set;
  };
  struct Argument {
    std::string what, about;
    std::string* one;
    std::vector<std::string>* all;  // where `one` is null
  };
  struct Example {
    std::string command, about;
  };

  void add(const std::string& names, const std::string& what, const std::string& about, const std::string& initial,
           std::function<void(const std::string& value, const std::string& name)> set);
  std::vector<std::string> parse(const std::vector<std::string>& words, bool all) const;
  std::string name() const;
  std::string usage_line() const;
  std::string where_all_are_listed() const;
  std::vector<std::string> option_names() const;
  const Option* find(const std::string& name) const;
  std::string spelling(const Option& option, const std::vector<std::string>& words) const;
  [[noreturn]] void unknown_option(const std::string& word) const;
  [[noreturn]] void missing_value(const Option& option, const std::string& name) const;
  void set_values(const Option& option, const std::vector<std::string>& results,
                  const std::vector<std::string>& words) const;
  std::vector<std::string> set_arguments(const std::vector<std::string>& rest) const;

  std::string usage_, about_;
  std::vector<Option> options_;
  std::vector<Argument> arguments_;
  std::vector<Example> examples_;
  bool is_advanced_ = false;
};

/// Returns the name that is most similar to `word`, by edit distance or as a completion of it, or "" if none is.
/// Ignores leading dashes, case, and the difference between _ and -.
std::string nearest(const std::string& word, const std::vector<std::string>& names);

/// Returns a number of bytes as its shortest exact text: "512", "64K".
std::string bytes_text(int64_t bytes);

}  // namespace tutti::flags
