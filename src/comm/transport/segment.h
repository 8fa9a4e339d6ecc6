// Memory that processes of a host share.
#pragma once

#include <cstddef>
#include <string>

namespace tutti::comm {

/// Mapped for as long as this lives. New memory is zeros; pages that nobody touches cost nothing. Where shared memory
/// is short, who touches a new page gets a signal that ends the process: what is used is reserved first, which throws
/// MemoryError instead.
class Segment {
 public:
  Segment() = default;
  /// Without a name, for a process and those that it forks.
  static Segment anonymous(size_t bytes);
  /// By name: made by whoever comes first, the same for all. It stays until somebody calls remove(). Without `reserve`,
  /// who uses it calls reserve() for what it touches.
  static Segment named(const std::string& name, size_t bytes, bool reserve = true);
  /// What a descriptor leads to, which this takes.
  static Segment of(int descriptor, size_t bytes);
  static void remove(const std::string& name);
  /// All whose names start so: what processes that were killed left behind.
  static void remove_all(const std::string& prefix);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();
  std::byte* data() const { return data_; }
  /// Takes the memory of these bytes now, if nobody has yet.
  void reserve(const std::byte* begin, size_t bytes) const;

 private:
  Segment(void* data, size_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tutti::comm
