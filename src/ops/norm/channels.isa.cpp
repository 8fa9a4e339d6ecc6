// Statistics and normalisation a channel: batch_norm, group_norm, instance_norm.
#include <type_traits>

#include "ops/norm/kernels.h"
#include "ops/norm/sums.h"

namespace tutti::normalization {
namespace {

// Where a unit of work lies: a channel of an outer, or (with the channels last) rows of all channels.
struct Unit {
  int64_t outer, channel, at, rows, sums;
};
Unit unit_of(const Channels& c, int64_t unit) {
  if (c.blocks) {
    int64_t blocks = c.channels / 16;
    return {unit / blocks, unit % blocks * 16, unit * c.inner * 16, c.inner, unit * 16};
  }
  if (!c.last) return {unit / c.channels, unit % c.channels, unit * c.inner, c.inner, unit};
  int64_t outer = unit / c.pieces(), piece = unit % c.pieces();
  return {outer, 0, (outer * c.inner + piece * c.rows()) * c.channels, c.elements(piece), unit * c.channels};
}

// Two sums over the rows of n ≤ N channels. values(row, p, q) sets p and q to a row's vectors.
template <class T, class Values>
TUTTI_HD void sum_columns(int64_t rows, Lanes<T>& first, Lanes<T>& second, Values&& values) {
  using V = Lanes<T>;
  V p0(0), p1(0), p2(0), p3(0), q0(0), q1(0), q2(0), q3(0), p, q;
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    values(r, p, q);
    p0 = p0 + p;
    q0 = q0 + q;
    values(r + 1, p, q);
    p1 = p1 + p;
    q1 = q1 + q;
    values(r + 2, p, q);
    p2 = p2 + p;
    q2 = q2 + q;
    values(r + 3, p, q);
    p3 = p3 + p;
    q3 = q3 + q;
  }
  for (; r < rows; ++r) {
    values(r, p, q);
    p0 = p0 + p;
    q0 = q0 + q;
  }
  first = (p0 + p1) + (p2 + p3);
  second = (q0 + q1) + (q2 + q3);
}

// Channels that are summed up at a time, as four vectors: whole rows are read from memory one after the other.
template <class T>
constexpr int kBlockOf = 4 * Lanes<T>::lanes;

// The same for a block of `count` channels; values(row, j, n, p, q) sets p and q to the j-th vector of a row, of n
// lanes.
template <class T, class Values>
TUTTI_HD void sum_block(int64_t rows, int count, Lanes<T> (&first)[4], Lanes<T> (&second)[4], Values&& values) {
  using V = Lanes<T>;
  constexpr int N = V::lanes;
  if (count < kBlockOf<T>) {
    for (int j = 0; j * N < count; ++j) {
      int n = count - j * N < N ? count - j * N : N;
      sum_columns<T>(rows, first[j], second[j],
                     [&](int64_t r, V& p, V& q) __attribute__((always_inline)) { values(r, j, n, p, q); });
    }
    return;
  }
  V p0(0), p1(0), p2(0), p3(0), q0(0), q1(0), q2(0), q3(0), p, q;
  for (int64_t r = 0; r < rows; ++r) {
    values(r, 0, N, p, q);
    p0 = p0 + p;
    q0 = q0 + q;
    values(r, 1, N, p, q);
    p1 = p1 + p;
    q1 = q1 + q;
    values(r, 2, N, p, q);
    p2 = p2 + p;
    q2 = q2 + q;
    values(r, 3, N, p, q);
    p3 = p3 + p;
    q3 = q3 + q;
  }
  V sums[] = {p0, p1, p2, p3}, others[] = {q0, q1, q2, q3};
  for (int j = 0; j < 4; ++j) {
    first[j] = sums[j];
    second[j] = others[j];
  }
}

template <class T>
TUTTI_HD Lanes<T> load(const T* p, int n) {
  using V = Lanes<T>;
  return n == V::lanes ? V::load(p) : V::load(p, n);
}

// Vectors of a block as f64.
template <class T>
void store_wide(double* to, Lanes<T> (&v)[4], int count) {
  T lane[kBlockOf<T>];
  for (int j = 0; j * Lanes<T>::lanes < count; ++j) v[j].store(lane + j * Lanes<T>::lanes);
  for (int i = 0; i < count; ++i) to[i] = static_cast<double>(lane[i]);
}

template <class T, class Body>
TUTTI_HD void for_each_block(int64_t channels, Body&& body) {
  for (int64_t i = 0; i < channels; i += kBlockOf<T>)
    body(i, static_cast<int>(channels - i < kBlockOf<T> ? channels - i : kBlockOf<T>));
}

// A piece's mean and squares by two passes as deviations() does: the piece stays in the cache.
template <class T>
void column_moments(const Channels& c, const Unit& u, const T* x, double* mean, double* squares) {
  using V = Lanes<T>;
  auto count = static_cast<double>(u.rows);
  for_each_block<T>(c.channels, [&](int64_t i, int channels) {
    const T* column = x + u.at + i;
    V near[4], unused[4], rest[4], square[4];
    sum_block<T>(u.rows, channels, near, unused,
                 [&](int64_t r, int j, int n, V& p, V& q) __attribute__((always_inline)) {
                   p = load(column + r * c.channels + j * V::lanes, n);
                   q = V(0);
                 });
    for (int j = 0; j * V::lanes < channels; ++j) near[j] = near[j] * V(static_cast<T>(1 / count));
    sum_block<T>(u.rows, channels, rest, square,
                 [&](int64_t r, int j, int n, V& p, V& q) __attribute__((always_inline)) {
                   p = load(column + r * c.channels + j * V::lanes, n) - near[j];
                   q = p * p;
                 });
    double centre[kBlockOf<T>], off[kBlockOf<T>], *m = mean + u.sums + i, *s = squares + u.sums + i;
    store_wide<T>(centre, near, channels);
    store_wide<T>(off, rest, channels);
    store_wide<T>(s, square, channels);
    for (int k = 0; k < channels; ++k) {
      m[k] = centre[k] + off[k] / count;
      s[k] -= off[k] * off[k] / count;
      if (s[k] < 0) s[k] = 0;  // NaN stays
    }
  });
}

// ---- Blocks of 16 channels

using Block = Vec<float, 16>;

// sum_row() for 16 channels at a time: a vector of them takes the place of each number there, and of each lane. `Sums`
// are taken at once; values(i, p) sets p to those of pixel i, and fill(p) to what sum_row() has in lanes behind the
// last.
template <int AtOnce, int Sums, class Values, class Fill>
TUTTI_HD void sum_pixels(int64_t count, double (&totals)[Sums][16], Values&& values, Fill&& fill) {
  constexpr int N = Lanes<float>::lanes, kWide = 4 * N;
  for (auto& total : totals)
    for (double& t : total) t = 0;
  Block sum[kWide][Sums];
  // Rows of pixels, a sum for each place in a row. Sums are in memory, so `AtOnce` rows are added on one visit to them.
  auto add_rows = [&]<int Rows>(std::integral_constant<int, Rows>, int64_t i) __attribute__((always_inline)) {
    for (int k = 0; k < kWide; ++k) {
      Block p[Sums], total[Sums];
      for (int s = 0; s < Sums; ++s) total[s] = sum[k][s];
      for (int r = 0; r < Rows; ++r) {
        values(i + r * kWide + k, p);
        for (int s = 0; s < Sums; ++s) total[s] = total[s] + p[s];
      }
      for (int s = 0; s < Sums; ++s) sum[k][s] = total[s];
    }
  };
  for (int64_t start = 0; start < count; start += kBlock) {
    int64_t end = count - start < kBlock ? count : start + kBlock, i = start;
    for (auto& one : sum)
      for (Block& b : one) b = Block(0);
    for (; i + AtOnce * kWide <= end; i += AtOnce * kWide) add_rows(std::integral_constant<int, AtOnce>(), i);
    for (; i + kWide <= end; i += kWide) add_rows(std::integral_constant<int, 1>(), i);
    for (; i < end; i += N)
      for (int k = 0; k < N; ++k) {
        Block p[Sums];
        if (i + k < end)
          values(i + k, p);
        else
          fill(p);
        for (int s = 0; s < Sums; ++s) sum[k][s] = sum[k][s] + p[s];
      }
    for (int s = 0; s < Sums; ++s) {
      Block lane[N];
      for (int k = 0; k < N; ++k) lane[k] = (sum[k][s] + sum[k + N][s]) + (sum[k + 2 * N][s] + sum[k + 3 * N][s]);
      for (int half = N / 2; half > 0; half /= 2)
        for (int k = 0; k < half; ++k) lane[k] = lane[k] + lane[k + half];
      float sums[16];
      lane[0].store(sums);
      for (int k = 0; k < 16; ++k) totals[s][k] += static_cast<double>(sums[k]);
    }
  }
}
// first_mean() and deviations().
void block_moments(const float* x, int64_t count, double* mean, double* squares) {
  auto n = static_cast<double>(count);
  double sum[1][16], rest[2][16];
  sum_pixels<4>(
      count, sum, [&](int64_t i, Block(&p)[1]) __attribute__((always_inline)) { p[0] = Block::load(x + i * 16); },
      [](Block(&p)[1]) { p[0] = Block(0); });
  float near[16];
  for (int k = 0; k < 16; ++k) near[k] = static_cast<float>(sum[0][k] / n);
  Block shift = Block::load(near);
  sum_pixels<4>(
      count, rest,
      [&](int64_t i, Block(&p)[2]) __attribute__((always_inline)) {
        p[0] = Block::load(x + i * 16) - shift;
        p[1] = p[0] * p[0];
      },
      [&](Block(&p)[2]) {
        p[0] = shift - shift;
        p[1] = p[0] * p[0];
      });
  for (int k = 0; k < 16; ++k) {
    mean[k] = static_cast<double>(near[k]) + rest[0][k] / n;
    squares[k] = rest[1][k] - rest[0][k] * rest[0][k] / n;
    if (squares[k] < 0) squares[k] = 0;  // NaN stays
  }
}

// relu() and its gradient, as the pointwise operator has them.
TUTTI_HD Block relu_of(Block x) { return select(x <= Block(0), Block(0), x); }
TUTTI_HD Block relu_gradient(Block g, Block x) { return select(x <= Block(0), Block(0), g); }

template <bool Relu>
void block_products(const float* g, const float* x, const float* mean, int64_t count, double* sum, double* product,
                    const float* relu, float* left) {
  Block shift = Block::load(mean);
  double totals[2][16];
  sum_pixels<Relu ? 1 : 2>(
      count, totals,
      [&](int64_t i, Block(&p)[2]) __attribute__((always_inline)) {
        // What is written may lie a multiple of 4096 bytes from what is read next, and processors would wait for it: so
        // all of a pixel is read before, and rows, which are that far from each other, are taken one by one.
        Block from = Block::load(x + i * 16);
        p[0] = Block::load(g + i * 16);
        if constexpr (Relu) {
          p[0] = relu_gradient(p[0], Block::load(relu + i * 16));
          p[0].store(left + i * 16);
        }
        p[1] = p[0] * (from - shift);
      },
      [&](Block(&p)[2]) {
        p[0] = Block(0);
        p[1] = p[0] * (shift - shift);
      });
  for (int k = 0; k < 16; ++k) {
    sum[k] = totals[0][k];
    product[k] = totals[1][k];
  }
}

template <bool Adds, bool Relu>
void block_apply(const float* x, const float* mean, const float* scale, const float* shift, const float* added,
                 int64_t count, float* y) {
  Block m = Block::load(mean), a = Block::load(scale), b = Block::load(shift);
  for (int64_t i = 0; i < count * 16; i += 16) {
    Block v = (Block::load(x + i) - m) * a + b;
    if constexpr (Adds) v = Block::load(added + i) + v;
    if constexpr (Relu) v = relu_of(v);
    v.store(y + i);
  }
}

void block_gradient(const float* g, const float* x, const float* mean, const float* of_g, const float* of_x,
                    const float* shift, int64_t count, float* y) {
  Block m = Block::load(mean), p = Block::load(of_g), q = Block::load(of_x), s = Block::load(shift);
  for (int64_t i = 0; i < count * 16; i += 16) (Block::load(g + i) * p + (Block::load(x + i) - m) * q + s).store(y + i);
}

// ---- All of them

template <class T>
void moments(const Channels& c, const T* x, double* mean, double* squares, int64_t begin, int64_t end) {
  for (int64_t unit = begin; unit < end; ++unit) {
    Unit u = unit_of(c, unit);
    if constexpr (sizeof(T) == 4)
      if (c.blocks) {
        block_moments(x + u.at, c.inner, mean + u.sums, squares + u.sums);
        continue;
      }
    if (c.last)
      column_moments(c, u, x, mean, squares);
    else
      deviations(x + u.at, c.inner, first_mean(x + u.at, c.inner), mean[u.sums], squares[u.sums]);
  }
}

template <class T>
void products(const Channels& c, const T* g, const T* x, const T* mean, double* sum, double* product, const T* relu,
              T* left, int64_t begin, int64_t end) {
  using V = Lanes<T>;
  for (int64_t unit = begin; unit < end; ++unit) {
    Unit u = unit_of(c, unit);
    const T *from_g = g + u.at, *from_x = x + u.at, *table = mean + u.outer * c.table + u.channel;
    if constexpr (sizeof(T) == 4)
      if (c.blocks) {
        auto run = relu ? block_products<true> : block_products<false>;
        run(from_g, from_x, table, c.inner, sum + u.sums, product + u.sums, relu ? relu + u.at : nullptr,
            relu ? left + u.at : nullptr);
        continue;
      }
    if (!c.last) {
      V shift(*table);
      sum_row<T>(c.inner, sum[u.sums], product[u.sums],
                 [&](int64_t i, int n, V& p, V& q) __attribute__((always_inline)) {
                   p = load_filled<V>(from_g + i, n, 0);
                   q = p * (load_filled<V>(from_x + i, n, *table) - shift);
                 });
      continue;
    }
    for_each_block<T>(c.channels, [&](int64_t i, int channels) {
      V shift[4], s[4], t[4];
      for (int j = 0; j * V::lanes < channels; ++j)
        shift[j] =
            load(table + i + j * V::lanes, channels - j * V::lanes < V::lanes ? channels - j * V::lanes : V::lanes);
      sum_block<T>(u.rows, channels, s, t, [&](int64_t r, int j, int n, V& p, V& q) __attribute__((always_inline)) {
        int64_t at = i + j * V::lanes + r * c.channels;
        p = load(from_g + at, n);
        q = p * (load(from_x + at, n) - shift[j]);
      });
      store_wide<T>(sum + u.sums + i, s, channels);
      store_wide<T>(product + u.sums + i, t, channels);
    });
  }
}

template <class T>
void apply(const Channels& c, const T* x, const T* mean, const T* scale, const T* shift, const T* added, bool relu,
           T* y, int64_t begin, int64_t end) {
  using V = Lanes<T>;
  for (int64_t unit = begin; unit < end; ++unit) {
    Unit u = unit_of(c, unit);
    int64_t table = u.outer * c.table + u.channel;
    if constexpr (sizeof(T) == 4)
      if (c.blocks) {
        auto run = added ? (relu ? block_apply<true, true> : block_apply<true, false>)
                         : (relu ? block_apply<false, true> : block_apply<false, false>);
        run(x + u.at, mean + table, scale + table, shift + table, added ? added + u.at : nullptr, c.inner, y + u.at);
        continue;
      }
    if (!c.last) {
      V m(mean[table]), a(scale[table]), b(shift[table]);
      for_each_vector<T>(c.inner, [&](int64_t i, int n) __attribute__((always_inline)) {
        store_first(y + u.at + i, n, (load(x + u.at + i, n) - m) * a + b);
      });
      continue;
    }
    for (int64_t r = 0; r < u.rows; ++r) {
      int64_t row = u.at + r * c.channels;
      for_each_vector<T>(c.channels, [&](int64_t i, int n) __attribute__((always_inline)) {
        int64_t k = table + i;
        store_first(y + row + i, n,
                    (load(x + row + i, n) - load(mean + k, n)) * load(scale + k, n) + load(shift + k, n));
      });
    }
  }
}

template <class T>
void gradient(const Channels& c, const T* g, const T* x, const T* mean, const T* of_g, const T* of_x, const T* shift,
              T* y, int64_t begin, int64_t end) {
  using V = Lanes<T>;
  for (int64_t unit = begin; unit < end; ++unit) {
    Unit u = unit_of(c, unit);
    int64_t table = u.outer * c.table + u.channel;
    if constexpr (sizeof(T) == 4)
      if (c.blocks) {
        block_gradient(g + u.at, x + u.at, mean + table, of_g + table, of_x + table, shift + table, c.inner, y + u.at);
        continue;
      }
    if (!c.last) {
      V m(mean[table]), p(of_g[table]), q(of_x[table]), s(shift[table]);
      for_each_vector<T>(c.inner, [&](int64_t i, int n) __attribute__((always_inline)) {
        store_first(y + u.at + i, n, load(g + u.at + i, n) * p + (load(x + u.at + i, n) - m) * q + s);
      });
      continue;
    }
    for (int64_t r = 0; r < u.rows; ++r) {
      int64_t row = u.at + r * c.channels;
      for_each_vector<T>(c.channels, [&](int64_t i, int n) __attribute__((always_inline)) {
        int64_t k = table + i;
        store_first(y + row + i, n,
                    load(g + row + i, n) * load(of_g + k, n) +
                        (load(x + row + i, n) - load(mean + k, n)) * load(of_x + k, n) + load(shift + k, n));
      });
    }
  }
}

template <class T>
const T* in(const void* p) {
  return static_cast<const T*>(p);
}
template <class T>
T* to(void* p) {
  return static_cast<T*>(p);
}

}  // namespace
}  // namespace tutti::normalization

namespace tutti {

using namespace normalization;

TUTTI_ISA_DEFINE(channel_moments, void,
                 (DType dtype, const normalization::Channels& c, const void* x, double* mean, double* squares,
                  int64_t begin, int64_t end)) {
  auto run = [&]<class T>(T) { moments(c, in<T>(x), mean, squares, begin, end); };
  dtype == DType::f64 ? run(double()) : run(float());
}

TUTTI_ISA_DEFINE(channel_products, void,
                 (DType dtype, const normalization::Channels& c, const void* g, const void* x, const void* mean,
                  double* sum, double* product, const void* relu, void* left, int64_t begin, int64_t end)) {
  auto run = [&]<class T>(T) {
    products(c, in<T>(g), in<T>(x), in<T>(mean), sum, product, in<T>(relu), to<T>(left), begin, end);
  };
  dtype == DType::f64 ? run(double()) : run(float());
}

TUTTI_ISA_DEFINE(channel_apply, void,
                 (DType dtype, const normalization::Channels& c, const void* x, const void* mean, const void* scale,
                  const void* shift, const void* added, bool relu, void* y, int64_t begin, int64_t end)) {
  auto run = [&]<class T>(T) {
    apply(c, in<T>(x), in<T>(mean), in<T>(scale), in<T>(shift), in<T>(added), relu, to<T>(y), begin, end);
  };
  dtype == DType::f64 ? run(double()) : run(float());
}

TUTTI_ISA_DEFINE(channel_gradient, void,
                 (DType dtype, const normalization::Channels& c, const void* g, const void* x, const void* mean,
                  const void* of_g, const void* of_x, const void* shift, void* y, int64_t begin, int64_t end)) {
  auto run = [&]<class T>(T) {
    gradient(c, in<T>(g), in<T>(x), in<T>(mean), in<T>(of_g), in<T>(of_x), in<T>(shift), to<T>(y), begin, end);
  };
  dtype == DType::f64 ? run(double()) : run(float());
}

}  // namespace tutti
