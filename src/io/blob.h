// A file's bytes in memory: mapped where it is a file, owned where it came from memory. Readers share one and the
// tensors that lie in it keep it alive.
#pragma once

#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"

namespace tutti::io {

static_assert(std::endian::native == std::endian::little, "the formats of io are little-endian, and read in place");

class Blob {
 public:
  /// Maps the file privately: tensors over it may be written, and the file does not change.
  static std::shared_ptr<Blob> map(const std::string& path, const char* operation);
  static std::shared_ptr<Blob> own(std::string bytes, std::string name);
  ~Blob();
  Blob(const Blob&) = delete;
  Blob& operator=(const Blob&) = delete;

  const std::string& name() const { return name_; }
  std::string_view bytes() const { return {data_, size_}; }
  char* data() { return data_; }

 private:
  Blob() = default;
  char* data_ = nullptr;
  size_t size_ = 0;
  std::string name_, owned_;
  bool mapped_ = false;
};

/// The part of `bytes`, or a FileError where they end before it does.
inline std::string_view part(std::string_view bytes, uint64_t at, uint64_t length, const char* operation,
                             std::string_view name) {
  check<FileError>(at <= bytes.size() && bytes.size() - at >= length, operation,
                   "{}: {} bytes are wanted at byte {}, and it has {} in all", name, length, at, bytes.size());
  return bytes.substr(at, length);
}

/// The little-endian number at byte `at`.
template <class T>
T number(std::string_view bytes, uint64_t at, const char* operation, std::string_view name) {
  T value;
  std::memcpy(&value, part(bytes, at, sizeof(T), operation, name).data(), sizeof(T));
  return value;
}

/// Appends a number's little-endian bytes.
template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

inline constexpr size_t kMaxDims = 64;  // numpy's limit too

/// Bytes of a tensor of these sizes; false where there are too many dims, a negative one, or more than 2^62 bytes.
/// Zero sizes do not hide large ones: strides are computed from those.
bool bytes_of(const Shape& sizes, size_t element, uint64_t& bytes);

/// The tensor as its bytes lie in a file: dense, on the CPU, in row-major order.
Tensor for_file(const Tensor& tensor, const char* operation, std::string_view name);

}  // namespace tutti::io
