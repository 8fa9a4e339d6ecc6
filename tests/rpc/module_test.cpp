// Modules on other workers, and optimizers of parameters that are spread over them.
#include <gtest/gtest.h>

#include "tests/rpc/support.h"
#include "tests/support/expect.h"

namespace tutti::test::of_module {  // types that travel have names of their own

using dist_autograd::backward;
using dist_autograd::Context;
using dist_autograd::DistributedOptimizer;
using rpc::RemoteModule;

struct Scaled {
  Tensor y;
  double scale = 0;
  TUTTI_FIELDS(y, scale)
};
struct Net : nn::Module<Net> {
  nn::Linear a{4, 5}, b{5, 2};
  double scale;
  TUTTI_FIELDS(a, b, scale)
  explicit Net(double scale) : scale(scale) {}
  Scaled forward(const Tensor& x, const std::map<std::string, Tensor>& more) {
    EXPECT_EQ(x.device(), a.weight.device());
    return {b(relu(a(x))) * scale + more.at("shift"), is_training() ? scale : -scale};
  }
};

namespace {

class RemoteModules : public Rpc {};
INSTANTIATE_TEST_SUITE_P(Ways, RemoteModules, every_way(), testing::PrintToStringParamName());

size_t contexts_here() { return dist_autograd::statistics().contexts; }

TEST_P(RemoteModules, RunAsIfTheyWereHere) {
  drive(2, [] {
    for (const char* place : {"worker1", "worker1/cpu"}) {
      RemoteModule<nn::Linear> remote(place, 4, 3);
      EXPECT_EQ(remote.owner().name, "worker1");
      manual_seed(7);
      auto before = generator().state();
      nn::Linear local = remote.to_here();
      EXPECT_EQ(generator().state(), before);
      EXPECT_TRUE(local.weight.requires_grad());
      Tensor x = randn({2, 4});
      EXPECT_EQ(remote(x).to_vector<float>(), local(x).to_vector<float>());
      EXPECT_EQ(remote.async(x).wait().to_vector<float>(), local(x).to_vector<float>());
      // Copies are copies.
      {
        NoGrad guard;
        local.weight.zero_();
      }
      EXPECT_FALSE(equal(remote(x), local(x)));
      remote.load_state_dict(local.state_dict());
      EXPECT_TRUE(equal(remote(x), local(x)));
      EXPECT_FALSE(remote.state_dict().at("weight").requires_grad());
    }
  });
}

TEST_P(RemoteModules, TakeAndGiveWhatModulesDo) {
  drive(2, [] {
    RemoteModule<Net> remote("worker1", 3);
    Tensor x = randn({2, 4}), shift = randn({2, 2});
    Scaled train = remote(x, std::map<std::string, Tensor>{{"shift", shift}});
    remote.eval();
    Scaled eval = remote(x, std::map<std::string, Tensor>{{"shift", shift}});
    EXPECT_EQ(train.scale, 3);
    EXPECT_EQ(eval.scale, -3);
    EXPECT_TRUE(equal(train.y, remote.to_here()(x, std::map<std::string, Tensor>{{"shift", shift}}).y));
    EXPECT_EQ(remote.remote_parameters().size(), 4u);
  });
}

Tensor use(const RemoteModule<nn::Linear>& remote, const Tensor& x) {
  EXPECT_THROW(remote.to_here(), ValueError);
  EXPECT_TRUE(equal(remote.to_here(4, 3)(x), remote(x)));
  return remote(x);
}
TEST_P(RemoteModules, CanBePassedOn) {
  drive(3, [] {
    RemoteModule<nn::Linear> remote("worker1", 4, 3);
    Tensor x = randn({2, 4});
    EXPECT_TRUE(equal(rpc::sync<&use>("worker2", remote, x), remote(x)));
  });
}

TEST_P(RemoteModules, OnADeviceOfTheirOwn) {
  Devices devices(2);
  drive(2, [] {
    RemoteModule<nn::Linear> remote("worker1/cpu:1", 4, 3);
    Tensor x = randn({2, 4}).requires_grad_();
    EXPECT_EQ(remote.remote_parameters()[0].to_here().device(), Device("cpu:1"));
    nn::Linear local = remote.to_here();
    EXPECT_EQ(local.weight.device(), Device());
    Context context;
    Tensor y = remote(x);
    EXPECT_EQ(y.device(), x.device());
    backward(context, {y.sum()});
    local(x).sum().backward();
    EXPECT_TRUE(allclose(dist_autograd::get_gradients(context).at(x), x.grad()));
  });
}

TEST_P(RemoteModules, WhatIsWrongIsSaid) {
  drive(2, [] {
    EXPECT_THROW(RemoteModule<nn::Linear>("worker1/", 4, 3), ValueError);
    EXPECT_THROW(RemoteModule<nn::Linear>("/cpu", 4, 3), ValueError);
    EXPECT_THROW(RemoteModule<nn::Linear>("worker7", 4, 3), ValueError);
    EXPECT_THROW(RemoteModule<nn::Linear>("worker1/gpu", 4, 3), Error);
    RemoteModule<nn::Linear> bad("worker1", -1, 3);
    EXPECT_THROW(bad(ones({2, 4})), Error);
    EXPECT_THROW((DistributedOptimizer<optim::SGD>({}, {.lr = 0.1})), ValueError);
    RemoteModule<nn::Linear> good("worker1", 4, 3);
    EXPECT_THROW((DistributedOptimizer<optim::SGD>(good.remote_parameters(), {.lr = -1})), ValueError);
    // Who, what and where, in the words and lines of this file.
    auto check = [&](const std::string& text, const std::string& what, int line) {
      EXPECT_NE(text.find("'worker1', " + what), std::string::npos) << text;
      EXPECT_NE(text.find("module_test.cpp:" + std::to_string(line)), std::string::npos) << text;
    };
    check(text_of_error<ShapeError>([&] { good(ones({2, 5})); }), "RemoteModule<tutti::nn::Linear>", __LINE__);
    check(text_of_error<ShapeError>([&] { good.async(ones({2, 5})).wait(); }), "RemoteModule<tutti::nn::Linear>",
          __LINE__ - 1);
    check(text_of_error<Error>([&] { good.load_state_dict({}); }), "tutti::rpc::detail::HostedBase::load", __LINE__);
    DistributedOptimizer<optim::SGD> sgd(good.remote_parameters(), {.lr = 0.1});
    check(text_of_error<ValueError>([&] { sgd.set_lr(-1); }), "dist_autograd's OptimizerPart::set_lr", __LINE__);
  });
}

// Two layers on two workers and one here, trained by one optimizer, and the same all here.
template <class O>
void train_both(const typename DistributedOptimizer<O>::Options& options) {
  RemoteModule<nn::Linear> first("worker1", 4, 8), second("worker2", 8, 8);
  manual_seed(3);
  nn::Linear third(8, 1);
  nn::Linear a = first.to_here(), b = second.to_here(), c = third.clone();
  auto parameters = first.remote_parameters();
  for (const auto& more : {second.remote_parameters(), dist_autograd::references(third.parameters())})
    parameters.insert(parameters.end(), more.begin(), more.end());
  DistributedOptimizer<O> spread(parameters, options);
  TensorList all;
  for (auto* m : {&a, &b, &c})
    for (const Tensor& p : m->parameters()) all.push_back(p);
  O local(all, options);
  for (int step = 0; step < 5; ++step) {
    Tensor x = randn({6, 4}), y = x.sum(1, true);
    if (step == 3) {
      spread.set_lr(0.05);
      local.set_lr(0.05);
    }
    {
      Context context;
      Tensor out = third(tanh(second(tanh(first(x)))));
      backward(context, {mse_loss(out, y)});
      spread.step(context);
    }
    local.zero_grad();
    mse_loss(c(tanh(b(tanh(a(x))))), y).backward();
    local.step();
  }
  EXPECT_EQ(first.state_dict().at("weight").to_vector<float>(), a.weight.to_vector<float>());
  EXPECT_EQ(second.state_dict().at("bias").to_vector<float>(), b.bias.to_vector<float>());
  EXPECT_EQ(third.weight.to_vector<float>(), c.weight.to_vector<float>());
  EXPECT_FALSE(third.weight.grad().defined());
}
TEST_P(RemoteModules, OptimizersStepWhereTheParametersAre) {
  drive(3, [] {
    train_both<optim::SGD>({.lr = 0.1, .momentum = 0.9});
    train_both<optim::Adam>({.lr = 0.01});
    for (int r = 0; r < 3; ++r) {
      auto until = std::chrono::steady_clock::now() + 20s;
      while (rpc::sync<&contexts_here>(r) > 0 && std::chrono::steady_clock::now() < until) {
      }
      EXPECT_EQ(rpc::sync<&contexts_here>(r), 0u);
    }
  });
}

// A parameter that is fetched takes its gradient home.
TEST_P(RemoteModules, ParametersThatAreFetchedAreStillTheirs) {
  drive(2, [] {
    RemoteModule<nn::Linear> remote("worker1", 4, 3);
    Tensor before = remote.state_dict().at("weight"), x = randn({2, 4});
    auto weight = remote.remote_parameters()[0];
    DistributedOptimizer<optim::SGD> sgd({weight}, {.lr = 1});
    Context context;
    Tensor here = weight.to_here();
    EXPECT_TRUE(here.requires_grad());
    backward(context, {linear(x, here).sum()});
    sgd.step(context);
    Tensor gradient = x.sum(0).expand({3, 4});
    EXPECT_TRUE(allclose(remote.state_dict().at("weight"), before - gradient));
  });
}

}  // namespace
}  // namespace tutti::test::of_module
