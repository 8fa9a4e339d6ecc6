#include "tutti/tensor.h"

#include <cmath>
#include <cstring>

#include "autograd/meta.h"
#include "base/check.h"
#include "base/named.h"
#include "tensor/call.h"
#include "tensor/impl.h"
#include "tutti/autograd.h"
#include "tutti/ops.h"
#include "tutti/trace.h"

namespace tutti {
namespace {

template <class T>
Tensor make_number(DType dtype, T value) {
  Tensor t = make_tensor({}, dtype, Device());
  std::memcpy(impl(t)->storage->data, &value, sizeof value);
  impl(t)->number = true;
  return t;
}

const TensorImpl* get(const Tensor& t, const char* what) {
  check<ValueError>(t.defined(), what, "the tensor is undefined: it was never given a value");
  return impl(t);
}

// The only element, by its own type.
template <class F>
auto read_item(const Tensor& t, F&& f) {
  const TensorImpl* x = get(t, "item");
  if (Tracer* tracer = tracing(); tracer && !x->number) tracer->untraceable("reading a value, by item(),");
  check<ShapeError>(x->numel == 1, "item", "{} has {} elements, not one", t, x->numel);
  check<DeviceError>(x->device.is_cpu(), "item", "{} has no values to read here; copy it to a cpu first", t);
  if (x->layout == Layout::sparse) return f(to_dense(t));
  check_readable(t, "item");
  return f(t);
}

}  // namespace

void detail::does_not_fit(uint64_t value) {
  fail<ValueError>("tensor", "{} is larger than any i64, the widest integer that tensors hold", value);
}
void detail::does_not_fit(int64_t value, uint64_t largest) {
  fail<ValueError>("to_vector", "{} does not lie in 0 to {}, which the type asked for can hold", value, largest);
}

Tensor Tensor::from_bool(bool value) { return make_number(DType::boolean, value); }
Tensor Tensor::from_int(int64_t value) { return make_number(DType::i64, value); }
Tensor Tensor::from_double(double value) { return make_number(DType::f64, value); }
Tensor Tensor::from_complex(std::complex<double> value) { return make_number(DType::c128, value); }

const Shape& Tensor::sizes() const { return get(*this, "sizes")->sizes; }
const Shape& Tensor::strides() const { return get(*this, "strides")->strides; }
int64_t Tensor::size(int64_t d) const {
  check<IndexError>(!get(*this, "size")->sizes.empty(), "size", "a zero-dimensional tensor has no dim {}", d);
  return sizes()[static_cast<size_t>(wrap_dim(d, *this, "size"))];
}
int64_t Tensor::stride(int64_t d) const {
  check<IndexError>(!get(*this, "stride")->sizes.empty(), "stride", "a zero-dimensional tensor has no dim {}", d);
  return strides()[static_cast<size_t>(wrap_dim(d, *this, "stride"))];
}
int64_t Tensor::dim() const { return static_cast<int64_t>(get(*this, "dim")->sizes.size()); }
int64_t Tensor::numel() const { return get(*this, "numel")->numel; }
int64_t Tensor::storage_offset() const { return get(*this, "storage_offset")->offset; }
DType Tensor::dtype() const { return get(*this, "dtype")->dtype; }
Device Tensor::device() const { return get(*this, "device")->device; }
Layout Tensor::layout() const { return get(*this, "layout")->layout; }
size_t Tensor::element_size() const { return size_of(get(*this, "element_size")->dtype); }
bool Tensor::is_sparse() const { return get(*this, "is_sparse")->layout == Layout::sparse; }
bool Tensor::is_floating() const { return tutti::is_floating(get(*this, "is_floating")->dtype); }
bool Tensor::is_complex() const { return tutti::is_complex(get(*this, "is_complex")->dtype); }
bool Tensor::is_number() const { return get(*this, "is_number")->number; }
bool Tensor::is_view() const { return get(*this, "is_view")->base.defined(); }

bool Tensor::is_contiguous(MemoryFormat format) const {
  const TensorImpl* t = get(*this, "is_contiguous");
  if (format != MemoryFormat::channels_last) return t->contiguous;
  if (t->sizes.size() != 4 && t->sizes.size() != 5) return false;
  if (t->numel == 0) return true;
  Shape wanted = channels_last_strides(t->sizes);
  for (size_t d = 0; d < wanted.size(); ++d)
    if (t->sizes[d] != 1 && t->strides[d] != wanted[d]) return false;
  return true;
}

void Tensor::check_dtype(DType wanted) const {
  DType held = get(*this, "data")->dtype;
  check<DTypeError>(held == wanted, "data", "{} holds {}, not {}", *this, held, wanted);
}

void* Tensor::raw_data() const {
  const TensorImpl* t = get(*this, "data");
  check<DeviceError>(!t->device.is_meta(), "data", "{} has a shape but no data", *this);
  check<ValueError>(t->storage.get(), "data", "{} is sparse: its data is in values() and indices()", *this);
  check_readable(*this, "data");
  if (Tracer* tracer = tracing(); tracer && !t->number) tracer->untraceable("data() reads or writes values");
  return t->storage->data ? t->data() : nullptr;
}

std::complex<double> Tensor::item_complex() const {
  return read_item(*this, [](const Tensor& t) {
    return with_type(t.dtype(), [&]<class T>() {
      T v = *t.data<T>();
      if constexpr (std::same_as<T, std::complex<float>> || std::same_as<T, std::complex<double>>)
        return std::complex<double>(v);
      else
        return std::complex<double>(static_cast<double>(v));
    });
  });
}
double Tensor::item_double(double limit) const {
  std::complex<double> v = item_complex();
  check<ValueError>(v.imag() == 0, "item", "{}{:+}i has an imaginary part; ask for a std::complex, or real() first",
                    v.real(), v.imag());
  check<ValueError>(!(std::abs(v.real()) > limit) || std::isinf(v.real()), "item",
                    "{} is too large for the type asked for, which ends at {}", v.real(), limit);
  return v.real();
}
uint64_t Tensor::item_int(int64_t low, uint64_t high) const {
  return read_item(*this, [&](const Tensor& t) {
    if (t.dtype() == DType::i64) {
      int64_t v = *t.data<int64_t>();
      check<ValueError>(v >= low && (v < 0 || static_cast<uint64_t>(v) <= high), "item",
                        "{} does not lie in {} to {}, which the type asked for can hold", v, low, high);
      return static_cast<uint64_t>(v);
    }
    double v = std::trunc(t.item_double(std::numeric_limits<double>::max()));
    // As doubles, the largest of 64 bits and its successor are one number, which is too large.
    check<ValueError>(v >= static_cast<double>(low) && v < static_cast<double>(high) + 1, "item",
                      "{} does not lie in {} to {}, which the type asked for can hold", v, low, high);
    return v < 0 ? static_cast<uint64_t>(static_cast<int64_t>(v)) : static_cast<uint64_t>(v);
  });
}

void Tensor::copy_values(void* to, DType dtype) const {
  if (Tracer* tracer = tracing()) tracer->untraceable("reading values (to_vector(), printing, comparing)");
  NoGrad guard;
  Tensor t = (is_sparse() ? tutti::to_dense(*this) : *this).detach();
  if (t.dtype() != dtype) t = cast(t, dtype);
  t = t.contiguous();
  const void* from = t.raw_data();
  if (t.numel() > 0) std::memcpy(to, from, static_cast<size_t>(t.numel()) * size_of(dtype));
}

size_t Tensor::storage_bytes() const { return get(*this, "storage_bytes")->storage ? impl()->storage->bytes : 0; }
void Tensor::resize_storage(size_t bytes) const {
  check<ValueError>(get(*this, "resize_storage")->storage.get(), "resize_storage", "{} is sparse", *this);
  if (Tracer* tracer = tracing()) tracer->resized(*this, bytes);
  tutti::resize_storage(*impl()->storage, bytes);
}
bool Tensor::shares_storage(const Tensor& other) const {
  return defined() && other.defined() && impl()->storage && impl()->storage == other.impl()->storage;
}
uint64_t Tensor::version() const {
  const Storage* storage = versioned_storage(get(*this, "version"));
  uint64_t version = storage ? storage->version.load() : 0;
  if (Tracer* tracer = tracing()) tracer->version_read(*this, version);
  return version;
}
void Tensor::set_version(uint64_t version) const {
  if (Storage* storage = versioned_storage(get(*this, "set_version"))) storage->version = version;
  if (Tracer* tracer = tracing()) tracer->version_set(*this, version);
}

void Tensor::set_data(const Tensor& other) const {
  check<ValueError>(defined() && other.defined(), "set_data", "an undefined tensor has no data to give or take");
  check<GradError>(!impl()->base.defined() && is_leaf(), "set_data",
                   "{} is a view or has a history; only leaves can be given other data", *this);
  check<DTypeError>(is_differentiable(other.dtype()) || !requires_grad(), "set_data",
                    "{} requires a gradient and cannot be given {}, which has none", *this, other);
  TensorImpl* t = impl();
  const TensorImpl* from = other.impl();
  drop_grad_unless_like(*this, other);
  ++t->data_changes;
  t->storage = from->storage;
  t->dtype = from->dtype;
  t->device = from->device;
  t->layout = from->layout;
  t->sparse = from->sparse ? std::make_unique<SparseParts>(*from->sparse) : nullptr;
  t->set_geometry(from->sizes, from->strides, from->offset);
  if (Tracer* tracer = tracing()) tracer->data_set(*this, other);
}

std::string describe(const Tensor& t) {
  if (!t.defined()) return "undefined";
  const TensorImpl* x = impl(t);
  return fmt::format("{}{}{} on {}",
                     x->layout == Layout::sparse ? "sparse "
                     : x->number                 ? "number "
                                                 : "",
                     x->dtype, x->sizes, x->device);
}

// ---- Methods that call the function of the same name

Tensor Tensor::to(DType dtype) const { return dtype == get(*this, "to")->dtype ? *this : cast(*this, dtype); }
Tensor Tensor::to(Device device) const { return device == get(*this, "to")->device ? *this : copy_to(*this, device); }
Tensor Tensor::to(const Options& options) const {
  Tensor t = options.dtype ? to(*options.dtype) : *this;
  if (options.device) t = t.to(*options.device);
  if (!options.requires_grad || t.requires_grad()) return t;
  return t.is_same(*this) ? t.detach().requires_grad_() : t.requires_grad_();
}
Tensor Tensor::type_as(const Tensor& other) const {
  get(*this, "type_as");
  const TensorImpl* like = get(other, "type_as");
  return to(Options{.dtype = like->dtype, .device = like->device});
}
void Tensor::backward(const BackwardOptions& options) const { tutti::backward(TensorList{*this}, {}, options); }
Tensor Tensor::contiguous(MemoryFormat format) const { return tutti::contiguous(*this, format); }
Tensor Tensor::clone(MemoryFormat format) const { return tutti::clone(*this, format); }
Tensor Tensor::view(const Shape& sizes) const { return tutti::view(*this, sizes); }
Tensor Tensor::view_dtype(DType dtype) const { return tutti::view_dtype(*this, dtype); }
Tensor Tensor::reshape(const Shape& sizes) const { return tutti::reshape(*this, sizes); }
Tensor Tensor::permute(const Shape& dims) const { return tutti::permute(*this, dims); }
Tensor Tensor::transpose(int64_t dim0, int64_t dim1) const { return tutti::transpose(*this, dim0, dim1); }
Tensor Tensor::t() const {
  const Shape& sizes = get(*this, "t")->sizes;
  check<ShapeError>(sizes.size() <= 2, "t", "needs at most 2 dims, not {}; use transpose(dim0, dim1)", sizes);
  return sizes.size() < 2 ? *this : transpose(0, 1);
}
Tensor Tensor::squeeze() const { return tutti::squeeze(*this); }
Tensor Tensor::squeeze(int64_t dim) const { return tutti::squeeze(*this, dim); }
Tensor Tensor::unsqueeze(int64_t dim) const { return tutti::unsqueeze(*this, dim); }
Tensor Tensor::expand(const Shape& sizes) const { return tutti::expand(*this, sizes); }
Tensor Tensor::view_as(const Tensor& other) const {
  const Shape& sizes = get(other, "view_as")->sizes;
  return named("view_as", [&] { return view(sizes); });
}
Tensor Tensor::expand_as(const Tensor& other) const {
  const Shape& sizes = get(other, "expand_as")->sizes;
  return named("expand_as", [&] { return expand(sizes); });
}
Tensor Tensor::narrow(int64_t dim, int64_t start, int64_t length) const {
  return tutti::narrow(*this, dim, start, length);
}
Tensor Tensor::slice(int64_t dim, std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step) const {
  return tutti::slice(*this, dim, start, stop, step);
}
Tensor Tensor::select(int64_t dim, int64_t index) const { return tutti::select(*this, dim, index); }
TensorList Tensor::split(int64_t length, int64_t dim) const { return tutti::split(*this, length, dim); }
TensorList Tensor::split(const Shape& lengths, int64_t dim) const { return tutti::split(*this, lengths, dim); }
TensorList Tensor::chunk(int64_t chunks, int64_t dim) const { return tutti::chunk(*this, chunks, dim); }
TensorList Tensor::unbind(int64_t dim) const { return tutti::unbind(*this, dim); }
Tensor Tensor::flatten(int64_t start, int64_t end) const { return tutti::flatten(*this, start, end); }
Tensor Tensor::diagonal(int64_t offset, int64_t dim1, int64_t dim2) const {
  return tutti::diagonal(*this, offset, dim1, dim2);
}
Tensor Tensor::movedim(const Shape& from, const Shape& to) const { return tutti::movedim(*this, from, to); }
Tensor Tensor::unfold(int64_t dim, int64_t size, int64_t step) const { return tutti::unfold(*this, dim, size, step); }
Tensor Tensor::flip(const Shape& dims) const { return tutti::flip(*this, dims); }
Tensor Tensor::roll(const Shape& shifts, const Shape& dims) const { return tutti::roll(*this, shifts, dims); }
Tensor Tensor::repeat(const Shape& repeats) const { return tutti::repeat(*this, repeats); }
Tensor Tensor::tile(const Shape& repeats) const { return tutti::tile(*this, repeats); }
Tensor Tensor::tril(int64_t diagonal) const { return tutti::tril(*this, diagonal); }
Tensor& Tensor::tril_(int64_t diagonal) { return tutti::tril_(*this, diagonal); }
Tensor Tensor::triu(int64_t diagonal) const { return tutti::triu(*this, diagonal); }
Tensor& Tensor::triu_(int64_t diagonal) { return tutti::triu_(*this, diagonal); }
Tensor Tensor::diag(int64_t diagonal) const { return tutti::diag(*this, diagonal); }
Tensor Tensor::gather(int64_t dim, const Tensor& index) const { return tutti::gather(*this, dim, index); }
Tensor Tensor::scatter(int64_t dim, const Tensor& index, const Tensor& source) const {
  return tutti::scatter(*this, dim, index, source);
}
Tensor& Tensor::scatter_(int64_t dim, const Tensor& index, const Tensor& source) {
  return tutti::scatter_(*this, dim, index, source);
}
Tensor Tensor::scatter_add(int64_t dim, const Tensor& index, const Tensor& source) const {
  return tutti::scatter_add(*this, dim, index, source);
}
Tensor& Tensor::scatter_add_(int64_t dim, const Tensor& index, const Tensor& source) {
  return tutti::scatter_add_(*this, dim, index, source);
}
Tensor Tensor::index_select(int64_t dim, const Tensor& index) const { return tutti::index_select(*this, dim, index); }
Tensor Tensor::index_add(int64_t dim, const Tensor& index, const Tensor& source) const {
  return tutti::index_add(*this, dim, index, source);
}
Tensor& Tensor::index_add_(int64_t dim, const Tensor& index, const Tensor& source) {
  return tutti::index_add_(*this, dim, index, source);
}
Tensor Tensor::index_copy(int64_t dim, const Tensor& index, const Tensor& source) const {
  return tutti::index_copy(*this, dim, index, source);
}
Tensor& Tensor::index_copy_(int64_t dim, const Tensor& index, const Tensor& source) {
  return tutti::index_copy_(*this, dim, index, source);
}
Tensor Tensor::index_fill(int64_t dim, const Tensor& index, const Tensor& value) const {
  return tutti::index_fill(*this, dim, index, value);
}
Tensor& Tensor::index_fill_(int64_t dim, const Tensor& index, const Tensor& value) {
  return tutti::index_fill_(*this, dim, index, value);
}
Tensor Tensor::masked_select(const Tensor& mask) const { return tutti::masked_select(*this, mask); }
Tensor Tensor::masked_fill(const Tensor& mask, const Tensor& value) const {
  return tutti::masked_fill(*this, mask, value);
}
Tensor Tensor::where(const Tensor& condition, const Tensor& other) const {
  return tutti::where(condition, *this, other);
}
Tensor Tensor::nonzero() const { return tutti::nonzero(*this); }
ValuesIndices Tensor::sort(int64_t dim, bool descending) const { return tutti::sort(*this, dim, descending); }
Tensor Tensor::argsort(int64_t dim, bool descending) const { return tutti::argsort(*this, dim, descending); }
ValuesIndices Tensor::topk(int64_t k, int64_t dim, bool largest, bool sorted) const {
  return tutti::topk(*this, k, dim, largest, sorted);
}
Tensor Tensor::one_hot(int64_t classes) const { return tutti::one_hot(*this, classes); }
bool Tensor::equal(const Tensor& other) const { return tutti::equal(*this, other); }
bool Tensor::allclose(const Tensor& other, double rtol, double atol, bool equal_nan) const {
  return tutti::allclose(*this, other, rtol, atol, equal_nan);
}
Tensor Tensor::isclose(const Tensor& y, const Tensor& rtol, const Tensor& atol, bool equal_nan) const {
  return tutti::isclose(*this, y, rtol, atol, equal_nan);
}
Tensor Tensor::add(const Tensor& y, const Tensor& alpha) const { return tutti::add(*this, y, alpha); }
Tensor& Tensor::add_(const Tensor& y, const Tensor& alpha) {
  return named("add", [&]() -> Tensor& { return addcmul_(y, alpha); });
}
Tensor Tensor::sub(const Tensor& y, const Tensor& alpha) const { return tutti::sub(*this, y, alpha); }
Tensor& Tensor::sub_(const Tensor& y, const Tensor& alpha) {
  return named("sub", [&]() -> Tensor& { return addcmul_(y, alpha, -1); });
}
Tensor Tensor::nan_to_num(const Tensor& nan) const { return tutti::nan_to_num(*this, nan); }
Tensor Tensor::index(const std::vector<Index>& indices) const { return tutti::index(*this, indices); }
Tensor Tensor::sum(const Shape& dims, bool keepdim) const { return tutti::sum(*this, dims, keepdim); }
Tensor Tensor::mean(const Shape& dims, bool keepdim) const { return tutti::mean(*this, dims, keepdim); }
Tensor Tensor::prod(const Shape& dims, bool keepdim) const { return tutti::prod(*this, dims, keepdim); }
Tensor Tensor::amax(const Shape& dims, bool keepdim) const { return tutti::amax(*this, dims, keepdim); }
Tensor Tensor::amin(const Shape& dims, bool keepdim) const { return tutti::amin(*this, dims, keepdim); }
Tensor Tensor::max() const { return tutti::max(*this); }
Tensor Tensor::min() const { return tutti::min(*this); }
ValuesIndices Tensor::max(int64_t dim, bool keepdim) const { return tutti::max(*this, dim, keepdim); }
ValuesIndices Tensor::min(int64_t dim, bool keepdim) const { return tutti::min(*this, dim, keepdim); }
Tensor Tensor::argmax(std::optional<int64_t> dim, bool keepdim) const { return tutti::argmax(*this, dim, keepdim); }
Tensor Tensor::argmin(std::optional<int64_t> dim, bool keepdim) const { return tutti::argmin(*this, dim, keepdim); }
Tensor Tensor::all(const Shape& dims, bool keepdim) const { return tutti::all(*this, dims, keepdim); }
Tensor Tensor::any(const Shape& dims, bool keepdim) const { return tutti::any(*this, dims, keepdim); }
Tensor Tensor::var(const Shape& dims, bool keepdim, int64_t correction) const {
  return tutti::var(*this, dims, keepdim, correction);
}
Tensor Tensor::std(const Shape& dims, bool keepdim, int64_t correction) const {
  return named("std", [&] { return tutti::stddev(*this, dims, keepdim, correction); });
}
Tensor Tensor::norm(double p, const Shape& dims, bool keepdim) const { return tutti::norm(*this, p, dims, keepdim); }
Tensor Tensor::count_nonzero(const Shape& dims, bool keepdim) const {
  return tutti::count_nonzero(*this, dims, keepdim);
}
Tensor Tensor::median() const { return tutti::median(*this); }
ValuesIndices Tensor::median(int64_t dim, bool keepdim) const { return tutti::median(*this, dim, keepdim); }
Tensor Tensor::trace() const { return tutti::trace(*this); }
Tensor Tensor::logsumexp(const Shape& dims, bool keepdim) const { return tutti::logsumexp(*this, dims, keepdim); }
Tensor Tensor::cumsum(int64_t dim, std::optional<DType> dtype) const { return tutti::cumsum(*this, dim, dtype); }
Tensor& Tensor::cumsum_(int64_t dim) { return tutti::cumsum_(*this, dim); }
Tensor Tensor::cumprod(int64_t dim, std::optional<DType> dtype) const { return tutti::cumprod(*this, dim, dtype); }
Tensor& Tensor::cumprod_(int64_t dim) { return tutti::cumprod_(*this, dim); }
Tensor Tensor::softmax(int64_t dim, std::optional<DType> dtype) const { return tutti::softmax(*this, dim, dtype); }
Tensor Tensor::log_softmax(int64_t dim, std::optional<DType> dtype) const {
  return tutti::log_softmax(*this, dim, dtype);
}
Tensor Tensor::matmul(const Tensor& other) const { return tutti::matmul(*this, other); }
Tensor Tensor::mm(const Tensor& other) const { return tutti::mm(*this, other); }
Tensor Tensor::mv(const Tensor& vector) const { return tutti::mv(*this, vector); }
Tensor Tensor::bmm(const Tensor& other) const { return tutti::bmm(*this, other); }
Tensor Tensor::dot(const Tensor& other) const { return tutti::dot(*this, other); }
Tensor Tensor::addmm(const Tensor& a, const Tensor& b, double beta, double alpha) const {
  return tutti::addmm(*this, a, b, beta, alpha);
}
Tensor& Tensor::addmm_(const Tensor& a, const Tensor& b, double beta, double alpha) {
  return tutti::addmm_(*this, a, b, beta, alpha);
}
Tensor Tensor::baddbmm(const Tensor& a, const Tensor& b, double beta, double alpha) const {
  return tutti::baddbmm(*this, a, b, beta, alpha);
}
Tensor& Tensor::baddbmm_(const Tensor& a, const Tensor& b, double beta, double alpha) {
  return tutti::baddbmm_(*this, a, b, beta, alpha);
}
Tensor Tensor::real() const { return tutti::real(*this); }
Tensor Tensor::imag() const { return tutti::imag(*this); }
Tensor Tensor::coalesce() const { return tutti::coalesce(*this); }
Tensor Tensor::to_dense() const { return tutti::to_dense(*this); }
Tensor Tensor::to_sparse() const { return tutti::to_sparse(*this); }
Tensor Tensor::indices() const { return sparse_indices(*this); }
Tensor Tensor::values() const { return sparse_values(*this); }

bool Tensor::is_coalesced() const {
  const TensorImpl* t = get(*this, "is_coalesced");
  return t->sparse && t->sparse->coalesced;
}
int64_t Tensor::sparse_dim() const {
  check<ValueError>(get(*this, "sparse_dim")->sparse != nullptr, "sparse_dim", "{} is not sparse", *this);
  return impl()->sparse->indices.size(0);
}
int64_t Tensor::dense_dim() const {
  return named("dense_dim", [&] { return dim() - sparse_dim(); });
}

}  // namespace tutti
