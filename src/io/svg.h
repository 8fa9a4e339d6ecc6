// Pictures as SVG: shapes and text on a white card, and the ticks, axes and legends that all pictures share. White,
// with a border of its own, so that it can be read on a dark page too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::io::svg {

// The colors and sizes of all pictures.
inline constexpr const char* kInk = "#1f2933";                 // titles
inline constexpr const char* kMuted = "#5f6b78";               // what axes and legends say
inline constexpr const char* kGrid = "#e9edf1";                // lines behind the data
inline constexpr const char* kAxis = "#b4bdc7";                // lines that data stand on
inline constexpr const char* kBlue = "#2a6cb0";                // the data
inline constexpr const char* kAlarm = "#cf222e";               // failures
inline constexpr double kTitle = 18, kText = 13, kSmall = 12;  // pixels

/// Values on an axis: one, two or five times a power of ten apart.
class Ticks {
 public:
  /// At most `most` (at least 2) between low and high; `cover` also takes the next outside of both, one more at each
  /// end at most. `least`: they are no closer than that power of ten (1: whole numbers). Bounds that are not finite, or
  /// too close to be told apart, are replaced by some that are.
  Ticks(double low, double high, int most, bool cover, double least = 0);
  int count() const { return count_; }
  double value(int k) const;
  /// "0.25", "1500", "20k", "3e-07": as many digits as tell neighbors apart.
  std::string label(int k) const;
  double first() const { return value(0); }
  double last() const { return value(count_ - 1); }
  double step() const;

 private:
  int64_t index_ = 0;  // of the first, in steps from zero
  int mantissa_ = 1, exponent_ = 0, count_ = 0;
};

/// The text with what XML does not take as text replaced: a name, or an error's text, may hold anything.
std::string escaped(std::string_view text);
/// About as wide as it is drawn, in pixels.
double text_width(std::string_view text, double size);
/// The text, or its beginning and "…" where it is wider than that.
std::string fitted(std::string_view text, double size, double width);

/// A sample of how something is drawn, and what that is.
struct LegendEntry {
  std::string text, color;
  double line = 0;          // a line of this width; 0: a filled box
  std::string border = {};  // color of the box's outline
};

struct Box {
  double x, y, width, height;
};

/// Attributes are those of SVG, as text: "fill='red' rx='2'". Coordinates are in pixels, written to a tenth.
class Drawing {
 public:
  Drawing(double width, double height, std::string_view title);
  void rect(const Box& box, std::string_view attributes);
  /// The same of many, as one path.
  void rects(const std::vector<Box>& boxes, std::string_view attributes);
  void line(double x1, double y1, double x2, double y2, std::string_view attributes);
  void circle(double x, double y, double radius, std::string_view attributes);
  /// Through points. Attributes say how it is drawn; it is not filled.
  void polyline(const std::vector<std::pair<double, double>>& points, std::string_view attributes);
  void text(double x, double y, std::string_view text, std::string_view attributes, double size = kSmall);
  /// What is drawn from here to end_group() shows a text when the pointer is on it.
  void begin_group(std::string_view tooltip);
  void end_group();
  /// Title and subtitle, each on one line of the card.
  void heading(double x, double y, std::string_view title, std::string_view subtitle);
  /// Entries one after the other from x, on as many lines as they need up to x + width; returns the height of those.
  double legend(double x, double y, double width, const std::vector<LegendEntry>& entries);
  double width() const { return width_; }
  double height() const { return height_; }
  /// The picture.
  std::string text() const;

 private:
  double width_, height_;
  std::string title_, body_;
};

/// How wide a legend is on one line.
double legend_width(const std::vector<LegendEntry>& entries);

}  // namespace tutti::io::svg
