// A curve as an SVG picture, for the examples.
#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

/// Writes values over their index, with a smoothed line on top. False: the file cannot be written.
inline bool draw_curve(const std::string& path, const std::vector<double>& values, const std::string& title) {
  constexpr double width = 720, height = 360, left = 56, bottom = 36, top = 36, right = 16;
  if (values.empty()) return false;
  double low = *std::min_element(values.begin(), values.end()), high = *std::max_element(values.begin(), values.end());
  double step = std::pow(10, std::floor(std::log10(std::max(high - low, 1e-6))));
  if ((high - low) / step < 4) step /= 2;
  low = std::floor(low / step) * step;
  high = std::max(low + step, std::ceil(high / step) * step);
  auto x = [&](double i) { return left + (width - left - right) * i / std::max<double>(1, double(values.size() - 1)); };
  auto y = [&](double v) { return height - bottom - (height - top - bottom) * (v - low) / (high - low); };
  auto number = [](double v) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", v);
    return std::string(text);
  };
  auto line = [&](const std::vector<double>& points, const std::string& style) {
    std::string text = "<polyline fill='none' " + style + " points='";
    for (size_t i = 0; i < points.size(); ++i) text += number(x(double(i))) + "," + number(y(points[i])) + " ";
    return text + "'/>\n";
  };
  std::vector<double> smooth;
  for (double v : values) smooth.push_back(smooth.empty() ? v : 0.95 * smooth.back() + 0.05 * v);

  std::ofstream out(path);
  out << "<svg xmlns='http://www.w3.org/2000/svg' width='" << width << "' height='" << height
      << "' font-family='sans-serif' font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n"
      << "<text x='" << left << "' y='22' font-size='15'>" << title << "</text>\n";
  for (double v = low; v <= high + step / 2; v += step)
    out << "<line x1='" << left << "' x2='" << width - right << "' y1='" << y(v) << "' y2='" << y(v)
        << "' stroke='#ddd'/>\n<text x='" << left - 6 << "' y='" << y(v) + 4 << "' text-anchor='end'>" << number(v)
        << "</text>\n";
  for (int k = 0; k <= 4; ++k) {
    double i = std::round(double(values.size() - 1) * k / 4);
    out << "<text x='" << x(i) << "' y='" << height - 14 << "' text-anchor='middle'>" << i + 1 << "</text>\n";
  }
  out << line(values, "stroke='#9cc3e6' stroke-width='1'") << line(smooth, "stroke='#1f5fa8' stroke-width='2'")
      << "</svg>\n";
  return bool(out);
}
