// Pictures of curves, and what all pictures share: ticks, text, coordinates.
#include "tutti/io/curve.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include "io/svg.h"
#include "tests/support/expect_ops.h"
#include "tests/support/xml.h"
#include "tutti/io/file.h"

namespace tutti {
namespace {

using io::svg::Ticks;
using test::xml_error;
using testing::HasSubstr;
using testing::Not;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<std::string> labels(const Ticks& ticks) {
  std::vector<std::string> list;
  for (int k = 0; k < ticks.count(); ++k) list.push_back(ticks.label(k));
  return list;
}
using Labels = std::vector<std::string>;

TEST(Ticks, AreRoundAndTellNeighborsApart) {
  EXPECT_EQ(labels({0, 1000, 6, false}), (Labels{"0", "200", "400", "600", "800", "1000"}));
  EXPECT_EQ(labels({1.31, 4.93, 7, true}), (Labels{"1", "2", "3", "4", "5"}));
  EXPECT_EQ(labels({0.113, 0.148, 6, true}), (Labels{"0.11", "0.12", "0.13", "0.14", "0.15"}));
  EXPECT_EQ(labels({0.3, 0.6, 4, true}), (Labels{"0.3", "0.4", "0.5", "0.6"}));  // 0.3 / 0.1 is less than 3
  EXPECT_EQ(labels({-250, 120, 6, true}), (Labels{"-300", "-200", "-100", "0", "100", "200"}));
  EXPECT_EQ(labels({0, 100000, 6, false}), (Labels{"0", "20k", "40k", "60k", "80k", "100k"}));
  EXPECT_EQ(labels({2e6, 4.5e6, 6, false}), (Labels{"2M", "2.5M", "3M", "3.5M", "4M", "4.5M"}));
  EXPECT_EQ(labels({0, 3e-7, 4, true}), (Labels{"0", "1e-7", "2e-7", "3e-7"}));
  EXPECT_EQ(labels({-1e40, 2e40, 4, true}), (Labels{"-1e40", "0", "1e40", "2e40"}));
  EXPECT_EQ(labels({0, 3, 11, false, 1}), (Labels{"0", "1", "2", "3"}));  // whole numbers
}

TEST(Ticks, CoverEveryRangeWithAFew) {
  const double sizes[] = {0, 1e-290, 1e-9, 0.3, 1, 7, 99.5, 1e6, 123456789, 1e290};
  for (double from : sizes)
    for (double size : sizes)
      for (double sign : {-1.0, 1.0})
        for (int most : {3, 6, 12}) {
          double low = sign * from, high = low + size;
          Ticks ticks(low, high, most, true);
          std::string what = fmt::format("{} .. {}, {}", low, high, most);
          ASSERT_GE(ticks.count(), 2) << what;
          ASSERT_LE(ticks.count(), most) << what;
          double slack = 1e-6 * ticks.step();
          EXPECT_LE(ticks.first(), low + slack) << what;
          EXPECT_GE(ticks.last(), high - slack) << what;
          if (size > 1e-8 * from && size > 1e-300) {
            EXPECT_LE(ticks.step(), most == 3 ? 2.5 * size : size) << what;
            Ticks inside(low, high, most, false);
            ASSERT_LE(inside.count(), most) << what;
            if (inside.count() > 0) {
              EXPECT_GE(inside.first(), low - slack) << what;
              EXPECT_LE(inside.last(), high + slack) << what;
            }
          }
          double mantissa = ticks.step() / std::pow(10, std::floor(std::log10(ticks.step() * 1.0001)));
          EXPECT_TRUE(std::abs(mantissa - 1) < 1e-6 || std::abs(mantissa - 2) < 1e-6 || std::abs(mantissa - 5) < 1e-6)
              << what << ": " << ticks.step();
          Labels list = labels(ticks);
          EXPECT_EQ(std::set<std::string>(list.begin(), list.end()).size(), list.size()) << what;
        }
}

TEST(Ticks, OfWhatIsNoRangeAreThoseOfOne) {
  for (auto [low, high] : {std::pair(NAN, NAN), {kInfinity, -kInfinity}, {0.0, kInfinity}, {0.0, 0.0}}) {
    Ticks ticks(low, high, 6, true);
    EXPECT_EQ(ticks.first(), 0);
    EXPECT_EQ(ticks.last(), 1);
  }
  Ticks backwards(5, 1, 6, true);
  EXPECT_EQ(backwards.first(), 1);
  EXPECT_EQ(backwards.last(), 5);
}

TEST(Svg, EscapesWhateverATextHolds) {
  EXPECT_EQ(io::svg::escaped("a<b> & 'c' \"d\""), "a&lt;b&gt; &amp; &#39;c&#39; &quot;d&quot;");
  EXPECT_EQ(io::svg::escaped("line\none\x01 é"), "line one  é");
  EXPECT_EQ(io::svg::escaped("bad \xff byte"), "bad ? byte");
  EXPECT_EQ(io::svg::escaped("no \xef\xbf\xbf character"), "no ? character");
}

TEST(Svg, CutsTextBetweenCharacters) {
  std::string text = "größer größer größer";
  EXPECT_EQ(io::svg::fitted(text, 12, 1000), text);
  std::string cut = io::svg::fitted(text, 12, 60);
  EXPECT_TRUE(cut.ends_with("…"));
  EXPECT_EQ(text.rfind(cut.substr(0, cut.size() - 3), 0), 0u);
  for (double width = 0; width < 60; ++width) {
    std::string shorter = io::svg::fitted("ööööööö", 12, width);
    EXPECT_LE(io::svg::text_width(shorter, 12), width);
    EXPECT_EQ(io::svg::escaped(shorter), shorter);  // no half of a character
  }
}

std::vector<double> falling(size_t count) {
  std::vector<double> values;
  for (size_t i = 0; i < count; ++i)
    values.push_back(1 + 3 * std::exp(-5.0 * static_cast<double>(i) / static_cast<double>(count)) +
                     0.1 * std::sin(static_cast<double>(i * i)));
  return values;
}

TEST(Curve, IsWellFormedAndSmallWhateverTheValues) {
  double most = std::numeric_limits<double>::max();
  std::vector<std::vector<double>> all{{},
                                       {2.5},
                                       {3, 2},
                                       falling(10),
                                       falling(1000),
                                       falling(100000),
                                       std::vector<double>(100, 7.25),
                                       std::vector<double>(100, NAN),
                                       {NAN, 1, kInfinity, 2, -kInfinity, 3, NAN},
                                       {most, -most, 0, most},
                                       {1e-310, 2e-310, -1e-310},
                                       {1e15, 1e15 + 1, 1e15 - 1}};
  all.push_back(falling(500));
  for (double& v : all.back()) v *= -1e-12;
  all.push_back(falling(3000));
  for (size_t i = 0; i < all.back().size(); i += 2) all.back()[i] = NAN;
  for (const auto& values : all)
    for (int smooth : {0, 1, 50}) {
      std::string text = io::draw_curve(values, {.title = "a < b & 'c'", .subtitle = "\"d\"", .smooth = smooth});
      EXPECT_EQ(xml_error(text), "") << values.size() << " values";
      EXPECT_LT(text.size(), 60000u);
      EXPECT_THAT(text, Not(HasSubstr("nan")));
      EXPECT_THAT(text, Not(HasSubstr("inf'")));
    }
}

TEST(Curve, NamesAxesAndLines) {
  std::string text =
      io::draw_curve(falling(1000), {.title = "Loss of <GPT>", .subtitle = "4 ranks", .y = "loss (nats)"});
  for (const char* part : {">Loss of &lt;GPT&gt;<", ">4 ranks<", ">loss (nats)<", ">step<", ">each step<",
                           ">average of 25 steps<", ">1000<", ">0<"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, Not(HasSubstr("not finite")));
  std::string few = io::draw_curve(falling(10), {.x = "epoch", .y = "accuracy"});
  for (const char* part : {">accuracy<", ">epoch<", ">each epoch<"}) EXPECT_THAT(few, HasSubstr(part));
  EXPECT_THAT(few, Not(HasSubstr("average")));
}

TEST(Curve, MarksWhatIsNotFinite) {
  std::vector<double> values = falling(100);
  values[20] = NAN;
  values[50] = values[51] = kInfinity;
  EXPECT_THAT(io::draw_curve(values), HasSubstr(">3 not finite (NaN or infinity)<"));
  EXPECT_THAT(io::draw_curve({}), HasSubstr(">there are no values<"));
}

// The last value stands beside the curve: the mean of the last few where the curve is smoothed.
TEST(Curve, SaysTheLastValue) {
  EXPECT_THAT(io::draw_curve({4, 3, 2.125}), HasSubstr(">2.125<"));
  std::vector<double> values(100, 2);
  values.back() = 3;
  EXPECT_THAT(io::draw_curve(values, {.smooth = 3}), HasSubstr(">2.500<"));
  EXPECT_THAT(io::draw_curve({1, 2, NAN}), Not(HasSubstr("font-weight='600' fill='#2a6cb0'")));
}

TEST(Curve, IsSaved) {
  std::string folder = (std::filesystem::temp_directory_path() / "tutti-curve-XXXXXX").string();
  ASSERT_TRUE(::mkdtemp(folder.data()));
  io::save_curve(folder + "/loss.svg", {3, 2, 1}, {.title = "loss"});
  EXPECT_EQ(io::read_file(folder + "/loss.svg"), io::draw_curve({3, 2, 1}, {.title = "loss"}));
  EXPECT_THROW(io::save_curve(folder + "/nowhere/loss.svg", {1}), FileError);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tutti
