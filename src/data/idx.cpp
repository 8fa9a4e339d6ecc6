#include <algorithm>

#include "io/blob.h"
#include "io/zip.h"
#include "tutti/data/readers.h"
#include "tutti/io/file.h"
#include "tutti/ops.h"

namespace tutti::data {
namespace {

// The format: two zero bytes, one for the dtype, one for the number of dims; sizes; data. All numbers are big-endian.
constexpr std::pair<uint8_t, DType> kCodes[] = {{0x08, u8},  {0x09, i8},  {0x0b, i16},
                                                {0x0c, i32}, {0x0d, f32}, {0x0e, f64}};

void swap_bytes(char* data, uint64_t bytes, size_t width) {
  if (width > 1)
    for (uint64_t i = 0; i < bytes; i += width) std::reverse(data + i, data + i + width);
}

// Reads through read(pointer, count); `most` bounds the bytes that can be there.
template <class Read>
Tensor read_array(uint64_t most, const std::string& name, uint64_t& total, Read&& read) {
  unsigned char head[4];
  read(head, 4);
  const auto* code = std::find_if(std::begin(kCodes), std::end(kCodes), [&](auto& c) { return c.first == head[2]; });
  check<FileError>(head[0] == 0 && head[1] == 0 && code != std::end(kCodes), "idx", "{}: not an IDX file", name);
  check<FileError>(head[3] <= io::kMaxDims, "idx", "{}: {} dims; {} are the most", name, head[3], io::kMaxDims);
  Shape sizes;
  for (int dim = 0; dim < head[3]; ++dim) {
    unsigned char size[4];
    read(size, 4);
    sizes.push_back(int64_t{size[0]} << 24 | int64_t{size[1]} << 16 | int64_t{size[2]} << 8 | int64_t{size[3]});
  }
  uint64_t bytes = 0;
  check<FileError>(io::bytes_of(sizes, size_of(code->second), bytes) && bytes <= most, "idx",
                   "{}: {} of {} does not fit its {} bytes", name, sizes, code->second, most);
  Tensor t = empty(sizes, {.dtype = code->second, .device = Device()});
  if (bytes > 0) read(t.raw_data(), bytes);
  swap_bytes(static_cast<char*>(t.raw_data()), bytes, size_of(code->second));
  total = 4 + 4 * sizes.size() + bytes;
  return t;
}

}  // namespace

Tensor parse_idx(std::string_view bytes, const std::string& name) {
  uint64_t total = 0;
  if (bytes.starts_with("\x1f\x8b")) {
    io::Inflate inflate(bytes, name, io::Inflate::gzip);
    Tensor t =
        read_array(bytes.size() * 1032, name, total, [&](void* out, uint64_t count) { inflate.read(out, count); });
    inflate.finish();
    return t;
  }
  uint64_t at = 0;
  Tensor t = read_array(bytes.size(), name, total, [&](void* out, uint64_t count) {
    std::memcpy(out, io::part(bytes, at, count, "idx", name).data(), count);
    at += count;
  });
  check<FileError>(total == bytes.size(), "idx", "{}: {} bytes after the array", name, bytes.size() - total);
  return t;
}

Tensor read_idx(const std::string& path) { return parse_idx(io::Blob::map(path, "idx")->bytes(), path); }

void save_idx(const std::string& path, const Tensor& tensor) {
  Tensor dense = io::for_file(tensor, "idx", "the tensor").clone();
  const auto* code =
      std::find_if(std::begin(kCodes), std::end(kCodes), [&](auto& c) { return c.second == dense.dtype(); });
  check<DTypeError>(code != std::end(kCodes), "idx", "the format has no {}", dense.dtype());
  std::string head{'\0', '\0', static_cast<char>(code->first), static_cast<char>(dense.dim())};
  for (int64_t size : dense.sizes()) {
    check<ShapeError>(size <= UINT32_MAX, "idx", "the format has no sizes like those of {}", tensor);
    for (int shift = 24; shift >= 0; shift -= 8) head += static_cast<char>(size >> shift);
  }
  uint64_t bytes = static_cast<uint64_t>(dense.numel()) * dense.element_size();
  swap_bytes(static_cast<char*>(dense.raw_data()), bytes, dense.element_size());
  io::write_atomically(path, [&](io::Output& out) {
    out.write(head);
    if (bytes > 0) out.write(dense.raw_data(), bytes);
  });
}

}  // namespace tutti::data
