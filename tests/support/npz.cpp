#include "tests/support/npz.h"

#include <cstring>
#include <fstream>
#include <iterator>

#include "base/check.h"
#include "tutti/ops.h"

namespace tutti::test {
namespace {

// A little-endian number of the bytes at `at`; throws where they end too early.
template <class T>
T number(std::string_view bytes, size_t at, const std::string& name) {
  check<ValueError>(at <= bytes.size() && bytes.size() - at >= sizeof(T), "npz", "{}: cut off at byte {} of {}", name,
                    at, bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::string_view part(std::string_view bytes, size_t at, size_t length, const std::string& name) {
  check<ValueError>(at <= bytes.size() && bytes.size() - at >= length, "npz", "{}: {} bytes at {} are beyond its end",
                    name, length, at);
  return bytes.substr(at, length);
}

// What follows 'key': in the header's dictionary.
std::string_view entry(std::string_view header, std::string_view key, const std::string& name) {
  std::string quoted = "'" + std::string(key) + "':";
  size_t at = header.find(quoted);
  check<ValueError>(at != std::string_view::npos, "npy", "{}: the header has no {}", name, key);
  std::string_view rest = header.substr(at + quoted.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest;
}

DType dtype_of_text(std::string_view text, const std::string& name) {
  constexpr std::pair<std::string_view, DType> known[] = {
      {"'<f4'", f32}, {"'<f8'", f64}, {"'<i8'", i64},     {"'<i4'", i32}, {"'<i2'", i16},
      {"'|i1'", i8},  {"'|u1'", u8},  {"'|b1'", boolean}, {"'<c8'", c64}, {"'<c16'", c128}};
  for (auto [spelling, dtype] : known)
    if (text.starts_with(spelling)) return dtype;
  fail<ValueError>("npy", "{}: dtype {} is not read here", name, text.substr(0, 8));
}

Shape sizes_of_text(std::string_view text, const std::string& name) {
  check<ValueError>(text.starts_with('(') && text.find(')') != std::string_view::npos, "npy", "{}: no shape", name);
  Shape sizes;
  int64_t value = -1, elements = 1;
  for (char c : text.substr(1)) {
    if (c >= '0' && c <= '9') {
      value = (value < 0 ? 0 : value) * 10 + (c - '0');
      check<ValueError>(value < (int64_t{1} << 40), "npy", "{}: a size is too large", name);
    } else if (c == ',' || c == ')') {
      if (value >= 0) sizes.push_back(value);
      if (value > 0) elements *= value;
      check<ValueError>(elements < (int64_t{1} << 40) && sizes.size() <= 64, "npy", "{}: the shape is too large", name);
      value = -1;
      if (c == ')') return sizes;
    } else {
      check<ValueError>(c == ' ', "npy", "{}: the shape has a '{}' in it", name, c);
    }
  }
  return sizes;
}

}  // namespace

Tensor read_npy(std::string_view bytes, const std::string& name) {
  check<ValueError>(part(bytes, 0, 6, name) == "\x93NUMPY", "npy", "{}: not a .npy file", name);
  bool old = number<uint8_t>(bytes, 6, name) == 1;
  size_t length = old ? number<uint16_t>(bytes, 8, name) : number<uint32_t>(bytes, 8, name);
  size_t start = old ? 10 : 12;
  std::string_view header = part(bytes, start, length, name);
  check<ValueError>(entry(header, "fortran_order", name).starts_with("False"), "npy",
                    "{}: column-major arrays are not read", name);
  DType dtype = dtype_of_text(entry(header, "descr", name), name);
  Shape sizes = sizes_of_text(entry(header, "shape", name), name);
  size_t size = static_cast<size_t>(sizes.product()) * size_of(dtype);
  std::string_view data = part(bytes, start + length, size, name);
  Tensor result = empty(sizes, {.dtype = dtype, .device = Device()});
  if (size > 0) std::memcpy(result.raw_data(), data.data(), size);
  return result;
}

Npz::Npz(const std::string& path) : name_(path) {
  std::ifstream file(path, std::ios::binary);
  check<ValueError>(file.good(), "npz", "{} cannot be opened", path);
  bytes_.assign(std::istreambuf_iterator<char>(file), {});
  find_members();
}

Npz::Npz(std::string bytes, std::string name) : name_(std::move(name)), bytes_(std::move(bytes)) { find_members(); }

// The central directory, at the end of the archive, says where members are; only it has their sizes for sure.
void Npz::find_members() {
  size_t end = bytes_.rfind("PK\x05\x06");
  check<ValueError>(end != std::string::npos, "npz", "{}: no end of a zip archive", name_);
  size_t count = number<uint16_t>(bytes_, end + 10, name_), at = number<uint32_t>(bytes_, end + 16, name_);
  for (size_t i = 0; i < count; ++i) {
    check<ValueError>(number<uint32_t>(bytes_, at, name_) == 0x02014b50, "npz", "{}: member {} is damaged", name_, i);
    auto method = number<uint16_t>(bytes_, at + 10, name_);
    size_t size = number<uint32_t>(bytes_, at + 24, name_), name_length = number<uint16_t>(bytes_, at + 28, name_);
    size_t extra = number<uint16_t>(bytes_, at + 30, name_), comment = number<uint16_t>(bytes_, at + 32, name_);
    size_t local = number<uint32_t>(bytes_, at + 42, name_);
    std::string key(part(bytes_, at + 46, name_length, name_));
    check<ValueError>(method == 0, "npz", "{}: {} is compressed; write it with numpy.savez", name_, key);
    check<ValueError>(number<uint32_t>(bytes_, local, name_) == 0x04034b50, "npz", "{}: {} is not where it should be",
                      name_, key);
    size_t start =
        local + 30 + number<uint16_t>(bytes_, local + 26, name_) + number<uint16_t>(bytes_, local + 28, name_);
    part(bytes_, start, size, name_);
    if (key.ends_with(".npy")) key.resize(key.size() - 4);
    members_[key] = {start, size};
    at += 46 + name_length + extra + comment;
  }
}

Tensor Npz::read(const std::string& key) const {
  auto found = members_.find(key);
  check<ValueError>(found != members_.end(), "npz", "{} has no {}", name_, key);
  return read_npy(std::string_view(bytes_).substr(found->second.offset, found->second.size), name_ + ":" + key);
}

std::vector<std::string> Npz::keys(const std::string& prefix) const {
  std::vector<std::string> found;
  for (auto it = members_.lower_bound(prefix); it != members_.end() && it->first.starts_with(prefix); ++it)
    found.push_back(it->first);
  return found;
}

}  // namespace tutti::test
