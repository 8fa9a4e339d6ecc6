// A ring of bytes in shared memory, from one worker to another: see Note [Rings and bells] in shm_link.cpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tutti::rpc::detail {

/// Written by one process, read by another; all zeros is a good beginning. It has room for messages that are not lent
/// (kLent) and then some, so that whoever sends one need not stay to push the rest of it.
struct ShmRing {
  static constexpr uint64_t kBytes = 256 << 10;
  alignas(64) std::atomic<uint64_t> written{0};
  alignas(64) std::atomic<uint64_t> read{0};
  alignas(64) std::byte data[kBytes];

  /// As many of the bytes as there is room for, or as have come.
  size_t put(const std::byte* from, size_t bytes) {
    uint64_t begin = written.load(std::memory_order_relaxed);
    size_t n = std::min<size_t>(bytes, kBytes - (begin - read.load()));
    size_t first = std::min<size_t>(n, kBytes - begin % kBytes);
    if (first > 0) std::memcpy(data + begin % kBytes, from, first);
    if (n > first) std::memcpy(data, from + first, n - first);
    if (n > 0) written.store(begin + n);
    return n;
  }
  size_t take(std::byte* to, size_t bytes) {
    uint64_t begin = read.load(std::memory_order_relaxed);
    size_t n = std::min<size_t>(bytes, written.load() - begin);
    size_t first = std::min<size_t>(n, kBytes - begin % kBytes);
    if (first > 0) std::memcpy(to, data + begin % kBytes, first);
    if (n > first) std::memcpy(to + first, data, n - first);
    if (n > 0) read.store(begin + n);
    return n;
  }
};

}  // namespace tutti::rpc::detail
