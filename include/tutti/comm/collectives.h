// Collectives: every rank of a group makes the same call. Each has a form that waits and a form that gives a Work
// (…_async), whose tensors must be left alone until it is done.
//
// Results are the same bits on every transport, for every size and number of tensors: ranks are added in the order of
// one balanced tree, half-precision numbers in f32, rounded once.
#pragma once

#include <optional>
#include <source_location>
#include <vector>

#include "tutti/comm/group.h"
#include "tutti/comm/work.h"
#include "tutti/tensor.h"

namespace tutti {

enum class Reduce : uint8_t { sum, average, product, min, max, band, bor, bxor };

/// In which order ranks' numbers are added. canonical: by one tree over the ranks, so that all ways of running a world
/// give the same bits. fastest: those of a host first, wherever they stand in the world; only where ranks are dealt out
/// to several hosts in turns is that another order, and less to send.
enum class Order : uint8_t { canonical, fastest };

/// Where a call was made: errors name it. Never given by hand.
using Place = std::source_location;

struct CollectiveOptions {
  Group group = {};                                       // default: the world
  std::optional<std::chrono::milliseconds> timeout = {};  // default: the world's
  Place place = Place::current();
};
struct ReduceOptions {
  Reduce op = Reduce::sum;
  std::optional<double> factor = {};  // each rank's numbers are multiplied by this first (sum)
  std::optional<double> weight = {};  // average: by these weights instead of evenly (rows of a batch, say)
  int root = 0;                       // reduce only
  Order order = Order::canonical;
  Group group = {};
  std::optional<std::chrono::milliseconds> timeout = {};
  Place place = Place::current();
};
struct RootOptions {
  int root = 0;
  Group group = {};
  std::optional<std::chrono::milliseconds> timeout = {};
  Place place = Place::current();
};

/// x becomes the reduction of all ranks' x, on all ranks; on the root only (reduce). A sparse x (sum or average) may
/// have other indices on each rank; it becomes coalesced. All ranks wait for it, or none.
void all_reduce(Tensor x, const ReduceOptions& options = {});
Work all_reduce_async(Tensor x, const ReduceOptions& options = {});
void reduce(Tensor x, const ReduceOptions& options = {});
void reduce(const TensorList& xs, const ReduceOptions& options = {});
Work reduce_async(const TensorList& xs, const ReduceOptions& options = {});
Work reduce_async(Tensor x, const ReduceOptions& options = {});
/// Many tensors in one call, as if they were one.
void all_reduce(const TensorList& xs, const ReduceOptions& options = {});
Work all_reduce_async(const TensorList& xs, const ReduceOptions& options = {});

/// x becomes the root's.
void broadcast(Tensor x, const RootOptions& options = {});
Work broadcast_async(Tensor x, const RootOptions& options = {});
void broadcast(const TensorList& xs, const RootOptions& options = {});
Work broadcast_async(const TensorList& xs, const RootOptions& options = {});

/// outputs[k] becomes rank k's x, whose sizes may differ; or part k of output, cut evenly along the first dim.
void all_gather(const TensorList& outputs, const Tensor& x, const CollectiveOptions& options = {});
Work all_gather_async(const TensorList& outputs, const Tensor& x, const CollectiveOptions& options = {});
void all_gather(Tensor output, const Tensor& x, const CollectiveOptions& options = {});
Work all_gather_async(Tensor output, const Tensor& x, const CollectiveOptions& options = {});
/// The same where ranks give parts of other sizes: rank k's x has rows[k] rows.
void all_gather(Tensor output, const Tensor& x, const Shape& rows, const CollectiveOptions& options = {});
Work all_gather_async(Tensor output, const Tensor& x, const Shape& rows, const CollectiveOptions& options = {});
/// Many tensors of one dtype in one call: outputs[i][r] becomes rank r's xs[i].
void all_gather(const std::vector<TensorList>& outputs, const TensorList& xs, const CollectiveOptions& options = {});
Work all_gather_async(const std::vector<TensorList>& outputs, const TensorList& xs,
                      const CollectiveOptions& options = {});
/// The same on the root only; others give no outputs.
void gather(const TensorList& outputs, const Tensor& x, const RootOptions& options = {});
Work gather_async(const TensorList& outputs, const Tensor& x, const RootOptions& options = {});
/// output becomes the root's inputs[rank]; others give no inputs.
void scatter(Tensor output, const TensorList& inputs, const RootOptions& options = {});
Work scatter_async(Tensor output, const TensorList& inputs, const RootOptions& options = {});

/// output becomes the reduction of all ranks' inputs[rank] (or of their parts of input, cut evenly along the first
/// dim).
void reduce_scatter(Tensor output, const TensorList& inputs, const ReduceOptions& options = {});
Work reduce_scatter_async(Tensor output, const TensorList& inputs, const ReduceOptions& options = {});
void reduce_scatter(Tensor output, const Tensor& input, const ReduceOptions& options = {});
Work reduce_scatter_async(Tensor output, const Tensor& input, const ReduceOptions& options = {});
/// The same with parts of other sizes: rows[k] rows of input are for rank k.
void reduce_scatter(Tensor output, const Tensor& input, const Shape& rows, const ReduceOptions& options = {});
Work reduce_scatter_async(Tensor output, const Tensor& input, const Shape& rows, const ReduceOptions& options = {});
/// Many tensors of one dtype in one call: outputs[i] becomes the reduction of all ranks' inputs[i][this rank].
void reduce_scatter(const TensorList& outputs, const std::vector<TensorList>& inputs,
                    const ReduceOptions& options = {});
Work reduce_scatter_async(const TensorList& outputs, const std::vector<TensorList>& inputs,
                          const ReduceOptions& options = {});

/// outputs[k] becomes rank k's inputs[rank].
void all_to_all(const TensorList& outputs, const TensorList& inputs, const CollectiveOptions& options = {});
Work all_to_all_async(const TensorList& outputs, const TensorList& inputs, const CollectiveOptions& options = {});
/// The same with parts of one tensor each, cut along the first dim: evenly, or as the splits say (i64 tensors or
/// lists).
void all_to_all(Tensor output, const Tensor& input, const Shape& output_splits = {}, const Shape& input_splits = {},
                const CollectiveOptions& options = {});
void all_to_all(Tensor output, const Tensor& input, const Tensor& output_splits, const Tensor& input_splits,
                const CollectiveOptions& options = {});
Work all_to_all_async(Tensor output, const Tensor& input, const Shape& output_splits = {},
                      const Shape& input_splits = {}, const CollectiveOptions& options = {});
Work all_to_all_async(Tensor output, const Tensor& input, const Tensor& output_splits, const Tensor& input_splits,
                      const CollectiveOptions& options = {});

void barrier(const CollectiveOptions& options = {});
Work barrier_async(const CollectiveOptions& options = {});

struct GroupMemoryOptions {
  DType dtype = DType::f32;
  Group group = {};
  std::optional<std::chrono::milliseconds> timeout = {};
  Place place = Place::current();
};
/// A tensor in memory of the group, where it has some: between processes of a host, collectives of such tensors (or of
/// views of them) read and write it in place, without copies. All ranks must call it with the same sizes, and should
/// then give it to collectives all alike. Its numbers are not set. Where the transport has no such memory, or the host
/// has none left, it is an ordinary tensor on all ranks.
Tensor group_empty(const Shape& sizes, const GroupMemoryOptions& options = {});

/// When ranks came to a barrier.
struct Arrivals {
  std::vector<double> seconds;  // of each rank of the group, after the first one
  double skew = 0;              // of the last
  int last = 0;                 // its rank in the group
};
/// A barrier for finding out who is slow. If ranks do not come in time, TimeoutError names all of them, on every rank
/// that did come (and on those, when they come). Slower than barrier(), and the group can be used after it failed.
Arrivals monitored_barrier(const CollectiveOptions& options = {});

struct MessageOptions {
  int64_t tag = 0;
  Group group = {};
  std::optional<std::chrono::milliseconds> timeout = {};
  Place place = Place::current();
};
/// From one rank to another. Messages between two ranks with the same tag arrive in order.
void send(const Tensor& x, int to, const MessageOptions& options = {});
Work send_async(const Tensor& x, int to, const MessageOptions& options = {});
/// Returns the rank it came from (Work::source of the asynchronous one); `from` -1 takes from any.
int recv(Tensor x, int from, const MessageOptions& options = {});
Work recv_async(Tensor x, int from, const MessageOptions& options = {});

/// A message to be: see batch_messages.
struct Message {
  bool sends;
  Tensor x;
  int peer;
  MessageOptions options;
};
inline Message send_op(Tensor x, int to, const MessageOptions& options = {}) {
  return {true, std::move(x), to, options};
}
inline Message recv_op(Tensor x, int from, const MessageOptions& options = {}) {
  return {false, std::move(x), from, options};
}
/// Starts many messages at once. They wait for no other, so that ranks may list them in any order; those between two
/// ranks with the same tag still arrive in order. A Work for each.
std::vector<Work> batch_messages(const std::vector<Message>& messages);

}  // namespace tutti
