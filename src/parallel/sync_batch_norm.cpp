#include "tutti/parallel/sync_batch_norm.h"

#include "base/check.h"
#include "tutti/comm/functional.h"
#include "tutti/ops.h"

namespace tutti::parallel {
namespace {

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
BatchStatistics gather_statistics(const Tensor& x, const Group& group) {
  BatchStatistics mine = local_statistics(x);
  int64_t channels = mine.mean.numel();
  Tensor count = full({1}, static_cast<double>(mine.count), {.dtype = mine.mean.dtype(), .device = x.device()});
  Tensor all =
      fn::all_gather_single(cat({mine.mean, mine.var, count}), {.group = group}).view({group.size(), 2 * channels + 1});
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

std::shared_ptr<const nn::StatisticsSource> source_of(const Group& group) {
  Group g = group.defined() ? group : world();
  return std::make_shared<nn::StatisticsSource>([g](const Tensor& x) { return gather_statistics(x, g); });
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
  statistics = source_of(group);
}

int64_t sync_batch_norms(nn::ModuleBase& module, const Group& group) {
  auto source = source_of(group);
  int64_t count = 0;
  for (auto& [name, m] : module.named_modules())
    count += set_source<nn::BatchNorm1d>(*m, source) || set_source<nn::BatchNorm2d>(*m, source) ||
             set_source<nn::BatchNorm3d>(*m, source);
  return count;
}

}  // namespace tutti::parallel
