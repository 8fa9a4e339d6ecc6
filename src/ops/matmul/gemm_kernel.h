// Matrix products of one thread. gemm.h splits larger work into these.
#pragma once

#include <cstdint>

#include "base/isa.h"
#include "tutti/dtype.h"

namespace tutti::products {

/// A matrix anywhere in memory; strides in elements, of any size and sign.
struct Matrix {
  const void* data;
  int64_t row, column;
};

/// c = beta·d + alpha·a@b, a [rows, depth], b [depth, columns], c and d [rows, columns].
struct Product {
  DType dtype;  // of a and b
  int64_t rows, columns, depth;
  Matrix a, b;
  // Of compute_dtype(dtype), neighbouring columns next to each other. d may be c, and is not read if beta is 0.
  void* c;
  int64_t c_row;
  const void* d;
  int64_t d_row;
  double alpha, beta;
};

/// What a product of this dtype is computed in. Integers up to 32 bits wrap at 32, which gives the same low bits as any
/// wider sum.
constexpr DType compute_dtype(DType dtype) {
  switch (dtype) {
    case DType::bf16:
    case DType::f16:
      return DType::f32;
    case DType::i8:
    case DType::u8:
    case DType::i16:
      return DType::i32;
    case DType::boolean:
      return DType::i64;
    default:
      return dtype;
  }
}

}  // namespace tutti::products

namespace tutti {

/// Any product: see gemm.isa.cpp.
TUTTI_ISA_DECLARE(multiply_tiles, void, (const products::Product& p))
/// f32, f64, i32 and i64, where the rows of a and the columns of b each lie in memory as one: see gemv.isa.cpp.
TUTTI_ISA_DECLARE(multiply_dots, void, (const products::Product& p))
/// The same dtypes, for one row of c (a's column stride may be anything) and a b whose rows lie in memory as one.
TUTTI_ISA_DECLARE(multiply_row, void, (const products::Product& p))

}  // namespace tutti
