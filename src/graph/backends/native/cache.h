// Generated code on disk: object files by the digest of what they were made from. Any number of processes may use it at
// the same time. What cannot be read or written is as if it were not there: a cache is never a reason to fail.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace tutti::graph::native {

class Cache {
 public:
  /// An empty path: nothing is kept.
  explicit Cache(std::filesystem::path directory, uintmax_t limit = uintmax_t{256} << 20)
      : directory_(std::move(directory)), limit_(limit) {}

  /// Truncated and changed files are found out by their digest.
  std::optional<std::string> find(const std::string& key) const;
  /// Written aside and renamed, so that nobody reads half of it. The files unused for longest go if all of them exceed
  /// the limit.
  void keep(const std::string& key, const std::string& object) const;

 private:
  std::filesystem::path path_of(const std::string& key) const { return directory_ / (key + ".tutti"); }
  void make_room() const;

  std::filesystem::path directory_;
  uintmax_t limit_;
};

/// $TUTTI_CACHE (empty: none), else tutti in $XDG_CACHE_HOME or ~/.cache.
std::filesystem::path cache_directory();

}  // namespace tutti::graph::native
