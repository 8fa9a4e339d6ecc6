// Names of C++ types, for people.
#pragma once

#include <string>
#include <typeinfo>

namespace tutti {

/// "std::vector<int>" of a mangled name; the name itself where it is none.
std::string demangle(const char* name);
/// The type's name without namespaces: "Linear", "vector<Tensor>".
std::string short_name(const std::type_info& type);

}  // namespace tutti
