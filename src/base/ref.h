// Ref<T>: a counted pointer to an object that carries its own count. When the last one goes, `destroy(T*)`, found by
// argument lookup, disposes of the object.
#pragma once

#include <utility>

#include "tutti/counted.h"

namespace tutti {

using RefCounted = detail::Counted;

template <class T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* object) : object_(object) {
    if (object_) object_->retain_new();
  }
  /// Takes over a count that the caller already holds.
  static Ref adopt(T* object) {
    Ref r;
    r.object_ = object;
    return r;
  }
  Ref(const Ref& other) : object_(other.object_) {
    if (object_) object_->retain();
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ && object_->drop()) destroy(object_);
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

/// Takes a count unless the object, which is watched, is already on its way out.
template <class T>
Ref<T> try_retain(T* object) {
  return object->try_retain() ? Ref<T>::adopt(object) : Ref<T>();
}

}  // namespace tutti
