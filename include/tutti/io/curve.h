// Line charts as SVG files, such as a loss curve, for a README or a browser.
//
//   io::save_curve("loss.svg", losses, {.title = "Training loss", .y = "loss"});
#pragma once

#include <string>
#include <vector>

namespace tutti::io {

/// Options of draw_curve() and save_curve().
struct CurveOptions {
  std::string title = {}, subtitle = {};
  std::string x = "step", y = "value";  // labels of the axes
  int smooth = 0;                       // steps in the moving average; 0: chosen by the number of values; 1: no average
};

/// Returns an SVG of at most 60 KB. It shows the values over their index, counted from 1, and their moving average as
/// a thick line. Values that are not finite leave a gap and get a mark.
std::string draw_curve(const std::vector<double>& values, const CurveOptions& options = {});

/// Writes the SVG of draw_curve() to a file. Throws FileError if the file cannot be written.
void save_curve(const std::string& path, const std::vector<double>& values, const CurveOptions& options = {});

}  // namespace tutti::io
