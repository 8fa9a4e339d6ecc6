// What tests of parallel training need: models, and what one process does with the batches of all ranks.
#pragma once

#include <map>

#include "tests/support/expect.h"
#include "tutti/testing.h"
#include "tutti/tutti.h"

namespace tutti::test {

using parallel::DistributedDataParallel;

/// On every transport; ranks that wait for each other in vain give up soon enough for whoever looks at the test.
template <int... sizes>
struct QuickTest : harness::TransportTest<sizes...> {
#if defined(TUTTI_SANITIZE_THREAD) || defined(TUTTI_SANITIZE_ADDRESS)
  static constexpr std::chrono::seconds kPatience{120};  // everything is slower there
#else
  static constexpr std::chrono::seconds kPatience{20};
#endif
  SpawnOptions options() const override { return {.timeout = kPatience}; }
};

struct Mlp : nn::Module<Mlp> {
  nn::Linear first{6, 8}, second{8, 8}, last{8, 3};
  TUTTI_FIELDS(first, second, last)
  Tensor forward(const Tensor& x) { return last(tanh(second(tanh(first(x))))); }
};

/// Another place for gradients, as a context of distributed autograd has.
class Table final : public GradientSink {
 public:
  void accumulate(const Tensor& leaf, Tensor gradient) override {
    Tensor& sum = table_[leaf.impl()];
    sum = sum.defined() ? sum + gradient : gradient.clone();
  }
  Tensor gradient(const Tensor& leaf) override {
    auto found = table_.find(leaf.impl());
    return found == table_.end() ? Tensor() : found->second;
  }
  void set_gradient(const Tensor& leaf, Tensor gradient) override { table_[leaf.impl()] = std::move(gradient); }

 private:
  std::map<TensorImpl*, Tensor> table_;
};

/// A module that begins the same on all ranks, in f64.
template <class M, class... Args>
M seeded(Args&&... args) {
  manual_seed(11);
  M m(std::forward<Args>(args)...);
  m.to(f64);
  return m;
}
/// The same numbers on all ranks, of this step.
inline Tensor numbers(const Shape& sizes, uint64_t seed) {
  manual_seed(1000 + seed);
  return randn(sizes, {f64});
}
/// This rank's rows of what all ranks have together.
inline Tensor mine(const Tensor& x, int64_t rows_each) { return x.narrow(0, rank() * rows_each, rows_each); }

inline void expect_close(const Tensor& found, const Tensor& wanted, const std::string& what, double tolerance = 1e-12) {
  ASSERT_EQ(found.defined(), wanted.defined()) << what;
  if (!found.defined()) return;
  Tensor a = found.is_sparse() ? found.to_dense() : found, b = wanted.is_sparse() ? wanted.to_dense() : wanted;
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_TRUE(a.detach().allclose(b.detach(), tolerance, tolerance))
      << what << ": " << to_string(a.detach()) << "\nnot\n"
      << to_string(b.detach());
}
/// Gradients of one module's parameters against another's.
inline void expect_same_gradients(const nn::ModuleBase& found, const nn::ModuleBase& wanted, double tolerance = 1e-12) {
  auto a = found.named_parameters(), b = wanted.named_parameters();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first);
    expect_close(a[i].second.grad(), b[i].second.grad(), a[i].first, tolerance);
  }
}
inline void expect_same_values(const nn::ModuleBase& found, const nn::ModuleBase& wanted, double tolerance = 1e-12) {
  for (auto a = found.state_dict(), b = wanted.state_dict(); auto& [name, value] : a)
    expect_close(value, b.at(name), name, tolerance);
}

}  // namespace tutti::test
