// The thread context: everything that is "current", in one object. It is thread-local and is copied as a whole into
// every thread the library starts on a user's behalf, so that work done there sees what the caller would have seen.
#pragma once

#include <cstdint>
#include <memory>

#include "tutti/device.h"
#include "tutti/dtype.h"

namespace tutti {

class Generator;
class GradientSink;
class Tracer;

enum Mode : uint32_t {
  kGradMode = 1,          // record gradient nodes
  kInferenceMode = 2,     // results never take part in autograd, and keep no version
  kAutocastMode = 4,      // operators cast their inputs by their policy
  kTraceMode = 8,         // calls are recorded by `tracer`
  kAnomalyMode = 16,      // nodes remember where they were made; NaN gradients are errors
  kPreserveVersion = 32,  // in-place writes do not bump versions
};

struct Context {
  uint32_t modes = kGradMode;
  int rank = -1;  // -1: not a rank of any world
  int world_size = 0;
  int threads = 0;                   // threads an operator may use; 0: the current device's share
  Device device;                     // where new tensors are made
  DType default_dtype = DType::f32;  // of tensors made from floating-point numbers
  DType autocast_dtype = DType::bf16;
  GradientSink* sink = nullptr;  // where leaf gradients go; null: into .grad
  Tracer* tracer = nullptr;
  std::shared_ptr<Generator> generator;        // made on first use, see random.h
  std::shared_ptr<void> world;                 // the rank's groups (comm)
  std::shared_ptr<void> distributed_autograd;  // the active distributed-autograd context (rpc)
};

/// The calling thread's context.
Context& context();

// Guards are to be given a name, `NoGrad guard;`: one without is gone at the end of its line.

/// Installs a context for the lifetime of the guard; what a thread started by the library does first.
class [[nodiscard]] ContextGuard {
 public:
  [[nodiscard]] explicit ContextGuard(Context replacement);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  Context saved_;
};

/// Sets or clears mode bits for the lifetime of the guard.
class [[nodiscard]] ModeGuard {
 public:
  [[nodiscard]] ModeGuard(uint32_t set, uint32_t clear) : saved_(context().modes) {
    context().modes = (saved_ & ~clear) | set;
  }
  ~ModeGuard() { context().modes = saved_; }
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  uint32_t saved_;
};

/// Inside, operators may use this many threads.
class [[nodiscard]] ThreadsGuard {
 public:
  [[nodiscard]] explicit ThreadsGuard(int threads) : saved_(context().threads) { context().threads = threads; }
  ~ThreadsGuard() { context().threads = saved_; }
  ThreadsGuard(const ThreadsGuard&) = delete;
  ThreadsGuard& operator=(const ThreadsGuard&) = delete;

 private:
  int saved_;
};

/// Inside, new tensors are made on this device unless their options say otherwise.
class [[nodiscard]] DeviceGuard {
 public:
  [[nodiscard]] explicit DeviceGuard(Device device) : saved_(context().device) { context().device = device; }
  ~DeviceGuard() { context().device = saved_; }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  Device saved_;
};

/// Inside, floating-point numbers make tensors of this dtype unless options name another.
class [[nodiscard]] DefaultDTypeGuard {
 public:
  [[nodiscard]] explicit DefaultDTypeGuard(DType dtype);
  ~DefaultDTypeGuard() { context().default_dtype = saved_; }
  DefaultDTypeGuard(const DefaultDTypeGuard&) = delete;
  DefaultDTypeGuard& operator=(const DefaultDTypeGuard&) = delete;

 private:
  DType saved_;
};
/// The same for good. Like everything in the context, it is the calling thread's, and that of threads it starts through
/// the library.
void set_default_dtype(DType dtype);
inline DType default_dtype() { return context().default_dtype; }
/// How many threads an operator may use; 0 is the device's share, which it is to begin with. See ThreadsGuard.
void set_num_threads(int threads);

struct [[nodiscard]] NoGrad : ModeGuard {
  [[nodiscard]] NoGrad() : ModeGuard(0, kGradMode) {}
};
struct [[nodiscard]] EnableGrad : ModeGuard {
  [[nodiscard]] EnableGrad() : ModeGuard(kGradMode, kInferenceMode) {}
};
struct [[nodiscard]] InferenceMode : ModeGuard {
  [[nodiscard]] InferenceMode() : ModeGuard(kInferenceMode, kGradMode) {}
};
/// Inside, writing a tensor in place leaves its version as it was: for code that restores what it changes.
struct [[nodiscard]] PreserveVersion : ModeGuard {
  [[nodiscard]] PreserveVersion() : ModeGuard(kPreserveVersion, 0) {}
};
inline bool grad_enabled() { return context().modes & kGradMode; }

}  // namespace tutti
