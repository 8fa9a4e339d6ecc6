#include "io/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "io/json.h"

namespace tutti::io::svg {
namespace {

// mantissa * 10^exponent, rounded once.
double decimal(int64_t mantissa, int exponent) {
  return std::strtod(fmt::format("{}e{}", mantissa, exponent).c_str(), nullptr);
}

constexpr double kLargest = 1e300, kSmallest = 1e-300;  // differences and steps of these are still numbers
constexpr double kNearest = 1e-9;                       // bounds closer than this, relative to them, are one

std::pair<double, double> sensible(double low, double high) {
  if (!std::isfinite(low) || !std::isfinite(high)) return {0, 1};
  if (low > high) std::swap(low, high);
  low = std::clamp(low, -kLargest, kLargest);
  high = std::clamp(high, -kLargest, kLargest);
  double most = std::max(std::abs(low), std::abs(high));
  if (most < kSmallest) return {0, 1};
  if (high - low > most * kNearest) return {low, high};
  return {low - most / 10, high + most / 10};
}

// A coordinate, counted in tenths of a pixel.
int64_t tenths(double x) { return std::llround(std::clamp(x, -1e6, 1e6) * 10); }
std::string from_tenths(int64_t count) {
  std::string text = count < 0 ? "-" : "";
  int64_t size = std::abs(count);
  if (size >= 10 || size == 0) text += std::to_string(size / 10);
  if (size % 10) text += "." + std::to_string(size % 10);
  return text;
}
std::string pixels(double x) { return from_tenths(tenths(x)); }
// Behind another coordinate: a minus sign separates as well as a space does.
void append_next(std::string& path, int64_t count) {
  if (count >= 0) path += ' ';
  path += from_tenths(count);
}

constexpr double kSwatch = 14, kSwatchGap = 6, kEntryGap = 20, kLegendLine = 20;

double entry_width(const LegendEntry& entry) { return kSwatch + kSwatchGap + 1.06 * text_width(entry.text, kSmall); }

}  // namespace

Ticks::Ticks(double low, double high, int most, bool cover, double least) {
  std::tie(low, high) = sensible(low, high);
  exponent_ = static_cast<int>(std::floor(std::log10((high - low) / most))) - 1;
  for (;; mantissa_ = mantissa_ == 1 ? 2 : mantissa_ == 2 ? 5 : 1, exponent_ += mantissa_ == 1) {
    double size = step();
    if (size < least || !(size > 0)) continue;
    double from = low / size, to = high / size;  // in steps, with what rounding may add to a whole number
    from = cover ? std::floor(from + kNearest) : std::ceil(from - kNearest);
    to = cover ? std::ceil(to - kNearest) : std::floor(to + kNearest);
    if (to - from + 1 > most) continue;
    index_ = static_cast<int64_t>(from);
    count_ = std::max(static_cast<int>(to - from) + 1, 0);
    return;
  }
}

double Ticks::step() const { return decimal(mantissa_, exponent_); }
double Ticks::value(int k) const { return decimal((index_ + k) * mantissa_, exponent_); }

std::string Ticks::label(int k) const {
  int64_t digits = (index_ + k) * mantissa_;
  if (digits == 0) return "0";
  double most = std::max(std::abs(first()), std::abs(last()));
  if (exponent_ >= 0 && most < 1e4) return fmt::format("{:.0f}", value(k));
  if (exponent_ >= 0 && most < 1e15) {
    auto [size, letter] = most >= 1e12  ? std::pair(12, "T")
                          : most >= 1e9 ? std::pair(9, "G")
                          : most >= 1e6 ? std::pair(6, "M")
                                        : std::pair(3, "k");
    return fmt::format("{:.15g}{}", decimal(digits, exponent_ - size), letter);
  }
  if (exponent_ < 0 && exponent_ >= -6 && most < 1e6) return fmt::format("{:.{}f}", value(k), -exponent_);
  int exponent = exponent_;
  for (; digits % 10 == 0; digits /= 10) ++exponent;
  std::string text = std::to_string(std::abs(digits));
  exponent += static_cast<int>(text.size()) - 1;
  if (text.size() > 1) text.insert(1, ".");
  return fmt::format("{}{}e{}", digits < 0 ? "-" : "", text, exponent);
}

std::string escaped(std::string_view text) {
  bool whole = is_utf8(text);
  std::string out;
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '\'')
      out += "&#39;";
    else if (c == '"')
      out += "&quot;";
    else if (byte < 0x20 || byte == 0x7f)
      out += ' ';
    else if (byte >= 0x80 && !whole)
      out += '?';
    else
      out += c;
  }
  // U+FFFE and U+FFFF, which XML refuses, are the only ones left.
  for (const char* refused : {"\xef\xbf\xbe", "\xef\xbf\xbf"})
    for (size_t at; (at = out.find(refused)) != std::string::npos;) out.replace(at, 3, "?");
  return out;
}

// Roughly those of Helvetica, which what replaces it shares.
double text_width(std::string_view text, double size) {
  double em = 0;
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0) == 0x80) continue;  // the rest of a character
    if (std::string_view("iIjl.,:;'|!").find(c) != std::string_view::npos)
      em += 0.26;
    else if (std::string_view("frt()[]{}-/ \"").find(c) != std::string_view::npos)
      em += 0.32;
    else if (std::string_view("mwMW@%").find(c) != std::string_view::npos)
      em += 0.86;
    else
      em += (c >= 'A' && c <= 'Z') || byte >= 0x80 ? 0.67 : 0.56;
  }
  return em * size;
}

std::string fitted(std::string_view text, double size, double width) {
  if (text_width(text, size) <= width) return std::string(text);
  size_t end = text.size();
  auto cut = [&] { return std::string(text.substr(0, end)) + "…"; };
  while (end > 0 && text_width(cut(), size) > width) {
    --end;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  }
  return end > 0 ? cut() : "";
}

Drawing::Drawing(double width, double height, std::string_view title)
    : width_(width), height_(height), title_(escaped(title)) {}

namespace {

// In tenths of a pixel. Both edges are rounded, so that neighbors meet; nothing vanishes.
struct Edges {
  explicit Edges(const Box& box)
      : left(tenths(box.x)),
        top(tenths(box.y)),
        width(std::max<int64_t>(tenths(box.x + box.width) - left, 1)),
        height(tenths(box.y + box.height) - top) {}
  int64_t left, top, width, height;
};

}  // namespace

void Drawing::rect(const Box& box, std::string_view attributes) {
  Edges e(box);
  body_ += fmt::format("<rect x='{}' y='{}' width='{}' height='{}' {}/>\n", from_tenths(e.left), from_tenths(e.top),
                       from_tenths(e.width), from_tenths(e.height), attributes);
}

void Drawing::rects(const std::vector<Box>& boxes, std::string_view attributes) {
  if (boxes.empty()) return;
  std::string path;
  for (const Box& box : boxes) {
    Edges e(box);
    path += fmt::format("M{} {}h{}v{}h-{}z", from_tenths(e.left), from_tenths(e.top), from_tenths(e.width),
                        from_tenths(e.height), from_tenths(e.width));
  }
  body_ += fmt::format("<path d='{}' {}/>\n", path, attributes);
}

void Drawing::begin_group(std::string_view tooltip) { body_ += fmt::format("<g><title>{}</title>", escaped(tooltip)); }
void Drawing::end_group() { body_ += "</g>\n"; }

void Drawing::line(double x1, double y1, double x2, double y2, std::string_view attributes) {
  body_ += fmt::format("<path d='M{} {}L{} {}' {}/>\n", pixels(x1), pixels(y1), pixels(x2), pixels(y2), attributes);
}

void Drawing::circle(double x, double y, double radius, std::string_view attributes) {
  body_ += fmt::format("<circle cx='{}' cy='{}' r='{}' {}/>\n", pixels(x), pixels(y), pixels(radius), attributes);
}

void Drawing::polyline(const std::vector<std::pair<double, double>>& points, std::string_view attributes) {
  if (points.empty()) return;
  int64_t x = tenths(points[0].first), y = tenths(points[0].second);
  std::string path = fmt::format("M{} {}", from_tenths(x), from_tenths(y));
  char command = 0;
  for (size_t k = 1; k < points.size(); ++k) {
    int64_t to_x = tenths(points[k].first), to_y = tenths(points[k].second);
    if (to_x == x && to_y == y) continue;
    std::string move = from_tenths(to_x - x);
    if (command && move[0] != '-') path += ' ';
    if (!command) path += command = 'l';
    path += move;
    append_next(path, to_y - y);
    x = to_x;
    y = to_y;
  }
  body_ +=
      fmt::format("<path fill='none' stroke-linejoin='round' stroke-linecap='round' d='{}' {}/>\n", path, attributes);
}

void Drawing::text(double x, double y, std::string_view text, std::string_view attributes, double size) {
  body_ += fmt::format("<text x='{}' y='{}' font-size='{}' {}>{}</text>\n", pixels(x), pixels(y), size, attributes,
                       escaped(text));
}

void Drawing::heading(double x, double y, std::string_view title, std::string_view subtitle) {
  text(x, y, fitted(title, kTitle * 1.06, width_ - 2 * x), fmt::format("font-weight='600' fill='{}'", kInk), kTitle);
  text(x, y + 21, fitted(subtitle, kText, width_ - 2 * x), fmt::format("fill='{}'", kMuted), kText);
}

double Drawing::legend(double x, double y, double width, const std::vector<LegendEntry>& entries) {
  double at = x, top = y;
  for (const LegendEntry& entry : entries) {
    double needs = entry_width(entry);
    if (at > x && at + needs > x + width) {
      at = x;
      top += kLegendLine;
    }
    if (entry.line > 0)
      line(at, top + 6, at + kSwatch, top + 6,
           fmt::format("stroke='{}' stroke-width='{}' stroke-linecap='round'", entry.color, entry.line));
    else
      rect({at + 1, top, 12, 12},
           fmt::format("fill='{}' rx='2'{}", entry.color,
                       entry.border.empty() ? "" : fmt::format(" stroke='{}' stroke-width='1.5'", entry.border)));
    text(at + kSwatch + kSwatchGap, top + 10, entry.text, fmt::format("fill='{}'", kMuted));
    at += needs + kEntryGap;
  }
  return top + kLegendLine - y;
}

double legend_width(const std::vector<LegendEntry>& entries) {
  double width = 0;
  for (const LegendEntry& entry : entries) width += entry_width(entry) + (width > 0 ? kEntryGap : 0);
  return width;
}

std::string Drawing::text() const {
  return fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' viewBox='0 0 {0} {1}' role='img' "
      "aria-label='{2}' "
      "font-family='-apple-system,Segoe UI,Helvetica Neue,Helvetica,Arial,Liberation Sans,sans-serif'>\n"
      "<rect x='.5' y='.5' width='{3}' height='{4}' rx='8' fill='#fff' stroke='#dde2e7'/>\n{5}</svg>\n",
      pixels(width_), pixels(height_), title_, pixels(width_ - 1), pixels(height_ - 1), body_);
}

}  // namespace tutti::io::svg
