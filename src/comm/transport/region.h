// Memory that belongs to a group of processes: every rank has a part of it, and all ranks see all parts, so that
// collectives need not copy what lies in it.
//
// Note [Group memory]
// A region is made by all ranks together and has a number that is the same for all. A rank that gives a tensor of a
// region to a collective says so among the facts of its call: which region, and where in its own part. When all ranks
// name the same one, each can read (and for an all_reduce, write) the others' parts where they are; a rank that names a
// region has it mapped, since it holds its tensor. Otherwise the call is carried out by copies as if there were none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/group/call.h"
#include "comm/transport/segment.h"

namespace tutti::comm {

class Regions {
 public:
  struct Region {
    Segment segment;
    uint64_t number;  // from 1 on
    size_t bytes;     // of a rank's part
    std::byte* part(int rank) const { return segment.data() + static_cast<size_t>(rank) * bytes; }
  };
  /// Where in a region; number 0: in none.
  struct Place {
    uint64_t number = 0;
    int64_t offset = 0;
  };

  void add(std::shared_ptr<Region> region, int rank);
  /// By the address of the rank's own part.
  void remove(const std::byte* part);
  /// Where what this rank gives (or takes, if it gives nothing) lies, if it lies in one region without gaps.
  Place find(const Call& call) const;
  /// The one that find() named.
  std::shared_ptr<Region> get(uint64_t number) const;

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::shared_ptr<Region>> regions_;  // by the rank's own part
};

}  // namespace tutti::comm
