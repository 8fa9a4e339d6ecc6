// What users read when something goes wrong: who did what, where, and what it was for.
#include <gmock/gmock.h>

#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using namespace test;  // NOLINT
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class Words : public testing::TestWithParam<Way> {
 protected:
  static void spawn(int n, const std::function<void()>& body, SpawnOptions options = {}) {
    if (options.timeout == SpawnOptions().timeout) options.timeout = 60s;
    GetParam().spawn(n, body, options);
  }
};

TEST_P(Words, AMismatchNamesAllRanksByWhatTheyCalled) {
  spawn(6, [] {
    auto text = message_of<MismatchError>([] { rank() == 3 || rank() == 5 ? barrier() : all_reduce(ones({4})); });
    EXPECT_THAT(text, AllOf(HasSubstr("they are different collectives"),
                            HasSubstr("\n  ranks 0-2, 4: all_reduce(f32[4], sum) at words_test.cpp:"),
                            HasSubstr("\n  ranks 3, 5: barrier at words_test.cpp:")));
    text = message_of<MismatchError>([] {
      ReduceOptions o{.op = Reduce::average};
      if (rank() == 2) o.weight = 1;
      all_reduce(ones({4}), o);
    });
    EXPECT_THAT(text, AllOf(HasSubstr("only one gives a weight"), ContainsRegex("rank 2: .*, weighted")));
    barrier();
  });
}

TEST_P(Words, APartThatARankHasNoRoomForIsNamedOnce) {
  spawn(2, [] {
    auto text = message_of<MismatchError>([] { all_gather(TensorList{ones({3}), ones({3})}, ones({2})); });
    EXPECT_THAT(text, AllOf(HasSubstr("rank 0 gives 2 elements and has room for 3 as its own part"),
                            HasSubstr("\n  ranks 0, 1: all_gather(f32[2] and 1 more) at words_test.cpp:")));
  });
}

TEST_P(Words, WrongArgumentsSayWhere) {
  spawn(2, [] {
    Tensor x = ones({3}), i = ones({3}, {i64});
    std::vector<std::pair<std::function<void()>, std::string>> wrong = {
        {[&] { broadcast(x, {.root = 2}); }, "broadcast: root 2 is not in a group of 2"},
        {[&] { reduce_async(x, {.root = -1}); }, "reduce: root -1 is not in a group of 2"},
        {[&] { all_reduce(i, {.op = Reduce::average}); }, "all_reduce: there is no Reduce::average of i64"},
        {[&] { all_gather(TensorList{x}, x); }, "all_gather: 1 outputs were given for a group of 2"},
        {[&] { all_gather(TensorList{x, i}, x); }, "does not have the dtype of the others"},
        {[&] { reduce_scatter(x, x); }, "reduce_scatter: the first dim of f32[3]"},
        {[&] { send(x, 7); }, "send: there is no rank 7 in a group of 2"},
        {[&] { recv(x, -2); }, "recv: there is no rank -2 in a group of 2"},
        {[&] { batch_messages({send_op(x, 5)}); }, "send: there is no rank 5 in a group of 2"},
        {[&] { all_reduce(Tensor()); }, "all_reduce: an argument is undefined"},
        {[&] { all_gather(Tensor(), x); }, "all_gather: an argument is undefined"},
        {[&] { reduce_scatter(x, Tensor()); }, "reduce_scatter: an argument is undefined"},
        {[&] { all_to_all(x, x, i, Tensor()); }, "all_to_all: an argument is undefined"},
        {[&] { all_to_all(x, x, i, x); }, "all_to_all: splits are i64, not f32[3]"},
        {[&] { broadcast(x.narrow(0, 0, 1).expand({4}), {.root = 1 - rank()}); }, "broadcast: elements of f32[4]"},
        {[&] { fn::broadcast(x, {.root = 2}); }, "broadcast: root 2 is not in a group of 2"},
        {[&] { fn::all_gather(Tensor()); }, "all_gather: an argument is undefined"},
        {[&] {
           int64_t number = 0;
           broadcast_object(number, {.root = 9});
         },
         "broadcast: root 9 is not in a group of 2"},
    };
    for (auto& [call, text] : wrong)
      EXPECT_THAT(message_of<Error>(call), AllOf(HasSubstr(text), ContainsRegex("\\(at words_test.cpp:[0-9]+")));
    barrier();
  });
}

TEST_P(Words, AFailureSaysWhereItWasMet) {
  auto text = message_of<ValueError>([] {
    spawn(3, [] {
      barrier();
      if (rank() == 1) throw ValueError("no more");
      bool waits = rank() == 0;
      auto mine = message_of<RankFailure>([&] { waits ? all_reduce(ones({2})) : all_reduce_async(ones({2})).wait(); });
      std::string me = std::to_string(rank());
      EXPECT_THAT(mine, AllOf(HasSubstr("[rank " + me + "] rank 1 failed: no more"),
                              HasSubstr("\n  met by rank " + me +
                                        " in collective 1, all_reduce(f32[2], sum) at words_test.cpp:")));
      EXPECT_THAT(message_of<RankFailure>([] { recv(ones({2}), 1); }),
                  ContainsRegex("met by rank . in recv\\(f32\\[2\\]\\) at words_test.cpp:"));
      throw RankFailure(mine);
    });
  });
  EXPECT_THAT(text, HasSubstr("[rank 1] no more"));
}

TEST_P(Words, AMessageThatDoesNotComeSaysWhatThePeerDoes) {
  auto text = message_of<TimeoutError>([] {
    spawn(3, [] {
      Tensor x = ones({2});
      if (rank() == 0) recv(x, 1, {.timeout = 300ms});
      Work never = recv_async(ones({5}), 0);  // gives up at times, so that it is no circle
      while (!never.wait_for(10ms)) {
      }
    });
  });
  EXPECT_THAT(text, AllOf(HasSubstr("rank 0 waited 0.3 s for rank 1 to send: recv(f32[2]) at words_test.cpp:"),
                          ContainsRegex("\n  rank 1: its last call was recv\\(f32\\[5\\]\\) at words_test.cpp:[0-9]+, "
                                        ".* s ago, where it still is"),
                          Not(HasSubstr("rank 2"))));
}

struct Plan {
  std::string name;
  std::vector<int64_t> sizes;
  TUTTI_FIELDS(name, sizes)
};

TEST_P(Words, ObjectsOfDifferentTypesAreNamed) {
  spawn(3, [] {
    auto text = message_of<MismatchError>([] {
      if (rank() == 0) {
        std::vector<std::string> words{"a"};
        broadcast_object(words);
        throw MismatchError("the root");
      }
      Plan plan;
      broadcast_object(plan);
    });
    if (rank() != 0) {
      EXPECT_THAT(text,
                  AllOf(HasSubstr("broadcast_object: ranks disagree in the type of the object, at words_test.cpp:"),
                        HasSubstr("\n  rank 0 gave std::vector<std::string>"), HasSubstr("takes tutti::Plan")));
    }
    text =
        message_of<MismatchError>([] { rank() < 2 ? (void)all_gather_object(Plan()) : (void)all_gather_object(2.5); });
    EXPECT_THAT(text, AllOf(HasSubstr("all_gather_object"), HasSubstr("\n  ranks 0, 1 gave tutti::Plan"),
                            HasSubstr("\n  rank 2 gave double")));
    EXPECT_THAT(message_of<MismatchError>([] {
                  double number = 0;
                  rank() == 1 ? barrier() : broadcast_object(number);
                }),
                HasSubstr("broadcast(i64[1], root 0) at words_test.cpp:"));
    barrier();
  });
}

// ---- Sparse tensors that nobody waits for

Tensor some_rows(int count) {
  Tensor indices = randint(0, 5, {2, count});  // with duplicates
  return sparse_coo(indices, randn({count, 3}, {f64}) * 100, {5, 5, 3});
}

TEST_P(Words, SparseAllReduceNeedNotBeWaitedFor) {
  spawn(3, [] {
    std::vector<Work> works;
    TensorList sparse, dense;
    for (int k = 0; k < 6; ++k) {
      sparse.push_back(some_rows(rank() * 2 + k));
      dense.push_back(to_dense(coalesce(sparse.back())));
      works.push_back(all_reduce_async(sparse.back(), {.op = k % 2 ? Reduce::average : Reduce::sum}));
      works.push_back(all_reduce_async(dense.back(), {.op = k % 2 ? Reduce::average : Reduce::sum}));
    }
    for (size_t k = works.size(); k-- > 0;) works[k].wait();  // in any order
    for (size_t k = 0; k < sparse.size(); ++k) {
      EXPECT_TRUE(sparse[k].is_coalesced());
      EXPECT_TRUE(equal(to_dense(sparse[k]), dense[k])) << k;
    }
    // A list, of which some are sparse, and what is to be done when all are.
    Tensor a = some_rows(rank()), b = full({7}, rank(), {f64}), c = some_rows(3 - rank());
    Tensor da = to_dense(coalesce(a)), dc = to_dense(coalesce(c));
    std::atomic<bool> told = false;
    Work work = all_reduce_async(TensorList{a, b, c}, {.factor = 2});
    work.then([&] { told = true; });
    while (!work.wait_for(1ms)) {
    }
    EXPECT_TRUE(told);
    all_reduce(TensorList{da, dc}, {.factor = 2});
    EXPECT_TRUE(equal(to_dense(a), da) && equal(to_dense(c), dc));
    EXPECT_EQ(b[0].item<double>(), 6);
  });
}

TEST_P(Words, SparseAllReduceThatDoesNotFitIsAnErrorOfTheWork) {
  spawn(3, [] {
    Tensor x = sparse_coo(zeros({1, 1}, {i64}), ones({1}), {rank() == 2 ? 5 : 4});
    Work work = all_reduce_async(x);
    EXPECT_THAT(message_of<MismatchError>([&] { work.wait(); }),
                AllOf(HasSubstr("is of another shape than rank"), HasSubstr("(at words_test.cpp:"),
                      HasSubstr("ranks disagree in collective 0 of their group"),
                      ContainsRegex("ranks 0, 1: all_reduce.f32.4., 1 sparse. at words_test.cpp:[0-9]+, not waited "),
                      ContainsRegex("rank 2: all_reduce.f32.5., 1 sparse. at words_test.cpp:[0-9]+, not waited for")));
    Tensor y = some_rows(2);
    int line = __LINE__;
    auto call = [&] { rank() == 1 ? all_reduce(y) : all_reduce_async(y).wait(); };
    std::string at = "at words_test.cpp:" + std::to_string(line + 1);
    EXPECT_THAT(message_of<MismatchError>(call),
                AllOf(HasSubstr("all ranks must wait for a sparse all_reduce, or none"),
                      HasSubstr("ranks disagree in collective 1 of their group"),
                      ContainsRegex("rank 1: all_reduce.*" + at + ", waited for"),
                      ContainsRegex("ranks 0, 2: all_re.*" + at + ", not waited for")));
    EXPECT_THAT(message_of<MismatchError>([&] { rank() == 1 ? barrier() : all_reduce_async(y).wait(); }),
                AllOf(HasSubstr("rank 1: barrier at words_test.cpp:"),
                      ContainsRegex("ranks 0, 2: all_gather.*for all_reduce of a sparse tensor")));
    EXPECT_THAT(message_of<ValueError>([&] { all_reduce_async(y, {.op = Reduce::max}); }),
                AllOf(HasSubstr("sparse tensors are summed or averaged"), HasSubstr("(at words_test.cpp:")));
    all_reduce_async(y).wait();  // and all goes on
  });
}

TEST_P(Words, SparseAllReduceEndsWithAFailure) {
  EXPECT_THAT(message_of<ValueError>([] {
                spawn(3, [] {
                  Tensor x = some_rows(3);
                  all_reduce_async(x).wait();
                  if (rank() == 1) throw ValueError("no more");
                  std::vector<Work> works;
                  for (int k = 0; k < 3; ++k) works.push_back(all_reduce_async(some_rows(3)));
                  for (Work& work : works)
                    EXPECT_THAT(message_of<RankFailure>([&] { work.wait(); }), HasSubstr("rank 1 failed: no more"));
                });
              }),
              HasSubstr("no more"));
}

INSTANTIATE_TEST_SUITE_P(Ways, Words, every_way(), testing::PrintToStringParamName());

}  // namespace
}  // namespace tutti
