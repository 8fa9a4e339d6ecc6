#include "ops/reduce/fold.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/parallel.h"
#include "tensor/call.h"
#include "tensor/convert.h"
#include "tensor/impl.h"

namespace tutti::reduction {
namespace {

constexpr int64_t kTile = kRows * kWidth;  // elements that are gathered at a time
constexpr int64_t kPiece = 65536;          // elements that a thread takes at a time
constexpr int64_t kChunkBytes = 4096;      // of accumulators: a small part of the first-level cache

struct TaggedAxis {
  int64_t size, stride;
  bool reduced;
  size_t dim;
};

using TaggedAxes = SmallVector<TaggedAxis, 6>;

// Outermost first. Strides of zero come first too: they repeat what is inside of them.
void sort_axes(TaggedAxes& axes) {
  auto rank = [](const TaggedAxis& a) { return a.stride == 0 ? INT64_MAX : std::abs(a.stride); };
  for (size_t i = 1; i < axes.size(); ++i)
    for (size_t k = i; k > 0 && rank(axes[k - 1]) < rank(axes[k]); --k) std::swap(axes[k - 1], axes[k]);
}

// Adds an axis inside of `axes`, which are outermost first.
void append(Axes& axes, Axis axis) {
  if (!axes.empty() && axes[axes.size() - 1].stride == axis.stride * axis.size)
    axes[axes.size() - 1] = {axes[axes.size() - 1].size * axis.size, axis.stride};
  else
    axes.push_back(axis);
}

// The space of sorted axes.
Space arrange(const TaggedAxes& axes) {
  Space s;
  Axes inward;  // reduced, outermost first
  bool kept_innermost = false;
  for (const TaggedAxis& a : axes) {
    if (a.size == 1) continue;
    (a.reduced ? s.rows : s.outer) *= a.size;
    append(a.reduced ? inward : s.kept, {a.size, a.stride});
    kept_innermost = !a.reduced;
  }
  if (kept_innermost) {
    s.columns = s.kept[s.kept.size() - 1];
    s.kept.resize(s.kept.size() - 1);
    s.outer = s.columns.size ? s.outer / s.columns.size : 0;
  }
  for (size_t i = inward.size(); i-- > 0;) s.reduced.push_back(inward[i]);
  if (s.reduced.empty()) s.reduced.push_back({1, s.columns.size});
  return s;
}

int64_t bytes_of(DType t) { return static_cast<int64_t>(size_of(t)); }

// One pass over a space: see Note [How a reduction is cut]. Results are [outer][items][planes][columns].
struct Stage {
  const Fold& fold;
  const Space& space;
  double power;
  std::byte* results;

  int64_t group = 1;  // rows of the space side by side in the accumulators
  int64_t chunk = 1;  // columns of a unit
  int64_t chunks = 1;
  int64_t item_rows = 1;  // rows of the space in a unit
  int64_t items = 1;
  bool direct = false;  // elements can be used where they lie
  int64_t element_bytes, accumulator_bytes;

  Stage(const Fold& f, const Space& s, double p)
      : fold(f),
        space(s),
        power(p),
        results(nullptr),
        element_bytes(bytes_of(s.dtype)),
        accumulator_bytes(bytes_of(f.accumulator)) {
    int64_t columns = space.columns.size;
    Axis inner = space.reduced[0];
    if (columns < kWidth && columns * space.rows >= 4 * kWidth) {
      int64_t step = 16 / std::gcd(columns, int64_t{16});
      group = (kWidth + columns * step - 1) / (columns * step) * step;
    }
    chunk = std::min(columns, kChunkBytes / (accumulator_bytes * fold.planes));
    chunks = (columns + chunk - 1) / chunk;
    item_rows = std::max(kRows * group, columns < kWidth ? 4 * kWidth : 0);
    items = (space.rows + item_rows - 1) / item_rows;
    bool native = space.dtype == fold.element && (columns == 1 || space.columns.stride == 1);
    bool long_runs = space.reduced.size() == 1 || inner.size >= group;
    direct = native && (group == 1 || (inner.stride == columns && long_runs));
  }

  int64_t result_count() const { return space.outer * items * fold.planes * space.columns.size; }

  void run() const {
    if (space.columns.size == 1 && items == 1) {
      // Rows short enough for one unit each are folded many at a time.
      parallel_for(space.outer, std::max<int64_t>(1, kPiece / space.rows),
                   [&](int64_t b, int64_t e) { fold_outputs(b, e); });
    } else {
      int64_t elements = std::min(space.rows, item_rows) * chunk;
      parallel_for(space.outer * chunks * items, std::max<int64_t>(1, kPiece / elements), [&](int64_t b, int64_t e) {
        for (int64_t unit = b; unit < e; ++unit) run_unit(unit);
      });
    }
  }

  void run_unit(int64_t unit) const {
    int64_t item = unit % items, part = unit / items % chunks, outer = unit / items / chunks;
    int64_t first = part * chunk, columns = std::min(chunk, space.columns.size - first), width = columns * group;
    alignas(64) std::byte accumulators[kMaxWidth * 16];
    alignas(64) double shift[kMaxWidth];
    fold.start(accumulators, width);
    int64_t offset = offset_outermost_first(space.kept, outer) + first * space.columns.stride;
    const std::byte* base = space.data + offset * element_bytes;
    if (fold.planes == 2) fill_shift(base, columns, shift);
    int64_t begin = item * item_rows, end = std::min(space.rows, begin + item_rows);
    if (direct)
      for_each_run(space.reduced, begin, end, [&](int64_t at, int64_t count) {
        accumulate(base + at * element_bytes, space.reduced[0].stride, count, columns, shift, accumulators);
      });
    else
      accumulate_gathered(base, begin, end, columns, shift, accumulators);
    if (group > 1) fold.narrow(accumulators, width, columns);
    for (int plane = 0; plane < fold.planes; ++plane) {
      int64_t to = ((outer * items + item) * fold.planes + plane) * space.columns.size + first;
      std::memcpy(results + to * accumulator_bytes, accumulators + plane * width * accumulator_bytes,
                  static_cast<size_t>(columns * accumulator_bytes));
    }
  }

  // `count` rows that are `stride` apart.
  void accumulate(const void* data, int64_t stride, int64_t count, int64_t columns, const double* shift,
                  void* accumulators) const {
    Block block{.data = data, .stride = stride, .rows = count, .width = columns, .shift = shift, .power = power};
    if (group > 1) {
      block.stride = block.width = columns * group;
      block.rows = count / group;
      block.tail = count % group * columns;
    }
    fold.accumulate(block, accumulators);
  }

  void accumulate_gathered(const std::byte* base, int64_t begin, int64_t end, int64_t columns, const double* shift,
                           void* accumulators) const {
    alignas(64) std::byte tile[kTile * 16];
    int64_t step = kTile / columns;
    for (; begin < end; begin += step) {
      int64_t stop = std::min(end, begin + step);
      gather_rows(space, base, columns, begin, stop, fold.element, tile);
      accumulate(tile, columns, stop - begin, columns, shift, accumulators);
    }
  }

  // Moments are taken about each column's first element: it is near the others, or an outlier that dominates them
  // anyway.
  void fill_shift(const std::byte* base, int64_t columns, double* shift) const {
    converter(DType::f64, space.dtype)(shift, 1, base, space.columns.stride, columns);
    for (int64_t g = 1; g < group; ++g) std::copy_n(shift, columns, shift + g * columns);
  }

  // Outputs that are made of one short row each.
  void fold_outputs(int64_t begin, int64_t end) const {
    Axis kept = space.kept.empty() ? Axis{1, 0} : space.kept[space.kept.size() - 1];
    Axis inner = space.reduced[0];
    bool plain = space.reduced.size() == 1 && inner.stride == 1;
    bool native = plain && space.dtype == fold.element;
    bool packed = plain && kept.stride == inner.size;
    alignas(64) std::byte tile[kTile * 16];
    while (begin < end) {
      int64_t count = std::min(end - begin, kept.size - begin % kept.size);
      const std::byte* base = space.data + offset_outermost_first(space.kept, begin) * element_bytes;
      Block block{.data = base, .stride = kept.stride, .rows = count, .width = space.rows, .power = power};
      if (!native) {
        block.rows = count = std::min(count, kTile / space.rows);
        block.data = tile;
        block.stride = space.rows;
        if (packed)
          converter(fold.element, space.dtype)(tile, 1, base, 1, count * space.rows);
        else
          for (int64_t r = 0; r < count; ++r)
            gather_rows(space, base + r * kept.stride * element_bytes, 1, 0, space.rows, fold.element,
                        tile + r * space.rows * bytes_of(fold.element));
      }
      if (fold.planes == 1)
        fold.fold_rows(block, results + begin * accumulator_bytes);
      else
        fold_pairs(block, begin);
      begin += count;
    }
  }
  void fold_pairs(Block block, int64_t first) const {
    int64_t step = bytes_of(fold.element) * block.stride;
    for (int64_t r = 0, rows = std::exchange(block.rows, 1); r < rows; ++r) {
      fold.fold_rows(block, results + 2 * (first + r) * accumulator_bytes);
      block.data = static_cast<const std::byte*>(block.data) + step;
    }
  }
};

// The space of a stage's partial results.
Space partial_space(const Stage& stage, const std::byte* data) {
  Space s;
  s.data = data;
  s.dtype = stage.fold.accumulator;
  int64_t columns = stage.space.columns.size * stage.fold.planes;
  s.columns = {columns, 1};
  s.kept.push_back({stage.space.outer, stage.items * columns});
  s.reduced.push_back({stage.items, columns});
  s.outer = stage.space.outer;
  s.rows = stage.items;
  return s;
}

// Whether the innermost reduced axis is better reduced on its own first, the others after it. What lies between them in
// memory is kept, so that taking them together would jump from one to the next; and this leaves little to do after it.
bool in_two_steps(const Fold& fold, const Space& space) {
  return fold.planes == 1 && space.columns.size == 1 && space.reduced.size() > 1 && space.reduced[0].size >= 32;
}

void fold_space(const Fold& fold, const Space& space, double power, std::byte* results);

void fold_in_two_steps(const Fold& fold, const Space& space, double power, std::byte* results) {
  TaggedAxes axes;
  for (size_t i = 0; i < space.kept.size(); ++i) axes.push_back({space.kept[i].size, space.kept[i].stride, false, 0});
  for (size_t i = space.reduced.size(); i-- > 1;)
    axes.push_back({space.reduced[i].size, space.reduced[i].stride, true, 0});
  sort_axes(axes);
  Space first;
  first.data = space.data;
  first.dtype = space.dtype;
  for (auto& a : axes) append(first.kept, {a.size, a.stride});
  first.reduced.push_back(space.reduced[0]);
  first.rows = space.reduced[0].size;
  first.outer = space.outer * (space.rows / first.rows);
  Tensor partial = make_tensor({first.outer}, fold.accumulator, Device());
  fold_space(fold, first, power, impl(partial)->data());
  int64_t stride = 1;
  for (size_t i = axes.size(); i-- > 0; stride *= axes[i].size) axes[i].stride = stride;
  Space second = arrange(axes);
  second.data = impl(partial)->data();
  second.dtype = fold.accumulator;
  fold_space(*find_fold_pointer()(fold.combine, fold.accumulator), second, 0, results);
}

// Folds all of a space into results [outer][planes][columns].
void fold_space(const Fold& fold, const Space& space, double power, std::byte* results) {
  if (in_two_steps(fold, space)) return fold_in_two_steps(fold, space, power, results);
  Stage stage(fold, space, power);
  if (stage.items == 1) {
    stage.results = results;
    stage.run();
    return;
  }
  Tensor partial = make_tensor({stage.result_count()}, fold.accumulator, Device());
  stage.results = impl(partial)->data();
  stage.run();
  fold_space(*find_fold_pointer()(fold.combine, fold.accumulator), partial_space(stage, stage.results), 0, results);
}

// ---- The last step

template <class T, class F>
void transform(T* x, int64_t count, F&& f) {
  parallel_for(count, 16384, [&](int64_t b, int64_t e) {
    for (int64_t i = b; i < e; ++i) x[i] = f(x[i]);
  });
}

void divide(void* x, DType type, int64_t count, double number) {
  if (type == DType::f32)
    transform(static_cast<float*>(x), count, [d = static_cast<float>(number)](float v) { return v / d; });
  else
    transform(static_cast<double*>(x), count, [number](double v) { return v / number; });
}

void take_root(double* x, int64_t count, double order) {
  if (order == 2)
    transform(x, count, [](double v) { return std::sqrt(v); });
  else
    parallel_for(count, 16384, [&](int64_t b, int64_t e) { raise_pointer()(x + b, e - b, 1 / order); });
}

// `count` is of plain numbers: twice as many where results are complex.
void finish_in_place(const Request& r, DType type, void* x, int64_t count) {
  switch (r.finish) {
    case Finish::divide:
      return divide(x, type, count, r.number);
    case Finish::root:
      return take_root(static_cast<double*>(x), count, r.number);
    case Finish::all: {
      auto wanted = static_cast<int64_t>(r.number);
      return transform(static_cast<int64_t*>(x), count, [wanted](int64_t v) -> int64_t { return v == wanted; });
    }
    case Finish::any:
      return transform(static_cast<int64_t*>(x), count, [](int64_t v) -> int64_t { return v != 0; });
    default:
      return;
  }
}

// From [outer][2][columns] sums to variances (or their roots).
void finish_moments(const Request& r, const double* sums, int64_t outer, int64_t columns, int64_t rows, double* out) {
  auto n = static_cast<double>(rows);
  parallel_for(outer * columns, 16384, [&](int64_t b, int64_t e) {
    for (int64_t i = b; i < e; ++i) {
      const double* s = sums + i / columns * 2 * columns + i % columns;
      double first = s[0], second = s[columns];
      // Rounding may leave a little less than nothing.
      double squares = second - first * (first / n);
      double variance = (squares < 0 ? 0 : squares) / r.number;
      out[i] = r.finish == Finish::deviation ? std::sqrt(variance) : variance;
    }
  });
}

void fold_results(const Fold& fold, const Space& space, bool empty, const Request& request, Tensor& results) {
  int64_t count = space.outer * space.columns.size;
  auto* data = impl(results)->data();
  if (fold.planes == 1) {
    if (empty)
      fold.start(data, count);
    else
      fold_space(fold, space, request.power, data);
    finish_in_place(request, fold.accumulator, data, count);
    return;
  }
  Tensor sums = make_tensor({2 * count}, fold.accumulator, Device());
  auto* pairs = reinterpret_cast<double*>(impl(sums)->data());
  if (empty)
    fold.start(pairs, count);
  else
    fold_space(fold, space, request.power, impl(sums)->data());
  finish_moments(request, pairs, space.outer, space.columns.size, empty ? 0 : space.rows,
                 reinterpret_cast<double*>(data));
}

}  // namespace

Space make_space(const Tensor& x, const Shape& reduced, bool complex_as_real) {
  const TensorImpl* t = impl(x);
  int64_t scale = complex_as_real ? 2 : 1, result_stride = 1;
  TaggedAxes axes;
  for (size_t d = 0; d < t->sizes.size(); ++d) axes.push_back({t->sizes[d], t->strides[d] * scale, reduced[d] != 0, d});
  sort_axes(axes);
  Shape strides = Shape::filled(t->sizes.size(), 0);
  for (size_t i = axes.size(); i-- > 0;) {
    if (axes[i].reduced) continue;
    strides[axes[i].dim] = result_stride;
    result_stride *= axes[i].size;
  }
  if (complex_as_real) axes.push_back({2, 1, false, 0});
  Space s = arrange(axes);
  s.data = t->numel ? t->data() : nullptr;
  s.dtype = complex_as_real ? to_real(t->dtype) : t->dtype;
  for (size_t d = 0; d < t->sizes.size(); ++d) {
    if (reduced[d]) continue;
    s.result_sizes.push_back(t->sizes[d]);
    s.result_strides.push_back(strides[d]);
  }
  return s;
}

void gather_rows(const Space& space, const std::byte* base, int64_t columns, int64_t begin, int64_t end, DType element,
                 std::byte* tile) {
  Convert convert = converter(element, space.dtype);
  int64_t from = bytes_of(space.dtype), to = bytes_of(element), across = space.columns.stride;
  int64_t down = space.reduced[0].stride;
  for_each_run(space.reduced, begin, end, [&](int64_t offset, int64_t count) {
    const std::byte* run = base + offset * from;
    if (columns == 1)
      convert(tile, 1, run, down, count);
    else if (across == 1 && down == columns)
      convert(tile, 1, run, 1, count * columns);
    else if (columns < count)
      for (int64_t c = 0; c < columns; ++c) convert(tile + c * to, columns, run + c * across * from, down, count);
    else
      for (int64_t r = 0; r < count; ++r) convert(tile + r * columns * to, 1, run + r * down * from, across, columns);
    tile += count * columns * to;
  });
}

void fold_tensor(const Tensor& out, const Tensor& x, const Shape& reduced, const Request& request) {
  if (out.numel() == 0) return;
  const Fold* fold = find_fold_pointer()(request.operation, request.element);
  TUTTI_ASSERT(fold != nullptr);
  const TensorImpl* t = impl(x);
  bool ready = t->contiguous && t->dtype == fold->element && out.dtype() == fold->accumulator && fold->planes == 1;
  if (ready && t->numel > 0 && t->numel <= kTile && out.numel() == 1) {
    // A short row needs no plan.
    fold->fold_rows({.data = t->data(), .stride = t->numel, .rows = 1, .width = t->numel, .power = request.power},
                    impl(out)->data());
    return finish_in_place(request, fold->accumulator, impl(out)->data(), 1);
  }
  bool complex_as_real = is_complex(t->dtype) && is_floating(fold->element);
  Space space = make_space(x, reduced, complex_as_real);
  DType type = complex_as_real ? to_complex(fold->accumulator) : fold->accumulator;
  bool in_order = space.result_strides == contiguous_strides(space.result_sizes);
  Tensor results = out.dtype() == type && in_order ? make_alias(out) : make_tensor(space.result_sizes, type, Device());
  fold_results(*fold, space, t->numel == 0, request, results);
  if (results.shares_storage(out)) return;
  Tensor from = make_alias(results, space.result_sizes, space.result_strides, 0);
  copy_into(make_alias(out, space.result_sizes, contiguous_strides(space.result_sizes), out.storage_offset()), from);
}

}  // namespace tutti::reduction
