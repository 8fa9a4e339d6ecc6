// Zip archives, as much as .npz needs: members stored or deflated, zip64 where something is larger than 4 GiB.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/io/file.h"

namespace tutti::io {

struct ZipMember {
  std::string name;
  uint64_t offset, stored, size;  // where its data is in the archive, bytes there, bytes unpacked
  uint32_t checksum;
  bool packed;
};

/// The members that the central directory lists; each lies within `bytes`.
std::vector<ZipMember> read_zip(std::string_view bytes, const std::string& name);

/// Unpacks deflated data piece by piece.
class Inflate {
 public:
  enum Wrapping { none, gzip };  // zip has its own in place of one
  Inflate(std::string_view packed, std::string where, Wrapping wrapping = none);
  ~Inflate();
  Inflate(const Inflate&) = delete;
  Inflate& operator=(const Inflate&) = delete;
  /// Exactly this many bytes; FileError where there are fewer.
  void read(void* out, uint64_t bytes);
  /// FileError unless all was read, up to the last byte.
  void finish();

 private:
  uint64_t some(void* out, uint64_t bytes);
  struct Stream;
  std::unique_ptr<Stream> stream_;
  std::string where_;
};

uint32_t crc32_of(std::string_view bytes, uint32_t before = 0);

class ZipWriter {
 public:
  /// Sizes and offsets above `limit` are written the zip64 way; the format's own limit is the default.
  explicit ZipWriter(Output& out, uint64_t limit = 0xfffffffe) : out_(out), limit_(limit) {}
  void add(const std::string& name, std::string_view head, std::string_view data);
  void finish();

 private:
  void write(const std::string& bytes);
  Output& out_;
  uint64_t limit_, offset_ = 0, count_ = 0;
  std::string directory_;
};

}  // namespace tutti::io
