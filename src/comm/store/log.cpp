#include "comm/store/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "base/check.h"
#include "comm/store/socket.h"
#include "comm/store/waiting.h"
#include "io/crc32c.h"

namespace tutti::store {
namespace {

constexpr const char* kFileOperation = "FileStore";
constexpr std::string_view kHeader{"TUTTILOG\1\0\0\0\0\0\0\0", 16};
constexpr size_t kRecordHeader = 8;
enum { kLogByte = 0, kPresenceByte = 1 };

struct stat status_of(int file, const std::string& path) {
  struct stat status;
  check<StoreError>(::fstat(file, &status) == 0, kFileOperation, "{}: {}", path, errno_text(errno));
  return status;
}

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

}  // namespace

Log::Log(const std::string& path, std::chrono::nanoseconds timeout, const std::function<void(const Request&)>& apply)
    : path_(path), apply_(apply), timeout_(timeout) {
  while (!open()) {
  }
  lock_in_time(kLogByte, F_WRLCK);
  start();
  lock(kLogByte, F_UNLCK);
}

// False if another process removed the file between our opening it and our saying so.
bool Log::open() {
  file_ = io::Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  check<StoreError>(file_.get() >= 0, kFileOperation, "{} cannot be opened: {}", path_, errno_text(errno));
  lock_in_time(kPresenceByte, F_RDLCK);
  struct stat named;
  return ::stat(path_.c_str(), &named) == 0 && same_file(named, status_of(file_.get(), path_));
}

Log::~Log() {
  struct stat named, ours;
  // Whoever gets this lock is alone; whoever opens the file now waits for it, and finds another file or none. Its own
  // presence ends before: of two that leave at once, each would find the other there.
  if (remove_ && lock(kPresenceByte, F_UNLCK) && lock(kPresenceByte, F_WRLCK) && ::stat(path_.c_str(), &named) == 0 &&
      ::fstat(file_.get(), &ours) == 0 && same_file(named, ours))
    ::unlink(path_.c_str());
}

// Locks of the open file rather than of the process: another part of the program that opens and closes the same file
// would take the process's away.
bool Log::lock(int byte, int kind) {
  struct flock range{};
  range.l_type = static_cast<short>(kind);
  range.l_whence = SEEK_SET;
  range.l_start = byte;
  range.l_len = 1;
  while (::fcntl(file_.get(), F_OFD_SETLK, &range) != 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EACCES) return false;
    if (kind == F_UNLCK) return false;
    fail<StoreError>(kFileOperation, "{} cannot be locked: {}", path_, errno_text(errno));
  }
  return true;
}

// The system has no lock with a timeout, and a process that is stopped while it has the lock must not stop the others.
void Log::lock_in_time(int byte, int kind) {
  auto deadline = deadline_after(timeout_);
  while (!lock(byte, kind)) {
    check<TimeoutError>(Clock::now() < deadline, kFileOperation, "{} was locked by another process for {:.3g} s", path_,
                        std::chrono::duration<double>(timeout_).count());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Log::Guard::Guard(Log& log, bool exclusive) : log_(log), held_(log.lock(kLogByte, exclusive ? F_WRLCK : F_RDLCK)) {}

Log::Guard::~Guard() {
  if (held_) log_.lock(kLogByte, F_UNLCK);
}

std::pair<uint64_t, uint64_t> Log::identity() const {
  auto status = status_of(file_.get(), path_);
  return {status.st_dev, status.st_ino};
}

void Log::start() {
  char header[kHeader.size()];
  ssize_t got = ::pread(file_.get(), header, sizeof header, 0);
  check<StoreError>(got >= 0, kFileOperation, "{} cannot be read: {}", path_, errno_text(errno));
  // A part of the header: its writer was killed.
  std::string_view found(header, static_cast<size_t>(got));
  check<StoreError>(found == kHeader.substr(0, found.size()), kFileOperation, "{} is not the file of a store", path_);
  if (found.size() < kHeader.size()) write_at(0, kHeader);
  end_ = kHeader.size();
  catch_up();
}

bool Log::catch_up() {
  struct stat status = status_of(file_.get(), path_);
  // Who opens it now makes another, and would be waited for in this one.
  check<StoreError>(status.st_nlink > 0, kFileOperation, "{} was removed while it was in use", path_);
  auto size = static_cast<size_t>(status.st_size);
  check<StoreError>(size >= end_, kFileOperation, "{} has become shorter: {} bytes, where {} were read", path_, size,
                    end_);
  size_t start = end_;
  std::string bytes;
  while (size - end_ >= kRecordHeader) {
    // A piece at a time: a megabyte, or the one record that is larger than that.
    size_t want = std::min<size_t>(size - end_, std::max<size_t>(1 << 20, bytes.size() * 4));
    bytes.resize(want);
    size_t got = 0;
    while (got < want) {
      ssize_t count = ::pread(file_.get(), bytes.data() + got, want - got, static_cast<off_t>(end_ + got));
      if (count < 0 && errno == EINTR) continue;
      check<StoreError>(count > 0, kFileOperation, "{} cannot be read: {}", path_,
                        count ? errno_text(errno) : "it ends early");
      got += static_cast<size_t>(count);
    }
    size_t used = apply_records(bytes);
    end_ += used;
    if (used == 0 && want == size - end_) {
      check<StoreError>(torn(bytes), kFileOperation, "{} is damaged at byte {}", path_, end_);
      break;
    }
    if (used > 0) bytes.resize(0);
  }
  return end_ != start;
}

// How many of the bytes were whole records.
size_t Log::apply_records(std::string_view bytes) {
  size_t at = 0;
  while (bytes.size() - at >= kRecordHeader) {
    size_t length = get_u32(bytes.data() + at);
    if (length == 0 || length > bytes.size() - at - kRecordHeader) break;
    std::string_view payload = bytes.substr(at + kRecordHeader, length);
    if (io::crc32c(payload) != get_u32(bytes.data() + at + 4)) break;
    Request request;
    if (!decode(payload, request)) break;
    apply_(request);
    at += kRecordHeader + length;
  }
  return at;
}

// Whether the rest of the file is what a writer may leave that did not finish: too few bytes, or (after a crash of the
// whole machine) zeros where bytes should be.
bool Log::torn(std::string_view rest) const {
  size_t length = get_u32(rest.data());
  if (length > rest.size() - kRecordHeader) return length <= Store::kMaxBytes;
  return rest.find_last_not_of('\0', rest.size() - 1) == std::string_view::npos ||
         (length == rest.size() - kRecordHeader && rest.back() == '\0');
}

void Log::write(const Request& request) {
  auto size = static_cast<size_t>(status_of(file_.get(), path_).st_size);
  if (size > end_)
    check<StoreError>(::ftruncate(file_.get(), static_cast<off_t>(end_)) == 0, kFileOperation,
                      "{}: a torn record cannot be cut off: {}", path_, errno_text(errno));
  std::string payload, record;
  payload.reserve(encoded_size(request));
  encode(payload, request);
  record.reserve(kRecordHeader + payload.size());
  put_u32(record, static_cast<uint32_t>(payload.size()));
  put_u32(record, io::crc32c(payload));
  record += payload;
  write_at(end_, record);
  end_ += record.size();
}

void Log::write_at(size_t offset, std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    ssize_t count = ::pwrite(file_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    // What was written of it is a torn record to the others.
    check<StoreError>(count > 0, kFileOperation, "{} cannot be written: {}", path_,
                      count ? errno_text(errno) : "it is full");
    done += static_cast<size_t>(count);
  }
}

}  // namespace tutti::store
