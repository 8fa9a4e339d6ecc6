// Files as wholes: writing one so that a crash at any moment leaves the old or the new one, never a piece of either.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tutti/error.h"

namespace tutti::io {

/// Bytes on their way into a file. Buffered; a full disk or a broken one is a FileError.
class Output {
 public:
  virtual ~Output() = default;
  virtual void write(const void* data, size_t bytes) = 0;
  void write(std::string_view text) { write(text.data(), text.size()); }
};

/// Runs `writer` on a new file beside `path`, brings it to the disk and only then gives it the name `path`. Whatever
/// happens meanwhile (an exception, a kill, a power cut), `path` is the old file whole or the new one whole. What a
/// killed writer left beside it is removed by the next one. A symbolic link stays one: its target is replaced.
void write_atomically(const std::string& path, const std::function<void(Output&)>& writer);

/// All bytes of a file.
std::string read_file(const std::string& path);

}  // namespace tutti::io
