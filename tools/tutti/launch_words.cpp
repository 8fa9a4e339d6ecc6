#include "tools/tutti/launch_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace tutti::tool {
namespace {

constexpr int64_t kMostRanks = 1 << 16;

bool parse_whole(const std::string& text, int64_t& value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

int64_t parse_slots(const std::string& text, const std::string& part) {
  int64_t ranks = 0;
  if (!parse_whole(text, ranks) || ranks < 1 || ranks > kMostRanks)
    throw UsageError(fmt::format("--host: '{}' does not name a number of ranks", part));
  return ranks;
}

// "name", "name:4", and in brackets what has colons of its own (IPv6): "[::1]:4". Whether there is something behind it.
bool split_colon(const std::string& text, std::string& name, std::string& behind, const std::string& complaint) {
  size_t colon = std::string::npos;
  name = text;
  if (text.starts_with('[')) {
    size_t end = text.find(']');
    if (end == std::string::npos || (end + 1 < text.size() && text[end + 1] != ':')) throw UsageError(complaint);
    name = text.substr(1, end - 1);
    if (end + 1 < text.size()) colon = end + 1;
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    colon = text.find(':');
    name = text.substr(0, colon);
  }
  if (colon == std::string::npos) return false;
  behind = text.substr(colon + 1);
  return true;
}

// [user@]name
Host parse_host(const std::string& part) {
  size_t at = part.find('@') == std::string::npos ? 0 : part.find('@') + 1;
  std::string user = part.substr(0, at), name, count;
  int64_t ranks = 0;
  if (split_colon(part.substr(at), name, count, fmt::format("--host: '{}' should be like [::1] or [::1]:4", part)))
    ranks = parse_slots(count, part);
  if (name.empty()) throw UsageError(fmt::format("--host: '{}' is a host without a name", part));
  return {user + name, name, ranks};
}

void divide(std::vector<Host>& hosts, int64_t total) {
  bool all_named = std::all_of(hosts.begin(), hosts.end(), [](const Host& h) { return h.ranks > 0; });
  bool none_named = std::all_of(hosts.begin(), hosts.end(), [](const Host& h) { return h.ranks == 0; });
  auto n = static_cast<int64_t>(hosts.size());
  if (!all_named && !none_named)
    throw UsageError("-np divides ranks among hosts that all name their number of ranks (a:4,b:2), or none does (a,b)");
  if (none_named) {
    for (int64_t k = 0; k < n; ++k) hosts[static_cast<size_t>(k)].ranks = total / n + (k < total % n ? 1 : 0);
  } else {
    int64_t left = total;
    for (Host& h : hosts) left -= h.ranks = std::min(h.ranks, left);
    if (left > 0)
      throw UsageError(
          fmt::format("-np is {}, but the hosts have room for {}: -np counts the ranks of all hosts "
                      "together, and --host a:4 says how many one has",
                      total, total - left));
  }
  std::erase_if(hosts, [](const Host& h) { return h.ranks == 0; });
}

}  // namespace

Words common_spelling(const Words& words, const std::vector<std::string>& flags) {
  Words list;
  size_t i = 0;
  while (i < words.size() && words[i] != "--" && words[i].size() > 1 && words[i][0] == '-') {
    std::string word = words[i++];
    if (word == "-np") word = "--np";
    size_t end = std::min(word.find('='), word.size());
    if (word.starts_with("--")) std::replace(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
    bool is_flag = std::find(flags.begin(), flags.end(), word) != flags.end();
    bool has_value = word.starts_with("--") ? end < word.size() : word.size() > 2;
    list.push_back(word);
    if (!is_flag && !has_value && i < words.size()) list.push_back(words[i++]);
  }
  list.insert(list.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
  return list;
}

int64_t parse_rank_count(const std::string& option, const std::string& text) {
  int64_t value = 0;
  if (text == "auto" || text == "cpu") return 0;
  if (text == "gpu")
    throw UsageError(
        fmt::format("{} gpu: this build of Tutti computes on CPUs only; give a number, or cpu for one "
                    "rank for each core",
                    option));
  if (!parse_whole(text, value)) throw UsageError(fmt::format("{} takes a whole number, not '{}'", option, text));
  if (value < 1 || value > kMostRanks)
    throw UsageError(fmt::format("{} cannot be {}: it is from 1 to {}", option, value, kMostRanks));
  return value;
}

int64_t parse_node_count(const std::string& text) {
  int64_t value = 0;
  if (size_t colon = text.find(':'); colon != std::string::npos)
    throw UsageError(
        fmt::format("--nnodes {} asks for a world that grows and shrinks (elastic), which Tutti does not "
                    "have: give one number, such as --nnodes {}",
                    text, text.substr(colon + 1)));
  if (!parse_whole(text, value)) throw UsageError(fmt::format("--nnodes takes a whole number, not '{}'", text));
  if (value < 1 || value > kMostRanks)
    throw UsageError(fmt::format("--nnodes cannot be {}: it is from 1 to {}", value, kMostRanks));
  return value;
}

Endpoint parse_endpoint(const std::string& text, int64_t port) {
  std::string host, number;
  std::string complaint = fmt::format("--rdzv-endpoint is host:port, not '{}'", text);
  if (split_colon(text, host, number, complaint) && (!parse_whole(number, port) || port < 0 || port > 65535))
    throw UsageError(complaint);
  if (host.empty()) throw UsageError(complaint);
  return {host, port};
}

std::string exported_variable(const std::string& text) {
  if (text.empty() || text[0] == '=') throw UsageError(fmt::format("-x takes NAME or NAME=VALUE, not '{}'", text));
  if (text.find('=') != std::string::npos) return text;
  const char* value = std::getenv(text.c_str());
  if (!value)
    throw UsageError(fmt::format("-x {}: there is no such variable here; give its value: -x {}=...", text, text));
  return text + "=" + value;
}

std::vector<Host> parse_hosts(const std::string& text, int64_t ranks, int64_t total) {
  std::vector<Host> hosts;
  std::vector<std::string> parts = split(text, ',');
  bool repeated = false;  // as one writes for mpirun: a place for a rank each time
  for (const std::string& part : parts) {
    Host host = parse_host(part);
    auto known = std::find_if(hosts.begin(), hosts.end(), [&](const Host& h) { return h.name == host.name; });
    if (known == hosts.end()) {
      hosts.push_back(host);
      continue;
    }
    repeated = true;
    known->ranks = std::max<int64_t>(known->ranks, 1) + std::max<int64_t>(host.ranks, 1);
  }
  if (repeated)
    for (Host& h : hosts) h.ranks = std::max<int64_t>(h.ranks, 1);
  if (parts.size() != static_cast<size_t>(std::count(text.begin(), text.end(), ',')) + 1)
    throw UsageError(fmt::format("--host: a name is missing in '{}'", text));
  if (total)
    divide(hosts, total);
  else
    for (Host& h : hosts) h.ranks = h.ranks ? h.ranks : ranks;
  return hosts;
}

}  // namespace tutti::tool
