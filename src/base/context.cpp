#include "tutti/context.h"

#include <utility>

namespace tutti {

Context& context() {
  static thread_local Context current;
  return current;
}

ContextGuard::ContextGuard(Context replacement) : saved_(std::exchange(context(), std::move(replacement))) {}
ContextGuard::~ContextGuard() { context() = std::move(saved_); }

}  // namespace tutti
