// tutti trace: the flight records that ranks left in a folder, as one.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <iostream>

#include "tools/tutti/command.h"
#include "tutti/comm/record.h"

namespace tutti::tool {

int trace(const Words& words) {
  std::string records, output, picture;
  double last = 0;
  Options options(
      "tutti trace",
      "Puts the records that ranks left in a folder (TUTTI_TRACE=folder, tutti run --trace folder) together: "
      "prints who is slow and who failed, and writes a trace to open in https://ui.perfetto.dev. Of folders "
      "epoch-<n> in it, which tutti run --max-restarts makes, the newest counts.");
  options.argument("FOLDER", "folder of the records", records);
  options.text("-o, --output", "FILE", "trace file (default trace.json in that folder)", output);
  options.text("-p, --picture", "FILE", "draws a picture of the trace as well, as SVG: when each rank ran and waited",
               picture);
  options.real("--last", "MS", "draws only so many milliseconds of the end; 0 is all", last);
  options.example("tutti run -n 4 --trace records ./train && tutti trace records", "which rank is slow?");
  options.parse_all(words);
  if (!picture.empty() && !picture.ends_with(".svg"))
    throw UsageError(fmt::format("--picture takes a file that ends in .svg, not '{}'", picture));
  if (!(last >= 0 && last <= 1e12)) throw UsageError("--last takes milliseconds");
  std::string folder = Trace::find(records);
  Trace merged = Trace::load(folder);
  if (output.empty()) output = folder + "/trace.json";
  merged.save(output);
  if (!picture.empty()) merged.save(picture, {.last = std::chrono::nanoseconds(std::llround(1e6 * last))});
  if (folder != records)
    std::cout << fmt::format("the newest records of {} are in {}: name another folder to see those of that\n", records,
                             folder);
  std::cout << merged.summary() << fmt::format("the trace is in {}: open it in https://ui.perfetto.dev\n", output);
  if (!picture.empty()) std::cout << fmt::format("the picture is in {}\n", picture);
  return 0;
}

}  // namespace tutti::tool
