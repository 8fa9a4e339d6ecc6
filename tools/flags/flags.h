// The command line of a program: options with their defaults, help, and errors that say what to type instead.
//
//   int64_t steps = 1000;
//   std::string out = ".";
//   flags::Options options("train_gpt", "Trains a small GPT on several ranks.");
//   options.number("-s, --steps", "N", "steps of training", steps, 1);
//   options.text("--out", "FOLDER", "where the loss curve goes", out);
//   options.example("train_gpt --steps 20", "a short run");
//   options.parse(argc, argv);
//
// What a user may type: `--steps 20`, `--steps=20`, `-s 20`, `-s20`; `-ab` for the flags -a and -b; `--out_dir` for
// `--out-dir`; negative numbers as values; `--` before words that look like options and are none. An option that takes
// one value may be repeated: the last value counts, so that a script can append to a command line. Names are not
// abbreviated: `--step` is an error that suggests `--steps`. Every program has -h and --help.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace tutti::flags {

/// A command line that the program does not understand: the text says what is wrong and what to type. Programs end with
/// code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The options and arguments that a program understands. It keeps references to the variables that they set.
class Options {
 public:
  /// `usage` is the program's name, or more: "tutti run [options] program [arguments]". The words before the first
  /// bracket are the name that errors begin with. `about` says in a sentence or two what the program does.
  Options(std::string usage, std::string about) : usage_(std::move(usage)), about_(std::move(about)) {}

  // `names` is "-n", "--ranks" or several: "-n, -np, --ranks". `what` stands for the value in the help: "N", "FOLDER".
  // The value that the variable has is the default, which the help shows; a number below `least` and an empty text
  // mean that there is none.

  /// Sets value to true where the option is given.
  void flag(const std::string& names, const std::string& about, bool& value);
  void number(const std::string& names, const std::string& what, const std::string& about, int64_t& value,
              int64_t least = 0, int64_t most = INT64_MAX);
  /// 4096, 64K, 16M, 1G.
  void bytes(const std::string& names, const std::string& about, int64_t& value);
  void real(const std::string& names, const std::string& what, const std::string& about, double& value,
            double least = 0);
  void text(const std::string& names, const std::string& what, const std::string& about, std::string& value);
  /// One of a few words.
  void choice(const std::string& names, const std::string& about, std::string& value,
              const std::vector<std::string>& choices);
  /// May be repeated: appends each value.
  void list(const std::string& names, const std::string& what, const std::string& about,
            std::vector<std::string>& value);

  /// A word that is no option; arguments are taken in the order of their declaration. It must be given where the
  /// variable is empty.
  void argument(const std::string& what, const std::string& about, std::string& value);
  /// All further words.
  void arguments(const std::string& what, const std::string& about, std::vector<std::string>& value);

  /// Options declared from here on are shown by --help-all only.
  void advanced() { is_advanced_ = true; }
  /// A command line for the end of the help, and what it does.
  void example(const std::string& command, const std::string& about) { examples_.push_back({command, about}); }

  /// Sets the variables. --help prints the help and ends the program with code 0; a command line that is not understood
  /// ends it with code 2 and a message on standard error.
  void parse(int argc, const char* const* argv) const;
  /// The same for a program that starts another one: options end at the first word that is none, and that word and all
  /// that follow are returned as they are (without a "--" before them). Throws UsageError.
  std::vector<std::string> parse(const std::vector<std::string>& words) const;
  /// Options may come after other words too. Returns the words that are no options, where no argument was declared for
  /// them. Throws UsageError.
  std::vector<std::string> parse_all(const std::vector<std::string>& words) const;

  /// The text that --help prints, or with `all` --help-all.
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

/// Returns the one of `names` that a user who typed `word` most likely meant, or "" where none is near: by the number
/// of letters to change, or because the word begins it. Dashes in front do not count.
std::string nearest(const std::string& word, const std::vector<std::string>& names);

/// "512", "64K": as short as it is exact.
std::string bytes_text(int64_t bytes);

}  // namespace tutti::flags
