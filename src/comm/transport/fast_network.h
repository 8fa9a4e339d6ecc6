// Whether UCX has a network that is faster than TCP: what it may use, and what there is.
#pragma once

#include <filesystem>
#include <string_view>

namespace tutti::comm {

/// `transports` and `devices` are what UCX_TLS and UCX_NET_DEVICES say, "" where they are not set; `cards` is where the
/// system shows cards that are not Ethernet's alone. Where that is not sure, there is none.
bool has_fast_network(std::string_view transports, std::string_view devices,
                      const std::filesystem::path& cards = "/sys/class/infiniband");

}  // namespace tutti::comm
