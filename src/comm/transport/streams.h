// A collective as streams of bytes: what a rank gives is one stream, and its result is made of pieces of all ranks'
// streams. Transports that copy carry the streams, in parts of any length.
#pragma once

#include <vector>

#include "comm/group/facts.h"

namespace tutti::comm {

struct Streams {
  struct Copy {
    int from;        // the rank whose stream it is in
    int64_t offset;  // bytes
    int64_t bytes;
    std::byte* to;
  };
  struct Combine {
    int64_t offset;  // bytes, the same in all streams
    int64_t count;   // elements
    std::byte* to;
    const std::byte* mine;  // this rank's own part
  };
  Pieces give;                 // this rank's stream
  std::vector<int64_t> bytes;  // of each rank's
  std::vector<Copy> copies;
  std::vector<Combine> combines;
  Reduction reduction;
  std::vector<double> factors;
};
/// What this rank's stream is made of.
Pieces given_by(const Call& call, int rank);
Streams plan_streams(const Call& call, int rank, const std::vector<CallFacts>& calls);

}  // namespace tutti::comm
