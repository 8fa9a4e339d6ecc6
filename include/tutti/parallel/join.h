// Uneven inputs: ranks that have no more keep the others company until all are through.
//
//   parallel::join({ddp}, [&] {
//     for (auto& [x, y] : loader) {                  // as many as this rank has
//       cross_entropy(ddp(x), y).backward();
//       adam.step();
//     }
//   });
//
// Collectives of one's own are joined by saying what a rank without inputs does in their place:
//
//   parallel::Joinable count([] { all_reduce(zeros({2})); });
//   parallel::join({ddp, count}, [&] {
//     for (...) {
//       ...
//       count.announce();
//       all_reduce(right_and_wrong);
//     }
//   });
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "tutti/comm/collectives.h"

namespace tutti::parallel {

struct JoinPart;

/// Collectives that ranks without inputs can take part in. A cheap handle; a DistributedDataParallel converts to one.
class Joinable {
 public:
  /// `shadow` makes the same collectives as those that follow an announce(), giving what changes nothing. `finish` is
  /// called when all ranks are through, with one that was active to the end.
  explicit Joinable(std::function<void()> shadow, std::function<void(int last)> finish = {});
  /// The collectives come now. Ranks that do the same work do it in the same order. Outside of join() it does nothing.
  void announce() const;

  explicit Joinable(std::shared_ptr<JoinPart> part) : part_(std::move(part)) {}
  const std::shared_ptr<JoinPart>& part() const { return part_; }

 private:
  std::shared_ptr<JoinPart> part_;
};

struct JoinOptions {
  Group group = {};           // default: the world. All of it must call join(), with the same parts
  bool count_joined = false;  // averages by ranks count those without inputs too, as having given zeros
  // How long a rank whose body threw waits for the others to come and hear of it. If they do not, they may be inside of
  // a collective that waits for this rank: the world fails, which ends that.
  std::chrono::milliseconds patience = std::chrono::seconds(5);
  Place place = Place::current();
};
/// Runs body, and then the shadows of `parts` whenever other ranks announce them, until all ranks are through. Early
/// ranks then get the parameters of one that was active to the end, whose rank in the group is returned (their
/// optimizers' states are what they were: broadcast those from it if they have any to lose). If body throws, so does
/// this, and the others get RankFailure wherever they are; the world can be used after that unless they had to be
/// reached inside of a collective (see patience).
int join(const std::vector<Joinable>& parts, const std::function<void()>& body, const JoinOptions& options = {});

}  // namespace tutti::parallel
