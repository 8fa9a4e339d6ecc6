// --name value on the command line, for the examples.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

class Flags {
 public:
  Flags(int argc, char** argv) : words_(argv + 1, argv + argc) {}
  int64_t number(const std::string& name, int64_t otherwise) {
    std::string text = this->text(name, "");
    if (text.empty()) return otherwise;
    char* end = nullptr;
    int64_t value = std::strtoll(text.c_str(), &end, 10);
    if (*end || value < 1) fail(name + " takes a number of at least 1, not " + text);
    return value;
  }
  std::string text(const std::string& name, const std::string& otherwise) {
    for (size_t i = 0; i + 1 < words_.size(); ++i) {
      if (words_[i] != name) continue;
      std::string value = words_[i + 1];
      words_.erase(words_.begin() + static_cast<std::ptrdiff_t>(i),
                   words_.begin() + static_cast<std::ptrdiff_t>(i + 2));
      return value;
    }
    return otherwise;
  }
  /// What is left when the flags have been taken: file names, say. Without any expected, anything is an error.
  std::vector<std::string> rest() const { return words_; }
  void done() const {
    if (!words_.empty()) fail("what is " + words_[0] + "?");
  }

 private:
  [[noreturn]] static void fail(const std::string& message) {
    std::fprintf(stderr, "%s\n", message.c_str());
    std::exit(2);
  }
  std::vector<std::string> words_;
};
