#include "tutti/io/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/check.h"
#include "io/descriptor.h"

namespace tutti::io {
namespace {

constexpr const char* kWriteOperation = "write_atomically";

template <class... Args>
void must(bool condition, fmt::format_string<Args...> text, Args&&... args) {
  int error = errno;  // formatting may change it
  if (!condition) [[unlikely]]
    fail<FileError>(kWriteOperation, "{}: {}", fmt::format(text, std::forward<Args>(args)...), std::strerror(error));
}

class FileOutput : public Output {
 public:
  FileOutput(int fd, const std::string& path) : fd_(fd), path_(path) { buffer_.reserve(kBuffer); }
  void write(const void* data, size_t bytes) override {
    if (buffer_.size() + bytes > kBuffer) flush();
    if (bytes >= kBuffer)
      send(static_cast<const char*>(data), bytes);
    else
      buffer_.append(static_cast<const char*>(data), bytes);
  }
  void flush() {
    send(buffer_.data(), buffer_.size());
    buffer_.clear();
  }

 private:
  static constexpr size_t kBuffer = size_t{1} << 18;
  void send(const char* data, size_t bytes) {
    while (bytes > 0) {
      ssize_t written = ::write(fd_, data, bytes < (size_t{1} << 30) ? bytes : size_t{1} << 30);
      if (written < 0 && errno == EINTR) continue;
      must(written > 0, "{} cannot be written", path_);
      data += written;
      bytes -= static_cast<size_t>(written);
    }
  }
  int fd_;
  const std::string& path_;
  std::string buffer_;
};

// Note [Temporary files]: a writer holds a lock on its temporary file for as long as it lives, so a temporary file that
// can be locked was left by a writer that died, and may be removed. The lock comes a moment after the file: a writer
// whose file was taken for a dead one's waits for the remover's lock, finds the file without a name and starts again
// with another.
struct Temporary {
  std::string path;
  Descriptor file;
  ~Temporary() {
    if (!path.empty()) ::unlink(path.c_str());
  }
};

void remove_stale(const std::string& directory, const std::string& prefix) {
  std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(directory.c_str()), ::closedir);
  if (!entries) return;
  std::vector<std::string> found;
  while (const dirent* entry = ::readdir(entries.get()))  // NOLINT: each call has its own DIR
    if (std::string_view(entry->d_name).starts_with(prefix)) found.push_back(directory + "/" + entry->d_name);
  for (const std::string& path : found) {
    Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (file.get() >= 0 && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
  }
}

void make_temporary(Temporary& temporary, const std::string& prefix) {
  static std::atomic<uint64_t> counter{0};
  for (int attempt = 0;; ++attempt) {
    std::string path = fmt::format("{}{}-{}", prefix, ::getpid(), counter.fetch_add(1));
    Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.get() < 0 && errno == EEXIST && attempt < 1000) continue;
    must(file.get() >= 0, "{} cannot be made", path);
    temporary.path = path;
    struct stat status{};
    int locked = ::flock(file.get(), LOCK_EX);
    while (locked != 0 && errno == EINTR) locked = ::flock(file.get(), LOCK_EX);
    if (locked == 0 && ::fstat(file.get(), &status) == 0 && status.st_nlink == 0 && attempt < 1000) continue;
    temporary.file = std::move(file);
    return;
  }
}

// The name's own directory, so that the rename is inside one file system; links are followed to what they name.
std::filesystem::path target_of(const std::string& path) {
  std::error_code ignored, error;
  std::filesystem::path target(path);
  // One by one: what the last of them names need not be there yet.
  for (int links = 0; std::filesystem::is_symlink(target, ignored); ++links) {
    check<FileError>(links < 40, kWriteOperation, "'{}' is a link that leads nowhere", path);
    target = target.parent_path() / std::filesystem::read_symlink(target, error);
  }
  check<FileError>(!error && target.has_filename(), kWriteOperation, "'{}' does not name a file", path);
  check<FileError>(!std::filesystem::is_directory(target, ignored), kWriteOperation, "{} is a directory", path);
  return target;
}

}  // namespace

void write_atomically(const std::string& path, const std::function<void(Output&)>& writer) {
  std::filesystem::path target = target_of(path);
  std::string directory = target.has_parent_path() ? target.parent_path().string() : ".";
  std::string prefix = "." + target.filename().string() + ".tmp-";
  std::error_code ignored;
  check<FileError>(std::filesystem::is_directory(directory, ignored), kWriteOperation,
                   "{} cannot be written: there is no directory {}", path, directory);
  remove_stale(directory, prefix);
  Temporary temporary;
  make_temporary(temporary, directory + "/" + prefix);
  int fd = temporary.file.get();
  struct stat old{};
  if (::stat(target.c_str(), &old) == 0) (void)!::fchmod(fd, old.st_mode & 07777);

  FileOutput output(fd, path);
  writer(output);
  output.flush();
  must(::fsync(fd) == 0, "{} cannot be brought to the disk", path);
  must(::rename(temporary.path.c_str(), target.c_str()) == 0, "{} cannot be given its name", path);
  temporary.path.clear();
  must(temporary.file.close(), "{} cannot be closed", path);
  Descriptor parent(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  must(parent.get() >= 0 && (::fsync(parent.get()) == 0 || errno == EINVAL), "{} cannot be brought to the disk",
       directory);
}

}  // namespace tutti::io
