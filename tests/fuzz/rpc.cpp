// Messages of rpc, as a worker takes them apart: header and what follows it, then the values inside.
#include "tutti/rpc.h"

#include <cstring>
#include <map>
#include <optional>
#include <variant>

#include "base/check.h"
#include "rpc/message.h"
#include "tests/fuzz/rpc_bytes.h"
#include "tests/support/fuzz.h"
#include "tutti/tutti.h"

namespace tutti::fuzz {
namespace {

using rpc::detail::Message;
using rpc::detail::WireHeader;

struct Part {
  std::string name;
  std::vector<Part> parts;
  std::optional<Tensor> tensor;
  TUTTI_FIELDS(name, parts, tensor)
};
struct Whole {
  std::map<std::string, Part> parts;
  std::variant<int, std::vector<double>, Tensor> either;
  std::vector<bool> flags;
  Shape shape;
  std::pair<DType, std::array<bool, 2>> pair;
  TUTTI_FIELDS(parts, either, flags, shape, pair)
};

}  // namespace

std::vector<std::string> seeds() {
  Message m;
  m.from = 1;
  m.number = 5;
  m.extension = "extension";
  rpc::Writer out(m);
  Whole w;
  w.parts["a"] = {"first", {{"inner", {}, ones({2, 3})}}, arange(5)};
  w.parts["b"] = {"second", {}, sparse_coo(tensor({1, 3}).view({1, 2}), tensor({1.0, 2.0}), {5})};
  w.either = std::vector<double>{1, 2, 3};
  w.flags = {true, false};
  w.shape = {2, 3};
  rpc::write(out, w);
  Message references = m;
  references.references.push_back({{0, 1, 2}, 3, "Box", "here.cpp:1", nullptr});
  Message other;
  rpc::Writer more(other);
  w.either = ones({1, 2, 3, 4}).contiguous(MemoryFormat::channels_last);
  w.parts["c"] = {"third", {}, empty({4}, {.device = Device("meta")})};
  w.parts["d"] = {"fourth", {}, Tensor(2.5)};
  rpc::write(more, w);
  return {bytes_of(m), bytes_of(references), bytes_of(other), bytes_of({})};
}

// Nothing may be larger than the bytes that came.
void target(const std::string& bytes) {
  WireHeader header;
  if (bytes.size() < sizeof header) return;
  std::memcpy(&header, bytes.data(), sizeof header);
  auto rest = std::make_shared<std::string>(bytes.substr(sizeof header));
  // Lengths that do not add up are found first; so that what is behind that is reached too, the body takes the rest.
  uint64_t others = uint64_t{header.table_bytes} + header.extension_bytes;
  if (header.data_bytes == 0 && others <= rest->size()) header.body_bytes = rest->size() - others;
  for (bool shared : {false, true}) {
    Message m = rpc::detail::unpack(header, *rest, shared ? std::shared_ptr<void>(rest) : nullptr);
    m.references.clear();
    if (m.body.empty()) return;
    rpc::Reader in(m);
    (void)rpc::read<Whole>(in);
    in.end();
  }
}

}  // namespace tutti::fuzz
