// Messages between workers, and how they are written on a wire (docs/wire-format.md).
//
// Note [What travels with a call]
// Distributed autograd adds to calls and answers without their knowing (set_hooks): when a message is complete, on the
// thread that made it and in its context, `outgoing` may look at the tensors, with their history, and say some bytes
// that travel along; a null answer to "is anything to be added?" costs one load. On the other side `incoming` is given
// those bytes and the tensors, fresh leaves as they came, which it may replace by what has a history, and the context
// that the handler will run in, or, for an answer, a copy of the context that the call was made in. Afterwards the
// tensors are detached for the wire, and decoded as if nothing had happened.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rpc/lease.h"
#include "tutti/context.h"
#include "tutti/tensor.h"

namespace tutti::rpc::detail {

inline constexpr const char* kRpcOperation = "rpc";  // in errors

class RefHandle;

enum class Kind : uint8_t { call = 1, answer, failure, cancel, lease, goodbye, hello };
inline constexpr int kKinds = 7;

/// A reference inside of a message. Made a fork when the message leaves, and a handle when it has come.
struct RefRecord {
  RefId id;
  uint64_t fork = 0;
  std::string type, made_at;
  std::shared_ptr<RefHandle> handle;  // not on the wire
};

struct Message {
  Kind kind = Kind::call;
  int from = -1;          // the number of the worker in its session
  uint64_t number = 0;    // of the call, at the caller
  uint64_t function = 0;  // of calls
  std::string extension;  // Note [What travels with a call]
  std::string body;
  TensorList tensors;
  std::vector<RefRecord> references;

  /// About as much as it takes in memory.
  size_t bytes() const;
};

/// What distributed autograd is to rpc. Both are called for calls and answers only; `peer` is the other worker's rank
/// in the world.
struct MessageHooks {
  /// Bytes to travel along; empty: nothing is to be done on the other side. `context()` says what is current.
  std::string (*outgoing)(int peer, Kind kind, TensorList& tensors);
  void (*incoming)(int peer, Kind kind, std::string_view bytes, TensorList& tensors, Context& context);
};
/// For the whole program; null: none. What it points at lives for ever.
void set_hooks(const MessageHooks* hooks);
const MessageHooks* hooks();

// ---- On a wire

/// A tensor as it arrives, without a wire.
Tensor copy_of(const Tensor& tensor);

/// What a message of the wire begins with; fixed, so that nothing of a stranger's is taken apart.
struct WireHeader {
  static constexpr uint32_t kMagic = 0x50525454;  // "TTRP"
  static constexpr uint16_t kVersion = 1;
  std::array<uint8_t, 16> token{};  // which only workers of this session know: of sender and receiver
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint8_t kind = 0, reserved = 0;
  uint32_t from = 0;
  uint32_t table_bytes = 0;      // tensors' and references' descriptions
  uint32_t extension_bytes = 0;  //
  uint32_t reserved2 = 0;
  uint64_t body_bytes = 0;
  uint64_t data_bytes = 0;  // of tensors; they, and each of them, begin at a multiple of kAlign
  uint64_t number = 0, function = 0;
};
static_assert(sizeof(WireHeader) == 72);

inline constexpr size_t kAlign = 64;
inline constexpr uint32_t kMaxTable = uint32_t{1} << 26;
inline constexpr uint64_t kMaxMessage = uint64_t{1} << 40;

/// A message as a wire sends it: header, front, data.
struct Packed {
  WireHeader header;
  std::string front;  // table, extension, body, and padding where data follow
  Tensor memory;      // which has the data; the only tensor is sent from where it is
  const void* data = nullptr;
};
Packed pack(Message&& message);

/// How many bytes a header says that follow it; nonsense where it has a defect.
uint64_t bytes_after(const WireHeader& header);
/// What is wrong with a header, and bytes that follow it: empty, nothing.
std::string defect(const WireHeader& header, uint64_t bytes);
/// Where the data of tensors begin.
inline uint64_t data_at(const WireHeader& h) {
  uint64_t front = uint64_t{h.table_bytes} + h.extension_bytes + h.body_bytes;
  return (front + kAlign - 1) / kAlign * kAlign;
}
/// The message again. `bytes` is what followed the header: large tensors keep that memory, by a copy of `owner`; small
/// ones are copied. ValueError says what cannot be.
Message unpack(const WireHeader& header, std::string_view bytes, const std::shared_ptr<void>& owner);

}  // namespace tutti::rpc::detail
