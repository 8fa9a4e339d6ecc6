// The picture of a curve.
#include "tutti/io/curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "io/svg.h"
#include "tutti/io/file.h"

namespace tutti::io {
namespace {

using Points = std::vector<std::pair<double, double>>;
using svg::Drawing;

constexpr double kWidth = 960, kHeight = 400, kMargin = 28, kTop = 112, kBottom = kHeight - 58;
constexpr size_t kFewValues = 30;  // the average of neighbors says nothing of so few
constexpr const char* kEachColor = "#b5cfea";

size_t neighbors(const std::vector<double>& values, int asked) {
  if (asked > 0) return static_cast<size_t>(asked);
  return values.size() < kFewValues ? 1 : std::max<size_t>(5, values.size() / 40 | 1);
}

// The mean of the finite values around the k-th.
std::optional<double> mean_around(const std::vector<double>& values, size_t k, size_t window) {
  size_t half = window / 2, begin = k < half ? 0 : k - half, end = std::min(values.size(), k + half + 1);
  size_t count = 0;
  for (size_t i = begin; i < end; ++i) count += std::isfinite(values[i]);
  if (count == 0) return {};
  double mean = 0;  // the sum of large values would not be finite
  for (size_t i = begin; i < end; ++i)
    if (std::isfinite(values[i])) mean += values[i] / static_cast<double>(count);
  return mean;
}

// "1.417": as many digits as the axis can show.
std::string value_text(double value, double step) {
  double size = std::abs(value);
  if (size != 0 && (size >= 1e6 || size < 1e-5)) return fmt::format("{:.3g}", value);
  int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(step))) + 2, 0, 6);
  return fmt::format("{:.{}f}", value, decimals);
}

class CurvePicture {
 public:
  CurvePicture(const std::vector<double>& values, const CurveOptions& options)
      : values_(values),
        options_(options),
        window_(neighbors(values, options.smooth)),
        drawing_(kWidth, kHeight, options.title.empty() ? options.y : options.title),
        y_ticks_(bounds()),
        x_ticks_(0, std::max<double>(1, static_cast<double>(values.size())), 11, false, 1) {
    double widest = 0;
    for (int k = 0; k < y_ticks_.count(); ++k)
      widest = std::max(widest, svg::text_width(y_ticks_.label(k), svg::kSmall));
    left_ = kMargin + widest + 10;
    right_ = kWidth - kMargin - 48;  // behind it stands the last value
  }

  std::string draw() {
    drawing_.heading(kMargin, 38, options_.title.empty() ? options_.y : options_.title, options_.subtitle);
    draw_axes();
    draw_curves();
    mark_gaps();
    draw_legend();
    return drawing_.text();
  }

 private:
  svg::Ticks bounds() const {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (double v : values_)
      if (std::isfinite(v)) {
        low = std::min(low, v);
        high = std::max(high, v);
      }
    return {low, high, 7, true};
  }
  // Of the k-th value, counted from 0.
  double x(double k) const {
    return left_ + (right_ - left_) * (k + 1) / std::max<double>(1, static_cast<double>(values_.size()));
  }
  // Halves, since the difference of the largest numbers is none.
  double y(double value) const {
    double low = y_ticks_.first() / 2, high = y_ticks_.last() / 2;
    return kBottom - (kBottom - kTop) * std::clamp((value / 2 - low) / (high - low), 0.0, 1.0);
  }

  void draw_axes() {
    std::string number = fmt::format("fill='{}'", svg::kMuted), middle = number + " text-anchor='middle'";
    for (int k = 0; k < y_ticks_.count(); ++k) {
      double at = y(y_ticks_.value(k));
      drawing_.line(left_, at, right_, at, fmt::format("stroke='{}'", k == 0 ? svg::kAxis : svg::kGrid));
      drawing_.text(left_ - 10, at + 4, y_ticks_.label(k), number + " text-anchor='end'");
    }
    for (int k = 0; k < x_ticks_.count(); ++k) {
      double at = x(x_ticks_.value(k) - 1);
      drawing_.line(at, kBottom, at, kBottom + 5, fmt::format("stroke='{}'", svg::kAxis));
      drawing_.text(at, kBottom + 19, x_ticks_.label(k), middle);
    }
    std::string name = fmt::format("font-weight='500' fill='{}'", svg::kInk);
    drawing_.text(kMargin, kTop - 18, svg::fitted(options_.y, svg::kSmall, kWidth / 2), name);
    drawing_.text((left_ + right_) / 2, kHeight - 18, svg::fitted(options_.x, svg::kSmall, right_ - left_),
                  name + " text-anchor='middle'");
  }

  void draw_line(const Points& points, const char* color, double width) {
    if (points.size() == 1)
      drawing_.circle(points[0].first, points[0].second, std::max(width, 2.0), fmt::format("fill='{}'", color));
    else
      drawing_.polyline(points, fmt::format("stroke='{}' stroke-width='{}'", color, width));
  }

  // Of more values than there are pixels, the extent of those that share one.
  void draw_each(const char* color, double width) {
    auto columns = static_cast<size_t>(right_ - left_);
    size_t share = values_.size() > 2 * columns ? (values_.size() + columns - 1) / columns : 1;
    Points points;
    for (size_t begin = 0; begin < values_.size(); begin += share) {
      size_t end = std::min(values_.size(), begin + share);
      double low = std::numeric_limits<double>::infinity(), high = -low;
      for (size_t i = begin; i < end; ++i)
        if (std::isfinite(values_[i])) {
          low = std::min(low, values_[i]);
          high = std::max(high, values_[i]);
        }
      if (low > high) {  // none
        draw_line(std::exchange(points, {}), color, width);
        continue;
      }
      double at = x(static_cast<double>(begin + end - 1) / 2);
      points.emplace_back(at, y(high));
      if (share > 1) points.emplace_back(at, y(low));
    }
    draw_line(points, color, width);
  }

  void draw_average() {
    size_t step = std::max<size_t>(1, values_.size() / 430);
    Points points;
    for (size_t k = 0; k < values_.size(); k = k + 1 == values_.size() ? k + 1 : std::min(k + step, values_.size() - 1))
      if (auto mean = mean_around(values_, k, window_))
        points.emplace_back(x(static_cast<double>(k)), y(*mean));
      else
        draw_line(std::exchange(points, {}), svg::kBlue, 2.2);
    draw_line(points, svg::kBlue, 2.2);
  }

  void draw_curves() {
    if (values_.empty()) {
      drawing_.text((left_ + right_) / 2, (kTop + kBottom) / 2, "there are no values",
                    fmt::format("text-anchor='middle' fill='{}'", svg::kMuted), svg::kText);
      return;
    }
    draw_each(window_ > 1 ? kEachColor : svg::kBlue, window_ > 1 ? 1 : 2);
    if (values_.size() < kFewValues)
      for (size_t i = 0; i < values_.size(); ++i)
        if (std::isfinite(values_[i]))
          drawing_.circle(x(static_cast<double>(i)), y(values_[i]), 2.5, fmt::format("fill='{}'", svg::kBlue));
    if (window_ > 1) draw_average();
    auto last = std::isfinite(values_.back()) ? mean_around(values_, values_.size() - 1, window_) : std::nullopt;
    if (!last) return;
    double at = x(static_cast<double>(values_.size()) - 1);
    drawing_.circle(at, y(*last), 3.5, fmt::format("fill='{}' stroke='#fff' stroke-width='1.5'", svg::kBlue));
    drawing_.text(at + 8, y(*last) + 4, value_text(*last, y_ticks_.step()),
                  fmt::format("font-weight='600' fill='{}'", svg::kBlue));
  }

  // What is not finite: a mark on the axis for each run of pixels.
  void mark_gaps() {
    std::optional<std::pair<double, double>> run;
    auto draw = [&] {
      if (run)
        drawing_.rect({run->first - 1, kBottom - 8, run->second - run->first + 2, 8},
                      fmt::format("fill='{}'", svg::kAlarm));
      run.reset();
    };
    for (size_t i = 0; i < values_.size(); ++i) {
      if (std::isfinite(values_[i])) continue;
      ++gaps_;
      double at = x(static_cast<double>(i));
      if (run && at - run->second > 1) draw();
      run = {run ? run->first : at, at};
    }
    draw();
  }

  void draw_legend() {
    std::vector<svg::LegendEntry> entries;
    std::string one = "each " + options_.x;
    if (window_ > 1) {
      entries.push_back({one, kEachColor, 2});
      entries.push_back({fmt::format("average of {} {}s", window_, options_.x), svg::kBlue, 2.5});
    } else {
      entries.push_back({one, svg::kBlue, 2.5});
    }
    if (gaps_ > 0) entries.push_back({fmt::format("{} not finite (NaN or infinity)", gaps_), svg::kAlarm});
    double width = svg::legend_width(entries);
    drawing_.legend(kWidth - kMargin - width, kTop - 28, width + 1, entries);
  }

  const std::vector<double>& values_;
  const CurveOptions& options_;
  const size_t window_;
  Drawing drawing_;
  const svg::Ticks y_ticks_, x_ticks_;
  double left_ = 0, right_ = 0;
  size_t gaps_ = 0;
};

}  // namespace

std::string draw_curve(const std::vector<double>& values, const CurveOptions& options) {
  return CurvePicture(values, options).draw();
}

void save_curve(const std::string& path, const std::vector<double>& values, const CurveOptions& options) {
  std::string text = draw_curve(values, options);
  write_atomically(path, [&](Output& out) { out.write(text); });
}

}  // namespace tutti::io
