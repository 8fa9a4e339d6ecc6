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
constexpr int64_t kEager = 64 << 10;   // bytes of messages that are copied, so that the sender need not wait

std::string seconds(std::chrono::nanoseconds time) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(time).count());
}

}  // namespace

// ---- Work

void WorkState::complete(std::exception_ptr error) {
  if (finish && !error) {
    try {
      finish();
    } catch (...) {
      error = std::current_exception();
    }
  }
  finish = nullptr;
  std::vector<std::function<void()>> list;
  {
    std::lock_guard lock(mutex_);
    error_ = std::move(error);
    done_.store(true);
    list.swap(then_);
  }
  for (auto& f : list) f();
  settled_.store(true);
}

void WorkState::then(std::function<void()> f) {
  {
    std::lock_guard lock(mutex_);
    if (!done_.load()) {
      then_.push_back(std::move(f));
      return;
    }
  }
  f();
}

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

void World::check() const {
  if (!failed_.load()) return;
  std::lock_guard lock(mutex_);
  tutti::fail<RankFailure>("", "rank {} failed: {}", failed_rank_, failure_);
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
    : world_(std::move(world)),
      ranks_(std::move(ranks)),
      id_(id),
      next_(ranks_.size()),
      last_(ranks_.size()),
      mailboxes_(ranks_.size()) {
  for (uint64_t k = 0; k < kOperations; ++k) {
    Operation& op = operations_[k];
    op.turn.store(k);
    op.calls.resize(ranks_.size());
    op.works.resize(ranks_.size());
    op.posted = std::vector<std::atomic<uint8_t>>(ranks_.size());
  }
}

uint64_t ThreadGroup::count_subgroup(int rank, const std::vector<int>& ranks) {
  std::lock_guard lock(subgroups_mutex_);
  return subgroups_[{rank, ranks}]++;
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
          ranks_[r], comm::describe(call), kOperations, missing_text(completed_.load()));
      world_->fail(ranks_[r], text);  // its number is used up: the group cannot go on
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
  op.mismatch = find_mismatch(op.calls, ranks_, sequence);
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
  if (!waiting) Progress::instance().submit([self = shared_from_this()] { self->help(); });
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
  const char* collective = name(op.calls[0].kind);
  std::optional<std::string> mismatch = op.mismatch;
  auto works = std::move(op.works);
  op.works.assign(ranks_.size(), nullptr);
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
  for (size_t k = 0; k < ranks_.size(); ++k) {
    if (op.posted[k].load()) continue;
    std::lock_guard lock(last_[k].mutex);
    text += fmt::format("\n  rank {} did not come; {}", ranks_[k],
                        !last_[k].call
                            ? "it has called nothing in this group"
                            : fmt::format("its last call here was collective {}, {}, {} ago", last_[k].sequence,
                                          comm::describe(*last_[k].call), seconds(Clock::now() - last_[k].when)));
    if (world_->has_ended(ranks_[k])) text += "; it has ended";
  }
  return text;
}

void ThreadGroup::time_out(int rank, uint64_t sequence, std::chrono::milliseconds timeout) {
  std::string mine;
  {
    std::lock_guard lock(last_[static_cast<size_t>(rank)].mutex);
    mine = comm::describe(*last_[static_cast<size_t>(rank)].call);
  }
  std::string text = fmt::format("rank {} waited {} in collective {}, {}:{}", ranks_[static_cast<size_t>(rank)],
                                 seconds(timeout), sequence, mine, missing_text(sequence));
  world_->fail(ranks_[static_cast<size_t>(rank)], text);
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
        for (size_t k = 0; k < ranks_.size(); ++k)
          if (world_->has_ended(ranks_[k]) && !op.posted[k].load()) return true;
      return help();
    });
    uint32_t phase = op.phase.load();
    if (phase == complete) break;
    if (phase == started) {
      must_stay = !known || world_->failed();
      continue;
    }
    if (known && !world_->failed() && phase == open)
      for (size_t k = 0; k < ranks_.size(); ++k)
        if (world_->has_ended(ranks_[k]) && !op.posted[k].load())
          world_->fail(ranks_[k], fmt::format("it ended without taking part in collective {} of a group of {}, which "
                                              "others wait for: {}",
                                              sequence, size(), comm::describe(op.calls[static_cast<size_t>(rank)])));
    if ((world_->failed() || !known) && leave_early(op, sequence)) {
      world_->check();
      time_out(rank, sequence, timeout);
    }
    if (phase == abandoned) world_->check();
  }
  std::optional<std::string> mismatch = op.mismatch;
  const char* collective = name(op.calls[static_cast<size_t>(rank)].kind);
  depart(op, sequence, 1);
  if (mismatch) tutti::fail<MismatchError>(collective, "{}", *mismatch);
}

void ThreadGroup::start(int rank, Call call, const std::shared_ptr<WorkState>& work) {
  work->rank = rank;
  work->sequence = post(rank, std::move(call), work, Clock::now() + work->timeout);
}

bool ThreadGroup::wait(WorkState& work, Clock::time_point deadline, bool give_up) {
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

void ThreadGroup::send(int rank, int to, int64_t tag, const Call& call, Clock::time_point deadline) {
  world_->check();
  const Piece& piece = call.in[0];
  size_t bytes = static_cast<size_t>(piece.count) * size_of(call.dtype);
  std::atomic<bool> taken{false};
  auto message = std::make_unique<Message>();
  *message = {rank, tag, &call, {}, call.dtype, piece.count, &taken};
  bool eager = bytes <= static_cast<size_t>(kEager);
  if (eager) {
    message->copy.assign(static_cast<const char*>(piece.data), static_cast<const char*>(piece.data) + bytes);
    message->call = nullptr;
    message->taken = nullptr;
  }
  Mailbox& box = mailboxes_[static_cast<size_t>(to)];
  Message* mine = message.get();
  {
    std::lock_guard lock(box.mutex);
    box.messages.push_back(std::move(message));
  }
  event_.notify();
  if (eager) return;
  event_.wait(deadline, world_->spin(), [&] { return taken.load() || world_->failed(); });
  if (taken.load()) return;
  {
    // Whoever is copying it holds the lock, so after this it is taken or never will be.
    std::lock_guard lock(box.mutex);
    std::erase_if(box.messages, [&](const auto& m) { return m.get() == mine; });
  }
  if (taken.load()) return;
  world_->check();
  std::string text =
      fmt::format("rank {} waited for rank {} to receive what it sends: {}", ranks_[static_cast<size_t>(rank)],
                  ranks_[static_cast<size_t>(to)], comm::describe(call));
  world_->fail(ranks_[static_cast<size_t>(rank)], text);
  tutti::fail<TimeoutError>("send", "{}", text);
}

int ThreadGroup::receive(int rank, int from, int64_t tag, const Call& call, Clock::time_point deadline) {
  world_->check();
  Mailbox& box = mailboxes_[static_cast<size_t>(rank)];
  const Piece& piece = call.out[0];
  int source = -1;
  auto take = [&] {
    std::lock_guard lock(box.mutex);
    for (auto m = box.messages.begin(); m != box.messages.end(); ++m) {
      if ((*m)->tag != tag || (from >= 0 && (*m)->from != from)) continue;
      check<MismatchError>((*m)->dtype == call.dtype && (*m)->count == piece.count, "recv",
                           "rank {} sent {} elements of {}, but {} takes {} of {}",
                           ranks_[static_cast<size_t>((*m)->from)], (*m)->count, (*m)->dtype, comm::describe(call),
                           piece.count, call.dtype);
      size_t bytes = static_cast<size_t>(piece.count) * size_of(call.dtype);
      if (bytes) std::memcpy(piece.data, (*m)->call ? (*m)->call->in[0].data : (*m)->copy.data(), bytes);
      source = (*m)->from;
      if ((*m)->taken) (*m)->taken->store(true);
      box.messages.erase(m);
      return true;
    }
    return false;
  };
  bool ended = false;
  event_.wait(deadline, world_->spin(), [&] {
    if (take()) return true;
    ended = from >= 0 && world_->has_ended(ranks_[static_cast<size_t>(from)]);
    return ended || world_->failed();
  });
  if (source >= 0 || take()) {
    event_.notify();
    return source;
  }
  world_->check();
  std::string whom = from < 0 ? "any rank" : fmt::format("rank {}", ranks_[static_cast<size_t>(from)]);
  if (ended) {
    world_->fail(ranks_[static_cast<size_t>(from)],
                 "it ended without sending what others wait for: " + comm::describe(call));
    world_->check();
  }
  std::string text =
      fmt::format("rank {} waited for {} to send: {}", ranks_[static_cast<size_t>(rank)], whom, comm::describe(call));
  world_->fail(ranks_[static_cast<size_t>(rank)], text);
  tutti::fail<TimeoutError>("recv", "{}", text);
}

}  // namespace tutti::comm
