#include "tensor/impl.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "autograd/meta.h"
#include "base/check.h"
#include "tensor/birth.h"

namespace tutti {

TensorImpl::~TensorImpl() {
  if (autograd && autograd->retained) {
    // A pass in another thread may be about to hand a gradient over: see retain_grad().
    std::lock_guard lock(autograd_mutex(this));
    autograd->retained->tensor = nullptr;
  }
  delete autograd;
}

void detail::destroy_tensor(Handle* handle) noexcept { delete static_cast<TensorImpl*>(handle); }

Shape contiguous_strides(const Shape& sizes) {
  Shape strides;
  strides.resize(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = step;
    step *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

Shape channels_last_strides(const Shape& sizes) {
  size_t n = sizes.size();
  check<ShapeError>(n == 4 || n == 5, "channels_last", "needs 4 or 5 dims, not {}", sizes);
  Shape strides;
  strides.resize(n);
  int64_t step = 1;
  auto put = [&](size_t d) {
    strides[d] = step;
    step *= std::max<int64_t>(sizes[d], 1);
  };
  put(1);
  for (size_t d = n; d-- > 2;) put(d);
  put(0);
  return strides;
}

bool is_contiguous(const Shape& sizes, const Shape& strides) {
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] == 0) return true;
    if (sizes[d] != 1 && strides[d] != step) return false;
    step *= sizes[d];
  }
  return true;
}

namespace {
// (stride, size) of the dims that matter, smallest stride first.
std::vector<std::pair<int64_t, int64_t>> sorted_dims(const Shape& sizes, const Shape& strides) {
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1) dims.emplace_back(strides[d], sizes[d]);
  std::sort(dims.begin(), dims.end());
  return dims;
}
}  // namespace

bool is_dense(const Shape& sizes, const Shape& strides) {
  if (sizes.product() == 0) return true;
  int64_t step = 1;
  for (auto [stride, size] : sorted_dims(sizes, strides)) {
    if (stride != step) return false;
    step *= size;
  }
  return true;
}

// A dim whose step leads beyond all that the smaller ones reach meets nothing. Of two dims where it does not, as many
// steps of one as of the other's stride (without what both have in common) lead to one place.
bool overlaps_itself(const Shape& sizes, const Shape& strides) {
  if (is_contiguous(sizes, strides) || sizes.product() == 0) return false;
  auto dims = sorted_dims(sizes, strides);
  if (!dims.empty() && dims[0].first == 0) return true;
  int64_t reach = 0;  // the largest offset that the smaller dims can make
  for (size_t d = 0; d < dims.size(); ++d) {
    auto [stride, size] = dims[d];
    if (stride <= reach) {
      if (d > 1) return true;  // or not: to find out would take looking at all elements
      auto [other, count] = dims[0];
      int64_t common = std::gcd(stride, other);
      if (stride / common < count && other / common < size) return true;
    }
    reach += stride * (size - 1);
  }
  return false;
}

int64_t span_elements(const Shape& sizes, const Shape& strides) {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return 0;
    last += (sizes[d] - 1) * strides[d];
  }
  return last + 1;
}

int64_t wrap_dim(int64_t dim, int64_t dims, const char* operation) {
  int64_t n = std::max<int64_t>(dims, 1);  // a zero-dimensional tensor takes 0 and -1
  check<IndexError>(dim >= -n && dim < n, operation, "dim {} is out of range for a tensor of {} dims: use {} to {}",
                    dim, dims, -n, n - 1);
  return dim < 0 ? dim + n : dim;
}

int64_t wrap_dim(int64_t dim, const Tensor& x, const char* operation) {
  check<ValueError>(x.defined(), operation, "the tensor is undefined: it was never given a value");
  int64_t n = std::max<int64_t>(x.dim(), 1);
  check<IndexError>(dim >= -n && dim < n, operation, "dim {} is out of range for {}: use {} to {}", dim, x, -n, n - 1);
  return dim < 0 ? dim + n : dim;
}

void TensorImpl::set_sizes(const Shape& new_sizes) {
  sizes = new_sizes;
  strides = new_sizes;  // makes room, and sets nothing to zero on the way
  int64_t step = 1, count = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = step;
    count *= sizes[d];
    step *= std::max<int64_t>(sizes[d], 1);
  }
  numel = count;
  contiguous = true;
  offset = 0;
}

void TensorImpl::set_geometry(const Shape& new_sizes, const Shape& new_strides, int64_t new_offset) {
  sizes = new_sizes;
  strides = new_strides;
  offset = new_offset;
  numel = sizes.product();
  contiguous = is_contiguous(sizes, strides);
}

void check_sizes(const Shape& sizes, const char* operation) {
  unsigned __int128 product = 1;
  for (int64_t s : sizes) {
    check<ShapeError>(s >= 0, operation, "sizes must not be negative: {}", sizes);
    product *= static_cast<unsigned __int128>(s ? s : 1);
    check<ShapeError>(product < kMostElements, operation, "{} has too many elements", sizes);
  }
}

void check_geometry(const Shape& sizes, const Shape& strides, int64_t offset, const char* operation) {
  check_sizes(sizes, operation);
  auto last = static_cast<unsigned __int128>(offset);
  check<ShapeError>(offset < kMostElements, operation, "the offset {} is too far", offset);
  for (size_t d = 0; d < sizes.size(); ++d) {
    check<ShapeError>(strides[d] >= 0, operation, "strides must not be negative: {}", strides);
    if (sizes[d] > 0) last += static_cast<unsigned __int128>(sizes[d] - 1) * static_cast<uint64_t>(strides[d]);
    check<ShapeError>(last < kMostElements, operation, "sizes {} with strides {} and offset {} reach too far", sizes,
                      strides, offset);
  }
}

namespace {
constinit thread_local BirthGuard* birthplace = nullptr;
}  // namespace

BirthGuard::BirthGuard(std::span<Birthplace> places) : places_(places), outer_(std::exchange(birthplace, this)) {}
BirthGuard::~BirthGuard() { birthplace = outer_; }

// A new tensor without memory: it takes that of a home that was offered, if it fits there.
bool is_born(TensorImpl& t) {
  for (Birthplace& place : birthplace->places_) {
    const TensorImpl* home = impl(place.home);
    if (place.used || t.dtype != home->dtype || !(t.device == home->device) || !(t.sizes == home->sizes) ||
        !(t.strides == home->strides))
      continue;
    place.used = true;
    t.storage = home->storage;
    t.offset = home->offset;
    t.storage->wrote("backward");
    return true;
  }
  return false;
}

Tensor make_tensor(const Shape& sizes, DType dtype, Device device) {
  auto* t = new TensorImpl;
  Tensor result(t);
  t->dtype = dtype;
  t->device = device;
  t->set_sizes(sizes);
  double count = 1;  // does not wrap
  bool negative = false;
  for (int64_t s : sizes) count *= static_cast<double>(s), negative = negative || s < 0;
  if (count > 1e9 || negative) check_sizes(sizes, "empty");
  if (birthplace && is_born(*t)) return result;
  t->storage = make_storage(static_cast<size_t>(t->numel) * size_of(dtype), device);
  return result;
}

Tensor make_tensor(const Shape& sizes, const Shape& strides, DType dtype, Device device) {
  check_geometry(sizes, strides, 0, "empty_strided");
  auto* t = new TensorImpl;
  Tensor result(t);
  t->dtype = dtype;
  t->device = device;
  t->set_geometry(sizes, strides, 0);
  if (birthplace && is_born(*t)) return result;
  t->storage = make_storage(static_cast<size_t>(span_elements(sizes, strides)) * size_of(dtype), device);
  return result;
}

Tensor make_alias(const Tensor& x, const Shape& sizes, const Shape& strides, int64_t offset) {
  auto* t = new TensorImpl;
  Tensor result(t);
  t->dtype = x.dtype();
  t->device = x.device();
  t->layout = x.layout();
  t->number = impl(x)->number;
  t->inference = impl(x)->inference;
  t->storage = impl(x)->storage;
  if (impl(x)->sparse) t->sparse = std::make_unique<SparseParts>(*impl(x)->sparse);
  t->set_geometry(sizes, strides, offset);
  return result;
}

Tensor make_sparse(const Tensor& indices, const Tensor& values, const Shape& sizes, bool coalesced) {
  auto* t = new TensorImpl;
  Tensor result(t);
  t->dtype = values.dtype();
  t->device = values.device();
  t->layout = Layout::sparse;
  t->set_sizes(sizes);
  t->sparse = std::make_unique<SparseParts>(SparseParts{indices, values, coalesced});
  return result;
}

void check_readable(const Tensor& x, const char* operation) {
  const TensorImpl* t = impl(x);
  if (!t->storage) return;
  size_t needed =
      static_cast<size_t>(t->numel == 0 ? 0 : t->offset + span_elements(t->sizes, t->strides)) * size_of(t->dtype);
  check<ValueError>(needed <= t->storage->bytes, operation,
                    "the storage of {} holds {} bytes of the {} it needs: it was resized; resize it back first", x,
                    t->storage->bytes, needed);
}

}  // namespace tutti
