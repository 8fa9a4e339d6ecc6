// What embedding and embedding_bag share.
#pragma once

#include "base/isa.h"
#include "tutti/dtype.h"
#include "tutti/ops/embedding.h"

namespace tutti {

/// How the gradient of a table is made from the gradients of the rows that were looked up.
struct TableGradient {
  int64_t rows;     // of the table
  int64_t padding;  // -1: none
  bool sparse, by_frequency;
};
/// g is [n, D], indices [n]; the result [rows, D]. Public operators only.
Tensor table_gradient(const TableGradient& how, const Tensor& g, const Tensor& indices);

/// Indices as contiguous i64 of any shape; throws an IndexError naming the first outside of [0, rows) and its place.
Tensor checked_indices(const Tensor& indices, int64_t rows, const char* name);
void check_table(const Tensor& weight, const Tensor& indices, const char* name);
/// Counts a negative padding index from the end; -1 for none.
int64_t wrap_padding(std::optional<int64_t> padding, int64_t rows, const char* name);
/// Shortens the rows that are looked up, in place.
void renormalize(const Tensor& weight, const Tensor& indices, double max_norm, double p, const char* name);

/// Some rows of a table of f32 or f64, by number, each with a factor. Those whose number is `padding` are left out.
struct Bag {
  DType dtype;
  const void* table;
  int64_t row;  // from row to row of the table; a row's numbers lie next to each other
  const int64_t* at;
  const void* factors;
  int64_t count, padding, width;
};
/// out [width] = Σ row · factor, in order.
TUTTI_ISA_DECLARE(sum_bag, void, (const Bag& bag, void* out))
/// out[i] = row[i] · factor
TUTTI_ISA_DECLARE(scale_row, void, (DType dtype, const void* row, const void* factor, void* out, int64_t width))

}  // namespace tutti
