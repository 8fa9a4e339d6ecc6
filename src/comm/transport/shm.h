// Ranks that are processes of one host: what they give goes through memory that they share.
//
// Note [Collectives of processes]
// Small ones take the way of Note [Small collectives]. For others each rank copies its stream (see streams.h), a part
// at a time, into its part of the shared memory, and takes what it needs from the others' parts. With the first part
// the ranks tell each other the facts of their calls; who has waited for the first parts of all can see whether the
// calls fit before it takes anything, so that this costs no wait of its own. Where facts are told and not needed, or do
// not fit, the part that was told with them is simply written again by the next call. A part is written while the one
// before is being read: who has written part k has read part k-2. Before a rank writes part k+1 it has seen that all
// have written k-1, and so have read k-3; there it goes, so there are four. The first part of a call is written when
// all have written the last of the call before, by which the same holds. Nobody touches another's own memory, so a rank
// can leave at any moment. What lies in memory of the group needs no copies: see Note [Group memory]; there the first
// wait says that all parts are ready, and the last that they are free again.
//
// Note [Leaving a collective]
// A rank that waits for others to come may leave: its user cancels, its time is over, the world has failed. Others
// must not carry out the call then, least of all in memory of the rank that left. So the call has a verdict, a word in
// shared memory that is set once: who finds all there sets it to "runs", who wants to leave to "left", and both do what
// the word says. A rank that reads "left" has nothing to do but to wait for the failure, which the one that left tells
// next. Small calls ask for a verdict only where a rank may cancel them, which its slot says: nobody touches another's
// memory there. Once a call runs in group memory nobody leaves it, whatever fails, before all others are through or
// dead.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <span>
#include <thread>

#include "comm/transport/call_queue.h"
#include "comm/transport/process_world.h"
#include "comm/transport/region.h"
#include "comm/transport/ring.h"
#include "comm/transport/small.h"
#include "comm/transport/streams.h"
#include "comm/transport/transport.h"

namespace tutti::comm {

class ShmGroup : public Transport {
 public:
  ShmGroup(std::shared_ptr<ProcessWorld> world, std::vector<int> ranks, uint64_t id);
  ~ShmGroup() override;
  const char* name() const override { return "shm"; }
  uint64_t id() const override { return id_; }
  void look_after_ranks() override {
    world_->watch();
    world_->check();
  }
  void fail(int, const std::string& kind, const std::string& text) override {
    world_->fail(world_->rank(), text, kind.c_str());
  }
  std::chrono::milliseconds timeout() const override { return world_->timeout(); }

  void run(int rank, Call&& call, std::chrono::milliseconds timeout) override;
  void start(int rank, Call call, const std::shared_ptr<WorkState>& work) override;
  bool wait(WorkState& work, Clock::time_point deadline, bool give_up) override;
  bool expire(WorkState& work) override;
  bool cancel(WorkState& work) override;
  void start_send(int rank, int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) override;
  void start_receive(int rank, int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) override;
  std::shared_ptr<Transport> subgroup(int rank, const std::vector<int>& members) override;
  std::shared_ptr<std::byte> memory(int rank, size_t bytes) override;
  void memory_found() override;

  /// Of this rank: Note [Ranks whose body is over].
  void over();

  /// For groups that this one is a part of, which compare their calls themselves: shows bytes to all other ranks. Each
  /// rank does so in its turn, waits until has_shared() says so of all, and reads what it wants before it calls
  /// anything else. Returns the number by which the others' are found. Of kShare bytes at most.
  static constexpr size_t kShare = 128 << 10;
  /// It is: what others see of this rank is the call of the whole.
  void set_part() { is_part_ = true; }
  uint64_t share(std::span<const std::byte> bytes);
  bool has_shared(int rank, uint64_t number) const { return counters(rank).facts.load() > number; }
  std::span<const std::byte> shared(int rank, uint64_t number) const;
  /// Until ready() says yes, or that time.
  bool wait_for(Clock::time_point until, const std::function<bool()>& ready) {
    return event().wait(until, world_->spin(), ready);
  }

 private:
  static constexpr auto kWatch = std::chrono::milliseconds(20);  // how often a rank that waits looks for dead processes
  static constexpr int64_t kPart = kShare;
  static constexpr int64_t kLeast = 8 << 10;  // that are worth a rank's coming
  static constexpr uint64_t kParts = 4;
  struct Shared {
    std::atomic<uint32_t> attached{0};
    Event event;
    // The next chunk of an all_reduce in place, below the number of the call: ranks take chunks as they can.
    alignas(64) std::atomic<uint64_t> chunk{0};
    // The newest: a call's number + 1, a Stage, and whether it runs. See Note [Leaving a collective].
    alignas(64) std::atomic<uint64_t> verdict{0};
  };
  /// What a rank waits for the others to have done.
  enum class Stage : uint8_t { stamped, told, moved };
  struct alignas(64) Counters {
    std::atomic<uint64_t> calls{0};  // that the rank has begun
    std::atomic<uint64_t> facts{0};  // that it has told
    std::atomic<uint64_t> parts{0};  // that it has written
    std::atomic<uint64_t> made{0};   // calls, with those that have not begun; known when its body is over
  };
  /// Where things begin in the group's memory.
  struct Places {
    size_t slots, rings, counters, parts, data, end;
  };
  Places places() const;
  size_t told_bytes() const;  // a rank's counters and facts
  bool has_slots() const { return size() > 1 && size() <= kSmallRanks; }
  /// Whether that call will never come.
  bool is_without(int rank, uint64_t number) const;
  Counters& counters(int rank) const {
    return *reinterpret_cast<Counters*>(segment_.data() + places_.counters + static_cast<size_t>(rank) * told_bytes_);
  }
  std::byte* facts(int rank, uint64_t number) const;
  std::byte* part(int rank, uint64_t number) const;
  void prepare();
  /// Shared memory that is short fails the world: others would wait for this rank.
  void reserve(const std::byte* begin, size_t bytes);
  /// This rank's part of that number, to write so many bytes.
  std::byte* room(uint64_t number, size_t bytes);
  Shared& shared() const { return *reinterpret_cast<Shared*>(segment_.data()); }
  Event& event() const { return shared().event; }

  /// One call at a time.
  void execute(const Call& call, const TimeLimit& limit);
  /// Writes the facts of a call, and the first part of this rank's stream, where others see them.
  void tell(const Call& call, CallFacts facts);
  /// When this rank has told.
  void execute_long(const Call& call, uint64_t number, const TimeLimit& limit);
  void move(const Call& call, const std::vector<CallFacts>& calls, uint64_t number, const TimeLimit& limit);
  void move_in_place(const Call& call, const std::vector<CallFacts>& calls, const Regions::Region& region,
                     uint64_t number);
  std::optional<int64_t> take_chunk(uint64_t number, int64_t chunks);
  /// The region that all ranks' calls name.
  std::shared_ptr<Regions::Region> common_region(const std::vector<CallFacts>& calls) const;
  void copy_part(const Pieces& give, DType dtype, int64_t index);
  void write_part(const Streams& s, int64_t index);
  void read_part(const Streams& s, int64_t index);
  /// Waits until all ranks' counters are at least `value`; throws what is in the way.
  void await(std::atomic<uint64_t> Counters::* counter, uint64_t value, Stage stage, const Call& call, uint64_t number,
             const TimeLimit& limit);
  template <class Ready>
  void await(const Ready& ready, Stage stage, const Call& call, uint64_t number, const TimeLimit& limit);
  /// The verdict of a call at this stage, which is `runs` if there is none yet.
  bool decide(uint64_t number, Stage stage, bool runs);
  /// When all have come: returns if nobody has left.
  void begin(uint64_t number, Stage stage, const Call& call, const TimeLimit& limit);
  /// Waits until nobody uses this rank's part of the group's memory any more.
  void stay(const Call& call, uint64_t number, const TimeLimit& limit);
  [[noreturn]] void time_out(const Call& call, uint64_t number, const TimeLimit& limit);
  std::string late_text(const Call& call, uint64_t number, const TimeLimit& limit) const;
  WaitFor missing(const Call& call, uint64_t number) const;
  bool wait_message(WorkState& work, Clock::time_point deadline, bool give_up);
  bool has_ended(const WorkState& work) const;
  void started_message(WorkState& work, int rank, int peer);
  void move_messages();

  const std::shared_ptr<ProcessWorld> world_;
  const uint64_t id_;
  int me_ = -1;
  bool is_part_ = false;
  const Places places_;
  const size_t told_bytes_;
  Segment segment_;
  std::string segment_name_;
  // What of the memory that this rank writes is reserved: see Segment.
  std::array<size_t, kParts> reserved_{};
  bool slots_reserved_ = false;
  std::atomic<bool> prepared_{false};
  Slots slots_;
  const std::shared_ptr<Regions> regions_ = std::make_shared<Regions>();  // tensors in it may outlive the group
  uint64_t next_region_ = 0;
  uint64_t next_ = 0, next_long_ = 0, next_part_ = 0;

  std::unique_ptr<RingMessages> messages_;
  std::mutex carrier_mutex_;
  std::condition_variable carrier_changed_;
  std::atomic<bool> stop_{false};
  std::thread carrier_;  // moves messages that nobody waits for; started with the first
  std::mutex subgroups_mutex_;
  std::map<std::vector<int>, uint64_t> subgroups_;
  CallQueue queue_{[this](const Call& call, const TimeLimit& limit) { execute(call, limit); }};
};

}  // namespace tutti::comm
