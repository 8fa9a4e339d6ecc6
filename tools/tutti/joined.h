// Whether ranks have found each other: a program that never asks for its world runs as so many copies of itself.
#pragma once

#include <cstdint>
#include <string>

#include "base/launched.h"
#include "tools/tutti/signals.h"

namespace tutti::tool {

/// A file without a name, into which ranks write their notes (see tell_launcher() in src/base/launched.h).
class JoinedFile {
 public:
  JoinedFile();
  /// Of the file, for processes of this host.
  std::string path() const;
  bool has(LauncherNote note) const;

 private:
  Descriptor file_;
};

/// Whether a connection to the port is, or was within the last minute: ranks that meet there in another way than
/// Tutti's (torch.distributed) write nothing.
bool port_was_used(uint16_t port);

}  // namespace tutti::tool
