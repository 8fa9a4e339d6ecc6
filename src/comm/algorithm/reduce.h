// Adding up what ranks have, in the canonical order.
//
// Note [Canonical order]
// Ranks lo ... hi-1 are combined as T(lo, hi) = T(lo, mid) ∘ T(mid, hi), mid - lo being the largest power of two below
// hi - lo: ((0 ∘ 1) ∘ (2 ∘ 3)) ∘ (4 ∘ 5). Each element on its own, so that cutting messages into pieces, or putting
// them together, changes nothing. Half-precision numbers are combined in f32 and rounded once, at the end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/isa.h"
#include "tutti/comm/collectives.h"
#include "tutti/dtype.h"

namespace tutti::comm {

/// What is done to the ranks' numbers.
struct Reduction {
  DType dtype;
  Reduce op = Reduce::sum;
  double scale = 1;                      // of the result: 1/n of an average
  std::span<const double> factors = {};  // of each rank's numbers before they are combined; empty: 1
};

/// Whether this dtype can be combined so; the bitwise ones are for integers and bools.
bool reduces(Reduce op, DType dtype);
/// Of one that cannot: that, and what could be.
std::string why_not_reduced(Reduce op, DType dtype);
/// A DTypeError that says so.
void check_reduces(const char* operation, Reduce op, DType dtype);
const char* name(Reduce op);

/// Combines `count` elements of each source into all targets, which may be (some of) the sources, element for element.
/// Where there is a partial result, the sources that it is made of are not looked at.
struct Partial {
  size_t lo, hi;     // of the tree: ranks lo ... hi-1, more than one of them
  const void* data;  // of combining_dtype()
};
void reduce_into(const Reduction& reduction, std::span<const void* const> sources, std::span<void* const> targets,
                 int64_t count, std::span<const Partial> partials = {});

/// The dtype in which numbers of this one are combined.
DType combining_dtype(DType dtype);
/// The partial result of ranks lo ... hi-1, a subtree of the canonical order.
void reduce_part(const Reduction& reduction, std::span<const void* const> sources, size_t lo, size_t hi, void* to,
                 int64_t count);
struct Subtree {
  size_t lo, hi;
  friend bool operator==(const Subtree&, const Subtree&) = default;
};
/// The largest subtrees of the canonical order over n ranks that consist of these ranks only. `mine[k]`: rank k is one.
std::vector<Subtree> whole_subtrees(const std::vector<bool>& mine);

}  // namespace tutti::comm

namespace tutti {
/// c = a ∘ b for floating-point numbers; c may be a or b.
TUTTI_ISA_DECLARE(combine_f32, void, (Reduce op, const float* a, const float* b, float* c, int64_t n))
TUTTI_ISA_DECLARE(combine_f64, void, (Reduce op, const double* a, const double* b, double* c, int64_t n))
/// c = a · factor
TUTTI_ISA_DECLARE(scale_f32, void, (const float* a, float factor, float* c, int64_t n))
TUTTI_ISA_DECLARE(scale_f64, void, (const double* a, double factor, double* c, int64_t n))
}  // namespace tutti
