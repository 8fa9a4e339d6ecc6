#include "tools/tutti/command.h"

namespace tutti::tool {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> list(1);
  for (char c : text)
    if (c != at)
      list.back() += c;
    else if (!list.back().empty())
      list.emplace_back();
  if (list.back().empty()) list.pop_back();
  return list;
}

}  // namespace tutti::tool
