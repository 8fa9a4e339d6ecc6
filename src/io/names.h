// What a file has, for errors about what it has not.
#pragma once

#include <string>

namespace tutti::io {

/// "a, b and 7 more": by default of a map's keys.
template <class Range, class Name>
std::string names_of(const Range& range, Name&& name) {
  constexpr size_t kShown = 10;
  std::string text;
  size_t shown = 0;
  for (const auto& entry : range) {
    if (shown == kShown) break;
    if (shown++) text += ", ";
    text += name(entry);
  }
  if (range.size() > shown) text += " and " + std::to_string(range.size() - shown) + " more";
  return text.empty() ? "nothing" : text;
}
template <class Map>
std::string names_of(const Map& map) {
  return names_of(map, [](const auto& entry) { return entry.first; });
}

}  // namespace tutti::io
