// Hosts of a test: network namespaces, joined by a bridge, whose cables can be pulled.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace tutti::test {

/// Hosts 0, 1, ... with the addresses 10.213.0.1, .2, ...
class Network {
 public:
  explicit Network(int hosts) : hosts_(hosts) {
    made_ = run("ip netns add " + hub()) && run("ip -n " + hub() + " link add bridge type bridge") &&
            run("ip -n " + hub() + " link set bridge up");
    for (int h = 0; h < hosts && made_; ++h) {
      std::string port = "port" + std::to_string(h);
      made_ = run("ip netns add " + host(h)) && run("ip -n " + host(h) + " link set lo up") &&
              run("ip -n " + hub() + " link add " + port + " type veth peer name cable netns " + host(h)) &&
              run("ip -n " + hub() + " link set " + port + " master bridge up") &&
              run("ip -n " + host(h) + " addr add " + address(h) + "/24 dev cable") &&
              run("ip -n " + host(h) + " link set cable up");
    }
  }
  ~Network() {
    for (int h = 0; h < hosts_; ++h) run("ip netns del " + host(h));
    run("ip netns del " + hub());
  }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  bool made() const { return made_; }
  /// What is in the way, and what to do about it.
  static std::string why_not_made() {
    std::string text = "network namespaces cannot be made here: ";
    char buffer[256];
    FILE* script = ::popen("scripts/network-namespaces", "r");
    while (script && std::fgets(buffer, sizeof buffer, script)) text += buffer;
    if (script) ::pclose(script);
    return text;
  }
  std::string host(int h) const { return hub() + "-" + std::to_string(h); }
  static std::string address(int h) { return "10.213.0." + std::to_string(h + 1); }
  /// Its cable: from then on nothing reaches it.
  void pull(int h) const { EXPECT_TRUE(run("ip -n " + hub() + " link set port" + std::to_string(h) + " down")); }

 private:
  static std::string hub() { return "tutti-" + std::to_string(::getpid()); }
  static bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }
  int hosts_;
  bool made_ = false;
};

}  // namespace tutti::test
