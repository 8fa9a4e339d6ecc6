// A process that outlives this one if it must, and ends what it left behind.
#pragma once

#include <sys/types.h>

#include "tools/tutti/signals.h"

namespace tutti::tool {

/// Ranks die with this process by themselves, even if it is killed; what they started does not. So there is a guard who
/// knows their process groups, and kills them when it hears no more of us.
class Guard {
 public:
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  /// Of the guard itself.
  pid_t pid() const { return pid_; }
  void watch(pid_t group) const { tell(group); }
  /// Nobody is left in it.
  void forget(pid_t group) const { tell(-group); }

 private:
  void tell(pid_t word) const;
  Descriptor words_;
  pid_t pid_ = -1;
};

}  // namespace tutti::tool
