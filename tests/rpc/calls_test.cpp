// Calls: the same bodies on threads, on processes of a host, and on hosts.
#include <gtest/gtest.h>

#include <deque>
#include <list>
#include <set>
#include <unordered_set>

#include "tests/rpc/support.h"

namespace tutti::test::of_calls {  // functions that are called have names of their own
namespace {

class RpcCalls : public Rpc {};
INSTANTIATE_TEST_SUITE_P(Ways, RpcCalls, every_way(), testing::PrintToStringParamName());

// ---- What is called

int64_t add(int64_t a, int64_t b) { return a + b; }
std::string who() { return rpc::this_worker().name + " for " + rpc::caller().name; }
void nothing() {}

enum class Colour : uint8_t { red, green };
struct Part {
  std::string name;
  std::vector<Tensor> tensors;
  std::optional<int> number;
  TUTTI_FIELDS(name, tensors, number)
};
struct Whole {
  std::map<std::string, Part> parts;
  std::unordered_map<int, std::string> names;
  std::variant<int, std::string, Tensor> either;
  std::tuple<double, std::complex<float>, Colour> tuple;
  std::array<int16_t, 3> array{};
  std::vector<bool> flags;
  Shape shape;
  std::pair<DType, Device> kind;
  std::vector<double> plain;
  std::set<std::string> set;
  std::unordered_set<int> unordered;
  std::deque<Tensor> deque;
  std::list<std::pair<int, std::string>> list;
  TUTTI_FIELDS(parts, names, either, tuple, array, flags, shape, kind, plain, set, unordered, deque, list)
};
Whole echo(Whole whole) { return whole; }
Tensor echo_tensor(const Tensor& t) { return t; }
Tensor write_into(Tensor t) { return t.fill_(7); }
bool requires_grad(const Tensor& t) { return t.requires_grad(); }

TEST_P(RpcCalls, CallsFunctions) {
  drive(3, [] {
    EXPECT_EQ(rpc::sync<&add>("worker1", 40, 2), 42);
    EXPECT_EQ(rpc::sync<&add>(2, 40, int8_t{3}), 43);
    EXPECT_EQ(rpc::sync<&add>("worker0", 1, 2), 3);  // itself
    EXPECT_EQ(rpc::sync<&who>("worker2"), "worker2 for worker0");
    rpc::sync<&nothing>("worker1");
    EXPECT_EQ(rpc::async<&add>("worker1", 1, 1).wait(), 2);
  });
}

TEST_P(RpcCalls, EveryoneCallsEveryone) {
  run(4, [](rpc::Session& session) {
    std::vector<rpc::Future<int64_t>> sums;
    for (int i = 0; i < 200; ++i)
      for (const rpc::Worker& w : session.workers()) sums.push_back(rpc::async<&add>(w, i, w.rank));
    auto values = rpc::all(sums).wait();
    for (int i = 0; i < 200; ++i)
      for (int r = 0; r < 4; ++r) EXPECT_EQ(values[static_cast<size_t>(i * 4 + r)], i + r);
  });
}

TEST_P(RpcCalls, ValuesArriveAsTheyWere) {
  drive(2, [] {
    Whole w;
    w.parts["a"] = {"first", {ones({2, 3}), Tensor(), arange(5)}, 3};
    w.parts["b"] = {std::string("\0\xff", 2), {}, {}};
    w.names = {{1, "one"}, {2, ""}};
    w.either = std::string("text");
    w.tuple = {0.1, {1, -2}, Colour::green};
    w.array = {1, -2, 3};
    w.flags = {true, false, true};
    w.shape = {4, 5};
    w.kind = {bf16, "cpu"};
    w.plain = {1.5, -0.0};
    w.set = {"b", "a"};
    w.unordered = {3, 1, 2};
    w.deque = {ones({2}), zeros({1})};
    w.list = {{1, "one"}, {0, "none"}};
    Whole got = rpc::sync<&echo>("worker1", w);
    EXPECT_EQ(got.parts["a"].name, "first");
    ASSERT_EQ(got.parts["a"].tensors.size(), 3u);
    EXPECT_TRUE(got.parts["a"].tensors[0].equal(ones({2, 3})));
    EXPECT_FALSE(got.parts["a"].tensors[1].defined());
    EXPECT_TRUE(got.parts["a"].tensors[2].equal(arange(5)));
    EXPECT_EQ(got.parts["a"].number, 3);
    EXPECT_EQ(got.parts["b"].name, std::string("\0\xff", 2));
    EXPECT_FALSE(got.parts["b"].number);
    EXPECT_EQ(got.names, w.names);
    EXPECT_EQ(std::get<std::string>(got.either), "text");
    EXPECT_EQ(got.tuple, w.tuple);
    EXPECT_EQ(got.array, w.array);
    EXPECT_EQ(got.flags, w.flags);
    EXPECT_EQ(got.shape, w.shape);
    EXPECT_EQ(got.kind, w.kind);
    EXPECT_EQ(got.plain, w.plain);
    EXPECT_EQ(got.set, w.set);
    EXPECT_EQ(got.unordered, w.unordered);
    ASSERT_EQ(got.deque.size(), 2u);
    EXPECT_TRUE(got.deque[0].equal(ones({2})));
    EXPECT_TRUE(got.deque[1].equal(zeros({1})));
    EXPECT_EQ(got.list, w.list);
    w.either = full({2}, 3.0);
    EXPECT_TRUE(std::get<Tensor>(rpc::sync<&echo>("worker1", w).either).equal(full({2}, 3.0)));
  });
}

TEST_P(RpcCalls, TensorsOfAllKinds) {
  drive(2, [] {
    auto there_and_back = [](const Tensor& t) { return rpc::sync<&echo_tensor>("worker1", t); };
    for (DType d : {f32, f64, bf16, f16, i8, u8, i16, i32, i64, boolean, c64, c128}) {
      Tensor t = arange(24).to(d).view({2, 3, 4});
      Tensor got = there_and_back(t);
      EXPECT_EQ(got.dtype(), d);
      EXPECT_TRUE(got.equal(t)) << d;
    }
    Tensor strided = arange(24).view({4, 6}).t().slice(0, 1, 5, 2);
    EXPECT_TRUE(there_and_back(strided).equal(strided));
    Tensor last = arange(120.0).view({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last);
    EXPECT_TRUE(there_and_back(last).is_contiguous(MemoryFormat::channels_last));
    EXPECT_TRUE(there_and_back(last).equal(last));
    EXPECT_TRUE(there_and_back(zeros({0, 3})).sizes() == Shape({0, 3}));
    Tensor large = arange(3'000'000.0);  // too large to be sent at once
    EXPECT_TRUE(there_and_back(large).equal(large));
    Tensor meta = empty({5, 6}, {.dtype = f64, .device = Device("meta")});
    EXPECT_EQ(there_and_back(meta).sizes(), Shape({5, 6}));
    EXPECT_TRUE(there_and_back(meta).device().is_meta());
    Tensor number(2.5);
    EXPECT_TRUE(there_and_back(number).is_number());
    EXPECT_EQ((there_and_back(number) * ones({1}, {.dtype = f16})).dtype(), f16);
    Tensor sparse = sparse_coo(tensor({1, 3, 1}).view({1, 3}), tensor({1.0, 2.0, 3.0}), {5});
    EXPECT_FALSE(there_and_back(sparse).is_coalesced());
    EXPECT_TRUE(there_and_back(sparse).to_dense().equal(sparse.to_dense()));
    EXPECT_TRUE(there_and_back(sparse.coalesce()).is_coalesced());
    EXPECT_TRUE(there_and_back(sparse.coalesce()).to_dense().equal(sparse.to_dense()));
  });
}

// A worker owns what it was given, even where it is a thread of the same process.
TEST_P(RpcCalls, WhatIsGivenIsACopy) {
  drive(2, [] {
    Tensor mine = zeros({3});
    Tensor got = rpc::sync<&write_into>("worker1", mine);
    EXPECT_TRUE(got.equal(full({3}, 7.0)));
    EXPECT_TRUE(mine.equal(zeros({3})));
    Tensor learned = ones({2}, {.requires_grad = true});
    EXPECT_FALSE(rpc::sync<&requires_grad>("worker1", learned));
    EXPECT_FALSE(rpc::sync<&echo_tensor>("worker1", learned * 2).requires_grad());
  });
}

// ---- Errors

struct Odd {};
int throws(int kind) {
  if (kind == 0) throw ShapeError("sizes differ", "my_operation");
  if (kind == 1) throw std::out_of_range("beyond");
  if (kind == 2) throw Odd();
  if (kind == 3) (void)matmul(ones({2, 3}), ones({2, 3}));
  return rpc::sync<&throws>(next_worker(), 1);
}

TEST_P(RpcCalls, ErrorsArriveWithTypeTextWorkerAndLine) {
  drive(3, [] {
    std::string text = text_of_error<ShapeError>([] { rpc::sync<&throws>("worker1", 0); });
    std::string line = std::to_string(__LINE__ - 1);
    EXPECT_NE(text.find("sizes differ"), std::string::npos) << text;
    EXPECT_NE(text.find("'worker1'"), std::string::npos) << text;
    EXPECT_NE(text.find("throws"), std::string::npos) << text;
    EXPECT_NE(text.find("calls_test.cpp:" + line), std::string::npos) << text;
    text = text_of_error<rpc::RemoteError>([] { rpc::sync<&throws>("worker1", 1); });
    EXPECT_NE(text.find("std::out_of_range: beyond"), std::string::npos) << text;
    text = text_of_error<rpc::RemoteError>([] { rpc::sync<&throws>("worker1", 2); });
    EXPECT_NE(text.find("Odd"), std::string::npos) << text;
    for (int kind : {1, 4}) try {  // from there, and by way of a third worker
        rpc::sync<&throws>("worker1", kind);
        ADD_FAILURE() << "no error";
      } catch (const rpc::RemoteError& e) {
        EXPECT_EQ(e.type(), "std::out_of_range");
      }
    text_of_error<ShapeError>([] { rpc::sync<&throws>("worker0", 3); });
    // By way of a third worker it keeps its class.
    text = text_of_error<rpc::RemoteError>([] { rpc::sync<&throws>("worker1", 4); });
    EXPECT_NE(text.find("'worker2'"), std::string::npos) << text;
    try {
      rpc::sync<&throws>("worker2", 0);
    } catch (const ShapeError& e) {
      EXPECT_EQ(e.rank(), 2);
    }
    auto later = rpc::async<&throws>("worker1", 0);
    EXPECT_THROW(later.wait(), ShapeError);
    EXPECT_THROW(later.wait(), ShapeError);
    EXPECT_TRUE(later.exception() != nullptr);
  });
}

// Methods of objects as well: the line of the call, not only that of the object.
struct Thrower {
  int plain() const { return throws(1); }
  int with(int kind, const std::string& /*text*/) { return throws(kind); }
  int64_t many(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e, int64_t f, int64_t g) const {
    if (g < 0) throw ValueError("negative");
    return a + b + c + d + e + f + g;
  }
};

TEST_P(RpcCalls, ErrorsOfMethodsNameTheirLine) {
  drive(2, [] {
    auto thrower = rpc::remote<Thrower>("worker1");
    std::string made = ":" + std::to_string(__LINE__ - 1);
    auto check = [&](const std::string& text, int line) {
      EXPECT_NE(text.find("calls_test.cpp:" + std::to_string(line)), std::string::npos) << text;
      EXPECT_NE(text.find(made), std::string::npos) << text;
      EXPECT_NE(text.find("'worker1', tutti::test::of_calls::"), std::string::npos) << text;
      EXPECT_NE(text.find("::Thrower::"), std::string::npos) << text;
    };
    check(text_of_error<rpc::RemoteError>([&] { thrower.call<&Thrower::plain>(); }), __LINE__);
    check(text_of_error<ShapeError>([&] { thrower.call<&Thrower::with>(0, "x"); }), __LINE__);
    check(text_of_error<rpc::RemoteError>([&] { thrower.async<&Thrower::plain>().wait(); }), __LINE__);
    check(text_of_error<ShapeError>([&] { thrower.within(5s).async<&Thrower::with>(0, "x").wait(); }), __LINE__);
    // More arguments than have overloads: the object's line is what is left.
    EXPECT_EQ(thrower.call<&Thrower::many>(1, 2, 3, 4, 5, 6, 7), 28);
    EXPECT_EQ(thrower.async<&Thrower::many>(1, 2, 3, 4, 5, 6, 8).wait(), 29);
    std::string text = text_of_error<ValueError>([&] { thrower.call<&Thrower::many>(1, 2, 3, 4, 5, 6, -7); });
    EXPECT_NE(text.find(made), std::string::npos) << text;
  });
}

TEST_P(RpcCalls, ASecondSessionIsAnErrorAtOnce) {
  drive(2, [] {  // of one rank alone: nobody else comes, and nobody is waited for
    std::string text = text_of_error<ValueError>([] { rpc::Session second({.name = "other"}); });
    EXPECT_NE(text.find("has a session already, as worker 'worker0'"), std::string::npos) << text;
    EXPECT_EQ(rpc::sync<&add>("worker1", 1, 2), 3);
  });
}

TEST_P(RpcCalls, WrongUseSaysWhatToDo) {
  EXPECT_THROW(rpc::sync<&nothing>("worker0"), ValueError);  // no session
  drive(2, [] {
    std::string text = text_of_error<ValueError>([] { rpc::sync<&nothing>("worker7"); });
    EXPECT_NE(text.find("there are: worker0 (rank 0), worker1 (rank 1)"), std::string::npos) << text;
    text = text_of_error<ValueError>([] { rpc::sync<&nothing>(5); });
    EXPECT_NE(text.find("no worker of rank 5"), std::string::npos) << text;
    EXPECT_NE(text.find("calls_test.cpp"), std::string::npos) << text;
    text = text_of_error<ValueError>([] { (void)rpc::RemoteRef<Thrower>().call<&Thrower::plain>(); });
    EXPECT_NE(text.find("rpc::remote"), std::string::npos) << text;
  });
}

TEST_P(RpcCalls, TwoWorkersOfOneNameAreAnError) {
  try {
    GetParam().spawn(3, [] { rpc::Session session({.name = rank() == 1 ? "a" : "same"}); }, {});
    ADD_FAILURE() << "no error";
  } catch (const MismatchError& e) {
    EXPECT_NE(std::string(e.what()).find("ranks 0 and 2 both have the name 'same'"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace tutti::test::of_calls
