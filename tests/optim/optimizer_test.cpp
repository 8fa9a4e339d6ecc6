// Optimizers against PyTorch's (tests/golden/optim.py), their states, groups, dtypes, layouts and errors.
#include <functional>

#include "tests/optim/golden.h"
#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tests/support/scratch.h"
#include "tutti/io.h"
#include "tutti/optim.h"

namespace tutti::test {
namespace {

using namespace optim;
using testing::HasSubstr;

constexpr int kSteps = 20;
using Made = std::unique_ptr<Optimizer>;
using Make = std::function<Made(const TensorList&)>;

template <class O, class Options>
Make maker(const Options& options) {
  return [=](const TensorList& p) { return std::make_unique<O>(p, options); };
}

struct Case {
  const char* name;
  Make make;
  bool complex = true;
};

std::vector<Case> cases() {
  using A = AdamOptions;
  using W = AdamWOptions;
  return {
      {"sgd", maker<SGD>(SGDOptions{.lr = 0.1})},
      {"sgd.momentum", maker<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9})},
      {"sgd.dampening", maker<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.3})},
      {"sgd.decay", maker<SGD>(SGDOptions{.lr = 0.1, .weight_decay = 0.2})},
      {"sgd.nesterov", maker<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.8, .weight_decay = 0.1, .nesterov = true})},
      {"sgd.maximize", maker<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .maximize = true})},
      {"adam", [](const TensorList& p) { return std::make_unique<Adam>(p); }},
      {"adam.betas", maker<Adam>(A{.lr = 0.05, .beta1 = 0.7, .beta2 = 0.8, .eps = 1e-2})},
      {"adam.decay", maker<Adam>(A{.lr = 0.05, .weight_decay = 0.2})},
      {"adam.amsgrad", maker<Adam>(A{.lr = 0.05, .beta2 = 0.6, .amsgrad = true})},
      {"adam.maximize", maker<Adam>(A{.lr = 0.05, .weight_decay = 0.1, .maximize = true})},
      {"adamw", [](const TensorList& p) { return std::make_unique<AdamW>(p); }},
      {"adamw.decay", maker<AdamW>(W{.lr = 0.05, .weight_decay = 0.3})},
      {"adamw.amsgrad", maker<AdamW>(W{.lr = 0.05, .beta1 = 0.8, .beta2 = 0.6, .eps = 1e-3, .amsgrad = true})},
      {"adamw.maximize", maker<AdamW>(W{.lr = 0.05, .weight_decay = 0.1, .maximize = true})},
      {"adagrad", [](const TensorList& p) { return std::make_unique<Adagrad>(p); }},
      {"adagrad.lr_decay", maker<Adagrad>(AdagradOptions{.lr = 0.1, .lr_decay = 0.2})},
      {"adagrad.decay", maker<Adagrad>(AdagradOptions{.lr = 0.1, .weight_decay = 0.2})},
      {"adagrad.initial", maker<Adagrad>(AdagradOptions{.lr = 0.1, .initial = 0.5, .eps = 1e-2})},
      {"adagrad.maximize", maker<Adagrad>(AdagradOptions{.lr = 0.1, .weight_decay = 0.1, .maximize = true})},
      {"rmsprop", [](const TensorList& p) { return std::make_unique<RMSprop>(p); }},
      {"rmsprop.alpha", maker<RMSprop>(RMSpropOptions{.lr = 0.02, .alpha = 0.7, .eps = 1e-2})},
      {"rmsprop.decay", maker<RMSprop>(RMSpropOptions{.lr = 0.02, .weight_decay = 0.2})},
      {"rmsprop.momentum", maker<RMSprop>(RMSpropOptions{.lr = 0.02, .alpha = 0.9, .momentum = 0.8})},
      {"rmsprop.centered", maker<RMSprop>(RMSpropOptions{.lr = 0.02, .alpha = 0.9, .centered = true})},
      {"rmsprop.all",
       maker<RMSprop>(RMSpropOptions{
           .lr = 0.02, .alpha = 0.9, .weight_decay = 0.1, .momentum = 0.5, .centered = true, .maximize = true})},
      {"lion", [](const TensorList& p) { return std::make_unique<Lion>(p); }, false},
      {"lion.decay", maker<Lion>(LionOptions{.lr = 0.02, .beta1 = 0.6, .beta2 = 0.8, .weight_decay = 0.3}), false},
      {"lion.maximize", maker<Lion>(LionOptions{.lr = 0.02, .weight_decay = 0.1, .maximize = true}), false},
  };
}

using Names = std::vector<std::string>;

DType like(const Tensor& t, DType dtype) { return !t.is_complex() ? dtype : dtype == f64 ? c128 : c64; }

TensorList start(const Names& names, DType dtype) {
  TensorList list;
  for (const std::string& n : names) {
    Tensor t = golden().read("start/" + (n == "second" ? "table" : n));
    list.push_back(t.to(like(t, dtype)).clone().requires_grad_());
  }
  return list;
}

Tensor gradient(const std::string& name, int step, DType dtype) {
  if (name == "b" && step == 4) return {};
  if (name == "table" || name == "second") {
    int at = name == "second" ? kSteps - 1 - step : step;  // the same the other way round
    return sparse_coo(golden().read("rows")[at].unsqueeze(0), golden().read("values")[at].to(dtype), {6, 2});
  }
  Tensor all = golden().read("grads/" + name);
  return all[step].to(like(all, dtype)).clone();
}

void do_steps(Optimizer& optimizer, const Names& names, int first, int last,
              const std::function<void(int)>& after = {}) {
  TensorList parameters = optimizer.parameters();
  for (int step = first; step < last; ++step) {
    for (size_t i = 0; i < names.size(); ++i)
      parameters[i].set_grad(gradient(names[i], step, to_real(parameters[i].dtype())));
    optimizer.step();
    if (after) after(step + 1);
  }
}

void expect_case(const std::string& key, const Names& names, const Make& make, DType dtype, double allowed) {
  SCOPED_TRACE(key + (dtype == f64 ? " in f64" : " in f32"));
  TensorList parameters = start(names, dtype);
  Made optimizer = make(parameters);
  TensorList expected;
  for (const std::string& n : names) {
    expected.push_back(golden().read(key + "/" + n));
    ASSERT_EQ(expected.back().size(0), kSteps);
  }
  do_steps(*optimizer, names, 0, kSteps, [&](int step) {
    for (size_t i = 0; i < names.size(); ++i)
      EXPECT_TRUE(close(parameters[i].detach(), expected[i][step - 1], allowed)) << names[i] << " after step " << step;
  });
}

TEST(Optimizer, AgreesWithPyTorch) {
  for (const Case& c : cases()) {
    Names names{"a", "b"};
    if (c.complex) names.push_back("c");
    expect_case(c.name, names, c.make, f64, 1e-10);
    expect_case(c.name, names, c.make, f32, 5e-6);
  }
}

TEST(Optimizer, SparseGradientsAgreeWithPyTorch) {
  for (DType dtype : {f64, f32}) {
    double allowed = dtype == f64 ? 1e-10 : 5e-6;
    auto agree = [&](const char* key, const Make& make) { expect_case(key, {"table"}, make, dtype, allowed); };
    agree("sparse.sgd", maker<SGD>(SGDOptions{.lr = 0.1, .maximize = true}));
    agree("sparse.adagrad", maker<Adagrad>(AdagradOptions{.lr = 0.1, .lr_decay = 0.1}));
    agree("sparse.adam", maker<SparseAdam>(SparseAdamOptions{.lr = 0.05, .beta1 = 0.8, .beta2 = 0.9}));
    agree("sparse.maximize", maker<SparseAdam>(SparseAdamOptions{.lr = 0.05, .maximize = true}));
    agree("sparse.eps", maker<SparseAdam>(SparseAdamOptions{.lr = 0.05, .eps = 0.3}));
    agree("sparse.adagrad.initial", maker<Adagrad>(AdagradOptions{.lr = 0.1, .initial = 0.5, .eps = 0.2}));
    agree("sparse.adagrad.maximize", maker<Adagrad>(AdagradOptions{.lr = 0.1, .maximize = true}));
  }
}

TEST(Optimizer, SparseGradientsLeaveOtherRowsAlone) {
  Tensor p = ones({4, 2}).requires_grad_();
  SparseAdam adam({p}, {.lr = 0.5});
  p.set_grad(sparse_coo(tensor({{2}}), ones({1, 2}), {4, 2}));
  adam.step();
  EXPECT_EQ(values(p[0]), (Doubles{1, 1}));
  EXPECT_NEAR(p[2][0].item<double>(), 0.5, 1e-6);
  p.set_grad(sparse_coo(zeros({1, 0}, {i64}), zeros({0, 2}), {4, 2}));
  adam.step();  // no rows at all
  EXPECT_EQ(values(p[0]), (Doubles{1, 1}));
}

// The first parameter with the defaults and a rate of 0.1, the second with options of its own.
template <class O, class Options>
void expect_groups(const char* key, const Options& first, const Options& second, const Names& names = {"a", "b"}) {
  for (DType dtype : {f64, f32})
    expect_case(
        key, names,
        [&](const TensorList& p) {
          return std::make_unique<O>(
              std::vector<optim::ParameterGroup<Options>>{{{p[0]}, first}, {{p.begin() + 1, p.end()}, second}});
        },
        dtype, dtype == f64 ? 1e-10 : 5e-6);
}

TEST(Optimizer, GroupsAgreeWithPyTorch) {
  expect_groups<SGD, SGDOptions>("groups.sgd", {.lr = 0.1}, {.lr = 0.3, .momentum = 0.5});
  expect_groups<Adam, AdamOptions>("groups.adam", {.lr = 0.1},
                                   {.lr = 0.3, .beta1 = 0.5, .beta2 = 0.6, .amsgrad = true});
  expect_groups<AdamW, AdamWOptions>("groups.adamw", {.lr = 0.1}, {.lr = 0.3, .beta1 = 0.5, .beta2 = 0.6, .eps = 0.1});
  expect_groups<Adagrad, AdagradOptions>("groups.adagrad", {.lr = 0.1},
                                         {.lr = 0.3, .lr_decay = 0.1, .weight_decay = 0.2, .eps = 0.1});
  expect_groups<RMSprop, RMSpropOptions>("groups.rmsprop", {.lr = 0.1},
                                         {.lr = 0.3, .alpha = 0.8, .momentum = 0.5, .centered = true});
  expect_groups<Lion, LionOptions>("groups.lion", {.lr = 0.1}, {.lr = 0.3, .beta1 = 0.5, .weight_decay = 0.2});
  expect_groups<SparseAdam, SparseAdamOptions>("groups.sparse", {.lr = 0.1}, {.lr = 0.3, .beta1 = 0.5, .eps = 0.1},
                                               {"table", "second"});
}

TEST(Optimizer, GroupsCanBeAdded) {
  using SgdGroups = std::vector<optim::ParameterGroup<SGDOptions>>;
  TensorList p = start({"a", "b"}, f32);
  SGD sgd(SgdGroups{{{p[0]}, {.lr = 0.1}}});
  sgd.add_group({p[1]}, {.lr = 0.3, .momentum = 0.5});
  EXPECT_EQ(sgd.group_count(), 2u);
  EXPECT_EQ(sgd.lr(1), 0.3);
  EXPECT_EQ(sgd.momentum(1), 0.5);
  EXPECT_TRUE(sgd.parameters(1)[0].is_same(p[1]));
  sgd.set_lr(0.7);
  EXPECT_EQ(sgd.lr(0), 0.7);
  EXPECT_EQ(sgd.lr(1), 0.7);
}

TEST(Optimizer, ZeroGradForgets) {
  TensorList p = start({"a", "b"}, f32);
  SGD sgd(p, {.lr = 0.1});
  do_steps(sgd, {"a", "b"}, 0, 1);
  sgd.zero_grad();
  EXPECT_FALSE(p[0].grad().defined());
  Tensor before = p[0].detach().clone();
  sgd.step();
  EXPECT_TRUE(identical(p[0].detach(), before));
}

TEST(Optimizer, StatesContinueBitForBit) {
  Scratch scratch;
  for (DType dtype : {f32, f64, bf16})
    for (const Case& c : cases()) {
      SCOPED_TRACE(c.name);
      Names names{"a", "b"};
      if (c.complex && dtype != bf16) names.push_back("c");
      TensorList p = start(names, dtype);
      Made whole = c.make(p);
      do_steps(*whole, names, 0, 7);
      io::save_state(scratch / "state", whole->state());
      TensorList q;
      for (const Tensor& t : p) q.push_back(t.detach().clone().requires_grad_());
      whole->set_lr(whole->lr() * 0.5);
      do_steps(*whole, names, 7, kSteps);
      // The other begins with another rate; its options come from the state.
      Made fresh = c.make(q);
      fresh->set_lr(123);
      fresh->load_state(io::load_state(scratch / "state"));
      EXPECT_EQ(fresh->lr(), whole->lr() * 2);
      fresh->set_lr(whole->lr());
      do_steps(*fresh, names, 7, kSteps);
      for (size_t i = 0; i < p.size(); ++i) EXPECT_TRUE(identical(q[i].detach(), p[i].detach())) << names[i];
    }
}

TEST(Optimizer, SparseStatesContinueBitForBit) {
  TensorList p = start({"table"}, f32);
  SparseAdam whole(p, {.lr = 0.1});
  do_steps(whole, {"table"}, 0, 7);
  io::State state = io::state_from_bytes(io::state_to_bytes(whole.state()), "here");
  TensorList q{p[0].detach().clone().requires_grad_()};
  do_steps(whole, {"table"}, 7, kSteps);
  SparseAdam fresh(q);
  fresh.load_state(state);
  do_steps(fresh, {"table"}, 7, kSteps);
  EXPECT_TRUE(identical(q[0].detach(), p[0].detach()));
}

TEST(Optimizer, AnyLayoutGivesTheSame) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    Tensor x = golden().read("start/a").to(f32).view({1, 3, 5, 1}).expand({2, 3, 5, 3}).clone();
    auto run = [&](Tensor p, bool reload) {
      Made optimizer = c.make({p.requires_grad_()});
      for (int step = 0; step < 5; ++step) {
        p.set_grad(gradient("a", step, f32).view({1, 3, 5, 1}).expand({2, 3, 5, 3}).clone());
        optimizer->step();
        if (reload && step == 2) {
          io::State state = io::state_from_bytes(io::state_to_bytes(optimizer->state()), "here");
          optimizer->load_state(state);
        }
      }
      return p.detach().contiguous();
    };
    Tensor expected = run(x.clone(), false);
    for (bool reload : {false, true})
      for (Arrangement a : {Arrangement::transposed, Arrangement::stepped, Arrangement::channels_last}) {
        Tensor p = arrange(x, a).detach();
        EXPECT_TRUE(identical(run(p, reload), expected)) << name(a);
        EXPECT_FALSE(p.is_contiguous());
      }
  }
}

TEST(Optimizer, HalfParametersFollowFullOnes) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    for (DType dtype : {bf16, f16}) {
      TensorList half = start({"a", "b"}, dtype), full = start({"a", "b"}, f32);
      Made one = c.make(half), two = c.make(full);
      do_steps(*one, {"a", "b"}, 0, kSteps);
      do_steps(*two, {"a", "b"}, 0, kSteps);
      EXPECT_EQ(half[0].dtype(), dtype);
      EXPECT_TRUE(close(half[0].detach().to(f32), full[0].detach(), dtype == bf16 ? 0.15 : 0.02));
      // What is kept is kept in f32.
      io::State state = one->state();
      const auto& slot = state["groups"].as<io::ValueList>()[0].as<io::State>()["parameters"].as<io::ValueList>()[0];
      for (const auto& [name, value] : slot.as<io::State>().entries)
        if (value.is<Tensor>()) {
          EXPECT_EQ(value.as<Tensor>().dtype(), f32) << name;
        }
    }
  }
}

TEST(Optimizer, ThreadsDoNotChangeResults) {
  for (const Case& c : cases()) {
    auto run = [&](int threads) {
      ThreadsGuard guard(threads);
      manual_seed(5);
      TensorList p{randn({50'001}).requires_grad_(), randn({7}).requires_grad_()};
      Made optimizer = c.make(p);
      for (int step = 0; step < 3; ++step) {
        for (const Tensor& t : p) t.set_grad(randn(t.sizes()));
        optimizer->step();
      }
      return p[0].detach();
    };
    EXPECT_TRUE(identical(run(2), run(1))) << c.name;
  }
}

TEST(Optimizer, CenteredVarianceStaysAVariance) {
  for (DType dtype : {f32, f64}) {
    Tensor p = zeros({8}, {dtype}).requires_grad_();
    RMSprop optimizer({p}, {.lr = 1e-6, .alpha = 0.9, .centered = true});
    for (int step = 0; step < 1000; ++step) {
      p.set_grad(tensor({0.1, 0.3, 1.7, -2.3, 1e-3, 33.3, -0.7, 5.5}).to(dtype));
      optimizer.step();
    }
    EXPECT_TRUE(isfinite(p.detach()).all().item<bool>());
  }
}

TEST(Optimizer, StepsAreSeenByAutograd) {
  Tensor p = ones({2}).requires_grad_();
  Tensor loss = (p * p).sum();
  backward({loss}, {}, {.retain_graph = true});
  SGD({p}, {.lr = 0.1}).step();
  EXPECT_THROW(loss.backward(), Error);  // p was saved, and has changed since
}

TEST(Optimizer, WrongParametersAreNamed) {
  Tensor p = ones({2}).requires_grad_(), q = ones({3}).requires_grad_();
  EXPECT_THAT(message_of<ValueError>([&] { SGD({p, q, p}, {.lr = 0.1}); }), HasSubstr("twice"));
  Adam adam({p});
  EXPECT_THAT(message_of<ValueError>([&] { adam.add_group({q, p}, {}); }), HasSubstr("twice"));
  EXPECT_EQ(adam.group_count(), 1u);
  EXPECT_THAT(message_of<ValueError>([&] { Adam({Tensor()}); }), HasSubstr("undefined"));
  EXPECT_THAT(message_of<ValueError>([&] { Adam({p * 2}); }), HasSubstr("leaf"));
  EXPECT_THAT(message_of<ValueError>([&] { Adam({ones({2}, {i64})}); }), HasSubstr("i64"));
}

TEST(Optimizer, WrongOptionsAreNamed) {
  TensorList p{ones({2}).requires_grad_()};
  auto says = [&](auto&& f, const char* text) { EXPECT_THAT(message_of<ValueError>(f), HasSubstr(text)); };
  says([&] { SGD(p, {.lr = -1}); }, "lr");
  says([&] { SGD(p, {.lr = NAN}); }, "lr");
  says([&] { SGD(p, {.momentum = -1}); }, "momentum");
  says([&] { SGD(p, {.nesterov = true}); }, "nesterov");
  says([&] { SGD(p, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}); }, "nesterov");
  says([&] { Adam(p, {.beta1 = 1}); }, "beta1");
  says([&] { Adam(p, {.beta2 = -0.1}); }, "beta2");
  says([&] { AdamW(p, {.eps = -1}); }, "eps");
  says([&] { Adam(p, {.weight_decay = -1}); }, "weight_decay");
  says([&] { SparseAdam(p, {.beta1 = 2}); }, "beta1");
  says([&] { Adagrad(p, {.lr_decay = -1}); }, "lr_decay");
  says([&] { Adagrad(p, {.initial = -1}); }, "initial");
  says([&] { RMSprop(p, {.alpha = -1}); }, "alpha");
  says([&] { RMSprop(p, {.momentum = -1}); }, "momentum");
  says([&] { Lion(p, {.beta2 = 1}); }, "beta2");
}

TEST(Optimizer, WrongGradientsChangeNothing) {
  TensorList p = start({"a", "b"}, f32);
  Adam adam(p);
  do_steps(adam, {"a", "b"}, 0, 2);
  std::string before = io::state_to_bytes(adam.state());
  Tensor kept = p[0].detach().clone();
  p[1].set_grad(sparse_coo(tensor({{2}}), ones({1}), {4}));
  EXPECT_THAT(message_of<ValueError>([&] { adam.step(); }), HasSubstr("sparse"));
  EXPECT_EQ(io::state_to_bytes(adam.state()), before);
  EXPECT_TRUE(identical(p[0].detach(), kept));
  Tensor table = ones({4, 2}).requires_grad_();
  table.set_grad(ones({4, 2}));
  SparseAdam sparse({table});
  EXPECT_THAT(message_of<ValueError>([&] { sparse.step(); }), HasSubstr("Adam takes dense"));
  table.set_grad(sparse_coo(tensor({{2}}), ones({1, 2}), {4, 2}));
  SGD momentum({table}, {.lr = 0.1, .momentum = 0.9});
  EXPECT_THAT(message_of<ValueError>([&] { momentum.step(); }), HasSubstr("without momentum"));
  Adagrad decay({table}, {.weight_decay = 0.9});
  EXPECT_THAT(message_of<ValueError>([&] { decay.step(); }), HasSubstr("without weight decay"));
}

// What is kept goes with the parameters to another dtype: f32 from f64 and back, and to half precision.
void expect_conversions(const std::string& key, const Names& names, const Make& make) {
  SCOPED_TRACE(key);
  for (DType begin : {f32, f64, bf16}) {
    TensorList p = start(names, begin), q = start(names, f64);
    Made converted = make(p), plain = make(q);
    const DType order[] = {f64, f32, bf16, f64, f16, f32, f64};
    int step = 0;
    do_steps(*converted, names, 0, 2);
    do_steps(*plain, names, 0, 2);
    for (step = 2; step < 9; ++step) {
      for (const Tensor& t : p) Tensor(t).set_data(t.detach().to(like(t, order[step - 2])));
      do_steps(*converted, names, step, step + 1);
      do_steps(*plain, names, step, step + 1);
      for (size_t i = 0; i < p.size(); ++i) {
        ASSERT_EQ(p[i].dtype(), like(p[i], order[step - 2]));
        EXPECT_TRUE(close(p[i].detach(), q[i].detach(), 0.1)) << names[i] << " at step " << step;
      }
    }
  }
}

TEST(Optimizer, StatesFollowTheDtypeOfTheParameters) {
  for (const Case& c : cases()) {
    if (std::string(c.name).starts_with("lion")) continue;  // half a bit changes the sign of a step: below
    expect_conversions(c.name, {"a", "b"}, c.make);
  }
  for (auto& [name, make] :
       std::vector<std::pair<const char*, Make>>{{"sparse.sgd", maker<SGD>(SGDOptions{.lr = 0.1})},
                                                 {"sparse.adagrad", maker<Adagrad>(AdagradOptions{.lr = 0.1})},
                                                 {"sparse.adam", maker<SparseAdam>(SparseAdamOptions{.lr = 0.05})}})
    expect_conversions(name, {"table"}, make);
  TensorList p = start({"a"}, f64);
  Lion lion(p, {.lr = 0.02});
  do_steps(lion, {"a"}, 0, 2);
  Tensor before = p[0].detach().clone();
  for (DType dtype : {f32, f64, bf16, f64}) {
    p[0].set_data(p[0].detach().to(dtype));
    do_steps(lion, {"a"}, 2, 3);
    EXPECT_LE(max(abs(p[0].detach().to(f64) - before)).item<double>(), 0.03);
    before = p[0].detach().to(f64).clone();
  }
}

TEST(Optimizer, ComplexStatesFollowToo) {
  for (const Case& c : cases()) {
    if (!c.complex) continue;
    SCOPED_TRACE(c.name);
    TensorList p = start({"c"}, f64), q = start({"c"}, f64);
    Made one = c.make(p), two = c.make(q);
    for (int step = 0; step < 6; ++step) {
      p[0].set_data(p[0].detach().to(step % 2 ? c64 : c128));
      do_steps(*one, {"c"}, step, step + 1);
      do_steps(*two, {"c"}, step, step + 1);
    }
    EXPECT_TRUE(close(p[0].detach(), q[0].detach(), 1e-5));
  }
}

TEST(Optimizer, ModulesAreConvertedWhileTheyAreTrained) {
  manual_seed(1);
  nn::Linear net(3, 2);
  Tensor x = randn({5, 3}), y = randn({5, 2});
  Adam adam(net.parameters(), {.lr = 0.05});
  double first = 0, last = 0;
  for (DType dtype : {f64, f32, f64, bf16, f32}) {
    net.to(dtype);
    for (int step = 0; step < 10; ++step) {
      adam.zero_grad();
      Tensor loss = mse_loss(net(x.to(dtype)), y.to(dtype));
      loss.backward();
      adam.step();
      last = loss.item<double>();
      if (first == 0) first = last;
    }
  }
  EXPECT_LT(last, 0.8 * first);
}

TEST(Optimizer, VersionsCanBePreserved) {
  Tensor p = ones({2}).requires_grad_();
  p.set_grad(ones({2}));
  SGD sgd({p}, {.lr = 0.1});
  uint64_t version = p.version();
  {
    PreserveVersion guard;
    sgd.step();
  }
  EXPECT_EQ(p.version(), version);
  sgd.step();
  EXPECT_GT(p.version(), version);
}

TEST(Optimizer, ParametersOfAnotherShapeAreAnError) {
  TensorList p = start({"a", "b"}, f32);
  Adam adam(p);
  do_steps(adam, {"a", "b"}, 0, 1);
  Tensor kept = p[0].detach().clone();
  p[1].set_data(zeros({1000}));
  p[1].set_grad(ones({1000}));
  EXPECT_THAT(message_of<ValueError>([&] { adam.step(); }), HasSubstr("what was kept"));
  EXPECT_TRUE(identical(p[0].detach(), kept));  // nothing has been changed
}

TEST(Optimizer, StatesAreConvertedWhenLoaded) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    TensorList p = start({"a"}, f64), q = start({"a"}, f32);
    Made from = c.make(p), into = c.make(q);
    do_steps(*from, {"a"}, 0, 3);
    into->load_state(from->state());
    q[0].set_data(p[0].detach().to(f32));
    if (std::string(c.name).starts_with("lion")) continue;
    do_steps(*from, {"a"}, 3, 5);
    do_steps(*into, {"a"}, 3, 5);
    EXPECT_TRUE(close(q[0].detach(), p[0].detach(), 1e-5));
  }
}

TEST(Optimizer, StatesThatMakeNoSenseAreRefused) {
  Tensor p = ones({4}).requires_grad_();
  p.set_grad(ones({4}));
  Adam adam({p});
  adam.step();
  std::string before = io::state_to_bytes(adam.state());
  auto refused = [&](const char* text, auto&& change) {
    io::State state = io::clone(adam.state());
    auto& group = std::get<io::State>(std::get<io::ValueList>(state["groups"].value)[0].value);
    auto& slot = std::get<io::State>(std::get<io::ValueList>(group["parameters"].value)[0].value);
    change(group, slot);
    EXPECT_THAT(message_of<Error>([&] { adam.load_state(state); }), HasSubstr(text));
    EXPECT_EQ(io::state_to_bytes(adam.state()), before);
  };
  using S = io::State;
  auto option = [](S& group, const char* name, io::Value value) {
    std::get<S>(group["options"].value)[name] = std::move(value);
  };
  refused("bool", [](S&, S& slot) { slot["mean"] = zeros({4}, {boolean}); });
  refused("i64", [](S&, S& slot) { slot["square"] = zeros({4}, {i64}); });
  refused("c64", [](S&, S& slot) { slot["square"] = zeros({4}, {c64}); });
  refused("but the parameter is", [](S&, S& slot) { slot["square"] = zeros({5}); });
  refused("but the parameter is", [](S&, S& slot) { slot["square"] = sparse_coo(tensor({{1}}), ones({1}), {4}); });
  refused("-1 steps", [](S&, S& slot) { slot["step"] = -1; });
  refused("steps", [](S&, S& slot) { slot["step"] = INT64_MAX; });
  refused("beta1", [&](S& group, S&) { option(group, "beta1", 1.5); });
  refused("lr", [&](S& group, S&) { option(group, "lr", NAN); });
  refused("lr", [&](S& group, S&) { option(group, "lr", -1); });
  refused("scaled by", [&](S& group, S&) { group["lr_scale"] = -1.0; });
  refused("scaled by", [&](S& group, S&) { group["lr_scale"] = NAN; });
}

TEST(Optimizer, StatesAreTheOptimizersOwnUnlessCloned) {
  Tensor p = ones({1}).requires_grad_();
  p.set_grad(ones({1}));
  SGD sgd({p}, {.lr = 0.1, .momentum = 0.9});
  sgd.step();
  io::State live = sgd.state(), kept = io::clone(sgd.state());
  sgd.step();
  auto momentum = [](const io::State& s) {
    const auto& slot = s["groups"].as<io::ValueList>()[0].as<io::State>()["parameters"].as<io::ValueList>()[0];
    return slot.as<io::State>()["momentum"].as<Tensor>().item<double>();
  };
  EXPECT_NEAR(momentum(live), 1.9, 1e-6);
  EXPECT_EQ(momentum(kept), 1);
}

TEST(Optimizer, AdamWDecaysByDefault) {
  Tensor p = ones({1}, {f64}).requires_grad_(), q = ones({1}, {f64}).requires_grad_();
  AdamW one({p}, {.lr = 0.1}), two(std::vector<optim::ParameterGroup<AdamWOptions>>{{{q}, {.lr = 0.1}}});
  EXPECT_EQ(one.options().weight_decay, 0.01);
  EXPECT_EQ(two.options().weight_decay, 0.01);
  for (Tensor t : {p, q}) t.set_grad(zeros({1}, {f64}));
  one.step();
  two.step();
  EXPECT_NEAR(p.item<double>(), 0.999, 1e-15);
  EXPECT_NEAR(q.item<double>(), 0.999, 1e-15);
}

TEST(Optimizer, WrongStatesAreNamedAndChangeNothing) {
  TensorList p = start({"a", "b"}, f32), q = start({"a", "b"}, f32);
  Adam adam(p), other(q, {.lr = 0.5});
  do_steps(adam, {"a", "b"}, 0, 2);
  std::string before = io::state_to_bytes(other.state());
  auto refused = [&](const io::State& state, const char* text) {
    EXPECT_THAT(message_of<Error>([&] { other.load_state(state); }), HasSubstr(text));
    EXPECT_EQ(io::state_to_bytes(other.state()), before);
  };
  refused(SGD(p, {.lr = 0.1}).state(), "SGD");
  refused(AdamW(p).state(), "AdamW");
  refused(Adam({p[0]}).state(), "1 parameters");
  refused(Adam(std::vector<optim::ParameterGroup<AdamOptions>>{{{p[0]}}, {{p[1]}}}).state(), "2 groups");
  TensorList swapped{p[1], p[0]};
  Adam turned(swapped);
  turned.step();
  refused(turned.state(), "but the parameter is");
  refused({}, "optimizer");
  io::State state = adam.state();
  auto& group = std::get<io::State>(std::get<io::ValueList>(state["groups"].value)[0].value);
  std::get<io::State>(group["options"].value).entries.pop_back();
  refused(state, "maximize");
  other.load_state(adam.state());
  EXPECT_NE(io::state_to_bytes(other.state()), before);
  EXPECT_EQ(other.lr(), 1e-3);
}

// By both parts, as dense gradients change them.
TEST(Optimizer, SparseGradientsOfComplexParameters) {
  Tensor start = complex(tensor({1.0, 2.0, 3.0}), tensor({-1.0, 0.5, 2.0}));
  Tensor values = complex(tensor({0.5, -2.0}), tensor({1.0, 0.25}));
  auto compare = [&](auto make_sparse, auto make_dense) {
    Tensor a = start.clone().requires_grad_(), b = start.clone().requires_grad_();
    auto sparse = make_sparse(a);
    auto dense = make_dense(b);
    for (int step = 0; step < 3; ++step) {
      Tensor g = sparse_coo(tensor({{0, 2}}), values, {3});
      a.set_grad(g);
      b.set_grad(to_dense(g));
      sparse.step();
      dense.step();
    }
    EXPECT_TRUE(close(a.detach(), b.detach(), 1e-12));
  };
  auto adagrad = [](const Tensor& p) { return Adagrad({p}, {.lr = 0.1, .initial = 0.5}); };
  compare(adagrad, adagrad);
  compare([](const Tensor& p) { return SparseAdam({p}, {.lr = 0.1, .eps = 1e-30}); },
          [](const Tensor& p) { return Adam({p}, {.lr = 0.1, .eps = 1e-30}); });
}

}  // namespace
}  // namespace tutti::test
