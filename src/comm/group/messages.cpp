// The barrier that is made of messages.
#include <fmt/ranges.h>

#include <algorithm>

#include "comm/group/check_call.h"
#include "comm/transport/transport.h"
#include "tutti/comm/collectives.h"
#include "tutti/comm/objects.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti {

namespace {

using comm::Clock;

// Note [Monitored barrier]
// The first rank says hello to all others, who answer that they are here, or that they have waited for it too long and
// are gone; it decides, at the end of its time at the latest, and tells all who is missing. Each says the same number
// of things whatever happens, and a barrier that failed leaves what was not heard to those it is for: a rank that comes
// late finds its own answers, and those of the next barrier follow in order.
constexpr int64_t kHello = -0x74757474690001, kAnswer = -0x74757474690002, kVerdict = -0x74757474690003;

// Whether a message came before the deadline; what went wrong with it is thrown.
bool came_before(Work& work, Clock::time_point deadline) {
  return work.wait_for(std::max(Clock::duration(0), deadline - Clock::now()));
}

[[noreturn]] void missing(const std::vector<int64_t>& ranks, const Group& group, std::chrono::milliseconds timeout,
                          const Place& place) {
  std::vector<int64_t> names;
  for (int64_t r : ranks) names.push_back(group.ranks()[static_cast<size_t>(r)]);
  bool late = std::count(ranks.begin(), ranks.end(), group.rank());
  fail<TimeoutError>("monitored_barrier", "{} {} did not come within {:.3g} s{} (at {})",
                     ranks.size() == 1 ? "rank" : "ranks", fmt::join(names, ", "),
                     std::chrono::duration<double>(timeout).count(), late ? "; this one came later" : "",
                     comm::to_string(place));
}

constexpr int kHere = 1, kGone = 2;

Tensor mask_of(int size) { return zeros({size}, {.dtype = DType::u8, .device = Device()}); }

std::vector<int64_t> marked(const Tensor& mask) {
  std::vector<int64_t> list;
  for (int64_t k = 0; k < mask.numel(); ++k)
    if (mask.data<uint8_t>()[k]) list.push_back(k);
  return list;
}

MessageOptions with_tag(MessageOptions o, int64_t tag) {
  o.tag = tag;
  return o;
}

// On the first rank: who is missing (itself, if others would not wait for it).
std::vector<int64_t> wait_for_all(const Group& group, const MessageOptions& o, Clock::time_point deadline) {
  TensorList answers;
  std::vector<Message> messages;
  for (int k = 1; k < group.size(); ++k) {
    answers.push_back(mask_of(1));
    messages.push_back(recv_op(answers.back(), k, with_tag(o, kAnswer)));
    messages.push_back(send_op(mask_of(1), k, with_tag(o, kHello)));
  }
  std::vector<Work> works = batch_messages(messages);
  // What comes too late is still taken in, so that it does not meet the next barrier.
  for (Work& work : works) work.leave_alone();
  Tensor verdict = mask_of(group.size());
  auto* absent = verdict.data<uint8_t>();
  for (size_t k = 1; k < static_cast<size_t>(group.size()); ++k) {
    if (!came_before(works[2 * (k - 1)], deadline))
      absent[k] = 1;
    else if (answers[k - 1].item<int>() == kGone)
      absent[0] = 1;
  }
  for (int k = 1; k < group.size(); ++k) send_async(verdict.clone(), k, with_tag(o, kVerdict));
  return marked(verdict);
}

// On others: who is missing, as the first rank says, unless it is itself.
std::vector<int64_t> ask_first(const Group& group, const MessageOptions& o, Clock::time_point deadline,
                               std::chrono::milliseconds timeout) {
  Tensor verdict = mask_of(group.size()), answer = mask_of(1);
  std::vector<Work> works =
      batch_messages({recv_op(mask_of(1), 0, with_tag(o, kHello)), recv_op(verdict, 0, with_tag(o, kVerdict))});
  for (Work& work : works) work.leave_alone();
  bool came = came_before(works[0], deadline);
  answer.fill_(came ? kHere : kGone);
  send_async(answer, 0, with_tag(o, kAnswer));
  // It decides within its own time; what is added is for the way.
  if (!came || !came_before(works[1], Clock::now() + timeout + std::chrono::seconds(5))) return {0};
  return marked(verdict);
}

}  // namespace

Arrivals monitored_barrier(const CollectiveOptions& options) {
  NoGrad guard;
  Group group = options.group.defined() ? options.group : world();
  comm::PurposeGuard purpose("monitored_barrier");
  comm::check_at<ValueError>(options.place, group.rank() >= 0, "monitored_barrier",
                             "rank {} is not a member of this group of ranks {}", context().rank,
                             Shape(std::vector<int64_t>(group.ranks().begin(), group.ranks().end())));
  auto timeout = comm::bounded(options.timeout.value_or(group.handle()->group->timeout()));
  auto begin = Clock::now();
  // Deadlines are this function's: a message whose time is over would fail the world.
  MessageOptions message{.group = group, .timeout = std::chrono::milliseconds::max(), .place = options.place};
  std::vector<int64_t> absent = group.rank() == 0 ? wait_for_all(group, message, begin + timeout)
                                                  : ask_first(group, message, begin + timeout, timeout);
  if (!absent.empty()) missing(absent, group, timeout, options.place);
  // All leave at about the same time: who waited longest came first. No clocks are compared.
  std::vector<double> waited = all_gather_object(std::chrono::duration<double>(Clock::now() - begin).count(),
                                                 {.group = group, .timeout = options.timeout, .place = options.place});
  Arrivals arrivals;
  double longest = *std::max_element(waited.begin(), waited.end());
  for (double w : waited) arrivals.seconds.push_back(longest - w);
  auto last = std::max_element(arrivals.seconds.begin(), arrivals.seconds.end());
  arrivals.skew = *last;
  arrivals.last = static_cast<int>(last - arrivals.seconds.begin());
  return arrivals;
}

}  // namespace tutti
