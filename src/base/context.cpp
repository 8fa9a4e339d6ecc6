#include "tutti/context.h"

#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/launched.h"

namespace tutti {

namespace {
// One of several processes is a rank before it has met the others: samplers, random numbers and errors ask for no more.
Context first_context() {
  Context c;
  if (auto me = launched()) {
    c.rank = me->rank;
    c.world_size = me->size;
  }
  return c;
}

// A launcher reads the output of ranks through a pipe, for which the C library keeps lines back until a few KB have
// come together: they would come late, and the last ones of a rank that is killed, or calls _exit, never. So the stdout
// of a rank (into which std::cout writes too) is line-buffered, as on a terminal. A terminal of its own for each rank
// would cover programs without Tutti as well, but they would color and redraw what goes into a log. This runs before
// main(), which may choose otherwise; every program that uses the library links this object file.
[[gnu::constructor(101)]] void prepare_rank() {
  if (!launched()) return;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  tell_launcher(LauncherNote::uses_tutti);
}
}  // namespace

Context& context() {
  static thread_local Context current = first_context();
  return current;
}

ContextGuard::ContextGuard(Context replacement) : saved_(std::exchange(context(), std::move(replacement))) {}
ContextGuard::~ContextGuard() { context() = std::move(saved_); }

void set_default_dtype(DType dtype) {
  check<DTypeError>(is_floating(dtype), "set_default_dtype", "{} is not a floating-point dtype", dtype);
  context().default_dtype = dtype;
}
DefaultDTypeGuard::DefaultDTypeGuard(DType dtype) : saved_(context().default_dtype) { set_default_dtype(dtype); }

void set_num_threads(int threads) {
  check<ValueError>(threads >= 0, "set_num_threads",
                    "{} threads asked for; give 1 or more, or 0 for the device's share", threads);
  context().threads = threads;
}

}  // namespace tutti
