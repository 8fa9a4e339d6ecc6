// What optimizers refuse after they were made, and without anything to change.
#include <cmath>

#include "tests/support/expect_ops.h"
#include "tutti/ops.h"
#include "tutti/optim.h"

namespace tutti::test {
namespace {

using namespace optim;
using testing::HasSubstr;

TEST(Optimizer, SettersTakeWhatConstructorsTake) {
  Tensor p = ones({1}).requires_grad_();
  SGD sgd({p}, {.lr = 0.1, .momentum = 0.5});
  EXPECT_THAT(message_of<ValueError>([&] { sgd.set_lr(-1); }), HasSubstr("SGD: lr"));
  EXPECT_THROW(sgd.set_lr(0, NAN), ValueError);
  EXPECT_THAT(message_of<ValueError>([&] { sgd.set_momentum(0, -3); }), HasSubstr("momentum"));
  EXPECT_THROW(Adam({p}).set_momentum(0, 1), ValueError);
  EXPECT_EQ(sgd.lr(), 0.1);
  EXPECT_EQ(sgd.momentum(0), 0.5);
  sgd.set_momentum(0, 0.25);
  EXPECT_EQ(sgd.momentum(0), 0.25);
  EXPECT_THAT(message_of<ValueError>([&] { Adagrad({p}).set_momentum(0, 0.5); }),
              HasSubstr("Adagrad: has no momentum"));
}

TEST(Optimizer, NamesGroupsThatAreNone) {
  SGD sgd({ones({1}).requires_grad_()}, {.lr = 0.1});
  EXPECT_THAT(message_of<IndexError>([&] { sgd.lr(7); }), HasSubstr("no group 7: there are 1"));
  EXPECT_THROW(sgd.set_lr(9, 0.1), IndexError);
  EXPECT_THROW(sgd.options(4), IndexError);
  EXPECT_THROW(sgd.momentum(1), IndexError);
  EXPECT_THROW(sgd.set_momentum(1, 0.5), IndexError);
  EXPECT_THROW(sgd.parameters(1), IndexError);
  EXPECT_THROW(sgd.lr_scale(1), IndexError);
  EXPECT_THROW(sgd.scale_lr(1, 0.5), IndexError);
}

Tensor with_gradient(const Tensor& gradient) {
  Tensor p = ones({4, 2}).requires_grad_();
  p.set_grad(gradient);
  return p;
}
Tensor sparse_gradient() { return sparse_coo(tensor({{1, 3}}), ones({2, 2}), {4, 2}); }

// Whatever is refused, in whichever group: no parameter, state or count has changed.
template <class O>
void expect_unchanged(O& optimizer, const char* text) {
  TensorList before;
  for (const Tensor& p : optimizer.parameters()) before.push_back(p.detach().clone());
  EXPECT_THAT(message_of<ValueError>([&] { optimizer.step(); }), HasSubstr(text));
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(values(optimizer.parameters()[i]), values(before[i])) << i;
  io::State state = optimizer.state();
  for (const auto& group : state["groups"].template as<io::ValueList>())
    for (const auto& slot : group.template as<io::State>()["parameters"].template as<io::ValueList>()) {
      EXPECT_EQ(slot.template as<io::State>()["step"].template as<int64_t>(), 0);
      EXPECT_EQ(slot.template as<io::State>().size(), 1u);
    }
}

TEST(Optimizer, AStepIsWholeOrNothing) {
  Tensor rows = with_gradient(sparse_gradient()), dense = with_gradient(ones({4, 2}));
  SparseAdam one({rows, dense});
  expect_unchanged(one, "takes sparse gradients only");
  SparseAdam two({{{rows}, {}}, {{dense}, {}}});
  expect_unchanged(two, "takes sparse gradients only");
  SGD sgd({{{rows}, {.lr = 1}}, {{dense}, {.lr = 1}}, {{with_gradient(sparse_gradient())}, {.momentum = 0.5}}});
  expect_unchanged(sgd, "only without momentum");
  Adagrad adagrad({{{rows, dense}, {.lr = 1}}, {{with_gradient(sparse_gradient())}, {.weight_decay = 0.5}}});
  expect_unchanged(adagrad, "only without weight decay");
  Adam adam({{{dense}, {}}, {{rows}, {}}});
  expect_unchanged(adam, "Adam: does not take sparse gradients");
}

TEST(Optimizer, RefusesOptionsThatMakeNoSense) {
  Tensor p = ones({1}).requires_grad_();
  EXPECT_THAT(message_of<ValueError>([&] { SGD({p}, {.momentum = 0.5, .dampening = 7}); }), HasSubstr("dampening"));
  EXPECT_THROW(SGD({p}, {.dampening = -1}), ValueError);
  EXPECT_THROW(RMSprop({p}, {.alpha = 7}), ValueError);
}

TEST(Optimizer, NeedsSomethingToChange) {
  EXPECT_THAT(message_of<ValueError>([] { Adam{TensorList()}; }), HasSubstr("no parameters"));
  EXPECT_THROW(SGD(std::vector<optim::ParameterGroup<SGDOptions>>{}), ValueError);
}

}  // namespace
}  // namespace tutti::test
