#include "comm/transport/hosts_world.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "base/check.h"
#include "comm/transport/group_id.h"
#include "comm/transport/hosts.h"
#include "comm/transport/progress.h"
#include "comm/transport/shm.h"

namespace tutti::comm {
namespace {

// Mail to the world itself, which is no group: a question for the last call, and its answer.
constexpr uint64_t kQuestion = ~uint64_t{0}, kAnswer = ~uint64_t{1};

constexpr auto kNaming = std::chrono::milliseconds(2000);  // in which whoever has failed is known, where cores are busy

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

std::unique_ptr<Wire> make_wire(const ProcessWorld& local, const StorePtr& store, const HostsOptions& o,
                                const std::stop_token& stop) {
  if (o.engine == "gloo") return make_gloo_wire(local.rank(), local.size(), store, o.address, stop);
  return make_ucx_wire(local.rank(), local.size(), store, local.spin(), local.timeout(), stop);
}

}  // namespace

std::string encode_failure(const Failure& f) { return fmt::format("{}\n{}\n{}", f.rank, f.kind, f.text); }

Failure decode_failure(const std::string& bytes) {
  size_t first = bytes.find('\n'), second = bytes.find('\n', first + 1);
  if (second == std::string::npos) return {0, "", bytes};
  return {std::atoi(bytes.c_str()), bytes.substr(first + 1, second - first - 1), bytes.substr(second + 1)};
}

HostsWorld::HostsWorld(std::shared_ptr<ProcessWorld> local, std::shared_ptr<TcpStore> store, const std::string& prefix,
                       HostsOptions options)
    : local_(std::move(local)),
      tcp_(std::move(store)),
      store_(std::make_shared<PrefixStore>(prefix, tcp_)),
      news_(std::make_shared<PrefixStore>(prefix, tcp_)),
      prefix_(prefix),
      options_(std::move(options)),
      posted_(static_cast<size_t>(local_->size()), 0) {
  int me = rank();
  const auto& hosts = options_.host_of;
  int here = hosts[static_cast<size_t>(me)];
  local_->state(me)->local_rank = static_cast<int>(std::count(hosts.begin(), hosts.begin() + me, here));
  local_->state(me)->local_size = static_cast<int>(std::count(hosts.begin(), hosts.end(), here));
  local_->state(me)->memory = options_.share_memory ? here : me;
  try {
    tcp_->leave_will(prefix_ + "failed",
                     encode_failure({me, "RankFailure", "its process was killed, or ended without leaving its world"}),
                     encode_failure({me, "RankFailure",
                                     fmt::format("nothing was heard of it for {:.3g} s: its host is cut off, or gone",
                                                 std::chrono::duration<double>(options_.silence).count())}),
                     options_.silence);
  } catch (const ConnectionError& e) {
    if (options_.server < 0) throw;
    fail(options_.server, fmt::format("it cannot be reached any more: {}", e.what()));
    local_->check();
  }
  keeper_ = std::jthread([this](const std::stop_token& stop) { keep(stop); });
  try {
    meet();
  } catch (const Error&) {
    let_others_hear();
    throw;
  }
  carrier_ = std::thread([this] { carry(); });
  wire_->set_on_mail([this] {
    std::lock_guard lock(carrying_);
    has_news_ = true;
    to_carry_.notify_one();
  });
}

void HostsWorld::meet() {
  try {
    wire_ = make_wire(*local_, store_, options_, meeting_.get_token());
    to_wake_.store(wire_.get());
    shake_hands();
  } catch (const CancelledError&) {  // by the keeper, since a rank has failed
    local_->check();
    throw;
  } catch (const Error& e) {
    // The other end may be closed since that rank has ended, or has heard of a failure: this one is about to hear of
    // it.
    auto soon = Clock::now() + std::min<std::chrono::milliseconds>(options_.silence, kNaming);
    while (Clock::now() < soon && !failed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    local_->check();
    fail(rank(), e.what());
    throw;
  }
}

// Of the failure that ends the meeting: when who serves the store goes, they would hear of nothing but that.
void HostsWorld::let_others_hear() try {
  Wait wait{.timeout = std::min<std::chrono::milliseconds>(options_.silence, std::chrono::seconds(1))};
  if (options_.server < 0) return;
  if (options_.server != rank()) {
    news_->add("heard", 1, wait);
    return;
  }
  int others = size() - (local_->shared().failed_rank == rank() ? 1 : 2);
  for (auto until = Clock::now() + std::chrono::seconds(1); Clock::now() < until;) {
    if (news_->add("heard", 0, wait) >= others) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
} catch (const Error&) {  // the store is gone, and with it those who would want to know
}

// Twice: who has the second hello of another knows that the other has its first, and so that both ways are open. What
// is wrong with the network is found here, not in the middle of a collective.
void HostsWorld::shake_hands() {
  auto deadline = Clock::now() + local_->timeout();
  static constexpr char hello = 0;  // may be read later than this returns, where it fails
  std::vector<char> come(static_cast<size_t>(size()));
  for (uint64_t round = 0; round < 2; ++round) {
    std::vector<Pending> pending(static_cast<size_t>(size()));
    Pending sent;
    for (int k = 1; k < size(); ++k) {
      auto peer = static_cast<size_t>((rank() + k) % size());
      wire_->receive({0, round, static_cast<int>(peer), Channel::hello}, &come[peer], 1, pending[peer]);
      wire_->send(static_cast<int>(peer), {0, round, rank(), Channel::hello}, &hello, 1, sent);
    }
    auto ended = [&](int r) { return pending[static_cast<size_t>(r)].done() || wire_->broken(r); };
    auto done = [&] {
      if (failed()) return true;
      for (int r = 0; r < size(); ++r)
        if (!ended(r)) return false;
      return sent.done() || std::any_of(pending.begin(), pending.end(), [](const Pending& p) { return !p.done(); });
    };
    wire_->wait(deadline, done);
    check();
    bool heard = std::all_of(pending.begin(), pending.end(), [](const Pending& p) { return p.done(); });
    if (heard && !sent.done()) {
      wire_->cut();
      tutti::fail<ConnectionError>("world", "rank {} hears the others by {}, but what it says does not leave", rank(),
                                   options_.engine);
    }
    for (int r = 0; r < size(); ++r)
      if (!pending[static_cast<size_t>(r)].done()) {
        auto broken = wire_->broken(r);
        wire_->cut();
        tutti::fail<ConnectionError>("world", "rank {} does not reach rank {} by {}: {}", rank(), r, options_.engine,
                                     broken ? broken->text
                                            : fmt::format("nothing was heard of it for {:.3g} s",
                                                          std::chrono::duration<double>(local_->timeout()).count()));
      }
  }
  wire_->connected();
}

HostsWorld::~HostsWorld() {
  if (!left_) leave();
  if (wire_ && failed()) wire_->cut();
}

int HostsWorld::ranks_here() const {
  const auto& hosts = options_.host_of;
  return static_cast<int>(std::count(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(rank())]));
}

// ---- Failures and ends

void HostsWorld::fail(int rank, const std::string& text, const char* kind) { local_->fail(rank, text, kind); }

void HostsWorld::announce() {
  SharedWorld& s = local_->shared();
  if (s.failed.load() == 0) return;
  try {
    news_->compare_and_set("failed", "", encode_failure({s.failed_rank, s.kind, s.text}),
                           {.timeout = options_.silence});
  } catch (const Error&) {  // a world without its store: others notice that by themselves
  }
}

void HostsWorld::check() {
  if (!failed()) return;
  wire_->cut();
  local_->check();
}

void HostsWorld::keep(const std::stop_token& stop) {
  auto interval = options_.silence / 5;
  std::stop_source wake;
  auto wakes = [&wake] { wake.request_stop(); };
  std::stop_callback on_stop(stop, wakes), on_failure(local_->failing(), wakes);
  while (!stop.stop_requested() && !failed()) {
    try {
      Failure failure = decode_failure(news_->get("failed", {.timeout = interval, .stop = wake.get_token()}));
      local_->fail(failure.rank, failure.text, failure.kind.c_str());
    } catch (const TimeoutError&) {
      try {
        take_news();
      } catch (const Error&) {  // the next round says what is wrong
      }
    } catch (const CancelledError&) {
      if (stop.stop_requested()) {
        if (failed()) announce();  // whose failure it is, or this rank's will says that it is its own
        return;
      }
      // A failure that another process has begun to write down; if it died over that, watch() finishes it.
      while (!failed() && !stop.stop_requested()) {
        local_->watch();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    } catch (const Error& e) {
      if (options_.server >= 0)
        local_->fail(options_.server, fmt::format("it cannot be reached any more: {}", e.what()), "RankFailure");
      else
        local_->fail(rank(), fmt::format("it cannot reach its world any more: {}", e.what()), "RankFailure");
    }
  }
  if (failed()) announce();
  store_->cancel();  // a rank that still meets the others waits for nobody any more
  meeting_.request_stop();
  if (Wire* wire = to_wake_.load()) wire->wake();
  std::lock_guard lock(carrying_);
  has_news_ = true;
  to_carry_.notify_one();
}

void HostsWorld::take_news() {
  auto text = news_->try_get("ended", {.timeout = options_.silence});
  std::istringstream ended(text.value_or(""));
  for (int r = 0; ended >> r;)
    if (r >= 0 && r < size()) local_->shared().member(r).ended.store(1);
  std::istringstream over(news_->try_get("over", {.timeout = options_.silence}).value_or(""));
  std::lock_guard lock(mutex_);
  for (std::string line; std::getline(over, line);) {
    std::istringstream words(line);
    int r = -1;
    words >> r;
    for (uint64_t group = 0, made = 0; words >> group >> made;) over_[r][group] = made;
  }
}

// Who has nothing left to do ends at once, and need not say so.
void HostsWorld::over() {
  std::string line = std::to_string(rank());
  bool open = false;
  auto add = [&](uint64_t group, uint64_t made) { line += fmt::format(" {} {}", group, made); };
  std::vector<std::shared_ptr<HostsGroup>> groups;
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, weak] : by_id_)
      if (auto group = weak.lock())
        groups.push_back(std::move(group));
      else
        add(id, ~uint64_t{0});  // it is about to be no more
    for (auto& [id, made] : dead_) add(id, made);
  }
  for (auto& group : groups) {
    add(group->id(), group->made());
    open = open || group->open();
  }
  if (open) try {
      news_->append("over", line + "\n", {.timeout = options_.silence});
    } catch (const Error&) {  // a world without its store: it fails
    }
}

bool HostsWorld::is_without(int rank, const Awaited& call) {
  std::lock_guard lock(mutex_);
  auto it = over_.find(rank);
  if (it == over_.end()) return false;
  auto made = it->second.find(call.group);
  return made == it->second.end() || made->second <= call.number;
}

void HostsWorld::watch(const std::vector<int>& ranks, const std::function<bool(int)>& done, const std::string& what,
                       std::optional<Awaited> call) {
  local_->watch();
  for (int r : ranks) {
    if (r == rank() || failed() || done(r)) continue;
    bool ended = local_->has_ended(r) || (call && is_without(r, *call));
    auto broken = wire_->broken(r);
    if (!ended && !broken) continue;
    // What it sent before may still be on its way, and the store may know better what has happened to it.
    Clock::time_point since;
    {
      std::lock_guard lock(mutex_);
      since = ended_since_.try_emplace(r, Clock::now()).first->second;
    }
    auto patience = ended ? std::min<std::chrono::milliseconds>(options_.silence, std::chrono::milliseconds(300))
                          : options_.silence;
    if (Clock::now() - since < patience || done(r)) continue;
    fail(r, ended ? fmt::format("it ended without {}", what) : broken->text);
  }
}

void HostsWorld::leave() {
  left_ = true;
  if (failed())
    announce();
  else
    wire_->flush(std::chrono::seconds(1));
  bool well = !failed();
  local_->ended();
  try {
    Wait wait{.timeout = options_.silence};
    news_->append("ended", fmt::format("{} ", rank()), wait);
    if (news_->add("ended/count", 1, wait) == size()) news_->set("ended/all", "yes", wait);
    tcp_->leave_will(prefix_ + "failed", "", "", {});
    // Who serves leaves last: while the others live, they need the store. They have wills, so this ends.
    auto until = Clock::now() + std::min<std::chrono::milliseconds>(options_.silence, std::chrono::milliseconds(500));
    while (options_.server == rank() && (well ? !failed() : Clock::now() < until)) try {
        news_->get("ended/all", {.timeout = options_.silence / 5});
        break;
      } catch (const TimeoutError&) {
      }
  } catch (const Error&) {  // the store is gone, and with it those who would want to know
  }
  // Here, and not where the world is destroyed: that may be by a group which one of these threads was the last to hold.
  {
    std::lock_guard lock(carrying_);
    stop_ = true;
  }
  to_carry_.notify_all();
  if (carrier_.joinable()) carrier_.join();
  {
    std::lock_guard lock(mutex_);
    early_.clear();  // nobody will ask for it
    early_size_ = {};
  }
  keeper_.request_stop();
  if (keeper_.joinable()) keeper_.join();
}

// ---- Groups

std::shared_ptr<Transport> HostsWorld::group(const std::vector<int>& ranks, uint64_t parent, uint64_t count) {
  auto host = [&](int r) { return options_.host_of[static_cast<size_t>(r)]; };
  bool together = std::all_of(ranks.begin(), ranks.end(), [&](int r) { return host(r) == host(ranks[0]); });
  if (options_.share_memory && together) return local_->group(ranks, parent, count);
  std::shared_ptr<HostsGroup> group;
  uint64_t id = group_id(parent, count, ranks);
  {
    std::lock_guard lock(mutex_);
    std::erase_if(groups_, [](const auto& entry) { return entry.second.expired(); });
    auto& entry = groups_[{ranks, parent, count}];
    if (auto found = entry.lock()) return found;
    // The same on all members: their messages find each other by it.
    group = freed_elsewhere(std::make_unique<HostsGroup>(shared_from_this(), ranks, id));
    entry = group;
  }
  // What came before the group goes before what comes now.
  while (true) {
    std::vector<Mail> early;
    {
      std::lock_guard lock(mutex_);
      early = take_early(id);
      if (early.empty()) by_id_[id] = group;
    }
    if (early.empty()) return group;
    for (Mail& mail : early) group->arrived(std::move(mail));
  }
}

void HostsWorld::dropped(uint64_t group, const std::shared_ptr<HostMessages>& messages, uint64_t made) {
  wire_->forget(group);
  std::vector<std::shared_ptr<HostMessages>> moving;
  {
    std::lock_guard lock(mutex_);
    moving_.push_back(messages);
    moving = moving_;
  }
  for (auto& m : moving) m->settle();
  std::lock_guard lock(mutex_);
  std::erase_if(moving_, [](const auto& m) { return !m->moving(); });
  auto it = by_id_.find(group);
  if (it != by_id_.end() && it->second.expired()) by_id_.erase(it);
  take_early(group);
  dead_.emplace_back(group, made);
  if (dead_.size() > kDead) dead_.pop_front();
}

// ---- Mail

void HostsWorld::post(int to, uint64_t group, std::vector<std::byte> bytes) {
  std::lock_guard lock(posting_);
  wire_->send(to, {group, posted_[static_cast<size_t>(to)]++, rank(), Channel::mail}, std::move(bytes));
}

void HostsWorld::nudge(uint64_t group) {
  {
    std::lock_guard lock(carrying_);
    nudged_.insert(group);
  }
  wire_->nudge();
}

void HostsWorld::deliver() {
  std::unique_lock lock(delivering_, std::try_to_lock);
  if (!lock) return;  // another thread is at it, and wakes those who wait
  std::set<uint64_t> nudged;
  {
    std::lock_guard carrying(carrying_);
    has_news_ = false;
    nudged.swap(nudged_);
  }
  std::vector<Mail> mails = wire_->take_mail();
  if (mails.empty() && nudged.empty()) return;
  for (Mail& mail : mails) dispatch(std::move(mail));
  for (uint64_t id : nudged) {
    std::shared_ptr<HostsGroup> group;
    {
      std::lock_guard groups(mutex_);
      auto it = by_id_.find(id);
      if (it != by_id_.end()) group = it->second.lock();
    }
    if (group) group->settle();
  }
  wire_->wake();
}

void HostsWorld::dispatch(Mail mail) {
  if (mail.name.group == kQuestion) return answer(mail);
  if (mail.name.group == kAnswer) {
    std::lock_guard lock(answers_mutex_);
    answers_[mail.name.from] = {reinterpret_cast<const char*>(mail.bytes.data()), mail.bytes.size()};
    return;
  }
  std::shared_ptr<HostsGroup> group;
  {
    std::unique_lock lock(mutex_);
    auto it = by_id_.find(mail.name.group);
    if (it != by_id_.end()) group = it->second.lock();
    if (!group) {
      auto wrong = keep_early(std::move(mail));
      lock.unlock();
      if (wrong && !failed()) fail(rank(), *wrong);
      return;
    }
  }
  group->arrived(std::move(mail));
}

std::optional<std::string> HostsWorld::keep_early(Mail mail) {
  if (std::any_of(dead_.begin(), dead_.end(), [&](const auto& dead) { return dead.first == mail.name.group; }))
    return {};
  if (early_size_.count >= kEarlyCount || early_size_.bytes + mail.bytes.size() > kEarlyBytes)
    return fmt::format(
        "it was sent {} messages ({} MB) in groups that it has not made, the last by rank {}, and keeps no more: all "
        "members of a group must make it (Group::subgroup, split)",
        early_size_.count + 1, (early_size_.bytes + mail.bytes.size()) >> 20, mail.name.from);
  ++early_size_.count;
  early_size_.bytes += mail.bytes.size();
  early_[mail.name.group].push_back(std::move(mail));
  return {};
}

std::vector<Mail> HostsWorld::take_early(uint64_t group) {
  auto it = early_.find(group);
  if (it == early_.end()) return {};
  std::vector<Mail> mails = std::move(early_.extract(it).mapped());
  early_size_.count -= mails.size();
  for (const Mail& mail : mails) early_size_.bytes -= mail.bytes.size();
  return mails;
}

HostsWorld::Early HostsWorld::early() const {
  std::lock_guard lock(mutex_);
  return early_size_;
}

void HostsWorld::carry() {
  std::unique_lock lock(carrying_);
  while (true) {
    to_carry_.wait(lock, [&] { return stop_ || has_news_; });
    if (stop_) return;
    lock.unlock();
    deliver();
    if (failed()) fail_messages();
    lock.lock();
  }
}

// Those who only poll their messages, or left a function behind, learn of the failure too.
void HostsWorld::fail_messages() {
  std::vector<std::shared_ptr<HostsGroup>> groups;
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, weak] : by_id_)
      if (auto group = weak.lock()) groups.push_back(std::move(group));
  }
  for (auto& group : groups) group->fail_messages();
}

void HostsWorld::answer(const Mail& question) {
  uint64_t group = 0;
  if (question.bytes.size() != sizeof group) return;
  std::memcpy(&group, question.bytes.data(), sizeof group);
  post(question.name.from, kAnswer, bytes_of(local_->last_call(rank(), group)));
}

std::map<int, std::string> HostsWorld::ask_last_calls(const std::vector<int>& ranks, uint64_t group) {
  std::map<int, std::string> texts;
  std::vector<int> asked;
  for (int r : ranks) {
    bool here = options_.host_of[static_cast<size_t>(r)] == options_.host_of[static_cast<size_t>(rank())];
    if (here) {
      texts[r] = local_->last_call(r, group);
      continue;
    }
    {
      std::lock_guard lock(answers_mutex_);
      answers_.erase(r);
    }
    asked.push_back(r);
    std::vector<std::byte> question(sizeof group);
    std::memcpy(question.data(), &group, sizeof group);
    post(r, kQuestion, std::move(question));
  }
  auto patience = std::min<std::chrono::milliseconds>(options_.silence, std::chrono::milliseconds(500));
  wire_->wait(Clock::now() + patience, [&] {
    deliver();
    std::lock_guard lock(answers_mutex_);
    return std::all_of(asked.begin(), asked.end(), [&](int r) { return answers_.count(r) > 0; });
  });
  std::lock_guard lock(answers_mutex_);
  for (int r : asked) texts[r] = answers_.count(r) ? answers_[r] : "it does not answer";
  return texts;
}

}  // namespace tutti::comm
