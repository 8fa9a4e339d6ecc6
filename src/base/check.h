// Checks and error texts. Text is put together only when a check fails.
#pragma once

#include <fmt/format.h>

#include "tutti/device.h"
#include "tutti/dtype.h"
#include "tutti/error.h"
#include "tutti/shape.h"

namespace tutti {
class Tensor;
std::string describe(const Tensor& x);
}  // namespace tutti

template <>
struct fmt::formatter<tutti::Shape> : fmt::formatter<std::string> {
  auto format(const tutti::Shape& shape, fmt::format_context& ctx) const {
    return fmt::formatter<std::string>::format(tutti::to_string(shape), ctx);
  }
};
template <>
struct fmt::formatter<tutti::DType> : fmt::formatter<std::string_view> {
  auto format(tutti::DType dtype, fmt::format_context& ctx) const {
    return fmt::formatter<std::string_view>::format(tutti::name(dtype), ctx);
  }
};
template <>
struct fmt::formatter<tutti::Device> : fmt::formatter<std::string> {
  auto format(tutti::Device device, fmt::format_context& ctx) const {
    return fmt::formatter<std::string>::format(device.str(), ctx);
  }
};
// A tensor in an error's text is its description: dtype, shape, device. Pass the tensor, not describe(tensor):
// arguments of a check are evaluated always, but formatted only when it fails.
template <>
struct fmt::formatter<tutti::Tensor> : fmt::formatter<std::string> {
  auto format(const tutti::Tensor& tensor, fmt::format_context& ctx) const {
    return fmt::formatter<std::string>::format(tutti::describe(tensor), ctx);
  }
};

namespace tutti {

/// fail<ShapeError>("matmul", "inner sizes {} and {} differ", k, l): throws "matmul: inner sizes 3 and 4 differ".
template <class E, class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void fail(const char* operation, fmt::format_string<Args...> text,
                                                 Args&&... args) {
  std::string message = fmt::format(text, std::forward<Args>(args)...);
  throw E(operation && *operation ? fmt::format("{}: {}", operation, message) : message, operation ? operation : "");
}

/// check<ShapeError>(k == l, "matmul", "...")
template <class E, class... Args>
void check(bool condition, const char* operation, fmt::format_string<Args...> text, Args&&... args) {
  if (!condition) [[unlikely]]
    fail<E>(operation, text, std::forward<Args>(args)...);
}

}  // namespace tutti

/// A broken invariant of the library; stays on in release builds.
#define TUTTI_ASSERT(condition)                                                                                 \
  do {                                                                                                          \
    if (!(condition)) [[unlikely]]                                                                              \
      ::tutti::fail<::tutti::InternalError>("", "{}:{}: broken invariant: {}", __FILE__, __LINE__, #condition); \
  } while (false)
