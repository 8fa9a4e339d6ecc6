#include "comm/transport/threads.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/small_vector.h"
#include "comm/transport/progress.h"
#include "tutti/context.h"

namespace tutti::comm {
namespace {

constexpr int64_t kSmallestChunk = 16 << 10, kLargestChunk = 256 << 10;  // bytes
constexpr int64_t kInline = 64 << 10;  // bytes that the last rank of an asynchronous collective moves itself

}  // namespace

// ---- Groups

ThreadGroup::ThreadGroup(std::shared_ptr<World> world, std::vector<int> ranks, uint64_t id)
    : Transport(std::move(ranks)),
      world_(std::move(world)),
      id_(id),
      states_(this->ranks().size()),
      mailboxes_(this->ranks()) {
  if (size() > 1 && size() <= kSmallRanks) {
    slot_memory_ = std::make_unique<RankSlots[]>(states_.size());
    slots_ = Slots(slot_memory_.get(), size());
  }
  for (uint64_t k = 0; k < kOperations; ++k) {
    Operation& op = operations_[k];
    op.turn.store(k);
    op.phase.store(word(k, open));
    op.calls.resize(states_.size());
    op.facts.resize(states_.size());
    op.works.resize(states_.size());
  }
}

void ThreadGroup::kill(int rank, const std::string& why) { world_->fail(ranks()[static_cast<size_t>(rank)], why); }

std::shared_ptr<Transport> ThreadGroup::subgroup(int rank, const std::vector<int>& members) {
  std::vector<int> global;
  for (int m : members) global.push_back(ranks()[static_cast<size_t>(m)]);
  uint64_t count = 0;
  bool member = std::count(members.begin(), members.end(), rank) > 0;
  if (member) {
    std::lock_guard lock(subgroups_mutex_);
    count = subgroups_[{rank, members}]++;
  }
  return world_->group(global, id_, count, member);
}

uint64_t ThreadGroup::post(int rank, uint64_t number, Call call, std::shared_ptr<WorkState> work,
                           Clock::time_point deadline, std::unique_lock<std::timed_mutex> posting) {
  auto r = static_cast<size_t>(rank);
  uint64_t sequence = states_[r].next_long++;
  Operation& op = operation(sequence);
  // Entries are used again when all have left; with many asynchronous calls on their way, wait for the oldest.
  if (op.turn.load() != sequence) {
    auto ready = [&] {
      help();
      return op.turn.load() == sequence || world_->failed();
    };
    bool free = wait_long_time(rank, deadline, world_->spin(), ready, [&] {
      return missing(WaitFor::collective(id_, operation(completed_.load()).number.load(), call));
    });
    world_->check();
    if (!free) {
      std::string text = fmt::format(
          "rank {} could not begin {}: {} calls of its group are on their way, the oldest of "
          "which has not ended in time{}",
          ranks()[r], comm::describe(call), kOperations,
          missing_text(rank, operation(completed_.load()).number.load()));
      text = advised(std::move(text), call.purpose);
      world_->fail(ranks()[r], text);  // its number is used up: the group cannot go on
      tutti::fail<TimeoutError>("", "{}", text);
    }
  }
  op.number.store(number);
  op.facts[r] = facts_of(call, rank, size());
  op.calls[r] = std::move(call);
  op.works[r] = work;
  if (work) {
    work->sequence = sequence;
    work->posted.store(true);
  }
  bool last = op.arrived.fetch_add(1) + 1 == size();
  // Carrying it out may complete other ranks' works, and what follows them may begin calls: those take such locks too.
  posting.unlock();
  if (last) prepare(op, sequence);
  // Between the check and now the world may have failed without seeing this work.
  if (work && world_->failed()) abort();
  return sequence;
}

void ThreadGroup::prepare(Operation& op, uint64_t sequence) {
  op.mismatch = find_mismatch(op.facts, ranks(), op.number.load());
  op.first_chunk.assign(1, 0);
  if (!op.mismatch) {
    op.plan = plan(op.calls);
    op.plan.reduction.factors = op.plan.factors;
    cut(op);
  }
  int64_t chunks = op.first_chunk.back();
  int64_t bytes = chunks * op.chunk_elements * static_cast<int64_t>(size_of(op.calls[0].dtype));
  op.waited_for = std::any_of(op.works.begin(), op.works.end(), [](const auto& w) { return !w; });
  op.small = chunks == 1 || (!op.waited_for && bytes <= kInline);
  op.chunks.store(chunks);
  op.ticket.store(sequence << 32);  // before anybody can find the operation started, and take chunks
  op.ready.store(true);
  try_start(sequence);
}

void ThreadGroup::cut(Operation& op) {
  int64_t bytes = 0;
  for (const Job& job : op.plan.jobs) bytes += job.count;
  auto size = static_cast<int64_t>(size_of(op.plan.reduction.dtype));
  bytes *= size;
  int64_t chunk = std::clamp(bytes / (4 * std::min(this->size(), 64)), kSmallestChunk, kLargestChunk);
  op.chunk_elements = std::max<int64_t>(1, chunk / size);
  for (const Job& job : op.plan.jobs)
    op.first_chunk.push_back(op.first_chunk.back() + (job.count + op.chunk_elements - 1) / op.chunk_elements);
}

// Begins the operation if all have come and it is its turn; both may become true in different threads at once.
void ThreadGroup::try_start(uint64_t sequence) {
  Operation& op = operation(sequence);
  if (op.turn.load() != sequence || !op.ready.load() || completed_.load() != sequence) return;
  // Once it is started others may carry it out, and the entry may serve a later one: look at it before. (If another
  // thread is first, what is seen here may be of that later one, and is not used.)
  uint64_t expected = word(sequence, open);
  if (op.phase.load() != expected) return;
  bool nothing = op.chunks.load() == 0, small = op.small, waited_for = op.waited_for;
  if (!op.phase.compare_exchange_strong(expected, word(sequence, started))) return;
  if (nothing) return finish(op, sequence);
  if (small) return run_chunks(op, sequence);
  event_.notify();
  if (!waited_for)
    Progress::instance().submit([self = std::static_pointer_cast<ThreadGroup>(shared_from_this())] { self->help(); });
}

// Takes the next chunk of this very operation. The ticket carries the sequence, since by the time a thread comes here
// the entry may serve a later one.
std::optional<int64_t> ThreadGroup::claim(Operation& op, uint64_t sequence) {
  uint64_t ticket = op.ticket.load();
  while (ticket >> 32 == (sequence & 0xffffffff)) {
    auto chunk = static_cast<int64_t>(ticket & 0xffffffff);
    if (op.phase.load() != word(sequence, started) || chunk >= op.chunks.load()) return {};
    if (op.ticket.compare_exchange_weak(ticket, ticket + 1)) return chunk;
  }
  return {};
}

void ThreadGroup::run_chunk(Operation& op, int64_t chunk) {
  auto j = static_cast<size_t>(std::upper_bound(op.first_chunk.begin(), op.first_chunk.end(), chunk) -
                               op.first_chunk.begin() - 1);
  const Job& job = op.plan.jobs[j];
  int64_t begin = (chunk - op.first_chunk[j]) * op.chunk_elements,
          count = std::min(op.chunk_elements, job.count - begin);
  auto offset = begin * static_cast<int64_t>(size_of(op.plan.reduction.dtype));
  SmallVector<const void*, 8> sources;
  SmallVector<void*, 8> targets;
  for (const void* s : job.sources) sources.push_back(static_cast<const std::byte*>(s) + offset);
  for (void* t : job.targets) targets.push_back(static_cast<std::byte*>(t) + offset);
  reduce_into(op.plan.reduction, sources.span(), targets.span(), count);
}

void ThreadGroup::run_chunks(Operation& op, uint64_t sequence) {
  while (auto chunk = claim(op, sequence)) {
    int64_t all = op.chunks.load();
    run_chunk(op, *chunk);
    if (op.chunks_done.fetch_add(1) + 1 == all) return finish(op, sequence);
  }
}

bool ThreadGroup::help() {
  uint64_t sequence = completed_.load();
  Operation& op = operation(sequence);
  if (op.phase.load() != word(sequence, started)) return false;
  run_chunks(op, sequence);
  return true;
}

void ThreadGroup::finish(Operation& op, uint64_t sequence) {
  int asynchronous = 0;
  const char* collective = comm::name(op.calls[0].kind);
  std::optional<std::string> mismatch = op.mismatch;
  auto works = std::move(op.works);
  op.works.assign(ranks().size(), nullptr);
  op.phase.store(word(sequence, complete));
  completed_.store(sequence + 1);
  for (auto& work : works) {
    if (!work) continue;
    ++asynchronous;
    // An error for each: exceptions that several threads free confuse them and their tools.
    work->complete(
        mismatch ? std::make_exception_ptr(MismatchError(fmt::format("{}: {}", collective, *mismatch), collective))
                 : nullptr);
    RankState& state = states_[static_cast<size_t>(work->rank)];
    std::lock_guard lock(state.works_lock);
    std::erase(state.works, work);
  }
  works.clear();
  event_.notify();
  if (asynchronous) depart(op, sequence, asynchronous);
  try_start(sequence + 1);
}

void ThreadGroup::depart(Operation& op, uint64_t sequence, int count) {
  if (op.departed.fetch_add(count) + count < size()) return;
  op.plan = {};
  op.mismatch.reset();
  op.arrived.store(0);
  op.departed.store(0);
  op.chunks_done.store(0);
  op.ready.store(false);
  op.phase.store(word(sequence + kOperations, open));
  op.turn.store(sequence + kOperations);
  event_.notify();
}

// A rank that cannot wait longer may leave only if nobody is going to touch its memory.
bool ThreadGroup::leave_early(Operation& op, uint64_t sequence) {
  uint64_t expected = word(sequence, open), left = word(sequence, abandoned);
  return op.phase.compare_exchange_strong(expected, left) || expected == left;
}

// What a rank did last, here and elsewhere.
std::string ThreadGroup::last_calls(int rank, bool message) const {
  const FlightRecord& record = world_->state(rank)->record;
  auto describe = [&](const Recorded& r) {
    return fmt::format("{}, {} ago, {}", comm::describe(r.call), seconds(Clock::now() - r.begin),
                       r.ended() ? "which is done" : "where it still is" + advice(r.call.purpose));
  };
  std::string text;
  auto here = message ? std::nullopt : record.last(id_), last = record.last();
  if (here)
    text = fmt::format("its last call here was collective {}, {}", here->sequence, describe(*here));
  else if (!message)
    text = "it has called nothing in this group";
  else if (!last)
    text = "it has called nothing";
  if (last && (message || last->group != id_ || last->is_message()))
    text += fmt::format("{}its last call was {}", text.empty() ? "" : "; ", describe(*last));
  return text + (world_->has_ended(rank) ? "; it has ended" : "");
}

std::string ThreadGroup::missing_text(int rank, uint64_t number) {
  std::string text;
  for (size_t k = 0; k < states_.size(); ++k)
    if (k != static_cast<size_t>(rank) && states_[k].next.load() <= number)
      text += fmt::format("\n  rank {} did not come; {}", ranks()[k], last_calls(ranks()[k], false));
  return text;
}

std::string ThreadGroup::late_text(int rank, uint64_t number, const Call& call, std::chrono::milliseconds timeout) {
  return advised(fmt::format("rank {} waited {} in collective {}, {}:{}", ranks()[static_cast<size_t>(rank)],
                             seconds(timeout), number, comm::describe(call), missing_text(rank, number)),
                 call.purpose);
}

void ThreadGroup::time_out(int rank, uint64_t number, const Call& call, std::chrono::milliseconds timeout) {
  std::string text = late_text(rank, number, call, timeout);
  world_->fail(ranks()[static_cast<size_t>(rank)], text);
  tutti::fail<TimeoutError>("", "{}", text);
}

bool ThreadGroup::find_ended(uint64_t number, const Call& call) {
  return find_ended(number, [&] { return brief(call); });
}

bool ThreadGroup::find_ended(uint64_t number, const std::function<Brief()>& find_call) {
  if (!world_->any_ended()) return false;
  for (size_t k = 0; k < states_.size(); ++k) {
    // Looked at in this order, since a rank counts its call before it ends.
    if (!world_->has_ended(ranks()[k]) || states_[k].next.load() > number) continue;
    Brief call = find_call();
    world_->fail(ranks()[k], fmt::format("it ended without taking part in collective {} of a group of {}, which "
                                         "others wait for: {}{}",
                                         number, size(), comm::describe(call), advice(call.purpose)));
    return true;
  }
  return false;
}

WaitFor ThreadGroup::missing(WaitFor wait) const {
  for (size_t k = 0; k < states_.size(); ++k)
    if (states_[k].next.load() <= wait.number) wait.add(ranks()[k]);
  return wait;
}

template <class Ready, class Wait>
bool ThreadGroup::wait_long_time(int rank, Clock::time_point deadline, bool spin, const Ready& ready,
                                 const Wait& wait) {
  int me = ranks()[static_cast<size_t>(rank)];
  LongWait board(world_->waits(), me);
  while (!event_.wait(std::min(deadline, Clock::now() + world_->waits().period()), spin, ready)) {
    if (Clock::now() >= deadline) return false;
    if (auto cycle = board.tick(wait)) world_->fail(me, *cycle, true);
    spin = false;
  }
  return true;
}

ThreadGroup::Small ThreadGroup::run_small(int rank, uint64_t number, const Call& call, const SmallShape& shape,
                                          const TimeLimit& limit) {
  slots_.publish_small(rank, number, call, shape);
  int first = 0;
  auto ready = [&] {
    first = slots_.missing(number, first);
    return first == size() || world_->failed() || (world_->any_ended() && find_ended(number, call));
  };
  bool come = Event::look(world_->spin(), ready);
  event_.notify_after_fence();
  if (!come)
    wait_long_time(rank, limit.end(), false, ready, [&] { return missing(WaitFor::collective(id_, number, call)); });
  if (first == size()) return slots_.finish(rank, number, call, shape) ? Small::done : Small::goes_long;
  world_->check();
  time_out(rank, number, call, limit.timeout());
}

// Another thread of the rank may be in a call, for as long as that takes.
std::unique_lock<std::timed_mutex> ThreadGroup::take_turn(int rank, const Call& call, const TimeLimit& limit) {
  RankState& state = states_[static_cast<size_t>(rank)];
  std::unique_lock posting(state.posting, std::try_to_lock);
  if (!posting && !posting.try_lock_until(limit.end())) time_out(rank, state.next.load(), call, limit.timeout());
  return posting;
}

void ThreadGroup::run(int rank, Call&& call, std::chrono::milliseconds timeout) {
  world_->check();
  RankState& state = states_[static_cast<size_t>(rank)];
  TimeLimit limit(timeout);
  auto posting = take_turn(rank, call, limit);
  uint64_t number = state.next.load(std::memory_order_relaxed);
  state.next.store(number + 1, std::memory_order_release);
  if (slots_) {
    if (auto shape = small_shape(call, rank, size())) {
      if (run_small(rank, number, call, *shape, limit) == Small::done) return;
    } else {
      slots_.publish_long(rank, number);
      event_.notify();
    }
  }
  uint64_t sequence = post(rank, number, std::move(call), nullptr, limit.end(), std::move(posting));
  wait_long(rank, sequence, number, limit);
  Operation& op = operation(sequence);
  std::optional<std::string> mismatch = op.mismatch;
  const char* collective = comm::name(op.calls[static_cast<size_t>(rank)].kind);
  depart(op, sequence, 1);
  if (mismatch) tutti::fail<MismatchError>(collective, "{}", *mismatch);
}

void ThreadGroup::wait_long(int rank, uint64_t sequence, uint64_t number, const TimeLimit& limit) {
  Operation& op = operation(sequence);
  const Call& call = op.calls[static_cast<size_t>(rank)];
  bool must_stay = false;  // chunks may be running: see leave_early
  while (op.phase.load() != word(sequence, complete)) {
    help();
    auto ready = [&] {
      uint64_t phase = op.phase.load() & 3;  // of this operation: the entry waits for this rank
      if (phase == complete || phase == abandoned || (!must_stay && world_->failed())) return true;
      if (phase == started) {
        uint64_t ticket = op.ticket.load();
        return ticket >> 32 == (sequence & 0xffffffff) && completed_.load() == sequence &&
               static_cast<int64_t>(ticket & 0xffffffff) < op.chunks.load();
      }
      return (op.arrived.load() < size() && find_ended(number, call)) || help();
    };
    bool known = wait_long_time(rank, must_stay ? Clock::time_point::max() : limit.end(), world_->spin(), ready,
                                [&] { return missing(WaitFor::collective(id_, number, call)); });
    uint64_t phase = op.phase.load() & 3;
    if (phase == complete) break;
    if (phase == started) {
      must_stay = !known || world_->failed();
      continue;
    }
    if ((world_->failed() || !known) && leave_early(op, sequence)) {
      world_->check();
      time_out(rank, number, call, limit.timeout());
    }
    if (phase == abandoned) world_->check();
  }
}

void ThreadGroup::start(int rank, Call call, const std::shared_ptr<WorkState>& work) {
  world_->check();
  RankState& state = states_[static_cast<size_t>(rank)];
  auto posting = take_turn(rank, call, work->limit);
  uint64_t number = state.next.load();
  work->rank = rank;
  state.next.store(number + 1);
  if (slots_) {
    slots_.publish_long(rank, number);
    event_.notify();
  }
  {
    std::lock_guard lock(state.works_lock);
    std::erase_if(state.works, [](const auto& w) { return w->done(); });
    state.works.push_back(work);
  }
  post(rank, number, std::move(call), work, work->limit.end(), std::move(posting));
}

void ThreadGroup::abort() {
  for (auto& state : states_) {
    std::vector<std::shared_ptr<WorkState>> works;
    {
      std::lock_guard lock(state.works_lock);
      works = state.works;
    }
    for (auto& work : works)
      if (work->posted.load() && leave_early(operation(work->sequence), work->sequence))
        work->complete(failure_of(*work));
  }
  for (auto& waiting : mailboxes_.withdraw_all()) waiting.work->complete(failure_of(*waiting.work));
  event_.notify();
}

bool ThreadGroup::wait(WorkState& work, Clock::time_point deadline, bool give_up) {
  if (work.is_message) return wait_message(work, deadline, give_up);
  while (!work.settled()) {
    help();
    Operation& op = operation(work.sequence);  // this work's, until it is done
    auto ready = [&] {
      if (work.settled() || world_->failed() || help()) return true;
      if (work.done() || op.arrived.load() == size() || !world_->any_ended()) return false;
      auto recorded = work.owner ? work.owner->record.find(work.record) : std::nullopt;
      return recorded && find_ended(recorded->sequence, [&] { return recorded->call; });
    };
    auto waits = [&] { return missing(WaitFor::collective(id_, work)); };
    bool known = give_up ? event_.wait(deadline, world_->spin(), ready)
                         : wait_long_time(work.rank, deadline, world_->spin(), ready, waits);
    if (work.settled()) break;
    if (known && !world_->failed()) continue;  // helped with another
    if (!known && give_up) return false;
    if (!expire(work)) deadline = Clock::time_point::max();
  }
  return true;
}

bool ThreadGroup::expire(WorkState& work) {
  if (work.is_message) return wait_message(work, Clock::now(), false);
  Operation& op = operation(work.sequence);
  if (!leave_early(op, work.sequence)) return false;
  if (!world_->failed()) {
    std::string text =
        late_text(work.rank, op.number.load(), op.calls[static_cast<size_t>(work.rank)], work.limit.timeout());
    work.complete(std::make_exception_ptr(TimeoutError(text, "")));
    world_->fail(ranks()[static_cast<size_t>(work.rank)], text);
  }
  work.complete(failure_of(work));
  return true;
}

bool ThreadGroup::cancel(WorkState& work) {
  auto cancelled = [] { return std::make_exception_ptr(CancelledError("this work was cancelled", "Work::cancel")); };
  int me = ranks()[static_cast<size_t>(work.rank)];
  if (work.is_message) {
    auto mine = mailboxes_.withdraw(work);
    if (!mine) return false;
    work.complete(cancelled());
    event_.notify();
    return true;
  }
  Operation& op = operation(work.sequence);
  if (work.done() || !leave_early(op, work.sequence)) return false;
  std::string call = comm::describe(op.calls[static_cast<size_t>(work.rank)]);
  work.complete(cancelled());
  world_->fail(me, fmt::format("it cancelled {}", call));
  return true;
}

// ---- Messages

void ThreadGroup::start_send(int rank, int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  world_->check();
  work->rank = rank;
  work->is_message = true;
  work->peer = to;
  mailboxes_.send(rank, to, tag, std::move(call), work);
  event_.notify();
}

void ThreadGroup::start_receive(int rank, int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  world_->check();
  work->rank = rank;
  work->is_message = true;
  work->peer = from;
  mailboxes_.receive(rank, from, tag, std::move(call), work);
  event_.notify();
}

// Who should receive, or send, what this work is about has ended. Of any source: all others have.
bool ThreadGroup::has_ended(const WorkState& work) const {
  if (!world_->any_ended()) return false;
  if (work.peer >= 0) return world_->has_ended(ranks()[static_cast<size_t>(work.peer)]);
  for (int k = 0; k < size(); ++k)
    if (k != work.rank && !world_->has_ended(ranks()[static_cast<size_t>(k)])) return false;
  return size() > 1;
}

bool ThreadGroup::wait_message(WorkState& work, Clock::time_point deadline, bool give_up) {
  int peer = work.peer < 0 ? -1 : ranks()[static_cast<size_t>(work.peer)];
  while (true) {
    auto ended = [&] { return has_ended(work); };
    auto ready = [&] { return work.settled() || world_->failed() || ended(); };
    bool known = give_up ? event_.wait(deadline, world_->spin(), ready)
                         : wait_long_time(work.rank, deadline, world_->spin(), ready,
                                          [&] { return WaitFor::message(work, ranks()); });
    if (work.settled()) return true;
    if (!known && give_up) return false;
    auto mine = mailboxes_.withdraw(work);
    if (!mine) {  // somebody is moving it
      event_.wait(Clock::time_point::max(), world_->spin(), [&] { return work.settled(); });
      return true;
    }
    std::string call = comm::describe(mine->call);
    int me = ranks()[static_cast<size_t>(work.rank)];
    if (ended())
      world_->fail(peer < 0 ? ranks()[work.rank == 0 ? 1 : 0] : peer,
                   fmt::format("it ended without {} what rank {} {}: {}", mine->sends ? "receiving" : "sending", me,
                               mine->sends ? "sends" : "waits for", call));
    if (world_->failed()) {
      work.complete(failure_of(work));
      return true;
    }
    std::string whom = peer < 0 ? "any rank" : fmt::format("rank {}", peer);
    std::string text = fmt::format("rank {} waited {} for {} to {}: {}", me, seconds(work.limit.timeout()), whom,
                                   mine->sends ? "receive what it sends" : "send", call);
    for (int r : peers_of(work)) text += fmt::format("\n  rank {}: {}", r, last_calls(r, true));
    text = advised(std::move(text), nullptr);
    work.complete(std::make_exception_ptr(TimeoutError(text, mine->sends ? "send" : "recv")));
    world_->fail(me, text);
    return true;
  }
}

}  // namespace tutti::comm
