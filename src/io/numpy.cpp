#include "tutti/io/numpy.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "io/blob.h"
#include "io/names.h"
#include "io/zip.h"
#include "tutti/io/file.h"
#include "tutti/ops.h"

namespace tutti::io {
namespace {

// ---- The header: a Python dictionary such as {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }

struct Header {
  std::string descr;
  bool columns = false;  // column-major
  Shape sizes;
};

class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Header parse() {
    Header header;
    bool descr = false, order = false, shape = false;
    want('{');
    while (!take('}')) {
      std::string key = string();
      want(':');
      if (key == "descr" && !descr) {
        if (peek() == '[') wrong("arrays of records are not read");
        header.descr = string();
        descr = true;
      } else if (key == "fortran_order" && !order) {
        header.columns = truth();
        order = true;
      } else if (key == "shape" && !shape) {
        header.sizes = sizes();
        shape = true;
      } else {
        wrong("an unexpected key");
      }
      if (!take(',') && peek() != '}') wrong("',' or '}' is wanted");
    }
    space();
    if (at_ != text_.size()) wrong("more text after it");
    if (!descr || !order || !shape) wrong("descr, fortran_order or shape is missing");
    return header;
  }

 private:
  [[noreturn]] void wrong(const char* what) { fail<FileError>("npy", "{}: bad header: {}", name_, what); }
  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  char peek() {
    space();
    if (at_ == text_.size()) wrong("it ends too early");
    return text_[at_];
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void want(char c) {
    if (!take(c)) wrong("an unexpected character");
  }
  std::string string() {
    char quote = peek();
    if (quote != '\'' && quote != '"') wrong("a string is wanted");
    size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) wrong("a string does not end");
    std::string value(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return value;
  }
  bool truth() {
    space();
    for (auto [word, value] : {std::pair{std::string_view("True"), true}, {"False", false}})
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return value;
      }
    wrong("True or False is wanted");
  }
  Shape sizes() {
    Shape list;
    want('(');
    while (!take(')')) {
      int64_t size = 0;
      space();
      const char *begin = text_.data() + at_, *end = text_.data() + text_.size();
      auto [stop, error] = std::from_chars(begin, end, size);
      if (error != std::errc() || size < 0) wrong("a size is no number from 0 to 2^63");
      at_ += static_cast<size_t>(stop - begin);
      if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2 wrote such
      list.push_back(size);
      if (list.size() > kMaxDims) wrong("too many dims");
      if (!take(',') && peek() != ')') wrong("',' or ')' is wanted in the shape");
    }
    return list;
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
};

// ---- Element types

struct Element {
  std::string_view code;  // of descr, without the byte order
  DType stored;           // what the bytes are taken for
  DType result;           // larger for unsigned types, which tensors lack
};
constexpr Element kElements[] = {{"f4", f32, f32}, {"f8", f64, f64},         {"f2", f16, f16}, {"i1", i8, i8},
                                 {"u1", u8, u8},   {"i2", i16, i16},         {"i4", i32, i32}, {"i8", i64, i64},
                                 {"c8", c64, c64}, {"b1", boolean, boolean}, {"u2", i16, i32}, {"u4", i32, i64},
                                 {"u8", i64, i64}, {"c16", c128, c128}};

const Element& element_of(const std::string& descr, const std::string& name) {
  if (descr.size() >= 3 && std::string_view("<>|=").find(descr[0]) != std::string_view::npos)
    for (auto& element : kElements)
      if (element.code == std::string_view(descr).substr(1)) return element;
  fail<FileError>("npy", "{}: elements of '{}' are not read", name, descr);
}

void swap_bytes(char* data, uint64_t bytes, size_t width) {
  for (uint64_t i = 0; i < bytes; i += width) std::reverse(data + i, data + i + width);
}

template <class Unsigned, class Result>
Tensor widen(const Tensor& stored) {
  using Signed = std::make_signed_t<Unsigned>;
  Tensor result = empty(stored.sizes(), {.dtype = dtype_of<Result>, .device = Device()});
  auto *from = stored.data<Signed>(), *end = from + stored.numel();
  std::transform(from, end, result.data<Result>(), [](Signed s) { return Result{static_cast<Unsigned>(s)}; });
  return result;
}

// Makes of the bytes as they are stored what the tensor is to be.
Tensor finish(Tensor t, const Header& header, const Element& element, const std::string& name) {
  auto* data = static_cast<char*>(t.raw_data());
  uint64_t bytes = static_cast<uint64_t>(t.numel()) * t.element_size();
  size_t width = size_of(is_complex(element.stored) ? to_real(element.stored) : element.stored);
  if (header.descr[0] == '>') swap_bytes(data, bytes, width);
  if (element.stored == boolean)
    for (uint64_t i = 0; i < bytes; ++i) data[i] = data[i] != 0;
  if (element.code == "u2") t = widen<uint16_t, int32_t>(t);
  if (element.code == "u4") t = widen<uint32_t, int64_t>(t);
  if (element.code == "u8") {
    auto* values = t.data<int64_t>();
    check<FileError>(std::all_of(values, values + t.numel(), [](int64_t v) { return v >= 0; }), "npy",
                     "{}: uint64 values above 2^63 fit no dtype", name);
  }
  if (!header.columns || t.dim() < 2) return t;
  Shape reversed;
  for (int64_t dim = t.dim(); dim-- > 0;) reversed.push_back(dim);
  return t.permute(reversed).contiguous();
}

// Reads an array of `total` bytes through read(pointer, count).
template <class Read>
Tensor read_array(uint64_t total, const std::string& name, Read&& read) {
  char start[12];
  check<FileError>(total >= sizeof start, "npy", "{}: {} bytes are too few for a .npy file", name, total);
  read(start, sizeof start);
  std::string_view view(start, sizeof start);
  check<FileError>(view.starts_with("\x93NUMPY"), "npy", "{}: not a .npy file", name);
  check<FileError>(start[6] >= 1 && start[6] <= 3, "npy", "{}: version {} of the format is not known", name,
                   int{start[6]});
  bool old = start[6] == 1;  // two bytes for the header's length, then four
  uint64_t length = old ? number<uint16_t>(view, 8, "npy", name) : number<uint32_t>(view, 8, "npy", name);
  uint64_t prefix = old ? 10 : 12;
  check<FileError>(length >= 2 && prefix + length <= total && length <= 1 << 20, "npy",
                   "{}: a header of {} bytes cannot be", name, length);
  std::string text(length, ' ');
  size_t already = sizeof start - prefix;
  std::memcpy(text.data(), start + prefix, already);
  read(text.data() + already, length - already);
  Header header = HeaderParser(text, name).parse();
  const Element& element = element_of(header.descr, name);
  uint64_t bytes = 0;
  check<FileError>(bytes_of(header.sizes, size_of(element.result), bytes), "npy", "{}: the shape {} is too large", name,
                   header.sizes);
  check<FileError>(bytes_of(header.sizes, size_of(element.stored), bytes) && total - prefix - length == bytes, "npy",
                   "{}: {} of '{}' takes {} bytes, and {} are there", name, header.sizes, header.descr, bytes,
                   total - prefix - length);
  Shape sizes = header.sizes;
  if (header.columns) std::reverse(sizes.begin(), sizes.end());
  Tensor t = empty(sizes, {.dtype = element.stored, .device = Device()});
  if (bytes > 0) read(t.raw_data(), bytes);
  return finish(std::move(t), header, element, name);
}

std::string header_of(const Tensor& tensor, const std::string& name) {
  const auto* element = std::find_if(std::begin(kElements), std::end(kElements),
                                     [&](auto& e) { return e.result == tensor.dtype() && e.stored == e.result; });
  check<DTypeError>(element != std::end(kElements), "npy", "{} is {}: numpy has no such dtype; cast it to f32", name,
                    tensor);
  std::string shape;
  for (int64_t size : tensor.sizes()) shape += fmt::format("{}, ", size);
  if (tensor.dim() > 1) shape.resize(shape.size() - 2);
  if (tensor.dim() == 1) shape.pop_back();
  std::string text = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}), }}",
                                 tensor.element_size() == 1 ? '|' : '<', element->code, shape);
  text.append(63 - (10 + text.size()) % 64, ' ');  // the data begins at a multiple of 64
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  put<uint16_t>(header, static_cast<uint16_t>(text.size()));
  return header + text;
}

std::string_view data_of(const Tensor& dense) {
  if (dense.numel() == 0) return {};
  return {static_cast<const char*>(dense.raw_data()), static_cast<size_t>(dense.numel()) * dense.element_size()};
}

}  // namespace

Tensor parse_npy(std::string_view bytes, const std::string& name) {
  uint64_t at = 0;
  return read_array(bytes.size(), name, [&](void* out, uint64_t count) {
    std::memcpy(out, part(bytes, at, count, "npy", name).data(), count);
    at += count;
  });
}

void save_npy(const std::string& path, const Tensor& tensor) {
  Tensor dense = for_file(tensor, "npy", "the tensor");
  std::string header = header_of(dense, "the tensor");
  write_atomically(path, [&](Output& out) {
    out.write(header);
    out.write(data_of(dense));
  });
}

Tensor load_npy(const std::string& path) { return parse_npy(Blob::map(path, "npy")->bytes(), path); }

void save_npz(const std::string& path, const Tensors& tensors) {
  write_atomically(path, [&](Output& out) {
    ZipWriter zip(out);
    for (auto& [name, tensor] : tensors) {
      check<ValueError>(!name.empty() && name.size() < 0xff00, "npz", "'{}' cannot be an array's name", name);
      Tensor dense = for_file(tensor, "npz", name);
      zip.add(name + ".npy", header_of(dense, name), data_of(dense));
    }
    zip.finish();
  });
}

Tensors load_npz(const std::string& path) {
  Npz file(path);
  Tensors tensors;
  for (auto& key : file.keys()) tensors[key] = file.read(key);
  return tensors;
}

Npz::Npz(const std::string& path) : blob_(Blob::map(path, "npz")) { find_members(); }
Npz::Npz(std::string bytes, std::string name) : blob_(Blob::own(std::move(bytes), std::move(name))) { find_members(); }

void Npz::find_members() {
  for (auto& member : read_zip(blob_->bytes(), blob_->name())) {
    if (!member.name.ends_with(".npy")) continue;
    std::string key = member.name.substr(0, member.name.size() - 4);
    bool fresh =
        members_.try_emplace(key, Member{member.offset, member.stored, member.size, member.checksum, member.packed})
            .second;
    check<FileError>(fresh, "npz", "{} has {} twice", blob_->name(), key);
  }
}

std::vector<std::string> Npz::keys(const std::string& prefix) const {
  std::vector<std::string> found;
  for (auto it = members_.lower_bound(prefix); it != members_.end() && it->first.starts_with(prefix); ++it)
    found.push_back(it->first);
  return found;
}

Tensor Npz::read(const std::string& key) const {
  auto found = members_.find(key);
  check<FileError>(found != members_.end(), "npz", "{} has no {}; it has {}", blob_->name(), key, names_of(members_));
  const Member& member = found->second;
  std::string where = blob_->name() + ": " + key;
  std::string_view data = blob_->bytes().substr(member.offset, member.stored);
  uint32_t checksum = 0;
  Tensor result;
  if (member.packed) {
    // Deflate packs 1032 bytes into one at best: a larger size is a lie that must not be allocated.
    check<FileError>(member.size / 1032 <= member.stored, "npz", "{}: {} bytes cannot unpack to {}", where,
                     member.stored, member.size);
    Inflate inflate(data, where);
    result = read_array(member.size, where, [&](void* out, uint64_t count) {
      inflate.read(out, count);
      checksum = crc32_of({static_cast<char*>(out), count}, checksum);
    });
    inflate.finish();
  } else {
    checksum = crc32_of(data);
    result = parse_npy(data, where);
  }
  check<FileError>(checksum == member.checksum, "npz", "{}: its checksum says that it is damaged", where);
  return result;
}

}  // namespace tutti::io
