// What DistributedDataParallel does: gradients into buckets, buckets through collectives, and back.
//
// Note [A pass of the reducer]
// A hook on every parameter tells when its gradient has been accumulated; the sink (see GradientSink) says where it is.
// The first hook of a backward pass begins a pass here, the end of the outermost backward (after_backward) ends it.
//
// Nobody can know in advance which gradients will come, and how often: graphs change, and what is checkpointed comes
// once for each piece. So the last pass is taken for a prediction. A parameter is ready when it has come as often as
// then, a bucket when all of its parameters are, and it leaves when all buckets before it have left: this order is the
// same on all ranks, whatever they use. Predictions may be wrong. What does not come is filled up with zeros (or with
// the gradient that the parameter had) at the end; what comes after its bucket has left is `late` and is averaged at
// the end, in buckets of late ones: averages add up. Sparse gradients are averaged by themselves. At the end all ranks
// exchange what each has of that, one byte a parameter; with a static graph there is nothing to exchange, since
// predictions must be right.
//
// From when it is in a bucket until the end of the pass the sink has no gradient for the parameter, so that nobody
// writes where the collective is at work. At the end it gets the part of the bucket (a copy of it, if the sink is
// not the default one: contexts of distributed autograd live side by side, while there is only one set of buckets).
//
// Where several wrapped modules take part in one backward, their passes end in the order in which the wrappers were
// made, which is the same on all ranks, and not in that of the graph, which need not be.
//
// The first pass only observes; buckets are made at its end, in the order in which rank 0's gradients came. What nobody
// used in it has no place in them, and costs nothing. When one of those is used after all, its gradient is late, and
// buckets are made anew, for everything: there is no telling what such a graph will use.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "parallel/agree.h"
#include "parallel/join.h"
#include "tutti/autograd.h"
#include "tutti/parallel/ddp.h"

namespace tutti::parallel {

inline constexpr const char* kDdpName = "DistributedDataParallel";  // in errors

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  static std::shared_ptr<Reducer> make(nn::ModuleBase& module, const DdpOptions& options);
  Reducer(nn::ModuleBase& module, const DdpOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Throws unless the module's parameters are those that the reducer knows.
  void check_module(nn::ModuleBase& module);
  /// Buffers may be replaced, by forward too: what is there now counts.
  void find_buffers(nn::ModuleBase& module);
  /// A pass begins as soon as gradients flow into these, even if none of our parameters gets any.
  void watch(const TensorList& outputs);
  void set_samples(double count);
  /// How much this rank's gradients count in the average by samples that is being made, if one is.
  std::optional<double> weight_of_pass() const;
  void add_no_sync(int change);
  UnusedParameters unused() const;
  CommunicationTime communication_time() const;
  std::vector<std::vector<std::string>> bucket_names() const;
  void check_equal();
  const std::shared_ptr<JoinPart>& join_part() const { return join_; }

 private:
  // What a rank has for a parameter, as it tells the others.
  enum Flag : uint8_t { kDense = 1, kSparse = 2, kLate = 4, kUsed = 8, kGraph = 16 };
  struct Entry {
    std::string name;
    Tensor parameter;
    int bucket = -1;                // none: its gradients are sparse, or have never come to anyone
    Tensor slot;                    // its part of the bucket
    uint32_t expected = 1;          // times that it came in the last pass
    uint32_t count = 0;             // in this one
    bool dirty = false;             // has gradients that other ranks do not know of
    bool filled = false;            // the slot has this pass's gradient
    Tensor sparse, late;            // what does not go by the bucket
    Tensor before;                  // the gradient that was there when nothing came
    Tensor kept;                    // a copy of it, if it lies in the slot
    const char* purpose = nullptr;  // of collectives of its own: see aside()
  };
  using Clock = std::chrono::steady_clock;
  struct Bucket {
    GradientBucket content;
    std::vector<size_t> members;
    std::vector<int64_t> offsets;  // of each member, in elements
    int64_t elements = 0;
    const char* purpose = nullptr;  // of its collectives: see comm::PurposeGuard, and kEachBatch for its mark
    size_t missing = 0;             // members that are not ready
    bool left = false;
    Clock::time_point began{};
    std::shared_ptr<std::atomic<Clock::rep>> ended;  // set by whoever completes the work
    Communication sent;
    TensorList given;  // what the hook got: its buffer and gradients, which it must write into
  };
  struct Pass {
    bool active = false, syncing = false, observing = false, with_graph = false, joined = false;
    bool everyone = true;  // no rank has joined
    int leader = 0;        // whose buffers, and whose order, count
    double samples = 0;    // of this pass
    std::vector<size_t> order;
  };

  void adopt(nn::ModuleBase& module);
  [[noreturn]] void unknown_parameter(const nn::ModuleBase& module, const Tensor& p) const;
  void accumulated(size_t index);
  bool begin_pass(const Entry* come = nullptr);
  void refuse_broken(const Entry* come) const;
  void forget_cleared();
  void begin_sync(bool joined);
  void offer_homes();
  void take(Entry& entry);
  void take_rest(Entry& entry);
  void end_pass(bool well);
  void meet_joined();
  void finish_pass();
  void finish_with_graph();
  void put_back();
  void shadow(int64_t mode);
  void reset_pass(bool well = true);

  std::vector<uint8_t> my_flags();
  std::vector<uint8_t> exchange_flags();
  std::vector<std::vector<size_t>> used_by_kind(const std::vector<uint8_t>& flags) const;
  Tensor gradient_with_graph(const Entry& entry) const;
  bool average_without_graph(Entry& entry, uint8_t flags);
  void refuse_second_backward(const TensorList& averaged) const;
  void check_static() const;
  std::string static_difference(size_t index) const;
  void exchange_all(Clock::time_point waiting_since);
  void wait_for(std::deque<Bucket>& buckets, Clock::time_point& last);
  void send_late();
  void fill_late(Bucket& bucket);
  std::vector<Work> send_sparse();
  void hand_out(Entry& entry, uint8_t flags);
  void note_unused(const std::vector<uint8_t>& flags);
  void sync_buffers();
  void end_pass();

  const char* purpose_of(const Bucket& bucket) const;
  static const char* aside(Entry& entry);
  void agree_on_order();
  void make_buckets();
  void give_memory(Bucket& bucket);
  void leave(Bucket& bucket);
  void leave_ready();
  static void check_given(const Bucket& bucket);
  void send(Bucket& bucket);
  size_t in_flight() const;

  ReduceOptions average() const;
  CollectiveOptions collective() const;
  void broadcast_all(const TensorList& tensors, int root) const;

  const DdpOptions options_;
  const uint64_t number_;  // grows from one to the next: the order in which passes end
  Group group_;            // the user's
  Group channel_;          // the same ranks: so that our collectives never get between the user's
  std::vector<Entry> entries_;
  std::unordered_map<TensorImpl*, size_t> index_;
  std::vector<HookHandle> hooks_;
  struct NamedBuffer {
    std::string name;
    Tensor tensor;
    BufferPolicy policy;
  };
  std::vector<NamedBuffer> buffers_;
  std::vector<size_t> buffer_visits_;  // which of them is met, in the order of the module's fields: some are shared

  // Hooks of autograd may run in several threads; a communication hook may call the wrapper from within.
  mutable std::recursive_mutex mutex_;
  Pass pass_;
  std::deque<Bucket> buckets_;
  std::deque<Bucket> late_;     // of what came too late for those, in this pass
  size_t next_ = 0;             // bucket to leave
  std::vector<size_t> order_;   // of entries; empty before the first pass
  std::vector<uint8_t> flags_;  // of all ranks together, in the last pass
  std::vector<bool> sparse_;    // entries whose gradients are
  bool changes_ = false;        // what nobody used in the first pass has been used since
  bool counted_ = false;        // this rank has had a pass, by which to expect
  UnusedParameters unused_;
  CommunicationTime time_;
  int no_sync_ = 0;
  int64_t passes_ = 0;
  std::optional<double> next_samples_;  // of the next pass
  double earlier_samples_ = 0;          // of passes without averaging since the last one with
  std::string broken_;                  // why it cannot go on
  std::shared_ptr<JoinPart> join_ = std::make_shared<JoinPart>();
};

}  // namespace tutti::parallel
