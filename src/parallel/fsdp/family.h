// Families: all units of a model, and what they do together.
//
// Note [A pass of a family]
// Collectives must come in the same order on all ranks, so everything that starts one is something that all ranks do
// alike: that a unit's forward or backward begins, and that the backward pass ends. What gradients a rank has is not,
// nor is when they come.
//
// When a unit's backward is through (the gradients of its inputs are known), its parameters are freed at once, and it
// is `due`: its gradients are averaged from the next such event on. By then they have all come, even those of what was
// checkpointed, which come when the checkpoint is left. Those that come later all the same, and those of units whose
// inputs need no gradient, are averaged at the end of the pass: averages add up. There all ranks exchange which
// parameters have a gradient anywhere, one byte each, and which units have something left: a parameter that nobody
// used keeps the gradient that it had, as it does with DistributedDataParallel.
//
// Not more than one unit's gradients are on their way: the next unit's wait for them, so that memory is bounded.
//
// Note [Versions of a forward]
// Backward gathers a unit again, and must find what forward had. A graph may live longer than the next forward, or the
// next pass, so what a forward found is kept with its graph: each call of a unit leaves the version of its shards for
// its own backward hooks. All calls inside of one call of the outermost unit share a list of those whose values
// backward needs, and the first of them that a pass comes to checks them all, before any collective: a change is an
// error on all ranks at once. What a checkpoint runs is not recorded, but it is run again, so it counts too.
#pragma once

#include <mutex>

#include "parallel/agree.h"
#include "parallel/fsdp/unit.h"

namespace tutti::parallel {

/// The order in which units came the last time, by which the next one is foreseen.
class UnitOrder {
 public:
  void begin();
  /// This one has come; those that will come after it.
  std::vector<ShardUnit*> next(ShardUnit* unit, int count);
  bool is_last(const ShardUnit* unit) const { return !last_.empty() && last_.back() == unit; }
  void forget(ShardUnit* unit);
  bool known() const { return !last_.empty(); }
  /// Before anything is known.
  void guess(std::vector<ShardUnit*> order) { last_ = std::move(order); }
  const std::vector<ShardUnit*>& now() const { return now_; }

 private:
  std::vector<ShardUnit*> last_, now_;
  size_t at_ = 0;  // in last_
};

/// See Note [Versions of a forward].
struct ForwardVersions {
  std::vector<std::pair<std::weak_ptr<ShardUnit>, uint64_t>> units;
  uint64_t checked = 0;  // the number of the last pass that did
};
struct UnitCall {
  std::shared_ptr<ForwardVersions> all;
  uint64_t version;  // of the unit's shards
};

class ShardFamily : public std::enable_shared_from_this<ShardFamily> {
 public:
  explicit ShardFamily(const FullyShardOptions& options);

  const Group& group() const { return group_; }
  /// All ranks get the first one's values, once they have found that they agree.
  void begin_alike(const NamedTensors& parameters, const nn::ModuleBase& module, const FullyShardOptions& options);
  void add(const std::shared_ptr<ShardUnit>& unit);
  /// Takes over the family of a unit of a module below.
  void adopt(const std::shared_ptr<ShardUnit>& unit);
  void forget(ShardUnit* unit);
  void add_no_sync(int change);
  void set_samples(double count);

  // ---- Called by hooks
  void before_forward(ShardUnit& unit, nn::ModuleBase& module, TensorList& inputs);
  /// What its backward is to be told; null: there will be none.
  std::shared_ptr<const UnitCall> after_forward(ShardUnit& unit, nn::ModuleBase& module, const TensorList& outputs);
  void forward_failed(ShardUnit& unit, nn::ModuleBase& module);
  void before_inner_forward(ShardUnit& unit, nn::ModuleBase& module);
  void after_inner_forward(ShardUnit& unit, nn::ModuleBase& module);
  void before_backward(ShardUnit& unit, const UnitCall* call);
  void after_backward_of(ShardUnit& unit, const TensorList& grad_inputs);
  /// Around what differentiates a unit's backward: see Note [Gradients of gradients].
  void before_second(ShardUnit& unit, const UnitCall* call);
  void after_second(ShardUnit& unit);
  void accumulated(ShardUnit& unit, size_t flat, size_t member);

 private:
  CollectiveOptions gathering() const {
    return {.group = gather_, .timeout = options_.timeout, .place = options_.place};
  }
  ReduceOptions averaging() const;
  std::optional<ReduceOptions> across() const;
  void open_channels();
  void gather(ShardUnit& unit, UnitOrder& order, bool ahead);
  void settle();
  void free_all();
  void check_unchanged(const ShardUnit& unit, const UnitCall* call);
  bool begin_pass();
  void count_samples();
  void start_due();
  void reduce(ShardUnit& unit);
  void finish_reducing();
  void forget_cleared();
  void end_pass(bool well);
  void finish_pass();
  void finish_without_averages();
  std::vector<uint8_t> exchange_flags();
  void sync_buffers();

  FullyShardOptions options_;
  const uint64_t number_;
  Group group_;                       // the user's
  Group gather_, reduce_, replicas_;  // the same ranks: so that none of our collectives waits for another's kind
  std::unique_ptr<GradientPool> pool_;
  std::vector<ShardUnit*> units_;  // in the order in which they were made
  // Backward may run in other threads than forward.
  mutable std::recursive_mutex mutex_;
  UnitOrder forward_, backward_;
  int depth_ = 0;                              // forwards inside of which we are
  std::shared_ptr<ForwardVersions> versions_;  // of these
  bool pass_ = false, syncing_ = false;        // a backward pass runs, and averages
  uint64_t passes_ = 0;                        // that have begun
  int no_sync_ = 0;
  std::vector<ShardUnit*> due_;
  ShardUnit* reducing_ = nullptr;  // its gradients are on their way
  TensorList buffers_;
  std::optional<double> next_samples_;        // of the next pass
  double samples_ = 0, replica_samples_ = 0;  // that count in this pass: of this rank, and of its group
  double earlier_samples_ = 0;                // of passes without averaging since the last one with
};

}  // namespace tutti::parallel
