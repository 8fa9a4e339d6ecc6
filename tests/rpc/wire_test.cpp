// Messages as bytes: what is packed comes out again, and nothing else does. And links, to strangers too.
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "rpc/link.h"
#include "rpc/message.h"
#include "tests/comm/ways.h"
#include "tutti/rpc.h"
#include "tutti/tutti.h"

namespace tutti::rpc::detail {
namespace {

using namespace std::chrono_literals;

Message sample() {
  Message m;
  m.kind = Kind::call;
  m.from = 2;
  m.number = 77;
  m.function = 0x1234567890abcdef;
  m.extension = "along";
  Writer out(m);
  write(out, std::vector<std::string>{"a", "", "text"});
  write(out, arange(7));
  write(out, sparse_coo(tensor({1, 3}).view({1, 2}), tensor({1.0, 2.0}), {5}));
  write(out, ones({30, 1000}, {.dtype = bf16}));
  write(out, Tensor());
  m.references.push_back({{1, 2, 3}, 4, "Box", "here.cpp:1", nullptr});
  return m;
}

std::string bytes_after_header(const Packed& p) {
  std::string bytes = p.front;
  if (p.data) bytes.append(static_cast<const char*>(p.data), p.header.data_bytes);
  return bytes;
}

TEST(RpcWire, WhatIsPackedComesOutAgain) {
  for (bool shared : {false, true}) {
    Packed packed = pack(sample());
    auto bytes = std::make_shared<std::string>(bytes_after_header(packed));
    Message m = unpack(packed.header, *bytes, shared ? bytes : nullptr);
    EXPECT_EQ(m.kind, Kind::call);
    EXPECT_EQ(m.from, 2);
    EXPECT_EQ(m.number, 77u);
    EXPECT_EQ(m.function, 0x1234567890abcdef);
    EXPECT_EQ(m.extension, "along");
    ASSERT_EQ(m.references.size(), 1u);
    EXPECT_EQ(m.references[0].id, (RefId{1, 2, 3}));
    EXPECT_EQ(m.references[0].fork, 4u);
    EXPECT_EQ(m.references[0].type, "Box");
    EXPECT_EQ(m.references[0].made_at, "here.cpp:1");
    // A large tensor keeps the memory that it came in.
    EXPECT_EQ(bytes.use_count(), shared ? 2 : 1);
    m.references.clear();
    Reader in(m);
    EXPECT_EQ(read<std::vector<std::string>>(in), (std::vector<std::string>{"a", "", "text"}));
    EXPECT_TRUE(read<Tensor>(in).equal(arange(7)));
    EXPECT_TRUE(read<Tensor>(in).to_dense().equal(tensor({0.0, 1.0, 0.0, 2.0, 0.0})));
    EXPECT_TRUE(read<Tensor>(in).equal(ones({30, 1000}, {.dtype = bf16})));
    EXPECT_FALSE(read<Tensor>(in).defined());
    in.end();
  }
}

TEST(RpcWire, BytesThatAreCutOffOrTooManyAreErrors) {
  Packed packed = pack(sample());
  std::string bytes = bytes_after_header(packed);
  for (size_t length = 0; length < bytes.size(); length += 1 + length / 50)
    EXPECT_THROW(unpack(packed.header, bytes.substr(0, length), nullptr), ValueError);
  EXPECT_THROW(unpack(packed.header, bytes + "x", nullptr), ValueError);
  for (auto change :
       {+[](WireHeader& h) { h.magic = 1; }, +[](WireHeader& h) { h.version = 2; }, +[](WireHeader& h) { h.kind = 0; },
        +[](WireHeader& h) { h.kind = 100; }, +[](WireHeader& h) { h.body_bytes = ~uint64_t{0}; },
        +[](WireHeader& h) { h.data_bytes = ~uint64_t{0} - 63; },
        +[](WireHeader& h) { h.table_bytes += 8, h.body_bytes -= 8; }}) {
    WireHeader header = packed.header;
    change(header);
    EXPECT_THROW(unpack(header, bytes, nullptr), ValueError);
  }
}

struct Tree {
  std::vector<Tree> children;
  TUTTI_FIELDS(children)
};

TEST(RpcWire, NothingIsReadThatIsNotThere) {
  auto reads = [](auto writes, auto read_it) {
    Message m;
    Writer out(m);
    writes(out);
    Reader in(m);
    read_it(in);
    in.end();
  };
  using Words = std::vector<std::string>;
  EXPECT_THROW(reads([](Writer& w) { w.count(~size_t{0}); }, [](Reader& r) { read<Words>(r); }), ValueError);
  EXPECT_THROW(reads([](Writer& w) { w.count(1 << 20); }, [](Reader& r) { read<std::vector<double>>(r); }), ValueError);
  EXPECT_THROW(reads([](Writer& w) { w.count(5); }, [](Reader& r) { read<std::string>(r); }), ValueError);
  EXPECT_THROW(reads([](Writer& w) { w.number(uint8_t{2}); }, [](Reader& r) { read<bool>(r); }), ValueError);
  EXPECT_THROW(reads([](Writer& w) { w.number(uint8_t{200}); }, [](Reader& r) { read<DType>(r); }), ValueError);
  using Either = std::variant<int, std::string>;
  EXPECT_THROW(reads([](Writer& w) { w.number(uint8_t{2}); }, [](Reader& r) { read<Either>(r); }), ValueError);
  EXPECT_THROW(reads([](Writer& w) { w.number(uint8_t{0}); }, [](Reader& r) { read<Tensor>(r); }), ValueError);
  EXPECT_THROW(reads([](Writer& w) { w.number(uint8_t{1}); }, [](Reader& r) { r.reference(); }), ValueError);
  EXPECT_THROW(reads([](Writer& w) { w.number(1); }, [](Reader&) {}), ValueError);  // more than is wanted
  // A tree that is deep only to be deep.
  EXPECT_THROW(reads(
                   [](Writer& w) {
                     for (int i = 0; i < 100000; ++i) w.number(uint8_t{0}), w.count(1);
                   },
                   [](Reader& r) { read<Tree>(r); }),
               ValueError);
  reads([](Writer& w) { write(w, Tree{{Tree{}, Tree{{Tree{}}}}}); },
        [](Reader& r) { EXPECT_EQ(read<Tree>(r).children.size(), 2u); });
}

// ---- Links

struct LinkWay {
  const char* name;
  std::unique_ptr<Opening> (*open)();
  friend std::ostream& operator<<(std::ostream& out, const LinkWay& way) { return out << way.name; }
};
class RpcLinks : public testing::TestWithParam<LinkWay> {
 protected:
  RpcLinks() {
    for (auto& opening : openings_) opening = GetParam().open();
  }
  /// Worker `as` of two, by opening `me`.
  std::unique_ptr<Link> connect(int me, int as, const std::string& key, std::chrono::milliseconds timeout) {
    auto& inbox = come_[static_cast<size_t>(me)];
    LinkPlan plan{.me = as, .key = key, .timeout = timeout};
    for (size_t k = 0; k < 2; ++k) plan.peers.push_back({addresses_[k], static_cast<int>(k) != as, ::getpid()});
    plan.events = {[&inbox](Message m) { inbox.push_back(std::move(m)); },
                   [this](int peer, const std::string& why) { broken_.emplace_back(peer, why); }};
    return openings_[static_cast<size_t>(me)]->connect(std::move(plan));
  }
  void meet() {
    for (size_t k = 0; k < 3; ++k) addresses_.push_back(openings_[k]->address());
    auto later = std::async(std::launch::async, [&] { return connect(1, 1, "key", 20s); });
    first_ = connect(0, 0, "key", 20s);
    second_ = later.get();
  }
  template <class Ready>
  void poll_until(const Ready& ready) {
    auto until = Clock::now() + 20s;
    while (!ready() && Clock::now() < until) first_->poll(), second_->poll();
  }
  std::array<std::unique_ptr<Opening>, 3> openings_;
  std::vector<std::string> addresses_;
  std::array<std::vector<Message>, 3> come_;
  std::vector<std::pair<int, std::string>> broken_;
  std::unique_ptr<Link> first_, second_;
};
std::vector<LinkWay> link_ways() {
  std::vector<LinkWay> ways = {{"shm", [] { return open_shm_link(); }},
                               {"shm_alone", [] { return open_shm_link(false); }}};
#ifndef TUTTI_SANITIZE_THREAD  // UCX is not compiled for it
  if (comm::has_ucx()) ways.push_back({"ucx", open_ucx_link});
#endif
  return ways;
}
INSTANTIATE_TEST_SUITE_P(Ways, RpcLinks, testing::ValuesIn(link_ways()), testing::PrintToStringParamName());

Message message_of(int from, uint64_t number) {
  Message m = sample();
  m.from = from;
  m.number = number;
  return m;
}

TEST_P(RpcLinks, CarryMessagesAndHearNoStrangers) {
  meet();
  for (uint64_t i = 0; i < 3; ++i) second_->send(0, pack(message_of(1, i)));
  poll_until([&] { return come_[0].size() >= 3; });
  ASSERT_EQ(come_[0].size(), 3u);
  EXPECT_EQ(come_[0][0].tensors.size(), 4u);
  EXPECT_EQ(first_->strangers(), 0u);
  // One that knows where to find it, but not the key, says that it is worker 1.
  auto stranger = std::async(std::launch::async, [&] { return connect(2, 1, "guess", 300ms); });
  poll_until([&] {
    if (first_->arm()) first_->disarm();
    return first_->strangers() > 0;
  });
  EXPECT_GE(first_->strangers(), 1u);
  EXPECT_THROW(stranger.get(), ConnectionError);
  EXPECT_EQ(come_[0].size(), 3u);
  second_->send(0, pack(message_of(1, 3)));
  poll_until([&] { return come_[0].size() >= 4; });
  EXPECT_EQ(come_[0].size(), 4u);  // the one who belongs here goes on
}

// Small ones and some that are larger than what a link takes at once, both ways, each by a thread that sleeps when
// there is nothing to do.
TEST_P(RpcLinks, WakeWhoSleeps) {
  meet();
  constexpr uint64_t kCount = 300;
  auto data = [](uint64_t i) { return full({i % 7 == 0 ? 100'000 : 10}, static_cast<double>(i)); };
  std::atomic<int> left{2};
  auto run = [&](int me, Link& link) {
    auto& come = come_[static_cast<size_t>(me)];
    uint64_t sent = 0;
    auto until = Clock::now() + 30s;
    bool done = false;
    while (left.load() > 0 && Clock::now() < until) {
      if (sent < kCount && (sent <= come.size() || sent % 3 != 0)) {
        Message m;
        m.kind = Kind::call;
        m.from = me;
        m.number = sent;
        m.tensors = {data(sent++)};
        link.send(1 - me, pack(std::move(m)));
      } else if (!link.poll() && come.size() < kCount && link.arm()) {
        pollfd readable{link.descriptor(), POLLIN, 0};
        EXPECT_NE(::poll(&readable, 1, 20000), 0) << "nobody woke it";
        link.disarm();
      }
      if (!done && sent == kCount && come.size() == kCount) {
        done = true;
        --left;
      }
    }
  };
  auto other = std::async(std::launch::async, [&] { run(1, *second_); });
  run(0, *first_);
  other.get();
  for (int me : {0, 1}) {
    auto& come = come_[static_cast<size_t>(me)];
    ASSERT_EQ(come.size(), kCount);
    // Large ones may take longer.
    std::sort(come.begin(), come.end(), [](const Message& a, const Message& b) { return a.number < b.number; });
    for (uint64_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(come[i].number, i);
      EXPECT_TRUE(equal(come[i].tensors.at(0), data(i)));
    }
  }
}

TEST_P(RpcLinks, WhatIsClosedCarriesNothing) {
  meet();
  first_->send(1, pack(message_of(0, 1)));
  poll_until([&] { return come_[1].size() == 1; });
  first_->close(1);
  first_->send(1, pack(message_of(0, 2)));
  second_->send(0, pack(message_of(1, 3)));
  for (int i = 0; i < 100; ++i) first_->poll(), second_->poll();
  EXPECT_EQ(come_[1].size(), 1u);
  first_->flush(Clock::now() + 10s);
}

}  // namespace
}  // namespace tutti::rpc::detail
