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

/// Returns the number of connections from or to the port that there are, or that ended within the last minute. If it
/// grows while ranks run, they meet there in another way than Tutti's (torch.distributed), and write no notes. Before,
/// it may be more than 0: connections of other programs that had the port.
int count_connections(uint16_t port);

}  // namespace tutti::tool
