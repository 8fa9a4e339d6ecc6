// The flight record: what it keeps, what it is as text, and many of them as one trace.
#include "tutti/comm/record.h"

#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "comm/group/rank.h"
#include "comm/group/record.h"
#include "comm/transport/transport.h"
#include "io/json.h"
#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using io::Json;
using testing::AllOf;
using testing::HasSubstr;
using namespace test;  // NOLINT
namespace fs = std::filesystem;

struct Folder {
  std::string path = (fs::temp_directory_path() / ("tutti-record-XXXXXX")).string();
  Folder() { EXPECT_TRUE(::mkdtemp(path.data())); }
  ~Folder() { fs::remove_all(path); }
};

struct Records : testing::TestWithParam<Way> {
  void spawn(int n, const std::function<void()>& body, const SpawnOptions& options = {}) {
    GetParam().spawn(n, body, options);
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, Records, every_way(), testing::PrintToStringParamName());

TEST(FlightRecord, KeepsTheNewestAndForgetsTheOldest) {
  comm::FlightRecord record(4);
  comm::Call call{.kind = comm::Kind::all_reduce};
  uint64_t next = 10, other = 0;
  EXPECT_FALSE(record.last());
  std::vector<uint64_t> entries;
  for (int i = 0; i < 6; ++i) entries.push_back(record.begin(1, next, call));
  record.begin(2, other, call);
  for (uint64_t entry : entries) record.end(entry);
  auto all = record.all();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(record.count(), 7u);
  EXPECT_EQ(all[0].sequence, 13u);
  EXPECT_EQ(all[2].sequence, 15u);
  EXPECT_EQ(all[2].status, comm::CallStatus::done);
  EXPECT_GE(all[2].end, all[2].begin);
  EXPECT_EQ(all[3].group, 2u);
  EXPECT_EQ(all[3].status, comm::CallStatus::waiting);  // its place was used before, by one that has ended
  EXPECT_EQ(record.last(1)->sequence, 15u);
  EXPECT_EQ(record.last()->group, 2u);
  EXPECT_FALSE(record.find(entries[0]));
  EXPECT_EQ(record.find(entries[5])->sequence, 15u);
}

TEST(FlightRecord, SaysSinceWhenTheRankWaits) {
  comm::FlightRecord record(4);
  comm::Call call{.kind = comm::Kind::all_reduce};
  uint64_t next = 0;
  uint64_t blocking = record.begin(1, next, call, true), open = record.begin(1, next, call);
  auto all = record.all();  // times of one call can be compared exactly
  EXPECT_EQ(all[blocking].wait_begin, all[blocking].begin);
  EXPECT_FALSE(all[open].wait_begin);
  record.begin_wait(open);
  all = record.all();
  auto since = all[open].wait_begin;
  ASSERT_TRUE(since);
  EXPECT_GE(*since, all[open].begin);
  std::this_thread::sleep_for(5ms);
  record.begin_wait(open);  // the first counts
  EXPECT_LT(*record.find(open)->wait_begin - *since, 1ms);
  record.cancel_wait(open);
  EXPECT_FALSE(record.find(open)->wait_begin);
  record.end(open);
  record.begin_wait(open);  // too late
  EXPECT_FALSE(record.find(open)->wait_begin);
}

// A call that was done before the rank came to wait for it does not say that it waited.
TEST_P(Records, SaySinceWhenARankWaited) {
  spawn(2, [] {
    Tensor x = ones({4});
    Work early = all_reduce_async(x);
    barrier();  // which is carried out after it
    early.wait();
    const auto calls = Trace::merge({flight_record()}).ranks()[0].calls;
    ASSERT_EQ(calls.size(), 2u);
    EXPECT_FALSE(calls[0].wait_begin);
    EXPECT_EQ(calls[1].wait_begin, calls[1].begin);
    barrier();
  });
}

// Rank 1 calls what rank 0 has called when it sees in the record of rank 0 that it waits.
TEST(FlightRecord, SaysThatTheRankWaitsNow) {
  std::atomic<comm::RankState*> state{nullptr};
  auto waits = [&] {
    auto last = state ? state.load()->record.last() : std::nullopt;
    return last && last->wait_begin.has_value();
  };
  spawn_ranks(2, [&] {
    Tensor x = ones({4});
    if (rank() == 1) {
      while (!waits()) std::this_thread::yield();
      all_reduce(x);
      return barrier();
    }
    state = world().handle()->state.get();
    Work work = all_reduce_async(x);
    EXPECT_FALSE(waits());
    work.wait();
    EXPECT_TRUE(waits());  // and since when is known afterwards
    Work never = recv_async(x, 1);
    EXPECT_FALSE(never.wait_for(1ms));
    EXPECT_FALSE(waits());  // it has given up
    EXPECT_TRUE(never.cancel());
    barrier();
  });
}

TEST_P(Records, SayWhatWasCalledInOrder) {
  spawn(2, [] {
    Tensor x = ones({2, 3}, {.dtype = DType::f64});
    all_reduce(x, {.op = Reduce::max});
    Group pair = world().subgroup({1, 0});
    broadcast_async(x, {.root = 1, .group = pair}).wait();
    if (rank() == 0) send(x, 1, {.tag = 5});
    if (rank() == 1) recv(x, 0, {.tag = 5});
    std::string text = flight_record();
    Json json = io::parse_json(text, "test", "record");
    EXPECT_EQ(*json.find("rank")->as<int64_t>(), rank());
    EXPECT_EQ(*json.find("world_size")->as<int64_t>(), 2);
    const auto& calls = *json.find("calls")->as<Json::List>();
    ASSERT_EQ(calls.size(), 3u);
    auto get = [&](size_t k, const char* key) { return *calls[k].find(key)->as<std::string>(); };
    EXPECT_THAT(get(0, "call"), HasSubstr("all_reduce(f64[2, 3], max) at record_test.cpp:"));
    EXPECT_THAT(get(1, "call"), HasSubstr("broadcast(f64[2, 3], root 1) at record_test.cpp:"));
    EXPECT_THAT(get(2, "call"), HasSubstr(rank() == 0 ? "send(f64[2, 3])" : "recv(f64[2, 3])"));
    EXPECT_EQ(*calls[2].find("peer")->as<int64_t>(), 1 - rank());
    EXPECT_EQ(*calls[2].find("tag")->as<int64_t>(), 5);
    EXPECT_NE(get(0, "group"), get(1, "group"));
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_EQ(get(k, "status"), "done");
      EXPECT_EQ(*calls[k].find("bytes")->as<int64_t>(), 48);
      EXPECT_GE(*calls[k].find("end")->as<int64_t>(), *calls[k].find("begin")->as<int64_t>());
      const Json* number = calls[k].find("number");
      EXPECT_EQ(number ? *number->as<int64_t>() : -1, k < 2 ? 0 : -1);
    }
    // All ranks know a group by the same name.
    auto groups = all_gather_object(get(1, "group"));
    EXPECT_EQ(groups[0], groups[1]);
    barrier();
  });
}

// Rank 2 comes to each collective when all others have begun it and told it so.
void come_last(Tensor x) {
  Tensor token = ones({1});
  if (rank() == 2) {
    for (int r : {0, 1, 3}) recv(token, r);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // clocks of hosts are known to a part of that only
    all_reduce(x);
  } else {
    Work work = all_reduce_async(x);
    send(token, 2);
    work.wait();
  }
}

TEST_P(Records, SayWhoIsSlow) {
  spawn(4, [] {
    for (int i = 0; i < 5; ++i) come_last(ones({10}));
    Trace trace = gather_trace();
    ASSERT_EQ(trace.ranks().size(), 4u);
    auto late = trace.lateness();
    EXPECT_EQ(late[2].calls, 5);
    EXPECT_EQ(late[2].last, 5);
    EXPECT_GT(late[2].mean, 0);
    EXPECT_GE(late[2].worst, late[2].mean);
    EXPECT_GE(late[2].waited, 5 * late[2].mean);
    EXPECT_THAT(late[2].call, HasSubstr("all_reduce(f32[10], sum) at record_test.cpp"));
    for (int r : {0, 1, 3}) EXPECT_EQ(late[static_cast<size_t>(r)].last, 0);
    EXPECT_THAT(trace.summary(), AllOf(HasSubstr("rank 2 is the slow one"), HasSubstr("largest skew"),
                                       HasSubstr("rank 2 came last to collective 4, all_reduce")));
    // Chrome's format: complete events, microseconds, one process for each rank.
    Json json = io::parse_json(trace.json(), "test", "trace");
    std::map<int64_t, int> reduces;
    for (const Json& event : *json.find("traceEvents")->as<Json::List>()) {
      if (*event.find("ph")->as<std::string>() != "X") continue;
      EXPECT_TRUE(event.find("ts")->as<double>() && event.find("dur")->as<double>());
      const Json& args = *event.find("args");
      if (*event.find("name")->as<std::string>() != "all_reduce") continue;
      ++reduces[*event.find("pid")->as<int64_t>()];
      EXPECT_EQ(*args.find("last_rank")->as<int64_t>(), 2);
      EXPECT_GT(*args.find("skew_us")->as<double>(), 0);
    }
    EXPECT_EQ(reduces, (std::map<int64_t, int>{{0, 5}, {1, 5}, {2, 5}, {3, 5}}));
    barrier();
  });
}

// Rows of a trace hold calls one after the other: viewers cannot show others.
TEST_P(Records, PutCallsThatOverlapIntoRowsOfTheirOwn) {
  spawn(2, [] {
    Tensor x = ones({10}), y = ones({10}), z = ones({10}), token = ones({1});
    Group pair = world().subgroup({0, 1});
    if (rank() == 1) recv(token, 0, {.group = pair});  // the other has begun both by now
    Work one = all_reduce_async(x), two = all_reduce_async(y);
    if (rank() == 0) send(token, 1, {.group = pair});
    all_reduce(z);
    one.wait();
    two.wait();
    Json json = io::parse_json(gather_trace().json(), "test", "trace");
    std::map<std::pair<int64_t, int64_t>, double> until;
    for (const Json& event : *json.find("traceEvents")->as<Json::List>()) {
      if (*event.find("ph")->as<std::string>() != "X") continue;
      auto& end = until[{*event.find("pid")->as<int64_t>(), *event.find("tid")->as<int64_t>()}];
      double begin = *event.find("ts")->as<double>();
      EXPECT_GE(begin, end);
      end = begin + *event.find("dur")->as<double>() - 1e-3;
    }
    EXPECT_GE(until.size(), 5u);  // two of rank 0, which waited for the other, and one for messages on each
    barrier();
  });
}

TEST_P(Records, AreLeftWhereTheTraceGoesWhenACollectiveFails) {
  Folder folder;
  EXPECT_THROW(spawn(3,
                     [] {
                       Tensor x = ones({4});
                       all_reduce(x);
                       if (rank() == 1) throw ValueError("no more");
                       all_reduce(x, {.op = Reduce::max});
                     },
                     {.trace = folder.path + "/deep"}),
               ValueError);
  Trace trace = Trace::load(folder.path + "/deep");
  ASSERT_EQ(trace.ranks().size(), 3u);
  EXPECT_THAT(trace.ranks()[0].error, HasSubstr("rank 1 failed: no more"));
  EXPECT_THAT(trace.ranks()[1].error, HasSubstr("no more"));
  EXPECT_EQ(trace.ranks()[0].calls.back().status, "failed");
  // The second; or the first, if the news of rank 1 came before the result did.
  EXPECT_THAT(trace.ranks()[0].calls.back().text, HasSubstr("all_reduce(f32[4], "));
  EXPECT_EQ(trace.ranks()[1].calls.size(), 1u);
  EXPECT_THAT(trace.summary(), HasSubstr("rank 2 failed: rank 1 failed: no more"));
}

TEST_P(Records, AreLeftByATimeoutAndByAnEnd) {
  Folder folder;
  ::setenv("TUTTI_TRACE", folder.path.c_str(), 1);
  EXPECT_THROW(spawn(3,
                     [] {
                       barrier();
                       if (rank() == 0) return;
                       if (rank() == 1) recv(ones({2}), 2, {.timeout = 50ms});
                       std::this_thread::sleep_for(200ms);
                     }),
               TimeoutError);
  ::unsetenv("TUTTI_TRACE");
  Trace trace = Trace::load(folder.path);
  ASSERT_EQ(trace.ranks().size(), 3u);
  EXPECT_EQ(trace.ranks()[0].error, "");
  EXPECT_THAT(trace.ranks()[1].error, HasSubstr("rank 1 waited 0.05 s for rank 2 to send"));
  EXPECT_EQ(trace.ranks()[1].calls.back().status, "failed");
}

TEST(TraceFiles, ClocksOfHostsAreAligned) {
  auto record = [](int rank, const char* host, int64_t clock, int64_t late) {
    std::string calls;
    for (int64_t k = 0; k < 5; ++k) {
      int64_t end = clock + k * 1000'000;
      calls += (k ? "," : "") +
               ("{\"name\":\"all_reduce\",\"call\":\"all_reduce\",\"group\":\"1\",\"status\":\"done\",\"begin\":" +
                std::to_string(end - 500'000 + late) + ",\"end\":" + std::to_string(end) +
                ",\"bytes\":4,\"number\":" + std::to_string(k) + "}");
    }
    return "{\"tutti_record\":1,\"rank\":" + std::to_string(rank) + ",\"world_size\":2,\"host\":\"" + host +
           "\",\"now\":" + std::to_string(clock + 9'000'000) + ",\"forgotten\":0,\"calls\":[" + calls + "]}";
  };
  Trace trace = Trace::merge({record(1, "b", 777'000'000'000, 200'000), record(0, "a", 1'000'000, 0)});
  EXPECT_EQ(trace.ranks()[0].rank, 0);
  EXPECT_NEAR(trace.lateness()[1].mean, 200e-6, 1e-9);
  EXPECT_EQ(trace.lateness()[1].last, 5);
  EXPECT_EQ(trace.lateness()[0].mean, 0);
}

TEST(TraceFiles, WhatIsNoneIsSaid) {
  Folder folder;
  EXPECT_THAT(message_of<FileError>([&] { Trace::load(folder.path + "/nowhere"); }), HasSubstr("there is no folder"));
  EXPECT_THAT(message_of<FileError>([&] { Trace::load(folder.path); }), HasSubstr("has no flight records"));
  std::ofstream(folder.path + "/rank-0.json") << "{\"rank\": 0}";
  EXPECT_THAT(message_of<FileError>([&] { Trace::load(folder.path); }), HasSubstr("it has no good 'tutti_record'"));
  std::ofstream(folder.path + "/rank-0.json") << "{\"tutti_record\": 1, \"rank\": \"x\"}";
  EXPECT_THAT(message_of<FileError>([&] { Trace::load(folder.path); }), HasSubstr("it has no good 'rank'"));
  std::ofstream(folder.path + "/rank-0.json") << "nothing";
  EXPECT_THROW(Trace::load(folder.path), FileError);
}

TEST(TraceFiles, TheNumberOfCallsIsChecked) {
  ::setenv("TUTTI_RECORD", "many", 1);
  EXPECT_THAT(message_of<ValueError>([] { spawn_ranks(1, [] {}); }), HasSubstr("TUTTI_RECORD is 'many'"));
  ::setenv("TUTTI_RECORD", "3", 1);
  spawn_ranks(1, [] {
    for (int i = 0; i < 10; ++i) barrier();
    Json json = io::parse_json(flight_record(), "test", "record");
    EXPECT_EQ(json.find("calls")->as<Json::List>()->size(), 4u);  // the next power of two
    EXPECT_EQ(*json.find("forgotten")->as<int64_t>(), 6);
  });
  ::unsetenv("TUTTI_RECORD");
}

}  // namespace
}  // namespace tutti
