// Every instruction set gives the same bits: all rows of the table, with their gradients, in processes of their own.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>

#include "tests/support/table.h"
#include "tutti/random.h"

namespace tutti::test {
namespace {

// What the children print: a line a row.
constexpr const char* kMark = "bits of ";

uint64_t hash_of(const Tensor& t, uint64_t hash) {
  if (!t.defined()) return hash;
  Tensor x = to_dense(t).detach().contiguous();
  const auto* bytes = x.numel() > 0 ? static_cast<const unsigned char*>(x.raw_data()) : nullptr;
  for (size_t i = 0; i < static_cast<size_t>(x.numel()) * x.element_size(); ++i) {
    hash ^= bytes[i];
    hash *= 0x100000001b3;  // FNV-1a
  }
  return hash;
}

uint64_t hash_of(const Row& row, DType dtype) {
  uint64_t hash = 0xcbf29ce484222325;
  auto samples = row.all_samples();
  // Long enough for whole vectors of every width and a tail behind them.
  if (row.pointwise()) samples.push_back(row.sample_of({7, 61}));
  for (const Sample& sample : samples) {
    manual_seed(1);
    TensorList inputs = make_inputs(sample, dtype);
    if (row.has_gradient && is_differentiable(dtype)) inputs = as_leaves(inputs, sample);
    TensorList outputs = row.body(inputs);
    for (auto& y : outputs) hash = hash_of(y, hash);
    for (auto& g : weighted_gradients(outputs, inputs)) hash = hash_of(g, hash);
  }
  return hash;
}

// Not a test: what the test below runs.
TEST(Isa, DISABLED_PrintBits) {
  for (const Row& row : all_rows())
    for (DType dtype : {f32, f64, bf16, i32})
      if (row.takes_dtype(dtype) && (dtype != f32 || row.main_dtype() == f64))
        std::printf("%s%s %s %016lx\n", kMark, row.name.c_str(), std::string(name(dtype)).c_str(), hash_of(row, dtype));
}

std::map<std::string, std::string> bits_with(const std::string& isa) {
  std::array<char, 4096> path{};
  EXPECT_GT(readlink("/proc/self/exe", path.data(), path.size() - 1), 0);
  // One process runs them all, whatever share of the tests this one was given.
  std::string command = "GTEST_TOTAL_SHARDS=1 GTEST_SHARD_INDEX=0 TUTTI_ISA=" + isa + " '" + path.data() +
                        "' --gtest_also_run_disabled_tests --gtest_filter=Isa.DISABLED_PrintBits 2>&1";
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::map<std::string, std::string> found;
  std::string rest;
  for (std::array<char, 4096> line{}; fgets(line.data(), static_cast<int>(line.size()), pipe.get());) {
    std::string text = line.data();
    if (!text.starts_with(kMark)) {
      rest += text;
      continue;
    }
    size_t end = text.rfind(' ');
    found[text.substr(std::strlen(kMark), end - std::strlen(kMark))] = text.substr(end + 1);
  }
  EXPECT_NE(rest.find("[  PASSED  ] 1 test"), std::string::npos) << rest;
  return found;
}

TEST(Isa, EveryInstructionSetGivesTheSameBits) {
  auto base = bits_with("base"), v3 = bits_with("v3"), best = bits_with("v4");
  EXPECT_GT(base.size(), 400u);
  for (auto& [row, bits] : base) {
    EXPECT_EQ(v3[row], bits) << row << ": v3 differs from base";
    EXPECT_EQ(best[row], bits) << row << ": the best differs from base";
  }
}

}  // namespace
}  // namespace tutti::test
