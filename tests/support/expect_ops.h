// What many tests need. Those of modules, ranks and other things above operators take expect.h, which has all of the
// library: the compiler reads it for some four seconds a file.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tutti/autograd.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti::test {

using Doubles = std::vector<double>;

inline Doubles values(const Tensor& t) { return t.to_vector<double>(); }

/// The text of the E that f throws.
template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "nothing was thrown";
}

/// Divides the machine into logical devices for the length of a test.
struct Devices {
  explicit Devices(int count) { set_cpu_devices(count); }
  ~Devices() { set_cpu_devices(1); }
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;
};

}  // namespace tutti::test
