// Where a program is, as text for people.
#pragma once

#include <string>

namespace tutti {

/// The calling frames outside of this library, innermost first: "  train.cpp:42 in main".
std::string backtrace_text();

}  // namespace tutti
