#include "comm/transport/segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
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

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct Space {
  uint64_t all = 0, free = 0;
};
Space space() {
  struct statvfs found{};
  if (::statvfs("/dev/shm", &found) != 0) return {};
  return {found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize};
}

[[noreturn]] void fail_short(size_t bytes, const std::string& why) {
  Space s = space();
  fail<MemoryError>(
      "shared memory",
      "{} bytes more cannot be had: {}. /dev/shm has {} bytes, of which {} are free: give it more (docker "
      "run --shm-size=1g, mount -o remount,size=1g /dev/shm), or use a transport without it "
      "(TUTTI_TRANSPORT=ucx)",
      bytes, why, s.all, s.free);
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
    fail_short(bytes, std::strerror(error));
  }
  return {map(fd, MAP_SHARED | MAP_NORESERVE, bytes), bytes};
}

void Segment::reserve(const std::byte* begin, size_t bytes) const {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto first = reinterpret_cast<uintptr_t>(begin) / page * page;
  size_t length = reinterpret_cast<uintptr_t>(begin) + bytes - first;
  int result = 0;
  do result = ::madvise(reinterpret_cast<void*>(first), length, MADV_POPULATE_WRITE);
  while (result != 0 && errno == EINTR);
  if (result == 0) return;
  // EFAULT: a signal there would be. Kernels before 5.14 do not know the question.
  if (errno != EINVAL) fail_short(bytes, std::strerror(errno == EFAULT ? ENOSPC : errno));
  if (Space s = space(); s.all > 0 && s.free < length) fail_short(bytes, std::strerror(ENOSPC));
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
