// Arguments of collectives that lie in each other's memory, weights, timeouts and gradients that only some ranks have.
#include "tests/comm/ways.h"
#include "tests/support/expect.h"
#include "tutti/comm.h"
#include "tutti/comm/functional.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using namespace test;  // NOLINT

class Arguments : public testing::TestWithParam<Way> {
 protected:
  static void spawn(int n, const std::function<void()>& body) { GetParam().spawn(n, body, {}); }
};
INSTANTIATE_TEST_SUITE_P(Ways, Arguments, every_way(), testing::PrintToStringParamName());

// What a rank gives may be any part of what it gets.
TEST_P(Arguments, AllGatherFromAPartOfItsOutput) {
  spawn(3, [] {
    for (int64_t n : {2, 100'000})
      for (int part : {rank(), (rank() + 1) % 3}) {
        Tensor out = full({3 * n}, -1, {f32}), mine = out.narrow(0, part * n, n);
        mine.fill_(rank() + 1);
        all_gather(out, mine);
        for (int k = 0; k < 3; ++k) EXPECT_TRUE(equal(out.narrow(0, k * n, n), full({n}, k + 1, {f32}))) << n << part;
        out.fill_(-1);
        mine.fill_(rank() + 1);
        TensorList outputs = rank() == 1 ? split(out, n) : TensorList{};
        gather(outputs, mine, {.root = 1});
        for (size_t k = 0; k < outputs.size(); ++k)
          EXPECT_TRUE(equal(outputs[k], full({n}, static_cast<int>(k) + 1, {f32}))) << n << part;
      }
  });
}

TEST_P(Arguments, AResultIsNotWrittenTwice) {
  spawn(2, [] {
    for (int64_t n : {2, 100'000}) {
      Tensor y = ones({n});
      EXPECT_THAT(message_of<ValueError>([&] { all_reduce({y, y}); }),
                  HasSubstr("all_reduce: two of the 2 tensors that it would write share memory"));
      EXPECT_THROW(all_reduce_async({y, y.narrow(0, 1, n - 1)}), ValueError);
      all_reduce({y.narrow(0, 0, 1), y.narrow(0, 1, n - 1)});
      EXPECT_TRUE(equal(y, full({n}, 2, {f32})));
    }
  });
}

TEST_P(Arguments, AWeightOfZeroLeavesARankOut) {
  spawn(3, [] {
    for (int64_t n : {2, 100'000}) {
      Tensor x = full({n}, rank() == 1 ? NAN : rank() + 1, {f32});  // the mean of no samples
      all_reduce(x, {.op = Reduce::average, .weight = rank() == 1 ? 0 : 2});
      EXPECT_TRUE(equal(x, full({n}, 2, {f32}))) << n;
      EXPECT_THAT(message_of<MismatchError>([&] { all_reduce(x, {.op = Reduce::average, .weight = 0}); }),
                  HasSubstr("the weights of all ranks are 0"));
      EXPECT_THROW(all_reduce(x, {.op = Reduce::average, .weight = -1}), ValueError);
      EXPECT_THROW(all_reduce(x, {.op = Reduce::average, .weight = NAN}), ValueError);
    }
  });
}

TEST_P(Arguments, TimeoutsMayBeForEver) {
  spawn(2, [] {
    Tensor x = ones({3});
    auto for_ever = std::chrono::milliseconds::max();
    all_reduce(x, {.timeout = for_ever});
    Work work = all_reduce_async(x, {.timeout = for_ever});
    EXPECT_TRUE(work.wait_for(std::chrono::nanoseconds::max()));
    if (rank() == 0) send(x, 1, {.timeout = for_ever});
    if (rank() == 1) recv(x, 0, {.timeout = for_ever});
    EXPECT_EQ(x[0].item<double>(), 4);
  });
}

// The backward pass of one rank would meet another rank's next collective.
TEST_P(Arguments, AGradientIsWantedByAllRanksOrNone) {
  spawn(2, [] {
    for (int64_t n : {2, 100'000}) {
      Tensor x = ones({n}).requires_grad_(rank() == 0);
      EXPECT_THAT(message_of<MismatchError>([&] { fn::all_reduce(x); }),
                  HasSubstr("requires a gradient on one of the ranks only"));
      NoGrad guard;
      EXPECT_TRUE(equal(fn::all_reduce(x), full({n}, 2, {f32})));
    }
  });
}

}  // namespace
}  // namespace tutti
