// Messages in another order, and some later, for tests: nothing may depend on the order of arrival.
#pragma once

#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "rpc/message.h"

namespace tutti::rpc::detail {

/// From now on, for all sessions of this process; 0: as they come.
void set_shuffle(uint64_t seed);
bool shuffles();

/// Messages of one agent that are held back.
class Shuffle {
 public:
  using Messages = std::vector<std::pair<int, Message>>;
  /// Takes one more; what is to go now.
  Messages add(int to, Message message);
  /// Time has passed: some more, or all.
  Messages some(bool all);

 private:
  void take(Messages& messages);
  std::mutex mutex_;
  std::mt19937_64 random_;
  bool seeded_ = false;
  Messages held_;
};

}  // namespace tutti::rpc::detail
