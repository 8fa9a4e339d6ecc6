// PNG images, for event files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::io {

/// `pixels` are rows of `width`·`channels` bytes; channels 1 (grey) or 3 (red, green, blue).
std::string encode_png(std::string_view pixels, int64_t height, int64_t width, int channels);

}  // namespace tutti::io
