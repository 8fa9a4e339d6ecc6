#include "comm/transport/shm.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "comm/transport/progress.h"

namespace tutti::comm {
namespace {

constexpr size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }
constexpr size_t paged(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

/// What share() writes in place of facts.
struct Shown {
  uint64_t part = 0, bytes = 0;
};

template <class T>
const std::byte* as_bytes(const T& x) {
  return reinterpret_cast<const std::byte*>(&x);
}

}  // namespace

// ---- Memory

// In this order: what all share, the slots of all ranks, the rings' heads, all counters and facts, then what is large,
// on pages of its own: parts, and the rings' bytes. What is looked at together lies together, since memory is reserved
// by pages.
ShmGroup::Places ShmGroup::places() const {
  auto n = static_cast<size_t>(size());
  Places p;
  p.slots = aligned(sizeof(Shared));
  p.rings = p.slots + n * sizeof(RankSlots);
  p.counters = p.rings + n * n * sizeof(RingHead);
  p.parts = paged(p.counters + n * told_bytes());
  p.data = p.parts + n * kParts * static_cast<size_t>(kPart);
  p.end = p.data + n * n * RingHead::kBytes;
  return p;
}
size_t ShmGroup::told_bytes() const {
  // Two lines are fetched at once: those of one rank are not another's.
  return (sizeof(Counters) + 2 * aligned(CallFacts::room(size())) + 127) / 128 * 128;
}
std::byte* ShmGroup::facts(int rank, uint64_t number) const {
  return reinterpret_cast<std::byte*>(&counters(rank) + 1) + number % 2 * aligned(CallFacts::room(size()));
}
std::byte* ShmGroup::part(int rank, uint64_t number) const {
  return segment_.data() + places_.parts +
         (static_cast<size_t>(rank) * kParts + number % kParts) * static_cast<size_t>(kPart);
}

ShmGroup::ShmGroup(std::shared_ptr<ProcessWorld> world, std::vector<int> ranks, uint64_t id)
    : Transport(std::move(ranks)), world_(std::move(world)), id_(id), places_(places()), told_bytes_(told_bytes()) {
  auto mine = std::find(this->ranks().begin(), this->ranks().end(), world_->rank());
  if (mine == this->ranks().end()) return;  // not a member: knows the names only
  me_ = static_cast<int>(mine - this->ranks().begin());
  segment_name_ = fmt::format("{}-{:016x}", world_->name(), id);
  try {
    segment_ = Segment::named(segment_name_, places_.end, false);
    segment_.reserve(segment_.data(), sizeof(Shared));  // groups can be many: the rest when it is used
  } catch (const MemoryError& e) {                      // others have the group, and would wait in it
    world_->fail(world_->rank(), e.what(), "MemoryError");
    throw;
  }
  std::byte* data = segment_.data();
  if (has_slots()) slots_ = Slots(reinterpret_cast<RankSlots*>(data + places_.slots), size());
  messages_ = std::make_unique<RingMessages>(reinterpret_cast<RingHead*>(data + places_.rings), data + places_.data,
                                             this->ranks(), me_, [this](const std::byte* begin, size_t bytes) {
                                               try {
                                                 reserve(begin, bytes);
                                                 return true;
                                               } catch (const MemoryError&) {
                                                 return false;  // the world has failed, which ends all messages
                                               }
                                             });
  // When all have it, nobody needs the name any more, and nothing is left behind whatever happens.
  if (shared().attached.fetch_add(1) + 1 == static_cast<uint32_t>(size())) Segment::remove(segment_name_);
}

// Before anything is called. What every rank looks at: a page is taken where it is read, too.
void ShmGroup::prepare() {
  if (prepared_.load(std::memory_order_relaxed)) return;
  auto* slots = reinterpret_cast<RankSlots*>(segment_.data() + places_.slots);
  for (int k = 0; k < size() && has_slots(); ++k) reserve(as_bytes(slots[k].headers), sizeof slots[k].headers);
  reserve(as_bytes(counters(0)), static_cast<size_t>(size()) * told_bytes_);
  prepared_.store(true, std::memory_order_relaxed);
}

void ShmGroup::reserve(const std::byte* begin, size_t bytes) try {
  segment_.reserve(begin, bytes);
} catch (const MemoryError& e) {
  world_->fail(world_->rank(), e.what(), "MemoryError");
  event().notify();
  throw;
}

std::byte* ShmGroup::room(uint64_t number, size_t bytes) {
  std::byte* begin = part(me_, number);
  size_t& reserved = reserved_[number % kParts];
  if (bytes > reserved) {
    reserve(begin + reserved, bytes - reserved);
    reserved = bytes;
  }
  return begin;
}

ShmGroup::~ShmGroup() {
  {
    std::lock_guard lock(carrier_mutex_);
    stop_ = true;
  }
  carrier_changed_.notify_all();
  if (me_ >= 0) event().notify();
  queue_.stop();
  if (carrier_.joinable()) carrier_.join();
}

std::shared_ptr<Transport> ShmGroup::subgroup(int rank, const std::vector<int>& members) {
  std::vector<int> global;
  for (int m : members) global.push_back(ranks()[static_cast<size_t>(m)]);
  uint64_t count = 0;
  if (std::count(members.begin(), members.end(), rank)) {
    std::lock_guard lock(subgroups_mutex_);
    count = subgroups_[members]++;
  }
  return world_->group(global, id_, count);
}

std::shared_ptr<std::byte> ShmGroup::memory(int rank, size_t bytes) try {
  uint64_t number = ++next_region_;
  size_t part = paged(bytes);
  auto region = std::make_shared<Regions::Region>(Regions::Region{
      Segment::named(fmt::format("{}-{}", segment_name_, number), part * ranks().size(), true), number, part});
  regions_->add(region, rank);
  return {region->part(rank), [regions = regions_](std::byte* part) { regions->remove(part); }};
} catch (const MemoryError&) {
  return {};  // where shared memory is short, what others have will do
}

void ShmGroup::memory_found() { Segment::remove(fmt::format("{}-{}", segment_name_, next_region_)); }

// ---- Waiting

std::string ShmGroup::late_text(const Call& call, uint64_t number, const TimeLimit& limit) const {
  std::string text = fmt::format("rank {} waited {} in collective {}, {}:", world_->rank(), seconds(limit.timeout()),
                                 number, comm::describe(call));
  for (int k = 0; k < size(); ++k) {
    if (k == me_) continue;
    bool came = counters(k).calls.load() > number, behind = counters(k).facts.load() < counters(me_).facts.load() ||
                                                            counters(k).parts.load() < counters(me_).parts.load();
    if (came && !behind) continue;
    int rank = ranks()[static_cast<size_t>(k)];
    text += fmt::format("\n  rank {} {}; {}", rank, came ? "came, and stopped in the middle" : "did not come",
                        world_->last_call(rank, id_));
    if (world_->has_ended(rank)) text += "; it has ended";
  }
  return advised(std::move(text), call.purpose);
}

void ShmGroup::time_out(const Call& call, uint64_t number, const TimeLimit& limit) {
  std::string text = late_text(call, number, limit);
  world_->fail(world_->rank(), text, "TimeoutError");
  event().notify();
  tutti::fail<TimeoutError>("", "{}", text);
}

WaitFor ShmGroup::missing(const Call& call, uint64_t number) const {
  WaitFor wait = WaitFor::collective(id_, number, call);
  for (int k = 0; k < size(); ++k)
    if (counters(k).calls.load() <= number) wait.add(ranks()[static_cast<size_t>(k)]);
  return wait;
}

bool ShmGroup::decide(uint64_t number, Stage stage, bool runs) {
  uint64_t of_call = number + 1, at = static_cast<uint64_t>(stage);
  uint64_t mine = of_call << 2 | at << 1 | uint64_t{runs}, seen = shared().verdict.load();
  while (true) {
    if (seen >> 2 > of_call) return true;  // nobody goes on to the next call otherwise
    if (seen >> 2 == of_call) {
      if ((seen & 1) == 0) return false;
      if ((seen >> 1 & 1) >= at) return true;
    }
    if (shared().verdict.compare_exchange_weak(seen, mine)) return runs;
  }
}

void ShmGroup::begin(uint64_t number, Stage stage, const Call& call, const TimeLimit& limit) {
  if (decide(number, stage, true)) return;
  auto deadline = std::max(limit.end(), Clock::now() + std::chrono::seconds(1));  // who left says so next
  while (!event().wait(Clock::now() + kWatch, false, [&] { return world_->failed(); })) {
    world_->watch();
    if (Clock::now() >= deadline) time_out(call, number, limit);
  }
  world_->check();
}

// What all have come to is being carried out, and ends by itself though its time was spent in a queue: only a rank that
// is stopped takes a whole timeout more.
static TimeLimit::Point end_of_move(const TimeLimit& limit) {
  std::chrono::milliseconds more = std::max<std::chrono::milliseconds>(limit.timeout(), std::chrono::seconds(1));
  return std::max(limit.end(), Clock::now() + more);
}

// In this order, since a rank counts its calls before it says so.
bool ShmGroup::is_without(int k, uint64_t number) const {
  int rank = ranks()[static_cast<size_t>(k)];
  if (world_->has_ended(rank)) return counters(k).calls.load() <= number;
  // Of a part the whole knows.
  return !is_part_ && world_->is_over(rank) && counters(k).calls.load() <= number && counters(k).made.load() <= number;
}

void ShmGroup::over() {
  if (me_ < 0 || is_part_) return;
  uint64_t made = queue_.made();
  if (made == 0) return;
  try {
    prepare();
    counters(me_).made.store(made);
  } catch (const MemoryError&) {  // the world has failed
  }
}

template <class Ready>
void ShmGroup::await(const Ready& ready, Stage stage, const Call& call, uint64_t number, const TimeLimit& limit) {
  // False: the last has come this very moment.
  auto may_leave = [&] { return stage == Stage::moved || !decide(number, stage, false); };
  auto come = [&] { return ready() || world_->failed() || queue_.cancel_asked(); };
  if (!Event::look(world_->spin(), come)) {
    auto deadline = stage == Stage::moved ? end_of_move(limit) : limit.end();
    LongWait board(world_->waits(), world_->rank());
    while (!event().wait(std::min(deadline, Clock::now() + kWatch), false, come)) {
      world_->watch();
      for (int k = 0; k < size(); ++k) {
        int rank = ranks()[static_cast<size_t>(k)];
        if (is_without(k, number))
          world_->fail(rank, fmt::format("it ended without taking part in collective {} of a group of {}, which others "
                                         "wait for: {}{}",
                                         number, size(), comm::describe(call), advice(call.purpose)));
      }
      world_->look_for_cycle(board, [&] { return missing(call, number); });
      if (Clock::now() >= deadline && !come() && may_leave()) time_out(call, number, limit);
    }
  }
  if (ready() || !may_leave()) return;
  world_->check();
  world_->fail(world_->rank(), fmt::format("it cancelled {}", comm::describe(call)));
  event().notify();
  queue_.leave();
}

void ShmGroup::await(std::atomic<uint64_t> Counters::* counter, uint64_t value, Stage stage, const Call& call,
                     uint64_t number, const TimeLimit& limit) {
  int first = 0;
  await(
      [&] {
        while (first < size() && (counters(first).*counter).load() >= value) ++first;
        return first == size();
      },
      stage, call, number, limit);
}

void ShmGroup::stay(const Call& call, uint64_t number, const TimeLimit& limit) {
  auto through = [&](int k) { return counters(k).parts.load() >= next_part_; };
  int first = 0;
  auto all = [&] {
    while (first < size() && through(first)) ++first;
    return first == size();
  };
  if (Event::look(world_->spin(), all)) return;
  // They need nobody for what is left: only one that is stopped takes long.
  auto deadline = end_of_move(limit);
  while (!event().wait(std::min(deadline, Clock::now() + kWatch), false, all)) {
    world_->watch();
    bool none_left = true;
    for (int k = 0; k < size(); ++k)
      none_left = none_left && (world_->is_gone(ranks()[static_cast<size_t>(k)]) || through(k));
    if (none_left && !all()) world_->check();
    if (Clock::now() >= deadline && !all()) time_out(call, number, limit);
  }
}

// ---- Collectives

void ShmGroup::execute(const Call& call, const TimeLimit& limit) {
  world_->check();
  prepare();
  uint64_t number = next_++;
  std::optional<SmallShape> small;
  if (slots_) small = small_shape(call, me_, size());
  bool told = small && may_be_uneven(call.kind);
  if (small && small->bytes > SlotHeader::kInline && !slots_reserved_) {
    slots_.reserve(me_, [&](const std::byte* begin, size_t bytes) { reserve(begin, bytes); });
    slots_reserved_ = true;
  }
  // First: the others may be waiting for it.
  bool may_be_cancelled = queue_.may_be_cancelled();
  if (small && !told) slots_.publish_small(me_, number, call, *small, may_be_cancelled);
  CallFacts mine = facts_of(call, me_, size());
  std::optional<ProcessWorld::Noted> noted;
  if (!is_part_) noted.emplace(*world_->state(me_), world_->note(id_, number, mine.header));
  counters(me_).calls.store(next_, std::memory_order_release);
  if (told) {
    tell(call, mine);
    slots_.publish_small(me_, number, call, *small, may_be_cancelled);
  }
  bool done = false;
  if (small) {
    int first = 0;
    auto ready = [&] {
      first = slots_.missing(number, first);
      return first == size();
    };
    bool come = Event::look(world_->spin(), ready);
    event().notify_after_fence();
    count_round();
    if (!come) await(ready, Stage::stamped, call, number, limit);
    if (slots_.may_be_cancelled(number)) begin(number, Stage::stamped, call, limit);
    queue_.past();
    done = slots_.finish(me_, number, call, *small);
  }
  if (done) return;
  if (!told) tell(call, mine);
  if (slots_ && !small) slots_.publish_long(me_, number);
  event().notify();
  // Who has waited for stamps of calls that were told before them waits no more.
  if (!small || !told) count_round();
  execute_long(call, number, limit);
}

void ShmGroup::tell(const Call& call, CallFacts facts) {
  Regions::Place place = regions_->find(call);
  facts.header.region = place.number;
  facts.header.region_offset = place.offset;
  if (place.number == 0) copy_part(given_by(call, me_), call.dtype, 0);
  facts.write(this->facts(me_, next_long_), size());
  counters(me_).facts.store(++next_long_);
}

void ShmGroup::execute_long(const Call& call, uint64_t number, const TimeLimit& limit) {
  uint64_t told = next_long_;
  await(&Counters::facts, told, Stage::told, call, number, limit);
  begin(number, Stage::told, call, limit);
  queue_.past();
  std::vector<CallFacts> calls;
  for (int r = 0; r < size(); ++r) calls.push_back(CallFacts::read(facts(r, told - 1), size()));
  if (auto mismatch = find_mismatch(calls, ranks(), number))
    tutti::fail<MismatchError>(comm::name(call.kind), "{}", *mismatch);
  if (auto region = common_region(calls)) {
    move_in_place(call, calls, *region, number);
    counters(me_).parts.store(++next_part_);
    event().notify();
    // Until then others read this rank's part, or write it.
    count_round();
    stay(call, number, limit);
  } else {
    move(call, calls, number, limit);
  }
}

std::shared_ptr<Regions::Region> ShmGroup::common_region(const std::vector<CallFacts>& calls) const {
  uint64_t region = calls[0].header.region;
  for (const CallFacts& c : calls)
    if (c.header.region != region) return nullptr;
  return region == 0 ? nullptr : regions_->get(region);
}

std::optional<int64_t> ShmGroup::take_chunk(uint64_t number, int64_t chunks) {
  // Nobody is in another call while somebody is in this one, so that the word is of this call or of an earlier one.
  uint64_t mine = number << 32, seen = shared().chunk.load();
  while (true) {
    uint64_t next = seen >> 32 << 32 == mine ? seen : mine;
    if (static_cast<int64_t>(next - mine) >= chunks) return {};
    if (shared().chunk.compare_exchange_weak(seen, next + 1)) return static_cast<int64_t>(next - mine);
  }
}

void ShmGroup::move_in_place(const Call& call, const std::vector<CallFacts>& calls, const Regions::Region& region,
                             uint64_t number) {
  Streams s = plan_streams(call, me_, calls);
  s.reduction.factors = s.factors;
  auto n = static_cast<size_t>(size());
  auto element = static_cast<int64_t>(size_of(call.dtype));
  std::vector<std::byte*> parts;
  for (size_t r = 0; r < n; ++r) parts.push_back(region.part(static_cast<int>(r)) + calls[r].header.region_offset);
  auto combine = [&](int64_t offset, int64_t count, std::span<void* const> targets) {
    std::vector<const void*> sources;
    for (std::byte* p : parts) sources.push_back(p + offset);
    reduce_into(s.reduction, sources, targets, count);
  };
  if (call.kind == Kind::all_reduce) {
    int64_t count = calls[0].header.bytes / element, share = (count + size() - 1) / size();
    int64_t chunk = std::clamp<int64_t>(share, kLeast / element, kPart / element);
    while (auto k = take_chunk(number, (count + chunk - 1) / chunk)) {
      std::vector<void*> targets;
      for (std::byte* p : parts) targets.push_back(p + *k * chunk * element);
      combine(*k * chunk * element, std::min(chunk, count - *k * chunk), targets);
    }
    return;
  }
  for (const Streams::Copy& c : s.copies) {
    const std::byte* from = parts[static_cast<size_t>(c.from)] + c.offset;
    if (from != c.to) std::memmove(c.to, from, static_cast<size_t>(c.bytes));
  }
  for (const Streams::Combine& c : s.combines)
    for (int64_t at = 0, chunk = kPart / element; at < c.count; at += chunk) {
      void* target = c.to + at * element;
      combine(c.offset + at * element, std::min(chunk, c.count - at), {&target, 1});
    }
}

void ShmGroup::move(const Call& call, const std::vector<CallFacts>& calls, uint64_t number, const TimeLimit& limit) {
  Streams s = plan_streams(call, me_, calls);
  s.reduction.factors = s.factors;
  int64_t most = *std::max_element(s.bytes.begin(), s.bytes.end()), parts = (most + kPart - 1) / kPart;
  // Who names a region has told no data, since mostly all do.
  bool told = std::all_of(calls.begin(), calls.end(), [](const CallFacts& c) { return c.header.region == 0; });
  for (int64_t i = 0; i < parts; ++i) {
    if (i == 0 && !told) write_part(s, 0);
    if (i + 1 < parts) write_part(s, i + 1);
    if (i > 0 || !told) {
      count_round();
      await(&Counters::parts, next_part_ + static_cast<uint64_t>(i) + 1, Stage::moved, call, number, limit);
    }
    read_part(s, i);
  }
  next_part_ += static_cast<uint64_t>(parts);
}

void ShmGroup::copy_part(const Pieces& give, DType dtype, int64_t index) {
  int64_t begin = index * kPart, end = begin + kPart, at = 0, all = 0;
  auto element = static_cast<int64_t>(size_of(dtype));
  for (const Piece& p : give) all += p.count * element;
  std::byte* to =
      room(next_part_ + static_cast<uint64_t>(index), static_cast<size_t>(std::clamp<int64_t>(all - begin, 0, kPart)));
  for (const Piece& p : give) {
    int64_t bytes = p.count * element, lo = std::max(begin, at), hi = std::min(end, at + bytes);
    if (lo < hi)
      std::memcpy(to + (lo - begin), static_cast<const std::byte*>(p.data) + (lo - at), static_cast<size_t>(hi - lo));
    at += bytes;
  }
}

void ShmGroup::write_part(const Streams& s, int64_t index) {
  copy_part(s.give, s.reduction.dtype, index);
  counters(me_).parts.store(next_part_ + static_cast<uint64_t>(index) + 1);
  event().notify();
}

void ShmGroup::read_part(const Streams& s, int64_t index) {
  uint64_t number = next_part_ + static_cast<uint64_t>(index);
  int64_t begin = index * kPart, end = begin + kPart;
  for (const Streams::Copy& c : s.copies) {
    int64_t lo = std::max(begin, c.offset), hi = std::min(end, c.offset + c.bytes);
    if (lo < hi) std::memcpy(c.to + (lo - c.offset), part(c.from, number) + (lo - begin), static_cast<size_t>(hi - lo));
  }
  auto element = static_cast<int64_t>(size_of(s.reduction.dtype));
  std::vector<const void*> sources(static_cast<size_t>(size()));
  for (const Streams::Combine& c : s.combines) {
    int64_t lo = std::max(begin, c.offset), hi = std::min(end, c.offset + c.count * element);
    if (lo >= hi) continue;
    for (int r = 0; r < size(); ++r) sources[static_cast<size_t>(r)] = part(r, number) + (lo - begin);
    sources[static_cast<size_t>(me_)] = c.mine + (lo - c.offset);
    void* target = c.to + (lo - c.offset);
    reduce_into(s.reduction, sources, {&target, 1}, (hi - lo) / element);
  }
}

uint64_t ShmGroup::share(std::span<const std::byte> bytes) {
  TUTTI_ASSERT(bytes.size() <= kShare);
  prepare();
  counters(me_).calls.store(++next_, std::memory_order_release);
  uint64_t number = next_long_;
  Shown shown{next_part_++, bytes.size()};
  std::memcpy(facts(me_, number), &shown, sizeof shown);
  if (!bytes.empty()) std::memcpy(room(shown.part, bytes.size()), bytes.data(), bytes.size());
  counters(me_).facts.store(++next_long_);
  event().notify();
  return number;
}

std::span<const std::byte> ShmGroup::shared(int rank, uint64_t number) const {
  Shown shown;
  std::memcpy(&shown, facts(rank, number), sizeof shown);
  return {part(rank, shown.part), shown.bytes};
}

void ShmGroup::run(int rank, Call&& call, std::chrono::milliseconds timeout) {
  if (queue_.try_run(call, timeout)) return;
  auto work = std::make_shared<WorkState>();
  work->set_timeout(timeout);
  start(rank, std::move(call), work);
  wait(*work, work->limit.end(), false);
  if (work->error()) std::rethrow_exception(work->error());
}

void ShmGroup::start(int rank, Call call, const std::shared_ptr<WorkState>& work) {
  world_->check();
  work->rank = rank;
  queue_.start(std::move(call), work);
}

bool ShmGroup::wait(WorkState& work, Clock::time_point deadline, bool give_up) {
  if (work.is_message) return wait_message(work, deadline, give_up);
  if (give_up) return queue_.wait(work, deadline);
  LongWait board(world_->waits(), world_->rank());
  while (!queue_.wait(work, std::min(deadline, Clock::now() + world_->waits().period()))) {
    if (Clock::now() >= deadline && !expire(work)) deadline = Clock::time_point::max();
    world_->look_for_cycle(board, [] { return WaitFor{.indirect = true}; });
  }
  return true;
}

bool ShmGroup::expire(WorkState& work) {
  if (work.is_message) return wait_message(work, Clock::now(), false);
  // One that has begun ends by the same clock, on the thread that it is on.
  return queue_.take(work, [&](const Call& call, size_t before) {
    if (world_->failed()) return work.complete(world_->failure());
    try {
      prepare();
    } catch (const MemoryError&) {
      return work.complete(std::current_exception());
    }
    std::string text = late_text(call, counters(me_).calls.load() + before, work.limit);
    world_->fail(world_->rank(), text, "TimeoutError");
    event().notify();
    work.complete(std::make_exception_ptr(TimeoutError(text, "")));
  });
}

bool ShmGroup::cancel(WorkState& work) {
  auto cancelled = [] { return std::make_exception_ptr(CancelledError("this work was cancelled", "Work::cancel")); };
  if (work.is_message) {
    if (!messages_->withdraw(work, false)) return false;
    work.complete(cancelled());
    move_messages();  // the other side may have to be told
    event().notify();
    return true;
  }
  return queue_.cancel(
      work, [&] { event().notify(); },
      [&](const Call& call) {
        work.complete(cancelled());
        world_->fail(world_->rank(), fmt::format("it cancelled {}", comm::describe(call)));
        event().notify();
      });
}

}  // namespace tutti::comm
