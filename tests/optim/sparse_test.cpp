// Optimizers that take sparse gradients: any number of threads, resumed runs, every layout of the table.
#include <functional>

#include "tests/support/compare.h"
#include "tests/support/npz.h"
#include "tutti/context.h"
#include "tutti/io.h"
#include "tutti/ops.h"
#include "tutti/optim.h"
#include "tutti/random.h"

namespace tutti::test {
namespace {

using namespace optim;

struct SparseCase {
  const char* name;
  std::function<std::unique_ptr<Optimizer>(const TensorList&)> make;
};

template <class O, class Options>
SparseCase with(const char* name, const Options& options) {
  return {name, [=](const TensorList& p) { return std::make_unique<O>(p, options); }};
}

std::vector<SparseCase> sparse_cases() {
  return {with<SGD>("SGD", SGDOptions{.lr = 0.1}),
          with<SGD>("SGD upwards", SGDOptions{.lr = 0.1, .maximize = true}),
          with<Adagrad>("Adagrad", AdagradOptions{.lr = 0.1, .lr_decay = 0.1}),
          with<Adagrad>("Adagrad upwards", AdagradOptions{.lr = 0.1, .initial = 0.5, .maximize = true}),
          with<SparseAdam>("SparseAdam", SparseAdamOptions{.lr = 0.05, .beta1 = 0.8}),
          with<SparseAdam>("SparseAdam upwards", SparseAdamOptions{.lr = 0.05, .eps = 0.1, .maximize = true})};
}

constexpr int64_t kRows = 2000, kWidth = 33;

// Gradients of lookups: many rows, most of them more than once.
void do_sparse_steps(Optimizer& optimizer, const Tensor& table, int first, int last) {
  for (int step = first; step < last; ++step) {
    manual_seed(static_cast<uint64_t>(100 + step));
    Tensor rows = randint(0, kRows / 2, {1, kRows}) * (step % 2 + 1);
    table.set_grad(sparse_coo(rows, randn({kRows, kWidth}).to(table.dtype()), {kRows, kWidth}));
    optimizer.step();
  }
}

Tensor table_of(DType dtype) {
  manual_seed(7);
  return randn({kRows, kWidth}).to(dtype).requires_grad_();
}

TEST(SparseOptimizer, PlainStepsAgreeWithPyTorch) {
  const Npz golden("tests/golden/optim.npz");
  Tensor rows = golden.read("rows"), steps = golden.read("values"), expected = golden.read("sparse.sgd.plain/table");
  for (DType dtype : {f64, f32}) {
    Tensor table = golden.read("start/table").to(dtype).clone().requires_grad_();
    SGD sgd({table}, {.lr = 0.1});
    for (int64_t i = 0; i < rows.size(0); ++i) {
      table.set_grad(sparse_coo(rows[i].unsqueeze(0), steps[i].to(dtype), table.sizes()));
      sgd.step();
      EXPECT_TRUE(close(table.detach(), expected[i], dtype == f64 ? 1e-10 : 5e-6)) << "after step " << i + 1;
    }
  }
}

TEST(SparseOptimizer, ThreadsDoNotChangeResults) {
  for (const SparseCase& c : sparse_cases()) {
    auto run = [&](int threads) {
      ThreadsGuard guard(threads);
      Tensor table = table_of(f32);
      auto optimizer = c.make({table});
      do_sparse_steps(*optimizer, table, 0, 3);
      return table.detach();
    };
    Tensor one = run(1);
    EXPECT_TRUE(identical(run(2), one)) << c.name;
    EXPECT_TRUE(identical(run(3), one)) << c.name;
    EXPECT_FALSE(identical(one, table_of(f32).detach())) << c.name;
  }
}

TEST(SparseOptimizer, StatesContinueBitForBit) {
  for (DType dtype : {f32, f64, bf16})
    for (const SparseCase& c : sparse_cases()) {
      Tensor table = table_of(dtype);
      auto whole = c.make({table});
      do_sparse_steps(*whole, table, 0, 3);
      std::string kept = io::state_to_bytes(whole->state());
      Tensor twin = table.detach().clone().requires_grad_(), unloaded = table.detach().clone().requires_grad_();
      do_sparse_steps(*whole, table, 3, 6);
      auto fresh = c.make({twin});
      fresh->set_lr(123);
      fresh->load_state(io::state_from_bytes(kept, "here"));
      do_sparse_steps(*fresh, twin, 3, 6);
      EXPECT_TRUE(identical(twin.detach(), table.detach())) << c.name << " in " << name(dtype);
      if (std::string(c.name).starts_with("SGD")) continue;  // it keeps nothing, so that nothing could be missing
      auto forgetful = c.make({unloaded});
      do_sparse_steps(*forgetful, unloaded, 3, 6);
      EXPECT_FALSE(identical(unloaded.detach(), table.detach())) << c.name;
    }
}

TEST(SparseOptimizer, AnyLayoutGivesTheSame) {
  for (const SparseCase& c : sparse_cases()) {
    auto run = [&](Tensor table) {
      auto optimizer = c.make({table.requires_grad_()});
      do_sparse_steps(*optimizer, table, 0, 2);
      return table.detach().contiguous();
    };
    Tensor start = table_of(f32).detach(), expected = run(start.clone());
    for (Arrangement a : {Arrangement::transposed, Arrangement::stepped})
      EXPECT_TRUE(identical(run(arrange(start, a)), expected)) << c.name << " " << name(a);
  }
}

}  // namespace
}  // namespace tutti::test
