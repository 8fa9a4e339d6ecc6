// The inside of join().
#pragma once

#include <functional>
#include <string>

#include "tutti/parallel/join.h"

namespace tutti::parallel {

/// A join that is under way, as one rank sees it.
///
/// Note [Joining]
/// Whoever is about to make joined collectives announces which: a small all_reduce in a group of its own, to which
/// ranks without inputs give zeros, and that they have none. These learn from it what to shadow, and that all are
/// through when nobody announced anything; the others, whether all ranks are with them. A rank whose body threw gives a
/// number larger than all, and waits a moment for the others to hear it. They may never: those that are inside of a
/// collective, of what was announced or of forward, wait there for this very rank. Only the end of the world reaches
/// them.
class JoinSession {
 public:
  JoinSession(Group group, const JoinOptions& options, const Place& place)
      : group_(std::move(group)), options_(options), place_(place) {}
  struct Round {
    int64_t part = -1;  // that is announced; -1: all are through
    int64_t mode = 0;   // what its announcer says of it
  };
  /// `part` -1: this rank has no more inputs.
  Round announce(int64_t part, int64_t mode);
  /// Lets others know that this rank failed; fails the world if they do not come to hear it.
  void fail(const std::string& why);
  /// The lowest rank that was active in the last round; -1: nobody ever was.
  int leader() const { return leader_; }
  /// Whether all ranks were active in the last round.
  bool everyone() const { return everyone_; }
  /// Whether this rank has no more inputs.
  bool joined = false;
  bool count_joined() const { return options_.count_joined; }
  const Group& group() const { return group_; }
  const Place& place() const { return place_; }

 private:
  [[noreturn]] void others_failed(int rank);
  Group group_;
  JoinOptions options_;
  Place place_;
  int leader_ = -1;
  bool everyone_ = false;
};

struct JoinPart {
  std::function<void(int64_t mode)> shadow;
  std::function<void(int last)> finish;
  std::function<void(const std::string& why)> fail;  // the join has failed, here or on another rank
  JoinSession* session = nullptr;                    // while inside of join()
  int64_t index = 0;                                 // in its list
};

}  // namespace tutti::parallel
