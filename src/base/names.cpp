#include "base/names.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace tutti {

std::string demangle(const char* name) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

namespace {

// Where the function begins that the text ends with, "run(int) const"; the text's end if it ends with none. Types that
// are local to a function have it in their names.
size_t start_of_function(const std::string& text) {
  size_t end = text.ends_with(" const") ? text.size() - 6 : text.size();
  if (end == 0 || text[end - 1] != ')') return text.size();
  int depth = 0;
  do {
    --end;
    depth += text[end] == ')' ? 1 : text[end] == '(' ? -1 : 0;
  } while (depth > 0 && end > 0);
  while (end > 0 && (isalnum(static_cast<unsigned char>(text[end - 1])) || text[end - 1] == '_')) --end;
  return end;
}

}  // namespace

std::string short_name(const std::type_info& type) {
  static const std::string string = demangle(typeid(std::string).name());
  std::string full = demangle(type.name()), result;
  for (size_t at; (at = full.find(string)) != std::string::npos;) full.replace(at, string.size(), "string");
  size_t word = 0;  // where the current qualified name begins in result
  for (size_t i = 0; i < full.size(); ++i) {
    if (full.compare(i, 21, "(anonymous namespace)") == 0) {
      i += 20;
    } else if (full.compare(i, 2, "::") == 0) {
      result.resize(std::min(word, start_of_function(result)));
      word = result.size();
      ++i;
    } else {
      result += full[i];
      if (!isalnum(static_cast<unsigned char>(full[i])) && full[i] != '_') word = result.size();
    }
  }
  return result;
}

}  // namespace tutti
