// Functional collectives that begin now and are waited for later.
#pragma once

#include "tutti/comm/work.h"

namespace tutti::fn {

/// While it lives, a functional collective that this thread runs only begins where it can, and leaves its work here:
/// whoever made the guard waits for it, and until then leaves the collective's tensors alone. A collective that cannot
/// is done when it returns, and leaves nothing.
class StartGuard {
 public:
  explicit StartGuard(Work& work);
  ~StartGuard();
  StartGuard(const StartGuard&) = delete;
  StartGuard& operator=(const StartGuard&) = delete;

 private:
  Work* outer_;
};

}  // namespace tutti::fn
