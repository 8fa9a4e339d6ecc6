// Uneven inputs: ranks that have no more keep the others company until all are through.
//
//   parallel::join({ddp, adam}, [&] {
//     for (auto& [x, y] : loader) {                  // as many as this rank has
//       adam.zero_grad();
//       cross_entropy(ddp(x), y).backward();
//       adam.step();
//     }
//   });                                              // all have the parameters, and Adam's state, of the last
//
// Collectives of one's own are joined by saying what a rank without inputs does in their place:
//
//   parallel::Joinable count([] { all_reduce(zeros({2})); });
//   parallel::join({ddp, adam, count}, [&] {
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
#include "tutti/io/checkpoint.h"

namespace tutti::parallel {

struct JoinPart;

/// Collectives that ranks without inputs can take part in, or something whose state they would miss. A cheap handle; a
/// DistributedDataParallel converts to one.
class Joinable {
 public:
  /// `shadow` makes the same collectives as those that follow an announce(), giving what changes nothing. `finish` is
  /// called when all ranks are through, with one that was active to the end.
  explicit Joinable(std::function<void()> shadow, std::function<void(int last)> finish = {});
  /// An optimizer, a scheduler, a gradient scaler, an average of weights: what changes with every step and has state()
  /// and load_state(). When all ranks are through, all have the state of one that was active to the end. It refers to
  /// the object, which must live as long.
  template <class T>
    requires requires(T& t) { t.load_state(t.state()); }
  Joinable(T& steps) : Joinable(io::Part("state", steps)) {}  // NOLINT: it stands among others in a list
  explicit Joinable(io::Part state);
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
};
/// Runs body, and then the shadows of `parts` whenever other ranks announce them, until all ranks are through. Early
/// ranks then get the parameters of one that was active to the end, whose rank in the group is returned. Optimizers
/// that keep something from step to step belong into `parts`, or those of early ranks keep something else than the
/// others'. If body throws, so does this, and the others get RankFailure wherever they are; the world can be used after
/// that unless they had to be reached inside of a collective (see patience). `place` is never given by hand.
int join(const std::vector<Joinable>& parts, const std::function<void()>& body, const JoinOptions& options = {},
         const Place& place = Place::current());

}  // namespace tutti::parallel
