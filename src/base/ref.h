// Ref<T>: a counted pointer to an object that carries its own count. When the last one goes, `destroy(T*)`, found by
// argument lookup, disposes of the object.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace tutti {

struct RefCounted {
  std::atomic<uint32_t> references{0};
};

template <class T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* object) : object_(object) {
    if (object_) object_->references.fetch_add(1, std::memory_order_relaxed);
  }
  /// Takes over a count that the caller already holds.
  static Ref adopt(T* object) {
    Ref r;
    r.object_ = object;
    return r;
  }
  Ref(const Ref& other) : Ref(other.object_) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ && object_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) destroy(object_);
  }
  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_; }
  T* leave() { return std::exchange(object_, nullptr); }
  friend bool operator==(const Ref& a, const Ref& b) { return a.object_ == b.object_; }

 private:
  T* object_ = nullptr;
};

/// Takes a count unless the object is already on its way out.
template <class T>
Ref<T> try_retain(T* object) {
  uint32_t count = object->references.load(std::memory_order_relaxed);
  while (count != 0)
    if (object->references.compare_exchange_weak(count, count + 1, std::memory_order_acq_rel))
      return Ref<T>::adopt(object);
  return {};
}

}  // namespace tutti
