#include "base/names.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace tutti {

std::string demangle(const char* name) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

std::string short_name(const std::type_info& type) {
  std::string full = demangle(type.name()), result;
  size_t word = 0;  // where the current qualified name begins in result
  for (size_t i = 0; i < full.size(); ++i) {
    if (full.compare(i, 21, "(anonymous namespace)") == 0) {
      i += 20;
    } else if (full.compare(i, 2, "::") == 0) {
      result.resize(word);
      ++i;
    } else {
      result += full[i];
      if (!isalnum(static_cast<unsigned char>(full[i])) && full[i] != '_') word = result.size();
    }
  }
  return result;
}

}  // namespace tutti
