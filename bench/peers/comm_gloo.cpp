// all_reduce by Gloo, over TCP: its arguments are the number of ranks, which it forks, and sizes in bytes; it prints
// "bytes seconds" for each.
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <vector>

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void measure(int rank, int ranks, const char* folder, int sizes, char** size) {
  gloo::transport::tcp::attr attr("127.0.0.1");
  auto device = gloo::transport::tcp::CreateDevice(attr);
  gloo::rendezvous::FileStore store(folder);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  context->connectFullMesh(store, device);
  for (int a = 0; a < sizes; ++a) {
    long bytes = std::atol(size[a]);
    std::vector<float> x(static_cast<size_t>(bytes) / 4, 0.f);
    auto once = [&] {
      gloo::AllreduceOptions options(context);
      options.setOutput(x.data(), x.size());
      options.setReduceFunction([](void* c, const void* a, const void* b, size_t n) { gloo::sum<float>(c, a, b, n); });
      gloo::allreduce(options);
    };
    auto many = [&](long n) {
      gloo::BarrierOptions barrier(context);
      gloo::barrier(barrier);
      double begin = now();
      for (long i = 0; i < n; ++i) once();
      return now() - begin;
    };
    many(3);
    double first = many(3) / 3;
    gloo::BroadcastOptions broadcast(context);
    broadcast.setOutput(&first, 1);
    broadcast.setRoot(0);
    gloo::broadcast(broadcast);
    long n = std::clamp(static_cast<long>(0.03 / first), 3L, 20000L);
    std::vector<double> samples;
    for (int s = 0; s < 5; ++s) samples.push_back(many(n) / static_cast<double>(n));
    std::sort(samples.begin(), samples.end());
    if (rank == 0) std::printf("%ld %.9g\n", bytes, samples[2]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 1;
  int ranks = std::atoi(argv[1]), rank = 0;
  char folder[] = "/tmp/tutti-gloo-XXXXXX";
  if (!mkdtemp(folder)) return 1;
  for (int r = 1; r < ranks && rank == 0; ++r)
    if (fork() == 0) rank = r;
  measure(rank, ranks, folder, argc - 2, argv + 2);
  if (rank != 0) return 0;
  while (wait(nullptr) > 0) {
  }
  std::filesystem::remove_all(folder);
}
