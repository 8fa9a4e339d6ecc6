// tutti trace: the flight records that ranks left in a folder, as one.
#include <fmt/format.h>

#include <iostream>

#include "tools/tutti/command.h"
#include "tutti/comm/record.h"

namespace tutti::tool {

int trace(const Words& words) {
  std::string output;
  Options options(
      "tutti trace [options] folder",
      "Puts the records that ranks left in a folder (TUTTI_TRACE=folder, tutti run --trace folder) together: "
      "prints who is slow\nand who failed, and writes a trace to open in https://ui.perfetto.dev.");
  options.text("-o, --output", "FILE", "where the trace goes (folder/trace.json)", output);
  Words rest = options.parse_all(words);
  if (rest.size() != 1) throw UsageError("name the one folder that has the records");
  Trace merged = Trace::load(rest[0]);
  if (output.empty()) output = rest[0] + "/trace.json";
  merged.save(output);
  std::cout << merged.summary() << fmt::format("the trace is in {}: open it in https://ui.perfetto.dev\n", output);
  return 0;
}

}  // namespace tutti::tool
