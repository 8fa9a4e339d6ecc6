// What a test and all its ranks see, whether these are threads or processes.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <new>
#include <stdexcept>
#include <thread>

namespace tutti::test {

/// A variable that ranks of every way see, and the test that starts them: in memory that forked processes share.
template <class T>
class Shared {
 public:
  Shared() : value_(new(map()) T()) {}
  ~Shared() { ::munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  static void* map() {
    void* at = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    return at;
  }
  T* value_;
};
/// Until a counter that other ranks add to is this large; a test whose ranks do not come fails, and does not hang.
inline void wait_until(const Shared<std::atomic<int>>& counter, int reached) {
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (*counter < reached) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("the other ranks did not come");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace tutti::test
