// From tensors to calls: what users gave is checked, laid out as plain memory, and handed to the group.
#include "tutti/comm/collectives.h"

#include <algorithm>
#include <cmath>

#include "base/small_vector.h"
#include "comm/group/check_call.h"
#include "comm/group/sparse.h"
#include "comm/group/watch.h"
#include "comm/transport/transport.h"
#include "tensor/impl.h"
#include "tutti/context.h"
#include "tutti/ops.h"
#include "tutti/trace.h"

namespace tutti {
namespace {

using comm::Kind;
using comm::Piece;
using comm::RankGroup;
using comm::WorkState;

/// Whether the elements lie in one piece of memory, in whatever order.
bool is_dense(const Tensor& x) {
  int64_t last = 0;
  for (int64_t d = 0; d < x.dim(); ++d) last += (x.size(d) - 1) * x.stride(d);
  return last + 1 == x.numel();  // where none share memory
}

/// A call being put together: the memory behind its pieces, and what is to be done when it has ended.
struct Draft {
  comm::Call call;
  std::shared_ptr<RankGroup> group;
  std::chrono::milliseconds timeout;
  TensorList keep;                                   // memory that must live as long as the call
  std::vector<std::pair<Tensor, Tensor>> copy_back;  // (where the result belongs, where it was written)

  template <class Options>
  Draft(Kind kind, const Options& options) : call{.kind = kind, .in = {}, .out = {}, .place = options.place} {
    Group g = options.group.defined() ? options.group : world();
    group = g.handle();
    timeout = comm::bounded(options.timeout.value_or(group->group->timeout()));
    call.recorded = comm::marks().recorded;
    call.purpose = comm::marks().purpose;
    if (group->rank < 0)
      refuse<ValueError>(fmt::format("rank {} is not a member of this group of ranks {}", context().rank,
                                     Shape(std::vector<int64_t>(g.ranks().begin(), g.ranks().end()))));
  }
  /// Of what the caller gave: errors say where.
  template <class E, class... Args>
  void require(bool condition, fmt::format_string<Args...> text, Args&&... args) const {
    comm::check_at<E>(call.place, condition, comm::name(call.kind), text, std::forward<Args>(args)...);
  }
  template <class E>
  [[noreturn]] void refuse(const std::string& text) const {
    comm::fail_at<E>(call.place, comm::name(call.kind), text);
  }
  int size() const { return group->group->size(); }

  void root(int root) {
    require<ValueError>(root >= 0 && root < size(), "root {} is not in a group of {}", root, size());
    call.root = root;
  }

  void reduction(const ReduceOptions& o, DType dtype) {
    if (!comm::reduces(o.op, dtype)) refuse<DTypeError>(comm::why_not_reduced(o.op, dtype));
    require<ValueError>(!o.factor || o.op == Reduce::sum, "factors are for sums");
    require<ValueError>(!o.weight || o.op == Reduce::average, "weights are for averages");
    require<DTypeError>((!o.factor && !o.weight) || is_floating(dtype) || is_complex(dtype),
                        "factors and weights are for floating-point numbers, not {}", dtype);
    double weight = o.weight.value_or(1);  // sums of those that are allowed have room in f32
    require<ValueError>(weight == 0 || (weight >= 1e-18 && weight <= 1e18),
                        "a weight of {} makes no average: weights are 0, or between 1e-18 and 1e18", weight);
    call.op = o.op;
    call.fastest = o.order == Order::fastest;
    call.factor = o.weight.value_or(o.factor.value_or(1));
    call.weighted = o.weight.has_value();
  }

  void describe(const Tensor& x) {
    require<ValueError>(x.defined(), "an argument is undefined");
    call.dtype = x.dtype();
    call.shape = x.sizes();
  }
  void checked(const Tensor& x) const {
    require<ValueError>(x.defined(), "an argument is undefined");
    require<DTypeError>(x.dtype() == call.dtype, "{} does not have the dtype of the others, {}", x, call.dtype);
    require<ValueError>(!x.is_sparse(),
                        "{} is sparse, which only all_reduce takes: use its values(), or "
                        "to_dense() it",
                        x);
    require<DeviceError>(x.device().is_cpu(), "cannot take {}", x);
  }
  void checked_output(const Tensor& x) const {
    checked(x);
    require<GradError>(!grad_enabled() || !x.requires_grad(),
                       "{} requires a gradient and would be overwritten: use NoGrad, or a functional collective", x);
    require<ShapeError>(x.is_contiguous() || !overlaps_itself(x.sizes(), x.strides()),
                        "elements of {} share memory (an expanded view?) and cannot all be written: clone() it", x);
  }
  /// Memory that is only read.
  Piece in(const Tensor& x) {
    checked(x);
    if (Tracer* tracer = tracing()) tracer->untraceable("a collective other than those of namespace fn");
    Tensor c = x.detach().contiguous();
    keep.push_back(c);
    return {c.raw_data(), c.numel(), comm::shape_mark(x.sizes())};
  }
  /// Memory that is written, and read if `reads`.
  Piece out(const Tensor& x, bool reads) {
    checked_output(x);
    if (Tracer* tracer = tracing()) tracer->untraceable("a collective other than those of namespace fn");
    if (x.is_contiguous()) {
      keep.push_back(x);
      return {x.raw_data(), x.numel(), comm::shape_mark(x.sizes())};
    }
    Tensor c = reads ? x.detach().contiguous() : empty(x.sizes(), {.dtype = x.dtype(), .device = x.device()});
    keep.push_back(c);
    copy_back.emplace_back(x, c);
    return {c.raw_data(), c.numel(), comm::shape_mark(x.sizes())};
  }

  /// What x gives to all of the outputs. It may be its own rank's output, but none that is written before it is read.
  void gather_from(const Tensor& x, const TensorList& outputs) {
    checked(x);
    bool overwritten = false;
    for (size_t k = 0; k < outputs.size(); ++k) {
      bool mine = static_cast<int>(k) == group->rank && outputs[k].defined() && outputs[k].is_contiguous() &&
                  x.is_contiguous() && outputs[k].raw_data() == x.raw_data();
      overwritten = overwritten || (!mine && outputs[k].defined() && outputs[k].shares_storage(x));
    }
    call.in.push_back(in(overwritten ? x.detach().clone() : x));
    for (const Tensor& y : outputs) call.out.push_back(out(y, false));
  }
  /// Results that lie in each other would be written twice, in an order that nobody knows.
  void check_apart() const {
    bool writes =
        call.kind == Kind::broadcast ? group->rank != call.root : call.kind != Kind::reduce || group->rank == call.root;
    if ((call.out.size() < 2 && copy_back.size() < 2) || !writes) return;
    std::vector<std::pair<const void*, const void*>> ranges;
    auto add = [&](const void* data, int64_t count) {
      if (count) ranges.emplace_back(data, static_cast<const std::byte*>(data) + count * int64_t(size_of(call.dtype)));
    };
    for (const Piece& p : call.out) add(p.data, p.count);
    // Of a tensor with gaps, others may lie in them: it is its first element that nobody else may have.
    for (const auto& [to, from] : copy_back) add(to.raw_data(), is_dense(to) ? to.numel() : to.numel() > 0);
    std::sort(ranges.begin(), ranges.end());
    for (size_t k = 1; k < ranges.size(); ++k)
      require<ValueError>(ranges[k].first >= ranges[k - 1].second,
                          "two of the {} tensors that it would write share memory: pass each once, or clone() one",
                          std::max(call.out.size(), copy_back.size()));
  }

  /// What is to be done when the call has ended.
  std::function<void()> finish() const {
    const uint32_t preserve = context().modes & kPreserveVersion;  // of who begins the call, whoever ends it
    return [copy_back = copy_back, written = written(), keep = keep, name = comm::name(call.kind), preserve] {
      NoGrad guard;
      ModeGuard versions(preserve, preserve ^ kPreserveVersion);
      for (auto [to, from] : copy_back) to.copy_(from);
      for (const Tensor& t : written) impl(t)->storage->wrote(name);
    };
  }
  void run() {
    NoGrad guard;
    check_apart();
    auto done = finish();
    group->run(std::move(call), timeout);
    done();
  }
  std::shared_ptr<WorkState> work() const {
    auto work = std::make_shared<WorkState>();
    work->set_timeout(timeout);
    work->finish = finish();
    return work;
  }
  Work start() {
    NoGrad guard;
    check_apart();
    auto work = this->work();
    group->start(std::move(call), work);
    comm::Watch::instance().add(work, group->group);
    return Work(work, group->group);
  }
  // What is written in place, whose version must say so.
  TensorList written() const {
    TensorList list;
    for (const Tensor& t : keep) {
      auto is = [&](const Piece& piece) { return piece.data == t.raw_data() && piece.count; };
      if (std::any_of(call.out.begin(), call.out.end(), is)) list.push_back(t);
    }
    return list;
  }
};

// ---- The calls

// The common case without the ceremony of the general one: a dense tensor whose memory is used as it is. False: not so.
template <class Options>
bool run_directly(comm::Call& call, const Tensor& x, const Options& o) {
  auto* group = static_cast<RankGroup*>(o.group.defined() ? o.group.handle().get() : context().world.get());
  if (!group || group->rank < 0 || !x.defined() || !x.device().is_cpu() || x.is_sparse() || !x.is_contiguous() ||
      (grad_enabled() && x.requires_grad()) || call.root < 0 || call.root >= group->group->size())
    return false;
  call.dtype = x.dtype();
  call.shape = x.sizes();
  call.place = o.place;
  Piece piece{x.raw_data(), x.numel()};
  call.out.push_back(piece);
  bool writes = call.kind == Kind::all_reduce || group->rank != call.root;
  if (call.kind == Kind::all_reduce) call.in.push_back(piece);
  call.recorded = comm::marks().recorded;
  call.purpose = comm::marks().purpose;
  const Kind kind = call.kind;
  group->run(std::move(call), comm::bounded(o.timeout.value_or(group->group->timeout())));
  if (writes && piece.count) impl(x)->storage->wrote(comm::name(kind));
  return true;
}

bool all_reduce_directly(const Tensor& x, const ReduceOptions& o) {
  if (o.factor || o.weight || o.order != Order::canonical || !x.defined() || !comm::reduces(o.op, x.dtype()))
    return false;
  comm::Call call{.kind = Kind::all_reduce, .op = o.op};
  return run_directly(call, x, o);
}
bool broadcast_directly(const Tensor& x, const RootOptions& o) {
  comm::Call call{.kind = Kind::broadcast, .root = o.root};
  return run_directly(call, x, o);
}

Draft draft_reduce(Kind kind, const TensorList& xs, const ReduceOptions& o) {
  Draft d(kind, o);
  if (kind == Kind::reduce) d.root(o.root);
  if (xs.empty()) return d;
  d.describe(xs[0]);
  d.reduction(o, xs[0].dtype());
  bool writes = kind == Kind::all_reduce || d.group->rank == o.root;
  for (const Tensor& x : xs) {
    Piece piece = writes ? d.out(x, true) : d.in(x);
    d.call.in.push_back(piece);
    d.call.out.push_back(piece);
  }
  return d;
}

Draft draft_broadcast(const TensorList& xs, const RootOptions& o) {
  Draft d(Kind::broadcast, o);
  d.root(o.root);
  if (!xs.empty()) d.describe(xs[0]);
  for (const Tensor& x : xs) d.call.out.push_back(d.group->rank == o.root ? d.in(x) : d.out(x, false));
  return d;
}

void check_list(const Draft& d, const TensorList& list, const char* what) {
  d.require<ValueError>(static_cast<int>(list.size()) == d.size(), "{} {} were given for a group of {}", list.size(),
                        what, d.size());
}

Draft draft_all_gather(const TensorList& outputs, const Tensor& x, const CollectiveOptions& o) {
  Draft d(Kind::all_gather, o);
  check_list(d, outputs, "outputs");
  d.describe(x);
  d.gather_from(x, outputs);
  return d;
}

// Parts of one tensor, cut along the first dim.
TensorList parts_of(const Draft& d, const Tensor& x, const Shape& splits, const char* what) {
  d.require<ValueError>(x.defined(), "an argument is undefined");
  d.require<ShapeError>(x.dim() >= 1, "{} has no dim to cut", x);
  int64_t n = d.size();
  if (splits.empty()) {
    d.require<ShapeError>(x.size(0) % n == 0, "the first dim of {} ({}) does not divide into {} parts", x, what, n);
    TensorList list;
    for (int64_t k = 0; k < n; ++k) list.push_back(x.narrow(0, k * (x.size(0) / n), x.size(0) / n));
    return list;
  }
  int64_t sum = 0;
  for (int64_t s : splits) sum += s;
  d.require<ShapeError>(
      static_cast<int64_t>(splits.size()) == n && sum == x.size(0),
      "splits {} of {} do not cut {}: a group of {} needs {} that add up to {}, and these {} add up to {}", splits,
      what, x, n, n, x.size(0), splits.size(), sum);
  return split(x, splits, 0);
}

Draft draft_all_to_all(const TensorList& outputs, const TensorList& inputs, const CollectiveOptions& o) {
  Draft d(Kind::all_to_all, o);
  check_list(d, outputs, "outputs");
  check_list(d, inputs, "inputs");
  d.describe(inputs[0]);
  for (const Tensor& x : inputs) {
    bool overlaps = false;
    for (const Tensor& y : outputs) overlaps = overlaps || y.shares_storage(x);
    d.call.in.push_back(d.in(overlaps ? x.detach().clone() : x));
  }
  for (const Tensor& y : outputs) d.call.out.push_back(d.out(y, false));
  return d;
}

Draft draft_gather(const TensorList& outputs, const Tensor& x, const RootOptions& o) {
  Draft d(Kind::gather, o);
  d.root(o.root);
  d.describe(x);
  if (d.group->rank == o.root)
    check_list(d, outputs, "outputs");
  else
    d.require<ValueError>(outputs.empty(), "only the root ({}) takes outputs", o.root);
  d.gather_from(x, outputs);
  return d;
}

Draft draft_scatter(const Tensor& output, const TensorList& inputs, const RootOptions& o) {
  Draft d(Kind::scatter, o);
  d.root(o.root);
  d.describe(output);
  if (d.group->rank == o.root)
    check_list(d, inputs, "inputs");
  else
    d.require<ValueError>(inputs.empty(), "only the root ({}) gives inputs", o.root);
  for (const Tensor& x : inputs) d.call.in.push_back(d.in(x.shares_storage(output) ? x.detach().clone() : x));
  d.call.out.push_back(d.out(output, false));
  return d;
}

Draft draft_reduce_scatter(const Tensor& output, const TensorList& inputs, const ReduceOptions& o) {
  Draft d(Kind::reduce_scatter, o);
  check_list(d, inputs, "inputs");
  d.describe(output);
  d.reduction(o, output.dtype());
  for (const Tensor& x : inputs) d.call.in.push_back(d.in(x.shares_storage(output) ? x.detach().clone() : x));
  d.call.out.push_back(d.out(output, false));
  return d;
}

// Of several tensors: their numbers are one piece, their shapes remain.
Piece shaped_as(Piece piece, const TensorList& xs) {
  Shape marks;
  for (const Tensor& x : xs) marks.push_back(comm::shape_mark(x.sizes()));
  piece.shape = comm::shape_mark(marks);
  return piece;
}
// One tensor of all numbers, where tensors of a list lie one behind the other.
Tensor packed(const Draft& d, const TensorList& xs) {
  TensorList flat;
  for (const Tensor& x : xs) {
    d.checked(x);
    flat.push_back(x.detach().reshape({x.numel()}));
  }
  return cat(flat);
}
// Room for a packed list, which is copied to where it belongs when the call has ended.
Tensor packed_room(Draft& d, const TensorList& xs) {
  int64_t count = 0;
  for (const Tensor& x : xs) {
    d.checked_output(x);
    count += x.numel();
  }
  Tensor room = empty({count}, {.dtype = d.call.dtype, .device = Device()});
  int64_t at = 0;
  for (const Tensor& x : xs) {
    d.copy_back.emplace_back(x, room.narrow(0, at, x.numel()).view(x.sizes()));
    at += x.numel();
  }
  return room;
}

Draft draft_all_gather_lists(const std::vector<TensorList>& outputs, const TensorList& xs, const CollectiveOptions& o) {
  Draft d(Kind::all_gather, o);
  d.require<ValueError>(outputs.size() == xs.size() && !xs.empty(), "{} lists of outputs were given for {} tensors",
                        outputs.size(), xs.size());
  d.describe(xs[0]);
  for (const TensorList& list : outputs) check_list(d, list, "outputs");
  d.call.in.push_back(shaped_as(d.in(packed(d, xs)), xs));
  for (int r = 0; r < d.size(); ++r) {
    TensorList of_rank;
    for (const TensorList& list : outputs) of_rank.push_back(list[static_cast<size_t>(r)]);
    d.call.out.push_back(shaped_as(d.out(packed_room(d, of_rank), false), of_rank));
  }
  return d;
}

Draft draft_reduce_scatter_lists(const TensorList& outputs, const std::vector<TensorList>& inputs,
                                 const ReduceOptions& o) {
  Draft d(Kind::reduce_scatter, o);
  d.require<ValueError>(outputs.size() == inputs.size() && !outputs.empty(),
                        "{} lists of inputs were given for {} outputs", inputs.size(), outputs.size());
  d.describe(outputs[0]);
  d.reduction(o, outputs[0].dtype());
  for (const TensorList& list : inputs) check_list(d, list, "inputs");
  for (int r = 0; r < d.size(); ++r) {
    TensorList for_rank;
    for (const TensorList& list : inputs) for_rank.push_back(list[static_cast<size_t>(r)]);
    d.call.in.push_back(shaped_as(d.in(packed(d, for_rank)), for_rank));
  }
  d.call.out.push_back(shaped_as(d.out(packed_room(d, outputs), false), outputs));
  return d;
}

Draft draft_all_gather_parts(const Tensor& output, const Tensor& x, const Shape& rows, const CollectiveOptions& o) {
  Draft d(Kind::all_gather, o);
  return draft_all_gather(parts_of(d, output, rows, "output"), x, o);
}
Draft draft_reduce_scatter_parts(const Tensor& output, const Tensor& input, const Shape& rows, const ReduceOptions& o) {
  Draft d(Kind::reduce_scatter, o);
  return draft_reduce_scatter(output, parts_of(d, input, rows, "input"), o);
}

Shape as_shape(const Tensor& splits, const CollectiveOptions& o) {
  comm::check_at<ValueError>(o.place, splits.defined(), "all_to_all", "an argument is undefined");
  comm::check_at<DTypeError>(o.place, splits.dtype() == DType::i64, "all_to_all", "splits are i64, not {}", splits);
  return Shape(splits.to_vector<int64_t>());
}

}  // namespace

void all_reduce(Tensor x, const ReduceOptions& o) {
  if (x.defined() && x.is_sparse()) return comm::all_reduce_sparse(x, o);
  if (!all_reduce_directly(x, o)) draft_reduce(Kind::all_reduce, {std::move(x)}, o).run();
}
Work all_reduce_async(Tensor x, const ReduceOptions& o) {
  if (x.defined() && x.is_sparse()) return comm::all_reduce_sparse_async({x}, o);
  return draft_reduce(Kind::all_reduce, {std::move(x)}, o).start();
}
void all_reduce(const TensorList& xs, const ReduceOptions& o) {
  TensorList dense;
  for (const Tensor& x : xs) x.defined() && x.is_sparse() ? comm::all_reduce_sparse(x, o) : dense.push_back(x);
  if (!dense.empty() || xs.empty()) draft_reduce(Kind::all_reduce, dense, o).run();
}
Work all_reduce_async(const TensorList& xs, const ReduceOptions& o) {
  auto is_sparse = [](const Tensor& x) { return x.defined() && x.is_sparse(); };
  if (std::any_of(xs.begin(), xs.end(), is_sparse)) return comm::all_reduce_sparse_async(xs, o);
  return draft_reduce(Kind::all_reduce, xs, o).start();
}
void reduce(Tensor x, const ReduceOptions& o) { draft_reduce(Kind::reduce, {std::move(x)}, o).run(); }
Work reduce_async(Tensor x, const ReduceOptions& o) { return draft_reduce(Kind::reduce, {std::move(x)}, o).start(); }
void reduce(const TensorList& xs, const ReduceOptions& o) { draft_reduce(Kind::reduce, xs, o).run(); }
Work reduce_async(const TensorList& xs, const ReduceOptions& o) { return draft_reduce(Kind::reduce, xs, o).start(); }

void broadcast(Tensor x, const RootOptions& o) {
  if (!broadcast_directly(x, o)) draft_broadcast({std::move(x)}, o).run();
}
Work broadcast_async(Tensor x, const RootOptions& o) { return draft_broadcast({std::move(x)}, o).start(); }
void broadcast(const TensorList& xs, const RootOptions& o) { draft_broadcast(xs, o).run(); }
Work broadcast_async(const TensorList& xs, const RootOptions& o) { return draft_broadcast(xs, o).start(); }

void all_gather(const TensorList& outputs, const Tensor& x, const CollectiveOptions& o) {
  draft_all_gather(outputs, x, o).run();
}
Work all_gather_async(const TensorList& outputs, const Tensor& x, const CollectiveOptions& o) {
  return draft_all_gather(outputs, x, o).start();
}
void all_gather(Tensor output, const Tensor& x, const CollectiveOptions& o) {
  draft_all_gather_parts(output, x, {}, o).run();
}
Work all_gather_async(Tensor output, const Tensor& x, const CollectiveOptions& o) {
  return draft_all_gather_parts(output, x, {}, o).start();
}
void all_gather(Tensor output, const Tensor& x, const Shape& rows, const CollectiveOptions& o) {
  draft_all_gather_parts(output, x, rows, o).run();
}
Work all_gather_async(Tensor output, const Tensor& x, const Shape& rows, const CollectiveOptions& o) {
  return draft_all_gather_parts(output, x, rows, o).start();
}
void all_gather(const std::vector<TensorList>& outputs, const TensorList& xs, const CollectiveOptions& o) {
  draft_all_gather_lists(outputs, xs, o).run();
}
Work all_gather_async(const std::vector<TensorList>& outputs, const TensorList& xs, const CollectiveOptions& o) {
  return draft_all_gather_lists(outputs, xs, o).start();
}
void gather(const TensorList& outputs, const Tensor& x, const RootOptions& o) { draft_gather(outputs, x, o).run(); }
Work gather_async(const TensorList& outputs, const Tensor& x, const RootOptions& o) {
  return draft_gather(outputs, x, o).start();
}
void scatter(Tensor output, const TensorList& inputs, const RootOptions& o) { draft_scatter(output, inputs, o).run(); }
Work scatter_async(Tensor output, const TensorList& inputs, const RootOptions& o) {
  return draft_scatter(output, inputs, o).start();
}

void reduce_scatter(Tensor output, const TensorList& inputs, const ReduceOptions& o) {
  draft_reduce_scatter(output, inputs, o).run();
}
Work reduce_scatter_async(Tensor output, const TensorList& inputs, const ReduceOptions& o) {
  return draft_reduce_scatter(output, inputs, o).start();
}
void reduce_scatter(Tensor output, const Tensor& input, const ReduceOptions& o) {
  draft_reduce_scatter_parts(output, input, {}, o).run();
}
Work reduce_scatter_async(Tensor output, const Tensor& input, const ReduceOptions& o) {
  return draft_reduce_scatter_parts(output, input, {}, o).start();
}
void reduce_scatter(Tensor output, const Tensor& input, const Shape& rows, const ReduceOptions& o) {
  draft_reduce_scatter_parts(output, input, rows, o).run();
}
Work reduce_scatter_async(Tensor output, const Tensor& input, const Shape& rows, const ReduceOptions& o) {
  return draft_reduce_scatter_parts(output, input, rows, o).start();
}
void reduce_scatter(const TensorList& outputs, const std::vector<TensorList>& inputs, const ReduceOptions& o) {
  draft_reduce_scatter_lists(outputs, inputs, o).run();
}
Work reduce_scatter_async(const TensorList& outputs, const std::vector<TensorList>& inputs, const ReduceOptions& o) {
  return draft_reduce_scatter_lists(outputs, inputs, o).start();
}

void all_to_all(const TensorList& outputs, const TensorList& inputs, const CollectiveOptions& o) {
  draft_all_to_all(outputs, inputs, o).run();
}
Work all_to_all_async(const TensorList& outputs, const TensorList& inputs, const CollectiveOptions& o) {
  return draft_all_to_all(outputs, inputs, o).start();
}
void all_to_all(Tensor output, const Tensor& input, const Shape& output_splits, const Shape& input_splits,
                const CollectiveOptions& o) {
  Draft d(Kind::all_to_all, o);
  draft_all_to_all(parts_of(d, output, output_splits, "output"), parts_of(d, input, input_splits, "input"), o).run();
}
Work all_to_all_async(Tensor output, const Tensor& input, const Shape& output_splits, const Shape& input_splits,
                      const CollectiveOptions& o) {
  Draft d(Kind::all_to_all, o);
  return draft_all_to_all(parts_of(d, output, output_splits, "output"), parts_of(d, input, input_splits, "input"), o)
      .start();
}
void all_to_all(Tensor output, const Tensor& input, const Tensor& output_splits, const Tensor& input_splits,
                const CollectiveOptions& o) {
  all_to_all(std::move(output), input, as_shape(output_splits, o), as_shape(input_splits, o), o);
}
Work all_to_all_async(Tensor output, const Tensor& input, const Tensor& output_splits, const Tensor& input_splits,
                      const CollectiveOptions& o) {
  return all_to_all_async(std::move(output), input, as_shape(output_splits, o), as_shape(input_splits, o), o);
}

void barrier(const CollectiveOptions& o) { Draft(Kind::barrier, o).run(); }
Work barrier_async(const CollectiveOptions& o) { return Draft(Kind::barrier, o).start(); }

namespace {

Draft draft_message(const Message& m) {
  Draft d(m.sends ? Kind::send : Kind::recv, m.options);
  d.require<ValueError>(m.peer >= (m.sends ? 0 : -1) && m.peer < d.size(), "there is no rank {} in a group of {}",
                        m.peer, d.size());
  d.describe(m.x);
  if (m.sends)
    d.call.in.push_back(d.in(m.x));
  else
    d.call.out.push_back(d.out(m.x, false));
  return d;
}

Work start_message(Draft d, const Message& m) {
  auto work = d.work();
  if (m.sends)
    d.group->send(m.peer, m.options.tag, std::move(d.call), work);
  else
    d.group->receive(m.peer, m.options.tag, std::move(d.call), work);
  return Work(work, d.group->group);
}

Work start_message(const Message& m) { return start_message(draft_message(m), m); }

}  // namespace

void send(const Tensor& x, int to, const MessageOptions& o) { start_message(send_op(x, to, o)).wait(); }
Work send_async(const Tensor& x, int to, const MessageOptions& o) { return start_message(send_op(x, to, o)).watched(); }
int recv(Tensor x, int from, const MessageOptions& o) {
  Work work = start_message(recv_op(x, from, o));
  work.wait();
  return work.source();
}
Work recv_async(Tensor x, int from, const MessageOptions& o) { return start_message(recv_op(x, from, o)).watched(); }

std::vector<Work> batch_messages(const std::vector<Message>& messages) {
  // What is wrong is found before anything has been sent, or waits to be received.
  std::vector<Draft> drafts;
  for (const Message& m : messages) drafts.push_back(draft_message(m));
  std::vector<Work> works(messages.size());
  // Receives first: what comes finds its place.
  for (bool sends : {false, true})
    for (size_t i = 0; i < messages.size(); ++i)
      if (messages[i].sends == sends) works[i] = start_message(std::move(drafts[i]), messages[i]).watched();
  return works;
}

Group Group::split(int64_t colour, int64_t key) const {
  const Options numbers{.dtype = DType::i64, .device = Device()};  // whatever the current device is
  std::vector<Tensor> all;
  for (int k = 0; k < size(); ++k) all.push_back(zeros({2}, numbers));
  all_gather(all, tensor({colour, key}, numbers), {.group = *this});
  std::vector<std::pair<int64_t, int>> members;
  for (int k = 0; k < size(); ++k) {
    auto values = all[static_cast<size_t>(k)].to_vector<int64_t>();
    if (values[0] == colour) members.emplace_back(values[1], k);
  }
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  for (auto& [order, r] : members) ranks.push_back(r);
  return subgroup(ranks);
}

}  // namespace tutti
