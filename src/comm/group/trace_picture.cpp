// The picture of a trace: for each rank a bar of its program, which runs or waits, and below it the calls in flight.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "io/svg.h"
#include "tutti/comm/record.h"

namespace tutti::trace_picture {
namespace {

namespace svg = io::svg;
using TracedCall = Trace::Call;

constexpr size_t kMostLanes = 64, kMostErrors = 20;  // ranks that are shown; with how they failed
// Tooltips are left out where they would make the file large.
constexpr size_t kTooltip = 100, kBarBytes = 160, kMostBytes = 50000;
constexpr double kWidth = 960, kMargin = 28, kHeading = 96, kAxis = 56;

constexpr const char* kRuns = "#d3dae2";
constexpr const char* kWaits = "#ef8a3c";

struct CallColor {
  const char *name, *called, *common;  // called by this rank; by all of its group
};
// The last is that of all other calls.
constexpr CallColor kColors[] = {
    {"all_reduce", "#a9c7e8", svg::kBlue},       {"all_gather", "#cbbbe6", "#7350b5"},
    {"reduce_scatter", "#9edbd3", "#16857a"},    {"broadcast", "#e3cfa0", "#a07a1c"},
    {"barrier", "#c3ccd5", "#4d5a67"},           {"send, recv", "#f0b9d6", "#b83a7d"},
    {"other collectives", "#c9d8b0", "#66852f"},
};

size_t color_of(const TracedCall& call) {
  constexpr size_t others = std::size(kColors) - 1;
  if (call.number < 0) return others - 1;
  for (size_t k = 0; k + 1 < others; ++k)
    if (call.name == kColors[k].name) return k;
  return others;
}

int64_t nanoseconds(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}
double milliseconds(int64_t ns) { return 1e-6 * static_cast<double>(ns); }

std::string readable(int64_t ns) {
  double ms = milliseconds(ns);
  return ms >= 99950   ? fmt::format("{:.0f} s", ms * 1e-3)
         : ms >= 999.5 ? fmt::format("{:.3g} s", ms * 1e-3)
         : ms >= 0.1   ? fmt::format("{:.3g} ms", ms)
                       : fmt::format("{:.3g} µs", ms * 1e3);
}

// Texts of calls have ends that tell them apart less than their beginnings.
std::string tooltip(const TracedCall& call) {
  const char* end = call.status == "failed" ? ", then it failed" : call.status == "waiting" ? " so far" : "";
  return fmt::format("{}{}: {}", readable(call.end - call.begin), end, svg::fitted(call.text, 1, kTooltip * 0.55));
}

struct Span {
  int64_t begin, end;
};

// What they cover together, in order.
std::vector<Span> merge_spans(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> whole;
  for (const Span& s : spans)
    if (whole.empty() || s.begin > whole.back().end)
      whole.push_back(s);
    else
      whole.back().end = std::max(whole.back().end, s.end);
  return whole;
}
int64_t length(const std::vector<Span>& spans) {
  int64_t sum = 0;
  for (const Span& s : spans) sum += s.end - s.begin;
  return sum;
}

// A call in the picture.
struct Bar {
  const TracedCall* call;
  Span span;       // the part that is shown
  int64_t common;  // since when all ranks of its group have called it; its end: they have not
  size_t row;
};

struct Lane {
  int rank = 0;
  const Trace::Rank* record = nullptr;  // null: the rank left none
  std::vector<Bar> bars;
  std::vector<Span> waits;
};

class TraceDrawing {
 public:
  TraceDrawing(const std::vector<Trace::Rank>& ranks, const std::vector<Lateness>& lateness,
               const TracePicture& picture)
      : ranks_(ranks), picture_(picture) {
    find_window();
    choose_lanes(lateness);
    find_common();
    for (Lane& lane : lanes_)
      if (lane.record) fill(lane);
    tooltips_ = bytes_ <= kMostBytes;
    std::set<std::string> hosts;
    for (const Trace::Rank& rank : ranks) hosts.insert(rank.host);
    hosts_ = hosts.size() > 1;
  }
  std::string draw();

 private:
  void find_window();
  void choose_lanes(const std::vector<Lateness>& lateness);
  void find_common();
  void fill(Lane& lane);
  int64_t common_since(const TracedCall& call) const;
  bool shown(const Span& span) const { return span.end >= begin_ && span.begin <= end_; }
  Span clipped(const Span& span) const { return {std::max(span.begin, begin_), std::min(span.end, end_)}; }

  // Of the line below a lane that says how its rank failed.
  double error_height(const Lane& lane) const {
    return lane.record && !lane.record->error.empty() && lanes_.size() <= kMostErrors ? 20 : 0;
  }
  double x(int64_t time) const {
    double share = static_cast<double>(time - begin_) / static_cast<double>(std::max<int64_t>(end_ - begin_, 1));
    return left_ + (kWidth - kMargin - left_) * std::clamp(share, 0.0, 1.0);
  }
  std::string title() const;
  std::string subtitle() const;
  std::vector<svg::LegendEntry> legend() const;
  void draw_axis(svg::Drawing& out, double top, double bottom) const;
  void draw_marks(svg::Drawing& out, double top, double bottom) const;
  void draw_lane(svg::Drawing& out, const Lane& lane, double top) const;
  void draw_bars(svg::Drawing& out, const Lane& lane, double top) const;

  const std::vector<Trace::Rank>& ranks_;
  const TracePicture& picture_;
  int64_t first_ = 0, begin_ = 0, end_ = 0;  // of all that is known, and of what is shown
  std::vector<Lane> lanes_;
  size_t hidden_ = 0;  // ranks
  std::map<std::pair<std::string, int64_t>, int64_t> common_;
  size_t rows_ = 1, bytes_ = 0;
  bool tooltips_ = false, hosts_ = false, whole_ = false;
  double left_ = 0, lane_height_ = 0, program_height_ = 0, row_height_ = 0;
};

void TraceDrawing::find_window() {
  int64_t first = std::numeric_limits<int64_t>::max(), last = std::numeric_limits<int64_t>::min();
  for (const Trace::Rank& rank : ranks_)
    for (const TracedCall& c : rank.calls) {
      first = std::min(first, c.begin);
      last = std::max(last, std::max(c.begin, c.end));
    }
  if (first > last) return;
  first_ = begin_ = first;
  end_ = last;
  if (picture_.last.count() > 0) begin_ = std::max(begin_, last - picture_.last.count());
  if (int64_t asked = nanoseconds(picture_.begin); asked != 0 && asked < last) begin_ = std::max(begin_, asked);
}

// The ranks of the world in order, with those that left no record; where they are many, those that matter most.
void TraceDrawing::choose_lanes(const std::vector<Lateness>& lateness) {
  std::map<int, const Trace::Rank*> records;
  std::map<int, double> weight;
  int size = 0;
  for (const Trace::Rank& rank : ranks_) {
    records[rank.rank] = &rank;
    size = std::max(size, rank.world_size);
    bool failed = !rank.error.empty();
    for (const TracedCall& c : rank.calls) failed = failed || c.status != "done";
    weight[rank.rank] += failed ? 1e9 : 0;
  }
  for (const Lateness& l : lateness) weight[l.rank] += l.waited;
  std::vector<int> order, recorded;
  // Those that left none were killed, maybe: they come first. A record may tell of any number of ranks.
  for (int r = 0; r < size && order.size() < kMostLanes / 2; ++r)
    if (!records.contains(r)) order.push_back(r);
  for (const auto& [rank, record] : records) recorded.push_back(rank);
  std::sort(recorded.begin(), recorded.end(),
            [&](int a, int b) { return weight[a] != weight[b] ? weight[a] > weight[b] : a < b; });
  order.insert(order.end(), recorded.begin(), recorded.end());
  if (order.size() > kMostLanes) order.resize(kMostLanes);
  whole_ = records.size() >= static_cast<size_t>(size);
  hidden_ = static_cast<size_t>(std::max<int64_t>(size, static_cast<int64_t>(records.size()))) - order.size();
  std::sort(order.begin(), order.end());
  for (int r : order) lanes_.push_back({r, records.contains(r) ? records[r] : nullptr, {}, {}});
}

// A group's ranks are those that have called something in it.
void TraceDrawing::find_common() {
  std::map<std::string, std::set<int>> members;
  std::map<std::pair<std::string, int64_t>, std::pair<size_t, int64_t>> calls;  // how many, and the begin of the last
  for (const Trace::Rank& rank : ranks_)
    for (const TracedCall& c : rank.calls) {
      members[c.group].insert(rank.rank);
      auto& [count, begin] = calls.try_emplace({c.group, c.number}, 0, c.begin).first->second;
      ++count;
      begin = std::max(begin, c.begin);
    }
  for (const auto& [key, call] : calls)
    if (call.first == members[key.first].size()) common_[key] = call.second;
}

// A call that has ended well was called by all, though some may have forgotten it. Of others that is known only where
// every rank of the world left a record.
int64_t TraceDrawing::common_since(const TracedCall& call) const {
  if (call.number < 0) return call.begin;
  if (auto found = common_.find({call.group, call.number}); found != common_.end() && (call.status == "done" || whole_))
    return std::clamp(found->second, call.begin, std::max(call.begin, call.end));
  return call.status == "done" ? call.begin : call.end;
}

// Calls that overlap lie in rows below each other.
void TraceDrawing::fill(Lane& lane) {
  const size_t most_rows = lanes_.size() <= 4 ? 8 : lanes_.size() <= 8 ? 5 : 3;
  std::vector<int64_t> until;
  for (const TracedCall& c : lane.record->calls) {
    Span span{c.begin, std::max(c.begin, c.end)};
    if (!shown(span)) continue;
    size_t row = 0;
    while (row < until.size() && until[row] > span.begin) ++row;
    if (row == until.size() && row < most_rows) until.push_back(0);
    row = std::min(row, most_rows - 1);
    until[row] = std::max(until[row], span.end);
    lane.bars.push_back({&c, clipped(span), common_since(c), row});
    if (c.wait_begin) lane.waits.push_back(clipped({std::clamp(*c.wait_begin, span.begin, span.end), span.end}));
  }
  lane.waits = merge_spans(std::move(lane.waits));
  rows_ = std::max(rows_, until.size());
  for (const Bar& bar : lane.bars) bytes_ += kBarBytes + tooltip(*bar.call).size();
}

std::string TraceDrawing::title() const {
  if (!picture_.title.empty()) return picture_.title;
  size_t count = lanes_.size() + hidden_;
  std::string title = fmt::format("What {} rank{} did", count, count == 1 ? "" : "s");
  if (end_ > begin_) title += fmt::format(" in {}{}", begin_ > first_ ? "the last " : "", readable(end_ - begin_));
  return title;
}

// Averages over the ranks: how long any call was in flight, and for how much of that the program waited.
std::string TraceDrawing::subtitle() const {
  if (!picture_.subtitle.empty()) return picture_.subtitle;
  int64_t flight = 0, wait = 0, count = 0;
  for (const Lane& lane : lanes_) {
    if (!lane.record) continue;
    std::vector<Span> spans;
    for (const Bar& bar : lane.bars) spans.push_back(bar.span);
    flight += length(merge_spans(spans));
    wait += length(lane.waits);
    ++count;
  }
  if (flight == 0) return "No rank called a collective.";
  flight /= count;
  wait /= count;
  return fmt::format(
      "Communication was in flight for {} of {} (mean of the ranks): {} while the program ran, {} while it waited.",
      readable(flight), readable(end_ - begin_), readable(flight - wait), readable(wait));
}

std::vector<svg::LegendEntry> TraceDrawing::legend() const {
  std::vector<bool> used(std::size(kColors)), early(std::size(kColors));
  bool waits = false, failed = false, open = false;
  for (const Lane& lane : lanes_) {
    waits = waits || !lane.waits.empty();
    for (const Bar& bar : lane.bars) {
      used[color_of(*bar.call)] = true;
      failed = failed || bar.call->status == "failed";
      open = open || bar.call->status == "waiting";
      if (x(bar.common) - x(bar.span.begin) >= 0.5) early[color_of(*bar.call)] = true;
    }
  }
  std::vector<svg::LegendEntry> entries;
  if (end_ > begin_) entries.push_back({"program runs", kRuns});
  if (waits) entries.push_back({"program waits for communication", kWaits});
  for (size_t k = 0; k < used.size(); ++k)
    if (used[k]) entries.push_back({fmt::format("{} in flight", kColors[k].name), kColors[k].common});
  for (size_t k = 0; k < used.size(); ++k)
    if (early[k]) {
      entries.push_back({"in flight, but the last rank has not called it yet", kColors[k].called});
      break;
    }
  if (failed) entries.push_back({"failed", "#fff", 0, svg::kAlarm});
  if (open) entries.push_back({"had not ended", "#fff", 0, kWaits});
  return entries;
}

void TraceDrawing::draw_axis(svg::Drawing& out, double top, double bottom) const {
  auto window = static_cast<double>(end_ - begin_);
  auto [unit, size] = window >= 1e10  ? std::pair("s", 1e9)
                      : window >= 1e6 ? std::pair("ms", 1e6)
                                      : std::pair("µs", 1e3);
  if (end_ <= begin_) return;
  svg::Ticks ticks(0, window / size, 12, false);
  for (int k = 0; k < ticks.count(); ++k) {
    double at = x(begin_ + std::llround(ticks.value(k) * size));
    out.line(at, top, at, bottom, fmt::format("stroke='{}'", svg::kGrid));
    out.line(at, bottom, at, bottom + 5, fmt::format("stroke='{}'", svg::kAxis));
    out.text(at, bottom + 19, ticks.label(k), fmt::format("text-anchor='middle' fill='{}'", svg::kMuted));
  }
  out.line(left_, bottom, kWidth - kMargin, bottom, fmt::format("stroke='{}'", svg::kAxis));
  out.text((left_ + kWidth - kMargin) / 2, bottom + 38, fmt::format("time ({})", unit),
           fmt::format("text-anchor='middle' font-weight='500' fill='{}'", svg::kInk));
}

void TraceDrawing::draw_marks(svg::Drawing& out, double top, double bottom) const {
  double free = left_;  // where a text may begin
  for (const TraceMark& mark : picture_.marks) {
    int64_t time = nanoseconds(mark.time);
    if (time < begin_ || time > end_) continue;
    double at = x(time);
    out.line(at, top - 4, at, bottom, fmt::format("stroke='{}' stroke-dasharray='3 3'", svg::kMuted));
    if (at < free) continue;
    out.text(at + 4, top + 2, mark.text, fmt::format("fill='{}'", svg::kMuted));
    free = at + 12 + svg::text_width(mark.text, svg::kSmall);
  }
}

// Short calls that follow each other are one box, and long ones a box each, with the call as its tooltip.
void TraceDrawing::draw_bars(svg::Drawing& out, const Lane& lane, double top) const {
  struct Pixels {
    double from = 0, to = -1;
    size_t color = 0;
    bool empty() const { return to < from; }
  };
  std::vector<Pixels> last(rows_);
  std::map<std::string_view, std::vector<svg::Box>> boxes;  // by color; of calls without a tooltip
  double height = std::max(1.0, row_height_ - (row_height_ > 4 ? 1.5 : 0.5));
  auto fill = [&](const char* color) { return fmt::format("fill='{}'", color); };
  auto y = [&](size_t row) { return top + program_height_ + 2 + row_height_ * static_cast<double>(row); };
  auto flush = [&](size_t row) {
    const Pixels& p = last[row];
    if (!p.empty()) boxes[kColors[p.color].common].push_back({p.from, y(row), std::max(p.to - p.from, 0.8), height});
    last[row] = {};
  };
  for (const Bar& bar : lane.bars) {
    const CallColor& color = kColors[color_of(*bar.call)];
    double from = x(bar.span.begin), to = x(bar.span.end), common = std::clamp(x(bar.common), from, to);
    bool done = bar.call->status == "done";
    if (done && to - from < 1) {
      Pixels& p = last[bar.row];
      if (!p.empty() && (p.color != color_of(*bar.call) || from - p.to > 0.5)) flush(bar.row);
      p = {p.empty() ? from : p.from, to, color_of(*bar.call)};
      continue;
    }
    flush(bar.row);
    if (common - from < 0.5) common = from;
    if (to - common < 0.5) common = to;
    bool told = tooltips_ || !done;
    svg::Box called{from, y(bar.row), common - from, height}, all{common, y(bar.row), to - common, height};
    if (!told) {
      if (common > from) boxes[color.called].push_back(called);
      if (to > common) boxes[color.common].push_back(all);
      continue;
    }
    out.begin_group(tooltip(*bar.call));
    if (common > from) out.rect(called, fill(color.called));
    if (to > common) out.rect(all, fill(color.common));
    if (!done)
      out.rect({from, y(bar.row), std::max(to - from, 2.0), height},
               fmt::format("fill='none' stroke='{}' stroke-width='1.5'",
                           bar.call->status == "failed" ? svg::kAlarm : kWaits));
    out.end_group();
  }
  for (size_t row = 0; row < rows_; ++row) flush(row);
  for (const auto& [color, list] : boxes) out.rects(list, fmt::format("fill='{}'", color));
}

void TraceDrawing::draw_lane(svg::Drawing& out, const Lane& lane, double top) const {
  double size = std::min(svg::kText, lane_height_ - 1);
  out.text(
      kMargin, top + program_height_ / 2 + size / 3, fmt::format("rank {}", lane.rank),
      fmt::format("font-weight='500' fill='{}'", lane.record && lane.record->error.empty() ? svg::kInk : svg::kAlarm),
      size);
  if (hosts_ && lane.record && lane_height_ >= 28)
    out.text(kMargin, top + program_height_ / 2 + size / 3 + 13,
             svg::fitted(lane.record->host.substr(0, lane.record->host.find(' ')), 10, left_ - kMargin - 8),
             fmt::format("fill='{}'", svg::kMuted), 10);
  if (!lane.record) {
    out.text(left_ + 4, top + program_height_ / 2 + size / 3, "left no record",
             fmt::format("font-style='italic' fill='{}'", svg::kAlarm), size);
    return;
  }
  const auto& calls = lane.record->calls;
  if (calls.empty()) {
    out.text(left_ + 4, top + program_height_ / 2 + size / 3, "called nothing",
             fmt::format("font-style='italic' fill='{}'", svg::kMuted), size);
    return;
  }
  // Known of the program is what is between its first call that is remembered, and the record.
  int64_t first = calls.front().begin, until = lane.record->now;
  for (const TracedCall& c : calls) until = std::max(until, c.end);
  if (Span known{first, until}; shown(known)) {
    known = clipped(known);
    out.rect({x(known.begin), top, x(known.end) - x(known.begin), program_height_}, fmt::format("fill='{}'", kRuns));
  }
  std::vector<svg::Box> waits;  // those less than a pixel apart are one
  for (const Span& s : lane.waits)
    if (!waits.empty() && x(s.begin) - (waits.back().x + waits.back().width) < 0.4)
      waits.back().width = x(s.end) - waits.back().x;
    else
      waits.push_back({x(s.begin), top, x(s.end) - x(s.begin), program_height_});
  std::erase_if(waits, [](const svg::Box& box) { return box.width < 0.1; });
  out.rects(waits, fmt::format("fill='{}'", kWaits));
  draw_bars(out, lane, top);
  if (double room = error_height(lane); room > 0)
    out.text(left_, top + lane_height_ + room - 5,
             svg::fitted(lane.record->error, svg::kSmall, kWidth - kMargin - left_),
             fmt::format("fill='{}'", svg::kAlarm));
}

std::string TraceDrawing::draw() {
  std::vector<std::string> names;
  double widest = 0;
  for (const Lane& lane : lanes_)
    widest = std::max(widest, svg::text_width(fmt::format("rank {}", lane.rank), svg::kText));
  left_ = kMargin + widest + 16;

  // The fewer ranks, the more room each has.
  size_t count = std::max<size_t>(lanes_.size(), 1);
  double gap = count <= 8 ? 14 : count <= 20 ? 8 : 3;
  program_height_ = count <= 8 ? 16 : count <= 20 ? 12 : 8;
  row_height_ = count <= 8 ? (rows_ <= 5 ? 8 : 6) : count <= 20 ? 5 : 3;
  lane_height_ = program_height_ + 2 + row_height_ * static_cast<double>(rows_);

  auto entries = legend();
  svg::Drawing measure(kWidth, 0, "");
  double legend_height = measure.legend(kMargin, 0, kWidth - 2 * kMargin, entries);
  double top = kHeading + legend_height + (picture_.marks.empty() ? 0 : 14);
  double bottom = top + static_cast<double>(count) * (lane_height_ + gap);
  for (const Lane& lane : lanes_) bottom += error_height(lane);
  double notes = hidden_ > 0 ? 18 : 0;
  svg::Drawing out(kWidth, bottom + kAxis + notes, title());
  out.heading(kMargin, 38, title(), subtitle());
  out.legend(kMargin, kHeading - 16, kWidth - 2 * kMargin, entries);
  draw_axis(out, top - 6, bottom);
  double y = top;
  for (const Lane& lane : lanes_) {
    draw_lane(out, lane, y);
    y += lane_height_ + error_height(lane) + gap;
  }
  draw_marks(out, top - 16, bottom);
  if (hidden_ > 0)
    out.text(
        kMargin, bottom + kAxis,
        fmt::format("Shown are the ranks that failed, and those that others waited for longest; {} more are not shown.",
                    hidden_),
        fmt::format("fill='{}'", svg::kMuted));
  return out.text();
}

}  // namespace
}  // namespace tutti::trace_picture

namespace tutti {

std::string Trace::svg(const TracePicture& picture) const {
  return trace_picture::TraceDrawing(ranks_, lateness(), picture).draw();
}

}  // namespace tutti
