// The end of a pass of the reducer: what has not left leaves, what came aside is averaged, and parameters get their
// gradients. Every rank makes the same collectives here in the same order, those that have joined too.
#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "comm/group/call.h"
#include "parallel/reducer.h"
#include "tutti/comm/functional.h"
#include "tutti/ops.h"

namespace tutti::parallel {
namespace {

Tensor no_rows(const Tensor& like) {
  Shape rows = like.sizes();
  rows[0] = 0;
  Tensor none = zeros({1, 0}, {.dtype = DType::i64, .device = like.device()});
  return sparse_coo(none, zeros(rows, {.dtype = like.dtype(), .device = like.device()}), like.sizes());
}

std::string times(uint32_t count) {
  return count == 0 ? "never" : count == 1 ? "once" : fmt::format("{} times", count);
}

}  // namespace

void Reducer::end_pass(bool well) {
  std::lock_guard lock(mutex_);
  if (!pass_.active) return;
  try {
    // Buckets that left on this rank only would meet others' later ones: there is no way back from that.
    if (!well && pass_.syncing && next_ > 0) broken_ = "its graph threw when some gradients had been sent already";
    if (!well) put_back();
    if (well && pass_.syncing && pass_.with_graph) finish_with_graph();
    if (well && pass_.syncing && !pass_.with_graph) finish_pass();
    reset_pass(well);
  } catch (const std::exception& e) {
    broken_ = e.what();
    reset_pass();
    throw;
  }
}

// Of a pass that failed: parameters have again what they had, and what came until then, as without a wrapper. What has
// been sent is lost.
void Reducer::put_back() {
  NoGrad guard;
  GradientSink& sink = gradient_sink();
  for (Entry& e : entries_) {
    if (e.bucket >= 0 && buckets_[static_cast<size_t>(e.bucket)].left) continue;
    Tensor sum;
    if (e.filled) sum = context().sink ? e.slot.clone() : e.slot;
    auto add = [&](const Tensor& part) {
      if (part.defined()) sum = !sum.defined() ? part : sum + (part.is_sparse() ? part.to_dense() : part);
    };
    add(e.late);
    add(e.sparse);
    if (!sum.defined()) continue;
    if (Tensor rest = sink.gradient(e.parameter); rest.defined()) sum = sum.is_sparse() ? rest + sum : sum + rest;
    sink.set_gradient(e.parameter, sum);
  }
}

void Reducer::reset_pass(bool well) {
  for (Entry& e : entries_) {
    e.count = 0;
    e.filled = false;
    e.sparse.reset();
    e.late.reset();
    e.before.reset();
    e.kept.reset();
  }
  // What other ranks never sent is not to fail the world, in which a new wrapper may have gone on.
  for (auto* buckets : {&buckets_, &late_})
    for (Bucket& b : *buckets) {
      if (!b.sent.work.done()) b.sent.work.leave_alone();
      b.sent = {};
    }
  late_.clear();
  if (well) earlier_samples_ = pass_.syncing ? 0 : earlier_samples_ + pass_.samples;
  pass_ = {};
  next_ = 0;
}

void Reducer::shadow(int64_t mode) {
  std::lock_guard lock(mutex_);
  NoGrad guard;
  try {
    pass_ = {};
    pass_.active = pass_.syncing = true;
    pass_.with_graph = mode != 0;
    begin_sync(true);
    if (pass_.with_graph)
      finish_with_graph();
    else
      finish_pass();
    reset_pass();
  } catch (const std::exception& e) {
    broken_ = e.what();
    reset_pass();
    throw;
  }
}

// Ranks that have joined learn of the pass only now: until its end the graph may make joined collectives of its own.
void Reducer::meet_joined() {
  pass_.leader = options_.root;
  JoinSession* session = join_->session;
  if (!session) return;
  check<ValueError>(session->group().ranks() == channel_.ranks(), "join",
                    "the group of join() has {}, that of the {} {}", to_string(session->group()), kDdpName,
                    to_string(channel_));
  if (!pass_.joined) session->announce(join_->index, pass_.with_graph);
  pass_.leader = session->leader();
  pass_.everyone = session->everyone();
}

// They are carried out one after the other, so each begins when the one before has ended.
void Reducer::wait_for(std::deque<Bucket>& buckets, Clock::time_point& last) {
  using Seconds = std::chrono::duration<double>;
  for (Bucket& b : buckets) {
    Communication sent = std::exchange(b.sent, {});
    if (sent.work.defined()) {
      sent.work.wait();
      Clock::time_point ended{Clock::duration(b.ended->load())};
      time_.total += std::max(0.0, Seconds(ended - std::max(b.began, last)).count());
      last = ended;
    }
    if (sent.finish) {
      sent.finish();
      check_given(b);
    }
    b.given.clear();
  }
}

// What came aside is under way together with the buckets. But a hook sees a gradient's late part when it has finished
// the other one: it may have kept something of that.
void Reducer::exchange_all(Clock::time_point waiting_since) {
  Clock::time_point last{};
  time_ = {};
  if (options_.hook) wait_for(buckets_, last);
  send_late();
  std::vector<Work> sparse = send_sparse();
  wait_for(buckets_, last);
  wait_for(late_, last);
  for (Work& work : sparse) work.wait();
  time_.exposed = std::chrono::duration<double>(Clock::now() - waiting_since).count();
  time_.total = std::max(time_.total, time_.exposed);  // what else is exchanged at the end belongs to it
}

// What came too late for its bucket, in buckets of its own: whatever a hook does in place of the average is done to all
// dense gradients alike. All ranks know from the flags what is in them.
void Reducer::send_late() {
  for (const std::vector<size_t>& kind : used_by_kind(flags_)) {
    Bucket b;
    auto close = [&] {
      if (b.members.empty()) return;
      fill_late(late_.emplace_back(std::move(b)));
      send(late_.back());
      b = {};
    };
    for (size_t i : kind) {
      if (!(flags_[i] & kLate)) continue;
      const Tensor& p = entries_[i].parameter;
      b.members.push_back(i);
      b.elements += p.numel();
      if (b.elements * static_cast<int64_t>(p.element_size()) >= options_.bucket_bytes) close();
    }
    close();
  }
}

void Reducer::fill_late(Bucket& b) {
  const Tensor& first = entries_[b.members[0]].parameter;
  b.content.buffer = zeros({b.elements}, {.dtype = first.dtype(), .device = first.device()});
  b.content.index = static_cast<int64_t>(buckets_.size() + late_.size()) - 1;
  b.purpose = purpose_of(b);
  int64_t at = 0;
  for (size_t i : b.members) {
    Entry& e = entries_[i];
    Tensor part = b.content.buffer.narrow(0, at, e.parameter.numel()).view(e.parameter.sizes());
    at += e.parameter.numel();
    if (e.late.defined()) part.copy_(e.late);
    if (e.sparse.defined()) part.add_(std::exchange(e.sparse, Tensor()).to_dense());
    e.late = part;
    b.content.gradients.push_back(part);
    b.content.parameters.push_back(e.parameter);
  }
}

// Sparse gradients are averaged as they are; e.sparse becomes the result.
std::vector<Work> Reducer::send_sparse() {
  std::vector<Work> works;
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& e = entries_[i];
    if ((flags_[i] & (kUsed | kSparse | kLate)) != (kUsed | kSparse)) continue;
    comm::PurposeGuard purpose(aside(e));
    if (!e.sparse.defined()) e.sparse = no_rows(e.parameter);
    works.push_back(all_reduce_async(e.sparse, average()));
  }
  return works;
}

void Reducer::finish_pass() {
  Clock::time_point now = Clock::now();
  check_static();
  meet_joined();
  bool known = options_.static_graph && !pass_.observing;
  if (pass_.observing) {
    flags_ = exchange_flags();
    agree_on_order();
    for (size_t i = 0; i < entries_.size(); ++i) sparse_[i] = (flags_[i] & (kDense | kSparse | kLate)) == kSparse;
    make_buckets();
  }
  // Memory of the group is made by all ranks at the same time: here, where gradients move into it one bucket after the
  // other, or at the end.
  for (; next_ < buckets_.size(); ++next_) {
    if (pass_.observing) give_memory(buckets_[next_]);
    leave(buckets_[next_]);
  }
  for (Entry& e : entries_)
    if (e.bucket < 0) take_rest(e);
  if (!known && !pass_.observing) flags_ = exchange_flags();
  exchange_all(now);
  bool changed = false;
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& e = entries_[i];
    if (!pass_.joined) hand_out(e, flags_[i]);
    if (!pass_.joined && (!known || !counted_)) e.expected = e.count;
    if (sparse_[i] || (e.bucket < 0 && !(flags_[i] & kUsed))) continue;
    bool turned_sparse = (flags_[i] & (kDense | kSparse | kLate)) == kSparse;
    if (turned_sparse) sparse_[i] = true;
    if (e.bucket < 0) changes_ = true;
    changed = changed || turned_sparse || e.bucket < 0;
  }
  if (!pass_.joined) note_unused(flags_);
  counted_ = counted_ || !pass_.joined;
  if (changed && !options_.static_graph) {
    make_buckets();
    for (Bucket& b : buckets_) give_memory(b);
  }
  end_pass();
}

void Reducer::end_pass() {
  sync_buffers();
  ++passes_;
  // Who has joined has parameters of an earlier step.
  if (options_.checksum_every > 0 && passes_ % options_.checksum_every == 0 && pass_.everyone) check_equal();
}

std::vector<uint8_t> Reducer::my_flags() {
  std::vector<uint8_t> flags;
  for (const Entry& e : entries_) {
    bool dense = e.filled, sparse = e.sparse.defined(), graph = false;
    if ((pass_.observing || pass_.with_graph) && !pass_.joined) {
      Tensor g = gradient_sink().gradient(e.parameter);
      dense = g.defined() && !g.is_sparse();
      sparse = g.defined() && g.is_sparse();
      graph = g.defined() && g.requires_grad();
    }
    int flag = (graph ? kGraph : 0) | (dense ? kDense : 0) | (sparse ? kSparse : 0) | (e.late.defined() ? kLate : 0) |
               (e.dirty ? kUsed : 0);
    flags.push_back(static_cast<uint8_t>(pass_.joined ? 0 : flag));
  }
  return flags;
}

std::vector<uint8_t> Reducer::exchange_flags() {
  NoGrad guard;
  comm::PurposeGuard purpose("*the end of backward through a DistributedDataParallel: who used which parameters");
  Tensor flags = tensor(my_flags(), {.dtype = DType::u8});
  all_reduce(flags, {.op = Reduce::bor, .group = channel_, .timeout = options_.timeout, .place = options_.place});
  return flags.to_vector<uint8_t>();
}

// "" if it is as in the first step.
std::string Reducer::static_difference(size_t i) const {
  const Entry& e = entries_[i];
  bool used = flags_[i] & kUsed;
  // A rank that had no inputs in the first step knows what is used, but not yet how often.
  uint32_t wanted = counted_ ? e.expected : used ? e.count : 0;
  if (e.count != wanted) return fmt::format("a gradient came {}, in the first step {}", times(e.count), times(wanted));
  if (!used) return e.dirty ? "used inside of no_sync(), not used in the first step" : "";
  bool came = e.filled || e.late.defined() || e.sparse.defined();
  Tensor rest = came ? Tensor() : gradient_sink().gradient(e.parameter);
  bool sparse = e.sparse.defined() || (rest.defined() && rest.is_sparse());
  bool dense = e.filled || e.late.defined() || (rest.defined() && !rest.is_sparse());
  if (sparse && !(flags_[i] & kSparse)) return "a sparse gradient, where all were dense in the first step";
  if (dense && sparse_[i]) return "a dense gradient, where all were sparse in the first step";
  return "";
}

void Reducer::check_static() const {
  if (!options_.static_graph || pass_.observing || pass_.joined) return;
  std::string text;
  for (size_t i = 0; i < entries_.size(); ++i)
    if (std::string what = static_difference(i); !what.empty())
      text += fmt::format("\n  {}: {}", entries_[i].name, what);
  check<ValueError>(text.empty(), kDdpName,
                    "the graph is said to be static (static_graph), but parameters got other gradients than in the "
                    "first step:{}\nRun the same forwards before every backward, or leave static_graph away (at {}); "
                    "this one cannot go on: make a new one of its module",
                    text, comm::to_string(options_.place));
}

// The parameter's gradient becomes what was found, or what it was.
void Reducer::hand_out(Entry& e, uint8_t flags) {
  GradientSink& sink = gradient_sink();
  if (!(flags & kUsed)) {
    if (e.kept.defined()) e.slot.copy_(e.kept);  // the collective has written where it lay
    if (e.before.defined()) sink.set_gradient(e.parameter, e.before);
    return;
  }
  e.dirty = false;
  bool only_sparse = (flags & (kDense | kSparse | kLate)) == kSparse;
  if (only_sparse) {
    sink.set_gradient(e.parameter, e.sparse);
  } else if (e.bucket < 0) {
    sink.set_gradient(e.parameter, e.late.defined() ? e.late : e.sparse.to_dense());
  } else {
    if (e.late.defined()) e.slot.add_(e.late);
    if (e.sparse.defined()) e.slot.add_(e.sparse.to_dense());
    sink.set_gradient(e.parameter, context().sink ? e.slot.clone() : e.slot);
  }
}

void Reducer::note_unused(const std::vector<uint8_t>& flags) {
  unused_ = {};
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].count == 0) unused_.here.push_back(entries_[i].name);
    if (!(flags[i] & kUsed)) unused_.everywhere.push_back(entries_[i].name);
  }
}

// Entries that somebody used, those of one dtype and device together.
std::vector<std::vector<size_t>> Reducer::used_by_kind(const std::vector<uint8_t>& flags) const {
  std::map<std::pair<int, int>, std::vector<size_t>> kinds;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Tensor& p = entries_[i].parameter;
    auto key = std::pair(static_cast<int>(p.dtype()), static_cast<int>(p.device().kind) << 16 | p.device().index);
    if (flags[i] & kUsed) kinds[key].push_back(i);
  }
  std::vector<std::vector<size_t>> lists;
  for (auto& [key, list] : kinds) lists.push_back(std::move(list));
  return lists;
}

Tensor Reducer::gradient_with_graph(const Entry& e) const {
  const Tensor& p = e.parameter;
  Tensor g = pass_.joined ? Tensor() : gradient_sink().gradient(p);
  if (!g.defined()) g = zeros(p.sizes(), {.dtype = p.dtype(), .device = p.device()});
  if (g.is_sparse()) g = g.to_dense();
  return g.requires_grad() ? g : g.detach().requires_grad_();  // all ranks' must, or none
}

// Sparse gradients that no graph hangs on, on any rank, stay as they are. The others become dense: a second backward
// goes through averages of whole gradients.
bool Reducer::average_without_graph(Entry& e, uint8_t flags) {
  if ((flags & (kDense | kSparse | kGraph)) != kSparse) return false;
  NoGrad guard;
  Tensor g = pass_.joined ? Tensor() : gradient_sink().gradient(e.parameter);
  if (!g.defined()) g = no_rows(e.parameter);
  all_reduce(g, average());
  if (!pass_.joined) gradient_sink().set_gradient(e.parameter, g);
  e.dirty = false;
  return true;
}

// With gradients of gradients to come, averages are made by functional collectives, through which these find their way
// to all ranks. They are in the user's group, since backward through them makes collectives where the graph has them.
void Reducer::finish_with_graph() {
  Clock::time_point began = Clock::now();
  meet_joined();
  std::vector<uint8_t> flags = exchange_flags();
  // Who has joined keeps nothing, and there will be no pass back through these: see refuse_second_backward().
  ModeGuard guard(pass_.joined ? 0 : uint32_t{kGradMode}, pass_.joined ? kGradMode : kInferenceMode);
  comm::PurposeGuard purpose("*a DistributedDataParallel in backward with create_graph: its gradients");
  ReduceOptions o = average();
  o.group = group_;
  for (std::vector<size_t>& kind : used_by_kind(flags)) {
    std::erase_if(kind, [&](size_t i) { return average_without_graph(entries_[i], flags[i]); });
    if (kind.empty()) continue;
    TensorList mine;
    for (size_t i : kind) mine.push_back(gradient_with_graph(entries_[i]));
    TensorList averaged = fn::all_reduce(mine, o);
    refuse_second_backward(averaged);
    for (size_t k = 0; k < kind.size() && !pass_.joined; ++k) {
      Entry& e = entries_[kind[k]];
      gradient_sink().set_gradient(e.parameter, averaged[k]);
      e.dirty = false;
    }
  }
  if (!pass_.joined) note_unused(flags);
  time_.total = time_.exposed = std::chrono::duration<double>(Clock::now() - began).count();  // nothing is hidden
  end_pass();
}

// Through these averages, backward makes collectives that ranks without inputs know nothing of.
void Reducer::refuse_second_backward(const TensorList& averaged) const {
  if (!join_->session || pass_.joined) return;
  for (const Tensor& y : averaged)
    y.register_hook([part = std::weak_ptr(join_)](const Tensor&) {
      auto joining = part.lock();
      check<ValueError>(!joining || !joining->session, "join",
                        "backward through averaged gradients (create_graph) would wait for ranks that have no more "
                        "inputs: inside of join() take gradients of gradients by grad(), before they are averaged");
      return Tensor();
    });
}

void Reducer::sync_buffers() {
  NoGrad guard;
  comm::PurposeGuard purpose("*the end of backward through a DistributedDataParallel: buffers of its module");
  TensorList same, averaged;
  for (const NamedBuffer& b : buffers_) {
    if (b.policy == BufferPolicy::none) continue;
    bool average = b.policy == BufferPolicy::average && (b.tensor.is_floating() || b.tensor.is_complex());
    (average ? averaged : same).push_back(b.tensor);
  }
  broadcast_all(same, pass_.leader);
  for (const TensorList& list : by_kind(averaged)) all_reduce(list, average());
}

}  // namespace tutti::parallel
