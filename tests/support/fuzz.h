// What every fuzz target (tests/fuzz/<name>.cpp) is made of. A target defines seeds(), some good inputs, and target(),
// which must return or throw a tutti::Error whatever it is given. Included once per program.
//
// Built as usual, the program damages the seeds in a deterministic way (its options: --help).
// Built by clang with TUTTI_SANITIZE=fuzzer it is a libFuzzer program, led by coverage and watched by AddressSanitizer.
#pragma once

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tools/flags/flags.h"
#include "tutti/error.h"

namespace tutti::fuzz {

std::vector<std::string> seeds();
void target(const std::string& bytes);

inline void run(const std::string& bytes) {
  try {
    target(bytes);
  } catch (const InternalError&) {
    throw;  // a broken invariant is a finding
  } catch (const Error&) {
  }
}

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> seeds) : seeds_(std::move(seeds)), random_(12345) {}
  std::string next() {
    std::string bytes = seeds_[below(seeds_.size())];
    for (size_t i = 0, count = 1 + below(6); i < count; ++i) damage(bytes);
    if (bytes.size() > 1 << 16) bytes.resize(1 << 16);
    return bytes;
  }

 private:
  size_t below(size_t bound) { return bound ? random_() % bound : 0; }
  void damage(std::string& bytes) {
    if (bytes.empty()) bytes = seeds_[below(seeds_.size())];
    size_t at = below(bytes.size()), length = 1 + below(std::min<size_t>(bytes.size() - at, 24));
    switch (below(9)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(random_());
        break;
      case 2: {  // a number of note, of 1 to 8 bytes
        constexpr uint64_t notable[] = {0,          1,          ~0ull,  1ull << 63, ~0ull >> 1,
                                        0x7fffffff, 0x80000000, 0xffff, 1ull << 40};
        uint64_t value = notable[below(std::size(notable))] + below(3) - 1;
        std::memcpy(bytes.data() + at, &value, std::min<size_t>(size_t{1} << below(4), bytes.size() - at));
        break;
      }
      case 3:
        bytes.erase(at, length);
        break;
      case 4:
        bytes.insert(below(bytes.size()), bytes.substr(at, length));
        break;
      case 5:
        bytes.resize(at);
        break;
      case 6:  // characters that mean something in texts and headers
        bytes[at] = "{}[]()\"'\\,:;-+.e0987654321 \n\r$"[below(30)];
        break;
      case 7: {
        const std::string& other = seeds_[below(seeds_.size())];
        bytes.replace(at, length, other.substr(below(other.size()), 1 + below(64)));
        break;
      }
      default: {  // a decimal number made long
        size_t digit = bytes.find_first_of("0123456789", at);
        if (digit != std::string::npos)
          bytes.insert(digit, std::string(1 + below(20), static_cast<char>('0' + below(10))));
      }
    }
  }
  std::vector<std::string> seeds_;
  std::mt19937_64 random_;
};

inline int main(int argc, char** argv) {
  int64_t rounds = 300000;
  bool is_short = false;
  std::vector<std::string> files;
  flags::Options options(std::filesystem::path(argv[0]).filename().string(),
                         "Gives damaged input to the library, which must take it or throw a tutti::Error.");
  options.arguments("FILE", "inputs to try once each, in place of damaged ones", files);
  options.number("--rounds", "N", "damaged inputs", rounds, 1);
  options.flag("--short", "a few inputs, for the tests", is_short);
  options.parse(argc, argv);
#ifndef TUTTI_SANITIZE_ADDRESS
  rlimit limit{size_t{4} << 30, size_t{4} << 30};  // what allocates by a number in a file is found out
  ::setrlimit(RLIMIT_AS, &limit);
#endif
  for (const std::string& name : files) {
    std::ifstream file(name, std::ios::binary);
    if (!file) return std::fprintf(stderr, "%s cannot be read\n", name.c_str()), 2;
    run(std::string(std::istreambuf_iterator<char>(file), {}));
  }
  if (!files.empty()) return 0;
  if (is_short) rounds = 6000;
  std::vector<std::string> good = seeds();
  for (auto& seed : good) target(seed);  // must not throw: else nothing behind the first check would be reached
  Mutator mutator(good);
  for (int64_t i = 0; i < rounds; ++i) {
    std::string bytes = mutator.next();
    try {
      run(bytes);
    } catch (const std::exception& error) {
      std::ofstream("fuzz-failure", std::ios::binary) << bytes;
      std::printf("FAILED: round %ld: %s (the input is in ./fuzz-failure)\n", long(i), error.what());
      return 1;
    }
  }
  std::printf("%ld inputs\n", long(rounds));
  return 0;
}

}  // namespace tutti::fuzz

#ifdef TUTTI_LIBFUZZER
// Without seeds it would find little: they are files of one more folder, unless it is to run some files only.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  static std::vector<char*> arguments(*argv, *argv + *argc);
  for (char* argument : arguments)
    if (argument != arguments[0] && argument[0] != '-' && !std::filesystem::is_directory(argument)) return 0;
  static std::string folder = (std::filesystem::temp_directory_path() / "tutti-fuzz-XXXXXX").string();
  if (!::mkdtemp(folder.data())) return 0;
  int number = 0;
  for (const std::string& seed : tutti::fuzz::seeds())
    std::ofstream(folder + "/seed" + std::to_string(number++), std::ios::binary) << seed;
  arguments.push_back(folder.data());
  *argc = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  *argv = arguments.data();
  return 0;
}
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tutti::fuzz::run(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
#else
int main(int argc, char** argv) { return tutti::fuzz::main(argc, argv); }
#endif
