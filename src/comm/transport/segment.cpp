#include "comm/transport/segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"

namespace tutti::comm {
namespace {

void* map(int fd, int flags, size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  int error = errno;
  if (fd >= 0) ::close(fd);
  check<MemoryError>(data != MAP_FAILED, "shared memory", "{} bytes cannot be mapped: {}", bytes, std::strerror(error));
  return data;
}

}  // namespace

Segment Segment::anonymous(size_t bytes) { return {map(-1, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, bytes), bytes}; }

Segment Segment::named(const std::string& name, size_t bytes, bool reserve) {
  int fd = ::shm_open(("/" + name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  check<MemoryError>(fd >= 0, "shared memory", "/dev/shm/{} cannot be opened: {}", name, std::strerror(errno));
  // All who open it ask for the same size, so that it does not matter who was first.
  int error = ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  if (error == 0 && reserve) error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (error != 0) {
    ::close(fd);
    fail<MemoryError>("shared memory", "/dev/shm/{} cannot have {} bytes: {}", name, bytes, std::strerror(error));
  }
  return {map(fd, MAP_SHARED | MAP_NORESERVE, bytes), bytes};
}

Segment Segment::of(int descriptor, size_t bytes) {
  return {map(descriptor, MAP_SHARED | MAP_NORESERVE, bytes), bytes};
}

void Segment::remove(const std::string& name) { ::shm_unlink(("/" + name).c_str()); }

void Segment::remove_all(const std::string& prefix) {
  std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir("/dev/shm"), ::closedir);
  std::vector<std::string> found;
  while (const dirent* entry = entries ? ::readdir(entries.get()) : nullptr)  // NOLINT: each call has its own DIR
    if (std::string_view(entry->d_name).starts_with(prefix)) found.emplace_back(entry->d_name);
  for (const std::string& name : found) remove(name);
}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
Segment::~Segment() {
  if (data_) ::munmap(data_, bytes_);
}

}  // namespace tutti::comm
