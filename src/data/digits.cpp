// Digits drawn by strokes. A digit is a few curves through given points on a unit square (x to the right, y down); the
// points are moved a little, the curves turned into short lines, and a pixel's ink is its distance to the nearest line.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/parallel.h"
#include "data/random.h"
#include "tutti/data/readers.h"
#include "tutti/ops.h"

namespace tutti::data {
namespace {

struct Point {
  double x, y;
};
using Stroke = std::vector<Point>;
using Drawing = std::vector<Stroke>;

const std::vector<Drawing>& drawings_of(int digit) {
  // Some digits are written in more than one way.
  static const std::vector<Drawing> all[10] = {
      {{{{.5, .05}, {.2, .2}, {.13, .5}, {.2, .8}, {.5, .95}, {.8, .8}, {.87, .5}, {.8, .2}, {.5, .05}}}},
      {{{{.52, .05}, {.52, .5}, {.52, .95}}},
       {{{.3, .25}, {.42, .16}, {.55, .05}}, {{.55, .05}, {.54, .5}, {.53, .95}}}},
      {{{{.18, .27}, {.3, .09}, {.55, .05}, {.78, .18}, {.76, .4}, {.5, .65}, {.17, .93}},
        {{.17, .93}, {.5, .92}, {.85, .93}}}},
      {{{{.2, .14}, {.48, .05}, {.74, .17}, {.7, .38}, {.45, .48}},
        {{.45, .48}, {.76, .56}, {.82, .77}, {.52, .95}, {.18, .86}}}},
      {{{{.62, .05}, {.38, .35}, {.14, .66}},
        {{.14, .66}, {.5, .66}, {.88, .66}},
        {{.64, .38}, {.63, .65}, {.62, .95}}},
       {{{.22, .06}, {.2, .3}, {.2, .5}}, {{.2, .5}, {.5, .52}, {.76, .48}}, {{.78, .06}, {.75, .5}, {.74, .95}}}},
      {{{{.8, .06}, {.5, .06}, {.27, .07}},
        {{.27, .07}, {.24, .25}, {.22, .43}},
        {{.22, .43}, {.5, .37}, {.78, .5}, {.8, .75}, {.5, .95}, {.17, .86}}}},
      {{{{.7, .05}, {.4, .22}, {.22, .5}, {.2, .76}, {.45, .95}, {.75, .85}, {.78, .63}, {.55, .5}, {.24, .64}}}},
      {{{{.15, .08}, {.5, .08}, {.85, .07}}, {{.85, .07}, {.6, .45}, {.42, .95}}},
       {{{.15, .08}, {.5, .08}, {.85, .07}}, {{.85, .07}, {.6, .45}, {.42, .95}}, {{.38, .5}, {.55, .5}, {.72, .5}}}},
      {{{{.5, .47},
         {.24, .33},
         {.28, .12},
         {.5, .05},
         {.72, .12},
         {.76, .33},
         {.5, .47},
         {.2, .65},
         {.22, .87},
         {.5, .95},
         {.78, .87},
         {.8, .65},
         {.5, .47}}}},
      {{{{.76, .3}, {.6, .47}, {.33, .45}, {.22, .25}, {.4, .06}, {.66, .08}, {.77, .3}},
        {{.77, .3}, {.74, .62}, {.62, .95}}}},
  };
  return all[digit];
}

// A smooth curve through the points (Catmull–Rom), as short lines.
void flatten_curve(const Stroke& points, std::vector<Point>& out) {
  constexpr int pieces = 6;
  size_t n = points.size();
  for (size_t i = 0; i + 1 < n; ++i) {
    Point a = points[i > 0 ? i - 1 : 0], b = points[i], c = points[i + 1], d = points[std::min(i + 2, n - 1)];
    for (int k = 0; k < pieces; ++k) {
      double t = static_cast<double>(k) / pieces, t2 = t * t, t3 = t2 * t;
      auto blend = [&](double p, double q, double r, double s) {
        return 0.5 * (2 * q + (r - p) * t + (2 * p - 5 * q + 4 * r - s) * t2 + (3 * q - p - 3 * r + s) * t3);
      };
      out.push_back({blend(a.x, b.x, c.x, d.x), blend(a.y, b.y, c.y, d.y)});
    }
  }
  out.push_back(points[n - 1]);
}

double distance(Point p, Point a, Point b) {
  double dx = b.x - a.x, dy = b.y - a.y, length = dx * dx + dy * dy;
  double t = length > 0 ? std::clamp(((p.x - a.x) * dx + (p.y - a.y) * dy) / length, 0.0, 1.0) : 0;
  double ex = p.x - a.x - t * dx, ey = p.y - a.y - t * dy;
  return std::sqrt(ex * ex + ey * ey);
}

constexpr int kSide = 28;

// Where a point of the unit square comes to lie in the image.
struct Placement {
  double xx, xy, yx, yy, x, y;
  explicit Placement(Random& random) {
    double angle = random.uniform(-0.25, 0.25), shear = random.uniform(-0.25, 0.25);
    double width = random.uniform(11, 17), height = random.uniform(17, 21.5);
    double c = std::cos(angle), s = std::sin(angle);
    xx = c * width;
    xy = (shear * c - s) * height;
    yx = s * width;
    yy = (shear * s + c) * height;
    x = kSide / 2.0 + random.uniform(-2, 2);
    y = kSide / 2.0 + random.uniform(-2, 2);
  }
  Point operator()(Point p) const {
    double u = p.x - 0.5, v = p.y - 0.5;
    return {x + xx * u + xy * v, y + yx * u + yy * v};
  }
};

// Brings the distance of the pixels around a line up to date; a line gives no ink to pixels further away than kReach.
void mark(Point a, Point b, double* nearest) {
  constexpr double kReach = 2.5;
  auto first = [](double v) { return static_cast<int>(std::clamp(v - kReach, 0.0, double{kSide})); };
  auto last = [](double v) { return static_cast<int>(std::clamp(v + kReach, 0.0, double{kSide})); };
  for (int y = first(std::min(a.y, b.y)); y < last(std::max(a.y, b.y)); ++y)
    for (int x = first(std::min(a.x, b.x)); x < last(std::max(a.x, b.x)); ++x) {
      double& d = nearest[y * kSide + x];
      d = std::min(d, distance({x + 0.5, y + 0.5}, a, b));
    }
}

void draw(int digit, Random& random, float* pixels) {
  const auto& ways = drawings_of(digit);
  Drawing drawing = ways[random.below(ways.size())];
  Placement place(random);
  double thickness = random.uniform(0.7, 1.5), ink = random.uniform(0.8, 1), noise = random.uniform(0, 0.08);
  double nearest[kSide * kSide];
  std::fill(std::begin(nearest), std::end(nearest), 100.0);
  for (Stroke& stroke : drawing) {
    for (Point& p : stroke) p = place({p.x + random.uniform(-.035, .035), p.y + random.uniform(-.035, .035)});
    std::vector<Point> line;
    flatten_curve(stroke, line);
    for (size_t i = 0; i + 1 < line.size(); ++i) mark(line[i], line[i + 1], nearest);
  }
  for (int i = 0; i < kSide * kSide; ++i) {
    double value = ink * std::clamp(thickness + 0.5 - nearest[i], 0.0, 1.0) + noise * random.uniform(-1, 1);
    pixels[i] = static_cast<float>(std::clamp(value, 0.0, 1.0));
  }
}

}  // namespace

Digits digits(int64_t count, uint64_t seed) {
  check<ValueError>(count >= 0, "digits", "{} images", count);
  Digits result{empty({count, 1, kSide, kSide}, {.dtype = f32, .device = Device()}),
                empty({count}, {.dtype = i64, .device = Device()})};
  auto* pixels = result.images.data<float>();
  auto* labels = result.labels.data<int64_t>();
  parallel_for(count, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Random random(mix(seed, static_cast<uint64_t>(i)));
      labels[i] = static_cast<int64_t>(random.below(10));
      draw(static_cast<int>(labels[i]), random, pixels + i * kSide * kSide);
    }
  });
  return result;
}

}  // namespace tutti::data
