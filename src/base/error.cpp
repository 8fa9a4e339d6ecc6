#include "tutti/error.h"

#include <ostream>
#include <utility>

#include "base/check.h"
#include "tutti/context.h"

namespace tutti {

Error::Error(const std::string& message, std::string operation)
    : std::runtime_error(context().rank < 0 ? message : fmt::format("[rank {}] {}", context().rank, message)),
      operation_(std::move(operation)),
      rank_(context().rank) {}

struct Error::Place {
  const void* module;
  std::string path, what;
  const Place* before;
};

Error::Error(const Error& other) : std::runtime_error(other), operation_(other.operation_), rank_(other.rank_) {
  if (const Place* place = other.place_.load(std::memory_order_acquire))
    place_ = new Place{place->module, place->path, place->what, nullptr};
}
Error& Error::operator=(const Error& other) {
  Error copy(other);
  std::runtime_error::operator=(copy);
  operation_.swap(copy.operation_);
  rank_ = copy.rank_;
  copy.place_ = place_.exchange(copy.place_);
  return *this;
}
Error::~Error() {
  for (const Place* place = place_; place;) delete std::exchange(place, place->before);
}

const char* Error::what() const noexcept {
  const Place* place = place_.load(std::memory_order_acquire);
  return place ? place->what.c_str() : std::runtime_error::what();
}
std::string Error::module() const {
  const Place* place = place_.load(std::memory_order_acquire);
  return place ? place->path : std::string();
}
const void* Error::module_address() const {
  const Place* place = place_.load(std::memory_order_acquire);
  return place ? place->module : nullptr;
}
void Error::set_module(const void* module, const std::string& path) {
  auto* place = new Place{module, path, fmt::format("{}\n  in {}", std::runtime_error::what(), path), place_};
  while (!place_.compare_exchange_weak(place->before, place)) {
  }
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", ")); }
std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << to_string(shape); }
std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name(dtype); }
std::ostream& operator<<(std::ostream& out, Device device) { return out << device.str(); }

}  // namespace tutti
