#include "comm/transport/hosts.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tutti::comm {
namespace {

constexpr auto kWatch = std::chrono::milliseconds(20);  // how often a rank that waits looks after the others

constexpr uint64_t kInner = ~uint64_t{0};  // no subgroup that users make has this number

std::string seconds(std::chrono::nanoseconds time) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(time).count());
}

Layout make_layout(const std::vector<int>& ranks, int me, const HostsOptions& options) {
  Layout layout;
  layout.me = me;
  std::map<int, int> numbers;
  for (size_t k = 0; k < ranks.size(); ++k) {
    int host = options.share_memory ? options.host_of[static_cast<size_t>(ranks[k])] : static_cast<int>(k);
    auto [it, fresh] = numbers.try_emplace(host, layout.hosts());
    if (fresh) layout.members.emplace_back();
    layout.host_of.push_back(it->second);
    layout.members[static_cast<size_t>(it->second)].push_back(static_cast<int>(k));
  }
  return layout;
}

}  // namespace

HostsGroup::HostsGroup(std::shared_ptr<HostsWorld> world, std::vector<int> ranks, uint64_t id)
    : Transport(std::move(ranks)), world_(std::move(world)), id_(id) {
  auto mine = std::find(this->ranks().begin(), this->ranks().end(), world_->rank());
  const HostsOptions& options = world_->options();
  layout_ = make_layout(this->ranks(), static_cast<int>(mine - this->ranks().begin()), options);
  name_ = layout_.hosts() < size() ? "shm+" + options.engine : options.engine;
  if (mine == this->ranks().end()) return;  // not a member: knows the names only
  me_ = layout_.me;
  if (layout_.local().size() > 1) {
    std::vector<int> here;
    for (int k : layout_.local()) here.push_back(at(k));
    inner_ = world_->local().group(here, id_, kInner);
  }
  facts_.resize(static_cast<size_t>(size()) * block());
  messages_ = std::make_shared<HostMessages>(*world_, id_, this->ranks(), me_);
  queue_ = std::make_unique<CallQueue>(
      [this](const Call& call, std::chrono::milliseconds timeout) { execute(call, timeout); });
}

HostsGroup::~HostsGroup() {
  if (me_ < 0) return;
  queue_->stop();
  world_->dropped(id_, messages_);
}

std::shared_ptr<Transport> HostsGroup::subgroup(int rank, const std::vector<int>& members) {
  std::vector<int> global;
  for (int m : members) global.push_back(at(m));
  uint64_t count = 0;
  if (std::count(members.begin(), members.end(), rank)) {
    std::lock_guard lock(subgroups_mutex_);
    count = subgroups_[members]++;
  }
  return world_->group(global, id_, count);
}

// ---- Waiting

void HostsGroup::time_out(const std::function<bool(int)>& has_come, const Call& call, uint64_t number,
                          std::chrono::milliseconds timeout) {
  int me = world_->rank();
  std::string text =
      fmt::format("rank {} waited {} in collective {}, {}:", me, seconds(timeout), number, comm::describe(call));
  std::vector<int> missing;
  for (int r : ranks())
    if (r != me && !has_come(r)) missing.push_back(r);
  bool all_came = missing.empty();
  if (all_came)
    for (int r : ranks())
      if (r != me) missing.push_back(r);
  for (auto& [rank, last] : world_->ask_last_calls(missing, id_)) {
    text += fmt::format("\n  rank {} {}; {}", rank, all_came ? "came, but not all data did" : "did not come", last);
    if (world_->local().has_ended(rank)) text += "; it has ended";
  }
  world_->fail(me, text, "TimeoutError");
  world_->wire().cut();
  tutti::fail<TimeoutError>("", "{}", text);
}

void HostsGroup::await(const std::function<bool()>& ready, const std::function<bool(int)>& has_come, const Call& call,
                       uint64_t number, Clock::time_point deadline, std::chrono::milliseconds timeout) {
  auto come = [&] {
    if (world_->wire().has_mail()) world_->deliver();
    return ready() || world_->failed();
  };
  while (!world_->wire().wait(std::min(deadline, Clock::now() + kWatch), come)) {
    // Where all have come, one that has ended has done its part; a link that breaks now is one that data come by.
    bool all_came = std::all_of(ranks().begin(), ranks().end(), has_come);
    auto done = [&](int r) { return all_came ? world_->local().has_ended(r) : has_come(r); };
    world_->watch(ranks(), done,
                  fmt::format("taking part in collective {} of a group of {}, which others wait for: {}", number,
                              size(), comm::describe(call)));
    if (Clock::now() >= deadline && !come()) time_out(has_come, call, number, timeout);
  }
  if (!ready()) world_->check();
}

// ---- Collectives

void HostsGroup::execute(const Call& call, std::chrono::milliseconds timeout) {
  world_->check();
  uint64_t number = next_++;
  CallFacts mine = facts_of(call, me_, size());
  ProcessWorld& local = world_->local();
  ProcessWorld::Noted noted{*local.state(0), local.note(id_, number, mine.header)};
  auto deadline = Clock::now() + timeout;
  std::vector<CallFacts> calls = exchange_facts(call, mine, number, timeout);
  if (auto mismatch = find_mismatch(calls, ranks(), number))
    tutti::fail<MismatchError>(comm::name(call.kind), "{}", *mismatch);
  bool small = std::all_of(calls.begin(), calls.end(),
                           [&](const CallFacts& c) { return c.header.bytes <= static_cast<int64_t>(most_inline()); });
  if (small) {
    finish_small(call, calls);
  } else {
    auto all_came = [](int) { return true; };
    ExchangeContext context{
        .layout = layout_,
        .ranks = ranks(),
        .wire = world_->wire(),
        .group = id_,
        .first_part = next_part_,
        .inner = inner_.get(),
        .await = [&](const Pending& p) { await([&] { return p.done(); }, all_came, call, number, deadline, timeout); },
        .time_left =
            [&] {
              auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
              return std::max(left, std::chrono::milliseconds(1));
            }};
    try {
      next_part_ += exchange(context, call, calls);
    } catch (...) {  // nothing may be on its way to or from memory that is no more the call's
      if (!world_->failed()) world_->fail(world_->rank(), "it could not go on in the middle of a collective");
      world_->wire().cut();
      throw;
    }
  }
}

std::vector<CallFacts> HostsGroup::exchange_facts(const Call& call, const CallFacts& mine, uint64_t number,
                                                  std::chrono::milliseconds timeout) {
  auto n = static_cast<size_t>(size()), me = static_cast<size_t>(me_), room = CallFacts::room(size());
  auto block_of = [&](size_t k) { return facts_.data() + k * block(); };
  std::vector<Pending> come(n);
  Pending sent;
  Wire& wire = world_->wire();
  for (size_t k = 0; k < n; ++k)
    if (k != me) wire.receive({id_, number, at(static_cast<int>(k)), Channel::facts}, block_of(k), block(), come[k]);
  mine.write(block_of(me), size());
  size_t bytes = room;
  if (mine.header.bytes <= static_cast<int64_t>(most_inline()) && mine.header.bytes > 0)
    for (const Piece& p : call.kind == Kind::broadcast ? call.out : call.in) {
      size_t count = static_cast<size_t>(p.count) * size_of(call.dtype);
      if (count) std::memcpy(block_of(me) + bytes, p.data, count);
      bytes += count;
    }
  // Beginning with the next, so that not all send to the same at once.
  for (size_t step = 1; step < n; ++step) {
    size_t k = (me + step) % n;
    wire.send(at(static_cast<int>(k)), {id_, number, at(me_), Channel::facts}, block_of(me), bytes, sent);
  }
  size_t first = 0;
  auto all = [&] {
    while (first < n && come[first].done()) ++first;
    return first == n && sent.done();
  };
  auto has_come = [&](int rank) {
    auto k = std::find(ranks().begin(), ranks().end(), rank) - ranks().begin();
    return come[static_cast<size_t>(k)].done();
  };
  await(all, has_come, call, number, Clock::now() + timeout, timeout);
  std::vector<CallFacts> calls;
  for (size_t k = 0; k < n; ++k) calls.push_back(CallFacts::read(block_of(k), size()));
  return calls;
}

void HostsGroup::finish_small(const Call& call, const std::vector<CallFacts>& calls) {
  Streams s = plan_streams(call, me_, calls);
  s.reduction.factors = s.factors;
  auto data = [&](int rank, int64_t offset) {
    return facts_.data() + static_cast<size_t>(rank) * block() + CallFacts::room(size()) + offset;
  };
  for (const Streams::Copy& c : s.copies) std::memcpy(c.to, data(c.from, c.offset), static_cast<size_t>(c.bytes));
  std::vector<const void*> sources(static_cast<size_t>(size()));
  for (const Streams::Combine& c : s.combines) {
    for (int r = 0; r < size(); ++r) sources[static_cast<size_t>(r)] = data(r, c.offset);
    void* target = c.to;
    reduce_into(s.reduction, sources, {&target, 1}, c.count);
  }
}

void HostsGroup::run(int, Call&& call, std::chrono::milliseconds timeout) { queue_->run(std::move(call), timeout); }

void HostsGroup::start(int rank, Call call, const std::shared_ptr<WorkState>& work) {
  world_->check();
  work->rank = rank;
  queue_->start(std::move(call), work);
}

bool HostsGroup::wait(WorkState& work, Clock::time_point deadline, bool give_up) {
  if (work.is_message) return wait_message(work, deadline, give_up);
  return queue_->wait(work, give_up ? std::optional(deadline) : std::nullopt);
}

bool HostsGroup::cancel(WorkState& work) {
  auto cancelled = std::make_exception_ptr(CancelledError("this work was cancelled", "Work::cancel"));
  if (work.is_message) {
    if (!messages_->withdraw(work, false)) return false;
    work.complete(cancelled);
    return true;
  }
  auto call = queue_->withdraw(work);
  if (!call) return false;
  work.complete(cancelled);
  world_->fail(world_->rank(), fmt::format("it cancelled {}", comm::describe(*call)));
  world_->wire().wake();
  return true;
}

// ---- Messages

void HostsGroup::arrived(Mail mail) {
  if (messages_) messages_->arrived(mail);
}
void HostsGroup::settle() {
  if (messages_) messages_->settle();
}

void HostsGroup::start_send(int rank, int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  world_->check();
  work->rank = rank;
  work->peer = to;
  work->is_message = true;
  work->noted = world_->local().note(id_, next_, facts_of(call, me_, size()).header);
  messages_->send(to, tag, std::move(call), work);
}

void HostsGroup::start_receive(int rank, int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  world_->check();
  work->rank = rank;
  work->peer = from;
  work->is_message = true;
  work->noted = world_->local().note(id_, next_, facts_of(call, me_, size()).header);
  messages_->receive(from, tag, std::move(call), work);
}

void HostsGroup::fail_messages() {
  if (!messages_) return;
  world_->wire().cut();
  for (auto& work : messages_->withdraw_all()) work->complete(world_->local().failure());
  world_->wire().wake();  // those who wait for them
}

bool HostsGroup::wait_message(WorkState& work, Clock::time_point deadline, bool give_up) {
  int peer = work.peer < 0 ? -1 : at(work.peer), me = world_->rank();
  auto ready = [&] {
    if (world_->wire().has_mail()) world_->deliver();
    return work.settled() || world_->failed();
  };
  while (!world_->wire().wait(std::min(deadline, Clock::now() + kWatch), ready)) {
    std::vector<int> others{peer};
    if (peer < 0) {  // any of them would do, so that all must have ended
      others = ranks();
      std::erase(others, me);
    }
    auto has_ended = [&](int r) { return world_->local().has_ended(r); };
    auto open = messages_->find(work);
    if (open && (peer >= 0 || std::all_of(others.begin(), others.end(), has_ended)))
      world_->watch(
          others, [&](int) { return work.settled(); },
          fmt::format("{} what rank {} {}: {}", open->sends ? "receiving" : "sending", me,
                      open->sends ? "sends" : "waits for", open->call));
    if (work.settled() || world_->failed() || Clock::now() >= deadline) break;
  }
  if (work.settled()) return true;
  if (give_up && !world_->failed()) return false;
  if (world_->failed()) world_->wire().cut();
  auto mine = messages_->withdraw(work, world_->failed());
  if (!mine) {  // on its way, or completed by another thread this very moment
    if (!world_->failed()) {
      world_->fail(me, fmt::format("rank {} waited {} for a message that had begun", me, seconds(work.timeout)),
                   "TimeoutError");
      world_->wire().cut();
      mine = messages_->withdraw(work, true);
    }
    if (!mine) {
      while (!world_->wire().wait(Clock::now() + kWatch, [&] { return work.settled(); })) {
      }
      return true;
    }
  }
  if (world_->failed()) {
    work.complete(world_->local().failure());
    return true;
  }
  std::string text = fmt::format("rank {} waited {} for {} to {}: {}", me, seconds(work.timeout),
                                 peer < 0 ? "any rank" : fmt::format("rank {}", peer),
                                 mine->sends ? "receive what it sends" : "send", mine->call);
  for (auto& [r, last] : world_->ask_last_calls(peers_of(work), id_)) {
    text += fmt::format("\n  rank {}: {}", r, last);
    if (world_->local().has_ended(r)) text += "; it has ended";
  }
  work.complete(std::make_exception_ptr(TimeoutError(text, mine->sends ? "send" : "recv")));
  world_->fail(me, text, "TimeoutError");
  world_->wire().cut();
  return true;
}

}  // namespace tutti::comm
