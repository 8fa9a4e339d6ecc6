// Splits products into pieces for threads.
//
// Note [Products without oneDNN]
// oneDNN's sgemm gives other bits on other instruction sets, and, for long sums and single rows, for other numbers of
// threads. Calling it for pieces of fixed size, on one thread each, cures the latter alone, and costs up to 8 %
// (2048³). The kernel of gemm.isa.cpp, cut as below, was measured against the bare sgemm on one core of an EPYC (family
// 25, model 17, AVX-512; medians in GFLOP/s, ours first):
//   1024³ 109 and 110, with b transposed 108 and 108, with a transposed 105 and 109; 512³ 111 and 114;
//   256³ 112 and 111; 64×1024×1024 105 and 109, b transposed 90 and 73; 128×768×3072 105 and 102, b transposed 104 and
//   88; 8×64×64 80 and 68, b transposed 63 and 64, a transposed 59 and 61; 96 products of 64³ 98 and 94, b transposed
//   93 and 72.
// So f32 goes the way of all dtypes, with one result everywhere. Should oneDNN be used for bf16 one day: its 2.6.3 dies
// with an illegal instruction where a hypervisor hides CPUID leaf 0x1D but not AMX; cap its instruction set there
// first.
#include "ops/matmul/gemm.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "tensor/convert.h"

namespace tutti::products {
namespace {

constexpr int64_t kPieceWork = 1 << 20;  // multiplications worth a thread's attention

/// How one product is cut. A property of its shape alone, so that results are, too (but see gemm()).
struct Plan {
  int64_t row_step, column_step, depth_step;
  int64_t row_pieces, column_pieces, depth_pieces;
  int64_t pieces() const { return row_pieces * column_pieces; }
};

// The largest power of two, at most `limit`, into which `size` can be cut without parts below `least`. Powers of two
// give even shares to the usual numbers of threads.
int64_t cuts(int64_t size, int64_t least, int64_t limit) {
  return static_cast<int64_t>(
      std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(size / least, 1, std::max<int64_t>(1, limit)))));
}
int64_t step_of(int64_t size, int64_t pieces, int64_t multiple) {
  int64_t step = (size + pieces - 1) / pieces;
  return pieces == 1 ? size : (step + multiple - 1) / multiple * multiple;
}
int64_t count_of(int64_t size, int64_t step) { return (size + step - 1) / step; }

Plan make_plan(const Gemm& g, int64_t batches) {
  DType compute = compute_dtype(g.dtype);
  // Products with a vector are bound by memory: reading a number takes as long as several multiplications.
  double work = static_cast<double>(g.rows) * static_cast<double>(g.columns) * static_cast<double>(g.depth) *
                (is_complex(g.dtype) ? 4 : 1);
  work = std::max(work, 8.0 * static_cast<double>(g.depth) * static_cast<double>(std::max(g.rows, g.columns)));
  int64_t most = work < 0x1p32 ? 16 : 64;
  auto wanted = static_cast<int64_t>(std::min(work / kPieceWork, static_cast<double>(most / std::min(batches, most))));
  Plan plan{g.rows, g.columns, g.depth, 1, 1, 1};
  if (wanted <= 1) return plan;
  // Columns first: each piece copies its part of b, and pieces side by side copy different parts. But if a has to be
  // copied too, narrow pieces would do that too often; and for a single row, they would read too little of b's rows at
  // once.
  auto narrow = static_cast<int64_t>(384 / size_of(compute)),
       wide = g.a.column == 1 && g.rows > 1 ? narrow : 4 * narrow;
  int64_t columns = cuts(g.columns, wide, wanted), rows = cuts(g.rows, 256, wanted / columns);
  if (columns * rows < 8) {
    columns = cuts(g.columns, g.rows > 1 ? narrow : wide, std::min<int64_t>(wanted, 8) / rows);
    rows = cuts(g.rows, 64, std::min<int64_t>(wanted, 8) / columns);
  }
  // Then the sum, if the result is so small that its copies do not matter.
  bool small = g.rows * g.columns <= 1 << 16;
  int64_t depths = small && columns * rows < 8 ? cuts(g.depth, 2048, wanted / (columns * rows)) : 1;
  plan.row_step = step_of(g.rows, rows, 8);
  plan.column_step = step_of(g.columns, columns, 16);
  plan.depth_step = step_of(g.depth, depths, 64);
  plan.row_pieces = count_of(g.rows, plan.row_step);
  plan.column_pieces = count_of(g.columns, plan.column_step);
  plan.depth_pieces = count_of(g.depth, plan.depth_step);
  return plan;
}

const void* moved(const void* data, int64_t elements, DType dtype) {
  return static_cast<const char*>(data) + elements * static_cast<int64_t>(size_of(dtype));
}
void* moved(void* data, int64_t elements, DType dtype) {
  return static_cast<char*>(data) + elements * static_cast<int64_t>(size_of(dtype));
}

struct Scratch {
  size_t bytes;
  void* data;
  explicit Scratch(int64_t count, DType dtype)
      : bytes(static_cast<size_t>(count) * size_of(dtype)), data(memory::allocate(bytes)) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { memory::release(data, bytes); }
};

// A piece that may be too low or too narrow for tiles: the other kernels, whose sums run in another order, may take it.
constexpr int64_t kFewRows = 8, kFewColumns = 2;
bool is_slim(int64_t rows, int64_t columns) { return rows <= kFewRows || columns <= kFewColumns; }

// One thread's product, by the kernel that suits its shape.
void multiply(const Product& p) {
  bool plain = p.dtype == compute_dtype(p.dtype) && !is_complex(p.dtype);
  // Where both operands lie along k, tiles would have to copy b in another order, which few rows do not pay for.
  bool few = p.rows <= 2 || p.columns <= kFewColumns || (p.rows <= kFewRows && p.depth >= 192);
  if (plain && few && p.a.column == 1 && p.b.row == 1) return multiply_dots_pointer()(p);
  if (plain && p.rows == 1 && p.b.column == 1) return multiply_row_pointer()(p);
  bool column_lies = p.c_row == 1 && (p.d_row == 1 || p.beta == 0);
  if (plain && p.columns == 1 && p.a.row == 1 && column_lies) {  // the same, seen from the other side
    Product t = p;
    std::swap(t.rows, t.columns);
    t.a = {p.b.data, p.b.column, p.b.row};
    t.b = {p.a.data, p.a.column, p.a.row};
    return multiply_row_pointer()(t);
  }
  multiply_tiles_pointer()(p);
}

int64_t batch_offset(const Shape& sizes, const Shape& strides, int64_t index) {
  int64_t offset = 0;
  for (size_t d = sizes.size(); d-- > 0; index /= sizes[d]) offset += index % sizes[d] * strides[d];
  return offset;
}

/// The product of one index of the batch.
Product product_of(const Gemm& g, int64_t index) {
  Product p{.dtype = g.dtype,
            .rows = g.rows,
            .columns = g.columns,
            .depth = g.depth,
            .a = g.a,
            .b = g.b,
            .c = g.c,
            .c_row = g.c_row,
            .d = g.d ? g.d : g.c,
            .d_row = g.d ? g.d_row : g.c_row,
            .alpha = g.alpha,
            .beta = g.beta};
  if (g.batch.empty()) return p;
  p.a.data = moved(g.a.data, batch_offset(g.batch, g.a_batch, index), g.dtype);
  p.b.data = moved(g.b.data, batch_offset(g.batch, g.b_batch, index), g.dtype);
  p.c = moved(g.c, index * g.rows * g.c_row, g.dtype);
  p.d = moved(p.d, index * g.rows * p.d_row, g.dtype);
  return p;
}

/// The part of it from (row, column, k) on, at most as large as the plan's steps.
Product part_of(Product p, const Plan& plan, int64_t row, int64_t column, int64_t k) {
  p.rows = std::min(plan.row_step, p.rows - row);
  p.columns = std::min(plan.column_step, p.columns - column);
  p.depth = std::min(plan.depth_step, p.depth - k);
  p.a.data = moved(p.a.data, row * p.a.row + k * p.a.column, p.dtype);
  p.b.data = moved(p.b.data, k * p.b.row + column * p.b.column, p.dtype);
  p.c = moved(p.c, row * p.c_row + column, p.dtype);
  p.d = moved(p.d, row * p.d_row + column, p.dtype);
  return p;
}

// Adds parts of `count` numbers each to the first of them, in order.
void add_parts(void* data, int64_t count, int64_t parts, DType compute) {
  int64_t numbers = count * (is_complex(compute) ? 2 : 1);
  auto add = [&]<class T>() {
    auto* sums = static_cast<T*>(data);
    for (int64_t part = 1; part < parts; ++part)
      for (int64_t i = 0; i < numbers; ++i) sums[i] += sums[part * numbers + i];
  };
  switch (compute) {
    case DType::f32:
    case DType::c64:
      return add.operator()<float>();
    case DType::f64:
    case DType::c128:
      return add.operator()<double>();
    case DType::i32:
      return add.operator()<uint32_t>();
    default:
      return add.operator()<uint64_t>();
  }
}

void copy_rows(void* to, int64_t to_row, DType to_dtype, const void* from, int64_t from_row, DType from_dtype,
               int64_t rows, int64_t columns) {
  Convert convert = converter(to_dtype, from_dtype);
  for (int64_t i = 0; i < rows; ++i)
    convert(moved(to, i * to_row, to_dtype), 1, moved(from, i * from_row, from_dtype), 1, columns);
}

// A piece of c whose dtype is not that of the sums: computed beside it, then rounded.
void multiply_converted(Product p) {
  DType compute = compute_dtype(p.dtype);
  Scratch scratch(p.rows * p.columns, compute);
  if (p.beta != 0) copy_rows(scratch.data, p.columns, compute, p.d, p.d_row, p.dtype, p.rows, p.columns);
  Product q = p;
  q.c = scratch.data;
  q.d = scratch.data;
  q.c_row = q.d_row = p.columns;
  multiply(q);
  copy_rows(p.c, p.c_row, p.dtype, scratch.data, p.columns, compute, p.rows, p.columns);
}

// Sums over parts of k side by side, then adds them in order.
void multiply_by_depth(const Product& whole, const Plan& plan) {
  DType compute = compute_dtype(whole.dtype);
  int64_t count = whole.rows * whole.columns, pieces = plan.pieces();
  Scratch sums(count * plan.depth_pieces, compute);
  if (whole.beta != 0)
    copy_rows(sums.data, whole.columns, compute, whole.d, whole.d_row, whole.dtype, whole.rows, whole.columns);
  parallel_for(pieces * plan.depth_pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t part = i / pieces, piece = i % pieces;
      int64_t row = piece / plan.column_pieces * plan.row_step, column = piece % plan.column_pieces * plan.column_step;
      Product p = part_of(whole, plan, row, column, part * plan.depth_step);
      p.c = moved(sums.data, part * count + row * whole.columns + column, compute);
      p.d = p.c;
      p.c_row = p.d_row = whole.columns;
      if (part > 0) p.beta = 0;
      multiply(p);
    }
  });
  add_parts(sums.data, count, plan.depth_pieces, compute);
  copy_rows(whole.c, whole.c_row, whole.dtype, sums.data, whole.columns, compute, whole.rows, whole.columns);
}

}  // namespace

void gemm(const Gemm& g) {
  int64_t batches = g.batch.product();
  if (batches * g.rows * g.columns == 0) return;
  TUTTI_ASSERT(g.depth > 0);
  Plan plan = make_plan(g, batches);
  if (plan.depth_pieces > 1) {
    for (int64_t i = 0; i < batches; ++i) multiply_by_depth(product_of(g, i), plan);
    return;
  }
  bool converts = compute_dtype(g.dtype) != g.dtype;
  // One thread takes all pieces as one: each would copy parts of a and b that others copy, too. To tiles, cuts of rows
  // and columns make no difference; pieces for other kernels stay as they are, for the sake of the same bits.
  int64_t last_rows = g.rows - (plan.row_pieces - 1) * plan.row_step,
          last_columns = g.columns - (plan.column_pieces - 1) * plan.column_step;
  if (plan.pieces() > 1 && !converts && !is_slim(last_rows, last_columns) && thread_share() == 1)
    plan = {g.rows, g.columns, g.depth, 1, 1, 1};
  int64_t pieces = plan.pieces();
  double work =
      static_cast<double>(plan.row_step) * static_cast<double>(plan.column_step) * static_cast<double>(plan.depth_step);
  auto grain = static_cast<int64_t>(std::clamp(kPieceWork / 2 / std::max(work, 1.0), 1.0, 1e6));
  parallel_for(batches * pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Product p = product_of(g, i / pieces);
      int64_t piece = i % pieces;
      if (pieces > 1)
        p = part_of(p, plan, piece / plan.column_pieces * plan.row_step, piece % plan.column_pieces * plan.column_step,
                    0);
      converts ? multiply_converted(p) : multiply(p);
    }
  });
}

}  // namespace tutti::products
