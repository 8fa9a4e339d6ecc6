// Tensor: a cheap handle on storage, geometry, dtype, device and autograd state. Copying a handle shares all of these.
#pragma once

#include <atomic>
#include <complex>
#include <functional>
#include <iosfwd>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/counted.h"
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

/// zeros({2, 3}, f64) and zeros({2, 3}, Device("cpu:1")): short for options that name one thing.
template <class T>
concept OneOption = std::same_as<T, DType> || std::same_as<T, Device>;
namespace detail {
inline Options options_of(DType dtype) { return {.dtype = dtype}; }
inline Options options_of(Device device) { return {.device = device}; }
}  // namespace detail

template <class T>
concept Number =
    std::is_arithmetic_v<T> || std::same_as<T, std::complex<float>> || std::same_as<T, std::complex<double>>;

namespace detail {
struct Handle : Counted {};
void destroy_tensor(Handle* handle) noexcept;

[[noreturn]] void does_not_fit(uint64_t value);  // into i64
[[noreturn]] void does_not_fit(int64_t value, uint64_t largest);

// The type in which a tensor keeps values of a C++ type: itself, or the next larger integer that a dtype has.
template <class T>
auto stored() {
  if constexpr (Element<T>)
    return T();
  else if constexpr (std::is_floating_point_v<T>)
    return double();
  else if constexpr (sizeof(T) == 1)
    return std::conditional_t<std::is_signed_v<T>, int8_t, uint8_t>();
  else if constexpr (sizeof(T) == 2 && std::is_unsigned_v<T>)
    return int32_t();
  else
    return int64_t();
}
template <class T>
using Stored = decltype(stored<T>());
template <class T>
Stored<T> store(T value) {
  if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8)
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) does_not_fit(value);
  return static_cast<Stored<T>>(value);
}
template <class T>
T restore(Stored<T> value) {
  if constexpr (std::is_unsigned_v<T> && !std::same_as<T, Stored<T>>)
    if (value < 0 || static_cast<uint64_t>(value) > std::numeric_limits<T>::max())
      does_not_fit(value, std::numeric_limits<T>::max());
  return static_cast<T>(value);
}
}  // namespace detail

/// What a tensor can be made from and read as: the dtypes' own types, and all other numbers by way of the nearest.
template <class T>
concept Value = Element<T> || Number<T>;

struct ValuesIndices;
class Index;

struct BackwardOptions {
  bool retain_graph = false;  // keep what nodes saved, so that the graph can be used again
  /// Record the computation of the gradients: gradients of gradients (implies retain_graph). A leaf's grad() then holds
  /// the graph that holds the leaf: zero_grad() when done, or use grad(), or neither is ever freed.
  bool create_graph = false;
};

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
      *this = from_int(static_cast<int64_t>(detail::store(value)));
    else if constexpr (std::is_floating_point_v<T>)
      *this = from_double(static_cast<double>(value));
    else
      *this = from_complex(std::complex<double>(value));
  }
  Tensor(const Tensor& other) : handle_(other.handle_) {
    if (handle_) handle_->retain();
  }
  Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor& operator=(const Tensor& other) & {
    Tensor copy(other);
    copy.swap(*this);
    return *this;
  }
  Tensor& operator=(Tensor&& other) & noexcept {
    Tensor moved(std::move(other));
    moved.swap(*this);
    return *this;
  }
  /// x[0] = 5 would only make a temporary handle mean something else: say x[0].copy_(5) or x.index_put_({0}, 5).
  void operator=(const Tensor& other) && = delete;
  ~Tensor() {
    if (handle_ && handle_->drop()) detail::destroy_tensor(handle_);
  }
  void swap(Tensor& other) & noexcept { std::swap(handle_, other.handle_); }
  void reset() & {
    Tensor nothing;
    nothing.swap(*this);
  }

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
  bool is_sparse() const;
  bool is_floating() const;
  bool is_complex() const;
  bool is_contiguous(MemoryFormat format = MemoryFormat::contiguous) const;
  /// Made from a C++ number, see the constructor.
  bool is_number() const;
  bool is_view() const;
  size_t element_size() const;

  // ---- Data
  void* raw_data() const;
  template <class T>
  T* data() const {
    check_dtype(dtype_of<T>);
    return static_cast<T*>(raw_data());
  }
  /// The value of a one-element tensor as a T. Fractions are cut off; what T cannot hold at all (1e30 or NaN in an int,
  /// -1 in an unsigned, an imaginary part in a double) is a ValueError.
  template <Number T>
  T item() const {
    using Limits = std::numeric_limits<T>;
    if constexpr (std::same_as<T, bool>)
      return item_complex() != std::complex<double>(0);
    else if constexpr (std::is_integral_v<T>)
      return static_cast<T>(item_int(std::is_signed_v<T> ? static_cast<int64_t>(Limits::min()) : 0,
                                     static_cast<uint64_t>(Limits::max())));
    else if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(item_double(static_cast<double>(Limits::max())));
    else
      return T(item_complex());
  }
  /// All elements in row-major order, converted to T as cast() does.
  template <Value T>
  std::vector<T> to_vector() const {
    auto count = static_cast<size_t>(numel());
    if constexpr (Element<T> && !std::same_as<T, bool>) {
      std::vector<T> values(count);
      copy_values(values.data(), dtype_of<T>);
      return values;
    } else {
      using S = detail::Stored<T>;
      auto stored = std::make_unique<S[]>(count);
      copy_values(stored.get(), dtype_of<S>);
      std::vector<T> values(count);
      for (size_t i = 0; i < count; ++i) values[i] = detail::restore<T>(stored[i]);
      return values;
    }
  }

  // ---- Storage
  size_t storage_bytes() const;
  /// Frees the storage (0) or gives it memory again, in place: every view sees the change. Old contents are kept as far
  /// as they fit. A tensor whose storage is too small for it cannot be read until it is resized back. This is no write:
  /// the version stays, so that what was saved for backward may be freed and refilled meanwhile, as sharded training
  /// does with parameters. Who refills it with other values must count that as a write, as every operator does.
  void resize_storage(size_t bytes) const;
  bool shares_storage(const Tensor& other) const;
  uint64_t version() const;
  void set_version(uint64_t version) const;  // for code that knows what it does; see PreserveVersion

  // ---- Conversion and copies
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;
  /// With .requires_grad, the result is one that requires a gradient (a detached one where nothing is converted).
  Tensor to(const Options& options) const;
  Tensor to(const char* device) const { return to(Device(device)); }
  /// To the dtype and device of another.
  Tensor type_as(const Tensor& other) const;
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
  /// loss.backward({.retain_graph = true})
  void backward(const BackwardOptions& options) const;
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
  Tensor view_as(const Tensor& other) const;
  Tensor expand_as(const Tensor& other) const;
  Tensor movedim(const Shape& from, const Shape& to) const;
  Tensor narrow(int64_t dim, int64_t start, int64_t length) const;
  Tensor slice(int64_t dim, std::optional<int64_t> start, std::optional<int64_t> stop = {}, int64_t step = 1) const;
  Tensor select(int64_t dim, int64_t index) const;
  TensorList split(int64_t length, int64_t dim = 0) const;
  TensorList split(const Shape& lengths, int64_t dim = 0) const;
  TensorList chunk(int64_t chunks, int64_t dim = 0) const;
  TensorList unbind(int64_t dim = 0) const;
  Tensor flatten(int64_t start = 0, int64_t end = -1) const;
  Tensor diagonal(int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1) const;
  Tensor unfold(int64_t dim, int64_t size, int64_t step) const;
  Tensor flip(const Shape& dims) const;
  Tensor roll(const Shape& shifts, const Shape& dims = {}) const;
  Tensor repeat(const Shape& repeats) const;
  Tensor tile(const Shape& repeats) const;
  Tensor tril(int64_t diagonal = 0) const;
  Tensor& tril_(int64_t diagonal = 0);
  Tensor triu(int64_t diagonal = 0) const;
  Tensor& triu_(int64_t diagonal = 0);
  Tensor diag(int64_t diagonal = 0) const;
  /// x[i]: select along the first dim.
  Tensor operator[](int64_t index) const { return select(0, index); }
  /// x.index({Slice(0, 3), 1, Ellipsis, mask}): basic and advanced indexing, as in the field.
  Tensor index(const std::vector<Index>& indices) const;
  Tensor& index_put_(const std::vector<Index>& indices, const Tensor& value, bool accumulate = false);
  Tensor gather(int64_t dim, const Tensor& index) const;
  Tensor scatter(int64_t dim, const Tensor& index, const Tensor& source) const;
  Tensor& scatter_(int64_t dim, const Tensor& index, const Tensor& source);
  Tensor scatter_add(int64_t dim, const Tensor& index, const Tensor& source) const;
  Tensor& scatter_add_(int64_t dim, const Tensor& index, const Tensor& source);
  Tensor index_select(int64_t dim, const Tensor& index) const;
  Tensor index_add(int64_t dim, const Tensor& index, const Tensor& source) const;
  Tensor& index_add_(int64_t dim, const Tensor& index, const Tensor& source);
  Tensor index_copy(int64_t dim, const Tensor& index, const Tensor& source) const;
  Tensor& index_copy_(int64_t dim, const Tensor& index, const Tensor& source);
  Tensor index_fill(int64_t dim, const Tensor& index, const Tensor& value) const;
  Tensor& index_fill_(int64_t dim, const Tensor& index, const Tensor& value);
  Tensor masked_select(const Tensor& mask) const;
  Tensor masked_fill(const Tensor& mask, const Tensor& value) const;
  Tensor& masked_fill_(const Tensor& mask, const Tensor& value);
  Tensor& fill_diagonal_(const Tensor& value);
  /// This where the condition holds, other elsewhere.
  Tensor where(const Tensor& condition, const Tensor& other) const;
  Tensor nonzero() const;
  ValuesIndices sort(int64_t dim = -1, bool descending = false) const;
  Tensor argsort(int64_t dim = -1, bool descending = false) const;
  ValuesIndices topk(int64_t k, int64_t dim = -1, bool largest = true, bool sorted = true) const;
  Tensor one_hot(int64_t classes = -1) const;
  bool equal(const Tensor& other) const;
  bool allclose(const Tensor& other, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false) const;

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
  Tensor count_nonzero(const Shape& dims = {}, bool keepdim = false) const;
  Tensor median() const;
  ValuesIndices median(int64_t dim, bool keepdim = false) const;
  Tensor trace() const;
  Tensor logsumexp(const Shape& dims = {}, bool keepdim = false) const;
  Tensor cumsum(int64_t dim, std::optional<DType> dtype = {}) const;
  Tensor& cumsum_(int64_t dim);
  Tensor cumprod(int64_t dim, std::optional<DType> dtype = {}) const;
  Tensor& cumprod_(int64_t dim);
  Tensor softmax(int64_t dim, std::optional<DType> dtype = {}) const;
  Tensor log_softmax(int64_t dim, std::optional<DType> dtype = {}) const;
  Tensor matmul(const Tensor& other) const;
  Tensor mm(const Tensor& other) const;
  Tensor mv(const Tensor& vector) const;
  Tensor bmm(const Tensor& other) const;
  Tensor dot(const Tensor& other) const;
  /// beta · this + alpha · a@b
  Tensor addmm(const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1) const;
  Tensor& addmm_(const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
  Tensor baddbmm(const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1) const;
  Tensor& baddbmm_(const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
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
  /// Integers in [low, high).
  Tensor& random_(int64_t low, int64_t high);
  /// With density rate · exp(-rate · x).
  Tensor& exponential_(double rate = 1);

  /// this + alpha · y, and so on, in one pass.
  Tensor add(const Tensor& y, const Tensor& alpha) const;
  Tensor& add_(const Tensor& y, const Tensor& alpha);
  Tensor sub(const Tensor& y, const Tensor& alpha) const;
  Tensor& sub_(const Tensor& y, const Tensor& alpha);
  Tensor nan_to_num(const Tensor& nan = 0) const;
  Tensor isclose(const Tensor& y, const Tensor& rtol, const Tensor& atol, bool equal_nan) const;

#include "tutti/pointwise/methods.inc"

  Tensor& operator+=(const Tensor& y) { return add_(y); }
  Tensor& operator-=(const Tensor& y) { return sub_(y); }
  Tensor& operator*=(const Tensor& y) { return mul_(y); }
  Tensor& operator/=(const Tensor& y) { return div_(y); }
  Tensor& operator%=(const Tensor& y) { return remainder_(y); }
  Tensor& operator&=(const Tensor& y) { return bitwise_and_(y); }
  Tensor& operator|=(const Tensor& y) { return bitwise_or_(y); }
  Tensor& operator^=(const Tensor& y) { return bitwise_xor_(y); }

  /// For the library's own sources (src/tensor/impl.h).
  TensorImpl* impl() const { return reinterpret_cast<TensorImpl*>(handle_); }
  explicit Tensor(TensorImpl* impl) : handle_(reinterpret_cast<detail::Handle*>(impl)) {
    if (handle_) handle_->retain_new();
  }

 private:
  static Tensor from_bool(bool value);
  static Tensor from_int(int64_t value);
  static Tensor from_double(double value);
  static Tensor from_complex(std::complex<double> value);
  uint64_t item_int(int64_t low, uint64_t high) const;
  double item_double(double limit) const;
  std::complex<double> item_complex() const;
  void copy_values(void* to, DType dtype) const;
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
