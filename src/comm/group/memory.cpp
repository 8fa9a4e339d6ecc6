#include "comm/group/check_call.h"
#include "comm/transport/transport.h"
#include "tutti/comm/collectives.h"
#include "tutti/ops.h"

namespace tutti {

Tensor group_empty(const Shape& sizes, const GroupMemoryOptions& o) {
  // Whatever the current device is.
  const Options options{.dtype = o.dtype, .device = Device()}, numbers{.dtype = DType::i64, .device = Device()};
  Tensor wanted = empty(sizes, {.dtype = o.dtype, .device = Device("meta")});  // checks the sizes
  comm::PurposeGuard purpose("group_empty");
  Group group = o.group.defined() ? o.group : world();
  int me = group.rank(), n = group.size();
  int64_t bytes = wanted.numel() * static_cast<int64_t>(size_of(o.dtype));
  Tensor all = empty({n}, numbers);
  all_gather(all, full({1}, bytes, numbers), {.group = group, .timeout = o.timeout, .place = o.place});
  for (int r = 0; r < n; ++r)
    comm::check_at<MismatchError>(o.place, all[r].item<int64_t>() == bytes, "group_empty",
                                  "all ranks must ask for as much memory: rank {} asks for {} bytes, rank {} for {}",
                                  group.ranks()[static_cast<size_t>(me)], bytes, group.ranks()[static_cast<size_t>(r)],
                                  all[r].item<int64_t>());
  if (bytes == 0 || n == 1) return empty(sizes, options);
  auto& transport = *group.handle()->group;
  auto memory = transport.memory(me, static_cast<size_t>(bytes));
  Tensor got = full({1}, memory ? 1 : 0, numbers);
  all_reduce(got, {.op = Reduce::min, .group = group, .timeout = o.timeout, .place = o.place});
  transport.memory_found();
  if (got.item<int64_t>() == 0) return empty(sizes, options);
  void* data = memory.get();
  return from_blob(data, sizes, options, [memory = std::move(memory)]() mutable { memory.reset(); });
}

}  // namespace tutti
