// A program that tests start: what it does is its first word.
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "tutti/comm.h"
#include "tutti/ops.h"
#include "tutti/progress.h"

namespace {

void wait_for(const std::string& file) {
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

void print_both() {
  std::printf("from printf\n");
  std::cout << "from cout\n";
}

// Meets the other ranks as programs do that know nothing of Tutti.
bool meet_by_socket() {
  addrinfo hints{}, *list = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(std::getenv("MASTER_ADDR"), std::getenv("MASTER_PORT"), &hints, &list) != 0) return false;
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  int fd = ::socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  if (std::string(std::getenv("RANK")) == "0") {
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(fd, list->ai_addr, list->ai_addrlen) != 0 || ::listen(fd, 1) != 0) return false;
    int peer = ::accept(fd, nullptr, nullptr);
    char c = 0;
    return ::read(peer, &c, 1) == 1;
  }
  while (::connect(fd, list->ai_addr, list->ai_addrlen) != 0) {
    ::close(fd);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fd = ::socket(AF_INET, SOCK_STREAM, 0);
  }
  return ::write(fd, "1", 1) == 1;
}

// A rank as a forked process is killed; lines from before it was forked are printed once.
void spawn() {
  std::ios::sync_with_stdio(false);
  std::cout << "before\n";
  try {
    tutti::spawn_processes(2, [] {
      if (tutti::rank() == 0) {
        std::cout << "from the rank that lives\n";
        tutti::barrier();
      }
      std::printf("from the rank that dies\n");
      ::raise(SIGKILL);
    });
  } catch (const tutti::RankFailure&) {
    std::cout << "after\n";
  }
}

void draw_bar(int steps, const std::string& file) {
  tutti::Progress bar(steps, {.label = "epoch 1", .enabled = tutti::rank() == 0});
  for (int i = 0; i < steps; ++i) {
    tutti::Tensor x = tutti::ones({4});
    tutti::all_reduce(x);
    bar.step({{"loss", 1.0 / (i + 1)}});
    if (i == steps / 2) {
      std::printf("half of it is done\n");
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // so that the bar is drawn
      bar.step({}, 0);
      wait_for(file);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "", word = argc > 2 ? argv[2] : "";
  if (what == "die") {
    print_both();
    ::raise(SIGKILL);
  } else if (what == "exit") {
    print_both();
    ::_exit(0);
  } else if (what == "wait") {
    print_both();
    wait_for(word);
  } else if (what == "spawn") {
    spawn();
  } else if (what == "rank") {
    return tutti::rank() < tutti::world_size() ? 0 : 1;
  } else if (what == "launch") {
    tutti::launch(2, [] { tutti::barrier(); });
  } else if (what == "throw") {
    tutti::launch(2, [] {
      print_both();
      throw std::runtime_error("no luck");
    });
  } else if (what == "socket") {
    return meet_by_socket() ? 0 : 1;
  } else if (what == "bar") {
    draw_bar(20, word);
  } else if (what != "nothing") {
    std::fprintf(stderr, "what is '%s'?\n", what.c_str());
    return 2;
  }
  return 0;
}
