// Whether ranks have found each other: a program that never asks for its world runs as so many copies of itself.
#pragma once

#include <cstdint>
#include <string>

#include "tools/tutti/signals.h"

namespace tutti::tool {

/// A file without a name, where a rank writes when it joins its world (see tell_launcher() in environment.cpp).
class JoinedFile {
 public:
  JoinedFile();
  /// Of the file, for processes of this host.
  std::string path() const;
  bool is_written() const;

 private:
  Descriptor file_;
};

/// Whether a connection to the port is, or was within the last minute: ranks that meet there in another way than
/// Tutti's (torch.distributed) write nothing.
bool port_was_used(uint16_t port);

}  // namespace tutti::tool
