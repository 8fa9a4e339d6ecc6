// Ranks that are killed while they meet by UCX.
#include <dlfcn.h>
#include <signal.h>

#include <thread>

#include "comm/transport/wire.h"
#include "tests/comm/started.h"
#include "tests/comm/ways.h"
#include "tests/support/entries.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"

#ifndef TUTTI_SANITIZE_THREAD

namespace tutti {
namespace {

using namespace std::chrono_literals;
using namespace test;  // NOLINT
using testing::HasSubstr;

/// While it connects by UCX: when it has so many sockets more, and some time has passed.
void die_while_connecting(size_t more, std::chrono::microseconds after) {
  while (!::dlopen("libucp.so.0", RTLD_NOLOAD | RTLD_LAZY)) std::this_thread::yield();
  size_t wanted = sockets() + more;
  for (auto until = std::chrono::steady_clock::now() + 1s; sockets() < wanted;)
    if (std::chrono::steady_clock::now() > until) break;  // it had them before this looked
  std::this_thread::sleep_for(after);
  ::kill(::getpid(), SIGKILL);
}

// Note [Meeting by UCX] (rpc/ucx_link.cpp): UCX 1.13 does not bear all deaths while it connects.
TEST(MeetingByUcx, AllHearOfARankThatIsKilledAndNoneEndsWithIt) {
  if (!comm::has_ucx()) GTEST_SKIP() << "this build has no UCX";
  constexpr int kRounds = 10, kRanks = 4, kVictim = 1;
  Shared<std::atomic<int>> heard;
  for (int round = 0; round < kRounds; ++round) {
    auto environments = ranks_of(kRanks, [](int r) {
      return Variables{{"TUTTI_TRANSPORT", "ucx"}, {"TUTTI_HOST", "host" + std::to_string(r)}};
    });
    std::vector<pid_t> children;
    for (int r = 0; r < kRanks; ++r)
      children.push_back(start_one(environments[static_cast<size_t>(r)], [&] {
        std::jthread killer;
        if (r == kVictim)
          killer = std::jthread([round] {
            die_while_connecting(1 + static_cast<size_t>(round) % 10, std::chrono::microseconds(round / 10 * 50));
          });
        EXPECT_THAT(message_of<RankFailure>([] {
                      while (true) barrier();
                    }),
                    HasSubstr("rank " + std::to_string(kVictim) + " failed"));
        ++*heard;
      }));
    for (int r = 0; r < kRanks; ++r) {
      int status = 0;
      ::waitpid(children[static_cast<size_t>(r)], &status, 0);
      EXPECT_TRUE(r == kVictim ? WIFSIGNALED(status) : status == 0)
          << "rank " << r << " in round " << round << ": " << status;
    }
  }
  EXPECT_EQ(*heard, (kRanks - 1) * kRounds);
}

}  // namespace
}  // namespace tutti

#endif
