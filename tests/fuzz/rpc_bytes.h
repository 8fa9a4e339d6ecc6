// A message between workers as it goes over the wire.
#pragma once

#include <string>
#include <utility>

#include "rpc/message.h"

namespace tutti::fuzz {

inline std::string bytes_of(rpc::detail::Message message) {
  rpc::detail::Packed packed = rpc::detail::pack(std::move(message));
  std::string bytes(reinterpret_cast<const char*>(&packed.header), sizeof packed.header);
  bytes += packed.front;
  if (packed.data) bytes.append(static_cast<const char*>(packed.data), packed.header.data_bytes);
  return bytes;
}

}  // namespace tutti::fuzz
