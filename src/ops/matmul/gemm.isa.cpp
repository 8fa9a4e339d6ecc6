// The matrix product by tiles. Every element of c is the same chain of operations on every instruction set: fused
// multiply-adds over k in blocks that depend on depth alone, each from zero, the blocks added in order. The size of
// tiles follows the registers and changes nothing of that.
//
// Complex matrices are multiplied as real ones: c seen as [rows, 2·columns] numbers is a, seen as [rows, 2·depth],
// times the [2·depth, 2·columns] matrix in which every number x + iy of b is the block {{x, y}, {-y, x}}. That takes no
// more multiplications than complex arithmetic, and b is copied into another order anyway.
#include "base/memory.h"
#include "ops/matmul/gemm_kernel.h"
#include "tensor/convert.h"
#include "tutti/pointwise/vec.h"

namespace tutti {
namespace {

using products::Matrix;
using products::Product;

// A tile of c is kRows × kVectors registers: its sums, a row of b's vectors and a number of a fill the register file.
constexpr int kRegisterBytes = pointwise::detail::register_bytes;
constexpr int kRows = kRegisterBytes == 64 ? 8 : kRegisterBytes == 32 ? 4 : 2;
constexpr int kVectors = 3;
// Of a tile that transposes b on the way, which takes registers, too.
constexpr int kAcross = kRegisterBytes == 64 ? 2 : 1;
constexpr int64_t kDepth = 384;             // the largest block of k; even, so that no complex number is cut
constexpr int64_t kBlockBytes = 384 << 10;  // of b, copied: stays in the second-level cache
constexpr int64_t kFewRows = 4 * kRows;     // up to here b is used too seldom to pay for a copy
constexpr int64_t kSomeRows = 32 * kRows;   // and up to here where its rows are near
constexpr int64_t kNear = 4096;             // bytes; what lies further apart meets in the same places of the caches
constexpr int64_t kGroup = 4;               // tiles of a copied together
constexpr int64_t kAhead = 4;               // rows of b prefetched while one is copied

template <class T>
constexpr int kLanes = kRegisterBytes / static_cast<int>(sizeof(T));
template <class T>
using V = pointwise::Vec<T, kLanes<T>>;
template <class T>
constexpr int kColumns = kVectors * kLanes<T>;

TUTTI_HD int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T>
TUTTI_HD V<T> multiply_add(V<T> a, V<T> b, V<T> c) {
  if constexpr (std::is_floating_point_v<T>)
    return fma(a, b, c);
  else
    return a * b + c;
}

// ---- Tiles

template <class T>
struct Tile {
  int64_t depth;
  const T* a;
  int64_t a_row, a_column;
  const T* b;
  int64_t b_row;
  T* c;
  int64_t c_row;
  const T* d;  // c = beta·d + alpha·a@b
  int64_t d_row;
  int64_t columns;  // that may be written: all, or some of the last vector's
  T alpha, beta;
  // Rows of b that the next block will copy are fetched while this tile is computed: one every so many steps (0: none).
  const T* ahead;
  int64_t ahead_row, ahead_every;
};

template <class T, int Rows, int Vectors>
TUTTI_HD void put_tile(const Tile<T>& t, const V<T> (&sum)[Rows][Vectors]) {
  constexpr int lanes = kLanes<T>;
  // Everything is taken out of t before anything is written: for all the compiler knows, c may point into t, and
  // reading its numbers again between stores costs a twentieth of a tile of 64 steps.
  T* c = t.c;
  const T* d = t.d;
  const int64_t c_row = t.c_row, d_row = t.d_row;
  const V<T> alpha(t.alpha), beta(t.beta);
  const bool reads = t.beta != T(0), scales = t.beta != T(1);
  auto last = static_cast<int>(t.columns - (Vectors - 1) * lanes);
  if (!reads && last == lanes) {  // most tiles: stores without branches between them
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i, c += c_row)
#pragma GCC unroll 3
      for (int v = 0; v < Vectors; ++v) (alpha * sum[i][v]).store(c + v * lanes);
    return;
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i, c += c_row, d += d_row) {
#pragma GCC unroll 3
    for (int v = 0; v < Vectors; ++v) {
      int count = v + 1 < Vectors ? lanes : last;
      V<T> x = sum[i][v];
      if (reads) {
        V<T> old = count == lanes ? V<T>::load(d + v * lanes) : V<T>::load(d + v * lanes, count);
        x = multiply_add<T>(alpha, x, scales ? beta * old : old);
      } else {
        x = alpha * x;
      }
      if (count == lanes)
        x.store(c + v * lanes);
      else
        x.store(c + v * lanes, count);
    }
  }
}

template <class T, int Rows, int Vectors>
void multiply_tile(const Tile<T>& t) {
  constexpr int lanes = kLanes<T>;
  V<T> sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < Vectors; ++v) sum[i][v] = V<T>(T(0));
  // What is read at the end is fetched now; what is only written can wait in the machine's queue of stores.
  if (t.beta != T(0))
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 3
      for (int v = 0; v < Vectors; ++v) __builtin_prefetch(t.d + i * t.d_row + v * lanes);
  const T *a = t.a, *b = t.b;
  const int64_t a_row = t.a_row, a_column = t.a_column, b_row = t.b_row;
  const T* ahead = t.ahead;
  int64_t wait = t.ahead_every;
  for (int64_t k = t.depth; k > 0; --k) {
    if (--wait == 0) {
#pragma GCC unroll 3
      for (int v = 0; v < Vectors; ++v) __builtin_prefetch(ahead + v * lanes, 0, 2);
      ahead += t.ahead_row;
      wait = t.ahead_every;
    }
    V<T> bv[Vectors];
#pragma GCC unroll 3
    for (int v = 0; v < Vectors; ++v) bv[v] = V<T>::load(b + v * lanes);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      V<T> av(a[i * a_row]);
#pragma GCC unroll 3
      for (int v = 0; v < Vectors; ++v) sum[i][v] = multiply_add<T>(av, bv[v], sum[i][v]);
    }
    a += a_column;
    b += b_row;
  }
  put_tile<T, Rows, Vectors>(t, sum);
}

// Numbers in 16 bytes: instructions that move numbers no further than that are the cheap ones.
template <class T>
constexpr int kPiece = 16 / static_cast<int>(sizeof(T));

// A register of pieces, each of a row kPiece further down.
template <class T, int N>
TUTTI_HD pointwise::detail::Register<T, N> load_pieces(const T* from, int64_t row) {
  if constexpr (N == kPiece<T>)
    return pointwise::detail::load<T, N>(from);
  else
    return pointwise::detail::join<T, N>(load_pieces<T, N / 2>(from, row),
                                         load_pieces<T, N / 2>(from + N / 2 * row, row));
}
// Piece by piece: units of x and y in turn, of their first halves or their second ones.
template <class T, int Unit, bool Second, size_t... I>
TUTTI_HD V<T> interleave(V<T> x, V<T> y, std::index_sequence<I...>) {
  constexpr size_t piece = kPiece<T>, half = Second ? piece / 2 : 0;
  return V<T>::from_register(
      __builtin_shufflevector(x.v, y.v,
                              static_cast<int>(I / piece * piece + half + I % piece / (2 * Unit) * Unit + I % Unit +
                                               (I / Unit % 2 ? kLanes<T> : 0))...));
}
template <class T, int Unit>
TUTTI_HD void interleave(V<T>& x, V<T>& y) {
  constexpr auto all = std::make_index_sequence<kLanes<T>>();
  V<T> first = interleave<T, Unit, false>(x, y, all);
  y = interleave<T, Unit, true>(x, y, all);
  x = first;
}
// kPiece columns of kLanes rows, transposed. Loads bring the pieces to their places; what is left is to transpose each
// with its neighbours.
template <class T>
TUTTI_HD void load_transposed(const T* from, int64_t row, V<T> (&x)[kPiece<T>]) {
#pragma GCC unroll 4
  for (int i = 0; i < kPiece<T>; ++i) x[i] = V<T>::from_register(load_pieces<T, kLanes<T>>(from + i * row, row));
  interleave<T, 1>(x[0], x[1]);
  if constexpr (kPiece<T> == 4) {
    interleave<T, 1>(x[2], x[3]);
    interleave<T, 2>(x[0], x[2]);
    interleave<T, 2>(x[1], x[3]);
    std::swap(x[1], x[2]);
  }
}

// A tile where columns of b lie in memory as rows, t.b_row apart: transposed on the way, since to copy them first costs
// more, unless there are other tiles to use the copy. depth is a multiple of kPiece, and t.columns fill the vectors.
template <class T, int Rows, int Vectors>
void multiply_tile_across(const Tile<T>& t) {
  constexpr int lanes = kLanes<T>, piece = kPiece<T>;
  V<T> sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) sum[i][v] = V<T>(T(0));
  const T *a = t.a, *b = t.b;
  const int64_t a_row = t.a_row, a_column = t.a_column, b_column = t.b_row;
  for (int64_t k = t.depth; k > 0; k -= piece) {
    V<T> bv[Vectors][piece];
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) load_transposed<T>(b + v * lanes * b_column, b_column, bv[v]);
#pragma GCC unroll 4
    for (int q = 0; q < piece; ++q, a += a_column)
#pragma GCC unroll 8
      for (int i = 0; i < Rows; ++i) {
        V<T> av(a[i * a_row]);
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) sum[i][v] = multiply_add<T>(av, bv[v][q], sum[i][v]);
      }
    b += piece;
  }
  put_tile<T, Rows, Vectors>(t, sum);
}

template <class T>
using TileFunction = void (*)(const Tile<T>&);

template <class T, size_t... I>
TUTTI_HD TileFunction<T> tile_function(int64_t rows, int64_t vectors, std::index_sequence<I...>) {
  static constexpr TileFunction<T> table[] = {&multiply_tile<T, I / kVectors + 1, I % kVectors + 1>...};
  return table[(rows - 1) * kVectors + vectors - 1];
}

template <class T, size_t... I>
TUTTI_HD TileFunction<T> across_function(int64_t rows, int64_t vectors, std::index_sequence<I...>) {
  static constexpr TileFunction<T> table[] = {&multiply_tile_across<T, I / kAcross + 1, I % kAcross + 1>...};
  return table[(rows - 1) * kAcross + vectors - 1];
}

// ---- Copying b into slivers: `columns` numbers of each row next to each other, padded with zeros to `width`.

// A square of kLanes × kLanes: row i of the source becomes column i. A function of its own, or the strides do not stay
// in registers.
template <class T>
__attribute__((noinline)) void transpose_square(const T* from, int64_t from_row, T* to, int64_t to_row) {
  constexpr int piece = kPiece<T>;
  for (int column = 0; column < kLanes<T>; column += piece, from += piece, to += piece * to_row) {
    V<T> x[piece];
    load_transposed<T>(from, from_row, x);
#pragma GCC unroll 4
    for (int i = 0; i < piece; ++i) x[i].store(to + i * to_row);
  }
}

template <class T>
void pack_transposed(const T* b, int64_t b_column, int64_t depth, int64_t columns, int64_t width, T* to) {
  constexpr int lanes = kLanes<T>;
  int64_t whole_k = depth / lanes * lanes, whole_j = columns / lanes * lanes;
  for (int64_t j = 0; j < whole_j; j += lanes)
    for (int64_t k = 0; k < whole_k; k += lanes)
      transpose_square<T>(b + j * b_column + k, b_column, to + k * width + j, width);
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t j = k < whole_k ? whole_j : 0; j < width; ++j)
      to[k * width + j] = j < columns ? b[j * b_column + k] : T(0);
}

template <class T>
void pack_any(const T* b, int64_t b_row, int64_t b_column, int64_t depth, int64_t columns, int64_t width, T* to) {
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t j = 0; j < width; ++j) to[k * width + j] = j < columns ? b[k * b_row + j * b_column] : T(0);
}

// See the top of the file. depth, columns and width count real numbers, b's strides complex ones.
template <class T>
void pack_complex(const T* b, int64_t b_row, int64_t b_column, int64_t depth, int64_t columns, int64_t width, T* to) {
  for (int64_t k = 0; k < depth; k += 2, b += 2 * b_row, to += 2 * width) {
    for (int64_t j = 0; j < columns; j += 2) {
      T re = b[j * b_column], im = b[j * b_column + 1];
      to[j] = re;
      to[j + 1] = im;
      to[width + j] = -im;
      to[width + j + 1] = re;
    }
    for (int64_t j = columns; j < width; ++j) to[j] = to[width + j] = T(0);
  }
}

// ---- The loops around tiles. Rows, columns and depth count real numbers from here on.

template <class T>
class Multiplication {
 public:
  explicit Multiplication(const Product& p)
      : p_(p),
        parts_(is_complex(p.dtype) ? 2 : 1),
        element_(static_cast<int64_t>(size_of(p.dtype))),
        tiles_((p.rows + kRows - 1) / kRows),
        converts_(p.dtype != products::compute_dtype(p.dtype)),
        few_rows_(p.rows <= kFewRows || (p.rows <= kSomeRows && near(p.b.row))),
        a_in_place_(!converts_ &&
                    (p.a.column == 1 || (parts_ == 1 && p.a.row == 1 && near(p.a.column) && apart(p.a.column)))),
        b_by_rows_(!converts_ && p.b.column == 1 && parts_ == 1) {
    if (converts_) convert_ = converter(products::compute_dtype(p.dtype), p.dtype);
  }

  void run() {
    int64_t columns = p_.columns * parts_, depth = p_.depth * parts_;
    // Blocks of k of even size. They are part of the result: see the top of the file.
    int64_t blocks = (depth + kDepth - 1) / kDepth, step = ((depth + blocks - 1) / blocks + 1) / 2 * 2;
    // Where a is copied too, and again for each block, fewer and wider ones are better.
    int64_t widest = (a_in_place_ ? kBlockBytes : 2 * kBlockBytes) / (step * static_cast<int64_t>(sizeof(T))) /
                     kColumns<T> * kColumns<T>;
    // Blocks of about the same width: a narrow one at the end would have all of a copied for little.
    int64_t shares = (columns + widest - 1) / widest;
    widest = smaller(widest, ((columns + shares - 1) / shares + kColumns<T> - 1) / kColumns<T> * kColumns<T>);
    across_ = std::is_floating_point_v<T> && tiles_ == 1 && a_in_place_ && parts_ == 1 && p_.b.row == 1 &&
              step % kPiece<T> == 0 && depth % kPiece<T> == 0 && columns % kLanes<T> == 0;
    bool copies = !across_ && !(b_by_rows_ && few_rows_ && columns % kLanes<T> == 0);
    a_tile_ = kRows * smaller(step, depth);
    int64_t a_count = a_in_place_ ? 0 : smaller(kGroup, tiles_) * a_tile_;
    Workspace workspace(a_count + (copies ? smaller(widest, padded(columns)) * smaller(step, depth) : 0));
    a_copy_ = workspace.data;
    packed_ = workspace.data + a_count;
    for (int64_t j = 0; j < columns; j += widest)
      for (int64_t k = 0; k < depth; k += step) {
        bool last_k = k + step >= depth, last = last_k && j + widest >= columns;
        next_ =
            b_by_rows_ && !few_rows_ && !last ? at(p_.b, last_k ? 0 : k + step, last_k ? j + widest : j).data : nullptr;
        block(j, smaller(widest, columns - j), k, smaller(step, depth - k));
      }
  }

 private:
  // Memory for copies; little of it is part of the object.
  struct Workspace {
    alignas(64) std::byte local[16 << 10];
    size_t bytes;
    T* data;
    explicit Workspace(int64_t count) : bytes(static_cast<size_t>(count) * sizeof(T)) {
      data = static_cast<T*>(bytes <= sizeof(local) ? local : memory::allocate(bytes));
    }
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;
    ~Workspace() {
      if (bytes > sizeof(local)) memory::release(data, bytes);
    }
  };

  bool near(int64_t stride) const { return stride * element_ <= kNear && stride * element_ >= -kNear; }
  // One number of each column is read: with such steps all of them would meet in one place of the first cache.
  bool apart(int64_t stride) const { return stride * element_ % kNear != 0; }
  static int64_t padded(int64_t columns) { return (columns + kLanes<T> - 1) / kLanes<T> * kLanes<T>; }

  // How many columns the sliver at s takes of `columns`: three vectors, but at the end two and two rather than three
  // and one.
  static int64_t sliver(int64_t s, int64_t columns) {
    int64_t left = columns - s;
    return smaller(left, left > 3 * kLanes<T> && left <= 4 * kLanes<T> ? 2 * kLanes<T> : kColumns<T>);
  }
  // Rows of tile r: full tiles, but the last two share what is left, since low ones use the machine badly.
  std::pair<int64_t, int64_t> tile_rows(int64_t r) const {
    if (r < tiles_ - 2) return {kRows * r, kRows};
    int64_t start = kRows * (tiles_ > 2 ? tiles_ - 2 : 0), left = p_.rows - start,
            half = tiles_ > 1 ? (left + 1) / 2 : left;
    return r == tiles_ - 1 && tiles_ > 1 ? std::pair{start + half, left - half} : std::pair{start, half};
  }

  // The part of m from element (i, j) on.
  Matrix at(const Matrix& m, int64_t i, int64_t j) const {
    return {static_cast<const char*>(m.data) + (i * m.row + j * m.column) * element_, m.row, m.column};
  }

  // Copies whole slivers row by row, so that b is read as it lies in memory.
  void pack_b_rows(int64_t j, int64_t whole, int64_t columns, int64_t k, int64_t depth) {
    const auto* from = static_cast<const T*>(at(p_.b, k, j).data);
    for (int64_t q = 0; q < depth; ++q, from += p_.b.row)
      for (int64_t s = 0, width; s < columns; s += width) {
        width = sliver(s, columns);
        if (s + width > whole) break;
        T* to = packed_ + s * depth + q * width;
        for (int64_t v = 0; v < width; v += kLanes<T>) {
          __builtin_prefetch(from + kAhead * p_.b.row + s + v);
          V<T>::load(from + s + v).store(to + v);
        }
      }
  }

  void pack_b(int64_t j, int64_t columns, int64_t k, int64_t depth, T* to) {
    int64_t width = padded(columns);
    const Matrix b = at(p_.b, k / parts_, j / parts_);
    const auto* from = static_cast<const T*>(b.data);
    if (parts_ == 2) return pack_complex<T>(from, b.row, b.column, depth, columns, width, to);
    if (!converts_ && b.row == 1) return pack_transposed<T>(from, b.column, depth, columns, width, to);
    if (!converts_) return pack_any<T>(from, b.row, b.column, depth, columns, width, to);
    if (b.row == 1) {
      alignas(64) T staged[kColumns<T> * kDepth];
      for (int64_t c = 0; c < columns; ++c) convert_(staged + c * kDepth, 1, at(b, 0, c).data, 1, depth);
      return pack_transposed<T>(staged, kDepth, depth, columns, width, to);
    }
    for (int64_t q = 0; q < depth; ++q, to += width) {
      convert_(to, 1, at(b, q, 0).data, b.column, columns);
      for (int64_t c = columns; c < width; ++c) to[c] = T(0);
    }
  }

  // Copies rows × depth numbers of a, the rows next to each other.
  void pack_a(const Matrix& a, int64_t rows, int64_t depth, T* to) const {
    const auto* from = static_cast<const T*>(a.data);
    if (converts_ && a.column == 1) {
      alignas(64) T line[kDepth];
      for (int64_t r = 0; r < rows; ++r) {
        convert_(line, 1, at(a, r, 0).data, 1, depth);
        for (int64_t c = 0; c < depth; ++c) to[c * kRows + r] = line[c];
      }
    } else if (converts_) {
      for (int64_t c = 0; c < depth; ++c) convert_(to + c * kRows, 1, at(a, 0, c).data, a.row, rows);
    } else if (parts_ == 2) {
      for (int64_t c = 0; c < depth; ++c)
        for (int64_t r = 0; r < rows; ++r) to[c * kRows + r] = from[2 * (r * a.row + c / 2 * a.column) + c % 2];
    } else if (a.row == 1 && rows == kRows) {
      for (int64_t c = 0; c < depth; ++c) std::memcpy(to + c * kRows, from + c * a.column, kRows * sizeof(T));
    } else {
      for (int64_t c = 0; c < depth; ++c)
        for (int64_t r = 0; r < rows; ++r) to[c * kRows + r] = from[r * a.row + c * a.column];
    }
  }
  // Tiles first, first + 1, ... of a: where a is transposed, full tiles together, so that the cache lines and pages
  // that hold a column's numbers are visited once.
  void pack_group(int64_t first, int64_t k, int64_t depth, T* to) const {
    int64_t full = p_.rows % kRows == 0 ? tiles_ : tiles_ - 2;  // tiles of kRows rows
    if (!converts_ && parts_ == 1 && p_.a.row == 1 && first + kGroup <= full) {
      const auto* from = static_cast<const T*>(at(p_.a, kRows * first, k).data);
      for (int64_t c = 0; c < depth; ++c, from += p_.a.column)
        for (int64_t g = 0; g < kGroup; ++g) {
          // Columns are far apart, which the machine does not foresee.
          if (g * kRows * static_cast<int64_t>(sizeof(T)) % 64 == 0)
            __builtin_prefetch(from + 4 * kAhead * p_.a.column + g * kRows, 0, 2);
          std::memcpy(to + g * a_tile_ + c * kRows, from + g * kRows, kRows * sizeof(T));
        }
      return;
    }
    for (int64_t r = first; r < smaller(first + kGroup, tiles_); ++r, to += a_tile_) {
      auto [i, rows] = tile_rows(r);
      pack_a(at(p_.a, i, k / parts_), rows, depth, to);
    }
  }

  // `columns` of c from j on and `depth` terms of the sum from k on.
  void block(int64_t j, int64_t columns, int64_t k, int64_t depth) {
    int64_t whole = b_by_rows_ ? columns / kLanes<T> * kLanes<T> : 0;
    if (whole && !few_rows_) pack_b_rows(j, whole, columns, k, depth);
    for (int64_t s = 0, width; s < columns && !across_; s += width) {
      width = sliver(s, columns);
      if (s + width > whole) pack_b(j + s, width, k, depth, packed_ + s * depth);
    }
    for (int64_t r = 0; r < tiles_; ++r) {
      auto [i, rows] = tile_rows(r);
      Tile<T> t{.depth = depth,
                .a = a_copy_ + r % kGroup * a_tile_,
                .a_row = 1,
                .a_column = kRows,
                .b = nullptr,
                .b_row = 0,
                .c = static_cast<T*>(p_.c) + i * p_.c_row * parts_ + j,
                .c_row = p_.c_row * parts_,
                .d = nullptr,
                .d_row = 0,
                .columns = 0,
                .alpha = factor(p_.alpha),
                .beta = k == 0 ? factor(p_.beta) : T(1),
                .ahead = static_cast<const T*>(p_.b.data),
                .ahead_row = 0,
                .ahead_every = 0};
      t.d = k == 0 ? static_cast<const T*>(p_.d) + i * p_.d_row * parts_ + j : t.c;
      t.d_row = k == 0 ? p_.d_row * parts_ : t.c_row;
      if (a_in_place_) {
        t.a = static_cast<const T*>(at(p_.a, i, k / parts_).data);
        t.a_row = p_.a.row * parts_;
        t.a_column = p_.a.column;  // which is 1 for complex numbers, whose parts lie side by side
      } else if (r % kGroup == 0) {
        pack_group(r, k, depth, a_copy_);
      }
      if (next_) {  // each row of tiles fetches its share of the next block's rows
        int64_t share = (depth + tiles_ - 1) / tiles_;
        t.ahead = static_cast<const T*>(next_) + r * share * p_.b.row;
        t.ahead_row = p_.b.row;
        t.ahead_every = r * share < depth ? depth / share : 0;
      }
      if (across_)
        row_across(t, rows, j, columns, k);
      else
        row_of_tiles(t, rows, j, columns, k, few_rows_ ? whole : 0);
    }
  }

  // Columns below `in_place` are read where b has them, the others from the copies.
  void row_of_tiles(Tile<T>& t, int64_t rows, int64_t j, int64_t columns, int64_t k, int64_t in_place) const {
    for (int64_t s = 0; s < columns; s += t.columns, t.c += t.columns, t.d += t.columns, t.ahead += t.columns) {
      t.columns = sliver(s, columns);
      int64_t vectors = (t.columns + kLanes<T> - 1) / kLanes<T>;
      bool direct = s + t.columns <= in_place;
      t.b = direct ? static_cast<const T*>(at(p_.b, k, j + s).data) : packed_ + s * t.depth;
      t.b_row = direct ? p_.b.row : vectors * kLanes<T>;
      tile_function<T>(rows, vectors, std::make_index_sequence<kRows * kVectors>())(t);
    }
  }

  void row_across(Tile<T>& t, int64_t rows, int64_t j, int64_t columns, int64_t k) const {
    if constexpr (std::is_floating_point_v<T>)
      for (int64_t s = 0; s < columns; s += t.columns, t.c += t.columns, t.d += t.columns) {
        t.columns = smaller(kAcross * kLanes<T>, columns - s);
        t.b = static_cast<const T*>(at(p_.b, k, j + s).data);
        t.b_row = p_.b.column;
        across_function<T>(rows, t.columns / kLanes<T>, std::make_index_sequence<kRows * kAcross>())(t);
      }
  }

  static T factor(double x) {
    if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(x);
    else
      return static_cast<T>(static_cast<int64_t>(x));
  }

  const Product& p_;
  const int64_t parts_;    // real numbers in an element
  const int64_t element_;  // bytes
  const int64_t tiles_;    // over rows
  const bool converts_, few_rows_, a_in_place_;
  const bool b_by_rows_;  // b's rows can be read as vectors
  bool across_ = false;   // b is not copied: tiles transpose it
  Convert convert_ = nullptr;
  int64_t a_tile_ = 0;  // numbers in a copied tile of a
  T* a_copy_ = nullptr;
  T* packed_ = nullptr;         // b
  const void* next_ = nullptr;  // what of b the next block copies
};

}  // namespace

TUTTI_ISA_DEFINE(multiply_tiles, void, (const Product& p)) {
  switch (products::compute_dtype(p.dtype)) {
    case DType::f32:
    case DType::c64:
      return Multiplication<float>(p).run();
    case DType::f64:
    case DType::c128:
      return Multiplication<double>(p).run();
    case DType::i32:
      return Multiplication<int32_t>(p).run();
    default:
      return Multiplication<int64_t>(p).run();
  }
}

}  // namespace tutti
