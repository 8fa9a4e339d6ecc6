#include "tutti/error.h"

#include <ostream>

#include "base/check.h"
#include "tutti/context.h"

namespace tutti {

Error::Error(const std::string& message, std::string operation)
    : std::runtime_error(context().rank < 0 ? message : fmt::format("[rank {}] {}", context().rank, message)),
      operation_(std::move(operation)),
      rank_(context().rank) {}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", ")); }
std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << to_string(shape); }
std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name(dtype); }
std::ostream& operator<<(std::ostream& out, Device device) { return out << device.str(); }

}  // namespace tutti
