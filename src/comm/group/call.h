// One rank's part of a collective, and what all parts together mean: a list of jobs. This is the whole of a
// collective's pattern, as plain data; transports carry it out.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/small_vector.h"
#include "comm/algorithm/reduce.h"
#include "tutti/comm/collectives.h"

namespace tutti::comm {

enum class Kind : uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  gather,
  scatter,
  reduce_scatter,
  all_to_all,
  barrier,
  send,  // messages are no collectives, but are described as calls like them
  recv
};
const char* name(Kind kind);
/// Which of them have a reduction, and which a root.
bool reduces_something(Kind kind);
bool has_root(Kind kind);

/// Elements that lie next to each other.
struct Piece {
  void* data = nullptr;
  int64_t count = 0;
  uint32_t shape = 0;  // shape_mark() of the tensor; 0: of none
};
/// Something that shapes which differ differ in; never 0.
uint32_t shape_mark(const Shape& shape);

inline int64_t bytes_of(const Piece& p, DType dtype) { return p.count * static_cast<int64_t>(size_of(dtype)); }
using Pieces = SmallVector<Piece, 2>;

struct Call {
  Kind kind = Kind::barrier;
  DType dtype = DType::f32;
  Reduce op = Reduce::sum;
  int root = 0;
  double factor = 1;
  bool weighted = false;  // factor is the weight of an average
  bool recorded = false;  // a backward pass will come through it
  bool fastest = false;   // see Order
  // One for each tensor (all_reduce, reduce, broadcast), or for each rank; or one.
  Pieces in = {}, out = {};
  Shape shape = {};  // of the first tensor: for errors, and for what must agree
  Place place = Place::current();
  const char* purpose = nullptr;  // see PurposeGuard
};
/// What a person wants to know of a call.
struct Brief {
  Kind kind;
  DType dtype;
  Reduce op;
  int root;
  size_t tensors;
  Shape shape;
  const char* file;
  uint32_t line;
  const char* purpose;  // null: the user's own call
};
Brief brief(const Call& call);
/// Timeouts that can be added to a time: for ever is a century.
inline std::chrono::milliseconds bounded(std::chrono::milliseconds timeout) {
  return std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365 * 100));
}
inline std::chrono::nanoseconds bounded(std::chrono::nanoseconds time) {
  return std::min<std::chrono::nanoseconds>(time, std::chrono::hours(24 * 365 * 100));
}

/// What calls say of themselves that their arguments do not: the calling thread's.
struct Marks {
  bool recorded = false;
  const char* purpose = nullptr;
};
const Marks& marks();
/// While it lives, calls of this thread are said to be recorded, or not: of functional collectives.
class RecordingGuard {
 public:
  explicit RecordingGuard(bool recorded);
  ~RecordingGuard();
  RecordingGuard(const RecordingGuard&) = delete;
  RecordingGuard& operator=(const RecordingGuard&) = delete;

 private:
  bool outer_;
};
/// While it lives, calls of this thread are made for something else that the user called, and errors say so:
/// "broadcast_object", "DistributedDataParallel: ...". Inside of another nothing changes: what the user called is said.
/// The text must live as long as the program: flight records keep it. See lasting().
class PurposeGuard {
 public:
  explicit PurposeGuard(const char* purpose);
  ~PurposeGuard();
  PurposeGuard(const PurposeGuard&) = delete;
  PurposeGuard& operator=(const PurposeGuard&) = delete;

 private:
  const char* outer_;
};
/// A purpose that begins with this is that of calls which a rank makes once for each of its batches; it is not shown.
constexpr char kEachBatch = '*';
inline const char* shown(const char* purpose) { return purpose && *purpose == kEachBatch ? purpose + 1 : purpose; }
/// For errors about ranks that do not come to a call of this purpose: what may be the reason, in a line of its own.
/// Empty where nobody knows.
std::string advice(const char* purpose);
/// A text that may have such lines in it (of what other ranks do), with one at its end for all of them.
std::string advised(std::string text, const char* purpose);
/// A text that lives as long as the program. There are as many as are different, and not more than some thousands: then
/// `otherwise`, which says less.
const char* lasting(const std::string& text, const char* otherwise);

/// "all_reduce(f32[2, 3], sum) at train.cpp:12", and in parentheses what it is for.
std::string describe(const Brief& call);
inline std::string describe(const Call& call) { return describe(brief(call)); }
/// "train.cpp:12"
std::string to_string(const Place& place);
/// "rank 3", "ranks 0-2, 5"
std::string name_ranks(const std::vector<int>& ranks);
/// "\n  ranks 0-2, 5: all_reduce(f32[4], sum) at a.cpp:10\n  rank 3: barrier at a.cpp:12": calls, and who made each.
std::string list_callers(std::vector<std::pair<std::string, std::vector<int>>> calls);

/// Combines (or, of one source, copies) elements of sources into targets.
struct Job {
  std::vector<const void*> sources;
  std::vector<void*> targets;
  int64_t count;
};
struct Plan {
  Reduction reduction;
  std::vector<double> factors;
  std::vector<Job> jobs;
};

Plan plan(const std::vector<Call>& calls);

}  // namespace tutti::comm
