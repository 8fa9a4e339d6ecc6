// Errors in the name of the function that a user called, not of one that it is made of.
#pragma once

#include <string>

#include "tutti/error.h"

namespace tutti {

/// What the error says, without the rank and the operation in front and the module behind.
std::string text_of(const Error& e);

/// Throws an error of e's type and text that names `operation`. To be called where e was caught: what is none of the
/// errors that operators throw goes on as it is.
[[noreturn]] void throw_named(const char* operation, const Error& e);

/// named("trace", [&] { return sum(diagonal(x)); }): errors of sum and diagonal are trace's.
template <class F>
decltype(auto) named(const char* operation, F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    throw_named(operation, e);
  }
}

}  // namespace tutti
