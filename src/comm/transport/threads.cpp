#include "comm/transport/threads.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/cores.h"
#include "base/small_vector.h"
#include "comm/transport/progress.h"
#include "tutti/context.h"

namespace tutti::comm {
namespace {

constexpr int64_t kSmallestChunk = 16 << 10, kLargestChunk = 256 << 10;  // bytes
constexpr int64_t kInline = 64 << 10;  // bytes that the last rank of an asynchronous collective moves itself

std::string seconds(std::chrono::nanoseconds time) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(time).count());
}

}  // namespace

// ---- World

World::World(int size, std::chrono::milliseconds timeout)
    : size_(size),
      timeout_(timeout),
      spin_(size <= static_cast<int>(process_cores().size())),
      ended_(static_cast<size_t>(size)) {}

void World::notify_all() {
  std::vector<std::shared_ptr<ThreadGroup>> alive;
  {
    std::lock_guard lock(mutex_);
    for (auto& [key, weak] : groups_)
      if (auto group = weak.lock()) alive.push_back(std::move(group));
  }
  for (auto& group : alive) group->notify();
}

void World::fail(int rank, const std::string& text) {
  {
    std::lock_guard lock(mutex_);
    if (failed_.load()) return;
    failed_rank_ = rank;
    failure_ = text;
    failed_.store(true);
  }
  notify_all();
}

std::exception_ptr World::failure() const {
  std::lock_guard lock(mutex_);
  return std::make_exception_ptr(RankFailure(fmt::format("rank {} failed: {}", failed_rank_, failure_), ""));
}

void World::check() const {
  if (failed_.load()) std::rethrow_exception(failure());
}

void World::ended(int rank) {
  ended_[static_cast<size_t>(rank)].store(true);
  notify_all();
}

std::shared_ptr<ThreadGroup> World::group(const std::vector<int>& ranks, uint64_t parent, uint64_t count) {
  static std::atomic<uint64_t> ids{1};
  std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = groups_[{ranks, parent, count}];
  if (auto group = entry.lock()) return group;
  auto group = std::make_shared<ThreadGroup>(shared_from_this(), ranks, ids.fetch_add(1));
  entry = group;
  return group;
}

// ---- Groups

ThreadGroup::ThreadGroup(std::shared_ptr<World> world, std::vector<int> ranks, uint64_t id)
    : Transport(std::move(ranks)),
      world_(std::move(world)),
      id_(id),
      next_(this->ranks().size()),
      last_(this->ranks().size()),
      mailboxes_(this->ranks()) {
  for (uint64_t k = 0; k < kOperations; ++k) {
    Operation& op = operations_[k];
    op.turn.store(k);
    op.calls.resize(next_.size());
    op.works.resize(next_.size());
    op.posted = std::vector<std::atomic<uint8_t>>(next_.size());
  }
}

std::shared_ptr<Transport> ThreadGroup::subgroup(int rank, const std::vector<int>& members) {
  std::vector<int> global;
  for (int m : members) global.push_back(ranks()[static_cast<size_t>(m)]);
  uint64_t count = 0;
  if (std::count(members.begin(), members.end(), rank)) {
    std::lock_guard lock(subgroups_mutex_);
    count = subgroups_[{rank, members}]++;
  }
  return world_->group(global, id_, count);
}

uint64_t ThreadGroup::post(int rank, Call call, std::shared_ptr<WorkState> work, Clock::time_point deadline) {
  auto r = static_cast<size_t>(rank);
  world_->check();
  uint64_t sequence = next_[r].fetch_add(1);
  Operation& op = operation(sequence);
  // Entries are used again when all have left; with many asynchronous calls on their way, wait for the oldest.
  if (op.turn.load() != sequence) {
    bool free = event_.wait(deadline, world_->spin(), [&] {
      help();
      return op.turn.load() == sequence || world_->failed();
    });
    world_->check();
    if (!free) {
      std::string text = fmt::format(
          "rank {} could not begin {}: {} calls of its group are on their way, the oldest of "
          "which has not ended in time{}",
          ranks()[r], comm::describe(call), kOperations, missing_text(completed_.load()));
      world_->fail(ranks()[r], text);  // its number is used up: the group cannot go on
      tutti::fail<TimeoutError>("", "{}", text);
    }
  }
  {
    std::lock_guard lock(last_[r].mutex);
    last_[r].call = brief(call);
    last_[r].sequence = sequence;
    last_[r].when = Clock::now();
  }
  op.calls[r] = std::move(call);
  op.works[r] = std::move(work);
  op.posted[r].store(1);
  if (op.arrived.fetch_add(1) + 1 == size()) prepare(op, sequence);
  return sequence;
}

void ThreadGroup::prepare(Operation& op, uint64_t sequence) {
  op.mismatch = find_mismatch(op.calls, ranks(), sequence);
  op.first_chunk.assign(1, 0);
  if (!op.mismatch) {
    op.plan = plan(op.calls);
    op.plan.reduction.factors = op.plan.factors;
    cut(op);
  }
  op.chunks.store(op.first_chunk.back());
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
  uint32_t expected = open;
  if (!op.phase.compare_exchange_strong(expected, started)) return;
  int64_t chunks = op.chunks.load();
  if (chunks == 0) return finish(op, sequence);
  bool waiting = std::any_of(op.works.begin(), op.works.end(), [](const auto& w) { return !w; });
  int64_t bytes = chunks * op.chunk_elements * static_cast<int64_t>(size_of(op.plan.reduction.dtype));
  op.ticket.store(sequence << 32);
  if (chunks == 1 || (!waiting && bytes <= kInline)) return run_chunks(op, sequence);
  event_.notify();
  if (!waiting)
    Progress::instance().submit([self = std::static_pointer_cast<ThreadGroup>(shared_from_this())] { self->help(); });
}

// Takes the next chunk of this very operation. The ticket carries the sequence, since by the time a thread comes here
// the entry may serve a later one.
std::optional<int64_t> ThreadGroup::claim(Operation& op, uint64_t sequence) {
  uint64_t ticket = op.ticket.load();
  while (ticket >> 32 == (sequence & 0xffffffff)) {
    auto chunk = static_cast<int64_t>(ticket & 0xffffffff);
    if (op.phase.load() != started || chunk >= op.chunks.load()) return {};
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
  if (op.turn.load() != sequence || op.phase.load() != started) return false;
  run_chunks(op, sequence);
  return true;
}

void ThreadGroup::finish(Operation& op, uint64_t sequence) {
  int asynchronous = 0;
  const char* collective = comm::name(op.calls[0].kind);
  std::optional<std::string> mismatch = op.mismatch;
  auto works = std::move(op.works);
  op.works.assign(ranks().size(), nullptr);
  op.phase.store(complete);
  completed_.store(sequence + 1);
  for (auto& work : works) {
    if (!work) continue;
    ++asynchronous;
    // An error for each: exceptions that several threads free confuse them and their tools.
    work->complete(
        mismatch ? std::make_exception_ptr(MismatchError(fmt::format("{}: {}", collective, *mismatch), collective))
                 : nullptr);
  }
  event_.notify();
  if (asynchronous) depart(op, sequence, asynchronous);
  try_start(sequence + 1);
}

void ThreadGroup::depart(Operation& op, uint64_t sequence, int count) {
  if (op.departed.fetch_add(count) + count < size()) return;
  op.plan = {};
  op.mismatch.reset();
  for (auto& p : op.posted) p.store(0);
  op.arrived.store(0);
  op.departed.store(0);
  op.chunks_done.store(0);
  op.ready.store(false);
  op.phase.store(open);
  op.turn.store(sequence + kOperations);
  event_.notify();
}

// A rank that cannot wait longer may leave only if nobody is going to touch its memory.
bool ThreadGroup::leave_early(Operation& op, uint64_t sequence) {
  uint32_t expected = open;
  return op.turn.load() == sequence && (op.phase.compare_exchange_strong(expected, abandoned) || expected == abandoned);
}

std::string ThreadGroup::missing_text(uint64_t sequence) {
  Operation& op = operation(sequence);
  std::string text;
  for (size_t k = 0; k < ranks().size(); ++k) {
    if (op.posted[k].load()) continue;
    std::lock_guard lock(last_[k].mutex);
    text += fmt::format("\n  rank {} did not come; {}", ranks()[k],
                        !last_[k].call
                            ? "it has called nothing in this group"
                            : fmt::format("its last call here was collective {}, {}, {} ago", last_[k].sequence,
                                          comm::describe(*last_[k].call), seconds(Clock::now() - last_[k].when)));
    if (world_->has_ended(ranks()[k])) text += "; it has ended";
  }
  return text;
}

void ThreadGroup::time_out(int rank, uint64_t sequence, std::chrono::milliseconds timeout) {
  std::string mine;
  {
    std::lock_guard lock(last_[static_cast<size_t>(rank)].mutex);
    mine = comm::describe(*last_[static_cast<size_t>(rank)].call);
  }
  std::string text = fmt::format("rank {} waited {} in collective {}, {}:{}", ranks()[static_cast<size_t>(rank)],
                                 seconds(timeout), sequence, mine, missing_text(sequence));
  world_->fail(ranks()[static_cast<size_t>(rank)], text);
  tutti::fail<TimeoutError>("", "{}", text);
}

void ThreadGroup::run(int rank, Call call, std::chrono::milliseconds timeout) {
  auto deadline = Clock::now() + timeout;
  uint64_t sequence = post(rank, std::move(call), nullptr, deadline);
  Operation& op = operation(sequence);
  bool must_stay = false;  // chunks may be running: see leave_early
  while (op.phase.load() != complete) {
    help();
    bool known = event_.wait(must_stay ? Clock::time_point::max() : deadline, world_->spin(), [&] {
      uint32_t phase = op.phase.load();
      if (phase == complete || phase == abandoned || (!must_stay && world_->failed())) return true;
      if (phase == started) {
        uint64_t ticket = op.ticket.load();
        return ticket >> 32 == (sequence & 0xffffffff) && completed_.load() == sequence &&
               static_cast<int64_t>(ticket & 0xffffffff) < op.chunks.load();
      }
      if (op.arrived.load() < size())
        for (size_t k = 0; k < ranks().size(); ++k)
          if (world_->has_ended(ranks()[k]) && !op.posted[k].load()) return true;
      return help();
    });
    uint32_t phase = op.phase.load();
    if (phase == complete) break;
    if (phase == started) {
      must_stay = !known || world_->failed();
      continue;
    }
    if (known && !world_->failed() && phase == open)
      for (size_t k = 0; k < ranks().size(); ++k)
        if (world_->has_ended(ranks()[k]) && !op.posted[k].load())
          world_->fail(ranks()[k], fmt::format("it ended without taking part in collective {} of a group of {}, which "
                                               "others wait for: {}",
                                               sequence, size(), comm::describe(op.calls[static_cast<size_t>(rank)])));
    if ((world_->failed() || !known) && leave_early(op, sequence)) {
      world_->check();
      time_out(rank, sequence, timeout);
    }
    if (phase == abandoned) world_->check();
  }
  std::optional<std::string> mismatch = op.mismatch;
  const char* collective = comm::name(op.calls[static_cast<size_t>(rank)].kind);
  depart(op, sequence, 1);
  if (mismatch) tutti::fail<MismatchError>(collective, "{}", *mismatch);
}

void ThreadGroup::start(int rank, Call call, const std::shared_ptr<WorkState>& work) {
  work->rank = rank;
  work->sequence = post(rank, std::move(call), work, Clock::now() + work->timeout);
}

bool ThreadGroup::wait(WorkState& work, Clock::time_point deadline, bool give_up) {
  if (work.is_message) return wait_message(work, deadline, give_up);
  while (!work.settled()) {
    help();
    bool known = event_.wait(deadline, world_->spin(), [&] { return work.settled() || world_->failed() || help(); });
    if (work.settled()) break;
    Operation& op = operation(work.sequence);
    if (!known && !give_up) {
      if (leave_early(op, work.sequence)) time_out(work.rank, work.sequence, work.timeout);
      deadline = Clock::time_point::max();
    }
    if (!known && give_up) return false;
    if (world_->failed() && leave_early(op, work.sequence)) world_->check();
  }
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

bool ThreadGroup::wait_message(WorkState& work, Clock::time_point deadline, bool give_up) {
  int peer = work.peer < 0 ? -1 : ranks()[static_cast<size_t>(work.peer)];
  while (true) {
    auto ended = [&] { return peer >= 0 && world_->has_ended(peer); };
    bool known = event_.wait(deadline, world_->spin(), [&] { return work.settled() || world_->failed() || ended(); });
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
      world_->fail(peer, fmt::format("it ended without {} what rank {} {}: {}", mine->sends ? "receiving" : "sending",
                                     me, mine->sends ? "sends" : "waits for", call));
    if (world_->failed()) {
      work.complete(world_->failure());
      return true;
    }
    std::string whom = peer < 0 ? "any rank" : fmt::format("rank {}", peer);
    std::string text = fmt::format("rank {} waited {} for {} to {}: {}", me, seconds(work.timeout), whom,
                                   mine->sends ? "receive what it sends" : "send", call);
    work.complete(std::make_exception_ptr(TimeoutError(text, mine->sends ? "send" : "recv")));
    world_->fail(me, text);
    return true;
  }
}

}  // namespace tutti::comm
