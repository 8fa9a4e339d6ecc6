// Collectives in compiled functions, on every transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/ways.h"
#include "tests/support/compare.h"
#include "tutti/comm/functional.h"
#include "tutti/compile.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using test::identical;
using test::Way;
using testing::HasSubstr;

class CompiledRanks : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, CompiledRanks, testing::ValuesIn(test::all_ways()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(CompiledRanks, CollectivesAreNodesAndGiveEagersBits) {
  GetParam().spawn(3,
                   [] {
                     auto f = [](const Tensor& x, const Tensor& w) {
                       Tensor a = fn::all_reduce(x * w), b = fn::all_reduce(w.sin());
                       return (a * b).sum() + fn::all_gather_single(x).cos().sum();
                     };
                     auto compiled = compile(f);
                     for (uint64_t i = 0; i < 3; ++i) {
                       manual_seed(10 * i + static_cast<uint64_t>(rank()));
                       Tensor x = randn({4}, f64).requires_grad_(), w = randn({4}, f64).requires_grad_();
                       Tensor x2 = x.detach().clone().requires_grad_(), w2 = w.detach().clone().requires_grad_();
                       Tensor wanted = f(x, w), got = compiled(x2, w2);
                       EXPECT_TRUE(identical(got, wanted));
                       wanted.backward();
                       got.backward();
                       EXPECT_TRUE(identical(x2.grad(), x.grad()));
                       EXPECT_TRUE(identical(w2.grad(), w.grad()));
                     }
                     EXPECT_EQ(compiled.stats().runs, 2);
                     EXPECT_EQ(compiled.graphs()[0]->count("all_reduce"), 1u) << "two in one bucket\n"
                                                                              << compiled.print();
                   },
                   {});
}

TEST_P(CompiledRanks, RanksThatWouldCallOthersLearnItAtOnce) {
  try {
    GetParam().spawn(2,
                     [] {
                       auto f = compile([](const Tensor& x) {
                         Tensor y = fn::all_reduce(x);
                         return rank() == 0 ? fn::all_reduce(y * 2) : y;
                       });
                       f(ones({2}));
                     },
                     {});
    FAIL() << "ranks disagree";
  } catch (const MismatchError& e) {
    EXPECT_THAT(e.what(), HasSubstr("all_reduce"));
    EXPECT_THAT(e.what(), HasSubstr("ranks_test.cpp"));
  }
}

TEST_P(CompiledRanks, CollectivesThatWriteTheirArgumentsAreRefused) {
  GetParam().spawn(2,
                   [] {
                     auto f = compile([](Tensor x) {
                       all_reduce(x);
                       return x;
                     });
                     EXPECT_THROW(f(ones({2})), TraceError);
                     EXPECT_THROW(compile([](const Tensor& x) { return barrier(), x; })(ones({2})), TraceError);
                   },
                   {});
}

}  // namespace
}  // namespace tutti
