// What optimizers refuse after they were made, and without anything to change.
#include <cmath>

#include "tests/support/expect.h"
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

TEST(Optimizer, NeedsSomethingToChange) {
  EXPECT_THAT(message_of<ValueError>([] { Adam{TensorList()}; }), HasSubstr("no parameters"));
  EXPECT_THROW(SGD(std::vector<optim::ParameterGroup<SGDOptions>>{}), ValueError);
}

}  // namespace
}  // namespace tutti::test
