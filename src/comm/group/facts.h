// What ranks must know of each other's calls, and whether the calls fit.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "comm/group/call.h"

namespace tutti::comm {

/// What of a rank's call others must know, as plain data.
struct CallHeader {
  static constexpr size_t kTextBytes = 160, kDims = 8;
  Kind kind = Kind::barrier;
  DType dtype = DType::f32;
  Reduce op = Reduce::sum;
  bool weighted = false, recorded = false, fastest = false;
  int32_t root = 0;
  uint32_t tensors = 0, dims = 0, line = 0;
  double factor = 1;
  int64_t bytes = 0;    // of the rank's stream
  uint64_t sizes = 0;   // hash of the sizes of all tensors, where they must agree
  uint64_t region = 0;  // Note [Group memory]: where the rank's part lies; 0: elsewhere
  int64_t region_offset = 0;
  int64_t shape[kDims] = {};   // of the first tensor
  char text[kTextBytes] = {};  // the name of the file, and behind its 0 what the call is for, if it is for anything

  /// Of one that came from another process: its text ends, whatever it is.
  void bound() { text[kTextBytes - 1] = 0; }
  const char* file() const { return text; }
  const char* purpose() const;
};
struct CallFacts {
  CallHeader header;
  std::vector<int64_t> in = {}, out = {};                 // elements for, and from, each rank, where they may differ
  std::vector<uint32_t> in_shapes = {}, out_shapes = {};  // and what shapes they have: see Piece

  /// In memory that others read: how much it takes, and there and back.
  static size_t room(int size) {
    return sizeof(CallHeader) + 2 * static_cast<size_t>(size) * (sizeof(int64_t) + sizeof(uint32_t));
  }
  void write(std::byte* to, int size) const;
  static CallFacts read(const std::byte* from, int size);
};
/// Without what only facts_of() knows: how much there is of everything.
CallHeader header_of(const Brief& call);
CallFacts facts_of(const Call& call, int rank, int size);
std::string describe(const CallFacts& facts);

/// What is wrong, naming all ranks by what they called, unless all calls are parts of one collective.
std::optional<std::string> find_mismatch(const std::vector<CallFacts>& calls, const std::vector<int>& ranks,
                                         uint64_t sequence);

/// What is wrong with a message and who takes it, naming both calls; empty: they fit.
struct MessageEnd {
  int rank;  // in the world
  CallHeader call;
  int64_t count;
};
std::string message_misfit(const MessageEnd& sent, const MessageEnd& taken);

}  // namespace tutti::comm
