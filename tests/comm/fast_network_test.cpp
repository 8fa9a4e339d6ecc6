// Which network UCX has, by what it may use and what there is.
#include "comm/transport/fast_network.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/scratch.h"

namespace tutti::comm {
namespace {

struct Cards {
  explicit Cards(const std::string& state) {
    std::filesystem::create_directories(folder.path() + "/mlx5_0/ports/1");
    std::ofstream(folder.path() + "/mlx5_0/ports/1/state") << state << "\n";
  }
  bool fast(const char* transports, const char* devices = "") {
    return has_fast_network(transports, devices, folder.path());
  }
  test::Scratch folder;
};

TEST(FastNetwork, IsOneThatUcxMayUse) {
  Cards cards("4: ACTIVE");
  for (const char* yes : {"", "all", "^sm", "^tcp", "ib", "rc", "tcp,rc_mlx5,self", "ud_x", "dc,tcp", "^rc", "^rc,ud"})
    EXPECT_TRUE(cards.fast(yes)) << yes;
  for (const char* no : {"tcp", "tcp,self", "sm,tcp", "shm,self,tcp", "posix,cma,tcp", "cuda,tcp", "rdmacm,tcp", "^ib",
                         "^sm,ib", "^rc,ud,dc"})
    EXPECT_FALSE(cards.fast(no)) << no;
}

TEST(FastNetwork, IsOfADeviceThatUcxMayUse) {
  Cards cards("4: ACTIVE");
  for (const char* yes : {"", "all", "mlx5_0:1", "eth0,mlx5_0:1", "^eth0", "^mlx5_0:2"})
    EXPECT_TRUE(cards.fast("", yes)) << yes;
  for (const char* no : {"lo", "eth0", "eth0,lo", "mlx5_1:1", "mlx5_0:2", "^mlx5_0:1", "^lo,mlx5_0:1"})
    EXPECT_FALSE(cards.fast("", no)) << no;
}

TEST(FastNetwork, IsThereAndConnected) {
  EXPECT_FALSE(Cards("1: DOWN").fast(""));
  EXPECT_FALSE(Cards("2: INIT").fast(""));
  test::Scratch empty;
  EXPECT_FALSE(has_fast_network("", "", empty.path()));
  EXPECT_FALSE(has_fast_network("", "", empty / "none"));
}

}  // namespace
}  // namespace tutti::comm
