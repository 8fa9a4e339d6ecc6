// What a rank has whatever group it uses: its flight record, and the faults it is to meet.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "comm/group/fault.h"
#include "comm/group/record.h"
#include "tutti/comm/group.h"

namespace tutti::comm {

/// What a rank is told of the world's failure. Of its own it knows, or is told as much: others would say its number.
std::string failure_text(int failed, int told, const std::string& text);

class RankState {
 public:
  /// Faults and the folder for records are those of the environment; see apply().
  RankState(int rank, int world_size);
  void apply(const SpawnOptions& options);
  const int rank, world_size;
  int local_rank = rank, local_size = world_size;  // of those on this host; set before anybody asks
  int memory = 0;                                  // ranks with the same number share theirs; set then too
  std::function<bool()> spins;                     // whether ranks of this host have a core each; of processes only
  FlightRecord record;
  FaultInjector faults;

  /// A call of this rank has ended: `noted` is its number where other processes can see it (ProcessWorld::note), 0 for
  /// none.
  void call_ended(uint64_t entry, CallStatus status, uint64_t noted) {
    record.end(entry, status);
    if (noted) tell_ended(noted);
  }
  /// Where other processes see the number of the newest call that has ended; null: nowhere.
  std::atomic<std::atomic<uint64_t>*> newest_ended{nullptr};
  void tell_ended(uint64_t noted) {
    auto* newest = newest_ended.load(std::memory_order_acquire);
    if (newest && newest->load(std::memory_order_relaxed) < noted) newest->store(noted, std::memory_order_release);
  }

  /// What a room below this one keeps for the rank: rpc its session.
  std::shared_ptr<void> guest() const;
  /// Null leaves. False: there is another.
  bool set_guest(const std::shared_ptr<void>& guest);

  /// The record as JSON, with what went wrong.
  std::string to_json(const std::string& error) const;
  /// Leaves the record in the folder for records, if there is one: the first time because of an error, later only when
  /// the rank ends without one. Says so on standard error where it cannot.
  void leave(const std::exception_ptr& error) noexcept;

  /// Failures of others, and circles of waits, say what this rank was doing when it met them; other errors know that
  /// themselves. `entry`: of the call in the record.
  std::exception_ptr met_in(const std::exception_ptr& error, uint64_t entry) const;
  /// The error of a work that was dropped before anybody looked: the rank's next call throws it.
  void remember_unobserved(const std::exception_ptr& error) noexcept;
  void throw_unobserved() {
    if (has_unobserved_.load(std::memory_order_relaxed)) [[unlikely]]
      throw_it();
  }

 private:
  std::mutex leaving_;
  std::string folder_;
  bool left_with_error_ = false;
  mutable std::mutex guest_mutex_;
  std::shared_ptr<void> guest_;
  void throw_it();
  std::atomic<bool> has_unobserved_{false};
  std::exception_ptr unobserved_;  // guarded by leaving_
};

}  // namespace tutti::comm
