// Tracing: with kTraceMode set, call() hands every operator to the context's tracer first.
#pragma once

#include "tutti/operator.h"

namespace tutti {

class Tracer {
 public:
  virtual ~Tracer() = default;
  /// Records the call. Returns true if it also did it (outputs are set), false to let it run as usual.
  virtual bool call(const Operator& op, std::span<const Tensor* const> inputs, Attributes attributes,
                    std::span<Tensor> outputs) = 0;
};

class [[nodiscard]] TraceGuard {
 public:
  explicit TraceGuard(Tracer& tracer) : mode_(kTraceMode, 0), saved_(context().tracer) { context().tracer = &tracer; }
  ~TraceGuard() { context().tracer = saved_; }
  TraceGuard(const TraceGuard&) = delete;
  TraceGuard& operator=(const TraceGuard&) = delete;

 private:
  ModeGuard mode_;
  Tracer* saved_;
};

}  // namespace tutti
