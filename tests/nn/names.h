// Names of a module's parts, in their order.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tutti::test {

template <class T>
std::vector<std::string> names(const std::vector<std::pair<std::string, T>>& list) {
  std::vector<std::string> result;
  for (const auto& entry : list) result.push_back(entry.first);
  return result;
}

}  // namespace tutti::test
