// Matrix products beside bare oneDNN. A program of its own, without libtorch: PyTorch's library has a oneDNN of its own
// inside, and where both are in one process, Debian's calls functions of the other and computes nothing.
#include <fmt/format.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <stdexcept>

#include "base/isa.h"
#include "bench/support/figure.h"
#include "bench/support/products.h"
#include "tutti/tutti.h"

using namespace bench;
using tutti::Tensor;

namespace {

// What bare oneDNN does for one of the three products of a layer.
Contender by_onednn(const Product& p, int threads) {
  bool grad_a = p.part == Product::Part::grad_a, grad_b = p.part == Product::Part::grad_b;
  int64_t rows = grad_b ? p.k : p.m, columns = grad_a ? p.k : p.n, depth = grad_a ? p.n : grad_b ? p.m : p.k;
  Tensor left = uniform({rows * depth}), right = uniform({depth * columns}), out = uniform({rows * columns});
  return {"onednn", [=](int64_t iterations) {
            omp_set_num_threads(threads);
            for (; iterations > 0; --iterations) {
              dnnl_status_t status = dnnl_sgemm(grad_b ? 'T' : 'N', grad_a ? 'T' : 'N', rows, columns, depth, 1.0f,
                                                left.data<float>(), grad_b ? rows : depth, right.data<float>(),
                                                grad_a ? depth : columns, 0.0f, out.data<float>(), columns);
              if (status != dnnl_success) throw std::runtime_error(fmt::format("dnnl_sgemm failed: {}", int(status)));
            }
          }};
}

void report_product(const Options& options, const Product& p, int threads) {
  std::string name = p.name(threads);
  if (!options.wants(name)) return;
  tutti::context().threads = threads;
  omp_set_num_threads(threads);
  auto t = measure({p.by_tutti(), by_onednn(p, threads)}, time_for(threads), options);
  report({.name = name,
          .value = t[0].median * 1e6,
          .unit = "us",
          .peer = "onednn",
          .peer_value = t[1].median * 1e6,
          .want = {Want::ratio_at_most, 1.05},
          .extra = {{"gflops", p.gflop() / t[0].median},
                    {"best", t[0].best * 1e6},
                    {"best_onednn", t[1].best * 1e6},
                    {"spread", t[0].spread},
                    {"others", t[0].others}}});
}

}  // namespace

int main(int argc, char** argv) {
  Options options = start(argc, argv, "Measures matrix products and their gradients, beside bare oneDNN.");
  std::vector<int> threads = options.threads ? std::vector{options.threads} : std::vector{1, 2};
  if (!options.threads && cores() < 2) threads.pop_back();
  const char* isa[] = {"base", "v3", "v4"};
  const dnnl_version_t* v = dnnl_version();
  print_header(
      "matmul", threads,
      fmt::format("isa={} onednn={}.{}.{}", isa[static_cast<int>(tutti::best_isa())], v->major, v->minor, v->patch),
      "us a matrix product m x k x n and its two gradients; processor time with 1 thread, wall time with more");
  for (int t : threads) for_each_product([&](const Product& p) { report_product(options, p, t); });
  report_summary();
}
