#include "base/named.h"

#include <type_traits>
#include <typeinfo>

#include "base/check.h"

namespace tutti {

std::string text_of(const Error& e) {
  std::string text = e.std::runtime_error::what();
  if (e.rank() >= 0 && text.starts_with("[rank ")) text.erase(0, text.find("] ") + 2);
  if (!e.operation().empty() && text.starts_with(e.operation() + ": ")) text.erase(0, e.operation().size() + 2);
  return text;
}

void throw_named(const char* operation, const Error& e) {
  if (e.operation() == operation) throw;
  // Just these: what is derived from them carries more than a text.
  auto is = [&]<class E>(std::type_identity<E>) {
    if (typeid(e) != typeid(E)) return;
    E named(fmt::format("{}: {}", operation, text_of(e)), operation);
    if (e.module_address()) named.set_module(e.module_address(), e.module());
    throw named;
  };
  is(std::type_identity<ShapeError>());
  is(std::type_identity<DTypeError>());
  is(std::type_identity<DeviceError>());
  is(std::type_identity<IndexError>());
  is(std::type_identity<ValueError>());
  is(std::type_identity<MemoryError>());
  is(std::type_identity<GradError>());
  throw;
}

}  // namespace tutti
