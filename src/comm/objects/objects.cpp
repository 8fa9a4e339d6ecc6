// Values as bytes: their sizes first, so that everyone has room for them.
#include "tutti/comm/objects.h"

#include <cstring>

#include "base/check.h"
#include "io/json.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti::detail {
namespace {

constexpr const char* kOperation = "object";
constexpr Options kSizes{.dtype = DType::i64, .device = Device()}, kBytes{.dtype = DType::u8, .device = Device()};

Tensor size_of_bytes(const std::string& bytes) { return full({1}, static_cast<int64_t>(bytes.size()), kSizes); }
Tensor room_for(const Tensor& size) { return empty({size.item<int64_t>()}, kBytes); }
TensorList rooms_for(const TensorList& sizes) {
  TensorList list;
  for (const Tensor& s : sizes) list.push_back(room_for(s));
  return list;
}
// Shares the string's memory.
Tensor view_of(const std::string& bytes) { return from_blob(bytes.data(), {bytes.size()}, kBytes); }
std::string string_of(const Tensor& bytes) {
  return std::string(static_cast<const char*>(bytes.raw_data()), static_cast<size_t>(bytes.numel()));
}
std::vector<std::string> strings_of(const TensorList& list) {
  std::vector<std::string> strings;
  for (const Tensor& t : list) strings.push_back(string_of(t));
  return strings;
}
TensorList empty_sizes(int count) {
  TensorList list;
  for (int k = 0; k < count; ++k) list.push_back(zeros({1}, kSizes));
  return list;
}
template <class O>
Group group_of(const O& o) {
  return o.group.defined() ? o.group : world();
}

}  // namespace

// Strings of a State are UTF-8; others go as bytes.
io::Value string_to_value(const std::string& text) {
  if (io::is_utf8(text)) return io::Value(text);
  return io::Value(view_of(text).clone());
}
std::string string_from_value(const io::Value& value) {
  if (!value.is<Tensor>()) return value.as<std::string>();
  const Tensor& bytes = value.as<Tensor>();
  check<FileError>(bytes.defined() && bytes.dtype() == DType::u8 && bytes.dim() == 1 && bytes.device().is_cpu(),
                   kOperation, "a string is wanted and {} is there", bytes);
  return string_of(bytes.contiguous());
}
void wrong_object(const std::string& wanted) { fail<FileError>(kOperation, "{} is wanted", wanted); }
const io::ValueList& entries(const io::Value& value, size_t count) {
  const auto& list = value.as<io::ValueList>();
  check<FileError>(list.size() == count, kOperation, "a list of {} is wanted and one of {} is there", count,
                   list.size());
  return list;
}

bool is_root(const RootOptions& o) { return group_of(o).rank() == o.root; }
std::string object_name(int rank) { return fmt::format("the object of rank {}", rank); }

std::string broadcast_bytes(const std::string& mine, const RootOptions& o) {
  NoGrad guard;
  Tensor size = size_of_bytes(mine);
  broadcast(size, o);
  Tensor bytes = is_root(o) ? view_of(mine) : room_for(size);
  broadcast(bytes, o);
  return is_root(o) ? std::string() : string_of(bytes);
}

std::vector<std::string> all_gather_bytes(const std::string& mine, const CollectiveOptions& o) {
  NoGrad guard;
  TensorList sizes = empty_sizes(group_of(o).size());
  all_gather(sizes, size_of_bytes(mine), o);
  TensorList rooms = rooms_for(sizes);
  all_gather(rooms, view_of(mine), o);
  return strings_of(rooms);
}

std::vector<std::string> gather_bytes(const std::string& mine, const RootOptions& o) {
  NoGrad guard;
  TensorList sizes = empty_sizes(is_root(o) ? group_of(o).size() : 0);
  gather(sizes, size_of_bytes(mine), o);
  TensorList rooms = rooms_for(sizes);
  gather(rooms, view_of(mine), o);
  return strings_of(rooms);
}

std::string scatter_bytes(const std::vector<std::string>& mine, const RootOptions& o) {
  NoGrad guard;
  TensorList sizes, all;
  for (const std::string& bytes : mine) {
    sizes.push_back(size_of_bytes(bytes));
    all.push_back(view_of(bytes));
  }
  Tensor size = zeros({1}, kSizes);
  scatter(size, sizes, o);
  Tensor bytes = room_for(size);
  scatter(bytes, all, o);
  return string_of(bytes);
}

}  // namespace tutti::detail
