// Tensor: a cheap handle on storage, geometry, dtype, device and autograd state. Copying a handle shares all of these.
#pragma once

#include <atomic>
#include <complex>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/device.h"
#include "tutti/dtype.h"
#include "tutti/error.h"
#include "tutti/shape.h"

namespace tutti {

class Tensor;
struct TensorImpl;
class Node;
using TensorList = std::vector<Tensor>;

enum class Layout : uint8_t { strided, sparse };
enum class MemoryFormat : uint8_t { contiguous, channels_last, preserve };

/// How a new tensor is to be made: `zeros({2, 3}, {.dtype = f64, .device = "cpu:1"})`, or just `zeros({2, 3}, {f64})`.
struct Options {
  std::optional<DType> dtype = {};
  std::optional<Device> device = {};
  bool requires_grad = false;
};

template <class T>
concept Number =
    std::is_arithmetic_v<T> || std::same_as<T, std::complex<float>> || std::same_as<T, std::complex<double>>;

namespace detail {
struct Handle {
  std::atomic<uint32_t> references{0};
};
void destroy_tensor(Handle* handle) noexcept;
}  // namespace detail

struct ValuesIndices;
class Index;
struct BackwardOptions;

/// A registered hook; `remove()` takes it away again. Dropping the handle leaves the hook in place.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  void remove() {
    if (remove_) std::exchange(remove_, nullptr)();
  }

 private:
  std::function<void()> remove_;
};

class Tensor {
 public:
  Tensor() = default;
  /// A number: zero-dimensional, and in promotion it gives way to the dtypes of the tensors it meets.
  template <Number T>
  Tensor(T value) {  // NOLINT: x * 2 and clamp(x, 0, 1) should read well
    if constexpr (std::same_as<T, bool>)
      *this = from_bool(value);
    else if constexpr (std::is_integral_v<T>)
      *this = from_int(static_cast<int64_t>(value));
    else if constexpr (std::is_floating_point_v<T>)
      *this = from_double(static_cast<double>(value));
    else
      *this = from_complex(std::complex<double>(value));
  }
  Tensor(const Tensor& other) : handle_(other.handle_) { retain(); }
  Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor& operator=(const Tensor& other) {
    Tensor(other).swap(*this);
    return *this;
  }
  Tensor& operator=(Tensor&& other) noexcept {
    Tensor(std::move(other)).swap(*this);
    return *this;
  }
  ~Tensor() { release(); }
  void swap(Tensor& other) noexcept { std::swap(handle_, other.handle_); }
  void reset() { Tensor().swap(*this); }

  bool defined() const { return handle_; }
  explicit operator bool() const = delete;  // defined()? item<bool>()? say which
  /// The same tensor object (not: equal values).
  bool is_same(const Tensor& other) const { return handle_ == other.handle_; }

  // ---- Geometry and type
  const Shape& sizes() const;
  const Shape& strides() const;
  int64_t size(int64_t dim) const;
  int64_t stride(int64_t dim) const;
  int64_t dim() const;
  int64_t numel() const;
  int64_t storage_offset() const;
  DType dtype() const;
  Device device() const;
  Layout layout() const;
  bool is_sparse() const { return layout() == Layout::sparse; }
  bool is_floating() const { return tutti::is_floating(dtype()); }
  bool is_complex() const { return tutti::is_complex(dtype()); }
  bool is_contiguous(MemoryFormat format = MemoryFormat::contiguous) const;
  /// Made from a C++ number, see the constructor.
  bool is_number() const;
  bool is_view() const;
  size_t element_size() const { return size_of(dtype()); }

  // ---- Data
  void* raw_data() const;
  template <class T>
  T* data() const {
    check_dtype(dtype_of<T>);
    return static_cast<T*>(raw_data());
  }
  /// The value of a one-element tensor, converted to T.
  template <Number T>
  T item() const {
    if constexpr (std::same_as<T, bool>)
      return item_complex() != std::complex<double>(0);
    else if constexpr (std::is_integral_v<T>)
      return static_cast<T>(item_int());
    else if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(item_double());
    else
      return T(item_complex());
  }
  /// All elements in row-major order, converted to T.
  template <class T>
  std::vector<T> to_vector() const;

  // ---- Storage
  size_t storage_bytes() const;
  /// Frees the storage (0) or gives it memory again, in place: every view sees the change. Old contents are kept as far
  /// as they fit. A tensor whose storage is too small for it cannot be read until it is resized back.
  void resize_storage(size_t bytes) const;
  bool shares_storage(const Tensor& other) const;
  uint64_t version() const;
  void set_version(uint64_t version) const;  // for code that knows what it does; see PreserveVersion

  // ---- Conversion and copies
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;
  Tensor to(const Options& options) const;
  Tensor to(const char* device) const { return to(Device(device)); }
  Tensor contiguous(MemoryFormat format = MemoryFormat::contiguous) const;
  Tensor clone(MemoryFormat format = MemoryFormat::preserve) const;
  Tensor& copy_(const Tensor& source);
  Tensor& fill_(const Tensor& value);
  Tensor& zero_();
  /// Makes this handle's tensor use other's storage and geometry: every copy of the handle sees it.
  void set_data(const Tensor& other) const;

  // ---- Autograd
  bool requires_grad() const;
  Tensor& requires_grad_(bool value = true);
  bool is_leaf() const;
  /// The accumulated gradient: undefined if there is none.
  Tensor grad() const;
  void set_grad(const Tensor& grad) const;
  void zero_grad() const { set_grad({}); }
  /// The node that made this tensor; null for leaves.
  Node* grad_node() const;
  Tensor detach() const;
  Tensor& detach_();
  /// Keeps .grad of a tensor that is not a leaf.
  void retain_grad();
  void backward() const;
  void backward(const Tensor& gradient, bool retain_graph = false, bool create_graph = false) const;
  /// Runs when the gradient of this tensor is known; what it returns (if defined) replaces the gradient.
  HookHandle register_hook(std::function<Tensor(const Tensor&)> hook) const;
  /// Runs after a leaf's gradient has been accumulated.
  HookHandle register_post_accumulate_hook(std::function<void(const Tensor& leaf)> hook) const;

  // ---- Operators as methods: each calls the function of the same name in ops.h
  Tensor view(const Shape& sizes) const;
  Tensor view_dtype(DType dtype) const;
  Tensor reshape(const Shape& sizes) const;
  Tensor permute(const Shape& dims) const;
  Tensor transpose(int64_t dim0, int64_t dim1) const;
  Tensor t() const;
  Tensor squeeze() const;
  Tensor squeeze(int64_t dim) const;
  Tensor unsqueeze(int64_t dim) const;
  Tensor expand(const Shape& sizes) const;
  Tensor narrow(int64_t dim, int64_t start, int64_t length) const;
  Tensor slice(int64_t dim, std::optional<int64_t> start, std::optional<int64_t> stop = {}, int64_t step = 1) const;
  Tensor select(int64_t dim, int64_t index) const;
  TensorList split(int64_t length, int64_t dim = 0) const;
  TensorList chunk(int64_t chunks, int64_t dim = 0) const;
  TensorList unbind(int64_t dim = 0) const;
  Tensor flatten(int64_t start = 0, int64_t end = -1) const;
  Tensor diagonal(int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1) const;
  /// x[i]: select along the first dim.
  Tensor operator[](int64_t index) const { return select(0, index); }
  /// x.index({Slice(0, 3), 1, Ellipsis, mask}): basic and advanced indexing, as in the field.
  Tensor index(const std::vector<Index>& indices) const;
  Tensor& index_put_(const std::vector<Index>& indices, const Tensor& value, bool accumulate = false);
  Tensor& masked_fill_(const Tensor& mask, const Tensor& value);

  Tensor sum(const Shape& dims = {}, bool keepdim = false) const;
  Tensor mean(const Shape& dims = {}, bool keepdim = false) const;
  Tensor prod(const Shape& dims = {}, bool keepdim = false) const;
  Tensor amax(const Shape& dims = {}, bool keepdim = false) const;
  Tensor amin(const Shape& dims = {}, bool keepdim = false) const;
  Tensor max() const;
  Tensor min() const;
  ValuesIndices max(int64_t dim, bool keepdim = false) const;
  ValuesIndices min(int64_t dim, bool keepdim = false) const;
  Tensor argmax(std::optional<int64_t> dim = {}, bool keepdim = false) const;
  Tensor argmin(std::optional<int64_t> dim = {}, bool keepdim = false) const;
  Tensor all(const Shape& dims = {}, bool keepdim = false) const;
  Tensor any(const Shape& dims = {}, bool keepdim = false) const;
  Tensor var(const Shape& dims = {}, bool keepdim = false, int64_t correction = 1) const;
  Tensor std(const Shape& dims = {}, bool keepdim = false, int64_t correction = 1) const;
  Tensor norm(double p = 2, const Shape& dims = {}, bool keepdim = false) const;
  Tensor softmax(int64_t dim) const;
  Tensor log_softmax(int64_t dim) const;
  Tensor matmul(const Tensor& other) const;
  Tensor mm(const Tensor& other) const;
  Tensor dot(const Tensor& other) const;
  Tensor real() const;
  Tensor imag() const;
  Tensor coalesce() const;
  Tensor to_dense() const;
  Tensor to_sparse() const;
  /// Of a sparse tensor.
  Tensor indices() const;
  Tensor values() const;
  bool is_coalesced() const;
  int64_t sparse_dim() const;
  int64_t dense_dim() const;
  Tensor& uniform_(double low = 0, double high = 1);
  Tensor& normal_(double mean = 0, double std = 1);
  Tensor& bernoulli_(double p = 0.5);

#include "tutti/pointwise/methods.inc"

  Tensor& operator+=(const Tensor& y) { return add_(y); }
  Tensor& operator-=(const Tensor& y) { return sub_(y); }
  Tensor& operator*=(const Tensor& y) { return mul_(y); }
  Tensor& operator/=(const Tensor& y) { return div_(y); }

  /// For the library's own sources (src/tensor/impl.h).
  TensorImpl* impl() const { return reinterpret_cast<TensorImpl*>(handle_); }
  explicit Tensor(TensorImpl* impl) : handle_(reinterpret_cast<detail::Handle*>(impl)) { retain(); }

 private:
  void retain() const {
    if (handle_) handle_->references.fetch_add(1, std::memory_order_relaxed);
  }
  void release() noexcept {
    if (handle_ && handle_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) detail::destroy_tensor(handle_);
  }
  static Tensor from_bool(bool value);
  static Tensor from_int(int64_t value);
  static Tensor from_double(double value);
  static Tensor from_complex(std::complex<double> value);
  int64_t item_int() const;
  double item_double() const;
  std::complex<double> item_complex() const;
  void check_dtype(DType wanted) const;

  detail::Handle* handle_ = nullptr;
};

struct ValuesIndices {
  Tensor values, indices;
};

/// "f32[2, 3] on cpu:0"
std::string describe(const Tensor& tensor);
/// Values as nested brackets, large tensors summarised, then dtype and device where they are not the default.
std::string to_string(const Tensor& tensor);
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

}  // namespace tutti
