// Operators on more than 2^31 floats whose results are as many: too slow, and too large, for the tests, of which
// tests/ops/large_test.cpp has the others. What there is no memory for is skipped, and said to be.
#include "tests/support/large.h"

#include <cstdio>
#include <functional>

#include "tools/flags/flags.h"

namespace tutti::test {
namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "%s: wrong\n", what);
}

float at(const Tensor& x, int64_t place) { return x[place].item<float>(); }

void joins(int64_t n) {
  Tensor half = untouched({n / 2}), x;
  half[-1].fill_(4);
  x = cat({half, half, tensor({5.0, 6.0})});
  expect(x.numel() == n + 2, "the size of cat");
  expect(at(x, n / 2 - 1) == 4 && at(x, n / 2) == 0, "the first part of cat");
  expect(at(x, n - 2) == 0 && at(x, n - 1) == 4 && at(x, n) == 5 && at(x, n + 1) == 6, "the end of cat");
}

void running_sums(int64_t n) {
  Tensor x = untouched({n});
  x[3].fill_(2);
  x[n - 2].fill_(5);
  cumsum_(x, 0);
  expect(at(x, 2) == 0 && at(x, 3) == 2 && at(x, 4) == 2, "the beginning of cumsum");
  expect(at(x, n - 3) == 2 && at(x, n - 2) == 7 && at(x, n - 1) == 7, "the end of cumsum");
}

void products(int64_t n) {
  Tensor a = untouched({n / 4, 4});
  a[0].fill_(1);
  a[-1].copy_(tensor({1.0, 2.0, 3.0, 4.0}));
  Tensor squares = mm(a.t(), a);  // 1 + i j, with i and j from 1 on
  for (int64_t i = 0; i < 4; ++i)
    for (int64_t j = 0; j < 4; ++j)
      expect(squares[i][j].item<float>() == static_cast<float>(1 + (i + 1) * (j + 1)), "a product of many rows");
  Tensor column = mm(a, tensor({{1.0}, {10.0}, {100.0}, {1000.0}}));
  expect(column[0].item<float>() == 1111 && column[-1].item<float>() == 4321, "rows of a long product");
  expect(sum(column).item<float>() == 5432, "the rest of a long product");
}

}  // namespace
}  // namespace tutti::test

int main(int argc, char** argv) {
  using namespace tutti::test;  // NOLINT
  int64_t n = kBeyond;
  double seconds = 0;
  bool is_short = false;
  tutti::flags::Options options("soak_large", "Operators on more than 2^31 floats.");
  options.flag("--short", "on a million floats, for the tests", is_short);
  options.real("--seconds", "N", "as all of these programs have; this one ends by itself", seconds);
  options.parse(argc, argv);
  if (is_short) n = (1 << 20) + 12;
  struct Part {
    const char* name;
    void (*run)(int64_t);
    int64_t bytes;  // that it writes, for each element
  };
  for (const Part& part : {Part{"cat", joins, 4}, {"cumsum", running_sums, 4}, {"mm", products, 1}}) {
    bool room = has_room(n * part.bytes);
    if (room) part.run(n);
    std::printf("%s of %lld floats%s\n", part.name, static_cast<long long>(n),
                room ? "" : ": skipped, too little memory");
  }
  return failures ? 1 : 0;
}
