#include "comm/transport/fast_network.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <vector>

namespace tutti::comm {
namespace {

/// UCX's lists: names with commas between them, and ^ before them where all others are meant.
struct Names {
  explicit Names(std::string_view text) : others(text.starts_with('^')) {
    if (others) text.remove_prefix(1);
    while (!text.empty()) {
      size_t end = std::min(text.find(','), text.size());
      names.emplace_back(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }
  bool has(std::string_view name) const { return std::find(names.begin(), names.end(), name) != names.end(); }
  std::vector<std::string> names;
  bool others;
};

bool allows_fast(const Names& transports) {
  constexpr std::array kinds = {"rc", "dc", "ud"};
  if (transports.others)
    return !transports.has("ib") &&
           !std::all_of(kinds.begin(), kinds.end(), [&](const char* kind) { return transports.has(kind); });
  if (transports.names.empty() || transports.has("all") || transports.has("ib")) return true;
  return std::any_of(transports.names.begin(), transports.names.end(), [&](const std::string& name) {
    return std::any_of(kinds.begin(), kinds.end(),
                       [&](const char* kind) { return name == kind || name.starts_with(std::string(kind) + "_"); });
  });
}

/// Of a device by its port: "mlx5_0:1".
bool allows(const Names& devices, const std::string& card, const std::string& port) {
  bool named = devices.has(card + ":" + port) || devices.has(card);
  return devices.others ? !named : named || devices.names.empty() || devices.has("all");
}

}  // namespace

bool has_fast_network(std::string_view transports, std::string_view devices, const std::filesystem::path& cards) {
  namespace fs = std::filesystem;
  if (!allows_fast(Names(transports))) return false;
  Names wanted(devices);
  std::error_code none;
  for (const auto& card : fs::directory_iterator(cards, none))
    for (const auto& port : fs::directory_iterator(card.path() / "ports", none)) {
      std::string state;  // "4: ACTIVE"
      std::getline(std::ifstream(port.path() / "state"), state);
      if (state.ends_with("ACTIVE") && allows(wanted, card.path().filename(), port.path().filename())) return true;
    }
  return false;
}

}  // namespace tutti::comm
