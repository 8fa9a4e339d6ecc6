// Shape: a short list of int64, used for sizes, strides and lists of dims. Six entries live inside the object, so
// that describing a tensor costs no allocation.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

namespace tutti {

class Shape {
 public:
  /// An integer of any type, so that zeros({v.size(), 4}) is no narrowing.
  struct Entry {
    int64_t value;
    template <std::integral I>
    constexpr Entry(I value) : value(static_cast<int64_t>(value)) {}  // NOLINT
  };

  Shape() = default;
  template <std::integral I>
    requires(!std::same_as<I, bool>)
  Shape(I only) : size_(1) {  // NOLINT: sum(x, 1) and zeros(3) should read well
    inline_[0] = static_cast<int64_t>(only);
  }
  Shape(std::initializer_list<Entry> list) {
    resize(list.size());
    int64_t* p = data();
    for (Entry e : list) *p++ = e.value;
  }
  Shape(std::span<const int64_t> list) { assign(list.data(), list.size()); }     // NOLINT
  Shape(const std::vector<int64_t>& list) { assign(list.data(), list.size()); }  // NOLINT
  /// `count` dims of one size. No constructor, which braces with a double among them would find.
  static Shape filled(size_t count, int64_t value) {
    Shape shape;
    shape.resize(count);
    for (auto& v : shape) v = value;
    return shape;
  }
  Shape(const Shape& other) { assign(other.data(), other.size()); }
  Shape(Shape&& other) noexcept { take(other); }
  Shape& operator=(const Shape& other) {
    if (this != &other) assign(other.data(), other.size());
    return *this;
  }
  Shape& operator=(Shape&& other) noexcept {
    if (this != &other) {
      delete[] heap_;
      take(other);
    }
    return *this;
  }
  ~Shape() { delete[] heap_; }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t* data() { return heap_ ? heap_ : inline_; }
  const int64_t* data() const { return heap_ ? heap_ : inline_; }
  int64_t* begin() { return data(); }
  int64_t* end() { return data() + size_; }
  const int64_t* begin() const { return data(); }
  const int64_t* end() const { return data() + size_; }
  int64_t& operator[](size_t i) { return data()[i]; }
  int64_t operator[](size_t i) const { return data()[i]; }
  int64_t back() const { return data()[size_ - 1]; }

  void push_back(int64_t value) {
    resize(size_ + 1);
    data()[size_ - 1] = value;
  }
  void insert(size_t at, int64_t value) {
    push_back(value);
    for (size_t i = size_ - 1; i > at; --i) data()[i] = data()[i - 1];
    data()[at] = value;
  }
  void erase(size_t at) {
    for (size_t i = at; i + 1 < size_; ++i) data()[i] = data()[i + 1];
    --size_;
  }
  /// New entries are zero.
  void resize(size_t count) {
    if (count > capacity_) grow(count);
    for (size_t i = size_; i < count; ++i) data()[i] = 0;
    size_ = static_cast<uint32_t>(count);
  }
  void clear() { size_ = 0; }
  /// The product of all entries: the number of elements of a tensor of this shape.
  int64_t product() const {
    int64_t n = 1;
    for (int64_t v : *this) n *= v;
    return n;
  }
  std::vector<int64_t> vector() const { return {begin(), end()}; }

  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.size_ != b.size_) return false;
    for (size_t i = 0; i < a.size_; ++i)
      if (a[i] != b[i]) return false;
    return true;
  }

 private:
  void assign(const int64_t* values, size_t count) {
    if (count > capacity_) grow(count);
    size_ = static_cast<uint32_t>(count);
    int64_t* p = data();
    for (size_t i = 0; i < count; ++i) p[i] = values[i];
  }
  void grow(size_t count) {
    size_t capacity = count * 2;
    auto* fresh = new int64_t[capacity];
    for (size_t i = 0; i < size_; ++i) fresh[i] = data()[i];
    delete[] heap_;
    heap_ = fresh;
    capacity_ = static_cast<uint32_t>(capacity);
  }
  void take(Shape& other) {
    size_ = other.size_;
    capacity_ = other.capacity_;
    heap_ = other.heap_;
    if (!heap_)
      for (size_t i = 0; i < size_; ++i) inline_[i] = other.inline_[i];
    other.heap_ = nullptr;
    other.size_ = 0;
    other.capacity_ = kInline;
  }

  static constexpr uint32_t kInline = 6;
  uint32_t size_ = 0;
  uint32_t capacity_ = kInline;
  int64_t* heap_ = nullptr;
  int64_t inline_[kInline];
};

/// "[2, 3]"
std::string to_string(const Shape& shape);
std::ostream& operator<<(std::ostream& out, const Shape& shape);

}  // namespace tutti
