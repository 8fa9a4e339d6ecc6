// Kills writers of checkpoints at random moments and looks at what they leave.
#pragma once

#include <string>

namespace tutti::test {

struct CrashResult {
  int kills = 0;
  int replaced = 0;     // times that the checkpoint was a newer one after the kill
  std::string failure;  // empty: it was whole each time
};
/// `rounds` times: starts a process that writes checkpoint after checkpoint to one file, kills it after a random time,
/// and reads the file.
CrashResult crash_writers(int rounds, unsigned seed);

}  // namespace tutti::test
