// What the system shows of a process in folders: open files, threads, shared memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>

namespace tutti::test {

/// How many entries a folder has whose names begin so: of /dev/shm, /proc/self/fd, /proc/self/task.
inline size_t entries(const char* folder, const std::string& prefix = "") {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    count += entry.path().filename().string().starts_with(prefix);
  return count;
}

/// Of this process.
inline size_t sockets() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(entry, gone).string().starts_with("socket:");
  }
  return count;
}

}  // namespace tutti::test
