// The commands of `tutti`, and what they share. Their options: tools/flags/flags.h.
#pragma once

#include <string>
#include <vector>

#include "tools/flags/flags.h"

namespace tutti::tool {

using flags::bytes_text;
using flags::nearest;
using flags::Options;
using flags::UsageError;

/// The parts between separators; empty ones are left out.
std::vector<std::string> split(const std::string& text, char at);

using Words = std::vector<std::string>;
int run(const Words& words);
int bench(const Words& words);
int info(const Words& words);
int trace(const Words& words);
int graph(const Words& words);

}  // namespace tutti::tool
