// The format: u64 length of the header, the header (JSON, padded with spaces so that the data begins at a multiple of
// 8), the data. The header maps names to {dtype, shape, data_offsets: [begin, end) in the data}; "__metadata__" to
// text.
#include "tutti/io/safetensors.h"

#include <algorithm>

#include "io/blob.h"
#include "io/json.h"
#include "io/names.h"
#include "tutti/io/file.h"
#include "tutti/ops.h"

namespace tutti::io {
namespace {

constexpr const char* kSafetensorsOperation = "safetensors";
constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit

struct Known {
  std::string_view name;
  size_t bits;
  std::optional<DType> dtype;
};
constexpr Known kKnown[] = {{"F32", 32, f32},   {"F64", 64, f64},     {"BF16", 16, bf16}, {"F16", 16, f16},
                            {"I8", 8, i8},      {"U8", 8, u8},        {"I16", 16, i16},   {"I32", 32, i32},
                            {"I64", 64, i64},   {"BOOL", 8, boolean}, {"C64", 64, c64},   {"U16", 16, {}},
                            {"U32", 32, {}},    {"U64", 64, {}},      {"F8_E4M3", 8, {}}, {"F8_E5M2", 8, {}},
                            {"F8_E8M0", 8, {}}, {"F4", 4, {}},        {"F6_E2M3", 6, {}}, {"F6_E3M2", 6, {}}};

std::string_view stored_name(const Tensor& tensor, const std::string& name) {
  for (auto& known : kKnown)
    if (known.dtype == tensor.dtype()) return known.name;
  fail<DTypeError>(kSafetensorsOperation,
                   "'{}' is {}: the format has no such dtype; save its real and imaginary parts, or cast it to c64",
                   name, tensor);
}

// The header's text, and the tensors in the order of their data: large elements first, so that each lies aligned.
std::string make_header(const Tensors& tensors, const Metadata& metadata, std::vector<const Tensor*>& order) {
  std::vector<const Tensors::value_type*> entries;
  for (auto& entry : tensors) {
    check<ValueError>(entry.first != "__metadata__" && is_utf8(entry.first), kSafetensorsOperation,
                      "'{}' cannot be a tensor's name", entry.first);
    entries.push_back(&entry);
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](auto* a, auto* b) { return a->second.element_size() > b->second.element_size(); });
  Json::Map header;
  if (!metadata.empty()) {
    Json::Map texts;
    for (auto& [key, text] : metadata) {
      check<ValueError>(is_utf8(key) && is_utf8(text), kSafetensorsOperation, "the metadata '{}' is not UTF-8", key);
      texts.emplace_back(key, text);
    }
    header.emplace_back("__metadata__", std::move(texts));
  }
  int64_t offset = 0;
  for (auto* entry : entries) {
    auto& [name, tensor] = *entry;
    order.push_back(&tensor);
    Json::List sizes;
    for (int64_t size : tensor.sizes()) sizes.emplace_back(size);
    int64_t end = offset + tensor.numel() * static_cast<int64_t>(tensor.element_size());
    header.emplace_back(name, Json::Map{{"dtype", std::string(stored_name(tensor, name))},
                                        {"shape", std::move(sizes)},
                                        {"data_offsets", Json::List{Json(offset), Json(end)}}});
    offset = end;
  }
  std::string text = to_json(std::move(header));
  text.append((8 - text.size() % 8) % 8, ' ');
  check<ValueError>(text.size() <= kMaxHeader, kSafetensorsOperation,
                    "the names and metadata take {} bytes; {} are the most", text.size(), kMaxHeader);
  return text;
}

const Json::List& list_of(const Json& entry, const char* key, const std::string& where) {
  const Json* found = entry.find(key);
  const auto* list = found ? found->as<Json::List>() : nullptr;
  check<FileError>(list, kSafetensorsOperation, "{} has no list '{}'", where, key);
  return *list;
}

int64_t count_of(const Json& json, const std::string& where) {
  const auto* value = json.as<int64_t>();
  check<FileError>(value && *value >= 0, kSafetensorsOperation, "{}: its sizes and offsets must be integers from 0",
                   where);
  return *value;
}

SafeTensors::Info parse_entry(const Json& entry, uint64_t data_start, uint64_t data_bytes, const std::string& where) {
  const Json* dtype = entry.find("dtype");
  const auto* stored = dtype ? dtype->as<std::string>() : nullptr;
  check<FileError>(stored, kSafetensorsOperation, "{} has no dtype", where);
  const auto* known = std::find_if(std::begin(kKnown), std::end(kKnown), [&](auto& k) { return k.name == *stored; });
  check<FileError>(known != std::end(kKnown), kSafetensorsOperation, "{}: '{}' is no dtype of the format", where,
                   *stored);

  SafeTensors::Info info{*stored, known->dtype, {}, 0, 0};
  auto& sizes = list_of(entry, "shape", where);
  check<FileError>(sizes.size() <= kMaxDims, kSafetensorsOperation, "{} has {} dims; {} are the most", where,
                   sizes.size(), kMaxDims);
  for (auto& size : sizes) info.sizes.push_back(count_of(size, where));
  uint64_t bits = 0;
  check<FileError>(bytes_of(info.sizes, known->bits, bits) && bits % 8 == 0, kSafetensorsOperation,
                   "{}: {} of {} cannot be", where, info.sizes, *stored);
  auto& offsets = list_of(entry, "data_offsets", where);
  check<FileError>(offsets.size() == 2, kSafetensorsOperation, "{}: data_offsets are two numbers", where);
  auto begin = static_cast<uint64_t>(count_of(offsets[0], where)),
       end = static_cast<uint64_t>(count_of(offsets[1], where));
  check<FileError>(begin <= end && end <= data_bytes, kSafetensorsOperation, "{}: bytes [{}, {}) of data that has {}{}",
                   where, begin, end, data_bytes, begin <= end ? ": the file is cut short" : "");
  check<FileError>(end - begin == bits / 8, kSafetensorsOperation, "{}: {} of {} takes {} bytes, not {}", where,
                   info.sizes, *stored, bits / 8, end - begin);
  info.offset = data_start + begin;
  info.bytes = end - begin;
  return info;
}

// The tensors' bytes must be the data, each byte once.
void check_cover(const std::map<std::string, SafeTensors::Info>& infos, uint64_t begin, uint64_t end,
                 const std::string& file) {
  std::vector<std::pair<uint64_t, uint64_t>> pieces;
  for (auto& [name, info] : infos) pieces.emplace_back(info.offset, info.offset + info.bytes);
  std::sort(pieces.begin(), pieces.end());
  for (auto [first, last] : pieces) {
    check<FileError>(first == begin, kSafetensorsOperation, "{}: tensors {} at byte {}", file,
                     first < begin ? "overlap" : "leave a hole", std::min(first, begin));
    begin = last;
  }
  check<FileError>(begin == end, kSafetensorsOperation, "{}: {} bytes after the last tensor", file, end - begin);
}

}  // namespace

void write_safetensors(Output& out, const Tensors& tensors, const Metadata& metadata) {
  for (auto& [name, tensor] : tensors)
    check<ValueError>(tensor.defined() && !tensor.is_sparse(), kSafetensorsOperation,
                      "'{}' is {}, which cannot be saved", name,
                      tensor.defined() ? "a sparse tensor" : "an undefined tensor");
  std::vector<const Tensor*> order;
  std::string header = make_header(tensors, metadata, order), length;
  put<uint64_t>(length, header.size());
  out.write(length);
  out.write(header);
  for (const Tensor* tensor : order) {
    Tensor dense = for_file(*tensor, kSafetensorsOperation, "a tensor");
    if (dense.numel() > 0) out.write(dense.raw_data(), static_cast<size_t>(dense.numel()) * dense.element_size());
  }
}

void save_safetensors(const std::string& path, const Tensors& tensors, const Metadata& metadata) {
  write_atomically(path, [&](Output& out) { write_safetensors(out, tensors, metadata); });
}

Tensors load_safetensors(const std::string& path) {
  SafeTensors file(path);
  Tensors tensors;
  for (auto& name : file.names()) tensors[name] = file.read(name);
  return tensors;
}

SafeTensors::SafeTensors(const std::string& path) : blob_(Blob::map(path, kSafetensorsOperation)) { parse(); }
SafeTensors::SafeTensors(std::string bytes, std::string name) : blob_(Blob::own(std::move(bytes), std::move(name))) {
  parse();
}

void SafeTensors::parse() {
  std::string_view bytes = blob_->bytes();
  const std::string& file = blob_->name();
  auto length = number<uint64_t>(bytes, 0, kSafetensorsOperation, file);
  check<FileError>(length <= kMaxHeader, kSafetensorsOperation,
                   "{}: a header of {} bytes; {} are the most. Is this a safetensors file?", file, length, kMaxHeader);
  std::string_view text = part(bytes, 8, length, kSafetensorsOperation, file);
  check<FileError>(text.starts_with('{'), kSafetensorsOperation,
                   "{}: the header does not begin with '{{'. Is this a safetensors file?", file);
  Json header = parse_json(text, kSafetensorsOperation, file);
  uint64_t start = 8 + length;
  for (auto& [name, entry] : std::get<Json::Map>(header.value)) {
    if (name == "__metadata__") {
      const auto* texts = entry.as<Json::Map>();
      check<FileError>(texts, kSafetensorsOperation, "{}: the metadata is no map", file);
      for (auto& [key, value] : *texts) {
        const auto* string = value.as<std::string>();
        check<FileError>(string, kSafetensorsOperation, "{}: the metadata '{}' is no text", file, key);
        metadata_[key] = *string;
      }
    } else {
      infos_[name] = parse_entry(entry, start, bytes.size() - start, file + ": '" + name + "'");
    }
  }
  check_cover(infos_, start, bytes.size(), file);
}

std::vector<std::string> SafeTensors::names() const {
  std::vector<std::string> list;
  for (auto& entry : infos_) list.push_back(entry.first);
  return list;
}

const SafeTensors::Info& SafeTensors::info(const std::string& name) const {
  auto found = infos_.find(name);
  check<FileError>(found != infos_.end(), kSafetensorsOperation, "{} has no tensor '{}'; it has {}", blob_->name(),
                   name, names_of(infos_));
  return found->second;
}

Tensor SafeTensors::read(const std::string& name) const { return map(name).clone(MemoryFormat::contiguous); }

namespace {
// The tensor of these sizes at a place of the file: the file's own bytes where they are aligned.
Tensor tensor_at(const std::shared_ptr<Blob>& blob, const std::string& name, DType dtype, const Shape& sizes,
                 uint64_t offset, uint64_t bytes) {
  Options options{.dtype = dtype, .device = Device()};
  if (bytes == 0) return empty(sizes, options);
  char* data = blob->data() + offset;
  // C++ reads a bool that is neither 0 nor 1 as it likes.
  if (dtype == boolean)
    check<FileError>(std::all_of(data, data + bytes, [](char c) { return c == 0 || c == 1; }), kSafetensorsOperation,
                     "{}: '{}' is BOOL and has bytes that are neither 0 nor 1", blob->name(), name);
  if (reinterpret_cast<uintptr_t>(data) % size_of(to_real(dtype)) == 0)
    return from_blob(data, sizes, options, [blob] {});
  // A foreign writer need not align; the library's kernels want it.
  Tensor copy = empty(sizes, options);
  std::memcpy(copy.raw_data(), data, bytes);
  return copy;
}

DType known_dtype(const SafeTensors::Info& info, const Blob& blob, const std::string& name) {
  check<DTypeError>(info.dtype.has_value(), kSafetensorsOperation,
                    "{}: '{}' is stored as {}, which Tutti has no dtype for", blob.name(), name, info.stored);
  return *info.dtype;
}
}  // namespace

Tensor SafeTensors::read_rows(const std::string& name, int64_t first, int64_t count) const {
  const Info& info = this->info(name);
  DType dtype = known_dtype(info, *blob_, name);
  check<ShapeError>(!info.sizes.empty(), kSafetensorsOperation, "'{}' is one number: it has no rows", name);
  int64_t rows = info.sizes[0];
  check<IndexError>(first >= 0 && count >= 0 && first <= rows && count <= rows - first, kSafetensorsOperation,
                    "{} rows from {} of '{}', which has the shape {}", count, first, name, info.sizes);
  Shape sizes = info.sizes;
  sizes[0] = count;
  uint64_t row = rows ? info.bytes / static_cast<uint64_t>(rows) : 0;
  return tensor_at(blob_, name, dtype, sizes, info.offset + static_cast<uint64_t>(first) * row,
                   static_cast<uint64_t>(count) * row)
      .clone(MemoryFormat::contiguous);
}

Tensor SafeTensors::map(const std::string& name) const {
  const Info& info = this->info(name);
  DType dtype = known_dtype(info, *blob_, name);
  return tensor_at(blob_, name, dtype, info.sizes, info.offset, info.bytes);
}

}  // namespace tutti::io
