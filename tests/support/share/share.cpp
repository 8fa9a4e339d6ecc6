// Linked to programs whose tests are shared among processes (tutti_share_tests). A test that starts its own program
// again for one other test means that test, whatever the share: without this it would start none, and seem to have
// passed.
#include <gtest/gtest.h>

#include <cstdlib>

namespace {

struct Share : testing::Environment {
  void SetUp() override {  // GoogleTest has chosen the tests by then
    ::unsetenv("GTEST_TOTAL_SHARDS");
    ::unsetenv("GTEST_SHARD_INDEX");
    ::unsetenv("GTEST_SHARD_STATUS_FILE");
  }
};
const testing::Environment* const share = testing::AddGlobalTestEnvironment(new Share);

}  // namespace

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <unistd.h>
// A test may fork: what the process's other threads held, which the child has not, would be leaks at the child's end.
static const pid_t first = ::getpid();
extern "C" int __lsan_is_turned_off() { return ::getpid() != first; }
#endif
#endif
