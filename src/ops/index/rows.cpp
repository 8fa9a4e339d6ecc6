// The loops over rows that indices name: taking, putting and adding.
#include <algorithm>
#include <complex>
#include <cstring>
#include <vector>

#include "base/parallel.h"
#include "ops/index/indices.h"

namespace tutti {
namespace {

// The offsets of place `o` of the outer dims on both sides.
struct Place {
  int64_t indexed = 0, rows = 0;
};
Place place_of(const RowPlan& plan, int64_t o) {
  Place at;
  for (size_t d = plan.outer.size(); d-- > 0;) {
    int64_t i = o % plan.outer[d].size;
    o /= plan.outer[d].size;
    at.indexed += i * plan.outer[d].indexed;
    at.rows += i * plan.outer[d].rows;
  }
  return at;
}

// ---- take

template <class B>
void take_range(const RowPlan& p, B* rows, const B* indexed, Place place, int64_t begin, int64_t end) {
  B* to = rows + place.rows;
  const B* from = indexed + place.indexed;
  if (p.run.size == 1) {
    for (int64_t k = begin; k < end; ++k) to[k * p.row_stride] = from[p.at[k] * p.scale];
  } else if (p.run.indexed == 1 && p.run.rows == 1) {
    // Rows of a large table are not in any cache: ask for those that come next.
    constexpr int64_t ahead = 6;
    size_t bytes = static_cast<size_t>(p.run.size) * sizeof(B);
    for (int64_t k = begin; k < end; ++k) {
      if (k + ahead < end) {
        const auto* next = reinterpret_cast<const std::byte*>(from + p.at[k + ahead] * p.scale);
        for (size_t b = 0; b < std::min<size_t>(bytes, 512); b += 64) __builtin_prefetch(next + b);
      }
      std::memcpy(to + k * p.row_stride, from + p.at[k] * p.scale, bytes);
    }
  } else {
    for (int64_t k = begin; k < end; ++k) {
      B* row = to + k * p.row_stride;
      const B* source = from + p.at[k] * p.scale;
      for (int64_t i = 0; i < p.run.size; ++i) row[i * p.run.rows] = source[i * p.run.indexed];
    }
  }
}

// A short contiguous row is moved as one larger element.
RowPlan widen(const RowPlan& plan, size_t& element) {
  RowPlan wide;
  wide.at = plan.at;
  wide.count = plan.count;
  wide.scale = plan.scale;
  wide.row_stride = plan.row_stride;
  wide.run = plan.run;
  for (auto& d : plan.outer) wide.outer.push_back(d);
  int64_t n = plan.run.size;
  size_t bytes = element * static_cast<size_t>(n);
  bool fits = n > 1 && plan.run.indexed == 1 && plan.run.rows == 1 &&
              (bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16) && plan.scale % n == 0 &&
              plan.row_stride % n == 0;
  for (auto& d : plan.outer) fits = fits && d.indexed % n == 0 && d.rows % n == 0;
  if (!fits) return wide;
  element = bytes;
  wide.scale /= n;
  wide.row_stride /= n;
  wide.run = {1, 1, 1};
  for (auto& d : wide.outer) d = {d.size, d.indexed / n, d.rows / n};
  return wide;
}

// ---- put and add

// Every element of the indexed tensor belongs to one unit of work, which goes through the indices in order. A unit is a
// place of the outer dims, a block of the run, and a class of target rows; so the result does not depend on how the
// units are cut or shared out.
struct Units {
  int64_t outer, blocks, block, classes;
  int64_t count() const { return outer * blocks * classes; }
};

Units cut(const RowPlan& plan) {
  Units u{plan.outer_count(), 1, plan.run.size, 1};
  int64_t work = u.outer * plan.run.size * plan.count;
  if (work < 2 * kMovedGrain || thread_share() == 1 || u.outer >= 16) return u;
  if (plan.run.size >= 32 && plan.count >= 64) {
    // A class costs a look at every index, which is little beside rows as long as these.
    u.classes = 8;
  } else if (plan.run.size >= 32) {
    u.block = 16 * ((plan.run.size / 16 + 15) / 16);
    u.blocks = (plan.run.size + u.block - 1) / u.block;
  }
  return u;
}

uint64_t class_of(int64_t index) { return static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15ull >> 61; }

// Calls row(target, source, count) for each row of a unit, in order.
template <class T, class Row>
void for_unit(const RowPlan& p, const Units& u, int64_t unit, T* indexed, const T* rows, Row&& row) {
  auto mine = static_cast<uint64_t>(unit % u.classes);
  int64_t block = unit / u.classes % u.blocks;
  Place place = place_of(p, unit / u.classes / u.blocks);
  int64_t start = block * u.block, count = std::min(u.block, p.run.size - start);
  T* to = indexed + place.indexed + start * p.run.indexed;
  const T* from = rows + place.rows + start * p.run.rows;
  for (int64_t k = 0; k < p.count; ++k) {
    if (u.classes > 1 && class_of(p.at[k]) != mine) continue;
    row(to + p.at[k] * p.scale, from + k * p.row_stride, count);
  }
}

template <class T, class Row>
void for_units(const RowPlan& plan, T* indexed, const T* rows, Row&& row) {
  Units u = cut(plan);
  int64_t work = std::max<int64_t>(1, u.block * plan.count / u.classes);
  parallel_for(u.count(), std::max<int64_t>(1, kMovedGrain / work), [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) for_unit(plan, u, unit, indexed, rows, row);
  });
}

template <class T>
void add_typed(const RowPlan& plan, T* indexed, const T* rows) {
  if (plan.run.indexed == 1 && plan.run.rows == 1) {
    for_units(plan, indexed, rows, [](T* to, const T* from, int64_t n) {
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(to[i] + from[i]);
    });
  } else {
    RowDim run = plan.run;
    for_units(plan, indexed, rows, [run](T* to, const T* from, int64_t n) {
      for (int64_t i = 0; i < n; ++i) to[i * run.indexed] = static_cast<T>(to[i * run.indexed] + from[i * run.rows]);
    });
  }
}

// bf16 and f16: the rows for one target must meet in f32 before they are rounded, so they are brought together first.
struct Groups {
  std::vector<Wide> items;      // target << 64 | k, in order of targets, then of k
  std::vector<int64_t> starts;  // of each group, and the end
};
Groups group_rows(const RowPlan& plan) {
  Groups g;
  auto n = static_cast<size_t>(plan.count);
  g.items.resize(n);
  int64_t highest = 0;
  for (size_t k = 0; k < n; ++k) {
    g.items[k] = static_cast<Wide>(plan.at[k]) << 64 | k;
    highest = std::max(highest, plan.at[k]);
  }
  int bits = 64 - __builtin_clzll(static_cast<uint64_t>(highest) | 1);
  std::vector<Wide> scratch(n);
  radix_sort(g.items.data(), scratch.data(), plan.count, 64, 64 + bits);
  for (size_t k = 0; k < n; ++k)
    if (k == 0 || g.items[k] >> 64 != g.items[k - 1] >> 64) g.starts.push_back(static_cast<int64_t>(k));
  g.starts.push_back(plan.count);
  return g;
}

// Strides are arguments so that the compiler can see where they are 1.
template <class T>
[[gnu::always_inline]] inline void add_group(const RowPlan& p, const Groups& g, size_t group, Place place, T* indexed,
                                             const T* rows, int64_t to_stride, int64_t from_stride) {
  constexpr int64_t kBlock = 256;
  float sum[kBlock];
  auto begin = static_cast<size_t>(g.starts[group]), end = static_cast<size_t>(g.starts[group + 1]);
  T* to = indexed + place.indexed + static_cast<int64_t>(g.items[begin] >> 64) * p.scale;
  for (int64_t start = 0; start < p.run.size; start += kBlock) {
    int64_t n = std::min(kBlock, p.run.size - start);
    T* out = to + start * to_stride;
    for (int64_t i = 0; i < n; ++i) sum[i] = out[i * to_stride];
    for (size_t k = begin; k < end; ++k) {
      auto row = static_cast<int64_t>(static_cast<uint64_t>(g.items[k]));
      const T* from = rows + place.rows + row * p.row_stride + start * from_stride;
      for (int64_t i = 0; i < n; ++i) sum[i] += from[i * from_stride];
    }
    for (int64_t i = 0; i < n; ++i) out[i * to_stride] = T(sum[i]);
  }
}

template <class T>
void add_half(const RowPlan& plan, T* indexed, const T* rows) {
  Groups g = group_rows(plan);
  auto groups = static_cast<int64_t>(g.starts.size()) - 1;
  int64_t work = std::max<int64_t>(1, plan.run.size * plan.count / std::max<int64_t>(1, groups));
  parallel_for(groups * plan.outer_count(), std::max<int64_t>(1, kMovedGrain / work), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      auto group = static_cast<size_t>(i % groups);
      Place place = place_of(plan, i / groups);
      if (plan.run.indexed == 1 && plan.run.rows == 1)
        add_group(plan, g, group, place, indexed, rows, 1, 1);
      else
        add_group(plan, g, group, place, indexed, rows, plan.run.indexed, plan.run.rows);
    }
  });
}

}  // namespace

void take_rows(const RowPlan& original, std::byte* rows, const std::byte* indexed, size_t element) {
  RowPlan plan = widen(original, element);
  int64_t outer = plan.outer_count(), units = outer * plan.count;
  if (units == 0 || plan.run.size == 0) return;
  with_bytes(element, [&]<class B>() {
    parallel_for(units, std::max<int64_t>(1, kMovedGrain / plan.run.size), [&](int64_t begin, int64_t end) {
      while (begin < end) {
        int64_t o = begin / plan.count, k = begin % plan.count, last = std::min(plan.count, k + end - begin);
        take_range(plan, reinterpret_cast<B*>(rows), reinterpret_cast<const B*>(indexed), place_of(plan, o), k, last);
        begin += last - k;
      }
    });
  });
}

void put_rows(const RowPlan& original, std::byte* indexed, const std::byte* rows, size_t element) {
  RowPlan plan = widen(original, element);
  if (plan.count == 0 || plan.run.size == 0 || plan.outer_count() == 0) return;
  with_bytes(element, [&]<class B>() {
    auto* to = reinterpret_cast<B*>(indexed);
    const auto* from = reinterpret_cast<const B*>(rows);
    if (plan.run.size == 1)
      for_units(plan, to, from, [](B* t, const B* f, int64_t) { *t = *f; });
    else if (plan.run.indexed == 1 && plan.run.rows == 1)
      for_units(plan, to, from,
                [](B* t, const B* f, int64_t n) { std::memcpy(t, f, static_cast<size_t>(n) * sizeof(B)); });
    else
      for_units(plan, to, from, [run = plan.run](B* t, const B* f, int64_t n) {
        for (int64_t i = 0; i < n; ++i) t[i * run.indexed] = f[i * run.rows];
      });
  });
}

void add_rows(const RowPlan& plan, std::byte* indexed, const std::byte* rows, DType dtype) {
  if (plan.count == 0 || plan.run.size == 0 || plan.outer_count() == 0) return;
  with_type(dtype, [&]<class T>() {
    auto* to = reinterpret_cast<T*>(indexed);
    const auto* from = reinterpret_cast<const T*>(rows);
    if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>)
      add_half(plan, to, from);
    else
      add_typed(plan, to, from);
  });
}

}  // namespace tutti
