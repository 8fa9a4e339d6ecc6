#include "comm/algorithm/reduce.h"

#include <algorithm>
#include <bit>
#include <complex>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "tensor/convert.h"

namespace tutti::comm {
namespace {

constexpr int64_t kTile = 2048;  // elements combined at once: partial results of all levels stay in the cache
constexpr size_t kMostLevels = 24;

template <class T>
T combined(Reduce op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<std::conditional_t<std::same_as<T, bool>, uint8_t, T>>;
    switch (op) {
      case Reduce::product:
        return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
      case Reduce::min:
        return b < a ? b : a;
      case Reduce::max:
        return a < b ? b : a;
      case Reduce::band:
        return static_cast<T>(a & b);
      case Reduce::bor:
        return static_cast<T>(a | b);
      case Reduce::bxor:
        return static_cast<T>(a ^ b);
      default:
        return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    }
  } else {
    return op == Reduce::product ? a * b : a + b;
  }
}

void combine(Reduce op, DType dtype, const void* a, const void* b, void* c, int64_t n) {
  auto each = [&]<class T>() {
    for (int64_t i = 0; i < n; ++i)
      static_cast<T*>(c)[i] = combined<T>(op, static_cast<const T*>(a)[i], static_cast<const T*>(b)[i]);
  };
  auto f32 = combine_f32_pointer();
  auto f64 = combine_f64_pointer();
  switch (dtype) {
    case DType::f32:
      return f32(op, static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(c), n);
    case DType::f64:
      return f64(op, static_cast<const double*>(a), static_cast<const double*>(b), static_cast<double*>(c), n);
    case DType::c64:
      if (op == Reduce::product) return each.operator()<std::complex<float>>();
      return f32(op, static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(c), 2 * n);
    case DType::c128:
      if (op == Reduce::product) return each.operator()<std::complex<double>>();
      return f64(op, static_cast<const double*>(a), static_cast<const double*>(b), static_cast<double*>(c), 2 * n);
    case DType::i8:
      return each.operator()<int8_t>();
    case DType::i16:
      return each.operator()<int16_t>();
    case DType::i32:
      return each.operator()<int32_t>();
    case DType::i64:
      return each.operator()<int64_t>();
    case DType::boolean:
      // Sums of truths are "any", products "all".
      op = op == Reduce::sum || op == Reduce::max       ? Reduce::bor
           : op == Reduce::product || op == Reduce::min ? Reduce::band
                                                        : op;
      return each.operator()<uint8_t>();
    default:
      return each.operator()<uint8_t>();
  }
}

void scale(DType dtype, const void* a, double factor, void* c, int64_t n) {
  switch (dtype) {
    case DType::f32:
      return scale_f32_pointer()(static_cast<const float*>(a), static_cast<float>(factor), static_cast<float*>(c), n);
    case DType::c64:
      return scale_f32_pointer()(static_cast<const float*>(a), static_cast<float>(factor), static_cast<float*>(c),
                                 2 * n);
    case DType::f64:
      return scale_f64_pointer()(static_cast<const double*>(a), factor, static_cast<double*>(c), n);
    case DType::c128:
      return scale_f64_pointer()(static_cast<const double*>(a), factor, static_cast<double*>(c), 2 * n);
    default:
      fail<DTypeError>("all_reduce", "averages and factors are for floating-point numbers, not {}", dtype);
  }
}

// Combines one tile of all sources. Levels of the tree that are not yet needed lie in `scratch`.
class Tree {
 public:
  Tree(const Reduction& r, std::span<const void* const> sources, std::span<const Partial> partials, int64_t offset,
       int64_t count, std::byte* scratch)
      : r_(r),
        dtype_(combining_dtype(r.dtype)),
        sources_(sources),
        partials_(partials),
        offset_(offset),
        count_(count),
        scratch_(scratch) {}

  /// The result of ranks lo ... hi-1: a source as it is, or memory of this level.
  const void* run(size_t lo, size_t hi, size_t level) {
    if (hi - lo == 1) return leaf(lo, level);
    for (const Partial& p : partials_)
      if (p.lo == lo && p.hi == hi)
        return static_cast<const std::byte*>(p.data) + offset_ * static_cast<int64_t>(size_of(dtype_));
    size_t mid = lo + std::bit_floor(hi - lo - 1);
    const void* left = run(lo, mid, level);
    const void* right = run(mid, hi, level + 1);
    combine(r_.op, dtype_, left, right, at(level), count_);
    return at(level);
  }

 private:
  std::byte* at(size_t level) const { return scratch_ + level * kTile * size_of(dtype_); }
  const void* leaf(size_t k, size_t level) const {
    const auto* x = static_cast<const std::byte*>(sources_[k]) + offset_ * static_cast<int64_t>(size_of(r_.dtype));
    if (dtype_ != r_.dtype) {
      converter(dtype_, r_.dtype)(at(level), 1, x, 1, count_);
      x = at(level);
    }
    if (r_.factors.empty() || r_.factors[k] == 1) return x;
    if (r_.factors[k] == 0) {  // it takes no part, whatever its numbers are: the mean of an empty batch is NaN
      std::memset(at(level), 0, static_cast<size_t>(count_) * size_of(dtype_));
      return at(level);
    }
    scale(dtype_, x, r_.factors[k], at(level), count_);
    return at(level);
  }

  const Reduction& r_;
  DType dtype_;
  std::span<const void* const> sources_;
  std::span<const Partial> partials_;
  int64_t offset_, count_;
  std::byte* scratch_;
};

std::byte* scratch() {
  static thread_local std::unique_ptr<std::byte[]> memory;
  if (!memory) memory = std::make_unique_for_overwrite<std::byte[]>(kMostLevels * kTile * sizeof(std::complex<double>));
  return memory.get();
}

void add_whole(const std::vector<bool>& mine, size_t lo, size_t hi, std::vector<Subtree>& found) {
  if (std::find(mine.begin() + static_cast<int64_t>(lo), mine.begin() + static_cast<int64_t>(hi), false) ==
      mine.begin() + static_cast<int64_t>(hi)) {
    found.push_back({lo, hi});
  } else if (hi - lo > 1) {
    size_t mid = lo + std::bit_floor(hi - lo - 1);
    add_whole(mine, lo, mid, found);
    add_whole(mine, mid, hi, found);
  }
}

// The same for a few numbers, without the machinery.
template <class T>
T tree_sum(std::span<const void* const> sources, size_t lo, size_t hi, int64_t i) {
  if (hi - lo == 1) return static_cast<const T*>(sources[lo])[i];
  size_t mid = lo + std::bit_floor(hi - lo - 1);
  return tree_sum<T>(sources, lo, mid, i) + tree_sum<T>(sources, mid, hi, i);
}
template <class T>
void sum_few(std::span<const void* const> sources, void* target, int64_t count) {
  for (int64_t i = 0; i < count; ++i) static_cast<T*>(target)[i] = tree_sum<T>(sources, 0, sources.size(), i);
}

Reduction summing(const Reduction& r) {
  Reduction sum = r;
  if (sum.op == Reduce::average) sum.op = Reduce::sum;
  return sum;
}

}  // namespace

DType combining_dtype(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16 ? DType::f32 : dtype; }

std::vector<Subtree> whole_subtrees(const std::vector<bool>& mine) {
  std::vector<Subtree> found;
  add_whole(mine, 0, mine.size(), found);
  return found;
}

void reduce_part(const Reduction& r, std::span<const void* const> sources, size_t lo, size_t hi, void* to,
                 int64_t count) {
  auto size = static_cast<int64_t>(size_of(combining_dtype(r.dtype)));
  Reduction sum = summing(r);
  for (int64_t i = 0; i < count; i += kTile) {
    int64_t n = std::min(kTile, count - i);
    const void* result = Tree(sum, sources, {}, i, n, scratch()).run(lo, hi, 0);
    std::memcpy(static_cast<std::byte*>(to) + i * size, result, static_cast<size_t>(n * size));
  }
}

bool reduces(Reduce op, DType dtype) {
  switch (op) {
    case Reduce::band:
    case Reduce::bor:
    case Reduce::bxor:
      return category(dtype) <= Category::integer;
    case Reduce::min:
    case Reduce::max:
      return !is_complex(dtype);
    case Reduce::average:
      return category(dtype) >= Category::floating;
    default:
      return true;
  }
}

const char* name(Reduce op) {
  constexpr const char* names[] = {"sum", "average", "product", "min", "max", "band", "bor", "bxor"};
  return names[static_cast<size_t>(op)];
}

std::string why_not_reduced(Reduce op, DType dtype) {
  const char* instead = op == Reduce::average                    ? "to(f32) first, or sum and divide"
                        : op == Reduce::min || op == Reduce::max ? "complex numbers have no order; abs() has"
                                                                 : "integers and bools have bits";
  return fmt::format("there is no Reduce::{} of {}: {}", name(op), dtype, instead);
}
void check_reduces(const char* operation, Reduce op, DType dtype) {
  if (!reduces(op, dtype)) fail<DTypeError>(operation, "{}", why_not_reduced(op, dtype));
}

void reduce_into(const Reduction& r, std::span<const void* const> sources, std::span<void* const> targets,
                 int64_t count, std::span<const Partial> partials) {
  auto size = static_cast<int64_t>(size_of(r.dtype));
  if (sources.size() == 1 && r.scale == 1 && r.factors.empty()) {  // a copy
    for (void* t : targets)
      if (t != sources[0]) std::memcpy(t, sources[0], static_cast<size_t>(count * size));
    return;
  }
  if (count <= 8 && r.op == Reduce::sum && r.scale == 1 && r.factors.empty() && partials.empty() &&
      targets.size() == 1) {
    if (r.dtype == DType::f32) return sum_few<float>(sources, targets[0], count);
    if (r.dtype == DType::f64) return sum_few<double>(sources, targets[0], count);
  }
  DType dtype = combining_dtype(r.dtype);
  Reduction sum = summing(r);
  size_t levels = static_cast<size_t>(std::bit_width(sources.size())) + 1;
  TUTTI_ASSERT(levels < kMostLevels);
  std::byte* memory = scratch();
  for (int64_t i = 0; i < count; i += kTile) {
    int64_t n = std::min(kTile, count - i);
    const void* result = Tree(sum, sources, partials, i, n, memory).run(0, sources.size(), 0);
    if (r.scale != 1) {
      scale(dtype, result, r.scale, memory, n);
      result = memory;
    }
    if (dtype != r.dtype) {
      std::byte* rounded = memory + (kMostLevels - 1) * kTile * sizeof(std::complex<double>);
      converter(r.dtype, dtype)(rounded, 1, result, 1, n);
      result = rounded;
    }
    for (void* t : targets) {
      void* to = static_cast<std::byte*>(t) + i * size;
      if (to != result) std::memcpy(to, result, static_cast<size_t>(n * size));
    }
  }
}

}  // namespace tutti::comm
