// The errors users can meet. Each is a type of its own, so that a program can catch just what it can handle, and each
// carries the operation and the rank that met it beside the text.
#pragma once

#include <atomic>
#include <stdexcept>
#include <string>

namespace tutti {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, std::string operation = {});
  Error(const Error& other);
  Error& operator=(const Error& other);
  ~Error() override;
  /// The text, and the module that was running.
  const char* what() const noexcept override;
  /// The operator, collective or function that failed; empty where there is none to name.
  const std::string& operation() const { return operation_; }
  /// The rank that met the error, or -1 outside of a world.
  int rank() const { return rank_; }
  /// The module whose forward failed, as it is called from the outermost one: "Net.blocks.1.fc (Linear)"; empty outside
  /// of modules.
  std::string module() const;

  /// For nn::Module. Known by its address, so that modules around it can say what it is called there.
  void set_module(const void* module, const std::string& path);
  const void* module_address() const;

 private:
  struct Place;
  std::string operation_;
  int rank_;
  // Several threads may have caught the same error (of a future, of a collective): texts that were handed out stay.
  std::atomic<const Place*> place_{nullptr};
};

struct ShapeError : Error {
  using Error::Error;
};
struct DTypeError : Error {
  using Error::Error;
};
struct DeviceError : Error {
  using Error::Error;
};
struct IndexError : Error {
  using Error::Error;
};
struct ValueError : Error {
  using Error::Error;
};
/// The system has not the memory that was asked for.
struct MemoryError : Error {
  using Error::Error;
};
/// A file that cannot be read or written, or does not hold what it should.
struct FileError : Error {
  using Error::Error;
};
/// A wait that took longer than its timeout; the text says what did not come.
struct TimeoutError : Error {
  using Error::Error;
};
/// A wait that the program itself ended.
struct CancelledError : Error {
  using Error::Error;
};
/// A store (comm/store.h) that cannot do what it was asked, or does not hold what it should.
struct StoreError : Error {
  using Error::Error;
};
/// A peer that cannot be reached, was lost, or did not prove who it is.
struct ConnectionError : Error {
  using Error::Error;
};
/// Misuse of autograd: no graph, freed graph, in-place on a leaf, ...
struct GradError : Error {
  using Error::Error;
};
/// A tensor that backward needs was changed in place after it was saved.
struct VersionError : GradError {
  using GradError::GradError;
};
/// An invariant of the library itself does not hold: a defect to report.
struct InternalError : Error {
  using Error::Error;
};

}  // namespace tutti
