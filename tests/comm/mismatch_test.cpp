// Calls that have as many numbers as each other, but in other shapes: all ranks say so, on every way of running them.
#include <functional>

#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using namespace test;  // NOLINT

class Mismatches : public EveryWay {};
INSTANTIATE_TEST_SUITE_P(Ways, Mismatches, every_way(), name_way);

TensorList list_of(size_t count, const Shape& shape) {
  TensorList list;
  for (size_t k = 0; k < count; ++k) list.push_back(ones(shape));
  return list;
}

// Rank 1 of three has k rows of 2, or n times as many, where the others have 2 rows of k.
void differ(int64_t k) {
  SCOPED_TRACE(k);
  int n = world_size(), me = rank();
  auto shape = [&](int64_t rows = 1) { return me == 1 ? Shape{rows * k, 2} : Shape{rows * 2, k}; };
  auto mismatch = [&](const char* name, const std::function<void()>& call) {
    std::string mine = std::string(name) + "(f32[" + std::to_string(k) + ", 2]",
                others = std::string(name) + "(f32[2, " + std::to_string(k) + "]";
    EXPECT_THAT(message_of<MismatchError>(call), AllOf(HasSubstr("the shapes differ: rank "), HasSubstr(mine),
                                                       HasSubstr(others), HasSubstr("mismatch_test.cpp:")))
        << name;
  };
  auto count = static_cast<size_t>(n);
  mismatch("all_gather", [&] { all_gather(list_of(count, {2, k}), ones(shape())); });
  mismatch("all_gather", [&] { all_gather(list_of(count, shape()), ones(shape())); });
  mismatch("all_gather", [&] { all_gather(ones(shape(n)), ones(shape())); });
  mismatch("all_gather", [&] { all_gather(ones({2 * n * k}), ones(shape())); });
  mismatch("gather", [&] { gather(me == 0 ? list_of(count, {2, k}) : TensorList(), ones(shape())); });
  mismatch("scatter", [&] { scatter(ones(shape()), me == 0 ? list_of(count, {2, k}) : TensorList()); });
  mismatch("reduce_scatter", [&] { reduce_scatter(ones(shape()), ones(shape(n))); });
  mismatch("reduce_scatter", [&] { reduce_scatter(ones(shape()), list_of(count, shape())); });
  mismatch("all_to_all", [&] { all_to_all(ones(shape(n)), ones(shape(n))); });
  mismatch("all_to_all", [&] { all_to_all(list_of(count, shape()), list_of(count, shape())); });
  EXPECT_THAT(message_of<MismatchError>([&] { all_reduce(TensorList{ones({3}), ones(shape())}); }),
              HasSubstr("the sizes of their tensors differ"));
  EXPECT_THAT(message_of<MismatchError>([&] { broadcast(TensorList{ones({3}), ones(shape())}); }),
              HasSubstr("the sizes of their tensors differ"));
}

TEST_P(Mismatches, OfShapesAreNamed) {
  spawn(3, [] {
    differ(3);
    differ(30'000);
    Tensor x = ones({4});  // and all goes on
    all_reduce(x);
    EXPECT_EQ(x[3].item<double>(), 3);
  });
}

// What is no mismatch: shapes that lists say, and results in one tensor of another shape.
TEST_P(Mismatches, ShapesMayDifferWhereTheCallsSaySo) {
  spawn(3, [] {
    int me = rank();
    auto shape = [](int r) { return r == 1 ? Shape{3, 2} : Shape{2, 3}; };
    TensorList parts{zeros(shape(0)), zeros(shape(1)), zeros(shape(2))};
    all_gather(parts, full(shape(me), me, {f32}));
    for (int r = 0; r < 3; ++r) EXPECT_TRUE(equal(parts[static_cast<size_t>(r)], full(shape(r), r, {f32})));
    TensorList out{zeros(shape(me)), zeros(shape(me)), zeros(shape(me))};
    all_to_all(out, {full(shape(0), me, {f32}), full(shape(1), me, {f32}), full(shape(2), me, {f32})});
    EXPECT_TRUE(equal(out[2], full(shape(me), 2, {f32})));
    Tensor flat = zeros({18}), stacked = zeros({3, 2, 3}), scalars = zeros({3});
    all_gather(flat, full({2, 3}, me, {f32}));
    all_gather(stacked, full({2, 3}, me, {f32}));
    all_gather(scalars, full({}, me, {f32}));
    EXPECT_TRUE(equal(flat, stacked.reshape({18})));
    EXPECT_TRUE(equal(scalars, arange(3).to(f32)));
    TensorList mine{zeros({6})};
    reduce_scatter(mine[0], list_of(3, {2, 3}));
    EXPECT_TRUE(equal(mine[0], full({6}, 3, {f32})));
  });
}

TEST_P(Mismatches, OfMessagesAreNamed) {
  spawn(2, [] {
    for (int64_t k : {3, 100'000}) {  // short ones are on their way before anybody can say that they do not fit
      Tensor sent = ones({2, k}), taken = zeros({k, 2}), other = zeros({2, k}, {i32});
      auto fits = AllOf(
          HasSubstr("rank 0 sent send(f32[2, " + std::to_string(k) + "]) at mismatch_test.cpp:"),
          HasSubstr("but rank 1 takes another shape by recv(f32[" + std::to_string(k) + ", 2]) at mismatch_test.cpp:"));
      if (rank() == 0) {
        auto expect_told = [&](const auto& says) {
          try {
            send(sent, 1);
            EXPECT_LE(sent.numel(), 16'384) << "a long message has its sender wait for who takes it";
          } catch (const MismatchError& e) {
            EXPECT_THAT(e.what(), says);
          }
        };
        expect_told(fits);
        expect_told(HasSubstr("of i32 by recv(i32[2, " + std::to_string(k) + "])"));
        send(sent, 1);
      } else {
        EXPECT_THAT(message_of<MismatchError>([&] { recv(taken, 0); }), fits);
        EXPECT_THAT(message_of<MismatchError>([&] { recv(other, 0); }),
                    HasSubstr("elements of f32 by send(f32[2, " + std::to_string(k) + "])"));
        recv(taken.view({2, k}), 0);  // and all goes on
        EXPECT_TRUE(equal(taken, ones({k, 2})));
      }
    }
  });
}

}  // namespace
}  // namespace tutti
