#include "tutti/tree.h"

#include "base/check.h"

namespace tutti::tree {

std::string Key::text() const {
  if (key) return *key;
  if (!fields) return std::to_string(index);
  std::string_view rest = fields;
  for (int64_t i = 0; i < index; ++i) rest.remove_prefix(rest.find(',') + 1);
  rest = rest.substr(0, rest.find(','));
  rest.remove_prefix(std::min(rest.find_first_not_of(" \n\t"), rest.size()));
  // A private member's trailing underscore is no part of its name.
  if (rest.ends_with('_')) rest.remove_suffix(1);
  return std::string(rest);
}

void detail::wrong_count(size_t given, size_t wanted) {
  fail<ValueError>("assign_tensors", "{} tensors were given for a tree that holds {}", given, wanted);
}

}  // namespace tutti::tree
