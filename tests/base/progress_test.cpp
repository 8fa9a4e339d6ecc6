#include "tutti/progress.h"

#include <stdlib.h>

#include <thread>

#include "tests/support/expect_ops.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Screen {
  std::string text;
  double now = 0;
  ProgressOptions options(bool terminal) {
    return {.label = "epoch 1",
            .terminal = terminal,
            .width = 80,
            .write = [this](std::string_view more) { text += more; },
            .clock = [this] { return now; }};
  }
  std::string last() const { return text.substr(text.rfind('\r') + 1); }
};

TEST(Progress, DrawsOneLineOnATerminal) {
  Screen screen;
  {
    auto options = screen.options(true);
    options.color = true;
    Progress bar(1000, options);
    EXPECT_THAT(screen.last(), HasSubstr("| 0/1000\x1b[K"));  // nobody knows for how long
    for (int i = 0; i < 420; ++i) {
      screen.now += 0.1;
      bar.step({{"loss", 1.0 / (i + 1)}, {"rate", 3}});
    }
    EXPECT_EQ(screen.text.find('\n'), std::string::npos);
    EXPECT_THAT(screen.last(), HasSubstr("epoch 1  42%|"));
    EXPECT_THAT(screen.last(), HasSubstr("| 420/1000, 00:58 left, 10.0/s, loss 0.002381, rate 3"));
    EXPECT_THAT(screen.last(), HasSubstr("\x1b[32m"));
    bar.print("a note");
    EXPECT_THAT(screen.text, HasSubstr("\ra note\x1b[K\n"));
  }
  EXPECT_TRUE(screen.text.ends_with("\n"));
}

TEST(Progress, FitsItsLine) {
  for (int width : {1, 20, 40, 60, 200}) {
    Screen screen;
    auto options = screen.options(true);
    options.color = false;
    options.width = width;
    Progress bar(10, options);
    screen.now += 1;
    bar.step({{"a long name of a value", 1}, {"another long name of a value", 2}});
    std::string line = screen.last();
    line.resize(line.find('\x1b'));
    EXPECT_EQ(line.find('\x1b'), std::string::npos);
    size_t columns =
        static_cast<size_t>(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }));
    EXPECT_LT(columns, static_cast<size_t>(std::max(width, 20 + 1))) << line;
  }
}

// Values are shown whole or not at all.
TEST(Progress, LeavesOutValuesThatDoNotFit) {
  Screen screen;
  auto options = screen.options(true);
  options.color = false;
  options.width = 70;
  Progress bar(10, options);
  screen.now += 1;
  bar.step({{"loss", 0.5}, {"a long name of a value", 1}, {"x", 2}});
  EXPECT_THAT(screen.last(), HasSubstr("| 1/10, 00:09 left, 1.0/s, loss 0.5000\x1b[K"));
}

TEST(Progress, NumbersAreShortAndOfOneWidth) {
  Screen screen;
  auto options = screen.options(true);
  options.width = 200;
  Progress bar(10, options);
  auto shown = [&](double value) {
    screen.now += 1;
    bar.step({{"x", value}}, 0);
    std::string line = screen.last();
    size_t at = line.rfind(' ') + 1;
    return line.substr(at, line.rfind('\x1b') - at);
  };
  EXPECT_EQ(shown(1.5), "1.500");
  EXPECT_EQ(shown(-0.25), "-0.2500");
  EXPECT_EQ(shown(7), "7");
  EXPECT_EQ(shown(9999), "9999");
  EXPECT_EQ(shown(4217.3), "4217");
  EXPECT_EQ(shown(12345.6), "12.3k");
  EXPECT_EQ(shown(999960), "1.0M");
  EXPECT_EQ(shown(2.5e9), "2.5G");
  EXPECT_EQ(shown(1e-7), "1.000e-07");
  EXPECT_EQ(shown(3e20), "3.000e+20");
  EXPECT_EQ(shown(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(shown(std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(Progress, SaysWhatItTookInTheEnd) {
  Screen screen;
  auto options = screen.options(true);
  Progress bar(100, options);
  for (int i = 0; i < 100; ++i) {
    screen.now += i < 50 ? 0.1 : 0.3;
    bar.step();
  }
  bar.finish();
  EXPECT_THAT(screen.last(), HasSubstr("| 100/100, in 00:20, 5.0/s"));
}

TEST(Progress, DrawsSeldom) {
  Screen screen;
  Progress bar(100000, screen.options(true));
  for (int i = 0; i < 50000; ++i) {
    screen.now += 0.0001;
    bar.step();
  }
  EXPECT_LE(std::count(screen.text.begin(), screen.text.end(), '\r'), 55);
}

TEST(Progress, WritesLinesToALog) {
  Screen screen;
  {
    Progress bar(100, screen.options(false));
    for (int i = 0; i < 100; ++i) {
      screen.now += 0.5;
      bar.step({{"loss", 0.25}});
    }
  }
  EXPECT_EQ(std::count(screen.text.begin(), screen.text.end(), '\n'), 5);
  EXPECT_THAT(screen.text, HasSubstr("epoch 1: 20/100 (20%), 00:40 left, 2.0/s, loss 0.2500\n"));
  EXPECT_TRUE(screen.text.ends_with("epoch 1: 100/100 (100%), in 00:50, 2.0/s, loss 0.2500\n"));
  EXPECT_THAT(screen.text, Not(HasSubstr("\x1b")));
}

TEST(Progress, HonoursNoColorAndSilence) {
  ::setenv("NO_COLOR", "1", 1);
  Screen screen;
  Progress bar(10, screen.options(true));
  bar.step();
  EXPECT_THAT(screen.text, Not(HasSubstr("\x1b[32m")));
  ::unsetenv("NO_COLOR");
  Screen silent;
  {
    auto options = silent.options(true);
    options.enabled = false;
    Progress quiet(10, options);
    quiet.step();
    quiet.print("x");
  }
  EXPECT_EQ(silent.text, "");
}

TEST(Progress, UnknownTotalsAndResumedRuns) {
  Screen screen;
  Progress bar(0, screen.options(true));
  screen.now += 10;
  bar.step({}, 40);
  EXPECT_THAT(screen.last(), HasSubstr("epoch 1 40, in 00:10, 4.0/s"));
  Screen resumed;
  auto options = resumed.options(true);
  options.start = 500;
  Progress rest(1000, options);
  resumed.now += 10;
  rest.step({}, 100);
  EXPECT_THAT(resumed.last(), HasSubstr("600/1000, 00:40 left, 10.0/s"));
}

TEST(Progress, TakesManyThreads) {
  Screen screen;
  auto options = screen.options(false);
  {
    Progress bar(4000, options);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 1000; ++i) bar.step({{"x", i}});
      });
    for (auto& thread : threads) thread.join();
  }
  EXPECT_THAT(screen.text, HasSubstr("4000/4000"));
}

}  // namespace
}  // namespace tutti
