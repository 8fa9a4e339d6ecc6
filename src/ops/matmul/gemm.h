// Matrix products on all threads of the caller's share: what the operators here, and any other operator that multiplies
// matrices, call.
#pragma once

#include "ops/matmul/gemm_kernel.h"
#include "tutti/shape.h"

namespace tutti::products {

/// For every index of `batch`: c = beta·d + alpha·a@b, a [rows, depth], b [depth, columns], c and d [rows, columns].
/// Any dtype; bf16 and f16 are summed in f32 and rounded once, integers wrap, bools are or-ed.
struct Gemm {
  DType dtype;                   // of everything
  int64_t rows, columns, depth;  // depth: at least one; sums of nothing are the caller's affair
  Matrix a, b;
  void* c;
  int64_t c_row;            // neighbouring columns of c, and of d, lie next to each other
  const void* d = nullptr;  // null: c
  int64_t d_row = 0;
  double alpha = 1, beta = 0;  // beta 0: d is not read
  // Batches: sizes, and the strides of a and b along them (0 where one matrix serves all). c and d follow each other.
  Shape batch = {}, a_batch = {}, b_batch = {};
};

/// The result depends on shapes and strides only: not on the number of threads, nor on the instruction set.
void gemm(const Gemm& g);

}  // namespace tutti::products
