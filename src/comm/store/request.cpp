#include "comm/store/request.h"

#include "base/check.h"

namespace tutti::store {
namespace {

constexpr size_t kFixed = 1 + 1 + 8 + 4 + 4;  // op or status, flag, number, two counts

size_t list_size(const std::vector<std::string>& list) {
  size_t size = 4 * list.size();
  for (auto& item : list) size += item.size();
  return size;
}

void put_list(std::string& out, const std::vector<std::string>& list) {
  put_u32(out, static_cast<uint32_t>(list.size()));
  for (auto& item : list) {
    put_u32(out, static_cast<uint32_t>(item.size()));
    out += item;
  }
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  bool number(int count, uint64_t& value) {
    if (rest_.size() < static_cast<size_t>(count)) return false;
    value = get_le(rest_.data(), count);
    rest_.remove_prefix(static_cast<size_t>(count));
    return true;
  }
  bool list(std::vector<std::string>& items, size_t most_items, size_t most_bytes) {
    uint64_t count = 0;
    // An item takes four bytes at least, so a count that the rest cannot hold is found before memory is taken for it.
    if (!number(4, count) || count > most_items || count > rest_.size() / 4) return false;
    items.clear();
    items.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t size = 0;
      if (!number(4, size) || size > most_bytes || size > rest_.size()) return false;
      items.emplace_back(rest_.substr(0, size));
      rest_.remove_prefix(size);
    }
    return true;
  }
  bool done() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

void put_fixed(std::string& out, uint8_t kind, bool flag, int64_t number) {
  out += static_cast<char>(kind);
  out += static_cast<char>(flag);
  put_u64(out, static_cast<uint64_t>(number));
}

// What an operation takes: one key or many, and how many values for them.
struct Form {
  bool many_keys;
  size_t values;
};
Form form(Op op) {
  switch (op) {
    case Op::set:
      return {true, 0};  // as many as keys
    case Op::get:
    case Op::wait:
      return {true, 0};
    case Op::compare_and_set:
    case Op::will:
      return {false, 2};
    case Op::append:
    case Op::push:
      return {false, 1};
    default:
      return {false, 0};
  }
}

}  // namespace

bool Request::changes() const {
  switch (op) {
    case Op::get:
    case Op::wait:
    case Op::queue_size:
    case Op::count:
    case Op::list:
      return false;
    default:
      return true;
  }
}

std::string defect(const Request& request) {
  auto [many, values] = form(request.op);
  if (many ? request.keys.size() > Store::kMaxKeys : request.keys.size() != 1)
    return fmt::format("{} keys, where {} can be", request.keys.size(), many ? Store::kMaxKeys : 1);
  if (request.op == Op::set) values = request.keys.size();
  if (request.values.size() != values) return fmt::format("{} values, where {} can be", request.values.size(), values);
  for (auto& key : request.keys)
    if (key.size() > Store::kMaxKey)
      return fmt::format("a key of {} bytes ({}...), where {} can be", key.size(), key.substr(0, 40), Store::kMaxKey);
  for (size_t i = 0; i < values; ++i)
    if (request.values[i].size() > Store::kMaxValue)
      return fmt::format("a value of {} bytes, where {} can be", request.values[i].size(), Store::kMaxValue);
  if (size_t size = encoded_size(request); size > Store::kMaxBytes)
    return fmt::format("{} bytes in one call, where {} can be", size, Store::kMaxBytes);
  return {};
}

size_t encoded_size(const Request& request) { return kFixed + list_size(request.keys) + list_size(request.values); }
size_t encoded_size(const Reply& reply) { return kFixed - 4 + list_size(reply.values); }

void encode(std::string& out, const Request& request) {
  put_fixed(out, static_cast<uint8_t>(request.op), request.waits, request.number);
  put_list(out, request.keys);
  put_list(out, request.values);
}

void encode(std::string& out, const Reply& reply) {
  put_fixed(out, static_cast<uint8_t>(reply.status), false, reply.number);
  put_list(out, reply.values);
}

bool decode(std::string_view bytes, Request& request) {
  Reader reader(bytes);
  uint64_t op = 0, waits = 0, number = 0;
  if (!reader.number(1, op) || op < 1 || op > kLastOp || !reader.number(1, waits) || waits > 1) return false;
  if (!reader.number(8, number)) return false;
  request.op = static_cast<Op>(op);
  request.waits = waits == 1;
  request.number = static_cast<int64_t>(number);
  return reader.list(request.keys, Store::kMaxKeys, Store::kMaxKey) &&
         reader.list(request.values, Store::kMaxKeys, Store::kMaxValue) && reader.done() && defect(request).empty();
}

bool decode(std::string_view bytes, Reply& reply) {
  Reader reader(bytes);
  uint64_t status = 0, flag = 0, number = 0;
  if (!reader.number(1, status) || status > kLastStatus || !reader.number(1, flag) || flag != 0) return false;
  if (!reader.number(8, number)) return false;
  reply.status = static_cast<Status>(status);
  reply.number = static_cast<int64_t>(number);
  // A list may name more keys than a request can; its count is bounded by the bytes that hold it.
  return reader.list(reply.values, Store::kMaxBytes, Store::kMaxBytes) && reader.done();
}

}  // namespace tutti::store
