// Units: parameters that are gathered together.
//
// Note [Sharded parameters]
// A parameter of a sharded module is two tensors. The `shard` is the tensor that the parameter was before, with other
// data: this rank's elements of it. It is what the module's fields hold outside of forward, what optimizers step and
// checkpoints keep. The `whole` is a leaf of its own, with the shape that the parameter had: a part of the unit's
// buffer, whose storage is resized to nothing when the unit is not in use. Fields hold it while forward runs; operators
// save it, or views of it, for backward, which finds the same values there because the unit is gathered again before
// its backward. Refilling the buffer is not a write: its version stays as it was.
//
// Gradients arrive at the whole. A hook takes them at once into the unit's flat gradients, which a reduce_scatter turns
// into the gradients of the shards.
//
// The buffer of a unit has its parameters one behind the other, as they lie in memory, and is cut evenly: rank r has
// elements r·n to (r+1)·n. So a shard is a range of its parameter's elements, and often none. Parameters of other
// dtypes, and those that are frozen to begin with, have buffers of their own.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "parallel/fsdp/pool.h"
#include "tutti/autograd.h"
#include "tutti/comm/collectives.h"
#include "tutti/parallel/fsdp.h"

namespace tutti::parallel {

inline constexpr const char* kShardName = "fully_shard";  // in errors

struct ShardMember {
  std::string name;            // in the unit's module
  Tensor shard, whole;         // see Note [Sharded parameters]
  int64_t occurrences = 0;     // fields of the module that hold it
  Shape sizes, strides;        // of the whole
  int64_t count = 0;           // of elements
  int64_t offset = 0;          // in the buffer
  int64_t begin = 0, end = 0;  // which of its elements are this rank's
  Tensor slot;                 // where its gradient goes, while there are flat gradients
  bool filled = false;         // the slot has one
  bool offered = false;        // autograd may write it there: see Note [Gradients born in place]
  bool dirty = false;          // it has a gradient that other ranks do not know of
  bool used = false;           // in the pass that ends: some rank has one
};

/// Parameters of one dtype that lie one behind the other.
class ShardFlat {
 public:
  ShardFlat(std::vector<ShardMember> members, const Group& group, const MixedPrecision& mixed);

  std::vector<ShardMember>& members() { return members_; }
  const std::vector<ShardMember>& members() const { return members_; }
  /// The elements of a member that are in this rank's part, and in that of others.
  std::pair<int64_t, int64_t> range(const ShardMember& member, int rank) const;
  /// Throws if a shard does not lie where it was put.
  void check_shards() const;
  bool trainable() const;

  /// Moves the shards to memory from which collectives of the group read without copies. All ranks must call it.
  void move_shards(const GroupMemoryOptions& memory);
  void start_gather(const CollectiveOptions& options);
  void finish_gather();
  void free_whole() { whole_.resize_storage(0); }

  /// Of its gradients.
  int64_t gradient_bytes() const;
  /// Makes room for gradients, in the pool if there is one, and tells autograd of it.
  void offer_homes(GradientPool* pool);
  void take(ShardMember& member, const Tensor& gradient);
  void start_reduce(const ReduceOptions& options);
  /// Waits for what has been started, and averages over replicas, where there are some.
  void finish_reduce(const std::optional<ReduceOptions>& replicas);
  /// Gives the averages of members that are used to the sink; others keep what they have.
  void hand_out();
  void forget();
  /// The same for what is on its way, after something has failed.
  void abandon();
  /// Drops what the user has cleared by zero_grad() since it came.
  void forget_cleared();
  /// Gradients stay for the next pass; the sink gets zeros in their place, so that it is seen if they are cleared.
  void keep();
  bool any_filled() const;
  uint64_t version() const { return shard_.version(); }

 private:
  struct Reduction {
    Tensor whole, part;
    Work work;
    GradientPool::Lease lease;
  };
  Options gradient_options() const { return {.dtype = reduced_as_, .device = shard_.device()}; }
  void make_gradients(GradientPool* pool = nullptr);
  void clear_rest();

  std::vector<ShardMember> members_;
  int64_t per_rank_ = 0, total_ = 0;
  int rank_ = 0;
  DType reduced_as_ = DType::f32;
  Tensor shard_;  // this rank's part of the buffer
  Tensor whole_;  // the buffer
  Tensor sent_;   // what this rank gives to a gather that is on its way
  Work gathering_;
  uint64_t version_ = 0;       // of the buffer, always
  Tensor gradients_;           // flat, of this rank
  GradientPool::Lease lease_;  // of the memory that they are in
  std::vector<Reduction> reductions_;
  std::vector<GradientPool::Lease> lent_;  // where autograd may still write in this pass
  Tensor averages_;                        // of this rank's part
};

class ShardFamily;

/// What fully_shard makes. The module's hooks keep it alive.
class ShardUnit : public std::enable_shared_from_this<ShardUnit> {
 public:
  ShardUnit(nn::ModuleBase& module, const FullyShardOptions& options, const std::shared_ptr<ShardFamily>& family);
  ~ShardUnit();
  ShardUnit(const ShardUnit&) = delete;
  ShardUnit& operator=(const ShardUnit&) = delete;

  enum class State : uint8_t { freed, coming, there };
  std::string name;                                    // of the module's type, for errors
  const char *gathers = nullptr, *averages = nullptr;  // the purposes of its collectives: see comm::PurposeGuard
  FullyShardOptions options;
  std::shared_ptr<ShardFamily> family;
  std::vector<ShardFlat> flats;
  State state = State::freed;
  bool outermost = false;      // its gradients wait for the end of the pass
  int running = 0;             // forwards inside of which we are
  int pending = 0;             // forwards whose backward has not come
  bool due = false;            // its backward is through: gradients are to be averaged
  uint64_t version = 0;        // of all shards, when they were gathered last
  std::vector<uint64_t> used;  // of each forward inside of which we are: the version that it found

  void start_gather(const CollectiveOptions& options);
  void finish_gather();
  void free_whole();
  bool trainable() const;
  bool any_filled() const;
  uint64_t shard_version() const;
  /// Lets the module's fields hold the wholes, or the shards.
  void show(nn::ModuleBase& module, bool whole);
  /// The same of a module inside; says how many there were.
  int64_t show_some(nn::ModuleBase& module, bool whole);
  bool has_parameters_of(nn::ModuleBase& module) const;

 private:
  std::unordered_map<const TensorImpl*, std::pair<size_t, size_t>> index_;  // of shards and wholes
  int64_t occurrences_ = 0;
};

/// Where a parameter is; null: it is not sharded.
struct ShardPlace {
  std::shared_ptr<ShardUnit> unit;
  ShardFlat* flat = nullptr;
  ShardMember* member = nullptr;
  explicit operator bool() const { return unit != nullptr; }
};
ShardPlace find_shard(const Tensor& parameter);
/// Lets find_shard() find it.
void register_unit(const std::shared_ptr<ShardUnit>& unit);

}  // namespace tutti::parallel
