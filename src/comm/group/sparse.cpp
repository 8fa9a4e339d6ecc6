// Note [Sparse all_reduce in steps]
// What is not waited for goes in steps, each begun by the end of the one before, on whatever thread that is. Only the
// first, by which ranks learn how much there is, is of the user's group, where it has its place among the user's calls;
// the others are of a group of their own with the same ranks, since on each rank they begin at another moment. There,
// one call's steps follow those of the one before: in the order of the calls, which is the same on all ranks.
#include "comm/group/sparse.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "comm/group/sparse_part.h"
#include "comm/transport/transport.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti::comm {
namespace {

constexpr const char* kPurpose = "all_reduce of a sparse tensor";

CollectiveOptions gathering(const ReduceOptions& o) {
  return {.group = o.group, .timeout = o.timeout, .place = o.place};
}

// The number of the collective that this rank has just called there.
uint64_t newest_in(const Group& group) {
  auto call = group.handle()->state->record.last(group.handle()->group->id());
  return call ? call->sequence : 0;
}

}  // namespace

void all_reduce_sparse(const Tensor& x, const ReduceOptions& options) {
  PurposeGuard purpose(kPurpose);
  ReduceOptions o = options;
  if (!o.group.defined()) o.group = world();
  SparsePart part(x, o);
  NoGrad guard;
  std::vector<int64_t> header;
  part.add_header(header, true, o.place);
  TensorList headers = header_rooms(SparsePart::kHeader, o.group.size());
  all_gather(headers, tensor(header, kNumbers), gathering(o));
  part.take_headers(headers, 0, o, newest_in(o.group));
  all_gather(part.rooms, part.row_numbers(), gathering(o));
  part.lay_out();
  all_reduce(part.values, o);
  part.finish();
}

class SparseSteps;

/// Calls that are under way in one group, and the steps of the first of them.
class SparseQueue {
 public:
  explicit SparseQueue(const Group& group) : channel_(same_ranks(group)) {}
  const Group& channel() const { return channel_; }
  void add(std::shared_ptr<SparseSteps> job);
  /// Begins the next step if it is time for it. `ended`: because the one before has.
  void go_on(bool ended);
  /// What must end before this job can, if it has not by then.
  Work awaited(const SparseSteps& job, std::optional<Clock::time_point> deadline);

 private:
  static Group same_ranks(const Group& group) {
    std::vector<int> everyone(static_cast<size_t>(group.size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    return group.subgroup(everyone);
  }
  const Group channel_;
  std::mutex mutex_;
  std::condition_variable begun_;
  std::deque<std::shared_ptr<SparseSteps>> jobs_;
  bool beginning_ = false;   // some thread begins a step of the first job, or completes it
  bool on_its_way_ = false;  // that step
  Work step_;
};

/// One call. Its fields are used by one thread after another: each step begins when the one before has ended.
class SparseSteps final : public Chain, public std::enable_shared_from_this<SparseSteps> {
 public:
  SparseSteps(const TensorList& xs, const ReduceOptions& options)
      : options_(options), purpose_(marks().purpose), queue_(queue_of(options.group)) {
    for (const Tensor& x : xs)
      if (x.defined() && x.is_sparse())
        parts_.emplace_back(x, options);
      else
        dense_.push_back(x);
  }
  Work start();
  bool wait(const WorkState& result, std::optional<Clock::time_point> deadline) override;
  bool cancel() override { return first_.cancel(); }

  // ---- Of the queue
  bool ready() const { return ready_.load(); }
  const Work& first() const { return first_; }
  /// Begins the next step. None: there is none, and the call has been completed.
  Work next();
  void end(const Work& step);

 private:
  static std::shared_ptr<SparseQueue> queue_of(const Group& group) {
    RankGroup& handle = *group.handle();
    std::lock_guard lock(handle.sparse_mutex);
    if (!handle.sparse) handle.sparse = std::make_shared<SparseQueue>(group);
    return handle.sparse;
  }
  Work begin();
  // What went wrong in a step, or with its result, is what goes wrong with the whole.
  template <class F>
  void end(const Work& step, const F& f) {
    NoGrad guard;
    error_ = step.exception();
    if (!error_) try {
        f();
      } catch (...) {
        error_ = std::current_exception();
      }
  }

  const ReduceOptions options_;
  const char* const purpose_;
  const std::shared_ptr<SparseQueue> queue_;
  std::vector<SparsePart> parts_;
  TensorList dense_, headers_;
  Work first_;
  uint64_t sequence_ = 0;           // of that
  std::atomic<bool> ready_{false};  // the first step has ended
  size_t at_ = 0;                   // of the others: two for each sparse tensor, one for all dense ones
  std::exception_ptr error_;
  std::shared_ptr<WorkState> result_;
};

Work SparseSteps::start() {
  result_ = std::make_shared<WorkState>();
  result_->set_timeout(bounded(options_.timeout.value_or(options_.group.handle()->group->timeout())));
  result_->owner = options_.group.handle()->state;
  result_->record = WorkState::kNoRecord;  // its steps have theirs
  result_->chain = shared_from_this();
  Work work(result_, options_.group.handle()->group);
  std::vector<int64_t> header;
  for (const SparsePart& part : parts_) part.add_header(header, false, options_.place);
  headers_ = header_rooms(static_cast<int64_t>(header.size()), options_.group.size());
  try {
    first_ = all_gather_async(headers_, tensor(header, kNumbers), gathering(options_));
  } catch (...) {
    result_ = nullptr;  // which holds this: nobody will complete it
    throw;
  }
  sequence_ = newest_in(options_.group);
  queue_->add(shared_from_this());
  first_.then([self = shared_from_this()] {
    self->end(self->first_, [&] {
      for (size_t k = 0; k < self->parts_.size(); ++k)
        self->parts_[k].take_headers(self->headers_, k * SparsePart::kHeader, self->options_, self->sequence_);
    });
    self->ready_.store(true);
    self->queue_->go_on(false);
  });
  return work;
}

Work SparseSteps::begin() {
  PurposeGuard purpose(purpose_);
  NoGrad guard;
  ReduceOptions o = options_;
  o.group = queue_->channel();
  if (at_ == 2 * parts_.size()) return all_reduce_async(dense_, o);
  SparsePart& part = parts_[at_ / 2];
  return at_ % 2 ? all_reduce_async(part.values, o) : all_gather_async(part.rooms, part.row_numbers(), gathering(o));
}

Work SparseSteps::next() {
  Work step;
  if (!error_ && at_ < 2 * parts_.size() + !dense_.empty()) try {
      step = begin();
    } catch (...) {
      error_ = std::current_exception();
    }
  if (!step.defined()) std::exchange(result_, nullptr)->complete(std::exchange(error_, nullptr));
  return step;
}

void SparseSteps::end(const Work& step) {
  end(step, [&] {
    if (at_ < 2 * parts_.size()) at_ % 2 ? parts_[at_ / 2].finish() : parts_[at_ / 2].lay_out();
  });
  ++at_;
}

// A step that has ended has begun the next, or completed the call, before those who wait for it are told.
bool SparseSteps::wait(const WorkState& result, std::optional<Clock::time_point> deadline) {
  auto ended = [&](Work step) {
    try {
      if (deadline) return step.wait_for(std::max(Clock::duration(0), *deadline - Clock::now()));
      step.wait();
    } catch (const Error&) {  // which is the call's, or that of one before it
    }
    return true;
  };
  if (!ended(first_)) return false;
  while (!result.settled()) {
    if (!ended(queue_->awaited(*this, deadline))) return false;
    if (deadline && Clock::now() >= *deadline) return result.settled();
  }
  return true;
}

void SparseQueue::add(std::shared_ptr<SparseSteps> job) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
}

void SparseQueue::go_on(bool ended) {
  std::unique_lock lock(mutex_);
  if (ended) on_its_way_ = false;
  while (!beginning_ && !on_its_way_ && !jobs_.empty() && jobs_.front()->ready()) {
    auto job = jobs_.front();
    beginning_ = true;
    lock.unlock();
    Work step = job->next();  // without the lock: it may end at once, and other ranks' steps with it
    lock.lock();
    beginning_ = false;
    on_its_way_ = step.defined();
    if (on_its_way_)
      step_ = step;
    else
      jobs_.pop_front();
    begun_.notify_all();
    if (!on_its_way_) continue;
    lock.unlock();
    step.then([job, step, queue = this] {  // which the job holds
      job->end(step);
      queue->go_on(true);
    });
    return;
  }
}

Work SparseQueue::awaited(const SparseSteps& job, std::optional<Clock::time_point> deadline) {
  std::unique_lock lock(mutex_);
  auto begun = [&] { return !beginning_; };
  if (!deadline)
    begun_.wait(lock, begun);
  else if (!begun_.wait_until(lock, *deadline, begun))
    return {};
  auto is_it = [&](const auto& other) { return other.get() == &job; };
  if (std::none_of(jobs_.begin(), jobs_.end(), is_it)) return {};  // it has been completed
  return on_its_way_ ? step_ : jobs_.front()->first();
}

Work all_reduce_sparse_async(const TensorList& xs, const ReduceOptions& options) {
  PurposeGuard purpose(kPurpose);
  ReduceOptions o = options;
  if (!o.group.defined()) o.group = world();
  auto steps = std::make_shared<SparseSteps>(xs, o);
  NoGrad guard;
  return steps->start();
}

}  // namespace tutti::comm
