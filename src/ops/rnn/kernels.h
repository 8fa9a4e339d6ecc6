// One step of a recurrent layer, for a piece of its units.
//
// The product of a step is small (a batch's rows times all weights) and the weights are used again at every step, so
// they are copied once into the order in which they are read: for a piece of units, one sliver of kPiece columns.
#pragma once

#include <cstdint>

#include "base/isa.h"
#include "tutti/dtype.h"

namespace tutti::recurrent {

enum class Cell : uint8_t { tanh, relu, lstm, gru };

/// Units of a piece.
constexpr int64_t piece_units(DType dtype) { return dtype == DType::f64 ? 16 : 32; }
constexpr int64_t gates_of(Cell cell) { return cell == Cell::lstm ? 4 : cell == Cell::gru ? 3 : 1; }
/// Numbers that are kept of each unit and step for the gradient: the gates, of a gru also the recurrent part of n.
constexpr int64_t kept_of(Cell cell) { return cell == Cell::lstm || cell == Cell::gru ? 4 : 0; }

/// c [rows, columns ≤ piece] += or = bias + a [rows, depth] @ sliver [depth, piece].
struct Panel {
  DType dtype;
  int64_t rows, columns, depth;
  const void* a;
  int64_t a_row;
  const void* sliver;
  void* c;
  int64_t c_row;
  const void* bias;  // null with `adds`: none
  bool adds;         // to c as it is
};
TUTTI_ISA_DECLARE(multiply_panel, void, (const Panel& p))

/// `count` units of one row, in f32 or f64. Gates lie `gate` apart.
struct CellRow {
  DType dtype;
  Cell cell;
  int64_t count, gate;
  void* gates;  // before: sums; after: values. tanh, relu: the sum, which stays
  const void* h_before;
  void* h;
  const void* c_before;  // lstm
  void* c;
};
TUTTI_ISA_DECLARE(cell_forward, void, (const CellRow& r))

struct CellGradientRow {
  DType dtype;
  Cell cell;
  int64_t count, gate;
  const void *gates, *h_before, *h, *c_before, *c;
  const void *h_grad, *c_grad;  // what arrives from outside; null: nothing
  void *h_carry, *c_carry;      // what arrives from the next step; after: what goes to the one before
  void *x_gates, *h_gates;      // gradients of the sums: those of x's part and of h's (the same but for a gru)
};
TUTTI_ISA_DECLARE(cell_backward, void, (const CellGradientRow& r))

}  // namespace tutti::recurrent
