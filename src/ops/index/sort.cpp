// sort and topk. Both work on keys: unsigned integers in the order of the values, with the place of each value in the
// bits below, so that equal values keep their order and NaN, by its key, is the largest.
#include <algorithm>
#include <memory>

#include "base/check.h"
#include "base/named.h"
#include "base/parallel.h"
#include "ops/index/indices.h"
#include "tensor/call.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

struct SortAttributes {
  int64_t dim;
  bool descending;
  TUTTI_FIELDS(dim, descending)
};
struct TopkAttributes {
  int64_t k, dim;
  bool largest;
  TUTTI_FIELDS(k, dim, largest)
};

// ---- Keys

template <class T>
constexpr int key_bits = static_cast<int>(sizeof(T)) * 8;

// Sign and magnitude to an order: both zeros are equal, all NaN are one, above infinity.
template <class U>
U order_bits(U bits, U infinity) {
  constexpr int top = static_cast<int>(sizeof(U)) * 8 - 1;
  constexpr U sign = U(1) << top;
  auto magnitude = static_cast<U>(bits & ~sign);
  auto key = static_cast<U>(bits ^ (static_cast<U>(U(0) - (bits >> top)) | sign));
  key = magnitude == 0 ? sign : key;
  return magnitude > infinity ? static_cast<U>(~U(0)) : key;
}

uint32_t key_of(float v) { return order_bits<uint32_t>(std::bit_cast<uint32_t>(v), 0x7f800000); }
uint64_t key_of(double v) { return order_bits<uint64_t>(std::bit_cast<uint64_t>(v), 0x7ff0000000000000); }
uint16_t key_of(BFloat16 v) { return order_bits<uint16_t>(v.bits, 0x7f80); }
uint16_t key_of(Half v) { return order_bits<uint16_t>(v.bits, 0x7c00); }
uint8_t key_of(bool v) { return v; }
uint8_t key_of(uint8_t v) { return v; }
uint8_t key_of(int8_t v) { return static_cast<uint8_t>(v ^ 0x80); }
uint16_t key_of(int16_t v) { return static_cast<uint16_t>(v ^ 0x8000); }
uint32_t key_of(int32_t v) { return static_cast<uint32_t>(v) ^ 0x80000000u; }
uint64_t key_of(int64_t v) { return static_cast<uint64_t>(v) ^ 0x8000000000000000u; }

// An item is key << half | place. 32-bit keys and places make a u64, others a Wide.
template <class Item>
constexpr int half_of = static_cast<int>(sizeof(Item)) * 4;
template <class Item>
int64_t place_in(Item item) {
  return static_cast<int64_t>(static_cast<uint64_t>(item & ((Item(1) << half_of<Item>)-1)));
}

template <class T>
using KeyOf = decltype(key_of(T()));
// The bits that turn the order of keys around, or none.
template <class T>
KeyOf<T> flip_bits(bool reverse) {
  return reverse ? static_cast<KeyOf<T>>(~KeyOf<T>(0)) : KeyOf<T>(0);
}

template <class T, class Item>
void load_items(const T* x, int64_t stride, int64_t begin, int64_t end, bool reverse, Item* items) {
  KeyOf<T> flip = flip_bits<T>(reverse);
  for (int64_t i = begin; i < end; ++i) {
    auto key = static_cast<KeyOf<T>>(key_of(x[i * stride]) ^ flip);
    items[i - begin] = static_cast<Item>(key) << half_of<Item> | static_cast<Item>(i);
  }
}

constexpr int64_t kNarrow = int64_t{1} << 32;  // places below this fit half a u64

// Calls f.template operator()<T>() with the type of a dtype that has an order.
template <class F>
void with_ordered(DType dtype, F&& f) {
  with_type(dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, std::complex<float>> && !std::is_same_v<T, std::complex<double>>)
      f.template operator()<T>();
  });
}

// ---- Lines along a dim

struct LineAt {
  int64_t x, values, indices;  // offsets
};
LineAt line_at(const Tensor& x, const Tensor& values, const Tensor& indices, int64_t dim, int64_t line) {
  LineAt at{0, 0, 0};
  for (int64_t d = x.dim(); d-- > 0;) {
    if (d == dim) continue;
    int64_t i = line % x.size(d);
    line /= x.size(d);
    at.x += i * x.stride(d);
    at.values += i * values.stride(d);
    at.indices += i * indices.stride(d);
  }
  return at;
}

// The first `count` items say which elements make up a line of the results.
template <class B, class Item>
void store_line(const Item* items, int64_t count, const B* x, int64_t x_stride, B* values, int64_t values_stride,
                int64_t* indices, int64_t indices_stride) {
  parallel_for(count, kMovedGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t place = place_in(items[i]);
      values[i * values_stride] = x[place * x_stride];
      indices[i * indices_stride] = place;
    }
  });
}

struct Job {
  Tensor x, values, indices;
  int64_t dim, length, lines, count;
  bool reverse;
};
Job make_job(const Call& c, int64_t dim, bool reverse) {
  Job job{at_least_1d(c.input(0)), at_least_1d(c.output(0)), at_least_1d(c.output(1)), dim, 0, 0, 0, reverse};
  job.length = job.x.size(dim);
  job.count = job.values.size(dim);
  job.lines = job.length > 0 ? job.x.numel() / job.length : 0;
  return job;
}

template <class Item>
void finish_line(const Job& j, int64_t line, const Item* items) {
  LineAt at = line_at(j.x, j.values, j.indices, j.dim, line);
  with_bytes(j.x.element_size(), [&]<class B>() {
    store_line(items, j.count, reinterpret_cast<const B*>(bytes_of(j.x)) + at.x, j.x.stride(j.dim),
               reinterpret_cast<B*>(bytes_of(j.values)) + at.values, j.values.stride(j.dim),
               j.indices.data<int64_t>() + at.indices, j.indices.stride(j.dim));
  });
}

// ---- sort

template <class T, class Item>
void sort_lines(const Job& j) {
  const T* x = j.x.data<T>();
  int64_t n = j.length, stride = j.x.stride(j.dim);
  parallel_for(j.lines, std::max<int64_t>(1, kMovedGrain / n), [&](int64_t begin, int64_t end) {
    auto items = std::make_unique_for_overwrite<Item[]>(static_cast<size_t>(n));
    auto scratch = std::make_unique_for_overwrite<Item[]>(static_cast<size_t>(n));
    for (int64_t line = begin; line < end; ++line) {
      const T* from = x + line_at(j.x, j.values, j.indices, j.dim, line).x;
      parallel_for(n, kMovedGrain, [&](int64_t first, int64_t last) {
        load_items(from, stride, first, last, j.reverse, items.get() + first);
      });
      radix_sort(items.get(), scratch.get(), n, half_of<Item>, half_of<Item> + key_bits<T>);
      finish_line(j, line, items.get());
    }
  });
}

void run_sort(const Call& c) {
  const auto& a = c.as<SortAttributes>();
  Job job = make_job(c, a.dim, a.descending);
  if (job.lines == 0) return;
  with_ordered(job.x.dtype(), [&]<class T>() {
    if constexpr (sizeof(T) <= 4)
      if (job.length < kNarrow) return sort_lines<T, uint64_t>(job);
    sort_lines<T, Wide>(job);
  });
}

// ---- topk

// The smallest key of some elements.
template <class T>
KeyOf<T> smallest_key(const T* x, int64_t stride, int64_t count, KeyOf<T> flip) {
  auto smallest = static_cast<KeyOf<T>>(~KeyOf<T>(0));
  auto look = [&](int64_t step) {
    for (int64_t i = 0; i < count; ++i) {
      auto key = static_cast<KeyOf<T>>(key_of(x[i * step]) ^ flip);
      smallest = key < smallest ? key : smallest;
    }
  };
  if (stride == 1)
    look(1);
  else
    look(stride);
  return smallest;
}

// Keeps the k smallest items seen so far among the first of a buffer; when there are twice as many, the others are
// thrown away and the bound falls. That costs as much as it throws away, so the whole is linear. Most blocks of a long
// line have nothing below the bound, which their keys alone tell.
constexpr int64_t kSortBlock = 256;
int64_t room_for(int64_t k) { return 2 * k + 16 + kSortBlock; }

template <class T, class Item>
int64_t select_items(const T* x, int64_t stride, int64_t n, int64_t k, bool reverse, Item* buffer) {
  Item block[kSortBlock];
  int64_t held = 0;
  Item bound = ~Item(0);
  KeyOf<T> flip = flip_bits<T>(reverse);
  for (int64_t start = 0; start < n; start += kSortBlock) {
    int64_t count = std::min(kSortBlock, n - start);
    bool bounded = bound != ~Item(0);
    if (bounded && smallest_key(x + start * stride, stride, count, flip) > bound >> half_of<Item>) continue;
    load_items(x, stride, start, start + count, reverse, block);
    for (int64_t i = 0; i < count; ++i) {
      buffer[held] = block[i];
      held += block[i] < bound;
    }
    if (held < 2 * k + 16) continue;
    std::nth_element(buffer, buffer + (k - 1), buffer + held);
    held = k;
    bound = buffer[k - 1];
  }
  return held;
}

template <class T, class Item>
void topk_lines(const Job& j) {
  const T* x = j.x.data<T>();
  int64_t n = j.length, k = j.count;
  parallel_for(j.lines, std::max<int64_t>(1, kMovedGrain / n), [&](int64_t begin, int64_t end) {
    auto buffer = std::make_unique_for_overwrite<Item[]>(static_cast<size_t>(room_for(k)));
    for (int64_t line = begin; line < end; ++line) {
      const T* from = x + line_at(j.x, j.values, j.indices, j.dim, line).x;
      int64_t held = select_items(from, j.x.stride(j.dim), n, k, j.reverse, buffer.get());
      if (held > k) std::nth_element(buffer.get(), buffer.get() + (k - 1), buffer.get() + held);
      std::sort(buffer.get(), buffer.get() + k);
      finish_line(j, line, buffer.get());
    }
  });
}

void run_topk(const Call& c) {
  const auto& a = c.as<TopkAttributes>();
  Job job = make_job(c, a.dim, a.largest);
  if (job.lines == 0 || job.count == 0) return;
  with_ordered(job.x.dtype(), [&]<class T>() {
    if constexpr (sizeof(T) <= 4)
      if (job.length < kNarrow) return topk_lines<T, uint64_t>(job);
    topk_lines<T, Wide>(job);
  });
}

// ---- Operators

void infer_both(const Call& c, std::span<TensorSpec> out) {
  const Tensor& x = c.input(0);
  check_together(c.inputs, c.op.name);
  check<DTypeError>(!x.is_complex(), c.op.name, "complex numbers have no order: {}; sort abs(x) or its parts", x);
  out[0] = {.sizes = x.sizes(), .dtype = x.dtype(), .device = x.device()};
  out[1] = {.sizes = x.sizes(), .dtype = DType::i64, .device = x.device()};
}

void scatter_back(GradientCall& c, int64_t dim) {
  if (!c.grad(0).defined()) return;
  Tensor whole = zeros(c.input_sizes(0), {.dtype = c.grad().dtype(), .device = c.grad().device()});
  c.set(0, scatter_add_(whole, dim, c.output(1).detach(), c.grad()));
}

const Operator sort_op{
    .name = "sort",
    .infer = infer_both,
    .cpu = run_sort,
    .gradient = [](GradientCall& c) { scatter_back(c, c.as<SortAttributes>().dim); },
    .saves_outputs = 0b10,
};

const Operator topk_op{
    .name = "topk",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          infer_both(c, out);
          const auto& a = c.as<TopkAttributes>();
          if (c.input(0).dim() == 0) return;
          out[0].sizes[static_cast<size_t>(a.dim)] = a.k;
          out[1].sizes[static_cast<size_t>(a.dim)] = a.k;
        },
    .cpu = run_topk,
    .gradient = [](GradientCall& c) { scatter_back(c, c.as<TopkAttributes>().dim); },
    .saves_outputs = 0b10,
};

}  // namespace

ValuesIndices sort(const Tensor& x, int64_t dim, bool descending) {
  ValuesIndices out;
  return sort_out(out, x, dim, descending);
}
ValuesIndices& sort_out(ValuesIndices& out, const Tensor& x, int64_t dim, bool descending) {
  SortAttributes a{wrap_dim(dim, x, "sort"), descending};
  return call_out(sort_op, {&x}, out, attributes(a));
}

Tensor argsort(const Tensor& x, int64_t dim, bool descending) {
  Tensor out;
  return argsort_out(out, x, dim, descending);
}
Tensor& argsort_out(Tensor& out, const Tensor& x, int64_t dim, bool descending) {
  check<ValueError>(x.defined(), "argsort", "the tensor is undefined: it was never given a value");
  ValuesIndices sorted{.values = {}, .indices = out};
  named("argsort", [&] { sort_out(sorted, x.detach(), dim, descending); });
  return out = sorted.indices;
}

ValuesIndices topk(const Tensor& x, int64_t k, int64_t dim, bool largest, bool sorted) {
  ValuesIndices out;
  return topk_out(out, x, k, dim, largest, sorted);
}
// The result is sorted in any case: that is little work beside finding it.
ValuesIndices& topk_out(ValuesIndices& out, const Tensor& x, int64_t k, int64_t dim, bool largest, bool) {
  dim = wrap_dim(dim, x, "topk");
  int64_t size = x.dim() == 0 ? 1 : x.size(dim);
  check<ValueError>(k >= 0 && k <= size && (x.dim() > 0 || k == 1), "topk",
                    "k = {} is not between 0 and the size {} of dim {} of {}", k, size, dim, x);
  TopkAttributes a{k, dim, largest};
  return call_out(topk_op, {&x}, out, attributes(a));
}

}  // namespace tutti
