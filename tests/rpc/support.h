// Workers of a test: the same body on each way.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>

#include "tests/comm/ways.h"
#include "tutti/rpc.h"
#include "tutti/tutti.h"

namespace tutti::test {

using namespace std::chrono_literals;

class Rpc : public testing::TestWithParam<Way> {
 protected:
  /// Runs body on workers, each with a session.
  void run(int n, const std::function<void(rpc::Session&)>& body, const rpc::SessionOptions& options = {}) {
    GetParam().spawn(n,
                     [&] {
                       rpc::Session session(options);
                       body(session);
                     },
                     {.timeout = 60s});
  }
  /// The same on the first of them.
  void drive(int n, const std::function<void()>& body, const rpc::SessionOptions& options = {}) {
    run(n, [&](rpc::Session&) { rank() == 0 ? body() : void(); }, options);
  }
};

inline std::string next_worker(int by = 1) { return "worker" + std::to_string((rank() + by) % world_size()); }

/// What f throws, which is to be an E.
template <class E>
std::string text_of_error(const std::function<void()>& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another error: " << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace tutti::test
