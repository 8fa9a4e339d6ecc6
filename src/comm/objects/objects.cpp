// Values as bytes: their sizes first, so that everyone has room for them.
#include "tutti/comm/objects.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/names.h"
#include "comm/group/call.h"
#include "io/json.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti::detail {
namespace {

constexpr const char* kObjectOperation = "object";
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
                   kObjectOperation, "a string is wanted and {} is there", bytes);
  return string_of(bytes.contiguous());
}
void wrong_object(const std::string& wanted) { fail<FileError>(kObjectOperation, "{} is wanted", wanted); }
const io::ValueList& entries(const io::Value& value, size_t count) {
  const auto& list = value.as<io::ValueList>();
  check<FileError>(list.size() == count, kObjectOperation, "a list of {} is wanted and one of {} is there", count,
                   list.size());
  return list;
}

bool is_root(const RootOptions& o) { return group_of(o).rank() == o.root; }

namespace {

// "std::vector<std::string>": what a person would write.
std::string readable_type(const std::string& mangled) {
  std::string text = demangle(mangled.c_str());
  auto replace = [&](std::string_view from, std::string_view to) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
  };
  replace("std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >", "std::string");
  replace("(anonymous namespace)::", "");
  for (std::string_view extra : {", std::allocator<", ", std::less<", ", std::hash<", ", std::equal_to<"})
    for (size_t at = 0; (at = text.find(extra)) != std::string::npos;) {
      size_t end = at + extra.size();
      for (int depth = 1; depth > 0 && end < text.size(); ++end)
        depth += text[end] == '<' ? 1 : text[end] == '>' ? -1 : 0;
      text.erase(at, end - at);
    }
  for (size_t at = 0; (at = text.find(" >")) != std::string::npos;) text.erase(at, 1);
  return text;
}

std::string type_of(const io::State& state) {
  const io::Value& type = state["type"];
  return type.is<std::string>() ? type.as<std::string>() : "";
}

}  // namespace

ObjectSource objects_from(std::vector<std::string> bytes, const char* collective, const CollectiveOptions& o) {
  ObjectSource objects{collective, o.place, group_of(o).ranks(), {}};
  for (size_t k = 0; k < bytes.size(); ++k)
    objects.states.push_back(
        io::state_from_bytes(std::move(bytes[k]), fmt::format("the object of rank {}", objects.ranks[k])));
  return objects;
}
ObjectSource object_from_root(std::string bytes, const char* collective, const RootOptions& o) {
  int root = group_of(o).ranks()[static_cast<size_t>(o.root)];
  return {collective,
          o.place,
          {root},
          {io::state_from_bytes(std::move(bytes), fmt::format("the object of rank {}", root))}};
}

void wrong_type(const ObjectSource& objects, size_t k, const std::type_info& taken) {
  if (type_of(objects.states[k]) == taken.name()) throw;  // of this type, and still not good
  std::vector<std::pair<std::string, std::vector<int>>> kinds;
  for (size_t i = 0; i < objects.states.size(); ++i) {
    std::string type = readable_type(type_of(objects.states[i]));
    auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) { return kind.first == type; });
    if (found == kinds.end()) found = kinds.insert(kinds.end(), {type, {}});
    found->second.push_back(objects.ranks[i]);
  }
  std::string text;
  for (const auto& [type, ranks] : kinds) text += fmt::format("\n  {} gave {}", comm::name_ranks(ranks), type);
  fail<MismatchError>(objects.collective, "ranks disagree in the type of the object, at {}:{}\n  rank {} takes {}",
                      comm::to_string(objects.place), text, context().rank, readable_type(taken.name()));
}

std::string broadcast_bytes(const std::string& mine, const RootOptions& o) {
  NoGrad guard;
  comm::PurposeGuard purpose("broadcast_object");
  Tensor size = size_of_bytes(mine);
  broadcast(size, o);
  Tensor bytes = is_root(o) ? view_of(mine) : room_for(size);
  broadcast(bytes, o);
  return is_root(o) ? std::string() : string_of(bytes);
}

std::vector<std::string> all_gather_bytes(const std::string& mine, const CollectiveOptions& o) {
  NoGrad guard;
  comm::PurposeGuard purpose("all_gather_object");
  TensorList sizes = empty_sizes(group_of(o).size());
  all_gather(sizes, size_of_bytes(mine), o);
  TensorList rooms = rooms_for(sizes);
  all_gather(rooms, view_of(mine), o);
  return strings_of(rooms);
}

std::vector<std::string> gather_bytes(const std::string& mine, const RootOptions& o) {
  NoGrad guard;
  comm::PurposeGuard purpose("gather_object");
  TensorList sizes = empty_sizes(is_root(o) ? group_of(o).size() : 0);
  gather(sizes, size_of_bytes(mine), o);
  TensorList rooms = rooms_for(sizes);
  gather(rooms, view_of(mine), o);
  return strings_of(rooms);
}

std::string scatter_bytes(const std::vector<std::string>& mine, const RootOptions& o) {
  NoGrad guard;
  comm::PurposeGuard purpose("scatter_object");
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
