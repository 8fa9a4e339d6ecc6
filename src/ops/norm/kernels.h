// The kernels of normalisation, in f32 and f64. Sums are taken in fixed pieces, in an order that depends on shapes
// only.
#pragma once

#include <cstdint>

#include "base/isa.h"
#include "tutti/dtype.h"

namespace tutti::normalization {

/// [outer, channels, inner] in memory, or, if `last`, [outer, inner, channels]; or, in `blocks` and only in f32,
/// [outer, channels / 16, inner, 16], with the sums of the first.
struct Channels {
  int64_t outer, channels, inner;
  bool last;
  int64_t table;  // from one outer to the next in tables that have an entry a channel: `channels`, or 0 for one table
  bool blocks = false;

  /// Pieces of an outer for which sums are taken one by one. A piece is one channel of one outer, or, with the channels
  /// last, some rows of them.
  int64_t rows() const {
    int64_t fitting = 8192 / (channels < 1 ? 1 : channels);
    return fitting < 16 ? 16 : fitting;
  }
  int64_t pieces() const { return last ? (inner + rows() - 1) / rows() : 1; }
  int64_t units() const { return outer * (last ? pieces() : blocks ? channels / 16 : channels); }
  /// Entries of an array with a sum for each piece and channel: [outer, pieces, channels].
  int64_t sums() const { return outer * pieces() * channels; }
  int64_t elements(int64_t piece) const {
    if (!last) return inner;
    int64_t rest = inner - piece * rows();
    return rest < rows() ? rest : rows();
  }
};

}  // namespace tutti::normalization

namespace tutti {

// ---- Rows: y = (x - mean)·rstd·w + b for each row of `length`; mean and rstd have an entry a row. w and b may be
// null; if not `centered`, the mean is 0.
TUTTI_ISA_DECLARE(normalize_rows, void,
                  (DType dtype, bool centered, const void* x, const void* w, const void* b, void* y, void* mean,
                   void* rstd, int64_t rows, int64_t length, double eps))
// From y's gradient g to x's; adds the gradients of w and b up in dw and db, of `length`.
TUTTI_ISA_DECLARE(normalize_rows_gradient, void,
                  (DType dtype, bool centered, const void* g, const void* x, const void* w, const void* mean,
                   const void* rstd, void* dx, void* dw, void* db, int64_t rows, int64_t length))

// ---- Channels, for units begin..end. Tables have an entry a channel.
/// The mean of each piece, and Σ(x - mean)².
TUTTI_ISA_DECLARE(channel_moments, void,
                  (DType dtype, const normalization::Channels& c, const void* x, double* mean, double* squares,
                   int64_t begin, int64_t end))
/// Σ g and Σ g·(x - mean) of each piece. In blocks g may be the gradient of relu's results `relu`: then what it leaves
/// of g is summed, and goes to `left`.
TUTTI_ISA_DECLARE(channel_products, void,
                  (DType dtype, const normalization::Channels& c, const void* g, const void* x, const void* mean,
                   double* sum, double* product, const void* relu, void* left, int64_t begin, int64_t end))
/// y = (x - mean)·scale + shift. In blocks also y = added + that, unless null, and relu of it.
TUTTI_ISA_DECLARE(channel_apply, void,
                  (DType dtype, const normalization::Channels& c, const void* x, const void* mean, const void* scale,
                   const void* shift, const void* added, bool relu, void* y, int64_t begin, int64_t end))
/// y = g·of_g + (x - mean)·of_x + shift
TUTTI_ISA_DECLARE(channel_gradient, void,
                  (DType dtype, const normalization::Channels& c, const void* g, const void* x, const void* mean,
                   const void* of_g, const void* of_x, const void* shift, void* y, int64_t begin, int64_t end))

}  // namespace tutti
