#include "parallel/join.h"

#include <limits>
#include <numeric>

#include "base/check.h"
#include "comm/group/call.h"
#include "comm/transport/transport.h"
#include "parallel/agree.h"
#include "tutti/comm/objects.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti::parallel {
namespace {

constexpr int64_t kFailed = std::numeric_limits<int64_t>::max();
constexpr const char* kJoinPurpose = "join(): all ranks of its group must be inside until all are through";

// The last is for the smallest part that is announced, when the largest of all numbers is taken.
Tensor round_of(int64_t part, int64_t rank, int64_t mode, bool joined) {
  return tensor(std::vector<int64_t>{part, rank, mode, joined, joined ? std::numeric_limits<int64_t>::min() : -part},
                {.dtype = DType::i64});
}

// Takes part in whatever others announce until nobody does.
void shadow_others(JoinSession& session, const std::vector<Joinable>& parts) {
  session.joined = true;
  while (true) {
    JoinSession::Round round = session.announce(-1, 0);
    if (round.part < 0) return;
    TUTTI_ASSERT(round.part < static_cast<int64_t>(parts.size()));
    parts[static_cast<size_t>(round.part)].part()->shadow(round.mode);
  }
}

struct SessionGuard {
  SessionGuard(JoinSession& session, const std::vector<Joinable>& parts) : parts(parts) {
    for (size_t i = 0; i < parts.size(); ++i)
      check<ValueError>(!parts[i].part()->session, "join", "part {} is being joined already", i);
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].part()->index = static_cast<int64_t>(i);
      parts[i].part()->session = &session;
    }
  }
  ~SessionGuard() {
    for (const Joinable& p : parts) p.part()->session = nullptr;
  }
  SessionGuard(const SessionGuard&) = delete;
  SessionGuard& operator=(const SessionGuard&) = delete;
  const std::vector<Joinable>& parts;
};

}  // namespace

JoinSession::Round JoinSession::announce(int64_t part, int64_t mode) {
  NoGrad guard;
  comm::PurposeGuard purpose(kJoinPurpose);
  // The largest number is that of the lowest rank.
  Tensor round = round_of(part + 1, part < 0 ? 0 : group_.size() - group_.rank(), mode, part < 0);
  all_reduce(round, {.op = Reduce::max, .group = group_, .place = place_});
  std::vector<int64_t> all = round.to_vector<int64_t>();
  if (all[0] == kFailed) others_failed(group_.ranks()[static_cast<size_t>(all[1] - group_.size() - 1)]);
  if (all[0] > 0) leader_ = group_.size() - static_cast<int>(all[1]);
  everyone_ = all[3] == 0;
  check<MismatchError>(
      all[0] == 0 || all[0] == -all[4], "join",
      "ranks announced different ones of the joined parts: part {} and part {}{}. All are to use them in "
      "the same order",
      -all[4] - 1, all[0] - 1, part < 0 ? "" : fmt::format("; this one part {}", part));
  return {all[0] - 1, all[2]};
}

// If the error ends that rank, what it says is what everyone should hear: so there is a moment for it to do so.
void JoinSession::others_failed(int rank) {
  try {
    monitored_barrier({.group = group_, .timeout = std::chrono::seconds(1), .place = place_});
  } catch (const TimeoutError&) {
  }
  tutti::fail<RankFailure>("join", "rank {} threw inside of join: its own error says why", rank);
}

void JoinSession::fail(const std::string& why) {
  NoGrad guard;
  comm::PurposeGuard purpose(kJoinPurpose);
  try {
    // Larger than any rank, so that it is this one's whatever others say.
    Work told = all_reduce_async(round_of(kFailed, group_.size() + group_.rank() + 1, 0, false),
                                 {.op = Reduce::max, .group = group_, .place = place_});
    if (told.wait_for(options_.patience)) return;
  } catch (const Error&) {  // the world has failed already: they know
    return;
  }
  group_.handle()->group->fail(group_.rank(), "RankFailure", "it threw inside of join: " + why);
}

Joinable::Joinable(std::function<void()> shadow, std::function<void(int last)> finish)
    : part_(std::make_shared<JoinPart>()) {
  check<ValueError>(shadow != nullptr, "Joinable", "needs a function that makes the same collectives");
  part_->shadow = [shadow = std::move(shadow)](int64_t) { shadow(); };
  part_->finish = std::move(finish);
}

Joinable::Joinable(io::Part state) : part_(std::make_shared<JoinPart>()) {
  part_->shadow = [](int64_t) {};
  part_->finish = [own = std::weak_ptr(part_), state = std::move(state)](int last) {
    auto part = own.lock();
    const Group& group = part->session->group();
    comm::PurposeGuard purpose("the end of join(): all ranks get the state of the last");
    io::State all;
    if (group.rank() == last) all["state"] = state.save();
    broadcast_object(all, {.root = last, .group = group, .place = part->session->place()});
    if (group.rank() != last) state.load(std::as_const(all)["state"]);
  };
}

void Joinable::announce() const {
  if (part_->session && !part_->session->joined) part_->session->announce(part_->index, 0);
}

int join(const std::vector<Joinable>& parts, const std::function<void()>& body, const JoinOptions& options,
         const Place& place) {
  check<ValueError>(options.patience.count() >= 0, "join", "its patience is {} ms: it cannot be negative",
                    options.patience.count());
  Group group = options.group.defined() ? options.group : world();
  std::vector<int> everyone(static_cast<size_t>(group.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  JoinSession session(group.subgroup(everyone), options, place);
  {
    comm::PurposeGuard purpose(kJoinPurpose);
    check_agree("join", {{"parts", std::to_string(parts.size())}}, {.group = session.group(), .place = place});
  }
  SessionGuard guard(session, parts);
  // Ranks are at different points of their work: nobody's parts can go on, not even those of ranks that were through.
  auto give_up = [&](const std::string& why) {
    for (const Joinable& p : parts)
      if (p.part()->fail) p.part()->fail(why);
  };
  try {
    body();
    shadow_others(session, parts);
    int last = std::max(0, session.leader());
    for (const Joinable& p : parts)
      if (p.part()->finish && session.leader() >= 0) p.part()->finish(last);
    return last;
  } catch (const RankFailure& e) {
    give_up(e.what());
    throw;  // others know
  } catch (const std::exception& e) {
    give_up(e.what());
    session.fail(e.what());
    throw;
  } catch (...) {
    give_up("something was thrown inside of join");
    session.fail("something that is no std::exception");
    throw;
  }
}

}  // namespace tutti::parallel
