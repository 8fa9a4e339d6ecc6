// For programs that hold themselves, which LeakSanitizer would report: why they may is said where this is used.
#pragma once

#ifdef TUTTI_SANITIZE_ADDRESS
#include <sanitizer/lsan_interface.h>
#endif

namespace tutti::test {

struct Held {
#ifdef TUTTI_SANITIZE_ADDRESS
  Held() { __lsan_disable(); }
  ~Held() { __lsan_enable(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
#endif
};

}  // namespace tutti::test
