// Folding many elements into one: sums, products, extremes and the like, over any dims of any tensor.
//
// Note [How a reduction is cut]
// Dims are sorted by stride and merged, so that what is innermost in memory is either reduced ("rows") or kept
// ("columns"). Both become the same loop: a block of memory seen as rows of `width` elements, added up row by row into
// `width` accumulators. Where few columns are kept (one, of a plain row), several rows of memory lie side by side in
// the accumulators, which are folded together at the end in a tree. A unit of work is at most kRows such rows; longer
// reductions leave one partial result a unit, and the partial results are reduced in the same way. Units depend on the
// geometry alone, never on the number of threads or the instruction set, and neither does the order inside of a unit:
// so the bits of the result do not either. Rounding errors grow with the logarithm of the number of elements, as those
// of pairwise summation do.
#pragma once

#include <cstdint>

#include "base/isa.h"
#include "base/small_vector.h"
#include "tutti/tensor.h"

namespace tutti::reduction {

enum class Operation : uint8_t {
  sum,
  prod,
  max,
  min,
  count,  // of bytes that are not zero
  sum_abs,
  sum_squares,  // in f64
  max_abs,
  min_abs,
  sum_powers,  // of |x|, in f64
  moments,     // sums of x - shift and of its squares, in f64, for a shift near x
};

inline constexpr int64_t kWidth = 64;       // accumulators at least, if there is enough to fill them
inline constexpr int64_t kMaxWidth = 1024;  // and at most
inline constexpr int64_t kRows = 128;       // rows of the accumulators' width in a unit

/// rows × width elements, then the first `tail` elements of another row.
struct Block {
  const void* data;
  int64_t stride;  // between rows, in elements
  int64_t rows;
  int64_t width;
  int64_t tail = 0;
  const double* shift = nullptr;  // of moments: one a column
  double power = 0;               // of sum_powers
};

/// How elements of one type are folded. Accumulators are `planes` arrays of `width` numbers, one behind the other.
struct Fold {
  DType element;
  DType accumulator;
  int planes;
  Operation combine;  // what folds accumulators with each other
  void (*start)(void* accumulators, int64_t count);
  void (*accumulate)(const Block& block, void* accumulators);
  // Folds width / columns groups of columns into the first.
  void (*narrow)(void* accumulators, int64_t width, int64_t columns);
  // Folds each row into one accumulator of its own; planes are `rows` apart. Without tail or shift.
  void (*fold_rows)(const Block& block, void* accumulators);
};

/// Null where there is none. Elements are f32, f64, i64, bool (count only) or, for products, c64 and c128.
TUTTI_ISA_DECLARE(find_fold, const Fold*, (Operation operation, DType element))

/// x[i] = x[i]^power
TUTTI_ISA_DECLARE(raise, void, (double* x, int64_t count, double power))

// ---- The geometry of a reduction

struct Axis {
  int64_t size, stride;
};
using Axes = SmallVector<Axis, 6>;

/// A tensor's elements as outputs × columns × rows: each of outer·columns results is made of `rows` elements.
struct Space {
  const std::byte* data = nullptr;
  DType dtype = DType::f32;  // complex tensors are seen as real ones with another, innermost, dim
  Axes kept;                 // outermost first, without the columns
  Axis columns{1, 1};        // the innermost dim, if it is kept
  Axes reduced;              // innermost first; never empty
  int64_t outer = 1, rows = 1;
  Shape result_sizes;    // of the kept dims as the tensor has them, and
  Shape result_strides;  // where they are in results that are dense in the order of the space
};

/// `reduced` has an entry for each dim of x.
Space make_space(const Tensor& x, const Shape& reduced, bool complex_as_real);

/// The offset of the index-th element of axes given outermost first.
inline int64_t offset_outermost_first(const Axes& axes, int64_t index) {
  int64_t offset = 0;
  for (size_t d = axes.size(); d-- > 0;) {
    offset += index % axes[d].size * axes[d].stride;
    index /= axes[d].size;
  }
  return offset;
}

/// Calls f(offset, count) for runs along the innermost reduced axis that make up rows [begin, end).
template <class F>
void for_each_run(const Axes& reduced, int64_t begin, int64_t end, F&& f) {
  Axis inner = reduced[0];
  while (begin < end) {
    int64_t at = begin % inner.size, rest = begin / inner.size, offset = at * inner.stride;
    for (size_t d = 1; d < reduced.size(); ++d) {
      offset += rest % reduced[d].size * reduced[d].stride;
      rest /= reduced[d].size;
    }
    int64_t count = end - begin < inner.size - at ? end - begin : inner.size - at;
    f(offset, count);
    begin += count;
  }
}

/// Copies rows [begin, end) of `columns` columns, starting at `base`, into `tile`, converting them to `element`.
void gather_rows(const Space& space, const std::byte* base, int64_t columns, int64_t begin, int64_t end, DType element,
                 std::byte* tile);

// ---- The reductions themselves

/// What becomes of an accumulator in the end.
enum class Finish : uint8_t { none, divide, root, all, any, variance, deviation };

struct Request {
  Operation operation;
  DType element;  // what elements are read as
  Finish finish = Finish::none;
  double number = 0;  // divide: by what; root: of which order; all: how many there are; variance: the divisor
  double power = 0;   // of sum_powers
};

/// Folds x over the dims that `reduced` marks (an entry for each dim) into out, which is contiguous.
void fold_tensor(const Tensor& out, const Tensor& x, const Shape& reduced, const Request& request);

}  // namespace tutti::reduction
