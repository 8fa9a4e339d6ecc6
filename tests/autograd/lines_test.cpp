// Anomaly mode in a program without debug information: this file is compiled with -g0 (tests/CMakeLists.txt).
#include "tests/support/expect_ops.h"
#include "tutti/autograd.h"
#include "tutti/ops.h"

namespace {

using namespace tutti;  // NOLINT: outside of the library's own, as a program is

TEST(Anomaly, SaysHowToGetLinesWhereThereAreNone) {
  Tensor x = zeros({2}, {.requires_grad = true});
  AnomalyMode guard;
  Tensor y = sqrt(x);
  std::string text = test::message_of<GradError>([&] { sum(y * 0).backward(); });
  EXPECT_THAT(text, testing::HasSubstr("'sqrt"));
  EXPECT_THAT(text, testing::HasSubstr("files and lines"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("lines_test.cpp:")));
}

}  // namespace
