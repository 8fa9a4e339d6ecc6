#include "ops/reduce/fold.h"

#include <complex>
#include <limits>

#include "ops/reduce/lanes.h"
#include "tutti/pointwise/primitives.h"

namespace tutti::reduction {
namespace {

using pointwise::Mask;
using pointwise::Vec;

// ---- What is done to elements. An operation reads N elements as accumulators (`read`) and combines two of those.

// The parts that operations on plain numbers share: E is read, A accumulated.
template <class E, class A>
struct Plain {
  using Element = E;
  using Accumulator = A;
  static constexpr int lanes = lanes_of<A>;
  static constexpr int planes = 1;
  static constexpr bool costly = false;  // reading is long code
  template <int N>
  static TUTTI_HD Vec<A, N> load(const A* p, int64_t) {
    return Vec<A, N>::load(p);
  }
  template <int N>
  static TUTTI_HD void store(A* p, int64_t, Vec<A, N> v) {
    v.store(p);
  }
  template <int N>
  static TUTTI_HD Vec<A, N> read(const E* p, const Block&, int64_t) {
    return pointwise::convert<A>(Vec<E, N>::load(p));
  }
};

template <class T>
struct Adding {
  static constexpr T identity = 0;
  template <int N>
  static TUTTI_HD Vec<T, N> combine(Vec<T, N> a, Vec<T, N> b) {
    return a + b;
  }
};
template <class T>
struct Multiplying {
  static constexpr T identity = 1;
  template <int N>
  static TUTTI_HD Vec<T, N> combine(Vec<T, N> a, Vec<T, N> b) {
    return a * b;
  }
};
template <class T>
struct Largest {
  static constexpr T identity =
      std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
  template <int N>
  static TUTTI_HD Vec<T, N> combine(Vec<T, N> a, Vec<T, N> b) {
    return pointwise::max(a, b);
  }
};
template <class T>
struct Smallest {
  static constexpr T identity =
      std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
  template <int N>
  static TUTTI_HD Vec<T, N> combine(Vec<T, N> a, Vec<T, N> b) {
    return pointwise::min(a, b);
  }
};

template <class T>
struct Sum : Plain<T, T>, Adding<T> {
  static constexpr Operation combining = Operation::sum;
};
template <class T>
struct Prod : Plain<T, T>, Multiplying<T> {
  static constexpr Operation combining = Operation::prod;
};
template <class T>
struct Max : Plain<T, T>, Largest<T> {
  static constexpr Operation combining = Operation::max;
};
template <class T>
struct Min : Plain<T, T>, Smallest<T> {
  static constexpr Operation combining = Operation::min;
};
template <class T, class Of>
struct OfMagnitudes : Of {
  template <int N>
  static TUTTI_HD Vec<T, N> read(const T* p, const Block&, int64_t) {
    return pointwise::abs(Vec<T, N>::load(p));
  }
};
struct Count : Plain<bool, int64_t>, Adding<int64_t> {
  static constexpr Operation combining = Operation::sum;
  template <int N>
  static TUTTI_HD Vec<int64_t, N> read(const bool* p, const Block&, int64_t) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(p);
    if constexpr (N == 1)
      return Vec<int64_t, 1>(*bytes != 0);
    else
      return Vec<int64_t, N>::from_mask(Mask<int64_t, N>::load(bytes));
  }
};
// In f64, so that neither large nor small elements are lost when squared.
template <class T>
struct SumSquares : Plain<T, double>, Adding<double> {
  static constexpr Operation combining = Operation::sum;
  template <int N>
  static TUTTI_HD Vec<double, N> read(const T* p, const Block&, int64_t) {
    Vec<double, N> x = pointwise::convert<double>(Vec<T, N>::load(p));
    return x * x;
  }
};
struct SumPowers : Plain<double, double>, Adding<double> {
  static constexpr bool costly = true;
  static constexpr Operation combining = Operation::sum;
  template <int N>
  static TUTTI_HD Vec<double, N> read(const double* p, const Block& b, int64_t) {
    return pointwise::pow(pointwise::abs(Vec<double, N>::load(p)), Vec<double, N>(b.power));
  }
};

template <int N>
struct Sums {
  Vec<double, N> first, second;
};
template <class T>
struct Moments {
  using Element = T;
  using Accumulator = double;
  static constexpr int lanes = 8;
  static constexpr int planes = 2;
  static constexpr bool costly = false;
  static constexpr Operation combining = Operation::sum;
  static constexpr double identity = 0;
  template <int N>
  static TUTTI_HD Sums<N> load(const double* p, int64_t width) {
    return {Vec<double, N>::load(p), Vec<double, N>::load(p + width)};
  }
  template <int N>
  static TUTTI_HD void store(double* p, int64_t width, Sums<N> v) {
    v.first.store(p);
    v.second.store(p + width);
  }
  template <int N>
  static TUTTI_HD Sums<N> read(const T* p, const Block& b, int64_t column) {
    Vec<double, N> d = pointwise::convert<double>(Vec<T, N>::load(p)) - Vec<double, N>::load(b.shift + column);
    return {d, d * d};
  }
  template <int N>
  static TUTTI_HD Sums<N> combine(Sums<N> a, Sums<N> b) {
    return {a.first + b.first, a.second + b.second};
  }
};

// Products of complex numbers go one by one: nobody takes so many of them that more would pay.
template <class T>
struct ComplexProd {
  using Element = std::complex<T>;
  using Accumulator = std::complex<T>;
  static constexpr int lanes = 1;
  static constexpr int planes = 1;
  static constexpr bool costly = false;
  static constexpr Operation combining = Operation::prod;
  static constexpr Accumulator identity = 1;
  template <int N>
  static TUTTI_HD Accumulator load(const Accumulator* p, int64_t) {
    return *p;
  }
  template <int N>
  static TUTTI_HD void store(Accumulator* p, int64_t, Accumulator v) {
    *p = v;
  }
  template <int N>
  static TUTTI_HD Accumulator read(const Element* p, const Block&, int64_t) {
    return *p;
  }
  template <int N>
  static TUTTI_HD Accumulator combine(Accumulator a, Accumulator b) {
    return complex_product(a, b);
  }
};

// ---- Loops

template <class Op>
[[gnu::noinline]] void start(void* accumulators, int64_t count) {
  auto* a = static_cast<typename Op::Accumulator*>(accumulators);
  for (int64_t i = 0; i < count * Op::planes; ++i) a[i] = Op::identity;
}

// Columns [begin, end) of one row.
template <class Op, int N>
TUTTI_HD void add_row(const Block& b, const typename Op::Element* x, int64_t begin, int64_t end,
                      typename Op::Accumulator* a) {
  for (int64_t c = begin; c + N <= end; c += N)
    Op::template store<N>(
        a + c, b.width,
        Op::template combine<N>(Op::template load<N>(a + c, b.width), Op::template read<N>(x + c, b, c)));
}
template <class Op>
[[gnu::noinline]] void add_row(const Block& b, const typename Op::Element* x, int64_t end,
                               typename Op::Accumulator* a) {
  constexpr int N = Op::lanes;
  add_row<Op, N>(b, x, 0, end, a);
  if constexpr (N > 1) add_row<Op, 1>(b, x, end / N * N, end, a);
}

template <class Op, int N>
TUTTI_HD auto read_pair(const Block& b, const typename Op::Element* x, int64_t c) {
  return Op::template combine<N>(Op::template read<N>(x, b, c), Op::template read<N>(x + b.stride, b, c));
}

// Columns [begin, end) of eight rows, added up pairwise before they meet the accumulators.
template <class Op, int N>
TUTTI_HD void add_eight(const Block& b, const typename Op::Element* x, int64_t begin, int64_t end,
                        typename Op::Accumulator* a) {
  int64_t s = b.stride;
  for (int64_t c = begin; c + N <= end; c += N) {
    auto low = Op::template combine<N>(read_pair<Op, N>(b, x + c, c), read_pair<Op, N>(b, x + 2 * s + c, c));
    auto high = Op::template combine<N>(read_pair<Op, N>(b, x + 4 * s + c, c), read_pair<Op, N>(b, x + 6 * s + c, c));
    auto sum = Op::template combine<N>(low, high);
    Op::template store<N>(a + c, b.width, Op::template combine<N>(Op::template load<N>(a + c, b.width), sum));
  }
}

// Rows that lie side by side in memory are read in the order in which they lie there, whatever their width: nothing
// else comes near the speed of memory. Every few rows go into accumulators of their own first.
constexpr int64_t kFewRows = 16;

// Whole rows of exactly kWidth elements: their accumulators stay in registers.
template <class Op>
TUTTI_HD void add_few_short(const Block& b, const typename Op::Element* x, int64_t rows, typename Op::Accumulator* a) {
  constexpr int N = Op::lanes, count = kWidth / N;
  decltype(Op::template load<N>(a, 0)) sum[count];
#pragma GCC unroll 8
  for (int k = 0; k < count; ++k) sum[k] = Op::template read<N>(x + k * N, b, k * N);
  for (int64_t r = 1; r < rows; ++r)
#pragma GCC unroll 8
    for (int k = 0; k < count; ++k)
      sum[k] = Op::template combine<N>(sum[k], Op::template read<N>(x + r * kWidth + k * N, b, k * N));
#pragma GCC unroll 8
  for (int k = 0; k < count; ++k)
    Op::template store<N>(a + k * N, b.width,
                          Op::template combine<N>(Op::template load<N>(a + k * N, b.width), sum[k]));
}

template <class Op>
void combine_accumulators(const typename Op::Accumulator* from, int64_t count, int64_t width,
                          typename Op::Accumulator* a);

template <class Op>
TUTTI_HD void add_few(const Block& b, const typename Op::Element* x, int64_t rows, typename Op::Accumulator* a) {
  alignas(64) typename Op::Accumulator sum[kMaxWidth * Op::planes];
  start<Op>(sum, b.width);
  for (int64_t r = 0; r < rows; ++r) add_row<Op>(b, x + r * b.width, b.width, sum);
  combine_accumulators<Op>(sum, b.width, b.width, a);
}

template <class Op>
[[gnu::noinline]] void accumulate(const Block& b, void* accumulators) {
  constexpr int N = Op::lanes;
  const auto* x = static_cast<const typename Op::Element*>(b.data);
  auto* a = static_cast<typename Op::Accumulator*>(accumulators);
  int64_t r = 0;
  if (b.stride == b.width) {
    for (; r < b.rows; r += kFewRows) {
      int64_t rows = b.rows - r < kFewRows ? b.rows - r : kFewRows;
      if constexpr (N > 1 && !Op::costly) {
        if (b.width == kWidth) {
          add_few_short<Op>(b, x + r * b.width, rows, a);
          continue;
        }
      }
      add_few<Op>(b, x + r * b.width, rows, a);
    }
    add_row<Op>(b, x + b.rows * b.width, b.tail, a);
    return;
  }
  if constexpr (!Op::costly)
    for (; r + 8 <= b.rows; r += 8) {
      add_eight<Op, N>(b, x + r * b.stride, 0, b.width, a);
      if constexpr (N > 1) add_eight<Op, 1>(b, x + r * b.stride, b.width / N * N, b.width, a);
    }
  for (; r < b.rows; ++r) add_row<Op>(b, x + r * b.stride, b.width, a);
}

// `count` accumulators at `from`, of planes `width` apart, into those at `a`.
template <class Op>
[[gnu::noinline]] void combine_accumulators(const typename Op::Accumulator* from, int64_t count, int64_t width,
                                            typename Op::Accumulator* a) {
  constexpr int N = Op::lanes;
  int64_t c = 0;
  for (; c + N <= count; c += N)
    Op::template store<N>(
        a + c, width,
        Op::template combine<N>(Op::template load<N>(a + c, width), Op::template load<N>(from + c, width)));
  for (; c < count; ++c)
    Op::template store<1>(
        a + c, width,
        Op::template combine<1>(Op::template load<1>(a + c, width), Op::template load<1>(from + c, width)));
}

template <class Op>
void narrow(void* accumulators, int64_t width, int64_t columns) {
  auto* a = static_cast<typename Op::Accumulator*>(accumulators);
  for (int64_t groups = width / columns; groups > 1;) {
    int64_t half = (groups + 1) / 2;
    combine_accumulators<Op>(a + half * columns, (groups - half) * columns, width, a);
    groups = half;
  }
}

// Rows up to the first limit are added up one element after the other (the processor works on several of them at a
// time), up to the second in registers.
constexpr int64_t kShortRow = 24, kMediumRow = 1024;

template <class Op>
TUTTI_HD auto fold_medium_row(const Block& b, const typename Op::Element* x) {
  constexpr int N = Op::lanes;
  using One = decltype(Op::template read<1>(x, b, 0));
  alignas(64) typename Op::Accumulator lane[N * Op::planes];
  auto first = Op::template read<N>(x, b, 0), second = Op::template read<N>(x + N, b, 0);
  int64_t i = 2 * N;
  for (; i + 2 * N <= b.width; i += 2 * N) {
    first = Op::template combine<N>(first, Op::template read<N>(x + i, b, 0));
    second = Op::template combine<N>(second, Op::template read<N>(x + i + N, b, 0));
  }
  first = Op::template combine<N>(first, second);
  if (i + N <= b.width) {
    first = Op::template combine<N>(first, Op::template read<N>(x + i, b, 0));
    i += N;
  }
  One sum;
  if constexpr (Op::planes == 1 && N > 1) {
    sum = One(fold_lanes(first, [](auto p, auto q) { return Op::combine(p, q); }));
  } else {
    Op::template store<N>(lane, N, first);
    for (int half = N / 2; half > 0; half /= 2)
      for (int k = 0; k < half; ++k)
        Op::template store<1>(
            lane + k, N,
            Op::template combine<1>(Op::template load<1>(lane + k, N), Op::template load<1>(lane + k + half, N)));
    sum = Op::template load<1>(lane, N);
  }
  for (; i < b.width; ++i) sum = Op::template combine<1>(sum, Op::template read<1>(x + i, b, 0));
  // As all the others do: a sum of negative zeros is positive.
  for (int p = 0; p < Op::planes; ++p) lane[p] = Op::identity;
  return Op::template combine<1>(Op::template load<1>(lane, 1), sum);
}

template <class Op>
void fold_rows(const Block& b, void* accumulators) {
  using Accumulator = typename Op::Accumulator;
  const auto* x = static_cast<const typename Op::Element*>(b.data);
  auto* out = static_cast<Accumulator*>(accumulators);
  alignas(64) Accumulator a[kWidth * Op::planes];
  alignas(64) double shift[kWidth];
  Block one = b;
  one.shift = shift;
  for (int64_t r = 0; r < b.rows; ++r, x += b.stride) {
    if constexpr (Op::planes == 2)
      for (double& s : shift) s = static_cast<double>(x[0]);
    if (b.width <= kShortRow || b.width < 2 * Op::lanes) {
      for (int p = 0; p < Op::planes; ++p) a[p] = Op::identity;
      auto sum = Op::template load<1>(a, 1);
      for (int64_t i = 0; i < b.width; ++i) sum = Op::template combine<1>(sum, Op::template read<1>(x + i, one, 0));
      Op::template store<1>(out + r, b.rows, sum);
    } else if (b.width <= kMediumRow && !Op::costly) {
      Op::template store<1>(out + r, b.rows, fold_medium_row<Op>(one, x));
    } else {
      one.data = x;
      one.stride = one.width = kWidth;
      one.rows = b.width / kWidth;
      one.tail = b.width % kWidth;
      start<Op>(a, kWidth);
      accumulate<Op>(one, a);
      narrow<Op>(a, kWidth, 1);
      Op::template store<1>(out + r, b.rows, Op::template load<1>(a, kWidth));
    }
  }
}

template <class Op>
constexpr Fold fold_of{
    .element = dtype_of<typename Op::Element>,
    .accumulator = dtype_of<typename Op::Accumulator>,
    .planes = Op::planes,
    .combine = Op::combining,
    .start = &start<Op>,
    .accumulate = &accumulate<Op>,
    .narrow = &narrow<Op>,
    .fold_rows = &fold_rows<Op>,
};

template <template <class> class Op>
const Fold* of_real(DType element) {
  return element == DType::f32 ? &fold_of<Op<float>> : element == DType::f64 ? &fold_of<Op<double>> : nullptr;
}
template <template <class> class Op>
const Fold* of_real_or_int(DType element) {
  return element == DType::i64 ? &fold_of<Op<int64_t>> : of_real<Op>(element);
}

template <class T>
using SumMagnitudes = OfMagnitudes<T, Sum<T>>;
template <class T>
using MaxMagnitude = OfMagnitudes<T, Max<T>>;
template <class T>
using MinMagnitude = OfMagnitudes<T, Min<T>>;

[[gnu::noinline]] double power_of(double x, double power) {
  return pointwise::pow(Vec<double, 1>(x), Vec<double, 1>(power)).v;
}

}  // namespace

TUTTI_ISA_DEFINE(find_fold, const Fold*, (Operation operation, DType element)) {
  switch (operation) {
    case Operation::sum:
      return of_real_or_int<Sum>(element);
    case Operation::prod:
      if (element == DType::c64) return &fold_of<ComplexProd<float>>;
      if (element == DType::c128) return &fold_of<ComplexProd<double>>;
      return of_real_or_int<Prod>(element);
    case Operation::max:
      return of_real_or_int<Max>(element);
    case Operation::min:
      return of_real_or_int<Min>(element);
    case Operation::count:
      return element == DType::boolean ? &fold_of<Count> : nullptr;
    case Operation::sum_abs:
      return of_real<SumMagnitudes>(element);
    case Operation::sum_squares:
      return of_real<SumSquares>(element);
    case Operation::max_abs:
      return of_real<MaxMagnitude>(element);
    case Operation::min_abs:
      return of_real<MinMagnitude>(element);
    case Operation::sum_powers:
      return element == DType::f64 ? &fold_of<SumPowers> : nullptr;
    case Operation::moments:
      return of_real<Moments>(element);
  }
  return nullptr;
}

TUTTI_ISA_DEFINE(raise, void, (double* x, int64_t count, double power)) {
  for (int64_t i = 0; i < count; ++i) x[i] = power_of(x[i], power);
}

}  // namespace tutti::reduction
