#include "comm/transport/hosts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace tutti::comm {
namespace {

constexpr auto kWatch = std::chrono::milliseconds(20);  // how often a rank that waits looks after the others

constexpr uint64_t kInner = ~uint64_t{0};  // no subgroup that users make has this number

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
    inner_->set_part();
  }
  facts_ = std::make_unique<HostFacts>(world_->wire(), layout_, this->ranks(), id_, inner_.get());
  messages_ = std::make_shared<HostMessages>(*world_, id_, this->ranks(), me_);
  queue_ = std::make_unique<CallQueue>([this](const Call& call, const TimeLimit& limit) { execute(call, limit); });
}

HostsGroup::~HostsGroup() {
  if (me_ < 0) return;
  queue_->stop();
  world_->dropped(id_, messages_, made());
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

std::string HostsGroup::late_text(const std::function<bool(int)>& has_come, const Running& running) {
  std::string text = fmt::format("rank {} waited {} in collective {}, {}:", world_->rank(),
                                 seconds(running.limit.timeout()), running.number, comm::describe(running.call));
  std::vector<int> missing, others;
  for (int k = 0; k < size(); ++k) {
    if (k != me_) others.push_back(at(k));
    if (k != me_ && !has_come(k)) missing.push_back(at(k));
  }
  bool all_came = missing.empty();
  auto last_calls = world_->ask_last_calls(all_came ? others : missing, id_);
  // Whose facts are not here may have come all the same, and be held up by another rank of its host.
  std::string here = fmt::format("collective {} of this group", running.number);
  if (!all_came)
    std::erase_if(last_calls, [&](const auto& last) { return last.second.find(here) != std::string::npos; });
  if (last_calls.empty()) {
    all_came = true;
    last_calls = world_->ask_last_calls(others, id_);
  }
  for (auto& [rank, last] : last_calls) {
    text += fmt::format("\n  rank {} {}; {}", rank, all_came ? "came, but not all data did" : "did not come", last);
    if (world_->local().has_ended(rank)) text += "; it has ended";
  }
  return advised(std::move(text), running.call.purpose);
}

void HostsGroup::time_out(const std::function<bool(int)>& has_come, const Running& running) {
  std::string text = late_text(has_come, running);
  world_->fail(world_->rank(), text, "TimeoutError");
  world_->wire().cut();
  tutti::fail<TimeoutError>("", "{}", text);
}

void HostsGroup::await(const std::function<bool()>& ready, const std::function<bool(int)>& has_come, bool here,
                       const Running& running) {
  auto come = [&] {
    if (!here && world_->wire().has_mail()) world_->deliver();
    return ready() || world_->failed() || queue_->cancel_asked();
  };
  auto wait = [&] {
    auto until = std::min(running.limit.end(), Clock::now() + kWatch);
    return here ? inner_->wait_for(until, come) : world_->wire().wait(until, come);
  };
  while (!wait()) {
    std::vector<int> watched;
    for (int k = 0; k < size(); ++k)
      if (!here || layout_.host_of[static_cast<size_t>(k)] == layout_.here()) watched.push_back(k);
    // Where all have come, one that has ended has done its part; a link that breaks now is one that data come by.
    bool all_came = std::all_of(watched.begin(), watched.end(), has_come);
    for (int& k : watched) k = at(k);
    auto done = [&](int r) {
      auto k = std::find(ranks().begin(), ranks().end(), r) - ranks().begin();
      return all_came ? world_->local().has_ended(r) : has_come(static_cast<int>(k));
    };
    world_->watch(watched, done,
                  fmt::format("taking part in collective {} of a group of {}, which others wait for: {}{}",
                              running.number, size(), comm::describe(running.call), advice(running.call.purpose)),
                  HostsWorld::Awaited{id_, running.number});
    if (Clock::now() >= running.limit.end() && !come()) time_out(has_come, running);
  }
  if (ready()) return;
  world_->check();
  world_->fail(world_->rank(), fmt::format("it cancelled {}", comm::describe(running.call)));
  world_->wire().cut();  // nothing may come into what is freed on the way out
  queue_->leave();
}

// ---- Collectives

static void break_off(HostsWorld& world) {
  if (!world.failed()) world.fail(world.rank(), "it could not go on in the middle of a collective");
  world.wire().cut();
}

void HostsGroup::look_after_ranks() {
  world_->watch(ranks(), [](int) { return false; }, "meeting those that wait for it");
  world_->check();
}

void HostsGroup::execute(const Call& call, const TimeLimit& limit) {
  world_->check();
  Running running{call, next_++, limit};
  CallFacts mine = facts_of(call, me_, size());
  ProcessWorld& local = world_->local();
  ProcessWorld::Noted noted{*local.state(0), local.note(id_, running.number, mine.header)};
  try {
    carry_out(running, mine);
  } catch (const MismatchError&) {  // of which nothing is left
    throw;
  } catch (...) {  // nothing may be on its way to or from memory that is no more the call's
    break_off(*world_);
    throw;
  }
}

void HostsGroup::carry_out(const Running& running, const CallFacts& mine) {
  const Call& call = running.call;
  HostFacts::Waits waits{
      .on_wire = [&](const auto& ready, const auto& has_come) { await(ready, has_come, false, running); },
      .in_memory = [&](const auto& ready, const auto& has_come) { await(ready, has_come, true, running); }};
  ExchangeContext context = this->context(running);
  auto known = facts_->tell(call, mine, running.number, waits);
  std::unique_ptr<Exchange> exchange = begin(context, running, known);
  // Goes before the exchange, whose memory others may be writing into where it ends in the middle.
  struct CutOff {
    HostsWorld& world;
    bool clean = false;
    ~CutOff() {
      if (!clean) break_off(world);
    }
  } cut_off{*world_};
  bool compared = false;
  std::optional<std::string> mismatch;
  auto fit = [&](const std::vector<CallFacts>& calls) {
    if (!std::exchange(compared, true)) mismatch = find_mismatch(calls, ranks(), running.number);
    return !mismatch;
  };
  count_round();
  std::vector<CallFacts> calls =
      facts_->take(waits, [&](const auto& calls) { return !fit(calls) || !exchange || exchange->has_first(); });
  queue_->past();
  if (!fit(calls)) {
    if (exchange) exchange->abandon();
    clear_away(context, running);
    cut_off.clean = true;
    tutti::fail<MismatchError>(comm::name(call.kind), "{}", *mismatch);
  }
  auto most = static_cast<int64_t>(facts_->most_inline());
  if (std::all_of(calls.begin(), calls.end(), [&](const CallFacts& c) { return c.header.bytes <= most; })) {
    finish_small(call, calls);
  } else {
    if (!exchange) exchange = make_exchange(context, call, calls);
    exchange->confirm(calls);
    exchange->run();
  }
  cut_off.clean = true;
}

// After a mismatch: what others sent for nothing is here when their last word is, which follows it. Were it still on
// its way when this rank ends, its connections would be reset, and with them what others have not read yet.
void HostsGroup::clear_away(const ExchangeContext& context, const Running& running) {
  Wire& wire = world_->wire();
  wire.drop(id_, context.first_part, context.first_part + Exchange::kNumbers - 1);
  static constexpr char word = 0;
  std::vector<char> words(static_cast<size_t>(size()));
  std::vector<Pending> come(static_cast<size_t>(size()));
  Pending sent;
  for (size_t k = 0; k < come.size(); ++k) {
    if (layout_.host_of[k] == layout_.here()) continue;
    wire.receive({id_, running.number, ranks()[k], Channel::hello}, &words[k], 1, come[k]);
    wire.send(ranks()[k], {id_, running.number, world_->rank(), Channel::hello}, &word, 1, sent);
  }
  auto done = [](const Pending& p) { return p.done(); };
  try {
    await([&] { return std::all_of(come.begin(), come.end(), done) && sent.done(); },
          [&](int k) { return come[static_cast<size_t>(k)].done(); }, false, running);
  } catch (...) {
    break_off(*world_);
    throw;
  }
}

ExchangeContext HostsGroup::context(const Running& running) {
  auto wait = [this, &running](const Pending& p) {
    await([&] { return p.done(); }, [](int) { return true; }, false, running);
  };
  auto time_left = [&running] {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(running.limit.end() - Clock::now());
    return std::max(left, std::chrono::milliseconds(1));
  };
  return {.layout = layout_,
          .ranks = ranks(),
          .wire = world_->wire(),
          .group = id_,
          .first_part = running.number * Exchange::kNumbers,
          .inner = inner_.get(),
          .await = wait,
          .count_round = [this] { count_round(); },
          .time_left = time_left};
}

// The first data of a call that is not small, if those of this host fit: all of its ranks see that alike.
std::unique_ptr<Exchange> HostsGroup::begin(const ExchangeContext& context, const Running& running,
                                            const std::vector<std::optional<CallFacts>>& known) {
  auto most = static_cast<int64_t>(facts_->most_inline());
  int64_t bytes = 0;
  for (const auto& facts : known)
    if (facts) bytes = std::max(bytes, facts->header.bytes);
  if (running.call.kind == Kind::broadcast) {  // of which only the root gives something, and all know how much
    bytes = 0;
    for (const Piece& p : running.call.out) bytes += p.count * static_cast<int64_t>(size_of(running.call.dtype));
  }
  if (bytes <= most) return nullptr;
  auto assumed = assume(known);
  if (!assumed) return nullptr;
  auto exchange = make_exchange(context, running.call, *assumed);
  try {
    exchange->begin();
  } catch (...) {  // others may be writing into its memory already
    break_off(*world_);
    throw;
  }
  return exchange;
}

void HostsGroup::finish_small(const Call& call, const std::vector<CallFacts>& calls) {
  Streams s = plan_streams(call, me_, calls);
  s.reduction.factors = s.factors;
  for (const Streams::Copy& c : s.copies)
    std::memcpy(c.to, facts_->data(c.from) + c.offset, static_cast<size_t>(c.bytes));
  std::vector<const void*> sources(static_cast<size_t>(size()));
  for (const Streams::Combine& c : s.combines) {
    for (int r = 0; r < size(); ++r) sources[static_cast<size_t>(r)] = facts_->data(r) + c.offset;
    void* target = c.to;
    reduce_into(s.reduction, sources, {&target, 1}, c.count);
  }
}

void HostsGroup::run(int rank, Call&& call, std::chrono::milliseconds timeout) {
  if (queue_->try_run(call, timeout)) return;
  auto work = std::make_shared<WorkState>();
  work->set_timeout(timeout);
  start(rank, std::move(call), work);
  wait(*work, work->limit.end(), false);
  if (work->error()) std::rethrow_exception(work->error());
}

void HostsGroup::start(int rank, Call call, const std::shared_ptr<WorkState>& work) {
  world_->check();
  work->rank = rank;
  queue_->start(std::move(call), work);
}

bool HostsGroup::wait(WorkState& work, Clock::time_point deadline, bool give_up) {
  if (work.is_message) return wait_message(work, deadline, give_up);
  if (queue_->wait(work, deadline)) return true;
  if (give_up) return false;
  return expire(work) || queue_->wait(work, {});
}

bool HostsGroup::expire(WorkState& work) {
  if (work.is_message) return wait_message(work, Clock::now(), false);
  // One that has begun ends by the same clock, on the thread that it is on.
  return queue_->take(work, [&](const Call& call, size_t before) {
    if (world_->failed()) return work.complete(world_->local().failure());
    std::string text = late_text([](int) { return false; }, {call, next_.load() + before, work.limit});
    world_->fail(world_->rank(), text, "TimeoutError");
    world_->wire().cut();
    work.complete(std::make_exception_ptr(TimeoutError(text, "")));
  });
}

bool HostsGroup::cancel(WorkState& work) {
  auto cancelled = std::make_exception_ptr(CancelledError("this work was cancelled", "Work::cancel"));
  if (work.is_message) {
    if (!messages_->withdraw(work, false)) return false;
    work.complete(cancelled);
    return true;
  }
  return queue_->cancel(
      work, [&] { world_->wire().wake(); },
      [&](const Call& call) {
        work.complete(cancelled);
        world_->fail(world_->rank(), fmt::format("it cancelled {}", comm::describe(call)));
        world_->wire().wake();
      });
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
      world_->fail(me, fmt::format("rank {} waited {} for a message that had begun", me, seconds(work.limit.timeout())),
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
  std::string text = fmt::format("rank {} waited {} for {} to {}: {}", me, seconds(work.limit.timeout()),
                                 peer < 0 ? "any rank" : fmt::format("rank {}", peer),
                                 mine->sends ? "receive what it sends" : "send", mine->call);
  for (auto& [r, last] : world_->ask_last_calls(peers_of(work), id_)) {
    text += fmt::format("\n  rank {}: {}", r, last);
    if (world_->local().has_ended(r)) text += "; it has ended";
  }
  text = advised(std::move(text), nullptr);
  work.complete(std::make_exception_ptr(TimeoutError(text, mine->sends ? "send" : "recv")));
  world_->fail(me, text, "TimeoutError");
  world_->wire().cut();
  return true;
}

}  // namespace tutti::comm
