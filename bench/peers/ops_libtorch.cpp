// The work of bench/ops.cpp, by libtorch.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <torch/csrc/api/include/torch/version.h>

#include <functional>
#include <string_view>

#include "bench/support/peer.h"

namespace {

using Work = std::function<void(int64_t)>;

template <class F>
Work repeat(F once) {
  return [once](int64_t iterations) mutable {
    for (; iterations > 0; --iterations) once();
  };
}

at::Tensor uniform(at::IntArrayRef sizes) { return at::empty(sizes).uniform_(-2, 2); }

template <class F>
Work pointwise(at::IntArrayRef sizes, F f) {
  return repeat([x = uniform(sizes), f] { f(x); });
}

// sizes: elements, nodes
template <class F>
Work chain(at::IntArrayRef sizes, F step) {
  at::Tensor x = uniform(sizes[0]).set_requires_grad(true), one = at::ones(sizes[0]);
  return repeat([=, nodes = sizes[1]] {
    at::Tensor h = x;
    for (int64_t i = 0; i < nodes; ++i) h = step(h, one);
    h.backward(one);
    x.mutable_grad().reset();
  });
}

Work layer_norm(at::IntArrayRef sizes) {
  at::Tensor x = uniform(sizes), w = uniform(sizes[1]), b = uniform(sizes[1]);
  return repeat([=] { (x - x.mean(-1, true)) * at::rsqrt(x.var(-1, false, true) + 1e-5) * w + b; });
}

// sizes: m, k, n. Forward, and the gradients of either factor.
Work product(std::string_view which, at::IntArrayRef s) {
  at::Tensor a = uniform({s[0], s[1]}), b = uniform({s[1], s[2]}), g = uniform({s[0], s[2]});
  at::Tensor left = which == "mm" ? a : which == "mm_grad_a" ? g : a.t();
  at::Tensor right = which == "mm" ? b : which == "mm_grad_a" ? b.t() : g;
  return repeat([=] { at::mm(left, right); });
}

Work prepare(std::string_view work, at::IntArrayRef s) {
  if (work == "add") return repeat([x = uniform(s), y = uniform(s)] { at::add(x, y); });
  if (work == "add_recorded")
    return repeat([x = uniform(s).set_requires_grad(true), y = uniform(s)] { at::add(x, y); });
  if (work == "relu") return pointwise(s, [](const at::Tensor& x) { at::relu(x); });
  if (work == "tanh") return pointwise(s, [](const at::Tensor& x) { at::tanh(x); });
  if (work == "gelu") return pointwise(s, [](const at::Tensor& x) { at::gelu(x); });
  if (work == "sum") return pointwise(s, [](const at::Tensor& x) { at::sum(x); });
  if (work == "softmax") return pointwise(s, [](const at::Tensor& x) { at::softmax(x, -1); });
  if (work == "layer_norm") return layer_norm(s);
  if (work == "chain_add") return chain(s, [](const at::Tensor& h, const at::Tensor& y) { return at::add(h, y); });
  if (work == "chain_mul") return chain(s, [](const at::Tensor& h, const at::Tensor& y) { return at::mul(h, y); });
  if (work == "chain_tanh") return chain(s, [](const at::Tensor& h, const at::Tensor&) { return at::tanh(h); });
  if (work.starts_with("mm")) return product(work, s);
  return {};
}

}  // namespace

BenchPeerWork bench_libtorch_prepare(const char* work, const int64_t* sizes, int count) {
  Work prepared = prepare(work, at::IntArrayRef(sizes, static_cast<size_t>(count)));
  if (!prepared) return {};
  return {new Work(std::move(prepared)), [](void* state, int64_t n) { (*static_cast<Work*>(state))(n); },
          [](void* state) { delete static_cast<Work*>(state); }};
}

void bench_libtorch_set_threads(int threads) {
  at::set_num_threads(threads);
  // Its products are OpenBLAS's, which has threads of its own.
  using Set = void (*)(int);
  if (auto set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))) set(threads);
}

const char* bench_libtorch_version() { return TORCH_VERSION; }
