// What load_state_dict refuses, and that nothing has been changed then.
#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tutti/nn.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(LoadStateDict, LazyParametersKnowPartOfTheirShape) {
  nn::LazyLinear lazy(3);
  std::string message =
      message_of<ValueError>([&] { lazy.load_state_dict({{"weight", ones({7, 2})}, {"bias", ones({9, 9})}}); });
  EXPECT_THAT(message, AllOf(HasSubstr("weight (is [3, -1] here, [7, 2] there)"),
                             HasSubstr("bias (is [3] here, [9, 9] there)"), HasSubstr("nothing was loaded")));
  EXPECT_FALSE(lazy.weight.defined() || lazy.bias.defined());
  EXPECT_THROW(lazy.load_state_dict({{"weight", ones({3})}, {"bias", ones({3})}}), ValueError);
  EXPECT_THAT(
      message_of<ValueError>([&] { lazy.load_state_dict({{"weight", ones({3, 2}, {i64})}, {"bias", ones({3})}}); }),
      HasSubstr("i64"));
  EXPECT_FALSE(lazy.bias.defined());
  lazy.load_state_dict({{"weight", ones({3, 2})}, {"bias", ones({3})}});
  EXPECT_EQ(values(lazy(ones({2}))), (Doubles{3, 3, 3}));
}

TEST(LoadStateDict, LazyModulesDrawWhatWasNotLoaded) {
  manual_seed(1);
  nn::LazyLinear one(3), two(3);
  one.load_state_dict({{"weight", zeros({3, 2})}}, {.strict = false});
  EXPECT_EQ(one(ones({2})).sizes(), Shape{3});
  ASSERT_TRUE(one.bias.defined());
  EXPECT_GT(one.bias.abs().sum().item<double>(), 0);
  EXPECT_EQ(one.weight.abs().sum().item<double>(), 0);
  two.load_state_dict({{"bias", full({3}, 5.0f)}}, {.strict = false});
  two(ones({2}));
  EXPECT_EQ(values(two.bias), (Doubles{5, 5, 5}));
  EXPECT_GT(two.weight.abs().sum().item<double>(), 0);
}

TEST(LoadStateDict, LazyModulesLoadAsTheyWereTold) {
  const nn::StateDict state{{"weight", full({3, 2}, 2.0f)}, {"bias", ones({3})}};
  nn::LazyLinear frozen(3), wide(3, {.dtype = f64}), converted(3), elsewhere(3), plain(3);
  frozen.requires_grad_(false);
  frozen.load_state_dict(state);
  EXPECT_FALSE(frozen.weight.requires_grad() || frozen.bias.requires_grad());
  converted.to(f64);
  for (nn::LazyLinear* m : {&wide, &converted}) {
    m->load_state_dict(state);
    EXPECT_EQ(m->weight.dtype(), f64);
    EXPECT_TRUE(m->weight.requires_grad() && m->weight.is_leaf());
    EXPECT_EQ(values((*m)(ones({2}, {f64}))), (Doubles{5, 5, 5}));
  }
  elsewhere.to("meta");
  elsewhere.load_state_dict(state);
  EXPECT_TRUE(elsewhere.weight.device().is_meta());
  EXPECT_EQ(elsewhere.weight.sizes(), (Shape{3, 2}));
  // Told nothing, they take what they get, but not the memory.
  plain.load_state_dict({{"weight", ones({3, 2}, {f64})}, {"bias", state.at("bias")}});
  EXPECT_EQ(plain.weight.dtype(), f64);
  EXPECT_EQ(plain.bias.dtype(), f32);
  EXPECT_FALSE(plain.bias.raw_data() == state.at("bias").raw_data());
  // What was told decides what fits.
  nn::LazyLinear real(3, {.bias = false, .dtype = f64});
  EXPECT_THAT(message_of<ValueError>([&] { real.load_state_dict({{"weight", ones({3, 2}, {c64})}}); }),
              HasSubstr("does not fit: weight"));
  real.load_state_dict({{"weight", ones({3, 2}, {i64})}});
  EXPECT_EQ(real.weight.dtype(), f64);
}

TEST(LoadStateDict, WhatIsComplexOrSparseIsListedWithTheRest) {
  nn::Linear net(2, 3);
  Tensor weight = net.weight.detach().clone(), bias = net.bias.detach().clone();
  std::string message = message_of<ValueError>(
      [&] { net.load_state_dict({{"bias", ones({3}, {c64})}, {"weight", ones({1})}, {"other", ones({1})}}); });
  EXPECT_THAT(message, AllOf(HasSubstr("weight (is [3, 2] here, [1] there)"), HasSubstr("does not fit: bias"),
                             HasSubstr("c64"), HasSubstr("unexpected: other")));
  EXPECT_THROW(net.load_state_dict({{"weight", zeros({3, 2})}, {"bias", ones({3}, {c64})}}), ValueError);
  EXPECT_THROW(net.load_state_dict({{"weight", zeros({3, 2})}, {"bias", sparse_coo(tensor({{1}}), ones({1}), {3})}}),
               ValueError);
  EXPECT_TRUE(identical(net.weight.detach(), weight));
  EXPECT_TRUE(identical(net.bias.detach(), bias));
}

// Which of the two would be the weight from then on?
TEST(LoadStateDict, TiedWeightsMustBeOfOneValue) {
  struct Tied : nn::Module<Tied> {
    nn::Linear in{2, 2, {.bias = false}}, out{2, 2, {.bias = false}};
    TUTTI_FIELDS(in, out)
    Tied() { out.weight = in.weight; }
    Tensor forward(const Tensor& x) { return out(in(x)); }
  } net;
  nn::StateDict state{{"in.weight", zeros({2, 2})}, {"out.weight", ones({2, 2})}};
  Tensor before = net.in.weight.detach().clone();
  EXPECT_THAT(message_of<ValueError>([&] { net.load_state_dict(state); }),
              HasSubstr("one tensor here, and of different values there: in.weight and out.weight"));
  EXPECT_TRUE(identical(net.in.weight.detach(), before));
  state["out.weight"] = zeros({2, 2});
  net.load_state_dict(state);
  EXPECT_TRUE(identical(net.out.weight.detach(), zeros({2, 2})));
  Tensor nan = full({2, 2}, std::nan(""));
  net.load_state_dict({{"in.weight", nan}, {"out.weight", nan.clone()}});
}

TEST(StateDict, IsTheModulesOwnUnlessCopied) {
  nn::Linear net(1, 1);
  nn::StateDict live = net.state_dict(), kept = tree::map(live, [](const Tensor& t) { return t.clone(); });
  double before = net.weight.item<double>();
  {
    NoGrad guard;
    net.weight.add_(1);
  }
  EXPECT_NE(live.at("weight").item<double>(), before);
  EXPECT_EQ(kept.at("weight").item<double>(), before);
}

}  // namespace
}  // namespace tutti::test
