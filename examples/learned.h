// Whether training did anything, for the examples: their exit status tells the tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

class Learned {
 public:
  /// The loss of each step; it comes back.
  double add(double loss) {
    losses_.push_back(loss);
    return loss;
  }
  /// 0 if every loss was a number and the last ones are lower than the first ones, else 1, which it says.
  int status() const {
    size_t part = std::max<size_t>(1, losses_.size() / 4);
    double first = 0, last = 0;
    for (size_t i = 0; i < losses_.size(); ++i) {
      if (!std::isfinite(losses_[i])) return failed("the loss of step %zu is %g", i + 1, losses_[i]);
      if (i < part) first += losses_[i] / double(part);
      if (i + part >= losses_.size()) last += losses_[i] / double(part);
    }
    if (losses_.size() > 1 && !(last < first)) return failed("the loss has not fallen: %g, then %g", first, last);
    return 0;
  }

 private:
  template <class... Args>
  static int failed(const char* format, Args... args) {
    std::fprintf(stderr, format, args...);
    std::fprintf(stderr, "\n");
    return 1;
  }
  std::vector<double> losses_;
};
