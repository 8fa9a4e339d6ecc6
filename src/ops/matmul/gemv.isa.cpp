// Products in which one side has few vectors: what counts is to read the other side once, as it lies in memory. As in
// gemm.isa.cpp, the order of the sums is the same on every instruction set.
#include "ops/matmul/gemm_kernel.h"
#include "tutti/pointwise/vec.h"

namespace tutti {
namespace {

using pointwise::Vec;
using products::Product;
namespace detail = pointwise::detail;

// 64 bytes wide whatever the registers: the lanes are part of the order.
template <class T>
constexpr int kLanes = 64 / static_cast<int>(sizeof(T));
template <class T>
using W = Vec<T, kLanes<T>>;

// A tile of dot products has kSide × kSide sums.
constexpr int kSide = detail::register_bytes == 64 ? 4 : detail::register_bytes == 32 ? 2 : 1;

TUTTI_HD int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T, int N>
TUTTI_HD Vec<T, N> multiply_add(Vec<T, N> a, Vec<T, N> b, Vec<T, N> c) {
  if constexpr (std::is_floating_point_v<T>)
    return fma(a, b, c);
  else
    return a * b + c;
}

// The sum of all lanes, halves added to halves.
template <class T, int N>
TUTTI_HD T add_lanes(Vec<T, N> x) {
  if constexpr (N == 1)
    return x.v;
  else if constexpr (detail::fits_register<T, N>)
    return add_lanes(Vec<T, N / 2>::from_register(detail::lower_half<T, N>(x.v)) +
                     Vec<T, N / 2>::from_register(detail::upper_half<T, N>(x.v)));
  else
    return add_lanes(x.lo + x.hi);
}

template <class T>
TUTTI_HD T factor(double x) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(x);
  else
    return static_cast<T>(static_cast<int64_t>(x));
}
template <class T>
TUTTI_HD Vec<T, 1> combine(Vec<T, 1> sum, const T* d, T alpha, T beta) {
  return beta == T(0) ? Vec<T, 1>(alpha) * sum : multiply_add(Vec<T, 1>(alpha), sum, Vec<T, 1>(beta) * Vec<T, 1>(*d));
}

// ---- Dot products of rows of a with columns of b

template <class T, int Rows, int Columns>
void dot_tile(const Product& p, int64_t i, int64_t j) {
  constexpr int lanes = kLanes<T>;
  const T* a = static_cast<const T*>(p.a.data) + i * p.a.row;
  const T* b = static_cast<const T*>(p.b.data) + j * p.b.column;
  W<T> sum[Rows][Columns];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) sum[r][c] = W<T>(T(0));
  auto step = [&](auto load) {
    W<T> bv[Columns];
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) bv[c] = load(b + c * p.b.column);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      W<T> av = load(a + r * p.a.row);
#pragma GCC unroll 4
      for (int c = 0; c < Columns; ++c) sum[r][c] = multiply_add(av, bv[c], sum[r][c]);
    }
    a += lanes;
    b += lanes;
  };
  for (int64_t k = p.depth / lanes; k > 0; --k) step([](const T* x) { return W<T>::load(x); });
  if (auto rest = static_cast<int>(p.depth % lanes)) step([rest](const T* x) { return W<T>::load(x, rest); });
  T alpha = factor<T>(p.alpha), beta = factor<T>(p.beta);
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) {
      T* to = static_cast<T*>(p.c) + (i + r) * p.c_row + j + c;
      const T* d = static_cast<const T*>(p.d) + (i + r) * p.d_row + j + c;
      combine<T>(Vec<T, 1>(add_lanes(sum[r][c])), d, alpha, beta).store(to);
    }
}

template <class T, size_t... I>
void dots(const Product& p, std::index_sequence<I...>) {
  using Function = void (*)(const Product&, int64_t, int64_t);
  static constexpr Function table[] = {&dot_tile<T, I / kSide + 1, I % kSide + 1>...};
  for (int64_t j = 0; j < p.columns; j += kSide)
    for (int64_t i = 0; i < p.rows; i += kSide)
      table[(smaller(kSide, p.rows - i) - 1) * kSide + smaller(kSide, p.columns - j) - 1](p, i, j);
}

// ---- One row of c: the rows of b, each times a number of a, are added up

template <class T>
void row(const Product& p) {
  constexpr int lanes = kLanes<T>;
  constexpr int64_t block = 4096 / static_cast<int64_t>(sizeof(T));
  alignas(64) T sums[block];
  T alpha = factor<T>(p.alpha), beta = factor<T>(p.beta);
  for (int64_t j = 0; j < p.columns; j += block) {
    int64_t columns = smaller(block, p.columns - j), whole = columns / lanes * lanes;
    auto rest = static_cast<int>(columns - whole);
    for (int64_t v = 0; v < columns; v += lanes) W<T>(T(0)).store(sums + v);
    const auto* a = static_cast<const T*>(p.a.data);
    const T* b = static_cast<const T*>(p.b.data) + j;
    auto add = [&]<int Count>(std::integral_constant<int, Count>) {
      W<T> av[Count];
#pragma GCC unroll 4
      for (int q = 0; q < Count; ++q) av[q] = W<T>(a[q * p.a.column]);
      auto at = [&](int64_t v, auto load) {
        W<T> sum = W<T>::load(sums + v);
#pragma GCC unroll 4
        for (int q = 0; q < Count; ++q) sum = multiply_add(av[q], load(b + q * p.b.row + v), sum);
        sum.store(sums + v);
      };
      for (int64_t v = 0; v < whole; v += lanes) at(v, [](const T* x) { return W<T>::load(x); });
      if (rest) at(whole, [rest](const T* x) { return W<T>::load(x, rest); });
      a += Count * p.a.column;
      b += Count * p.b.row;
    };
    int64_t k = p.depth;
    for (; k >= 4; k -= 4) add(std::integral_constant<int, 4>());
    for (; k > 0; --k) add(std::integral_constant<int, 1>());
    T* c = static_cast<T*>(p.c) + j;
    const T* d = static_cast<const T*>(p.d) + j;
    for (int64_t v = 0; v < columns; ++v) combine<T>(Vec<T, 1>(sums[v]), d + v, alpha, beta).store(c + v);
  }
}

template <class F>
void with_real(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::f64:
      return f.template operator()<double>();
    case DType::i32:
      return f.template operator()<int32_t>();
    default:
      return f.template operator()<int64_t>();
  }
}

}  // namespace

TUTTI_ISA_DEFINE(multiply_dots, void, (const Product& p)) {
  with_real(p.dtype, [&]<class T>() { dots<T>(p, std::make_index_sequence<kSide * kSide>()); });
}
TUTTI_ISA_DEFINE(multiply_row, void, (const Product& p)) {
  with_real(p.dtype, [&]<class T>() { row<T>(p); });
}

}  // namespace tutti
