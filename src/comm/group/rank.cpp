#include "comm/group/rank.h"

#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/check.h"
#include "comm/launch/errors.h"
#include "comm/launch/launch.h"
#include "comm/transport/transport.h"
#include "tutti/context.h"
#include "tutti/io/file.h"
#include "tutti/trace.h"

namespace tutti::comm {
namespace {

std::string variable_text(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

RankState::RankState(int rank, int world_size)
    : rank(rank), world_size(world_size), folder_(variable_text("TUTTI_TRACE")) {
  if (std::string text = variable_text("TUTTI_FAULTS"); !text.empty()) {
    FaultPlan plan = parse_faults(text);
    faults.add(plan.faults, plan.seed, rank);
  }
}

void RankState::apply(const SpawnOptions& options) {
  if (!options.faults.empty()) faults.add(options.faults, options.seed, rank);
  std::lock_guard lock(leaving_);
  if (!options.trace.empty()) folder_ = options.trace;
}

std::shared_ptr<void> RankState::guest() const {
  std::lock_guard lock(guest_mutex_);
  return guest_;
}
bool RankState::set_guest(const std::shared_ptr<void>& guest) {
  std::lock_guard lock(guest_mutex_);
  if (guest && guest_) return false;
  guest_ = guest;
  return true;
}

void RankState::leave(const std::exception_ptr& error) noexcept {
  try {
    std::lock_guard lock(leaving_);
    if (folder_.empty() || left_with_error_) return;
    left_with_error_ = error != nullptr;
    std::filesystem::create_directories(folder_);
    std::string json = to_json(error ? text_of(error) : "");
    io::write_atomically(folder_ + "/rank-" + std::to_string(rank) + ".json",
                         [&](io::Output& out) { out.write(json); });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "tutti: the flight record of rank %d could not be written: %s\n", rank, e.what());
  }
}

std::exception_ptr RankState::met_in(const std::exception_ptr& error, uint64_t entry) const {
  std::string kind = class_of(error);
  if (kind != "RankFailure" && kind != "DeadlockError") return error;
  auto met = record.find(entry);
  if (!met) return error;
  std::string call = describe(met->call), theirs = text_of(error);
  if (theirs.find(call) != std::string::npos) return error;  // which is about this very call
  std::string number = met->is_message() ? "" : fmt::format("collective {}, ", met->sequence);
  std::string text = fmt::format("{}\n  met by rank {} in {}{}", theirs, rank, number, call);
  Context mine = context();
  mine.rank = rank;  // which may not be that of the thread that ends the call
  ContextGuard guard(mine);
  if (kind == "DeadlockError") return std::make_exception_ptr(DeadlockError(text, name(met->call.kind)));
  return std::make_exception_ptr(RankFailure(text, name(met->call.kind)));
}

void RankState::remember_unobserved(const std::exception_ptr& error) noexcept {
  if (class_of(error) == "RankFailure") return;  // that, all calls say
  std::lock_guard lock(leaving_);
  if (has_unobserved_.exchange(true)) return;
  unobserved_ = error;
}

void RankState::throw_it() {
  std::exception_ptr error;
  {
    std::lock_guard lock(leaving_);
    error = std::exchange(unobserved_, nullptr);
    has_unobserved_.store(false);
  }
  if (error) rethrow_with(error, "an asynchronous call that nobody waited for has failed: ");
}

std::vector<int> Transport::peers_of(const WorkState& message) const {
  constexpr size_t most = 8;
  std::vector<int> peers;
  for (int k = 0; k < size() && peers.size() < most; ++k)
    if (message.peer < 0 ? k != message.rank : k == message.peer) peers.push_back(ranks()[static_cast<size_t>(k)]);
  return peers;
}

std::string seconds(std::chrono::nanoseconds time) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(time).count());
}

std::string failure_text(int failed, int told, const std::string& text) {
  return failed == told ? "this rank counts as failed: " + text : fmt::format("rank {} failed: {}", failed, text);
}

void Transport::kill(int, const std::string&) { ::raise(SIGKILL); }

RankGroup::RankGroup(std::shared_ptr<Transport> group, int rank, std::shared_ptr<RankState> state)
    : group(std::move(group)), rank(rank), state(std::move(state)), id_(this->group->id()) {}

// Delays, throws and dies as was asked for; false: the call is to be lost.
bool RankGroup::meet_faults(const Call& call) {
  FaultInjector::Meeting meeting = state->faults.next(name(call.kind));
  if (meeting.delay.count() > 0) std::this_thread::sleep_for(meeting.delay);
  if (!meeting.fault) return true;
  if (meeting.fault->kind == Fault::drop) return false;
  std::string text = fmt::format("an injected fault at call {}, {}", meeting.call, describe(call));
  if (meeting.fault->kind == Fault::kill) group->kill(rank, "it was killed by " + text);
  throw InjectedError(text, name(call.kind));
}

template <class Begin>
void RankGroup::carry_out(uint64_t entry, const Begin& begin) {
  try {
    begin();
  } catch (...) {
    std::exception_ptr error = state->met_in(std::current_exception(), entry);
    state->record.end(entry, CallStatus::failed);
    state->leave(error);
    std::rethrow_exception(error);
  }
}

void RankGroup::run(Call&& call, std::chrono::milliseconds timeout) {
  if (Tracer* tracer = tracing()) tracer->untraceable("a collective other than those of namespace fn");
  check_may_wait(name(call.kind));
  state->throw_unobserved();
  if (state->faults.active() && !meet_faults(call)) return;
  uint64_t entry = state->record.begin(id_, next_, call, true);
  carry_out(entry, [&] { group->run(rank, std::move(call), timeout); });
  state->record.end(entry);
}

void RankGroup::start(Call call, const std::shared_ptr<WorkState>& work) {
  if (Tracer* tracer = tracing()) tracer->untraceable("a collective other than those of namespace fn");
  state->throw_unobserved();
  if (state->faults.active() && !meet_faults(call)) return work->complete(nullptr);
  work->owner = state;
  work->record = state->record.begin(id_, next_, call);
  carry_out(work->record, [&] { group->start(rank, std::move(call), work); });
}

void RankGroup::send(int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  state->throw_unobserved();
  if (state->faults.active() && !meet_faults(call)) return work->complete(nullptr);
  work->owner = state;
  work->record = state->record.begin_message(id_, world_rank(to), tag, call);
  carry_out(work->record, [&] { group->start_send(rank, to, tag, std::move(call), work); });
}

void RankGroup::receive(int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) {
  state->throw_unobserved();
  if (state->faults.active() && !meet_faults(call)) return work->complete(nullptr);
  work->owner = state;
  work->record = state->record.begin_message(id_, world_rank(from), tag, call);
  carry_out(work->record, [&] { group->start_receive(rank, from, tag, std::move(call), work); });
}

}  // namespace tutti::comm
