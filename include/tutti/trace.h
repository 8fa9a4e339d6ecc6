// Tracing: with kTraceMode set, call() hands every operator to the context's tracer first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tutti/operator.h"

namespace tutti {

/// Something beside tensors that the course of a function may depend on, like whether a module trains.
class Outside {
 public:
  virtual ~Outside() = default;
  /// A number that is another one when it is otherwise.
  virtual uint64_t now() const = 0;
  /// What says, whenever it is asked, whether it can still become what it is now; null: it always can.
  virtual std::function<bool()> lasting() const { return {}; }
  virtual std::string text() const = 0;
};

class Tracer {
 public:
  virtual ~Tracer() = default;
  /// Records the call. Returns true if it also did it (outputs are set), false to let it run as usual.
  virtual bool call(const Operator& op, std::span<const Tensor* const> inputs, Attributes attributes,
                    std::span<Tensor> outputs) = 0;

  /// A node of a backward pass is about to turn gradients of its outputs into those of its inputs, hooks included.
  /// True: it has been done, by calling `run` or otherwise.
  virtual bool node(Node&, std::span<Tensor> /*outputs*/, std::span<Tensor> /*inputs*/,
                    const std::function<void()>& /*run*/) {
    return false;
  }

  // What happens to tensors outside of operators; most tracers need none of it.
  /// Memory that no operator made (empty(), tensor({...})): what it holds is not known.
  virtual void made(const Tensor&) {}
  /// An operator that writes `original` in place has kept a copy of it for its gradient.
  virtual void copied(const Tensor& /*original*/, const Tensor& /*copy*/) {}
  /// Told before it happens.
  virtual void resized(const Tensor&, size_t /*bytes*/) {}
  virtual void version_read(const Tensor&, uint64_t /*version*/) {}
  virtual void version_set(const Tensor&, uint64_t /*version*/) {}
  virtual void grad_read(const Tensor& /*leaf*/, const Tensor& /*gradient*/) {}
  virtual void grad_set(const Tensor& /*leaf*/, const Tensor& /*gradient*/) {}
  virtual void grad_required(const Tensor& /*leaf*/, bool /*required*/) {}
  virtual void data_set(const Tensor&, const Tensor& /*from*/) {}
  virtual void hooked(const Tensor&) {}
  virtual void looked_at(const std::shared_ptr<const Outside>&) {}
  /// Something a record cannot repeat is about to be done: `what` says what, as in "reading a value, by item(),".
  virtual void untraceable(const char* /*what*/) {}
};

/// A tracer within the reach of another one, which hears everything too.
class NestedTracer : public Tracer {
 public:
  void made(const Tensor& t) override { pass_on(&Tracer::made, t); }
  void copied(const Tensor& original, const Tensor& copy) override { pass_on(&Tracer::copied, original, copy); }
  void resized(const Tensor& t, size_t bytes) override { pass_on(&Tracer::resized, t, bytes); }
  void version_read(const Tensor& t, uint64_t version) override { pass_on(&Tracer::version_read, t, version); }
  void version_set(const Tensor& t, uint64_t version) override { pass_on(&Tracer::version_set, t, version); }
  void grad_read(const Tensor& leaf, const Tensor& g) override { pass_on(&Tracer::grad_read, leaf, g); }
  void grad_set(const Tensor& leaf, const Tensor& g) override { pass_on(&Tracer::grad_set, leaf, g); }
  void grad_required(const Tensor& leaf, bool required) override { pass_on(&Tracer::grad_required, leaf, required); }
  void data_set(const Tensor& t, const Tensor& from) override { pass_on(&Tracer::data_set, t, from); }
  void hooked(const Tensor& t) override { pass_on(&Tracer::hooked, t); }
  void looked_at(const std::shared_ptr<const Outside>& o) override { pass_on(&Tracer::looked_at, o); }
  void untraceable(const char* what) override { pass_on(&Tracer::untraceable, what); }

 protected:
  NestedTracer() : outer_(context().modes & kTraceMode ? context().tracer : nullptr) {}
  Tracer* const outer_;  // null: nobody traced when this one was made

 private:
  template <class Event, class... Args>
  void pass_on(Event event, const Args&... args) {
    if (outer_) (outer_->*event)(args...);
  }
};

/// The calling thread's tracer, or null where nothing is traced.
inline Tracer* tracing() {
  const Context& current = context();
  return current.modes & kTraceMode ? current.tracer : nullptr;
}

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
