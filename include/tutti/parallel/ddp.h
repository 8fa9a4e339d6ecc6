// DistributedDataParallel: every rank trains the module on its own part of the data, and all have the same gradients.
//
//   spawn_ranks(4, [] {
//     parallel::DistributedDataParallel ddp(Net{});      // all ranks begin with rank 0's parameters
//     optim::Adam adam(ddp.parameters());
//     for (auto& [x, y] : loader) {                      // this rank's part
//       Tensor loss = cross_entropy(ddp(x), y);
//       adam.zero_grad();
//       loss.backward();                                 // gradients are averages over all ranks when it returns
//       adam.step();
//     }
//   });
//
// Gradients lie one behind the other in a few large buckets, which are averaged while backward is still at work.
// It does not matter which parameters a rank uses, how often, and in how many forwards; ranks may differ in it, and
// from step to step. What all ranks must do alike is to run backward the same number of times.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/collectives.h"
#include "tutti/nn/any_module.h"
#include "tutti/nn/module.h"
#include "tutti/parallel/join.h"

namespace tutti::parallel {

enum class Average : uint8_t {
  ranks,    // every rank counts the same
  samples,  // by the number each rank gives to set_samples(): uneven batches give the gradient of the whole batch
};
/// What becomes of a buffer (a running mean, say) at the end of each backward pass that averages gradients.
enum class BufferPolicy : uint8_t {
  broadcast,  // it becomes the root's
  average,    // as gradients are; integers become the root's
  none,       // every rank keeps its own
};

/// Gradients that go together.
struct GradientBucket {
  Tensor buffer;          // all of them, flat; zeros in between
  TensorList gradients;   // each as a part of the buffer ...
  TensorList parameters;  // ... and whose it is
  int64_t index = 0;      // 0 is the first to be ready. What is kept between steps is best kept by parameter
  ReduceOptions average;  // all_reduce_async(x, bucket.average) makes x what DistributedDataParallel would
};
/// What a hook has begun: a collective, what remains to be done, both or neither.
struct Communication {
  Communication() = default;
  Communication(Work work, std::function<void()> then = {})  // NOLINT: hooks return either
      : work(std::move(work)), finish(std::move(then)) {}
  Communication(std::function<void()> finish) : finish(std::move(finish)) {}  // NOLINT

  Work work;                     // is waited for at the end of backward: by it we know what is still under way
  std::function<void()> finish;  // is called then, after all buckets have been started, in their order
};
/// In place of all_reduce: starts to make bucket.buffer the average over ranks, without waiting, and returns what it
/// has begun. What completes it may make collectives of its own. Collectives are to use bucket.average.group.
using CommunicationHook = std::function<Communication(GradientBucket& bucket)>;
/// Sends gradients as bf16 or f16 numbers.
CommunicationHook compress(DType dtype);

struct DdpOptions {
  Group group = {};                                        // default: the world
  int root = 0;                                            // in the group: whose parameters and buffers all begin with
  int64_t bucket_bytes = 4 << 20;                          // a bucket is closed when it has so many
  Average average = Average::ranks;                        // what the average counts
  bool static_graph = false;                               // every step uses what the first one used, as often
  BufferPolicy buffers = BufferPolicy::broadcast;          // what becomes of them
  std::map<std::string, BufferPolicy> buffer_policy = {};  // by name: those that are not as `buffers` says
  CommunicationHook hook = {};                             // in place of all_reduce
  int64_t checksum_every = 0;                              // steps: see check_equal(); 0: never
  std::optional<std::chrono::milliseconds> timeout = {};   // of its collectives; default: the world's
  Place place = Place::current();                          // errors name it. Never given by hand
};

/// Of the last backward pass that averaged gradients.
struct UnusedParameters {
  std::vector<std::string> here;        // this rank did not use them
  std::vector<std::string> everywhere;  // nobody did: their gradients are as they were before
};

/// How long the last backward pass that averaged gradients had to do with other ranks, in seconds.
struct CommunicationTime {
  double total = 0;    // while collectives were under way (with a hook: those whose Work it returned)
  double exposed = 0;  // backward was through and waited for them; the rest was hidden behind its work
};

class Reducer;

/// While it lives, backward adds to this rank's gradients only. The first backward after it averages the sum.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<Reducer> reducer);
  ~NoSync();
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;

 private:
  std::shared_ptr<Reducer> reducer_;
};

/// What a DistributedDataParallel can do whatever its module is. Copies share it.
class DdpBase {
 public:
  /// NoSync guard = ddp.no_sync();
  NoSync no_sync() const { return NoSync(reducer_); }
  /// How many samples the next backward is about, for Average::samples. Losses are means over them; where several
  /// passes are added up (no_sync), their numbers are too.
  void set_samples(double count);
  UnusedParameters unused_parameters() const;
  CommunicationTime communication_time() const;
  /// MismatchError if parameters are not the same bits on all ranks, which names the first one that differs. All ranks
  /// must call it.
  void check_equal() const;
  /// The names of what is in each bucket, in the order in which they are averaged. Nothing before the first step.
  std::vector<std::vector<std::string>> buckets() const;
  /// For join({ddp}, ...).
  operator Joinable() const;  // NOLINT

 protected:
  DdpBase(nn::ModuleBase& module, const DdpOptions& options, const Place& place);
  void before_forward(nn::ModuleBase& module) const;
  void after_forward(nn::ModuleBase& module, const TensorList& outputs) const;

 private:
  std::shared_ptr<Reducer> reducer_;
};

/// See the top of this file. It is a module like any other; names of parameters and state_dict() are those of the
/// module inside, which shares its tensors with the one it was made from.
template <class M>
class DistributedDataParallel : public nn::Module<DistributedDataParallel<M>>, public DdpBase {
 public:
  using Wrapped = M;
  static constexpr bool anonymous_fields = true, other_members = true;
  M module;
  TUTTI_FIELDS(module)

  /// All ranks of the group make one at the same time: of modules that agree in names, shapes and dtypes, or else
  /// MismatchError says in which they differ. `place` is never given by hand.
  explicit DistributedDataParallel(M wrapped, const DdpOptions& options = {}, const Place& place = Place::current())
      : DdpBase(base_of(wrapped), options, place), module(std::move(wrapped)) {}

  template <class... Args>
  auto forward(Args&&... args) {
    return watched([&] { return module(std::forward<Args>(args)...); });
  }
  /// Of an AnyModule that returns an R.
  template <class R, class... Args>
    requires std::same_as<M, nn::AnyModule>
  R call(const Args&... args) {
    return watched([&] { return module.template call<R>(args...); });
  }
  /// A module of its own that no rank's gradients reach.
  M clone() const { return module.clone(); }

 private:
  static nn::ModuleBase& base_of(M& m) {
    if constexpr (std::same_as<M, nn::AnyModule>)
      return m.module();
    else
      return m;
  }
  template <class F>
  auto watched(F run) {
    before_forward(base_of(module));
    if constexpr (std::is_void_v<decltype(run())>) {
      run();
      after_forward(base_of(module), {});
    } else {
      auto result = run();
      after_forward(base_of(module), tree::tensors(result));
      return result;
    }
  }
};

}  // namespace tutti::parallel
