// Which rank is slow, what happens when one dies, and who waits for whom: the code of docs/run.md.
#include <cstdio>
#include <filesystem>
#include <thread>

#include "flags.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace std::chrono_literals;

void who_is_slow(const std::string& path) {
  spawn_ranks(3, [&] {
    Tensor x = ones({1'000});
    for (int step = 0; step < 10; ++step) {
      if (rank() == 1) std::this_thread::sleep_for(2ms);  // it has more to do than the others
      all_reduce(x, {.op = Reduce::average});
    }
    Trace trace = gather_trace();  // a collective
    if (rank() == 0) {
      trace.save(path);                              // for https://ui.perfetto.dev
      std::printf("%s\n", trace.summary().c_str());  // a table
      for (const Lateness& l : trace.lateness())     // or the numbers
        if (l.last > 5) std::printf("rank %d came last %ld times\n", l.rank, long(l.last));
    }
  });
}

void die_on_purpose() {
  try {
    spawn_ranks(3,
                [] {
                  Tensor x = ones({4});
                  for (int step = 0; step < 10; ++step) all_reduce(x, {.op = Reduce::max});
                },
                {.faults = {{.kind = Fault::kill, .rank = 2, .call = 5},
                            {.kind = Fault::delay, .probability = 0.1, .time = 1ms}}});
  } catch (const Error& e) {
    std::printf("%s\n", e.what());
  }
}

void wait_in_a_circle() {
  try {
    spawn_ranks(2, [] {
      Group one = world().subgroup({0, 1}), two = world().subgroup({1, 0});
      Tensor x = ones({4});
      bool first = rank() == 0;
      all_reduce(x, {.group = first ? one : two});  // in another order on each rank
      all_reduce(x, {.group = first ? two : one});
    });
  } catch (const DeadlockError& e) {
    std::printf("%s\n", e.what());
  }
}

void try_out_a_fault() {
  InjectFaults guard({{.kind = Fault::fail, .call = 0, .collective = "barrier"}});
  try {
    barrier();
  } catch (const InjectedError& e) {
    std::printf("%s\n", e.what());
  }
}

int main(int argc, char** argv) {
  flags::Options("slow_rank", "Finds a slow rank, lets one die, and lets two wait for each other.").parse(argc, argv);
  std::string path = (std::filesystem::temp_directory_path() / "tutti-example-trace.json").string();
  who_is_slow(path);
  std::filesystem::remove(path);
  die_on_purpose();
  wait_in_a_circle();
  try_out_a_fault();
}
