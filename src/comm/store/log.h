// The file of a FileStore: a log of the requests that changed the table, in order.
//
//   "TUTTILOG", u32 version, u32 0; then records: u32 length, u32 CRC-32C of the payload, payload (an encoded Request).
//
// Byte 0 of the file is locked (exclusively to write, shared to read) while the log is used; byte 1 is locked, shared,
// by every process that has the file open, so that the last one knows that it is. Locks belong to the open file and go
// with the process, however it ends. A writer that is killed leaves at most a torn last record, which readers ignore
// and the next writer cuts off: until then nobody has seen it, so nothing that was seen is lost.
#pragma once

#include <functional>

#include "comm/store/request.h"
#include "io/descriptor.h"

namespace tutti::store {

class Log {
 public:
  /// Opens or makes the file. The timeout is for a lock that another process does not give back.
  Log(const std::string& path, std::chrono::nanoseconds timeout, const std::function<void(const Request&)>& apply);
  /// The file is removed with the last Log of it that `remove`s.
  ~Log();

  /// Holds the lock of the log; empty where another process has it.
  class Guard {
   public:
    Guard(Log& log, bool exclusive);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    explicit operator bool() const { return held_; }

   private:
    Log& log_;
    bool held_;
  };

  /// Under a lock: applies the records that are new. True if there were some.
  bool catch_up();
  /// Under the exclusive lock, having caught up: adds a record. It is not applied.
  void write(const Request& request);
  void set_remove() { remove_ = true; }
  const std::string& path() const { return path_; }
  /// Device and inode.
  std::pair<uint64_t, uint64_t> identity() const;

 private:
  bool open();
  bool lock(int byte, int kind);
  void lock_in_time(int byte, int kind);
  void start();
  size_t apply_records(std::string_view bytes);
  bool torn(std::string_view rest) const;
  void write_at(size_t offset, std::string_view bytes);

  std::string path_;
  std::function<void(const Request&)> apply_;
  io::Descriptor file_;
  size_t end_ = 0;  // of the records that are applied
  bool remove_ = false;
  std::chrono::nanoseconds timeout_;
};

}  // namespace tutti::store
