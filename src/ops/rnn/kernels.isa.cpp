#include "ops/rnn/kernels.h"

#include "tutti/pointwise/primitives.h"

namespace tutti::recurrent {
namespace {

using pointwise::Vec;

// A tile is kRows rows of two vectors: its sums, two vectors of weights and a number fill the register file.
constexpr int kRegisterBytes = pointwise::detail::register_bytes;
constexpr int kRows = kRegisterBytes == 64 ? 12 : kRegisterBytes == 32 ? 3 : 1;

template <class T>
constexpr int kLanes = sizeof(T) == 4 ? 16 : 8;
template <class T>
using V = Vec<T, kLanes<T>>;

template <class T>
TUTTI_HD void put(const Panel& p, T* c, const T* bias, V<T> sum, int n) {
  if (n <= 0) return;
  if (p.adds) sum = V<T>::load(c, n) + sum;
  if (bias) sum = V<T>::load(bias, n) + sum;
  sum.store(c, n);
}

template <class T, int Rows>
void multiply_tile(const Panel& p, int64_t row) {
  constexpr int lanes = kLanes<T>;
  V<T> sum[Rows][2];
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i) sum[i][0] = sum[i][1] = V<T>(T(0));
  const T* b = static_cast<const T*>(p.sliver);
  // Four pointers with three rows each reach all rows by the machine's own address arithmetic.
  const int64_t a_row = p.a_row;
  const T *a0 = static_cast<const T*>(p.a) + row * a_row, *a1 = a0 + 3 * a_row, *a2 = a1 + 3 * a_row,
          *a3 = a2 + 3 * a_row;
  for (int64_t k = p.depth; k > 0; --k) {
    V<T> low = V<T>::load(b), high = V<T>::load(b + lanes);
#pragma GCC unroll 12
    for (int i = 0; i < Rows; ++i) {
      const T* base = i < 3 ? a0 : i < 6 ? a1 : i < 9 ? a2 : a3;
      V<T> x(base[i % 3 * a_row]);
      sum[i][0] = fma(x, low, sum[i][0]);
      sum[i][1] = fma(x, high, sum[i][1]);
    }
    ++a0, ++a1, ++a2, ++a3;
    b += 2 * lanes;
  }
  T* c = static_cast<T*>(p.c) + row * p.c_row;
  const T* bias = static_cast<const T*>(p.bias);
  if (p.columns == 2 * lanes) {
#pragma GCC unroll 12
    for (int i = 0; i < Rows; ++i, c += p.c_row) {
      V<T> low = sum[i][0], high = sum[i][1];
      if (p.adds) low = V<T>::load(c) + low, high = V<T>::load(c + lanes) + high;
      if (bias) low = V<T>::load(bias) + low, high = V<T>::load(bias + lanes) + high;
      low.store(c);
      high.store(c + lanes);
    }
    return;
  }
  auto columns = static_cast<int>(p.columns);
  int first = columns < lanes ? columns : lanes;
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i, c += p.c_row) {
    put<T>(p, c, bias, sum[i][0], first);
    put<T>(p, c + lanes, bias ? bias + lanes : nullptr, sum[i][1], columns - lanes);
  }
}

template <class T, size_t... I>
void multiply_rows(const Panel& p, std::index_sequence<I...>) {
  using Function = void (*)(const Panel&, int64_t);
  static constexpr Function table[] = {&multiply_tile<T, static_cast<int>(I) + 1>...};
  // Tiles of nearly the same height: low ones use the machine badly.
  int64_t tiles = (p.rows + kRows - 1) / kRows, row = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    int64_t rows = (p.rows - row + tiles - t - 1) / (tiles - t);
    table[rows - 1](p, row);
    row += rows;
  }
}

// ---- Cells

#if defined(TUTTI_ISA_BASE)
// The baseline puts fused multiply-add together from many instructions: too many to have them at each use.
template <class W>
[[gnu::noinline]] W sigmoid_of(W x) {
  return pointwise::sigmoid(x);
}
template <class W>
[[gnu::noinline]] W tanh_of(W x) {
  return pointwise::tanh(x);
}
#else
template <class W>
TUTTI_HD W sigmoid_of(W x) {
  return pointwise::sigmoid(x);
}
template <class W>
TUTTI_HD W tanh_of(W x) {
  return pointwise::tanh(x);
}
#endif

template <class T>
TUTTI_HD V<T> load(const void* p, int64_t i, int n) {
  return n == kLanes<T> ? V<T>::load(static_cast<const T*>(p) + i) : V<T>::load(static_cast<const T*>(p) + i, n);
}
template <class T>
TUTTI_HD V<T> load_or_zero(const void* p, int64_t i, int n) {
  return p ? load<T>(p, i, n) : V<T>(T(0));
}
template <class T>
TUTTI_HD void store(void* p, int64_t i, int n, V<T> v) {
  if (n == kLanes<T>)
    v.store(static_cast<T*>(p) + i);
  else
    v.store(static_cast<T*>(p) + i, n);
}

// Calls body(i, n) for vectors of units.
template <class T, class Body>
TUTTI_HD void for_units(int64_t count, Body&& body) {
  for (int64_t i = 0; i < count; i += kLanes<T>)
    body(i, static_cast<int>(count - i < kLanes<T> ? count - i : kLanes<T>));
}

template <class T>
void lstm_forward(const CellRow& r) {
  for_units<T>(r.count, [&](int64_t at, int n) __attribute__((always_inline)) {
    V<T> i = sigmoid_of(load<T>(r.gates, at, n)), f = sigmoid_of(load<T>(r.gates, at + r.gate, n)),
         g = tanh_of(load<T>(r.gates, at + 2 * r.gate, n)), o = sigmoid_of(load<T>(r.gates, at + 3 * r.gate, n));
    V<T> c = f * load<T>(r.c_before, at, n) + i * g;
    store<T>(r.gates, at, n, i);
    store<T>(r.gates, at + r.gate, n, f);
    store<T>(r.gates, at + 2 * r.gate, n, g);
    store<T>(r.gates, at + 3 * r.gate, n, o);
    store<T>(r.c, at, n, c);
    store<T>(r.h, at, n, o * tanh_of(c));
  });
}

template <class T>
void gru_forward(const CellRow& row) {
  for_units<T>(row.count, [&](int64_t at, int n) __attribute__((always_inline)) {
    V<T> r = sigmoid_of(load<T>(row.gates, at, n)), z = sigmoid_of(load<T>(row.gates, at + row.gate, n));
    V<T> w = tanh_of(load<T>(row.gates, at + 2 * row.gate, n) + r * load<T>(row.gates, at + 3 * row.gate, n));
    store<T>(row.gates, at, n, r);
    store<T>(row.gates, at + row.gate, n, z);
    store<T>(row.gates, at + 2 * row.gate, n, w);
    store<T>(row.h, at, n, (T(1) - z) * w + z * load<T>(row.h_before, at, n));
  });
}

template <class T>
void simple_forward(const CellRow& r) {
  for_units<T>(r.count, [&](int64_t at, int n) __attribute__((always_inline)) {
    V<T> x = load<T>(r.gates, at, n);
    store<T>(r.h, at, n, r.cell == Cell::tanh ? tanh_of(x) : pointwise::max(x, V<T>(T(0))));
  });
}

template <class T>
void lstm_backward(const CellGradientRow& r) {
  for_units<T>(r.count, [&](int64_t at, int n) __attribute__((always_inline)) {
    V<T> i = load<T>(r.gates, at, n), f = load<T>(r.gates, at + r.gate, n), g = load<T>(r.gates, at + 2 * r.gate, n),
         o = load<T>(r.gates, at + 3 * r.gate, n), before = load<T>(r.c_before, at, n);
    V<T> dh = load<T>(r.h_carry, at, n) + load_or_zero<T>(r.h_grad, at, n), tc = tanh_of(load<T>(r.c, at, n));
    V<T> dc = load<T>(r.c_carry, at, n) + load_or_zero<T>(r.c_grad, at, n) + dh * o * (T(1) - tc * tc);
    store<T>(r.x_gates, at, n, dc * g * i * (T(1) - i));
    store<T>(r.x_gates, at + r.gate, n, dc * before * f * (T(1) - f));
    store<T>(r.x_gates, at + 2 * r.gate, n, dc * i * (T(1) - g * g));
    store<T>(r.x_gates, at + 3 * r.gate, n, dh * tc * o * (T(1) - o));
    store<T>(r.c_carry, at, n, dc * f);
    store<T>(r.h_carry, at, n, V<T>(T(0)));
  });
}

template <class T>
void gru_backward(const CellGradientRow& row) {
  for_units<T>(row.count, [&](int64_t at, int n) __attribute__((always_inline)) {
    V<T> r = load<T>(row.gates, at, n), z = load<T>(row.gates, at + row.gate, n),
         w = load<T>(row.gates, at + 2 * row.gate, n), part = load<T>(row.gates, at + 3 * row.gate, n);
    V<T> dh = load<T>(row.h_carry, at, n) + load_or_zero<T>(row.h_grad, at, n);
    V<T> dw = dh * (T(1) - z) * (T(1) - w * w), dr = dw * part * r * (T(1) - r);
    V<T> dz = dh * (load<T>(row.h_before, at, n) - w) * z * (T(1) - z);
    store<T>(row.x_gates, at, n, dr);
    store<T>(row.x_gates, at + row.gate, n, dz);
    store<T>(row.x_gates, at + 2 * row.gate, n, dw);
    store<T>(row.h_gates, at, n, dr);
    store<T>(row.h_gates, at + row.gate, n, dz);
    store<T>(row.h_gates, at + 2 * row.gate, n, dw * r);
    store<T>(row.h_carry, at, n, dh * z);
  });
}

template <class T>
void simple_backward(const CellGradientRow& r) {
  for_units<T>(r.count, [&](int64_t at, int n) __attribute__((always_inline)) {
    V<T> h = load<T>(r.h, at, n), dh = load<T>(r.h_carry, at, n) + load_or_zero<T>(r.h_grad, at, n);
    store<T>(r.x_gates, at, n, r.cell == Cell::tanh ? dh * (T(1) - h * h) : select(h > V<T>(T(0)), dh, V<T>(T(0))));
    store<T>(r.h_carry, at, n, V<T>(T(0)));
  });
}

template <class F>
void with_float(DType dtype, F&& f) {
  dtype == DType::f64 ? f(double()) : f(float());
}

}  // namespace

TUTTI_ISA_DEFINE(multiply_panel, void, (const Panel& p)) {
  with_float(p.dtype, [&]<class T>(T) { multiply_rows<T>(p, std::make_index_sequence<kRows>()); });
}

TUTTI_ISA_DEFINE(cell_forward, void, (const CellRow& r)) {
  with_float(r.dtype, [&]<class T>(T) {
    r.cell == Cell::lstm ? lstm_forward<T>(r) : r.cell == Cell::gru ? gru_forward<T>(r) : simple_forward<T>(r);
  });
}

TUTTI_ISA_DEFINE(cell_backward, void, (const CellGradientRow& r)) {
  with_float(r.dtype, [&]<class T>(T) {
    r.cell == Cell::lstm ? lstm_backward<T>(r) : r.cell == Cell::gru ? gru_backward<T>(r) : simple_backward<T>(r);
  });
}

}  // namespace tutti::recurrent
