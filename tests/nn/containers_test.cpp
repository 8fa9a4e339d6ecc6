// Modules made of modules, and lists and maps of parameters.
#include "tests/nn/names.h"
#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tutti/nn.h"
#include "tutti/optim.h"

namespace tutti::test {
namespace {

using namespace nn;
using testing::ElementsAre;
using testing::HasSubstr;

// Arguments of forward that have defaults can be left out, as in a direct call.
TEST(AnyModule, HonoursDefaultArguments) {
  manual_seed(1);
  TransformerEncoderLayer layer(8, 2, {.feedforward = 8, .dropout = 0});
  Linear in(4, 8);
  Sequential net(in, layer);
  Tensor x = randn({3, 2, 4});
  EXPECT_TRUE(identical(net(x), layer(in(x))));
  AnyModule any = layer;
  AttendOptions causal{.causal = true};
  Tensor h = in(x);
  EXPECT_TRUE(identical(any(h, causal), layer(h, causal)));
  EXPECT_FALSE(identical(any(h, causal), any(h)));
  EmbeddingBag bag(5, 3, {.mode = BagMode::sum});
  Tensor ids = tensor({{1, 2}, {0, 4}});
  EXPECT_TRUE(identical(Sequential(bag)(ids), bag(ids)));
  Sequential encoder(TransformerEncoder(4, 2, 2, {.feedforward = 8, .dropout = 0}), Linear(4, 1));
  EXPECT_EQ(encoder(x).sizes(), (Shape{3, 2, 1}));
  AnyModule lstm = LSTM(4, 3);
  EXPECT_EQ(lstm.call<LstmResult>(x).output.sizes(), (Shape{3, 2, 3}));
  EXPECT_EQ(message_of<ValueError>([&] { any(h, 1.0); }),
            "AnyModule: TransformerEncoderLayer takes (Tensor[, AttendOptions]), but was called with (Tensor, double)");
  EXPECT_THAT(message_of<ValueError>([&] { any.call<Tensor>(); }), HasSubstr("was called with ()"));
  // Hooks see the arguments that were given.
  size_t seen = 9;
  any.module().register_forward_pre_hook([&](ModuleBase&, TensorList& inputs) { seen = inputs.size(); });
  any(h);
  EXPECT_EQ(seen, 1u);
}

struct Branches : Module<Branches> {
  ModuleList list{Linear(2, 3), ReLU(), Linear(3, 2)};
  ModuleDict heads{{"b", Linear(2, 1)}, {"a", Linear(2, 4)}};
  ParameterList scales{ones({2}), zeros({1})};
  ParameterDict shifts{{"y", ones({2})}, {"x", zeros({2})}};
  TUTTI_FIELDS(list, heads, scales, shifts)
  Tensor forward(const Tensor& x, const std::string& head) {
    Tensor y = x;
    for (AnyModule& m : list) y = m(y);
    return heads[head](y * scales[0] + shifts["y"]);
  }
};

TEST(Containers, ListsAndMapsArePartOfTheTree) {
  Branches net;
  EXPECT_THAT(
      names(net.named_parameters()),
      ElementsAre("list.0.weight", "list.0.bias", "list.2.weight", "list.2.bias", "heads.a.weight", "heads.a.bias",
                  "heads.b.weight", "heads.b.bias", "scales.0", "scales.1", "shifts.x", "shifts.y"));
  EXPECT_EQ(net.list.size(), 3u);
  EXPECT_EQ(net.heads.size(), 2u);
  EXPECT_TRUE(net.heads.contains("a"));
  EXPECT_FALSE(net.heads.contains("c"));
  EXPECT_TRUE(net.shifts.contains("x"));
  EXPECT_EQ(net.scales.size(), 2u);
  EXPECT_THROW(net.list[3], IndexError);
  EXPECT_THROW(net.scales[2], IndexError);
  Tensor x = randn({3, 2});
  EXPECT_EQ(net(x, std::string("a")).sizes(), (Shape{3, 4}));
  EXPECT_EQ(net(x, std::string("b")).sizes(), (Shape{3, 1}));
  net(x, std::string("b")).sum().backward();
  EXPECT_TRUE(net.scales[0].grad().defined());
  EXPECT_TRUE(net.heads["b"].get<Linear>().weight.grad().defined());
  EXPECT_FALSE(net.heads["a"].get<Linear>().weight.grad().defined());
}

TEST(Containers, GrowAndKeepTheirState) {
  Branches net;
  net.list.push_back(Linear(2, 2));
  net.heads.insert("c", Linear(2, 5));
  net.scales.push_back(Parameter(full({3}, 2)));
  net.shifts.insert("z", Parameter(ones({1})));
  Branches other = net.clone();
  {
    NoGrad guard;
    for (Tensor p : net.parameters()) p.fill_(3);
  }
  Tensor x = ones({1, 2});
  EXPECT_FALSE(identical(net(x, std::string("c")), other(x, std::string("c"))));
  other.load_state_dict(net.state_dict());
  EXPECT_TRUE(identical(net(x, std::string("c")), other(x, std::string("c"))));
  EXPECT_TRUE(net.state_dict().contains("scales.2"));
  EXPECT_TRUE(net.state_dict().contains("shifts.z"));
  net.eval();
  for (auto& [name, m] : net.heads) EXPECT_FALSE(m.module().is_training()) << name;
}

TEST(Containers, LookingUpAddsNothing) {
  ModuleDict modules{{"body", Linear(2, 3)}, {"head", ReLU()}};
  EXPECT_THAT(
      message_of<IndexError>([&] { modules["typo"]; }),
      testing::AllOf(HasSubstr("ModuleDict has no entry 'typo'"), HasSubstr("body, head"), HasSubstr("insert")));
  EXPECT_EQ(modules.size(), 2u);
  const ModuleDict& same = modules;
  EXPECT_EQ(same["body"].module().type_name(), "Linear");
  EXPECT_THROW(same["typo"], IndexError);
  modules.insert("tail", Linear(3, 1));
  EXPECT_EQ(modules["tail"](ones({3})).sizes(), Shape{1});
  EXPECT_THAT(message_of<ValueError>([&] { modules.insert("tail", ReLU()); }), HasSubstr("already"));
  modules["tail"] = ReLU();
  EXPECT_EQ(modules["tail"].module().type_name(), "ReLU");
  for (const char* name : {"", "a.b"}) EXPECT_THROW(modules.insert(name, ReLU()), ValueError);
  EXPECT_THROW((ModuleDict{{"a", ReLU()}, {"a", Tanh()}}), ValueError);

  ParameterDict parameters;
  EXPECT_THAT(message_of<IndexError>([&] { parameters["typo"]; }), HasSubstr("it has none"));
  EXPECT_EQ(parameters.size(), 0u);
  parameters.insert("scale", ones({2}));
  EXPECT_EQ(names(parameters.named_parameters()), std::vector<std::string>{"scale"});
  EXPECT_THROW(parameters.insert("scale", ones({2})), ValueError);
  parameters["scale"] = zeros({3});
  EXPECT_EQ(std::as_const(parameters)["scale"].sizes(), Shape{3});
  EXPECT_THROW(std::as_const(parameters)["typo"], IndexError);
}

struct Scaled : Module<Scaled> {
  TUTTI_FIELDS()
  Tensor forward(const Tensor& x, double factor, int64_t times, const std::string& name) {
    return name == "inverse" ? x / (factor * static_cast<double>(times)) : x * (factor * static_cast<double>(times));
  }
};

TEST(AnyModule, TakesWholeNumbersForOthers) {
  AnyModule any = Scaled();
  EXPECT_EQ(values(any(ones({1}), 3, 2, std::string("plain"))), (Doubles{6}));
  EXPECT_EQ(values(any(ones({1}), 0.5f, 2, std::string("plain"))), (Doubles{1}));
  EXPECT_EQ(
      message_of<ValueError>([&] { any(ones({1}), 3, 2.5, std::string()); }),
      "AnyModule: Scaled takes (Tensor, double, long, string), but was called with (Tensor, long, double, string)");
  any.module().register_forward_pre_hook([](ModuleBase&, TensorList&) {});
  EXPECT_EQ(values(any(ones({1}), 4, 2, std::string("inverse"))), (Doubles{0.125}));
}

TEST(Containers, IdentityFlattenAndUnflatten) {
  Tensor x = arange(24).reshape({2, 3, 4});
  EXPECT_TRUE(Identity()(x).is_same(x));
  EXPECT_EQ(Flatten()(x).sizes(), (Shape{2, 12}));
  EXPECT_EQ(Flatten(0)(x).sizes(), Shape(24));
  EXPECT_EQ(Flatten(0, 1)(x).sizes(), (Shape{6, 4}));
  EXPECT_EQ(Flatten(-2, -1)(x).sizes(), (Shape{2, 12}));
  EXPECT_TRUE(identical(Flatten()(x), x.reshape({2, 12})));
  EXPECT_EQ(Unflatten(2, {2, 2})(x).sizes(), (Shape{2, 3, 2, 2}));
  EXPECT_EQ(Unflatten(-1, {2, -1})(x).sizes(), (Shape{2, 3, 2, 2}));
  EXPECT_EQ(Unflatten(0, {1, 2})(x).sizes(), (Shape{1, 2, 3, 4}));
  EXPECT_TRUE(identical(Flatten(1)(Unflatten(1, {3, 1})(x)), x.reshape({2, 12})));
  EXPECT_THAT(message_of<ShapeError>([&] { Unflatten(3, {2, 2})(x); }), HasSubstr("no dim 3"));
  EXPECT_THROW(Unflatten(1, {2, 2})(x), ShapeError);
}

}  // namespace
}  // namespace tutti::test
