// UCX, loaded when a world or a session asks for it: programs that do not, pay nothing for it, and its habits (taking
// over signals, watching memory, warning on standard output) can be turned off before it has any.
#pragma once

#include <dlfcn.h>
#include <ucp/api/ucp.h>

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "comm/transport/fast_network.h"

namespace tutti::comm {

/// The functions of the library that are used.
struct Ucx {
  decltype(&ucp_init_version) init_version;
  decltype(&ucp_cleanup) cleanup;
  decltype(&ucp_config_read) config_read;
  decltype(&ucp_config_modify) config_modify;
  decltype(&ucp_config_release) config_release;
  decltype(&ucp_worker_create) worker_create;
  decltype(&ucp_worker_destroy) worker_destroy;
  decltype(&ucp_worker_get_address) worker_get_address;
  decltype(&ucp_worker_release_address) worker_release_address;
  decltype(&ucp_worker_get_efd) worker_get_efd;
  decltype(&ucp_worker_arm) worker_arm;
  decltype(&ucp_worker_signal) worker_signal;
  decltype(&ucp_worker_progress) worker_progress;
  decltype(&ucp_worker_flush_nbx) worker_flush_nbx;
  decltype(&ucp_worker_set_am_recv_handler) worker_set_am_recv_handler;
  decltype(&ucp_ep_create) ep_create;
  decltype(&ucp_ep_close_nbx) ep_close_nbx;
  decltype(&ucp_ep_flush_nbx) ep_flush_nbx;
  decltype(&ucp_am_send_nbx) am_send_nbx;
  decltype(&ucp_am_recv_data_nbx) am_recv_data_nbx;
  decltype(&ucp_request_free) request_free;
  decltype(&ucp_request_check_status) request_check_status;
  decltype(&ucs_status_string) status_string;

  static const Ucx& instance() {
    static const Ucx ucx;
    return ucx;
  }

 private:
  Ucx() {
    // Read while the library is loaded. What the user has set stays.
    constexpr std::array<std::array<const char*, 2>, 4> settings = {{{"UCX_LOG_LEVEL", "fatal"},
                                                                     {"UCX_ERROR_SIGNALS", ""},
                                                                     {"UCX_MEM_EVENTS", "n"},
                                                                     {"UCX_HANDLE_ERRORS", "none"}}};
    std::vector<const char*> set;
    for (auto [name, value] : settings)
      if (!std::getenv(name)) {
        ::setenv(name, value, 0);
        set.push_back(name);
      }
    void* library = ::dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    std::string error = library ? "" : ::dlerror();
    for (const char* name : set) ::unsetenv(name);
    check<DeviceError>(library != nullptr, "world", "UCX cannot be loaded (on Debian: libucx0): {}", error);
    auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      check<DeviceError>(function != nullptr, "world", "UCX's library lacks {}: it needs UCX 1.11 or later", name);
    };
    load(init_version, "ucp_init_version");
    load(cleanup, "ucp_cleanup");
    load(config_read, "ucp_config_read");
    load(config_modify, "ucp_config_modify");
    load(config_release, "ucp_config_release");
    load(worker_create, "ucp_worker_create");
    load(worker_destroy, "ucp_worker_destroy");
    load(worker_get_address, "ucp_worker_get_address");
    load(worker_release_address, "ucp_worker_release_address");
    load(worker_get_efd, "ucp_worker_get_efd");
    load(worker_arm, "ucp_worker_arm");
    load(worker_signal, "ucp_worker_signal");
    load(worker_progress, "ucp_worker_progress");
    load(worker_flush_nbx, "ucp_worker_flush_nbx");
    load(worker_set_am_recv_handler, "ucp_worker_set_am_recv_handler");
    load(ep_create, "ucp_ep_create");
    load(ep_close_nbx, "ucp_ep_close_nbx");
    load(ep_flush_nbx, "ucp_ep_flush_nbx");
    load(am_send_nbx, "ucp_am_send_nbx");
    load(am_recv_data_nbx, "ucp_am_recv_data_nbx");
    load(request_free, "ucp_request_free");
    load(request_check_status, "ucp_request_check_status");
    load(status_string, "ucs_status_string");
  }
};

inline void check_status(ucs_status_t status, const char* what) {
  check<ConnectionError>(status == UCS_OK, "world", "UCX: {}: {}", what, Ucx::instance().status_string(status));
}

/// Whether there is a network that UCX may use and that is not TCP's.
inline bool has_fast_network() {
  auto variable = [](const char* name) { return std::string_view(std::getenv(name) ? std::getenv(name) : ""); };
  return has_fast_network(variable("UCX_TLS"), variable("UCX_NET_DEVICES"));
}

}  // namespace tutti::comm
