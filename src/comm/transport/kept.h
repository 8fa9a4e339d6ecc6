// A message that comes in frames, one after the other, before anybody has said where it belongs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tutti::comm {

/// Has the memory of what has come, not of what a header says will come: a peer can make this process take no more than
/// it sends.
class KeptMessage {
 public:
  /// The next frame of a message of `length` bytes; false: it is none.
  bool add(uint64_t length, uint64_t offset, std::span<const std::byte> frame) {
    if (begun_ && length != length_) return false;
    if (offset != bytes_.size() || frame.size() > length - offset) return false;
    length_ = length;
    begun_ = true;
    bytes_.insert(bytes_.end(), frame.begin(), frame.end());
    return true;
  }
  bool whole() const { return begun_ && bytes_.size() == length_; }
  uint64_t length() const { return length_; }
  /// What has come.
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  uint64_t length_ = 0;
  bool begun_ = false;
  std::vector<std::byte> bytes_;
};

}  // namespace tutti::comm
