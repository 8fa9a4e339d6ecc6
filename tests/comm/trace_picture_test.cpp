// The picture of a trace, of records made by hand.
#include <fmt/format.h>

#include <filesystem>

#include "tests/support/expect_ops.h"
#include "tests/support/xml.h"
#include "tutti/comm.h"
#include "tutti/comm/record.h"
#include "tutti/io/file.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using test::xml_error;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kStart = 5'000'000'000, kMillisecond = 1'000'000;

struct MadeCall {
  int64_t number;
  double begin, end;  // milliseconds
  double wait = -1;   // when the program began to wait; -1: never
  std::string status = "done", name = "all_reduce", group = "1";
};

std::string record(int rank, int world_size, const std::vector<MadeCall>& calls, const std::string& error = "",
                   const std::string& host = "a") {
  auto time = [](double ms) { return kStart + static_cast<int64_t>(ms * kMillisecond); };
  std::string list;
  for (const MadeCall& c : calls) {
    list += fmt::format(
        R"j({}{{"name":"{}","call":"{}(f32[4] & <more>)","group":"{}","status":"{}","begin":{},"bytes":16)j",
        list.empty() ? "" : ",", c.name, c.name, c.group, c.status, time(c.begin));
    if (c.status != "waiting") list += fmt::format(R"j(,"end":{})j", time(c.end));
    if (c.wait >= 0) list += fmt::format(R"j(,"wait_begin":{})j", time(c.wait));
    list += fmt::format(R"j(,"{}":{}}})j", c.number < 0 ? "peer" : "number", c.number < 0 ? 0 : c.number);
  }
  return fmt::format(
      R"j({{"tutti_record":1,"rank":{},"world_size":{},"host":"{}","now":{},"forgotten":0,{}"calls":[{}]}})j", rank,
      world_size, host, time(100), error.empty() ? "" : fmt::format(R"j("error":"{}",)j", error), list);
}

std::chrono::steady_clock::time_point after(int64_t ms) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(kStart + ms * kMillisecond));
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
}

constexpr const char* kWaits = "fill='#ef8a3c'";

TEST(TracePictures, ShowEachRankWhatItCalledAndWhenItWaited) {
  Trace trace = Trace::merge({record(0, 2, {{0, 10, 30}, {1, 40, 60, 50}}), record(1, 2, {{0, 20, 30}, {1, 40, 60}})});
  std::string text = trace.svg({.title = "A <title>", .marks = {{{}, "before"}, {after(35), "step 7"}}});
  EXPECT_EQ(xml_error(text), "");
  for (const char* part : {">A &lt;title&gt;<", ">rank 0<", ">rank 1<", ">time (ms)<", ">program runs<",
                           ">program waits for communication<", ">all_reduce in flight<",
                           ">in flight, but the last rank has not called it yet<", ">step 7<",
                           ">20 ms: all_reduce(f32[4] &amp; &lt;more&gt;)<"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, Not(HasSubstr("before")));  // what is shown
  EXPECT_EQ(count(text, kWaits), 2u);           // the one wait, and the legend
  // In flight for 40 and 30 of 50 ms, and rank 0 waited for 10 of them.
  EXPECT_THAT(text, HasSubstr(">Communication was in flight for 35 ms of 50 ms (mean of the ranks): 30 ms while the "
                              "program ran, 5 ms while it waited.<"));
  // Rank 0 called the first one 10 of its 20 ms before rank 1 did: that half is pale.
  EXPECT_EQ(count(text, "fill='#a9c7e8'"), 2u);
}

TEST(TracePictures, ShowTheEndOnlyWhereAsked) {
  Trace trace = Trace::merge({record(0, 1, {{0, 0, 10}, {1, 20, 25}, {2, 60, 80}})});
  EXPECT_THAT(trace.svg(), HasSubstr(">What 1 rank did in 80 ms<"));
  std::string end = trace.svg({.last = 30ms});
  EXPECT_THAT(end, AllOf(HasSubstr(">What 1 rank did in the last 30 ms<"), HasSubstr("in flight for 20 ms of 30 ms")));
  EXPECT_EQ(count(end, "<title>"), 1u);
  EXPECT_THAT(trace.svg({.begin = after(15)}), HasSubstr("in flight for 25 ms of 65 ms"));
}

TEST(TracePictures, SayTimesInUnitsThatSuit) {
  for (auto [ms, text] :
       {std::pair(0.012, "12 µs"), {0.5, "0.5 ms"}, {999.9, "1 s"}, {12345, "12.3 s"}, {4e6, "4000 s"}})
    EXPECT_THAT(Trace::merge({record(0, 1, {{0, 0, ms}})}).svg(),
                HasSubstr(fmt::format(">What 1 rank did in {}<", text)));
  EXPECT_THAT(Trace::merge({record(0, 1, {{0, 0, 0.012}})}).svg(), HasSubstr(">time (µs)<"));
  EXPECT_THAT(Trace::merge({record(0, 1, {{0, 0, 2e4}})}).svg(), HasSubstr(">time (s)<"));
}

TEST(TracePictures, MarkCallsThatFailedOrHadNotEnded) {
  std::string good = Trace::merge({record(0, 1, {{0, 0, 10}})}).svg();
  EXPECT_THAT(good, AllOf(Not(HasSubstr("failed")), Not(HasSubstr("had not ended"))));
  Trace trace = Trace::merge({record(0, 3, {{0, 0, 10}, {1, 20, 50, 20, "failed"}}, "rank 2 failed: <lost> & gone"),
                              record(1, 3, {{0, 0, 10}, {1, 25, 0, 25, "waiting"}})});
  std::string text = trace.svg();
  EXPECT_EQ(xml_error(text), "");
  EXPECT_THAT(text,
              AllOf(HasSubstr(">failed<"), HasSubstr(">had not ended<"), HasSubstr(", then it failed: all_reduce("),
                    HasSubstr(" so far: all_reduce("), HasSubstr(">rank 2 failed: &lt;lost&gt; &amp; gone<"),
                    HasSubstr(">rank 2<"), HasSubstr(">left no record<")));
  // Whether rank 2 called the second one is not known: it is pale on both ranks.
  EXPECT_EQ(count(text, "fill='#2a6cb0'"), 3u);  // the first one on both, and the legend
}

TEST(TracePictures, AreWellFormedWhateverTheRecords) {
  std::vector<Trace> all{Trace::merge({}),
                         Trace::merge({record(0, 1, {})}),
                         Trace::merge({record(0, 4, {})}),
                         Trace::merge({record(0, 1, {{0, 5, 5}})}),
                         Trace::merge({record(0, 1, {{0, 5, 4}}), record(0, 1, {{0, 7, 8}})}),
                         Trace::merge({record(0, 2000000000, {{0, 0, 1, 0, "failed"}}, "x")}),
                         Trace::merge({record(0, 2, {{-1, 0, 1}, {0, 0, 3, 0, "done", "reduce_scatter", "f"}}),
                                       record(1, 2, {{-1, 0, 1}, {0, 1, 3, 0, "done", "odd", "f"}}, "", "b & c")})};
  for (int size : {16, 200}) {
    std::vector<std::string> records;
    for (int r = 0; r < size; ++r) {
      std::vector<MadeCall> calls;
      for (int k = 0; k < 100; ++k) calls.push_back({k, k + 0.004 * r, k + 0.9, k + 0.8});
      records.push_back(record(r, size, calls));
    }
    all.push_back(Trace::merge(records));
  }
  for (const Trace& trace : all) EXPECT_EQ(xml_error(trace.svg()), "");
  EXPECT_THAT(all[0].svg(), HasSubstr(">No rank called a collective.<"));
  EXPECT_THAT(all[1].svg(), HasSubstr(">called nothing<"));
  EXPECT_EQ(count(all[2].svg(), ">left no record<"), 3u);
  EXPECT_THAT(all[6].svg(), AllOf(HasSubstr(">send, recv in flight<"), HasSubstr(">reduce_scatter in flight<"),
                                  HasSubstr(">b<")));  // a host, up to its first space
  EXPECT_EQ(count(all[7].svg(), ">rank "), 16u);
  std::string large = all[8].svg();
  EXPECT_EQ(count(large, ">rank "), 64u);
  EXPECT_THAT(large, AllOf(HasSubstr("; 136 more are not shown"), HasSubstr(">rank 199<")));  // all waited for that one
}

// Many short calls are drawn together.
TEST(TracePictures, StaySmall) {
  std::vector<std::string> records;
  for (int r = 0; r < 4; ++r) {
    std::vector<MadeCall> calls;
    for (int k = 0; k < 20000; ++k) calls.push_back({k, 0.01 * k, 0.01 * k + 0.005, 0.01 * k});
    records.push_back(record(r, 4, calls));
  }
  EXPECT_LT(Trace::merge(records).svg().size(), 60000u);
}

TEST(TracePictures, AreSavedByTheEndingOfThePath) {
  std::string folder = (std::filesystem::temp_directory_path() / "tutti-picture-XXXXXX").string();
  ASSERT_TRUE(::mkdtemp(folder.data()));
  Trace trace = Trace::merge({record(0, 1, {{0, 0, 10}})});
  trace.save(folder + "/trace.svg", {.title = "mine"});
  trace.save(folder + "/trace.json");
  EXPECT_EQ(io::read_file(folder + "/trace.svg"), trace.svg({.title = "mine"}));
  EXPECT_EQ(io::read_file(folder + "/trace.json"), trace.json());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tutti
