// Messages as bytes: what is packed comes out again, and nothing else does. And links, to strangers too.
#include <gtest/gtest.h>

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

#ifndef TUTTI_SANITIZE_THREAD  // UCX is not compiled for it

TEST(RpcWire, LinksCarryMessagesAndHearNoStrangers) {
  if (!comm::has_ucx()) GTEST_SKIP() << "without UCX";
  std::array<LinkStart, 3> starts = {open_ucx_link(), open_ucx_link(), open_ucx_link()};
  std::vector<LinkPeer> peers = {{starts[0].address, false, true}, {starts[1].address, false, true}};
  std::array<std::vector<Message>, 3> come;
  auto connect = [&](int me, int as, const std::string& key, std::chrono::milliseconds timeout) {
    auto mine = peers;
    mine[static_cast<size_t>(as)].here = true;
    auto& inbox = come[static_cast<size_t>(me)];
    return connect_ucx_link(std::move(starts[static_cast<size_t>(me)]), as, mine, key, timeout,
                            {[&inbox](Message m) { inbox.push_back(std::move(m)); }, [](int, const std::string&) {}});
  };
  auto later = std::async(std::launch::async, [&] { return connect(1, 1, "key", 20s); });
  auto first = connect(0, 0, "key", 20s);
  auto second = later.get();
  for (int i = 0; i < 3; ++i) {
    Message m = sample();
    m.from = 1;
    m.number = static_cast<uint64_t>(i);
    second->send(0, pack(std::move(m)));
  }
  auto until = Clock::now() + 20s;
  while (come[0].size() < 3 && Clock::now() < until) first->poll(), second->poll();
  ASSERT_EQ(come[0].size(), 3u);
  EXPECT_EQ(come[0][0].tensors.size(), 4u);
  EXPECT_EQ(first->strangers(), 0u);
  // One that knows where to find it, but not the key, says that it is worker 1.
  auto stranger = std::async(std::launch::async, [&] { return connect(2, 1, "guess", 300ms); });
  while (first->strangers() == 0 && Clock::now() < until) first->poll(), second->poll();
  EXPECT_GE(first->strangers(), 1u);
  EXPECT_THROW(stranger.get(), ConnectionError);
  EXPECT_EQ(come[0].size(), 3u);
  Message m = sample();
  m.from = 1;
  second->send(0, pack(std::move(m)));
  while (come[0].size() < 4 && Clock::now() < until) first->poll(), second->poll();
  EXPECT_EQ(come[0].size(), 4u);  // the one who belongs here goes on
}

#endif

}  // namespace
}  // namespace tutti::rpc::detail
