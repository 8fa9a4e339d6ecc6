#include "io/png.h"

#include <zlib.h>

#include "base/check.h"
#include "io/zip.h"

namespace tutti::io {
namespace {

void put_big(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift);
}

void put_chunk(std::string& out, std::string_view type, std::string_view data) {
  put_big(out, static_cast<uint32_t>(data.size()));
  out += type;
  out += data;
  put_big(out, crc32_of(data, crc32_of(type)));
}

}  // namespace

std::string encode_png(std::string_view pixels, int64_t height, int64_t width, int channels) {
  std::string head;
  put_big(head, static_cast<uint32_t>(width));
  put_big(head, static_cast<uint32_t>(height));
  head += '\x08';                                    // bits a channel
  head += static_cast<char>(channels == 3 ? 2 : 0);  // colour or grey
  head.append(3, '\0');                              // deflate, filters by row, not interlaced

  auto row = static_cast<size_t>(width * channels);
  std::string rows;
  for (int64_t y = 0; y < height; ++y) {
    rows += '\0';  // no filter
    rows += pixels.substr(static_cast<size_t>(y) * row, row);
  }
  uLongf packed = ::compressBound(rows.size());
  std::string data(packed, '\0');
  int result = ::compress(reinterpret_cast<Bytef*>(data.data()), &packed, reinterpret_cast<const Bytef*>(rows.data()),
                          rows.size());
  TUTTI_ASSERT(result == Z_OK);
  std::string out("\x89PNG\r\n\x1a\n", 8);
  put_chunk(out, "IHDR", head);
  put_chunk(out, "IDAT", std::string_view(data).substr(0, packed));
  put_chunk(out, "IEND", {});
  return out;
}

}  // namespace tutti::io
