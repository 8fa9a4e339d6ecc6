// A curve as a picture (SVG): how the loss fell, for a README or a browser.
//
//   io::save_curve("loss.svg", losses, {.title = "Training loss", .y = "loss"});
#pragma once

#include <string>
#include <vector>

namespace tutti::io {

struct CurveOptions {
  std::string title = {}, subtitle = {};
  std::string x = "step", y = "value";  // names of the axes
  int smooth =
      0;  // the thick line is the average of so many steps around each; 0: a number that suits; 1: no such line
};

/// Draws values over their number, counted from 1, and their average over neighbors as a thick line. Values that are
/// not finite leave a gap and are marked. The result is one SVG of at most 60 KB, however many values there are.
std::string draw_curve(const std::vector<double>& values, const CurveOptions& options = {});

/// Writes that picture into a file. Throws FileError where it cannot.
void save_curve(const std::string& path, const std::vector<double>& values, const CurveOptions& options = {});

}  // namespace tutti::io
