// TensorBoard's event files: what a training run looks like, drawn by `tensorboard --logdir DIR`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tutti/tensor.h"

namespace tutti::io {

struct EventOptions {
  std::function<double()> clock = {};  // seconds since 1970, asked for each event; the system's unless given
};

/// Appends to a new file in `directory` (made if it is not there). Safe to use from several threads; what was added is
/// in the file after flush(), at the latest when the writer goes.
class EventWriter {
 public:
  explicit EventWriter(const std::string& directory, EventOptions options = {});
  ~EventWriter();
  EventWriter(EventWriter&&) noexcept;
  EventWriter& operator=(EventWriter&&) noexcept;

  void add_scalar(std::string_view tag, double value, int64_t step);
  /// Shown as Markdown.
  void add_text(std::string_view tag, std::string_view text, int64_t step);
  /// The distribution of a tensor's values; values that are not finite are left out.
  void add_histogram(std::string_view tag, const Tensor& values, int64_t step, int bins = 64);
  /// [height, width] or [1 or 3, height, width]; u8 as it is, floating from 0 to 1.
  void add_image(std::string_view tag, const Tensor& image, int64_t step);
  void flush();
  const std::string& path() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::io
