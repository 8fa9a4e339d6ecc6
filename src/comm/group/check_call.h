// Checks of what the caller of a collective gave: errors say where the call is, and what it is for.
#pragma once

#include "base/check.h"
#include "comm/group/call.h"

namespace tutti::comm {

template <class E>
[[noreturn, gnu::cold, gnu::noinline]] void fail_at(const Place& place, const char* operation,
                                                    const std::string& text) {
  const char* purpose = marks().purpose;
  fail<E>(operation, "{} (at {}{})", text, to_string(place), purpose ? fmt::format(", for {}", shown(purpose)) : "");
}

/// check_at<ValueError>(options.place, root < n, "broadcast", "root {} is not in a group of {}", root, n)
template <class E, class... Args>
void check_at(const Place& place, bool condition, const char* operation, fmt::format_string<Args...> text,
              Args&&... args) {
  if (!condition) [[unlikely]]
    fail_at<E>(place, operation, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace tutti::comm
