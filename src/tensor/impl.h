// What a tensor handle points to.
#pragma once

#include <memory>

#include "tensor/storage.h"
#include "tutti/tensor.h"

namespace tutti {

struct AutogradMeta;

struct SparseParts {
  Tensor indices;  // i64 [sparse dims, n]
  Tensor values;   // [n, dense dims...]
  bool coalesced = false;
};

struct TensorImpl : detail::Handle, memory::Pooled {
  DType dtype = DType::f32;
  Layout layout = Layout::strided;
  bool contiguous = true;  // row-major without gaps
  bool number = false;     // made from a C++ number
  bool inference = false;  // made in inference mode
  bool aliased = false;    // shares memory with a tensor whose history would not know of a write (see call.cpp)
  Device device;
  uint32_t data_changes = 0;  // how often set_data() gave it other memory
  int64_t offset = 0;         // in elements
  int64_t numel = 1;
  Ref<Storage> storage;
  AutogradMeta* autograd = nullptr;  // owned; null until autograd has something to say
  Tensor base;                       // of a view: the tensor it is (directly or not) a view of
  uint32_t base_generation = 0;      // of a view: see Note [Views and history]
  std::unique_ptr<SparseParts> sparse;
  Shape sizes, strides;

  TensorImpl() = default;
  TensorImpl(const TensorImpl&) = delete;
  TensorImpl& operator=(const TensorImpl&) = delete;
  ~TensorImpl();

  /// Sets sizes and row-major strides.
  void set_sizes(const Shape& sizes);
  void set_geometry(const Shape& sizes, const Shape& strides, int64_t offset);
  std::byte* data() const {
    return static_cast<std::byte*>(storage->data) + offset * static_cast<int64_t>(size_of(dtype));
  }
};

inline TensorImpl* impl(const Tensor& t) { return t.impl(); }

/// The storage whose version counts writes to t: its own, or that of a sparse tensor's values.
inline Storage* versioned_storage(const TensorImpl* t) {
  return t->sparse ? impl(t->sparse->values)->storage.get() : t->storage.get();
}

Shape contiguous_strides(const Shape& sizes);
/// NHWC (4 dims) or NDHWC (5 dims) strides for sizes given as NCHW / NCDHW.
Shape channels_last_strides(const Shape& sizes);
bool is_contiguous(const Shape& sizes, const Shape& strides);
/// No two elements share memory and there are no gaps, in whatever order of dims.
bool is_dense(const Shape& sizes, const Shape& strides);
/// Two elements may share memory (a size above one with stride zero, or overlapping windows).
bool overlaps_itself(const Shape& sizes, const Shape& strides);
/// Elements of storage that a tensor of this geometry spans.
int64_t span_elements(const Shape& sizes, const Shape& strides);
/// More cannot be addressed, whatever their dtype.
inline constexpr int64_t kMostElements = int64_t{1} << 59;
/// Throws a ShapeError unless a tensor of this shape can be.
void check_sizes(const Shape& sizes, const char* operation);
/// The same of where its elements lie; `offset` is not negative.
void check_geometry(const Shape& sizes, const Shape& strides, int64_t offset, const char* operation);
/// `dim` of x counted from the front; throws IndexError, and ValueError if x is undefined.
int64_t wrap_dim(int64_t dim, const Tensor& x, const char* operation);
/// The same of a tensor that there is not yet.
int64_t wrap_dim(int64_t dim, int64_t dims, const char* operation);

/// A new tensor with memory of its own.
Tensor make_tensor(const Shape& sizes, DType dtype, Device device);
Tensor make_tensor(const Shape& sizes, const Shape& strides, DType dtype, Device device);
/// The same storage under another geometry, without any autograd state; not tracked as a view.
Tensor make_alias(const Tensor& x, const Shape& sizes, const Shape& strides, int64_t offset);
inline Tensor make_alias(const Tensor& x) { return make_alias(x, x.sizes(), x.strides(), x.storage_offset()); }
/// A sparse tensor of these parts.
Tensor make_sparse(const Tensor& indices, const Tensor& values, const Shape& sizes, bool coalesced);

/// Throws if the storage has been resized below what the tensor needs.
void check_readable(const Tensor& x, const char* operation);

}  // namespace tutti
