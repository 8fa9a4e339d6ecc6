// What a store is asked and answers, and how that is written as bytes: on the wire (TcpStore) and in the log
// (FileStore).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/comm/store.h"

namespace tutti::store {

enum class Op : uint8_t {
  set = 1,          // keys and as many values
  get,              // keys
  wait,             // keys
  add,              // key, number
  compare_and_set,  // key, {expected, desired}
  append,           // key, value
  push,             // key of a queue, value
  pop,              // key of a queue
  queue_size,       // key of a queue
  erase,            // key
  clear,            // key: a prefix
  count,            // key: a prefix
  list,             // key: a prefix
  will,             // key, {value when the connection ends, value when it is silent}, number: milliseconds of silence
};
constexpr uint8_t kLastOp = static_cast<uint8_t>(Op::will);

struct Request {
  Op op = Op::count;
  bool waits = true;  // get, wait and pop: until it can be done
  int64_t number = 0;
  std::vector<std::string> keys = {};
  std::vector<std::string> values = {};

  bool changes() const;
};

enum class Status : uint8_t {
  ok = 0,
  absent,  // a request that does not wait found nothing
  ended,   // a wait was ended before it was done; the values are the keys that are missing
  error,   // the value is the text
};
constexpr uint8_t kLastStatus = static_cast<uint8_t>(Status::error);

struct Reply {
  Status status = Status::ok;
  int64_t number = 0;
  std::vector<std::string> values = {};
};

/// Whether the request has the keys and values that its operation takes, within the bounds of Store; if not, why.
/// Empty: it has.
std::string defect(const Request& request);

/// Bytes of the encoding.
size_t encoded_size(const Request& request);
size_t encoded_size(const Reply& reply);
void encode(std::string& out, const Request& request);
void encode(std::string& out, const Reply& reply);
/// False if the bytes are no such thing. Memory is taken only for lengths that the bytes do hold.
bool decode(std::string_view bytes, Request& request);
bool decode(std::string_view bytes, Reply& reply);

// Little-endian numbers.
inline void put_u32(std::string& out, uint32_t value) {
  for (int i = 0; i < 4; ++i) out += static_cast<char>(value >> (8 * i));
}
inline void put_u64(std::string& out, uint64_t value) {
  for (int i = 0; i < 8; ++i) out += static_cast<char>(value >> (8 * i));
}
inline uint64_t get_le(const char* bytes, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}
inline uint32_t get_u32(const char* bytes) { return static_cast<uint32_t>(get_le(bytes, 4)); }
inline uint64_t get_u64(const char* bytes) { return get_le(bytes, 8); }

}  // namespace tutti::store
