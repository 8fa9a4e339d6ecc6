// Memory of the group for gradients on their way: see group_empty().
//
// Two pieces are enough for most: one is filled while the other is sent. Where they are not there, ordinary memory will
// do, at the price of copies. All ranks take and return pieces at the same events, so that what they give to a
// collective lies in the same piece on all; where it does not, the collective copies.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tutti/comm/collectives.h"

namespace tutti::parallel {

class GradientPool {
 public:
  /// All ranks of the group must make it, of the same size.
  GradientPool(int64_t bytes, const GroupMemoryOptions& memory);

  /// Who has a piece; returns it when it is gone.
  using Lease = std::shared_ptr<void>;
  /// A flat tensor of so many elements; undefined if there is no piece, or none that is large enough.
  std::pair<Tensor, Lease> take(int64_t elements, DType dtype);

 private:
  struct Piece {
    Tensor bytes;
    bool taken = false;
  };
  std::vector<std::shared_ptr<Piece>> pieces_;
};

}  // namespace tutti::parallel
