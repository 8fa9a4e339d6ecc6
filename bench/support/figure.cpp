#include "bench/support/figure.h"

#include <fmt/core.h>

namespace bench {
namespace {

struct Counts {
  int figures = 0, met = 0, missed = 0;
};
Counts& counts() {
  static Counts c;
  return c;
}

bool is_of_ratio(const Want& want) { return want.kind == Want::ratio_at_most || want.kind == Want::ratio_at_least; }
bool is_upper(const Want& want) { return want.kind == Want::ratio_at_most || want.kind == Want::value_at_most; }

// Four digits, and no exponents where people read.
std::string number(double v) {
  return std::abs(v) >= 1000 && std::abs(v) < 1e9 ? fmt::format("{:.0f}", v) : fmt::format("{:.4g}", v);
}

std::string want_text(const Figure& f) {
  if (f.want.kind == Want::nothing) return "-";
  return fmt::format("{}{}{}", is_upper(f.want) ? "<=" : ">=", number(f.want.bound), is_of_ratio(f.want) ? "" : f.unit);
}

}  // namespace

void report(const Figure& f) {
  double ratio = f.value / f.peer_value;
  double judged = is_of_ratio(f.want) ? ratio : f.value;
  std::string met = "-";
  if (f.want.kind != Want::nothing && !std::isnan(judged)) {
    bool yes = is_upper(f.want) ? judged <= f.want.bound : judged >= f.want.bound;
    met = yes ? "yes" : "no";
    ++(yes ? counts().met : counts().missed);
  }
  ++counts().figures;

  bool has_peer = !std::isnan(f.peer_value);
  std::string line =
      fmt::format("figure name={} value={} unit={} peer={} ratio={} want={} met={}", f.name, number(f.value), f.unit,
                  has_peer ? fmt::format("{}:{}", f.peer, number(f.peer_value)) : "none",
                  has_peer ? number(ratio) : "-", want_text(f), met);
  for (auto& [key, value] : f.extra)
    if (!std::isnan(value)) line += fmt::format(" {}={}", key, number(value));
  fmt::print("{}\n", line);
}

void report_summary() {
  fmt::print("summary figures={} met={} missed={}\n", counts().figures, counts().met, counts().missed);
}

}  // namespace bench
