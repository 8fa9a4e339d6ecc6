// tutti trace: the flight records that ranks left in a folder, as one.
#include <fmt/format.h>

#include <iostream>

#include "tools/tutti/command.h"
#include "tutti/comm/record.h"

namespace tutti::tool {

int trace(const Words& words) {
  std::string records, output;
  Options options(
      "tutti trace",
      "Puts the records that ranks left in a folder (TUTTI_TRACE=folder, tutti run --trace folder) together: "
      "prints who is slow and who failed, and writes a trace to open in https://ui.perfetto.dev. Of folders "
      "epoch-<n> in it, which tutti run --max-restarts makes, the newest counts.");
  options.argument("FOLDER", "the one that has the records", records);
  options.text("-o, --output", "FILE", "where the trace goes (trace.json beside the records)", output);
  options.example("tutti run -n 4 --trace records ./train && tutti trace records", "which rank is slow?");
  options.parse_all(words);
  std::string folder = Trace::find(records);
  Trace merged = Trace::load(folder);
  if (output.empty()) output = folder + "/trace.json";
  merged.save(output);
  if (folder != records)
    std::cout << fmt::format("the newest records of {} are in {}: name another folder to see those of that\n", records,
                             folder);
  std::cout << merged.summary() << fmt::format("the trace is in {}: open it in https://ui.perfetto.dev\n", output);
  return 0;
}

}  // namespace tutti::tool
