// Object collectives, sparse all_reduce, batched messages, monitored barriers, groups by host.
#include <atomic>
#include <cmath>
#include <limits>
#include <sstream>
#include <thread>

#include "tests/support/expect.h"
#include "tutti/comm.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using namespace test;  // NOLINT

struct Inner {
  double weight = 0;
  std::vector<std::string> names;
  TUTTI_FIELDS(weight, names)
};
struct Sample {
  int64_t id = 0;
  bool flag = false;
  std::string text;
  Tensor data;
  std::vector<Inner> inner;
  std::map<std::string, double> table;
  TUTTI_FIELDS(id, flag, text, data, inner, table)
};

Sample sample_of(int rank) {
  Sample s;
  s.id = rank;
  s.flag = rank % 2;
  s.text = std::string(static_cast<size_t>(rank) * 1000, 'x') + "ü";
  s.data = full({rank, 2}, rank, {.dtype = rank % 2 ? f32 : i64});  // nothing on rank 0
  for (int i = 0; i < rank; ++i) s.inner.push_back({i + 0.5, {"a", std::to_string(i)}});
  s.table["pi"] = rank == 0 ? std::numeric_limits<double>::infinity() : 3.14 * rank;
  return s;
}
void expect_sample(const Sample& s, int rank) {
  Sample wanted = sample_of(rank);
  EXPECT_EQ(s.id, wanted.id);
  EXPECT_EQ(s.flag, wanted.flag);
  EXPECT_EQ(s.text, wanted.text);
  EXPECT_TRUE(equal(s.data, wanted.data));
  ASSERT_EQ(s.inner.size(), wanted.inner.size());
  for (size_t i = 0; i < s.inner.size(); ++i) {
    EXPECT_EQ(s.inner[i].weight, wanted.inner[i].weight);
    EXPECT_EQ(s.inner[i].names, wanted.inner[i].names);
  }
  EXPECT_EQ(s.table, wanted.table);
}

class Objects : public testing::TestWithParam<int> {
 protected:
  int n = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Worlds, Objects, testing::Values(1, 2, 3, 4, 8));

TEST_P(Objects, BroadcastFromEachRoot) {
  spawn_ranks(n, [&] {
    for (int root = 0; root < n; ++root) {
      Sample s = sample_of(rank());
      broadcast_object(s, {.root = root});
      expect_sample(s, root);
    }
    std::string text = rank() == 0 ? "" : "old";
    broadcast_object(text);
    EXPECT_EQ(text, "");
    io::ValueList list;
    if (rank() == n - 1) list = {1, 2.5, "three", tensor({4.0}), io::ValueList{true}};
    broadcast_object(list, {.root = n - 1});
    ASSERT_EQ(list.size(), 5u);
    EXPECT_EQ(list[2].as<std::string>(), "three");
    EXPECT_EQ(list[3].as<Tensor>().item<double>(), 4);
    io::Value value = rank();
    broadcast_object(value, {.root = n / 2});
    EXPECT_EQ(value.as<int64_t>(), n / 2);
  });
}

TEST_P(Objects, GatherAndScatter) {
  spawn_ranks(n, [&] {
    auto all = all_gather_object(sample_of(rank()));
    ASSERT_EQ(all.size(), static_cast<size_t>(n));
    for (int k = 0; k < n; ++k) expect_sample(all[static_cast<size_t>(k)], k);
    for (int root : {0, n - 1}) {
      auto some = gather_object(std::vector<int>(static_cast<size_t>(rank()), rank()), {.root = root});
      EXPECT_EQ(some.size(), rank() == root ? static_cast<size_t>(n) : 0);
      for (size_t k = 0; k < some.size(); ++k) EXPECT_EQ(some[k], std::vector<int>(k, static_cast<int>(k)));
      std::vector<Sample> parts;
      if (rank() == root)
        for (int k = 0; k < n; ++k) parts.push_back(sample_of(n - k));
      expect_sample(scatter_object(parts, {.root = root}), n - rank());
    }
    EXPECT_EQ(all_gather_object(2.5f * static_cast<float>(rank())).back(), 2.5f * static_cast<float>(n - 1));
    Group half = world().split(rank() % 2);
    EXPECT_EQ(all_gather_object(rank(), {.group = half}).size(), static_cast<size_t>(half.size()));
  });
}

enum class Colour : uint8_t { red, green };
struct Everything {
  Colour colour = Colour::red;
  char letter = 0;
  uint64_t large = 0;
  float real = 0;
  std::complex<float> complex;
  std::string bytes;
  Shape shape;
  std::pair<int, std::string> pair;
  std::tuple<bool, Tensor, std::vector<bool>> tuple;
  std::array<int16_t, 3> array = {};
  std::optional<std::vector<int>> some, none;
  std::variant<int, std::string, Inner> variant;
  std::map<int, std::vector<Inner>> map;
  std::unordered_map<std::string, int> hashed;
  DType dtype = f32;
  TUTTI_FIELDS(colour, letter, large, real, complex, bytes, shape, pair, tuple, array, some, none, variant, map, hashed,
               dtype)
};

TEST_P(Objects, EveryKindOfValue) {
  spawn_ranks(n, [&] {
    Everything e;
    if (rank() == n - 1) {
      e.colour = Colour::green;
      e.letter = 'x';
      e.large = std::numeric_limits<uint64_t>::max();
      e.real = 0.1f;
      e.complex = {1.5f, -0.25f};
      e.bytes = std::string("\0\xff\x80 text", 8);
      e.shape = {2, 0, 3};
      e.pair = {-7, "seven"};
      e.tuple = {true, tensor({1.5, 2.5}), {true, false, true}};
      e.array = {1, -2, 3};
      e.some = std::vector<int>{4, 5};
      e.none = std::nullopt;
      e.variant = Inner{0.5, {"a"}};
      e.map[-3] = {Inner{1, {}}, Inner{2, {"b", "c"}}};
      e.hashed = {{"one", 1}, {"two", 2}};
      e.dtype = DType::bf16;
    }
    broadcast_object(e, {.root = n - 1});
    EXPECT_EQ(e.colour, Colour::green);
    EXPECT_EQ(e.letter, 'x');
    EXPECT_EQ(e.large, std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(e.real, 0.1f);
    EXPECT_EQ(e.complex, std::complex<float>(1.5f, -0.25f));
    EXPECT_EQ(e.bytes, std::string("\0\xff\x80 text", 8));
    EXPECT_EQ(e.shape, Shape({2, 0, 3}));
    EXPECT_EQ(e.pair, std::make_pair(-7, std::string("seven")));
    EXPECT_TRUE(std::get<0>(e.tuple));
    EXPECT_TRUE(equal(std::get<1>(e.tuple), tensor({1.5, 2.5})));
    EXPECT_EQ(std::get<2>(e.tuple), (std::vector<bool>{true, false, true}));
    EXPECT_EQ(e.array, (std::array<int16_t, 3>{1, -2, 3}));
    EXPECT_EQ(e.some, (std::vector<int>{4, 5}));
    EXPECT_FALSE(e.none);
    ASSERT_EQ(e.variant.index(), 2u);
    EXPECT_EQ(std::get<2>(e.variant).names[0], "a");
    EXPECT_EQ(e.map.at(-3)[1].names[1], "c");
    EXPECT_EQ(e.hashed.at("two"), 2);
    EXPECT_EQ(e.dtype, DType::bf16);
  });
}

TEST_P(Objects, AsynchronousFormsOfParts) {
  spawn_ranks(n, [&] {
    Shape rows;
    for (int k = 0; k < n; ++k) rows.push_back((rank() + k) % 3);
    int64_t total = 0;
    for (int64_t r : rows) total += r;
    Tensor x = full({total, 2}, rank(), {f32}), y = zeros({total, 2}), even = zeros({n});
    Work first = all_to_all_async(y, x, rows, rows), second = all_to_all_async(even, full({n}, rank(), {f32}));
    second.wait();
    first.wait();
    int64_t at = 0;
    for (int k = 0; k < n; at += rows[static_cast<size_t>(k++)])
      EXPECT_TRUE(
          equal(y.narrow(0, at, rows[static_cast<size_t>(k)]), full({rows[static_cast<size_t>(k)], 2}, k, {f32})));
    EXPECT_TRUE(equal(even, arange(n).to(f32)));
  });
}

TEST(ObjectErrors, ValuesThatDoNotFit) {
  auto as = [](const auto& from, auto to) {
    return message_of<FileError>(
        [&] { detail::object_from_bytes<decltype(to)>(detail::object_to_bytes(from), "here"); });
  };
  EXPECT_THAT(as(300, uint8_t{}), HasSubstr("a smaller integer than 300 is wanted"));
  EXPECT_THAT(as(-1, uint32_t{}), HasSubstr("a smaller integer than -1 is wanted"));
  EXPECT_THAT(as(std::vector<int>{1, 2}, std::array<int, 3>{}), HasSubstr("a list of 3 is wanted and one of 2"));
  EXPECT_THAT(as(std::pair(1, 2), std::tuple<int, int, int>{}), HasSubstr("a list of 3 is wanted"));
  EXPECT_THAT(as(std::pair(5, 2), std::variant<int, bool>{}), HasSubstr("one of 2 kinds is wanted"));
  EXPECT_THAT(as(tensor({1.5}), std::string()), HasSubstr("a string is wanted and f"));
  EXPECT_THAT(as(1.5, 1), HasSubstr("an integer is wanted"));
  EXPECT_THAT(as(std::vector<int>{1, 2}, std::optional<int>{}), HasSubstr("a list of 1 is wanted"));
}

TEST_P(Objects, ManyTensorsAreBroadcastInOneCall) {
  spawn_ranks(n, [&] {
    for (int root = 0; root < n; ++root) {
      TensorList xs{full({3}, rank(), {f32}), full({0}, 1, {f32}), full({4, 2}, rank(), {f32}).t()};
      broadcast(xs, {.root = root});
      EXPECT_TRUE(equal(xs[0], full({3}, root, {f32})));
      EXPECT_TRUE(equal(xs[2], full({2, 4}, root, {f32})));
      broadcast_async(xs, {.root = root}).wait();
    }
    broadcast(TensorList{});
    if (n > 1) {
      EXPECT_THROW(broadcast(TensorList(rank() ? 1 : 2, ones({1}))), MismatchError);
    }
  });
}

TEST(ObjectErrors, AnotherTypeIsAnError) {
  struct Other {
    int64_t other = 0;
    TUTTI_FIELDS(other)
  };
  spawn_ranks(2, [] {
    if (rank() == 0) {
      Inner inner{1, {}};
      broadcast_object(inner);
    } else {
      Other other;
      EXPECT_THAT(message_of<MismatchError>([&] { broadcast_object(other); }), HasSubstr("takes "));
    }
    int64_t number = 3;
    std::string text;
    if (rank() == 0)
      broadcast_object(number);
    else
      EXPECT_THROW(broadcast_object(text), MismatchError);
    EXPECT_THROW(scatter_object(std::vector<int>{1}, {.root = rank()}), Error);  // too few
  });
}

TEST(ObjectErrors, MalformedBytesAreErrors) {
  std::string good = detail::object_to_bytes(sample_of(2));
  EXPECT_EQ(detail::object_from_bytes<Sample>(good, "here").id, 2);
  for (size_t length : {size_t{0}, size_t{7}, good.size() / 2, good.size() - 1})
    EXPECT_THROW(detail::object_from_bytes<Sample>(good.substr(0, length), "here"), FileError) << length;
  EXPECT_THROW(detail::object_from_bytes<Sample>(std::string(100, '\xff'), "here"), FileError);
  EXPECT_THAT(message_of<FileError>([] { detail::object_from_bytes<int>("garbage", "the object of rank 3"); }),
              HasSubstr("the object of rank 3"));
}

// ---- Sparse

TEST_P(Objects, SparseAllReduceHasTheBitsOfTheDenseOne) {
  spawn_ranks(n, [&] {
    for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i64, DType::c64})
      for (Reduce op : {Reduce::sum, Reduce::average}) {
        if (op == Reduce::average && dtype == DType::i64) continue;
        int nnz = rank() * 3;                      // nothing on rank 0
        Tensor indices = randint(0, 5, {2, nnz});  // with duplicates
        Tensor values = (randn({nnz, 3}, {f64}) * 100).to(dtype);
        Tensor x = sparse_coo(indices, values, {5, 5, 3}), dense = to_dense(coalesce(x));
        all_reduce(x, {.op = op});
        all_reduce(dense, {.op = op});
        EXPECT_TRUE(x.is_sparse());
        EXPECT_TRUE(x.is_coalesced());
        EXPECT_TRUE(equal(to_dense(x), dense)) << describe(x);
        Tensor root = x.indices().clone();
        broadcast(root);
        EXPECT_TRUE(equal(root, x.indices()));
      }
  });
}

TEST_P(Objects, SparseAllReduceForms) {
  spawn_ranks(n, [&] {
    Tensor all_empty = sparse_coo(zeros({1, 0}, {i64}), zeros({0}), {4});
    all_reduce(all_empty);
    EXPECT_EQ(all_empty.values().numel(), 0);
    EXPECT_EQ(all_empty.sizes(), Shape{4});

    Tensor one = sparse_coo(full({1, 1}, rank() % 3), ones({1}, {f64}), {3});
    Tensor copy = one, dense = full({2}, rank(), {f32});
    all_reduce(TensorList{one, dense, one}, {.factor = 2});
    EXPECT_TRUE(copy.is_coalesced());  // every copy of the handle sees it
    double n_zero = (n + 2) / 3;
    EXPECT_EQ(to_dense(one)[0].item<double>(), n_zero * 2 * 2 * n);
    EXPECT_EQ(dense[0].item<double>(), n * (n - 1));

    Tensor weighted = sparse_coo(zeros({1, 1}, {i64}), full({1}, rank(), {f64}), {2});
    all_reduce(weighted, {.op = Reduce::average, .weight = rank() + 1.0});
    double rows = 0, sum = 0;
    for (int k = 0; k < n; ++k) rows += k + 1, sum += (k + 1) * k;
    EXPECT_NEAR(weighted.values()[0].item<double>(), sum / rows, 1e-12);
  });
}

TEST(SparseErrors, AreClear) {
  spawn_ranks(3, [] {
    Tensor x = sparse_coo(zeros({1, 1}, {i64}), ones({1}), {4});
    auto text = [](auto f) { return message_of<Error>(f); };
    EXPECT_THAT(text([&] { all_reduce(x, {.op = Reduce::max}); }), HasSubstr("sparse tensors are summed or averaged"));
    EXPECT_THAT(text([&] { broadcast(x); }),
                HasSubstr("broadcast: sparse f32[4] on cpu:0 is sparse, which only all_reduce takes"));
    EXPECT_THAT(text([&] { reduce_async(x); }), HasSubstr("is sparse, which only all_reduce takes"));
    EXPECT_THAT(text([&] { send(x, 0); }), HasSubstr("is sparse"));
    Tensor other = sparse_coo(zeros({1, 1}, {i64}), ones({1}), {rank() == 2 ? 5 : 4});
    EXPECT_THAT(message_of<MismatchError>([&] { all_reduce(other); }), HasSubstr("is of another shape than rank"));
    Tensor mixed = rank() == 2 ? ones({4}) : x;
    EXPECT_THROW(all_reduce(mixed), MismatchError);
    Tensor grad = x.clone().requires_grad_();
    EXPECT_THROW(all_reduce(grad), GradError);
    barrier();
  });
}

// ---- Messages

TEST_P(Objects, BatchedMessagesInAnyOrder) {
  spawn_ranks(n, [&] {
    int me = rank();
    for (int64_t size : {1, 100'000}) {  // small ones are left lying, large ones wait for their receiver
      std::vector<Message> messages;
      TensorList in;
      for (int k = 0; k < n; ++k) {
        in.push_back(zeros({size}, {f32}));
        Message out = send_op(full({size}, me * 100 + k, {f32}), k), take = recv_op(in.back(), k);
        // Some list sends first, some receives first, some the other way round.
        messages.insert(me % 2 ? messages.end() : messages.begin(), me % 3 ? out : take);
        messages.insert(me % 2 ? messages.begin() : messages.end(), me % 3 ? take : out);
      }
      auto works = batch_messages(messages);
      ASSERT_EQ(works.size(), static_cast<size_t>(2 * n));
      for (size_t i = 0; i < works.size(); ++i) {
        works[i].wait();
        if (!messages[i].sends) {
          EXPECT_EQ(works[i].source(), messages[i].peer);
        }
      }
      for (int k = 0; k < n; ++k) EXPECT_TRUE(equal(in[static_cast<size_t>(k)], full({size}, k * 100 + me, {f32})));
    }
    EXPECT_TRUE(batch_messages({}).empty());
    EXPECT_THROW(batch_messages({send_op(ones({1}), 0, {.tag = 9}), send_op(ones({1}), n)}), ValueError);
    EXPECT_THROW(batch_messages({send_op(ones({1}), -1)}), ValueError);
    EXPECT_THROW(batch_messages({recv_op(Tensor(), 0)}), ValueError);
  });
}

TEST_P(Objects, MessagesOfOneTagKeepTheirOrder) {
  spawn_ranks(n, [&] {
    int next = (rank() + 1) % n, last = (rank() + n - 1) % n;
    std::vector<Message> messages;
    TensorList in;
    for (int i = 0; i < 20; ++i) {
      in.push_back(zeros({i}, {i64}));
      messages.push_back(send_op(full({i}, i), next, {.tag = 3}));
      messages.push_back(recv_op(in.back(), last, {.tag = 3}));
    }
    for (Work& w : batch_messages(messages)) w.wait();
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(equal(in[static_cast<size_t>(i)], full({i}, i)));
  });
}

TEST_P(Objects, AnySourceGetsEveryMessageOnce) {
  spawn_ranks(n, [&] {
    constexpr int kEach = 5;
    std::vector<Work> sends;
    for (int i = 0; i < kEach; ++i)
      if (rank() != 0) sends.push_back(send_async(tensor({rank(), i}), 0, {.tag = 1}));
    if (rank() == 0) {
      std::vector<int> next(static_cast<size_t>(n), 0);
      std::vector<Work> works;
      TensorList in;
      for (int i = 0; i < kEach * (n - 1); ++i) {
        in.push_back(zeros({2}, {i64}));
        works.push_back(recv_async(in.back(), -1, {.tag = 1}));
      }
      for (size_t i = 0; i < works.size(); ++i) {
        works[i].wait();
        int from = works[i].source();
        EXPECT_EQ(in[i][0].item<int>(), from);
        EXPECT_EQ(in[i][1].item<int>(), next[static_cast<size_t>(from)]++);  // in the order they were sent
      }
      for (int k = 1; k < n; ++k) EXPECT_EQ(next[static_cast<size_t>(k)], kEach);
    }
    for (Work& w : sends) w.wait();
  });
}

TEST(Messages, AsynchronousOnes) {
  spawn_ranks(2, [] {
    int peer = 1 - rank();
    Tensor in = zeros({4, 6}), out = full({6, 4}, rank() + 1, {f32});
    Work take = recv_async(in.t(), peer);  // not contiguous
    EXPECT_FALSE(take.wait_for(1ms));
    EXPECT_FALSE(take.done());
    barrier();
    std::atomic<bool> called = false;
    take.then([&] { called = true; });
    Work give = send_async(out, peer);
    take.wait();
    give.wait();
    EXPECT_TRUE(called);
    EXPECT_TRUE(equal(in, full({4, 6}, peer + 1, {f32})));
    // Every dtype, and nothing at all.
    for (DType dtype : {DType::bf16, DType::f16, DType::i8, DType::boolean, DType::c128}) {
      Tensor x = zeros({3}, {.dtype = dtype});
      auto works = batch_messages({recv_op(x, peer), send_op(ones({3}, {.dtype = dtype}), peer)});
      for (Work& w : works) w.wait();
      EXPECT_TRUE(equal(x, ones({3}, {.dtype = dtype})));
    }
    for (Work& w : batch_messages({recv_op(zeros({0}), peer), send_op(zeros({0}), peer)})) w.wait();
  });
}

// ---- Barriers

TEST_P(Objects, MonitoredBarrierSaysWhoIsSlow) {
  spawn_ranks(n, [&] {
    int slow = n - 1;
    for (int round = 0; round < 2; ++round) {
      barrier();
      if (rank() == slow) std::this_thread::sleep_for(200ms);
      Arrivals a = monitored_barrier({.timeout = 30s});
      ASSERT_EQ(a.seconds.size(), static_cast<size_t>(n));
      if (n == 1) continue;
      EXPECT_EQ(a.last, slow);
      EXPECT_GT(a.skew, 0.1);
      EXPECT_EQ(a.skew, a.seconds[static_cast<size_t>(slow)]);
      EXPECT_EQ(*std::min_element(a.seconds.begin(), a.seconds.end()), 0);
    }
  });
}

// Who is late waits for those who give up, so that a busy machine changes nothing.
TEST(MonitoredBarrier, NamesAllWhoDidNotCome) {
  std::atomic<int> gave_up = 0;
  spawn_ranks(5, [&] {
    bool late = rank() == 2 || rank() == 4;
    while (late && gave_up < 3) std::this_thread::sleep_for(1ms);
    auto text = message_of<TimeoutError>([] { monitored_barrier({.timeout = 500ms}); });
    EXPECT_THAT(text, testing::StartsWith("[rank " + std::to_string(rank()) +
                                          "] monitored_barrier: ranks 2, 4 did not come within 0.5 s" +
                                          (late ? "; this one came later" : "") + " (at objects_test.cpp:"));
    ++gave_up;
    // The group goes on: the next one is not confused by what was left.
    EXPECT_EQ(monitored_barrier({.timeout = 30s}).seconds.size(), 5u);
    Tensor x = ones({1});
    all_reduce(x);
    EXPECT_EQ(x.item<double>(), 5);
  });
  EXPECT_EQ(gave_up, 5);
}

TEST(MonitoredBarrier, TheFirstRankCanBeLateToo) {
  std::atomic<int> gave_up = 0;
  spawn_ranks(3, [&] {
    while (rank() == 0 && gave_up < 2) std::this_thread::sleep_for(1ms);
    EXPECT_THAT(message_of<TimeoutError>([] { monitored_barrier({.timeout = 50ms}); }),
                HasSubstr("rank 0 did not come within 0.05 s"));
    ++gave_up;
    EXPECT_EQ(monitored_barrier({.timeout = 30s}).seconds.size(), 3u);
  });
}

TEST(MonitoredBarrier, SubgroupsAndEndedRanks) {
  spawn_ranks(4, [] {
    Group some = world().subgroup({3, 1});
    if (some.rank() >= 0)
      EXPECT_EQ(monitored_barrier({.group = some}).seconds.size(), 2u);
    else
      EXPECT_THROW(monitored_barrier({.group = some}), ValueError);
  });
  auto text = message_of<RankFailure>([] {
    spawn_ranks(3, [] {
      if (rank() != 1) monitored_barrier({.timeout = 30s});
    });
  });
  EXPECT_THAT(text, HasSubstr("rank 1 failed: it ended without"));
}

// ---- Groups

TEST(Hosts, RanksOfOneHost) {
  EXPECT_EQ(host_id(), host_id());
  EXPECT_GT(host_id().size(), 30u);
  ::setenv("TUTTI_HOST", "here", 1);
  EXPECT_EQ(host_id(), "here");
  ::unsetenv("TUTTI_HOST");
  spawn_ranks(6, [] {
    EXPECT_EQ(world().split_by_host().size(), 6);
    Group host = world().split_by_host(rank() % 3 == 0 ? "a" : "b");
    EXPECT_EQ(host.ranks(), rank() % 3 == 0 ? (std::vector{0, 3}) : (std::vector{1, 2, 4, 5}));
    std::ostringstream out;
    out << host;
    EXPECT_EQ(out.str(), rank() % 3 == 0 ? "ranks [0, 3] by threads" : "ranks [1, 2, 4, 5] by threads");
    EXPECT_EQ(to_string(Group()), "undefined group");
  });
}

}  // namespace
}  // namespace tutti
