// Every operator that is not pointwise (those are in pointwise/functions.h), by family. A family's code is in the
// folder of the same name under src/ops/. Dims may be negative. Empty `dims` means all of them.
//
// f_out(out, ...) writes the result of f(...) into `out`: a tensor of the result's shape, whose dtype may be wider, and
// which may share memory with the arguments. An undefined `out` becomes the result. f_(x, ...) is f_out(x, x, ...).
#pragma once

#include <span>
#include <string_view>
#include <variant>

#include "tutti/pointwise/functions.h"
#include "tutti/tensor.h"

namespace tutti {

// ---- Arithmetic as C++ operators; ==, < and friends compare element by element.
inline Tensor operator+(const Tensor& x, const Tensor& y) { return add(x, y); }
inline Tensor operator-(const Tensor& x, const Tensor& y) { return sub(x, y); }
inline Tensor operator*(const Tensor& x, const Tensor& y) { return mul(x, y); }
inline Tensor operator/(const Tensor& x, const Tensor& y) { return div(x, y); }
inline Tensor operator%(const Tensor& x, const Tensor& y) { return remainder(x, y); }
inline Tensor operator+(const Tensor& x) { return x; }
inline Tensor operator-(const Tensor& x) { return neg(x); }
inline Tensor operator==(const Tensor& x, const Tensor& y) { return eq(x, y); }
inline Tensor operator!=(const Tensor& x, const Tensor& y) { return ne(x, y); }
inline Tensor operator<(const Tensor& x, const Tensor& y) { return lt(x, y); }
inline Tensor operator<=(const Tensor& x, const Tensor& y) { return le(x, y); }
inline Tensor operator>(const Tensor& x, const Tensor& y) { return gt(x, y); }
inline Tensor operator>=(const Tensor& x, const Tensor& y) { return ge(x, y); }
inline Tensor operator&(const Tensor& x, const Tensor& y) { return bitwise_and(x, y); }
inline Tensor operator|(const Tensor& x, const Tensor& y) { return bitwise_or(x, y); }
inline Tensor operator^(const Tensor& x, const Tensor& y) { return bitwise_xor(x, y); }
inline Tensor operator~(const Tensor& x) { return bitwise_not(x); }
inline Tensor operator<<(const Tensor& x, int64_t y) { return shift_left(x, y); }
inline Tensor operator>>(const Tensor& x, int64_t y) { return shift_right(x, y); }

/// x + alpha · y and x - alpha · y in one pass.
Tensor add(const Tensor& x, const Tensor& y, const Tensor& alpha);
Tensor sub(const Tensor& x, const Tensor& y, const Tensor& alpha);
/// NaN becomes `nan`, infinities the largest and smallest numbers of x's dtype.
Tensor nan_to_num(const Tensor& x, const Tensor& nan = 0);

// ---- create: new tensors

/// tensor({{1, 2}, {3, 4}}): nested lists of numbers; the dtype follows the numbers unless options name one.
class NestedList {
 public:
  template <Number T>
  NestedList(T value) : kind_(kind_of<T>()) {                                                    // NOLINT
    if constexpr (std::is_integral_v<T>) integer_ = static_cast<int64_t>(detail::store(value));  // or it throws
    if constexpr (std::is_arithmetic_v<T>)
      value_ = static_cast<double>(value);
    else
      value_ = value;
  }
  NestedList(std::initializer_list<NestedList> list) : list_(list), is_list_(true) {}
  bool is_list() const { return is_list_; }
  const std::vector<NestedList>& list() const { return list_; }
  std::complex<double> value() const { return value_; }
  int64_t integer() const { return integer_; }  // exact, where value() rounds
  Category kind() const { return kind_; }

 private:
  template <class T>
  static Category kind_of() {
    if constexpr (std::same_as<T, bool>)
      return Category::boolean;
    else if constexpr (std::is_integral_v<T>)
      return Category::integer;
    else if constexpr (std::is_floating_point_v<T>)
      return Category::floating;
    else
      return Category::complex;
  }
  std::vector<NestedList> list_;
  std::complex<double> value_;
  int64_t integer_ = 0;
  Category kind_ = Category::boolean;
  bool is_list_ = false;
};
Tensor tensor(std::initializer_list<NestedList> values, const Options& options = {});
namespace detail {
Tensor tensor_of_number(const Tensor& number, const Options& options);
Tensor tensor_of_values(const void* values, size_t count, DType dtype, const Options& options);
template <class R>
using ValueOf = std::remove_cvref_t<decltype(*std::data(std::declval<const R&>()))>;
}  // namespace detail
template <Number T>
Tensor tensor(T value, const Options& options = {}) {
  return detail::tensor_of_number(value, options);
}
/// Copies the values of a vector, span, array or Shape; the dtype is that of its elements (for unsigned ones, which
/// have no dtype, the next larger signed one) unless options name one.
template <class R>
  requires Value<detail::ValueOf<R>>
Tensor tensor(const R& values, const Options& options = {}) {
  using T = detail::ValueOf<R>;
  if constexpr (Element<T>) {
    return detail::tensor_of_values(std::data(values), std::size(values), dtype_of<T>, options);
  } else {
    std::vector<detail::Stored<T>> stored;
    for (const T& value : values) stored.push_back(detail::store(value));
    return detail::tensor_of_values(stored.data(), stored.size(), dtype_of<detail::Stored<T>>, options);
  }
}
Tensor tensor(const std::vector<bool>& values, const Options& options = {});
/// A tensor over memory that the caller owns; `release` runs when the last view is gone. Memory that is read-only may
/// be given, but then nothing may write the tensor.
Tensor from_blob(const void* data, const Shape& sizes, const Options& options = {}, std::function<void()> release = {},
                 std::optional<Shape> strides = {});
Tensor empty(const Shape& sizes, const Options& options = {}, MemoryFormat format = MemoryFormat::contiguous);
Tensor empty_strided(const Shape& sizes, const Shape& strides, const Options& options = {});
Tensor zeros(const Shape& sizes, const Options& options = {});
Tensor ones(const Shape& sizes, const Options& options = {});
Tensor full(const Shape& sizes, const Tensor& value, const Options& options = {});
Tensor empty_like(const Tensor& x, const Options& options = {});
Tensor zeros_like(const Tensor& x, const Options& options = {});
Tensor ones_like(const Tensor& x, const Options& options = {});
Tensor full_like(const Tensor& x, const Tensor& value, const Options& options = {});
/// start, start+step, ... up to but without stop. Integers give i64.
Tensor arange(const Tensor& stop, const Options& options = {});
Tensor arange(const Tensor& start, const Tensor& stop, const Tensor& step = 1, const Options& options = {});
Tensor linspace(double start, double stop, int64_t steps, const Options& options = {});
Tensor eye(int64_t rows, std::optional<int64_t> columns = {}, const Options& options = {});
Tensor tril(const Tensor& x, int64_t diagonal = 0);
Tensor& tril_(Tensor& x, int64_t diagonal = 0);
Tensor& tril_out(Tensor& out, const Tensor& x, int64_t diagonal = 0);
Tensor triu(const Tensor& x, int64_t diagonal = 0);
Tensor& triu_(Tensor& x, int64_t diagonal = 0);
Tensor& triu_out(Tensor& out, const Tensor& x, int64_t diagonal = 0);
/// A list as the given diagonal of a square matrix, or the diagonal of a matrix as a list (a copy, unlike diagonal()).
Tensor diag(const Tensor& x, int64_t diagonal = 0);
/// One tensor of shape [n0, n1, ...] for each of the lists, of which it varies along the list's own dim. `by_columns`
/// swaps the first two dims ("xy" indexing).
TensorList meshgrid(const TensorList& lists, bool by_columns = false);
/// [2, n] indices of the lower (upper) triangle of a rows×columns matrix.
Tensor tril_indices(int64_t rows, int64_t columns, int64_t offset = 0);
Tensor triu_indices(int64_t rows, int64_t columns, int64_t offset = 0);

// With one option instead of a list of them.
template <OneOption O>
Tensor tensor(std::initializer_list<NestedList> values, O option) {
  return tensor(values, detail::options_of(option));
}
template <class T, OneOption O>
  requires requires(const T& values, Options options) { tensor(values, options); }
Tensor tensor(const T& values, O option) {
  return tensor(values, detail::options_of(option));
}
template <OneOption O>
Tensor empty(const Shape& sizes, O option) {
  return empty(sizes, detail::options_of(option));
}
template <OneOption O>
Tensor zeros(const Shape& sizes, O option) {
  return zeros(sizes, detail::options_of(option));
}
template <OneOption O>
Tensor ones(const Shape& sizes, O option) {
  return ones(sizes, detail::options_of(option));
}
template <OneOption O>
Tensor full(const Shape& sizes, const Tensor& value, O option) {
  return full(sizes, value, detail::options_of(option));
}
template <OneOption O>
Tensor empty_strided(const Shape& sizes, const Shape& strides, O option) {
  return empty_strided(sizes, strides, detail::options_of(option));
}
template <OneOption O>
Tensor empty_like(const Tensor& x, O option) {
  return empty_like(x, detail::options_of(option));
}
template <OneOption O>
Tensor full_like(const Tensor& x, const Tensor& value, O option) {
  return full_like(x, value, detail::options_of(option));
}
template <OneOption O>
Tensor zeros_like(const Tensor& x, O option) {
  return zeros_like(x, detail::options_of(option));
}
template <OneOption O>
Tensor ones_like(const Tensor& x, O option) {
  return ones_like(x, detail::options_of(option));
}
template <OneOption O>
Tensor linspace(double start, double stop, int64_t steps, O option) {
  return linspace(start, stop, steps, detail::options_of(option));
}
template <OneOption O>
Tensor eye(int64_t size, O option) {
  return eye(size, size, detail::options_of(option));
}
template <OneOption O>
Tensor arange(const Tensor& stop, O option) {
  return arange(stop, detail::options_of(option));
}

// ---- random: see random.h

// ---- convert
/// Casts; differentiable. Complex to real takes the real part.
Tensor cast(const Tensor& x, DType dtype);
Tensor copy_to(const Tensor& x, Device device);
Tensor clone(const Tensor& x, MemoryFormat format = MemoryFormat::preserve);
Tensor contiguous(const Tensor& x, MemoryFormat format = MemoryFormat::contiguous);

// ---- view: the same storage seen otherwise; and shape operators that copy. They have no in-place forms: x = x.t().
Tensor view(const Tensor& x, const Shape& sizes);
/// The same bytes as another dtype (the last dim is divided or multiplied); not differentiable.
Tensor view_dtype(const Tensor& x, DType dtype);
/// The same memory as a tensor of another logical device of the same kind: cpu:1 sees what cpu:0 has.
Tensor view_on(const Tensor& x, Device device);
Tensor reshape(const Tensor& x, const Shape& sizes);
Tensor permute(const Tensor& x, const Shape& dims);
Tensor transpose(const Tensor& x, int64_t dim0, int64_t dim1);
/// Dim from[k] goes to place to[k]; the others keep their order.
Tensor movedim(const Tensor& x, const Shape& from, const Shape& to);
Tensor squeeze(const Tensor& x);
Tensor squeeze(const Tensor& x, int64_t dim);
Tensor unsqueeze(const Tensor& x, int64_t dim);
/// -1 keeps a size.
Tensor expand(const Tensor& x, const Shape& sizes);
Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length);
Tensor slice(const Tensor& x, int64_t dim, std::optional<int64_t> start, std::optional<int64_t> stop = {},
             int64_t step = 1);
Tensor select(const Tensor& x, int64_t dim, int64_t index);
TensorList split(const Tensor& x, int64_t length, int64_t dim = 0);
TensorList split(const Tensor& x, const Shape& lengths, int64_t dim = 0);
TensorList chunk(const Tensor& x, int64_t chunks, int64_t dim = 0);
TensorList unbind(const Tensor& x, int64_t dim = 0);
Tensor flatten(const Tensor& x, int64_t start = 0, int64_t end = -1);
/// offset is counted in the storage, default the tensor's own.
Tensor as_strided(const Tensor& x, const Shape& sizes, const Shape& strides, std::optional<int64_t> offset = {});
Tensor diagonal(const Tensor& x, int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1);
/// Windows of `size` every `step` along dim, in a new last dim.
Tensor unfold(const Tensor& x, int64_t dim, int64_t size, int64_t step);
Tensor flip(const Tensor& x, const Shape& dims);
Tensor roll(const Tensor& x, const Shape& shifts, const Shape& dims = {});
/// Tiles the tensor: repeats[k] times along dim k (new dims in front).
Tensor repeat(const Tensor& x, const Shape& repeats);
/// The same, but repeats may be fewer than the dims: they count from the last.
Tensor tile(const Tensor& x, const Shape& repeats);
/// Each element along dim `repeats` times in a row.
Tensor repeat_interleave(const Tensor& x, int64_t repeats, int64_t dim);
Tensor cat(const TensorList& tensors, int64_t dim = 0);
Tensor& cat_out(Tensor& out, const TensorList& tensors, int64_t dim = 0);
Tensor stack(const TensorList& tensors, int64_t dim = 0);
Tensor& stack_out(Tensor& out, const TensorList& tensors, int64_t dim = 0);
enum class PadMode : uint8_t { constant, reflect, replicate, circular };
/// pads = {last dim before, last dim after, second to last before, ...}; negative pads crop.
Tensor pad(const Tensor& x, const Shape& pads, PadMode mode = PadMode::constant, double value = 0);
TensorList broadcast_tensors(const TensorList& tensors);
/// The shape that broadcasting gives; throws ShapeError naming both.
Shape broadcast_shapes(const Shape& a, const Shape& b);
/// Sums x over the dims along which `sizes` was broadcast to x's shape.
Tensor sum_to(const Tensor& x, const Shape& sizes);

// ---- reduce
Tensor sum(const Tensor& x, const Shape& dims = {}, bool keepdim = false, std::optional<DType> dtype = {});
Tensor& sum_out(Tensor& out, const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Shape& dims = {}, bool keepdim = false, std::optional<DType> dtype = {});
Tensor& mean_out(Tensor& out, const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor prod(const Tensor& x, const Shape& dims = {}, bool keepdim = false, std::optional<DType> dtype = {});
Tensor& prod_out(Tensor& out, const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// Largest and smallest over dims; ties share the gradient evenly.
Tensor amax(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor& amax_out(Tensor& out, const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor& amin_out(Tensor& out, const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor max(const Tensor& x);
Tensor min(const Tensor& x);
/// Along one dim, with the index of the first such element.
ValuesIndices max(const Tensor& x, int64_t dim, bool keepdim = false);
ValuesIndices& max_out(ValuesIndices& out, const Tensor& x, int64_t dim, bool keepdim = false);
ValuesIndices min(const Tensor& x, int64_t dim, bool keepdim = false);
ValuesIndices& min_out(ValuesIndices& out, const Tensor& x, int64_t dim, bool keepdim = false);
/// Of two tensors, element by element: maximum() and minimum(). A whole number as the second argument is a dim.
Tensor max(const Tensor& x, const Tensor& y);
Tensor min(const Tensor& x, const Tensor& y);
template <std::floating_point F>
Tensor max(const Tensor& x, F y) {
  return max(x, Tensor(y));
}
template <std::floating_point F>
Tensor min(const Tensor& x, F y) {
  return min(x, Tensor(y));
}
Tensor argmax(const Tensor& x, std::optional<int64_t> dim = {}, bool keepdim = false);
Tensor& argmax_out(Tensor& out, const Tensor& x, std::optional<int64_t> dim = {}, bool keepdim = false);
Tensor argmin(const Tensor& x, std::optional<int64_t> dim = {}, bool keepdim = false);
Tensor& argmin_out(Tensor& out, const Tensor& x, std::optional<int64_t> dim = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor& all_out(Tensor& out, const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor any(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor& any_out(Tensor& out, const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor count_nonzero(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// Vector norm of order p (infinities and 0 too).
Tensor norm(const Tensor& x, double p = 2, const Shape& dims = {}, bool keepdim = false);
Tensor& norm_out(Tensor& out, const Tensor& x, double p = 2, const Shape& dims = {}, bool keepdim = false);
Tensor var(const Tensor& x, const Shape& dims = {}, bool keepdim = false, int64_t correction = 1);
Tensor& var_out(Tensor& out, const Tensor& x, const Shape& dims = {}, bool keepdim = false, int64_t correction = 1);
/// The standard deviation; x.std() as a method. (Not `std`, which is a namespace to everybody who uses this one.)
Tensor stddev(const Tensor& x, const Shape& dims = {}, bool keepdim = false, int64_t correction = 1);
Tensor& stddev_out(Tensor& out, const Tensor& x, const Shape& dims = {}, bool keepdim = false, int64_t correction = 1);
/// The sum of the diagonal of a matrix.
Tensor trace(const Tensor& x);
/// The middle element in order, the lower of the two for an even number; NaN if there is one.
Tensor median(const Tensor& x);
Tensor& median_out(Tensor& out, const Tensor& x);
ValuesIndices median(const Tensor& x, int64_t dim, bool keepdim = false);
ValuesIndices& median_out(ValuesIndices& out, const Tensor& x, int64_t dim, bool keepdim = false);
Tensor logsumexp(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor& logsumexp_out(Tensor& out, const Tensor& x, const Shape& dims = {}, bool keepdim = false);
// With a dtype, the input is cast to it first.
Tensor cumsum(const Tensor& x, int64_t dim, std::optional<DType> dtype = {});
Tensor& cumsum_(Tensor& x, int64_t dim);
Tensor& cumsum_out(Tensor& out, const Tensor& x, int64_t dim);
Tensor cumprod(const Tensor& x, int64_t dim, std::optional<DType> dtype = {});
Tensor& cumprod_(Tensor& x, int64_t dim);
Tensor& cumprod_out(Tensor& out, const Tensor& x, int64_t dim);
Tensor softmax(const Tensor& x, int64_t dim, std::optional<DType> dtype = {});
Tensor& softmax_out(Tensor& out, const Tensor& x, int64_t dim);
Tensor log_softmax(const Tensor& x, int64_t dim, std::optional<DType> dtype = {});
Tensor& log_softmax_out(Tensor& out, const Tensor& x, int64_t dim);

// ---- matmul
Tensor mm(const Tensor& a, const Tensor& b);
Tensor& mm_out(Tensor& out, const Tensor& a, const Tensor& b);
Tensor mv(const Tensor& a, const Tensor& x);
Tensor& mv_out(Tensor& out, const Tensor& a, const Tensor& x);
Tensor bmm(const Tensor& a, const Tensor& b);
Tensor& bmm_out(Tensor& out, const Tensor& a, const Tensor& b);
/// By the number of dims: dot, matrix-vector, matrix-matrix, or batched with broadcasting.
Tensor matmul(const Tensor& a, const Tensor& b);
Tensor& matmul_out(Tensor& out, const Tensor& a, const Tensor& b);
/// beta·c + alpha·a@b
Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
Tensor& addmm_(Tensor& c, const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
Tensor& addmm_out(Tensor& out, const Tensor& c, const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
Tensor baddbmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
Tensor& baddbmm_(Tensor& c, const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
Tensor& baddbmm_out(Tensor& out, const Tensor& c, const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
Tensor dot(const Tensor& a, const Tensor& b);
Tensor& dot_out(Tensor& out, const Tensor& a, const Tensor& b);
Tensor outer(const Tensor& a, const Tensor& b);
Tensor& outer_out(Tensor& out, const Tensor& a, const Tensor& b);
/// Sums over the last `dims` dims of a and the first of b, or over the dims named for each.
Tensor tensordot(const Tensor& a, const Tensor& b, int64_t dims = 2);
Tensor& tensordot_out(Tensor& out, const Tensor& a, const Tensor& b, int64_t dims = 2);
Tensor tensordot(const Tensor& a, const Tensor& b, const Shape& a_dims, const Shape& b_dims);
Tensor& tensordot_out(Tensor& out, const Tensor& a, const Tensor& b, const Shape& a_dims, const Shape& b_dims);
/// einsum("bij,bjk->bik", {a, b}); ellipsis, repeated indices and implicit output too.
Tensor einsum(std::string_view equation, const TensorList& operands);
Tensor& einsum_out(Tensor& out, std::string_view equation, const TensorList& operands);

// ---- index
struct Slice {
  std::optional<int64_t> start = {}, stop = {};
  int64_t step = 1;
  Slice() = default;
  Slice(std::optional<int64_t> start, std::optional<int64_t> stop = {}, int64_t step = 1)  // NOLINT
      : start(start), stop(stop), step(step) {}
};
struct EllipsisTag {};
struct NewAxisTag {};
inline constexpr EllipsisTag Ellipsis{};
inline constexpr NewAxisTag NewAxis{};
/// One entry of x.index({...}): a number, a Slice, Ellipsis, NewAxis, a boolean mask or a tensor of indices.
class Index {
 public:
  template <std::integral I>
    requires(!std::same_as<I, bool>)
  Index(I i) : value_(static_cast<int64_t>(detail::store(i))) {}  // NOLINT
  template <std::same_as<bool> B>
  Index(B b) : value_(tensor(b)) {}      // NOLINT: a mask of no dims, not the number 0 or 1
  Index(const char* dots);               // NOLINT: "..." is Ellipsis; any other text is an IndexError
  Index(Slice s) : value_(s) {}          // NOLINT
  Index(EllipsisTag e) : value_(e) {}    // NOLINT
  Index(NewAxisTag n) : value_(n) {}     // NOLINT
  Index(const Tensor& t) : value_(t) {}  // NOLINT
  const std::variant<int64_t, Slice, EllipsisTag, NewAxisTag, Tensor>& value() const { return value_; }

 private:
  std::variant<int64_t, Slice, EllipsisTag, NewAxisTag, Tensor> value_;
};
Tensor index(const Tensor& x, const std::vector<Index>& indices);
/// A copy of x with the indexed elements replaced by (or, accumulating, added to by) value.
Tensor index_put(const Tensor& x, const std::vector<Index>& indices, const Tensor& value, bool accumulate = false);
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index);
Tensor& gather_out(Tensor& out, const Tensor& x, int64_t dim, const Tensor& index);
Tensor scatter(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
Tensor& scatter_(Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
Tensor& scatter_out(Tensor& out, const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
Tensor& scatter_add_(Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
Tensor& scatter_add_out(Tensor& out, const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index);
Tensor& index_select_out(Tensor& out, const Tensor& x, int64_t dim, const Tensor& index);
Tensor index_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
Tensor& index_add_(Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
Tensor& index_add_out(Tensor& out, const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
/// Rows along dim replaced by those of source, or by one value.
Tensor index_copy(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
Tensor& index_copy_(Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
Tensor& index_copy_out(Tensor& out, const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
Tensor index_fill(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& value);
Tensor& index_fill_(Tensor& x, int64_t dim, const Tensor& index, const Tensor& value);
Tensor& index_fill_out(Tensor& out, const Tensor& x, int64_t dim, const Tensor& index, const Tensor& value);
Tensor masked_select(const Tensor& x, const Tensor& mask);
Tensor& masked_select_out(Tensor& out, const Tensor& x, const Tensor& mask);
Tensor masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value);
Tensor& masked_fill_(Tensor& x, const Tensor& mask, const Tensor& value);
Tensor& masked_fill_out(Tensor& out, const Tensor& x, const Tensor& mask, const Tensor& value);
/// [n, dim] indices of the elements that are not zero, in row-major order.
Tensor nonzero(const Tensor& x);
Tensor& nonzero_out(Tensor& out, const Tensor& x);
ValuesIndices topk(const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true, bool sorted = true);
ValuesIndices& topk_out(ValuesIndices& out, const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true,
                        bool sorted = true);
/// Stable. NaN counts as the largest.
ValuesIndices sort(const Tensor& x, int64_t dim = -1, bool descending = false);
ValuesIndices& sort_out(ValuesIndices& out, const Tensor& x, int64_t dim = -1, bool descending = false);
Tensor argsort(const Tensor& x, int64_t dim = -1, bool descending = false);
Tensor& argsort_out(Tensor& out, const Tensor& x, int64_t dim = -1, bool descending = false);
/// The k-th smallest along dim, k from 1 on.
ValuesIndices kthvalue(const Tensor& x, int64_t k, int64_t dim = -1, bool keepdim = false);
ValuesIndices& kthvalue_out(ValuesIndices& out, const Tensor& x, int64_t k, int64_t dim = -1, bool keepdim = false);
/// The different values in ascending order; for each element of x the index of its value (in x's shape); how often each
/// occurs. Every NaN is a value of its own.
struct Unique {
  Tensor values, inverse, counts;
};
Unique unique(const Tensor& x);
/// How often each of 0, 1, ... occurs in a list of integers, or the sum of its weights; at least `least` entries.
Tensor bincount(const Tensor& x, const Tensor& weights = {}, int64_t least = 0);
/// i64 ones and zeros with a new last dim of `classes` (-1: the largest index + 1).
Tensor one_hot(const Tensor& index, int64_t classes = -1);

// ---- complex
Tensor real(const Tensor& x);
Tensor imag(const Tensor& x);
Tensor angle(const Tensor& x);
/// A view: the last dim, of size 2, holds the real and imaginary parts.
Tensor view_as_real(const Tensor& x);
Tensor view_as_complex(const Tensor& x);
/// re + i·im
Tensor complex(const Tensor& re, const Tensor& im);

// ---- sparse: COO tensors with sparse dims in front and dense dims behind (hybrid)
/// indices is i64 [sparse dims, n], values [n, dense dims...]. Duplicate indices add up.
Tensor sparse_coo(const Tensor& indices, const Tensor& values, const Shape& sizes);
Tensor to_dense(const Tensor& x);
Tensor to_sparse(const Tensor& x, std::optional<int64_t> sparse_dims = {});
/// Sorted, without duplicates.
Tensor coalesce(const Tensor& x);
/// Of a sparse tensor, as they are.
Tensor sparse_values(const Tensor& x);
Tensor sparse_indices(const Tensor& x);

/// Equal shapes, dtypes and values (NaN equals nothing).
bool equal(const Tensor& a, const Tensor& b);
/// Whether all elements agree within atol + rtol·|b|.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false);
/// The same of each element; with equal_nan, NaN is close to NaN.
Tensor isclose(const Tensor& x, const Tensor& y, const Tensor& rtol, const Tensor& atol, bool equal_nan);

}  // namespace tutti
