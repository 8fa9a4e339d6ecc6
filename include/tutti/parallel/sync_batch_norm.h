// Batch normalisation by the statistics of all ranks' batches.
#pragma once

#include "tutti/comm/group.h"
#include "tutti/nn/norm.h"
#include "tutti/parallel/join.h"

namespace tutti::parallel {

/// As nn::BatchNorm1d, 2d and 3d, but in training the batch is that of all ranks of the group together: gradients pass
/// from rank to rank too. Batches may be of any sizes (a rank's may be empty). All ranks must run forward, and
/// backward; inside of join(), those without inputs need not: join({ddp, net.norm}, ...).
struct SyncBatchNorm : nn::detail::BatchNormLayer<SyncBatchNorm, 2, 5, false> {
  explicit SyncBatchNorm(int64_t channels, const nn::BatchNormOptions& options = {}, const Group& group = {});
  operator Joinable() const;  // NOLINT: it stands among others in a list
};

struct SyncedBatchNorms {
  int64_t layers;                                 // how many there are
  Joinable joinable;                              // all of them, for join()
  operator Joinable() const { return joinable; }  // NOLINT
};
/// Makes all batch norms in the module work like that. They stay what they are: names, types and states do not change.
/// Call it before the module is wrapped, or on what is inside.
SyncedBatchNorms sync_batch_norms(nn::ModuleBase& module, const Group& group = {});

}  // namespace tutti::parallel
