#include "parallel/sync_batch_norm.h"

#include "base/check.h"
#include "comm/group/call.h"
#include "parallel/join.h"
#include "tutti/autograd.h"
#include "tutti/comm/collectives.h"
#include "tutti/ops.h"

namespace tutti::parallel {
namespace {

constexpr const char* kStatisticsPurpose =
    "*SyncBatchNorm: the statistics of all ranks' batches, or their gradients "
    "(inside of join() the batch norms belong among its parts)";

// The collectives of batch norms, and how ranks that have joined take part in them.
struct Exchange {
  Group group;
  std::shared_ptr<JoinPart> part = std::make_shared<JoinPart>();
  WeightSource weight;  // see Note [Weights of losses that depend on each other]
  uint64_t weighs = 0;  // whose it is

  explicit Exchange(const Group& g) : group(g.defined() ? g : world()) {
    part->shadow = [group = group](int64_t mode) { shadow(group, mode); };
  }
  // What the others need to know of a call: which it is, of what dtype, and how many numbers a rank has in it.
  static int64_t describe(bool gathers, const Tensor& mine) {
    return mine.numel() << 9 | static_cast<int64_t>(mine.dtype()) << 1 | gathers;
  }
  void announce(bool gathers, const Tensor& mine) const {
    JoinSession* session = part->session;
    if (!session || session->joined) return;
    check<ValueError>(session->group().ranks() == group.ranks(), "join",
                      "the group of join() has {}, that of the batch norms {}", to_string(session->group()),
                      to_string(group));
    session->announce(part->index, describe(gathers, mine));
  }
  static void shadow(const Group& group, int64_t mode) {
    NoGrad guard;
    comm::PurposeGuard purpose(kStatisticsPurpose);
    Tensor mine = zeros({mode >> 9}, {.dtype = static_cast<DType>(mode >> 1 & 0xff)});
    Tensor all = zeros({group.size() * mine.numel()}, {.dtype = mine.dtype()});
    if (mode & 1)
      all_gather(all, mine, {.group = group});
    else
      reduce_scatter(mine, all, {.group = group});
  }
};
using ExchangePtr = std::shared_ptr<Exchange>;

// A gradient on its way to other ranks.
template <class F>
Tensor weighed(const Tensor& gradient, const ExchangePtr& exchange, bool empty) {
  std::optional<double> weight = exchange->weight ? exchange->weight() : std::nullopt;
  if (!weight) return F::apply(gradient, exchange);
  check<ValueError>(*weight > 0 || empty, "SyncBatchNorm",
                    "this rank's batch is not empty, but set_samples(0) says that it counts for nothing");
  return F::apply(gradient * *weight, exchange) * (*weight > 0 ? 1 / *weight : 0);
}

// All ranks' numbers behind each other; and the way back, which sums. Each is the other's gradient, and says that it
// comes, as functional collectives would not.
struct Gather : Function<Gather> {
  ExchangePtr exchange;
  bool empty = false;
  Tensor forward(const Tensor& x, const ExchangePtr& e);
  TensorList backward(const TensorList& gradients);
};
struct Scatter : Function<Scatter> {
  ExchangePtr exchange;
  Tensor forward(const Tensor& x, const ExchangePtr& e);
  TensorList backward(const TensorList& gradients);
};
Tensor Gather::forward(const Tensor& x, const ExchangePtr& e) {
  exchange = e;
  empty = x[-1].item<double>() == 0;  // the number of values stands last
  e->announce(true, x);
  Tensor all = zeros({e->group.size() * x.numel()}, {.dtype = x.dtype(), .device = x.device()});
  comm::PurposeGuard purpose(kStatisticsPurpose);
  all_gather(all, x, {.group = e->group});
  return all;
}
TensorList Gather::backward(const TensorList& gradients) { return {weighed<Scatter>(gradients[0], exchange, empty)}; }
Tensor Scatter::forward(const Tensor& x, const ExchangePtr& e) {
  exchange = e;
  Tensor mine = zeros({x.numel() / e->group.size()}, {.dtype = x.dtype(), .device = x.device()});
  e->announce(false, mine);
  comm::PurposeGuard purpose(kStatisticsPurpose);
  reduce_scatter(mine, x.contiguous(), {.group = e->group});
  return mine;
}
TensorList Scatter::backward(const TensorList& gradients) { return {weighed<Gather>(gradients[0], exchange, true)}; }

// Of an empty batch: zeros, which weigh nothing, but from which gradients find their way back to x.
BatchStatistics local_statistics(const Tensor& x) {
  if (x.numel() > 0) return batch_norm_statistics(x);
  Shape dims;
  for (int64_t d = 0; d < x.dim(); ++d)
    if (d != 1) dims.push_back(d);
  Tensor zeros = x.to(x.dtype() == DType::f64 ? DType::f64 : DType::f32).sum(dims);
  return {zeros, zeros, 0};
}

// Mean, variance and count of each rank travel together; every rank combines them alike, so that all get the same bits:
// the mean of all is the weighted mean of means, and the variance that of variances and of the means' distances.
BatchStatistics gather_statistics(const Tensor& x, const ExchangePtr& exchange) {
  BatchStatistics mine = local_statistics(x);
  int64_t channels = mine.mean.numel();
  Tensor count = full({1}, static_cast<double>(mine.count), {.dtype = mine.mean.dtype(), .device = x.device()});
  Tensor all = Gather::apply(cat({mine.mean, mine.var, count}), exchange).view({-1, 2 * channels + 1});
  Tensor counts = all.narrow(1, 2 * channels, 1).detach();
  auto total = static_cast<int64_t>(counts.to(DType::f64).sum().item<double>());
  check<ValueError>(total > 1, "SyncBatchNorm", "all ranks' batches together have {} values a channel: no variance",
                    total);
  Tensor weights = counts / static_cast<double>(total);
  Tensor means = all.narrow(1, 0, channels), vars = all.narrow(1, channels, channels);
  Tensor mean = (means * weights).sum({0});
  Tensor away = means - mean;
  return {mean, ((vars + away * away) * weights).sum({0}), total};
}

struct Source {
  ExchangePtr exchange;
  BatchStatistics operator()(const Tensor& x) const { return gather_statistics(x, exchange); }
};
std::shared_ptr<const nn::StatisticsSource> make_source(const Group& group) {
  return std::make_shared<nn::StatisticsSource>(Source{std::make_shared<Exchange>(group)});
}
Joinable joinable_of(const nn::StatisticsSource& source) {
  const auto* own = source.target<Source>();
  check<ValueError>(own != nullptr, "join", "the statistics of this batch norm have been replaced");
  return Joinable(own->exchange->part);
}

template <class Layer>
void set_weight(nn::ModuleBase& module, uint64_t number, const WeightSource& weight) {
  auto* layer = dynamic_cast<Layer*>(&module);
  const auto* source = layer && layer->statistics ? layer->statistics->template target<Source>() : nullptr;
  if (!source || source->exchange->weighs == number) return;
  source->exchange->weight = weight;
  source->exchange->weighs = number;
}

template <class Layer>
bool set_source(nn::ModuleBase& module, const std::shared_ptr<const nn::StatisticsSource>& source) {
  auto* layer = dynamic_cast<Layer*>(&module);
  if (layer) layer->statistics = source;
  return layer;
}

}  // namespace

SyncBatchNorm::SyncBatchNorm(int64_t channels, const nn::BatchNormOptions& options, const Group& group)
    : BatchNormLayer(channels, options) {
  statistics = make_source(group);
}
SyncBatchNorm::operator Joinable() const { return joinable_of(*statistics); }

void weigh_statistics(nn::ModuleBase& module, uint64_t number, const WeightSource& weight) {
  for (auto& [name, m] : module.named_modules()) {
    set_weight<SyncBatchNorm>(*m, number, weight);
    set_weight<nn::BatchNorm1d>(*m, number, weight);
    set_weight<nn::BatchNorm2d>(*m, number, weight);
    set_weight<nn::BatchNorm3d>(*m, number, weight);
  }
}

SyncedBatchNorms sync_batch_norms(nn::ModuleBase& module, const Group& group) {
  auto source = make_source(group);
  int64_t count = 0;
  for (auto& [name, m] : module.named_modules())
    count += set_source<nn::BatchNorm1d>(*m, source) || set_source<nn::BatchNorm2d>(*m, source) ||
             set_source<nn::BatchNorm3d>(*m, source);
  return {count, joinable_of(*source)};
}

}  // namespace tutti::parallel
