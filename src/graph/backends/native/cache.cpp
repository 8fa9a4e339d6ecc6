#include "graph/backends/native/cache.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/sha256.h"

namespace tutti::graph::native {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = "tutti native code 1\n";

std::optional<std::string> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return std::move(bytes).str();
}

}  // namespace

std::optional<std::string> Cache::find(const std::string& key) const {
  if (directory_.empty()) return {};
  auto bytes = read_file(path_of(key));
  constexpr size_t head = kMark.size() + sizeof(Digest);
  if (!bytes || bytes->size() < head || !bytes->starts_with(kMark)) return {};
  std::string object = bytes->substr(head);
  if (tutti::bytes_of(sha256(object)) != std::string_view(*bytes).substr(kMark.size(), sizeof(Digest))) return {};
  std::error_code ignored;
  fs::last_write_time(path_of(key), fs::file_time_type::clock::now(), ignored);
  return object;
}

void Cache::keep(const std::string& key, const std::string& object) const {
  if (directory_.empty()) return;
  static std::atomic<uint64_t> count = 0;
  std::error_code error;
  // What is there is run: it is for nobody else to write.
  if (fs::create_directories(directory_, error)) fs::permissions(directory_, fs::perms::owner_all, error);
  fs::path aside = directory_ / (key + "." + std::to_string(getpid()) + "." + std::to_string(count++) + ".new");
  {
    std::ofstream file(aside, std::ios::binary);
    file << kMark << tutti::bytes_of(sha256(object)) << object;
    file.close();
    if (!file) {
      fs::remove(aside, error);
      return;
    }
  }
  fs::rename(aside, path_of(key), error);
  if (error) fs::remove(aside, error);
  // Looking at every file takes a while: a process does so first, and then whenever it has written some more.
  static std::atomic<uintmax_t> unseen = UINTMAX_MAX / 2;
  if ((unseen += object.size()) < limit_ / 16) return;
  unseen = 0;
  make_room();
}

void Cache::make_room() const {
  struct File {
    fs::path path;
    uintmax_t bytes;
    fs::file_time_type used;
  };
  std::vector<File> files;
  uintmax_t total = 0;
  std::error_code error;
  for (fs::directory_iterator it(directory_, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;  // by another process
    auto extension = it->path().extension();
    if (extension != ".tutti" && extension != ".new") continue;
    File f{it->path(), it->file_size(gone), it->last_write_time(gone)};
    if (gone) continue;
    // A process that ended while it wrote left this behind.
    if (extension == ".new" && f.used + std::chrono::hours(1) < fs::file_time_type::clock::now()) {
      fs::remove(f.path, gone);
      continue;
    }
    total += f.bytes;
    if (extension == ".tutti") files.push_back(std::move(f));
  }
  if (total <= limit_) return;
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.used < b.used; });
  for (const File& f : files) {
    if (total <= limit_ / 4 * 3) break;
    fs::remove(f.path, error);
    total -= f.bytes;
  }
}

std::filesystem::path cache_directory() {
  if (const char* own = std::getenv("TUTTI_CACHE")) return own;
  if (const char* all = std::getenv("XDG_CACHE_HOME"); all && *all) return fs::path(all) / "tutti";
  if (const char* home = std::getenv("HOME"); home && *home) return fs::path(home) / ".cache" / "tutti";
  return {};
}

}  // namespace tutti::graph::native
