// How each of several ranks ended, in few words.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tutti::tool {

/// "rank 3", "ranks 0, 2-7".
std::string ranks_text(std::vector<int> ranks);

struct RankEnding {
  int rank;
  std::string how;  // "exit code 3"
};
/// A line for each way of ending, with the ranks that ended so; that of `first` is the first.
std::vector<std::string> endings_table(const std::vector<RankEnding>& endings, int first);

/// "SIGTERM"
std::string signal_name(int signal);

}  // namespace tutti::tool
