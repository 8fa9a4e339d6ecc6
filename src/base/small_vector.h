// SmallVector<T, N>: a vector whose first N elements live inside it.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace tutti {

template <class T, uint32_t N>
class SmallVector {
 public:
  SmallVector() = default;
  explicit SmallVector(size_t count) { resize(count); }
  SmallVector(const SmallVector&) = delete;
  SmallVector& operator=(const SmallVector&) = delete;
  SmallVector(SmallVector&& other) noexcept { take(other); }
  SmallVector& operator=(SmallVector&& other) noexcept {
    if (this != &other) {
      drop();
      take(other);
    }
    return *this;
  }
  ~SmallVector() { drop(); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return heap_ ? heap_ : reinterpret_cast<T*>(inline_); }
  const T* data() const { return heap_ ? heap_ : reinterpret_cast<const T*>(inline_); }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  std::span<T> span() { return {data(), size_}; }

  void resize(size_t count) {
    reserve(count);
    T* items = data();
    for (; size_ < count; ++size_) {
      if constexpr (std::is_trivially_default_constructible_v<T>)
        new (items + size_) T();
      else
        new (items + size_) T;  // not T(), which would zero all of it first
    }
    while (size_ > count) items[--size_].~T();
  }
  void reserve(size_t count) {
    if (count <= capacity_) return;
    auto* fresh = static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(alignof(T))));
    for (uint32_t i = 0; i < size_; ++i) {
      new (fresh + i) T(std::move(data()[i]));
      data()[i].~T();
    }
    free_heap();
    heap_ = fresh;
    capacity_ = static_cast<uint32_t>(count);
  }
  template <class... Args>
  T& emplace_back(Args&&... args) {
    if (size_ == capacity_) reserve(size_t{capacity_} * 2);
    return *new (data() + size_++) T{std::forward<Args>(args)...};
  }
  void push_back(T value) { emplace_back(std::move(value)); }
  void clear() { resize(0); }

 private:
  void free_heap() {
    if (heap_) ::operator delete(heap_, std::align_val_t(alignof(T)));
    heap_ = nullptr;
    capacity_ = N;
  }
  void drop() {
    for (uint32_t i = 0; i < size_; ++i) data()[i].~T();
    size_ = 0;
    free_heap();
  }
  void take(SmallVector& other) {
    if (other.heap_) {
      heap_ = std::exchange(other.heap_, nullptr);
      size_ = std::exchange(other.size_, 0);
      capacity_ = std::exchange(other.capacity_, N);
      return;
    }
    for (uint32_t i = 0; i < other.size_; ++i) new (data() + i) T(std::move(other[i]));
    size_ = other.size_;
    other.clear();
  }

  uint32_t size_ = 0, capacity_ = N;
  T* heap_ = nullptr;
  alignas(T) std::byte inline_[N * sizeof(T)];
};

}  // namespace tutti
