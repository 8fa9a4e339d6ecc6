// Flight records as text, and many of them as one.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "base/check.h"
#include "comm/event.h"
#include "comm/group/rank.h"
#include "comm/transport/transport.h"
#include "io/json.h"
#include "tutti/comm/objects.h"
#include "tutti/comm/record.h"
#include "tutti/context.h"
#include "tutti/io/file.h"

namespace tutti {
namespace {

using io::Json;

constexpr const char* kTraceOperation = "trace";
constexpr int64_t kVersion = 1;
constexpr int kMostRanks = 1 << 20;  // a record may come from anywhere, and say anything

int64_t nanoseconds(comm::Clock::time_point time) { return time.time_since_epoch().count(); }

Json call_to_json(const comm::Recorded& r) {
  Json::Map map{{"name", std::string(comm::name(r.call.kind))},
                {"call", comm::describe(r.call)},
                {"group", fmt::format("{:x}", r.group)},
                {"status", std::string(comm::name(r.status))},
                {"begin", nanoseconds(r.begin)},
                {"end", r.ended() ? Json(nanoseconds(r.end)) : Json()},
                {"bytes", r.bytes}};
  if (r.wait_begin) map.emplace_back("wait_begin", nanoseconds(*r.wait_begin));
  if (r.is_message()) {
    map.emplace_back("peer", int64_t{r.peer});
    map.emplace_back("tag", r.tag);
  } else {
    map.emplace_back("number", static_cast<int64_t>(r.sequence));
  }
  return map;
}

// A field of a record, which may come from anywhere.
template <class T>
T field(const Json& json, const char* key) {
  const Json* found = json.find(key);
  const T* value = found ? found->as<T>() : nullptr;
  check<FileError>(value != nullptr, kTraceOperation, "this is no flight record: it has no good '{}'", key);
  return *value;
}
template <class T>
std::optional<T> field_or(const Json& json, const char* key) {
  const Json* found = json.find(key);
  return found && found->as<T>() ? std::optional<T>(*found->as<T>()) : std::nullopt;
}
template <class T>
T field_or(const Json& json, const char* key, T otherwise) {
  return field_or<T>(json, key).value_or(std::move(otherwise));
}

Trace::Rank rank_from_json(const std::string& text, const std::string& name) {
  Json json = io::parse_json(text, kTraceOperation, name);
  check<FileError>(field<int64_t>(json, "tutti_record") == kVersion, kTraceOperation, "{} is of another version", name);
  Trace::Rank rank{.rank = static_cast<int>(field<int64_t>(json, "rank")),
                   .world_size = static_cast<int>(field<int64_t>(json, "world_size")),
                   .host = field<std::string>(json, "host"),
                   .error = field_or<std::string>(json, "error", ""),
                   .now = field<int64_t>(json, "now"),
                   .forgotten = field<int64_t>(json, "forgotten"),
                   .calls = {}};
  for (const Json& call : field<Json::List>(json, "calls"))
    rank.calls.push_back({.name = field<std::string>(call, "name"),
                          .text = field<std::string>(call, "call"),
                          .group = field<std::string>(call, "group"),
                          .status = field<std::string>(call, "status"),
                          .number = field_or<int64_t>(call, "number", -1),
                          .begin = field<int64_t>(call, "begin"),
                          .end = field_or<int64_t>(call, "end", rank.now),
                          .wait_begin = field_or<int64_t>(call, "wait_begin"),
                          .bytes = field<int64_t>(call, "bytes"),
                          .peer = field_or<int64_t>(call, "peer", -1),
                          .tag = field_or<int64_t>(call, "tag", 0)});
  return rank;
}

}  // namespace

std::string comm::RankState::to_json(const std::string& error) const {
  Json::List calls;
  std::vector<Recorded> all = record.all();
  for (const Recorded& r : all) calls.push_back(call_to_json(r));
  Json::Map map{{"tutti_record", kVersion},          {"rank", int64_t{rank}},
                {"world_size", int64_t{world_size}}, {"host", host_id()},
                {"now", nanoseconds(Clock::now())},  {"forgotten", static_cast<int64_t>(record.count() - all.size())}};
  // Texts of errors may hold any bytes of a user's.
  if (!error.empty()) map.emplace_back("error", io::is_utf8(error) ? error : std::string("(not UTF-8)"));
  map.emplace_back("calls", std::move(calls));
  return io::to_json(map);
}

std::string flight_record() { return world().handle()->state->to_json(""); }

Trace Trace::merge(const std::vector<std::string>& records) {
  Trace trace;
  for (const std::string& text : records) trace.ranks_.push_back(rank_from_json(text, "a flight record"));
  std::sort(trace.ranks_.begin(), trace.ranks_.end(), [](const Rank& a, const Rank& b) { return a.rank < b.rank; });
  trace.align();
  return trace;
}

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> records_in(const fs::path& folder) {
  std::vector<fs::path> list;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string name = entry.path().filename().string();
    if (name.starts_with("rank-") && name.ends_with(".json")) list.push_back(entry.path());
  }
  return list;
}

// The number of a folder epoch-<n>, in which `tutti run --max-restarts` has its ranks leave their records.
std::optional<int64_t> epoch_of(const fs::path& folder) {
  constexpr std::string_view prefix = "epoch-";
  std::string name = folder.filename().string();
  if (!name.starts_with(prefix)) return {};
  int64_t number = 0;
  auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
  return error == std::errc() && end == name.data() + name.size() ? std::optional(number) : std::nullopt;
}

}  // namespace

std::string Trace::find(const std::string& folder) {
  check<FileError>(fs::is_directory(folder), kTraceOperation, "there is no folder {}", folder);
  // By the time of the newest record, since those of an earlier run may lie about; then by the number.
  using Age = std::pair<fs::file_time_type, int64_t>;
  std::optional<std::pair<Age, std::string>> newest;
  auto consider = [&](const fs::path& path, int64_t number) {
    std::optional<Age> age;
    for (const fs::path& record : records_in(path))
      age = std::max(age, std::optional(Age(fs::last_write_time(record), number)));
    if (age && (!newest || newest->first < *age)) newest = {*age, path.string()};
  };
  consider(folder, -1);
  for (const auto& entry : fs::directory_iterator(folder))
    if (auto number = epoch_of(entry.path()); number && entry.is_directory()) consider(entry.path(), *number);
  check<FileError>(newest.has_value(), kTraceOperation,
                   "{} has no flight records (rank-<n>.json, or epoch-<n> with such in it): ranks leave them where "
                   "TUTTI_TRACE says",
                   folder);
  return newest->second;
}

Trace Trace::load(const std::string& folder) {
  std::vector<std::string> records;
  for (const fs::path& record : records_in(find(folder))) records.push_back(io::read_file(record.string()));
  return merge(records);
}

// The median of how much later than the first rank's the ends of common collectives are.
void Trace::align() {
  if (ranks_.empty()) return;
  const Rank& first = ranks_[0];
  auto synchronises = [](const Call& c) {
    return c.status == "done" && (c.name == "all_reduce" || c.name == "all_gather" || c.name == "barrier" ||
                                  c.name == "all_to_all" || c.name == "reduce_scatter");
  };
  std::map<std::string, int64_t> offsets{{first.host, 0}};
  for (Rank& rank : ranks_) {
    if (!offsets.contains(rank.host)) {
      std::map<std::pair<std::string, int64_t>, int64_t> ends;
      for (const Call& c : first.calls)
        if (synchronises(c)) ends[{c.group, c.number}] = c.end;
      std::vector<int64_t> differences;
      for (const Call& c : rank.calls)
        if (auto it = ends.find({c.group, c.number}); synchronises(c) && it != ends.end())
          differences.push_back(c.end - it->second);
      // Without a common call: as if the records had been taken at the same time.
      if (differences.empty()) differences.push_back(rank.now - first.now);
      auto middle = differences.begin() + static_cast<std::ptrdiff_t>(differences.size() / 2);
      std::nth_element(differences.begin(), middle, differences.end());
      offsets[rank.host] = *middle;
    }
    int64_t offset = offsets[rank.host];
    rank.now -= offset;
    for (Call& c : rank.calls) {
      c.begin -= offset;
      if (c.wait_begin) *c.wait_begin -= offset;
      c.end -= offset;
    }
  }
}

namespace {

// One collective, as all ranks that have it in their records saw it.
struct Meeting {
  std::map<int, const Trace::Call*> calls;  // by rank
  int first = -1, last = -1;
  int64_t skew = 0;
};
using Meetings = std::map<std::pair<std::string, int64_t>, Meeting>;

Meetings find_meetings(const std::vector<Trace::Rank>& ranks) {
  Meetings meetings;
  for (const Trace::Rank& rank : ranks)
    for (const Trace::Call& c : rank.calls)
      if (c.number >= 0) meetings[{c.group, c.number}].calls[rank.rank] = &c;
  for (auto& [key, m] : meetings) {
    auto earlier = [](const auto& a, const auto& b) { return a.second->begin < b.second->begin; };
    auto [first, last] = std::minmax_element(m.calls.begin(), m.calls.end(), earlier);
    m.first = first->first;
    m.last = last->first;
    m.skew = last->second->begin - first->second->begin;
  }
  return meetings;
}

double seconds(int64_t ns) { return 1e-9 * static_cast<double>(ns); }
double microseconds(int64_t ns) { return 1e-3 * static_cast<double>(ns); }

std::string readable(double time) {
  return time >= 1      ? fmt::format("{:.2f} s", time)
         : time >= 1e-3 ? fmt::format("{:.2f} ms", time * 1e3)
                        : fmt::format("{:.1f} us", time * 1e6);
}

Json metadata(const char* what, int pid, int64_t tid, const std::string& name) {
  Json::Map map{{"ph", std::string("M")}, {"name", std::string(what)}, {"pid", int64_t{pid}}};
  if (tid >= 0) map.emplace_back("tid", tid);
  map.emplace_back("args", Json::Map{{"name", name}});
  return map;
}

// Calls of one rank that overlap in time go into rows of their own: viewers nest what is in one row.
class Rows {
 public:
  /// The number of the row for a call of this group.
  int64_t row(const std::string& group, int64_t begin, int64_t end) {
    auto& lanes = lanes_[group];
    for (auto& lane : lanes)
      if (lane.until <= begin) {
        lane.until = end;
        return lane.number;
      }
    lanes.push_back({next_++, end});
    return lanes.back().number;
  }
  template <class F>
  void for_each(const F& f) const {
    for (auto& [group, lanes] : lanes_)
      for (auto& lane : lanes) f(group, lane.number);
  }

 private:
  struct Lane {
    int64_t number, until;
  };
  std::map<std::string, std::vector<Lane>> lanes_;
  int64_t next_ = 0;
};

std::string ranks_text(const std::set<int>& ranks) {
  return fmt::format("ranks {}", Shape(std::vector<int64_t>(ranks.begin(), ranks.end())));
}

}  // namespace

std::string Trace::json() const {
  Meetings meetings = find_meetings(ranks_);
  std::map<std::string, std::set<int>> members;
  int64_t origin = std::numeric_limits<int64_t>::max();
  for (const Rank& rank : ranks_)
    for (const Call& c : rank.calls) {
      members[c.group].insert(rank.rank);
      origin = std::min(origin, c.begin);
    }
  Json::List events;
  for (const Rank& rank : ranks_) {
    events.push_back(metadata("process_name", rank.rank, -1,
                              fmt::format("rank {} ({})", rank.rank, rank.host.substr(0, rank.host.find(' ')))));
    Rows rows;
    for (const Call& c : rank.calls) {
      Json::Map args{{"call", c.text}, {"bytes", c.bytes}, {"status", c.status}};
      std::string row = c.number < 0 ? c.group + " messages" : c.group;
      if (c.number >= 0) {
        const Meeting& m = meetings[{c.group, c.number}];
        args.emplace_back("number", c.number);
        args.emplace_back("skew_us", microseconds(m.skew));
        args.emplace_back("last_rank", int64_t{m.last});
        args.emplace_back("late_us", microseconds(c.begin - m.calls.at(m.first)->begin));
      } else {
        args.emplace_back("peer", c.peer);
        args.emplace_back("tag", c.tag);
      }
      if (c.wait_begin) args.emplace_back("waited_us", microseconds(c.end - *c.wait_begin));
      events.push_back(Json::Map{{"ph", std::string("X")},
                                 {"name", c.name},
                                 {"cat", std::string(c.number < 0 ? "message" : "collective")},
                                 {"pid", int64_t{rank.rank}},
                                 {"tid", rows.row(row, c.begin, c.end)},
                                 {"ts", microseconds(c.begin - origin)},
                                 {"dur", microseconds(c.end - c.begin)},
                                 {"args", std::move(args)}});
    }
    rows.for_each([&](const std::string& group, int64_t number) {
      std::string id = group.substr(0, group.find(' '));
      events.push_back(metadata("thread_name", rank.rank, number, ranks_text(members[id]) + group.substr(id.size())));
    });
  }
  return io::to_json(Json::Map{{"traceEvents", std::move(events)}, {"displayTimeUnit", std::string("ms")}});
}

void Trace::save(const std::string& path, const TracePicture& picture) const {
  std::string text = path.ends_with(".svg") ? svg(picture) : json();
  io::write_atomically(path, [&](io::Output& out) { out.write(text); });
}

std::vector<Lateness> Trace::lateness() const {
  std::vector<Lateness> list;
  std::map<int, size_t> index;
  for (const Rank& rank : ranks_) {
    index[rank.rank] = list.size();
    list.push_back({.rank = rank.rank, .call = {}});
  }
  for (const auto& [key, m] : find_meetings(ranks_)) {
    if (m.calls.size() < 2) continue;
    int64_t first = m.calls.at(m.first)->begin, last = m.calls.at(m.last)->begin;
    for (const auto& [rank, call] : m.calls) {
      Lateness& l = list[index[rank]];
      double late = seconds(call->begin - first);
      ++l.calls;
      l.mean += late;
      if (l.call.empty() || late > l.worst) l.call = call->text;
      l.worst = std::max(l.worst, late);
      if (rank != m.last) list[index[m.last]].waited += seconds(last - call->begin);
    }
    ++list[index[m.last]].last;
  }
  for (Lateness& l : list)
    if (l.calls) l.mean /= static_cast<double>(l.calls);
  return list;
}

namespace {

std::string lateness_table(const std::vector<Lateness>& list) {
  std::string text = "rank   calls    last    mean late   worst late  waited for  latest at\n";
  const Lateness* slowest = nullptr;
  for (const Lateness& l : list) {
    text += fmt::format("{:4} {:7} {:7} {:>12} {:>12} {:>11}  {}\n", l.rank, l.calls, l.last, readable(l.mean),
                        readable(l.worst), readable(l.waited), l.call);
    if (l.waited > 0 && (!slowest || l.waited > slowest->waited)) slowest = &l;
  }
  if (slowest)
    text += fmt::format("rank {} is the slow one: others waited {} for it, {} of {} times it came last\n",
                        slowest->rank, readable(slowest->waited), slowest->last, slowest->calls);
  return text;
}

std::string largest_skews(const Meetings& meetings) {
  std::vector<const Meeting*> worst;
  for (const auto& [key, m] : meetings)
    if (m.calls.size() > 1) worst.push_back(&m);
  auto count = std::min<size_t>(worst.size(), 5);
  std::partial_sort(worst.begin(), worst.begin() + static_cast<std::ptrdiff_t>(count), worst.end(),
                    [](const Meeting* a, const Meeting* b) { return a->skew > b->skew; });
  std::string text = count ? "largest skew:\n" : "";
  for (size_t k = 0; k < count; ++k) {
    const Trace::Call& call = *worst[k]->calls.at(worst[k]->last);
    text += fmt::format("  {:>10}  rank {} came last to collective {}, {}\n", readable(seconds(worst[k]->skew)),
                        worst[k]->last, call.number, call.text);
  }
  return text;
}

std::string numbered(const Trace::Call& c) {
  return c.number < 0 ? c.text : fmt::format("collective {}, {}", c.number, c.text);
}

// What a rank was doing when it left its record, and since when.
std::string at_the_end(const Trace::Rank& rank) {
  if (rank.calls.empty()) return fmt::format("rank {} had called nothing\n", rank.rank);
  std::string text;
  for (const Trace::Call& c : rank.calls)
    if (c.status == "waiting")
      text += fmt::format("rank {} was in {}, for {}\n", rank.rank, numbered(c), readable(seconds(rank.now - c.begin)));
  const Trace::Call& last = rank.calls.back();
  if (last.status == "failed")
    text +=
        fmt::format("rank {} was in {}, which failed after {}, {} before it left this record\n", rank.rank,
                    numbered(last), readable(seconds(last.end - last.begin)), readable(seconds(rank.now - last.end)));
  else if (last.status == "done")
    text += fmt::format("rank {} was in no call: its last, {}, was done {} before it left this record\n", rank.rank,
                        numbered(last), readable(seconds(rank.now - last.end)));
  return text;
}

}  // namespace

std::string Trace::summary() const {
  std::vector<Lateness> list = lateness();
  bool compared = std::any_of(list.begin(), list.end(), [](const Lateness& l) { return l.calls > 0; });
  std::string text = compared ? lateness_table(list) + largest_skews(find_meetings(ranks_))
                              : "no collective is in the records of two ranks: who was late cannot be said\n";
  bool whole = true;  // all ranks are here, and none has failed
  int size = 0;
  for (const Rank& rank : ranks_) {
    whole = whole && rank.error.empty();
    size = std::clamp(rank.world_size, size, kMostRanks);
  }
  std::set<int> missing;
  for (int r = 0; r < size; ++r) missing.insert(r);
  for (const Rank& rank : ranks_) missing.erase(rank.rank);
  for (const Rank& rank : ranks_) {
    bool waits = std::any_of(rank.calls.begin(), rank.calls.end(), [](const Call& c) { return c.status == "waiting"; });
    if (!whole || !missing.empty() || waits) text += at_the_end(rank);
    if (!rank.error.empty()) text += fmt::format("rank {} failed: {}\n", rank.rank, rank.error);
  }
  if (!missing.empty())
    text += fmt::format("{} of {} ranks left a record; {} did not: killed, or ended by force\n", ranks_.size(),
                        ranks_.size() + missing.size(), comm::name_ranks({missing.begin(), missing.end()}));
  return text;
}

Trace gather_trace(const CollectiveOptions& options) {
  Group group = options.group.defined() ? options.group : world();
  check<ValueError>(group.rank() >= 0, "gather_trace", "rank {} is not a member of this group", context().rank);
  // Taken before the collective that gathers, which is thus in nobody's record.
  std::string mine = group.handle()->state->to_json("");
  return Trace::merge(all_gather_object(mine, options));
}

}  // namespace tutti
