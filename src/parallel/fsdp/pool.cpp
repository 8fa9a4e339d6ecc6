#include "parallel/fsdp/pool.h"

#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti::parallel {

GradientPool::GradientPool(int64_t bytes, const GroupMemoryOptions& memory) {
  if (bytes == 0) return;
  GroupMemoryOptions wanted = memory;
  wanted.dtype = DType::u8;
  for (int i = 0; i < 2; ++i) {
    auto piece = std::make_shared<Piece>();
    piece->bytes = group_empty({bytes}, wanted);
    pieces_.push_back(std::move(piece));
  }
}

std::pair<Tensor, GradientPool::Lease> GradientPool::take(int64_t elements, DType dtype) {
  int64_t bytes = elements * static_cast<int64_t>(size_of(dtype));
  for (const auto& piece : pieces_) {
    if (piece->taken || piece->bytes.numel() < bytes) continue;
    piece->taken = true;
    NoGrad guard;
    Tensor flat = piece->bytes.narrow(0, 0, bytes).view_dtype(dtype);
    return {flat, Lease(piece.get(), [piece](void*) { piece->taken = false; })};
  }
  return {};
}

}  // namespace tutti::parallel
