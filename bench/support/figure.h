// One line of output a figure, for people and for scripts.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace bench {

/// What a figure should be. A ratio is value over peer.
struct Want {
  enum Kind { nothing, ratio_at_most, ratio_at_least, value_at_most, value_at_least } kind = nothing;
  double bound = 0;
};

struct Figure {
  std::string name;
  double value = NAN;
  std::string unit;
  std::string peer = {};    // who does the same work
  double peer_value = NAN;  // NaN: that peer is not there
  Want want = {};
  std::vector<std::pair<std::string, double>> extra = {};  // further keys at the end of the line; NaN ones are left out
};

/// figure name=add4 value=0.31 unit=us peer=libtorch:0.92 ratio=0.337 want=<=0.35 met=yes spread=0.06
void report(const Figure& figure);
/// summary figures=3 met=1 missed=1: of all that were reported.
void report_summary();

}  // namespace bench
