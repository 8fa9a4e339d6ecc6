#include "rpc/shuffle.h"

#include <atomic>

namespace tutti::rpc::detail {
namespace {
std::atomic<uint64_t> the_seed{0};
}

void set_shuffle(uint64_t seed) { the_seed.store(seed); }
bool shuffles() { return the_seed.load(std::memory_order_relaxed) != 0; }

// Any of those that are held.
void Shuffle::take(Messages& messages) {
  std::swap(held_[random_() % held_.size()], held_.back());
  messages.push_back(std::move(held_.back()));
  held_.pop_back();
}

Shuffle::Messages Shuffle::add(int to, Message message) {
  std::lock_guard lock(mutex_);
  if (!std::exchange(seeded_, true)) random_.seed(the_seed.load() + static_cast<uint64_t>(message.from));
  held_.emplace_back(to, std::move(message));
  Messages now;
  while (!held_.empty() && random_() % 3 == 0) take(now);
  return now;
}

Shuffle::Messages Shuffle::some(bool all) {
  std::lock_guard lock(mutex_);
  Messages now;
  while (!held_.empty() && (all || random_() % 4 != 0)) take(now);
  return now;
}

}  // namespace tutti::rpc::detail
