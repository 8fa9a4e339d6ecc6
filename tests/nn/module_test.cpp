// Modules as values, trees and hooks.
#include <sstream>

#include "tests/nn/names.h"
#include "tests/support/expect.h"

namespace tutti::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Block : nn::Module<Block> {
  nn::Linear inner{3, 3};
  nn::Buffer seen = zeros({1});
  nn::Buffer scratch{zeros({2}), false};
  double scale_ = 0.5;
  TUTTI_FIELDS(inner, seen, scratch, scale_)
  Tensor forward(const Tensor& x) {
    seen += 1;
    return inner(x) * scale_;
  }
};

struct Net : nn::Module<Net> {
  nn::Linear first{2, 3};
  std::vector<Block> blocks{2};
  std::map<std::string, nn::Parameter> extra{{"b", ones({2})}, {"a", zeros({1})}};
  std::optional<nn::Linear> head;
  nn::Sequential tail{nn::Linear(3, 2, {.bias = false}), nn::ReLU(), nn::Dropout(0.5)};
  TUTTI_FIELDS(first, blocks, extra, head, tail)
  Tensor forward(const Tensor& x) {
    Tensor y = first(x);
    for (Block& b : blocks) y = b(y);
    return tail(y);
  }
};

TEST(Module, NamesAreMPathsInOrderOfFields) {
  Net net;
  EXPECT_THAT(names(net.named_parameters()),
              ElementsAre("first.weight", "first.bias", "blocks.0.inner.weight", "blocks.0.inner.bias",
                          "blocks.1.inner.weight", "blocks.1.inner.bias", "extra.a", "extra.b", "tail.0.weight"));
  EXPECT_THAT(names(net.named_buffers()),
              ElementsAre("blocks.0.seen", "blocks.0.scratch", "blocks.1.seen", "blocks.1.scratch"));
  EXPECT_THAT(names(net.named_modules()), ElementsAre("", "first", "blocks.0", "blocks.0.inner", "blocks.1",
                                                      "blocks.1.inner", "tail", "tail.0", "tail.1", "tail.2"));
  EXPECT_THAT(names(net.named_children()), ElementsAre("first", "blocks.0", "blocks.1", "tail"));
  EXPECT_EQ(net.parameter_count(), 9 + 2 * 12 + 3 + 6);
  net.head = nn::Linear(2, 1);
  EXPECT_EQ(net.parameter_count(), 9 + 2 * 12 + 3 + 6 + 3);
  for (const Tensor& p : net.parameters()) EXPECT_TRUE(p.requires_grad() && p.is_leaf());
}

TEST(Module, SharedParametersCountOnce) {
  Net net;
  net.blocks[1].inner.weight = net.blocks[0].inner.weight;
  EXPECT_THAT(names(net.named_parameters()), testing::Not(testing::Contains("blocks.1.inner.weight")));
  EXPECT_TRUE(net.state_dict().contains("blocks.1.inner.weight"));
  Net twin = net.clone();
  EXPECT_TRUE(twin.blocks[0].inner.weight.is_same(twin.blocks[1].inner.weight));
  EXPECT_FALSE(twin.blocks[0].inner.weight.is_same(net.blocks[0].inner.weight));
}

TEST(Module, CopiesShareAndClonesDoNot) {
  Net net;
  Net copy = net, twin = net.clone();
  EXPECT_TRUE(copy.tail[0].get<nn::Linear>().weight.is_same(net.tail[0].get<nn::Linear>().weight));
  {
    NoGrad guard;
    net.first.weight.fill_(3);
  }
  EXPECT_EQ(copy.first.weight[0][0].item<float>(), 3);
  EXPECT_NE(twin.first.weight[0][0].item<float>(), 3);
  EXPECT_TRUE(twin.first.weight.requires_grad());
  EXPECT_FALSE(twin.blocks[0].scratch.persistent);
}

TEST(Module, TrainAndEvalReachAll) {
  Net net;
  net.eval();
  EXPECT_FALSE(net.tail[2].module().is_training());
  Tensor x = ones({4, 2});
  EXPECT_TRUE(equal(net(x), net(x)));
  net.train();
  EXPECT_TRUE(net.tail[2].module().is_training());
  int count = 0;
  std::string last;
  net.apply([&](nn::ModuleBase& m) { ++count, last = m.type_name(); });
  EXPECT_EQ(count, 10);
  EXPECT_EQ(last, "Net");
}

TEST(Module, ToConvertsInPlace) {
  Net net;
  net.extra["i"] = nn::Parameter(arange(3));
  Tensor weight = net.first.weight;
  net(ones({1, 2})).sum().backward();
  net.to(DType::f64);
  EXPECT_TRUE(weight.is_same(net.first.weight));
  EXPECT_EQ(weight.dtype(), DType::f64);
  EXPECT_EQ(weight.grad().dtype(), DType::f64);
  EXPECT_EQ(net.blocks[0].seen.dtype(), DType::f64);
  EXPECT_EQ(net.extra["i"].dtype(), DType::i64);
  EXPECT_FALSE(net.extra["i"].requires_grad());
  net.zero_grad();
  EXPECT_FALSE(weight.grad().defined());
  net(ones({1, 2}, {DType::f64})).sum().backward();
  EXPECT_TRUE(weight.grad().defined());
  net.requires_grad_(false);
  EXPECT_FALSE(net(ones({1, 2}, {DType::f64})).requires_grad());
}

TEST(Module, StateGoesThereAndBack) {
  Net from, to;
  from.blocks[0].seen.fill_(5);
  EXPECT_FALSE(from.state_dict().contains("blocks.0.scratch"));
  auto report = to.load_state_dict(from.state_dict());
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  from.eval(), to.eval();
  Tensor x = randn({3, 2});
  EXPECT_TRUE(equal(from(x), to(x)));
  EXPECT_EQ(to.blocks[0].seen.item<float>(), 6);
}

TEST(Module, AStateThatDoesNotFitIsListedWholeAndChangesNothing) {
  Net net;
  nn::StateDict state = net.clone().state_dict();
  state["first.weight"] = zeros({2, 2});
  state["blocks.1.inner.bias"] = zeros({4});
  state.erase("first.bias");
  state.erase("extra.a");
  state["nobody"] = zeros({1});
  state["tail.0.weight"].fill_(7);
  EXPECT_EQ(
      message_of<ValueError>([&] { net.load_state_dict(state); }),
      "load_state_dict: the state does not fit this Net; nothing was loaded\n"
      "  missing: first.bias, extra.a\n"
      "  unexpected: nobody\n"
      "  of another shape: first.weight (is [3, 2] here, [2, 2] there), blocks.1.inner.bias (is [3] here, [4] there)");
  EXPECT_NE(net.tail[0].get<nn::Linear>().weight[0][0].item<float>(), 7);
  state.erase("first.weight"), state.erase("blocks.1.inner.bias");
  auto report = net.load_state_dict(state, {.strict = false});
  EXPECT_THAT(report.missing, ElementsAre("first.weight", "first.bias", "blocks.1.inner.bias", "extra.a"));
  EXPECT_THAT(report.unexpected, ElementsAre("nobody"));
  EXPECT_EQ(net.tail[0].get<nn::Linear>().weight[0][0].item<float>(), 7);
}

TEST(Module, PrintsItsTree) {
  Net net;
  std::ostringstream out;
  out << net;
  EXPECT_EQ(out.str(), R"(Net(extra.a=[1], extra.b=[2])
  first: Linear(weight=[3, 2], bias=[3])  9
  blocks.0: Block(seen=[1], scratch=[2], scale=0.5)  12
    inner: Linear(weight=[3, 3], bias=[3])  12
  blocks.1: Block(seen=[1], scratch=[2], scale=0.5)  12
    inner: Linear(weight=[3, 3], bias=[3])  12
  tail: Sequential()  6
    0: Linear(weight=[2, 3], bias=none)  6
    1: ReLU()
    2: Dropout(p=0.5)
42 parameters
)");
}

struct Forgetful : nn::Module<Forgetful> {
  nn::Linear a{1, 1}, b{1, 1};
  TUTTI_FIELDS(a)
};
struct Careless : nn::Module<Careless> {
  static constexpr bool other_members = true;
  nn::Linear a{1, 1}, b{1, 1};
  TUTTI_FIELDS(a)
};
struct Heir : Block {};

TEST(Module, ForgottenMembersAreErrors) {
  EXPECT_THAT(message_of<ValueError>([] { Forgetful().parameters(); }),
              HasSubstr("Forgetful has " + std::to_string(sizeof(nn::Linear)) +
                        " bytes between a and its end that TUTTI_FIELDS does not name"));
  EXPECT_EQ(Careless().parameters().size(), 2);
  EXPECT_THAT(message_of<ValueError>([] { Heir().parameters(); }), HasSubstr("Heir is derived from Block"));
}

TEST(AnyModule, ChecksArgumentsAndResults) {
  nn::AnyModule any = nn::Bilinear(2, 3, 4);
  EXPECT_EQ(any(ones({5, 2}), ones({5, 3})).sizes(), (Shape{5, 4}));
  EXPECT_EQ(message_of<ValueError>([&] { any(ones({5, 2})); }),
            "AnyModule: Bilinear takes (Tensor, Tensor), but was called with (Tensor)");
  EXPECT_EQ(message_of<ValueError>([&] { any.get<nn::Linear>(); }), "AnyModule: holds a Bilinear, not a Linear");
  EXPECT_EQ(message_of<ValueError>([&] { nn::AnyModule()(ones({1})); }), "AnyModule: holds no module");
  struct Pair : nn::Module<Pair> {
    TUTTI_FIELDS()
    std::pair<Tensor, int> forward(const Tensor& x, float y, int n) { return {x * y, n}; }
  };
  nn::AnyModule pair = Pair();
  auto [x, n] = pair.call<std::pair<Tensor, int>>(ones({2}), 3.0, 4);
  EXPECT_EQ(values(x), (Doubles{3, 3}));
  EXPECT_EQ(n, 4);
  EXPECT_THAT(message_of<ValueError>([&] { pair(ones({2}), 3.0, 4); }),
              HasSubstr("Pair returns pair<Tensor, int>, not Tensor"));
}

// ---- Hooks

struct TwoInTwoOut : nn::Module<TwoInTwoOut> {
  TUTTI_FIELDS()
  std::tuple<Tensor, std::vector<Tensor>> forward(const std::map<std::string, Tensor>& in, int times) {
    return {in.at("a") * times, {in.at("b") * 2, in.at("a") + in.at("b")}};
  }
};

TEST(ModuleHooks, ForwardHooksSeeAndChangeTrees) {
  TwoInTwoOut net;
  auto before = net.register_forward_pre_hook([](nn::ModuleBase& m, TensorList& in) {
    EXPECT_EQ(m.type_name(), "TwoInTwoOut");
    ASSERT_EQ(in.size(), 2);
    in[1] = in[1] + 10;
  });
  auto after = net.register_forward_hook([](nn::ModuleBase&, const TensorList& in, TensorList& out) {
    EXPECT_EQ(in[1].item<int>(), 12);
    ASSERT_EQ(out.size(), 3);
    out[0] = out[0] * 100;
  });
  std::map<std::string, Tensor> in{{"a", tensor({1})}, {"b", tensor({2})}};
  auto [x, rest] = net(in, 3);
  EXPECT_EQ(x.item<int>(), 300);
  EXPECT_EQ(rest[0].item<int>(), 24);
  EXPECT_EQ(in["b"].item<int>(), 2);
  TwoInTwoOut copy = net, twin = net.clone();
  before.remove();
  after.remove();
  EXPECT_EQ(std::get<0>(net(in, 3)).item<int>(), 3);
  EXPECT_EQ(std::get<0>(copy(in, 3)).item<int>(), 3);
  EXPECT_EQ(std::get<0>(twin(in, 3)).item<int>(), 300);
  net.register_forward_hook([](nn::ModuleBase&, const TensorList&, TensorList& out) { out.clear(); });
  EXPECT_EQ(message_of<ValueError>([&] { net(in, 3); }),
            "register_forward_hook: the hook left 0 tensors where there were 3\n  in TwoInTwoOut");
}

TEST(ModuleHooks, BackwardHooksSeeAndChangeGradients) {
  TwoInTwoOut net;
  std::vector<Doubles> seen;
  net.register_backward_pre_hook([&](nn::ModuleBase&, TensorList& out) {
    ASSERT_EQ(out.size(), 3);
    EXPECT_FALSE(out[1].defined());
    seen.push_back(values(out[0]));
    out[0] = out[0] * 10;
  });
  auto handle = net.register_backward_hook([&](nn::ModuleBase& m, TensorList& in, const TensorList& out) {
    EXPECT_EQ(m.type_name(), "TwoInTwoOut");
    ASSERT_EQ(in.size(), 2);
    seen.push_back(values(out[0]));
    seen.push_back(values(in[0]));
    seen.push_back(values(in[1]));
    in[0] = in[0] + 0.5;
  });
  Tensor a = tensor({1.}).requires_grad_(), b = tensor({2.}).requires_grad_();
  auto run = [&] {
    auto [x, rest] = net(std::map<std::string, Tensor>{{"a", a}, {"b", b}}, 3);
    (x + rest[1]).sum().backward();
  };
  run();
  EXPECT_EQ(seen, (std::vector<Doubles>{{1}, {10}, {31}, {1}}));
  EXPECT_EQ(values(a.grad()), (Doubles{31.5}));
  EXPECT_EQ(values(b.grad()), (Doubles{1}));
  handle.remove();
  a.zero_grad();
  run();
  EXPECT_EQ(values(a.grad()), (Doubles{31}));
}

TEST(ModuleHooks, NestedModulesRunInsideOut) {
  Net net;
  net.eval();
  std::vector<std::string> order;
  net.apply([&](nn::ModuleBase& m) {
    m.register_forward_pre_hook([&](nn::ModuleBase& m, TensorList&) { order.push_back("> " + m.type_name()); });
    m.register_backward_hook(
        [&](nn::ModuleBase& m, TensorList&, const TensorList&) { order.push_back("< " + m.type_name()); });
  });
  net(ones({1, 2}).requires_grad_()).sum().backward();
  EXPECT_THAT(order, ElementsAre("> Net", "> Linear", "> Block", "> Linear", "> Block", "> Linear", "> Sequential",
                                 "> Linear", "> ReLU", "> Dropout", "< Dropout", "< ReLU", "< Linear", "< Sequential",
                                 "< Linear", "< Block", "< Linear", "< Block", "< Linear", "< Net"));
}

TEST(ModuleHooks, RunWithoutInputGradientsAndTwice) {
  nn::Linear net(2, 1);
  int calls = 0;
  net.register_backward_hook([&](nn::ModuleBase&, TensorList& in, const TensorList& out) {
    ++calls;
    EXPECT_FALSE(in.at(0).defined());
    EXPECT_TRUE(out.at(0).defined());
  });
  Tensor y = net(ones({3, 2})).sum();
  y.backward({}, true);
  y.backward();
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(values(net.bias.grad()), (Doubles{6}));
}

// What a hook has changed before forward can be put back, whatever happens in between.
TEST(ModuleHooks, RunWhenForwardFails) {
  Block block;
  std::vector<std::string> order;
  block.register_forward_pre_hook([&](nn::ModuleBase&, TensorList&) { order.push_back("before"); });
  block.register_forward_hook([&](nn::ModuleBase&, const TensorList&, TensorList&) { order.push_back("after"); });
  auto failure = block.register_forward_failure_hook([&](nn::ModuleBase& m) {
    order.push_back("failed " + m.type_name());
    throw ValueError("of the hook", "");
  });
  block(ones({1, 3}));
  EXPECT_THAT(order, ElementsAre("before", "after"));
  order.clear();
  EXPECT_THROW(block(ones({1, 4})), ShapeError) << "not what the hook throws";
  EXPECT_THAT(order, ElementsAre("before", "failed Block"));
  order.clear();
  auto later = block.register_forward_pre_hook([](nn::ModuleBase&, TensorList&) { throw IndexError("before", ""); });
  EXPECT_THROW(block(ones({1, 3})), IndexError);
  EXPECT_THAT(order, ElementsAre("before", "failed Block"));
  later.remove();
  order.clear();
  auto last = block.register_forward_hook(
      [](nn::ModuleBase&, const TensorList&, TensorList&) { throw IndexError("after", ""); });
  EXPECT_THROW(block(ones({1, 3})), IndexError);
  EXPECT_THAT(order, ElementsAre("before", "after", "failed Block"));
  last.remove();
  failure.remove();
  order.clear();
  EXPECT_THROW(block(ones({1, 4})), ShapeError);
  EXPECT_THAT(order, ElementsAre("before"));
}

TEST(ModuleHooks, GradientsOfGradientsPass) {
  nn::Linear net(2, 2);
  net.to(DType::f64);
  net.register_backward_hook([](nn::ModuleBase&, TensorList& in, const TensorList&) { in[0] = in[0] * 1; });
  auto f = [&](const TensorList& in) -> TensorList {
    EnableGrad on;
    Tensor x = in[0].requires_grad() ? in[0] : in[0].detach().requires_grad_();
    Tensor y = pow(net(x), 3).sum();
    return grad({y}, {x}, {.create_graph = true});
  };
  EXPECT_TRUE(gradcheck(f, {randn({2, 2}, {DType::f64}).requires_grad_()}));
}

// ---- Small layers

TEST(Linear, ComputesAndLearnsItsShape) {
  manual_seed(1);
  nn::Linear net(3, 2);
  EXPECT_LE(net.weight.abs().max().item<double>(), 1 / std::sqrt(3.0));
  Tensor x = randn({4, 5, 3});
  EXPECT_TRUE(allclose(net(x), matmul(x, net.weight.t()) + net.bias));
  EXPECT_EQ(net(randn({3})).sizes(), Shape{2});
  EXPECT_EQ(net(randn({0, 3})).sizes(), (Shape{0, 2}));
  EXPECT_THAT(message_of<ShapeError>([&] { net(randn({4, 2})); }), HasSubstr("inputs of [..., in]"));
  nn::LazyLinear lazy(7);
  EXPECT_THAT(message_of<ValueError>([&] { lazy.parameters(); }), HasSubstr("weight has no value yet"));
  EXPECT_EQ(lazy.parameter_count(), 0);
  EXPECT_THAT(message_of<ValueError>([&] { (void)nn::Sequential(lazy).state_dict(); }),
              HasSubstr("state_dict: 0.weight, 0.bias of this Sequential have no value yet"));
  EXPECT_EQ(lazy(x).sizes(), (Shape{4, 5, 7}));
  EXPECT_EQ(lazy.weight.sizes(), (Shape{7, 3}));
  nn::LazyLinear other(7);
  other.load_state_dict(lazy.state_dict());
  EXPECT_TRUE(equal(other(x), lazy(x)));
}

TEST(Init, Distributions) {
  manual_seed(3);
  Tensor w = empty({64, 32, 3}, {DType::f64});
  nn::init::kaiming_normal_(w, 0, nn::init::FanMode::in, "relu");
  EXPECT_NEAR(w.std().item<double>(), std::sqrt(2.0 / 96), 0.003);
  nn::init::xavier_uniform_(w);
  EXPECT_LE(w.abs().max().item<double>(), std::sqrt(6.0 / (96 + 192)));
  nn::init::trunc_normal_(w, 0, 1, -0.5, 1);
  EXPECT_GE(w.min().item<double>(), -0.5);
  EXPECT_LE(w.max().item<double>(), 1);
  EXPECT_NEAR(w.mean().item<double>(), 0.2007, 0.02);
  Tensor q = nn::init::orthogonal_(empty({3, 5}, {DType::f64}), 2);
  EXPECT_TRUE(allclose(q.mm(q.t()), eye(3, 3, {DType::f64}) * 4));
  Tensor tall = nn::init::orthogonal_(empty({5, 3}, {DType::f64}));
  EXPECT_TRUE(allclose(tall.t().mm(tall), eye(3, 3, {DType::f64})));
  Tensor s = nn::init::sparse_(empty({10, 4}), 0.3);
  EXPECT_EQ(values(count_nonzero(s, 0)), (Doubles{7, 7, 7, 7}));
  EXPECT_EQ(values(nn::init::dirac_(empty({2, 2, 3}))), (Doubles{0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0}));
}

struct Doubling : Block {
  Tensor forward(const Tensor& x) { return x * 2; }
};
TEST(Module, WhatDerivesFromAModuleIsRefusedAtOnce) {
  Tensor x = ones({1, 3});
  Doubling doubling;
  for (const std::string& text :
       {message_of<ValueError>([&] { doubling(x); }), message_of<ValueError>([&] { doubling.clone(); }),
        message_of<ValueError>([&] { nn::AnyModule{doubling}(x); })})
    EXPECT_THAT(text, HasSubstr("Doubling is derived from Block"));
}

TEST(Module, StaysOfNumbersThatCanBeTrained) {
  Block block;
  for (DType dtype : {i64, boolean})
    EXPECT_THAT(message_of<ValueError>([&] { block.to(dtype); }), HasSubstr("floating-point or complex"));
  EXPECT_EQ(block.inner.weight.dtype(), f32);
  block.to(bf16);
  EXPECT_EQ(block.inner.weight.dtype(), bf16);
}

// An error says which module of which net it was met in.
TEST(Module, ErrorsNameTheModuleThatFailed) {
  auto error_of = [](auto&& f) -> std::pair<std::string, std::string> {
    try {
      f();
    } catch (const ShapeError& e) {
      return {e.module(), e.what()};
    }
    return {};
  };
  Net net;
  net.eval();
  auto [module, what] = error_of([&] { net(zeros({4, 7})); });
  EXPECT_EQ(module, "Net.first (Linear)");
  EXPECT_THAT(what, testing::StartsWith("linear: "));
  EXPECT_THAT(what, testing::EndsWith("\n  in Net.first (Linear)"));
  net.blocks[1].inner = nn::Linear(5, 3);
  EXPECT_EQ(error_of([&] { net(zeros({4, 2})); }).first, "Net.blocks.1.inner (Linear)");
  net.blocks.clear();
  net.tail[0].get<nn::Linear>() = nn::Linear(5, 3);
  EXPECT_EQ(error_of([&] { net(zeros({4, 2})); }).first, "Net.tail.0 (Linear)");
  // Around hooks, and of an error of the module itself.
  net.register_forward_pre_hook([](nn::ModuleBase&, TensorList& inputs) { inputs[0] = zeros({2, 9}); });
  EXPECT_EQ(error_of([&] { net(zeros({4, 2})); }).first, "Net.first (Linear)");
  EXPECT_EQ(error_of([] { nn::Linear(2, 3)(zeros({4})); }).first, "Linear");
  EXPECT_EQ(error_of([] { zeros({2}) + zeros({3}); }).first, "");
  // A copy of a child, which the net does not know, is named from where it is known.
  struct Copying : nn::Module<Copying> {
    nn::Sequential inner{nn::Linear(2, 3)};
    TUTTI_FIELDS(inner)
    Tensor forward(const Tensor& x) { return nn::Sequential(inner)(x); }
  };
  EXPECT_EQ(error_of([] { Copying()(zeros({4, 7})); }).first, "Sequential.0 (Linear)");
}

// Copies of an error know as much as it does, and its text stays where it was read.
TEST(Module, ErrorsCanBeCopiedAndReadWhileTheyLearnMore) {
  ShapeError error("linear: no", "linear");
  const char* before = error.what();
  int here = 0;
  error.set_module(&here, "Linear");
  const char* between = error.what();
  error.set_module(&here, "Net.fc (Linear)");
  ShapeError copy = error;
  EXPECT_STREQ(before, "linear: no");
  EXPECT_STREQ(between, "linear: no\n  in Linear");
  EXPECT_STREQ(copy.what(), "linear: no\n  in Net.fc (Linear)");
  EXPECT_EQ(copy.module_address(), &here);
  EXPECT_EQ(copy.operation(), "linear");
  copy = ShapeError("add: no", "add");
  EXPECT_STREQ(copy.what(), "add: no");
  EXPECT_EQ(copy.module(), "");
  copy = error;
  EXPECT_STREQ(copy.what(), "linear: no\n  in Net.fc (Linear)");
}

}  // namespace
}  // namespace tutti::test
