#include "bench/support/copy.h"

#include <omp.h>

#include <cstring>

#include "tutti/ops.h"

namespace bench {

Contender copy_contender(int64_t bytes, int threads) {
  // Tensors as buffers, so that both sides have the same alignment and pages.
  tutti::Tensor from = tutti::empty({bytes}, {.dtype = tutti::u8}), to = tutti::empty({bytes}, {.dtype = tutti::u8});
  std::memset(from.raw_data(), 1, static_cast<size_t>(bytes));
  return contender("copy", [from, to, bytes, threads] {
    auto* target = static_cast<char*>(to.raw_data());
    auto* source = static_cast<const char*>(from.raw_data());
    if (threads == 1) {
      std::memcpy(target, source, static_cast<size_t>(bytes));
      return;
    }
#pragma omp parallel num_threads(threads)
    {
      int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
      int64_t begin = bytes * me / team / 64 * 64, end = me + 1 == team ? bytes : bytes * (me + 1) / team / 64 * 64;
      std::memcpy(target + begin, source + begin, static_cast<size_t>(end - begin));
    }
  });
}

}  // namespace bench
