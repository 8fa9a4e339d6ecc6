// fully_shard: training of models that do not fit one rank. Each rank keeps a part of every parameter, of its gradient
// and of what the optimizer keeps for it; whole parameters exist only while they are used.
//
//   spawn_ranks(4, [] {
//     Gpt gpt;
//     for (Block& block : gpt.blocks) parallel::fully_shard(block);  // each becomes a unit
//     parallel::fully_shard(gpt);                                    // and what is left, another
//     optim::Adam adam(gpt.parameters());                            // of this rank's parts
//     for (auto& [x, y] : loader) {                                  // this rank's part of the data
//       Tensor loss = cross_entropy(gpt(x), y);
//       adam.zero_grad();
//       loss.backward();                                             // gradients are averages over all ranks
//       parallel::clip_grad_norm_(gpt.parameters(), 1.0);
//       adam.step();
//     }
//   });
//
// A unit's parameters are gathered just before its forward and its backward, the next unit's at the same time, and
// freed right after; its gradients are averaged, and cut again, while backward goes on. Outside of forward the module's
// parameters are this rank's parts: tensors of one dim, in order, some of them empty, under the same names and the same
// handles as before.
//
// All ranks must run the same units in the same order, and backward the same number of times. Which parameters a rank
// uses in a unit does not matter, as it does not for DistributedDataParallel.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "tutti/comm/collectives.h"
#include "tutti/nn/module.h"
#include "tutti/optim/gradients.h"
#include "tutti/optim/optimizer.h"
#include "tutti/parallel/ddp.h"

namespace tutti::parallel {

/// Parts stay in the dtype that the parameters had, and so does what optimizers do with them.
struct MixedPrecision {
  std::optional<DType> parameters = {};  // as what they are gathered and used; floating inputs of units are cast to it
  std::optional<DType> gradients = {};   // as what they are averaged; default: as what they come
};

/// All units of a model must have the same groups.
struct FullyShardOptions {
  Group group = {};     // over whose ranks parameters are cut; default: the world
  Group replicas = {};  // hybrid: ranks, of other hosts say, that have the same parts and average their gradients too
  MixedPrecision mixed = {};
  Average average = Average::ranks;                       // what the average counts, as in DistributedDataParallel
  bool reshard_after_forward = true;                      // false: keep whole parameters until backward has used them
  int prefetch = 1;                                       // units that are gathered ahead of the one that runs
  BufferPolicy buffers = BufferPolicy::broadcast;         // of the whole model: the options of its outermost unit count
  std::optional<std::chrono::milliseconds> timeout = {};  // of its collectives; default: the world's
  Place place = Place::current();                         // errors name it. Never given by hand
};

/// Makes a unit of the module: of all its parameters that are not in a unit below it. All ranks of the groups must call
/// it, with modules that agree; all begin with the values of the first rank. A parameter that modules share must be in
/// one unit with all who use it. `place` is never given by hand.
void fully_shard(nn::ModuleBase& module, const FullyShardOptions& options = {}, const Place& place = Place::current());

class ShardFamily;
/// While it lives, backward adds to this rank's gradients only, which are whole meanwhile. The first backward after it
/// averages the sum.
class [[nodiscard]] ShardNoSync {
 public:
  explicit ShardNoSync(std::shared_ptr<ShardFamily> family);
  ~ShardNoSync();
  ShardNoSync(ShardNoSync&&) noexcept = default;
  ShardNoSync& operator=(ShardNoSync&&) = delete;

 private:
  std::shared_ptr<ShardFamily> family_;
};
/// ShardNoSync guard = parallel::no_sync(net), of the outermost module that was sharded.
ShardNoSync no_sync(const nn::ModuleBase& module);

/// How many samples the next backward is about, for Average::samples: see DdpBase::set_samples.
void set_samples(const nn::ModuleBase& module, double count);

/// As in optim, of gradients that are cut over ranks: the norm is that of all of them, the same on all ranks. All ranks
/// must call it. Parameters that are not sharded may be among them.
double clip_grad_norm_(const TensorList& parameters, double max_norm, const optim::ClipOptions& options = {});
double grad_norm(const TensorList& parameters, double p = 2);
/// For amp::GradScaler, after backward: it skips steps whose gradients are infinite or NaN, and sees this rank's parts.
/// If there is such a number on any rank, there is one on every rank then.
void spread_overflow(const TensorList& parameters);

// ---- Checkpoints. All ranks must call these.

/// state_dict() of the module as it would be if it were not sharded, on the root; nothing on others.
nn::StateDict full_state_dict(const nn::ModuleBase& module, int root = 0);
/// Each rank takes its parts. All ranks give the same state: as a rule, of a file that all can read, opened with
/// io::SafeTensors::map. Errors as by load_state_dict().
nn::LoadReport load_full_state_dict(nn::ModuleBase& module, const nn::StateDict& state,
                                    const nn::LoadOptions& options = {});
/// The same for optimizers: state() as it would be if the parameters were not sharded.
io::State full_state(const optim::Optimizer& optimizer, int root = 0);
void load_full_state(optim::Optimizer& optimizer, const io::State& state);

/// Every rank writes what it has into a file of its own in the folder, which all must see; the first also writes what
/// is not cut. A crash at any moment leaves the old files or the new ones.
void save_sharded(const std::string& folder, const nn::ModuleBase& module, const optim::Optimizer* optimizer = nullptr);
/// From however many ranks saved it. False, and nothing happens, if there is nothing in the folder.
bool load_sharded(const std::string& folder, nn::ModuleBase& module, optim::Optimizer* optimizer = nullptr);

}  // namespace tutti::parallel
