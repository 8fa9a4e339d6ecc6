#include "tools/tutti/endings.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstring>

namespace tutti::tool {

std::string ranks_text(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (i > 0) text += ", ";
    text += fmt::to_string(ranks[i]);
    if (end - i > 1) text += fmt::format("{}{}", end - i == 2 ? ", " : "-", ranks[end - 1]);
    i = end;
  }
  return text;
}

std::vector<std::string> endings_table(const std::vector<RankEnding>& endings, int first) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  auto add = [&](const RankEnding& e) {
    auto found = std::find_if(groups.begin(), groups.end(), [&](auto& group) { return group.first == e.how; });
    if (found == groups.end()) found = groups.insert(groups.end(), {e.how, {}});
    found->second.push_back(e.rank);
  };
  for (const RankEnding& e : endings)
    if (e.rank == first) add(e);
  for (const RankEnding& e : endings)
    if (e.rank != first) add(e);
  size_t width = 0;
  for (auto& [how, ranks] : groups) width = std::max(width, ranks_text(ranks).size());
  std::vector<std::string> lines;
  for (auto& [how, ranks] : groups) lines.push_back(fmt::format("{:<{}}  {}", ranks_text(ranks), width, how));
  return lines;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? std::string("SIG") + name : fmt::format("signal {}", signal);
}

}  // namespace tutti::tool
