// Errors that nobody catches.
#include <cstdlib>
#include <exception>

#include "comm/launch/errors.h"
#include "comm/launch/launch.h"

namespace tutti::comm {
namespace {

std::weak_ptr<RankGroup>& world_to_tell() {
  static std::weak_ptr<RankGroup> world;
  return world;
}
std::terminate_handler before = nullptr;

[[noreturn]] void tell() {
  auto error = std::current_exception();
  auto world = world_to_tell().lock();
  world_to_tell().reset();  // once: telling may fail too
  if (error && world) {
    world->group->fail(world->rank, class_of(error), text_of(error));
    world->state->leave(error);
  }
  if (before) before();
  std::abort();
}

}  // namespace

void tell_at_terminate(const std::shared_ptr<RankGroup>& world) {
  static const bool once = [&] {
    world_to_tell() = world;
    before = std::set_terminate(tell);
    return true;
  }();
  (void)once;
}

}  // namespace tutti::comm
