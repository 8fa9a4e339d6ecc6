// Section C of docs/parity.md: one process, many devices. Logical CPU devices stand for the reference's GPUs.
#include "tutti/parallel/data_parallel.h"

#include <map>
#include <sstream>

#include "base/memory.h"
#include "tests/parity/support.h"
#include "tests/support/expect.h"
#include "tests/support/scratch.h"
#include "tutti/amp.h"
#include "tutti/nn.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using namespace parallel;
using test::kTwo;
using test::message_of;
using test::Scratch;
using testing::AllOf;
using testing::HasSubstr;

struct ParityC : testing::Test {
  void SetUp() override {
    before_ = cpu_devices();
    set_cpu_devices(4);
    manual_seed(7);
  }
  void TearDown() override { set_cpu_devices(before_); }
  int before_ = 1;
};

struct Net : nn::Module<Net> {
  nn::Linear fc1{5, 8}, fc2{8, 3};
  TUTTI_FIELDS(fc1, fc2)
  Tensor forward(const Tensor& x) { return fc2(tanh(fc1(x))); }
};

// Runs the module plainly and in parallel; outputs and all gradients must agree.
template <class M, class... Args>
void expect_same(const M& original, double tolerance, const DataParallelOptions& options, const Args&... args) {
  M module = original.clone(), plain = original.clone();
  Tensor expected = plain(args...), got = data_parallel(module, options, args...);
  EXPECT_EQ(got.device(), options.output_device.value_or(Device("cpu:0")));
  EXPECT_TRUE(allclose(got.to("cpu:0"), expected, tolerance, tolerance));
  Tensor w = randn(expected.sizes()).to(expected.dtype());
  auto backward = [&](const Tensor& y) {
    Tensor s = (y.to("cpu:0") * w).sum();
    (s.is_complex() ? real(s) : s).backward();
  };
  backward(expected);
  backward(got);
  auto a = plain.named_parameters(), b = module.named_parameters();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].second.grad().defined()) continue;
    ASSERT_TRUE(b[i].second.grad().defined()) << b[i].first;
    EXPECT_EQ(b[i].second.grad().is_sparse(), a[i].second.grad().is_sparse());
    EXPECT_EQ(b[i].second.grad().device(), Device("cpu:0"));
    EXPECT_TRUE(allclose(to_dense(b[i].second.grad()), to_dense(a[i].second.grad()), tolerance, tolerance))
        << b[i].first;
  }
}

void check_scatter(const Tensor& x) {
  for (const Devices& devices : {kTwo, Devices{"cpu:0", "cpu:1", "cpu:2"}}) {
    std::vector<Tensor> parts = scatter(x, devices);
    int64_t at = 0;
    for (size_t k = 0; k < parts.size(); ++k) {
      EXPECT_EQ(parts[k].device(), devices[k]);
      EXPECT_TRUE(equal(parts[k].to(x.device()), x.narrow(0, at, parts[k].size(0))));
      at += parts[k].size(0);
    }
    EXPECT_EQ(at, x.size(0));
    auto f = [&](const TensorList& in) {
      Tensor sum = zeros({}, f64);
      double weight = 1;
      for (const Tensor& p : scatter(in[0], devices)) sum = sum + (p * p * p).sum().to("cpu:0") * (weight += 1);
      return TensorList{sum};
    };
    EXPECT_TRUE(gradcheck(f, {x}));
    EXPECT_TRUE(gradgradcheck(f, {x}));
  }
}
TEST_F(ParityC, ScatterCpu) {
  check_scatter(randn({8, 4}, {.dtype = f64, .requires_grad = true}));
  check_scatter(randn({7, 2}, {.dtype = f64, .requires_grad = true}));  // does not divide
  EXPECT_EQ(scatter(randn({2, 2}), Devices{"cpu:0", "cpu:1", "cpu:2"}).size(), 2U);
  EXPECT_EQ(scatter(randn({0, 2}), kTwo).size(), 1U);
}

TEST_F(ParityC, GatherCpu) {
  Tensor a = randn({2, 4}, {.dtype = f64, .requires_grad = true});
  Tensor b = randn({3, 4}, {.dtype = f64, .device = "cpu:1", .requires_grad = true});
  for (Device target : {Device("cpu:0"), Device("cpu:2")}) {
    Tensor y = gather(std::vector{a, b}, target);
    EXPECT_EQ(y.device(), target);
    EXPECT_TRUE(equal(y.to("cpu:0"), cat({a, b.to("cpu:0")}, 0)));
    auto f = [&](const TensorList& in) {
      Tensor g = gather(std::vector{in[0], in[1].to("cpu:1")}, target);
      return TensorList{(g * g * g).sum().to("cpu:0")};
    };
    EXPECT_TRUE(gradcheck(f, {a, b.detach().to("cpu:0").requires_grad_()}));
    EXPECT_TRUE(gradgradcheck(f, {a, b.detach().to("cpu:0").requires_grad_()}));
  }
  Tensor scalars = gather(std::vector{full({}, 2.5), full({}, 3.5, {.device = "cpu:1"})}, "cpu:0");
  EXPECT_TRUE(equal(scalars, tensor({2.5, 3.5}).to(scalars.dtype())));
}

TEST_F(ParityC, GatherDifferentLenDicts) {
  using Dict = std::map<std::string, Tensor>;
  std::vector<Dict> outputs = {{{"a", ones({1})}}, {{"a", ones({1})}, {"b", ones({1})}}};
  EXPECT_THAT(message_of<ValueError>([&] { gather(outputs, "cpu:0"); }),
              AllOf(HasSubstr("replica 0 has 1 parts, replica 1 has 2"), HasSubstr("output.b")));
}

struct Buffered : nn::Module<Buffered> {
  nn::Linear fc{2, 3};
  nn::BatchNorm1d norm{3};
  nn::Buffer mean = zeros({3});
  TUTTI_FIELDS(fc, norm, mean)
  Tensor forward(const Tensor& x) {
    NoGrad guard;
    mean += 1;
    return norm(fc(x));
  }
};

TEST_F(ParityC, Replicate) {
  Net net;
  Tensor x = randn({4, 5});
  std::vector<Net> replicas = replicate(net, kTwo);
  for (size_t k = 0; k < 2; ++k) {
    for (const Tensor& p : replicas[k].parameters()) {
      EXPECT_EQ(p.device(), kTwo[k]);
      EXPECT_EQ(p.is_leaf(), k == 0);
    }
    EXPECT_TRUE(allclose(replicas[k](x.to(kTwo[k])).to("cpu:0"), net(x)));
    // Devices that share memory: nothing is copied.
    EXPECT_TRUE(replicas[k].fc1.weight.shares_storage(net.fc1.weight));
  }
}

TEST_F(ParityC, ReplicateBuffers) {
  Buffered net;
  std::vector<Buffered> replicas = replicate(net, kTwo);
  EXPECT_TRUE(replicas[0].norm.running_mean.is_same(net.norm.running_mean));
  EXPECT_EQ(replicas[1].norm.running_mean.device(), Device("cpu:1"));
  EXPECT_FALSE(replicas[1].norm.running_mean.shares_storage(net.norm.running_mean));
  EXPECT_EQ(replicas[0].buffers().size(), net.buffers().size());
  data_parallel(net, {.devices = kTwo}, randn({6, 2}));
  EXPECT_TRUE(equal(net.mean, ones({3})));  // the first replica's writes are the module's, others' are nobody's
}

struct Lists : nn::Module<Lists> {
  nn::ParameterList list{nn::Parameter(ones({2})), nn::Parameter(ones({2}) * 2)};
  nn::ParameterDict dict{{"a", nn::Parameter(ones({2}) * 3)}};
  nn::Parameter tied = list[0];
  TUTTI_FIELDS(list, dict, tied)
  Tensor forward(const Tensor& x) { return x * list[0] + list[1] * dict["a"] + tied; }
};
TEST_F(ParityC, ParameterListDictReplica) {
  Lists net;
  for (Lists& replica : replicate(net, kTwo)) {
    EXPECT_EQ(replica.list.size(), 2U);
    EXPECT_TRUE(equal(replica.dict["a"].to("cpu:0"), ones({2}) * 3));
    EXPECT_EQ(replica.parameters().size(), 3U);  // what was shared still is
  }
  expect_same(net, 1e-6, {.devices = kTwo}, randn({5, 2}));
}

TEST_F(ParityC, ParallelApply) {
  nn::Linear a(3, 2), b(3, 2);
  b.to("cpu:1");
  std::vector modules = {a, b};
  std::vector<std::tuple<Tensor>> inputs = {{randn({4, 3})}, {randn({4, 3}).to("cpu:1")}};
  std::vector<Tensor> outputs = parallel_apply(modules, inputs, kTwo);
  EXPECT_TRUE(equal(outputs[0], a(std::get<0>(inputs[0]))));
  EXPECT_TRUE(equal(outputs[1], b(std::get<0>(inputs[1]))));
  EXPECT_EQ(outputs[1].device(), Device("cpu:1"));
  EXPECT_TRUE(outputs[1].requires_grad());
  NoGrad guard;
  for (const Tensor& y : parallel_apply(modules, inputs, kTwo)) EXPECT_FALSE(y.requires_grad());
  inputs.pop_back();
  EXPECT_THROW(parallel_apply(modules, inputs, kTwo), ValueError);
}

TEST_F(ParityC, ParallelApplyAutocast) {
  std::vector modules = {nn::Linear(3, 2), nn::Linear(3, 2)};
  modules[1].to("cpu:1");
  std::vector<std::tuple<Tensor>> inputs = {{randn({4, 3})}, {randn({4, 3}).to("cpu:1")}};
  amp::Autocast guard(DType::bf16);
  for (const Tensor& y : parallel_apply(modules, inputs, kTwo)) EXPECT_EQ(y.dtype(), DType::bf16);
}

struct Throws : nn::Module<Throws> {
  int which = 0;
  TUTTI_FIELDS(which)
  Tensor forward(const Tensor& x) {
    if (which == 1) return matmul(x, ones({99}, {.device = x.device()}));
    if (which == 2) throw std::runtime_error("of the user's own");
    return x;
  }
};
TEST_F(ParityC, ParallelApplyPassesException) {
  std::vector<Throws> modules(2);
  modules[1].which = 1;
  std::vector<std::tuple<Tensor>> inputs = {{randn({4, 3})}, {randn({4, 3}).to("cpu:1")}};
  EXPECT_THAT(message_of<ShapeError>([&] { parallel_apply(modules, inputs, kTwo); }),
              AllOf(HasSubstr("replica 1 on cpu:1: matmul"), HasSubstr("99")));
  modules[1].which = modules[0].which = 2;
  EXPECT_THAT(message_of<Error>([&] { parallel_apply(modules, inputs, kTwo); }),
              HasSubstr("replica 0 on cpu:0: of the user's own"));
}

TEST_F(ParityC, DataParallel) {
  Net net;
  Tensor x = randn({10, 5});
  expect_same(net, 1e-5, {.devices = kTwo}, x);
  expect_same(net, 1e-5, {.devices = {"cpu:0", "cpu:1", "cpu:2", "cpu:3"}}, x);
  expect_same(net, 1e-5, {}, x);
  expect_same(net, 1e-5, {.devices = {"cpu:0"}}, x);
  // As an object: twice, with a step in between.
  parallel::DataParallel wrapped(net.clone(), {.devices = kTwo});
  Net plain = wrapped.module.clone();
  EXPECT_EQ(wrapped.named_parameters()[0].first, "module.fc1.weight");
  optim::SGD a(wrapped.parameters(), {.lr = 0.1}), b(plain.parameters(), {.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    a.zero_grad();
    b.zero_grad();
    square(wrapped(x)).mean().backward();
    square(plain(x)).mean().backward();
    a.step();
    b.step();
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(allclose(wrapped.parameters()[i], plain.parameters()[i], 1e-5, 1e-6));
  // Outputs that stay where they are.
  std::vector<Tensor> parts = wrapped.apart(x);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[1].device(), Device("cpu:1"));
}

TEST_F(ParityC, DataParallelSmallBack) {
  Net net;
  Tensor x = randn({20, 5});
  data_parallel(net, {.devices = kTwo}, x).sum().backward();  // a gradient of one number, expanded
  Tensor g = net.fc2.bias.grad();
  EXPECT_TRUE(allclose(g, full({3}, 20.0)));
}

TEST_F(ParityC, DataParallelModule) {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    Net net;
    net.to(dtype);
    double tolerance = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-5 : 0.05;
    expect_same(net, tolerance, {.devices = kTwo}, randn({6, 5}).to(dtype));
  }
}

TEST_F(ParityC, DataParallelNoGrad) {
  struct Watch : nn::Module<Watch> {
    nn::Linear fc{5, 2};
    TUTTI_FIELDS(fc)
    Tensor forward(const Tensor& x) {
      EXPECT_FALSE(grad_enabled());
      return fc(x);
    }
  } net;
  NoGrad guard;
  EXPECT_FALSE(data_parallel(net, {.devices = kTwo}, randn({4, 5})).requires_grad());
}

struct Recurrent : nn::Module<Recurrent> {
  nn::LSTM lstm{6, 7, {.layers = 2, .batch_first = true}};
  TUTTI_FIELDS(lstm)
  Tensor forward(const Tensor& x) { return lstm(x).output; }
};
TEST_F(ParityC, DataParallelRnn) { expect_same(Recurrent(), 1e-5, {.devices = kTwo}, randn({4, 9, 6})); }

struct Bag : nn::Module<Bag> {
  nn::Embedding embedding{10, 4, {.sparse = true}};
  nn::Linear fc{4, 2};
  TUTTI_FIELDS(embedding, fc)
  Tensor forward(const Tensor& x) { return fc(embedding(x).sum(1)); }
};
TEST_F(ParityC, DataParallelSparse) { expect_same(Bag(), 1e-5, {.devices = kTwo}, randint(10, {6, 3})); }

struct Complex : nn::Module<Complex> {
  nn::Parameter weight = randn({3, 3}, {DType::c64});
  TUTTI_FIELDS(weight)
  Tensor forward(const Tensor& x) { return matmul(x, weight); }
};
TEST_F(ParityC, DataParallelComplex) { expect_same(Complex(), 1e-5, {.devices = kTwo}, randn({4, 3}, {DType::c64})); }

TEST_F(ParityC, DataParallelLazyLinear) {
  struct Lazy : nn::Module<Lazy> {
    nn::LazyLinear fc{2};
    TUTTI_FIELDS(fc)
    Tensor forward(const Tensor& x) { return fc(x); }
  } net;
  Tensor x = randn({4, 3});
  Tensor first = data_parallel(net, {.devices = kTwo}, x);
  EXPECT_EQ(net.fc.weight.sizes(), Shape({2, 3}));
  EXPECT_TRUE(allclose(first, net(x)));
  expect_same(net, 1e-5, {.devices = kTwo}, x);
}

TEST_F(ParityC, DataParallelMultipleInput) {
  struct Two : nn::Module<Two> {
    nn::Parameter w = ones({2});
    TUTTI_FIELDS(w)
    Tensor forward(const Tensor& a, double factor, const Tensor& b) { return a * w * factor + b; }
  } net;
  Tensor a = randn({5, 2}), b = randn({5, 2});
  EXPECT_TRUE(allclose(data_parallel(net, {.devices = kTwo}, a, 2.0, b), a * 2 + b));
  EXPECT_THAT(message_of<ShapeError>([&] { data_parallel(net, {.devices = kTwo}, a, 2.0, randn({4, 2})); }),
              HasSubstr("must be of the same size"));
  // Along another dim.
  EXPECT_TRUE(allclose(data_parallel(net, {.devices = kTwo, .dim = 1}, randn({2, 2, 2}).zero_() + a.narrow(0, 0, 2),
                                     2.0, zeros({2, 2, 2})),
                       (a * 2).narrow(0, 0, 2).expand({2, 2, 2})));
}

struct Input {
  Tensor x;
  std::vector<std::map<std::string, Tensor>> more;
  std::optional<Tensor> bias;
  int64_t power = 1;
  TUTTI_FIELDS(x, more, bias, power)
};
TEST_F(ParityC, DataParallelNestedInput) {
  struct Nested : nn::Module<Nested> {
    nn::Parameter w = ones({2}) * 3;
    TUTTI_FIELDS(w)
    Tensor forward(const Input& in) { return pow(in.x, in.power) * w + in.more.at(0).at("a") + *in.bias; }
  } net;
  Input in{randn({5, 2}), {{{"a", randn({5, 2})}}}, full({}, 4.0), 2};
  EXPECT_TRUE(allclose(data_parallel(net, {.devices = kTwo}, in), net(in)));
}

struct Output {
  Tensor y;
  std::vector<Tensor> list;
  std::map<std::string, std::tuple<Tensor, std::string>> named;
  std::optional<Tensor> nothing;
  TUTTI_FIELDS(y, list, named, nothing)
};
TEST_F(ParityC, DataParallelNestedOutput) {
  struct Nested : nn::Module<Nested> {
    nn::Parameter w = ones({2}) * 3;
    TUTTI_FIELDS(w)
    Output forward(const Tensor& x) {
      Tensor y = x * w;
      return {y, {y + 1, y.sum()}, {{"k", {y * 2, "text"}}}, {}};
    }
  } net;
  Tensor x = randn({5, 2});
  Output got = data_parallel(net, {.devices = kTwo}, x), one = net(x);
  EXPECT_TRUE(allclose(got.y, one.y));
  EXPECT_TRUE(allclose(got.list[0], one.list[0]));
  EXPECT_EQ(got.list[1].sizes(), Shape({2}));  // sums of the two parts
  EXPECT_TRUE(allclose(got.list[1].sum(), one.list[1], 1e-4, 1e-5));
  EXPECT_TRUE(allclose(std::get<0>(got.named["k"]), std::get<0>(one.named["k"])));
  EXPECT_EQ(std::get<1>(got.named["k"]), "text");
  EXPECT_FALSE(got.nothing);
}

// Named arguments are the fields of a struct.
struct Named {
  std::optional<Tensor> x = {};
  std::vector<Tensor> list = {};
  std::tuple<> nothing = {};
  std::map<std::string, Tensor> dict = {};
  double scale = 1;
  TUTTI_FIELDS(x, list, nothing, dict, scale)
};
struct TakesNamed : nn::Module<TakesNamed> {
  nn::Parameter w = ones({2}) * 3;
  TUTTI_FIELDS(w)
  Tensor forward(const Named& in) {
    EXPECT_TRUE(in.list.empty() && in.dict.empty());
    return *in.x * w * in.scale;
  }
};
TEST_F(ParityC, DataParallelModuleKwargsOnly) {
  TakesNamed net;
  Tensor x = randn({4, 2});
  EXPECT_TRUE(allclose(data_parallel(net, {.devices = kTwo}, Named{.x = x, .scale = 2}), x * 6));
}
TEST_F(ParityC, DataParallelModuleKwargsOnlyEmptyList) {
  TakesNamed net;
  Tensor x = randn({4, 2});
  EXPECT_TRUE(allclose(data_parallel(net, {.devices = kTwo}, Named{.x = x, .list = {}}), x * 3));
}
TEST_F(ParityC, DataParallelModuleKwargsOnlyEmptyTuple) {
  TakesNamed net;
  Tensor x = randn({4, 2});
  EXPECT_TRUE(allclose(data_parallel(net, {.devices = kTwo}, Named{.x = x, .nothing = {}}), x * 3));
}
TEST_F(ParityC, DataParallelModuleKwargsOnlyEmptyDict) {
  TakesNamed net;
  Tensor x = randn({4, 2});
  EXPECT_TRUE(allclose(data_parallel(net, {.devices = kTwo}, Named{.x = x, .dict = {}}), x * 3));
}
TEST_F(ParityC, DataParallelModuleZeroInputs) {
  struct Nothing : nn::Module<Nothing> {
    nn::Parameter w = ones({2}) * 3;
    TUTTI_FIELDS(w)
    Tensor forward() { return w * 2; }
  } net;
  EXPECT_TRUE(equal(data_parallel(net, {.devices = kTwo}), ones({2}) * 6));
}

TEST_F(ParityC, DataParallelDeviceArgs) {
  Net net;
  Tensor x = randn({6, 5});
  expect_same(net, 1e-5, {.devices = {"cpu:0", "cpu:2"}, .output_device = Device("cpu:3")}, x);
  net.to("cpu:1");
  Tensor y = data_parallel(net, {.devices = {"cpu:1", "cpu:0"}}, x);
  EXPECT_EQ(y.device(), Device("cpu:1"));
  EXPECT_THAT(message_of<DeviceError>([&] { data_parallel(net, {.devices = {"cpu:7"}}, x); }),
              AllOf(HasSubstr("no cpu:7"), HasSubstr("cpu:0 ... cpu:3")));
}

TEST_F(ParityC, DataParallelModelDevice) {
  Net net;
  net.fc2.to("cpu:1");
  std::string text = message_of<DeviceError>([&] { parallel::DataParallel wrapped(net, {.devices = kTwo}); });
  EXPECT_THAT(text, AllOf(HasSubstr("fc2.weight is on cpu:1"), HasSubstr("the first of the devices, cpu:0")));
  EXPECT_THAT(message_of<DeviceError>([&] { data_parallel(net, {.devices = kTwo}, randn({4, 5})); }),
              HasSubstr("fc2.weight"));
}

TEST_F(ParityC, DataParallelBuffersRequiringGrad) {
  struct Grads : nn::Module<Grads> {
    nn::Buffer b;
    TUTTI_FIELDS(b)
    Tensor forward(const Tensor& x) { return x * b; }
  };
  Tensor b = randn({3}, {.dtype = f64, .requires_grad = true}),
         x = randn({4, 3}, {.dtype = f64, .requires_grad = true});
  auto f = [](const TensorList& in) {
    Grads net;
    net.b = nn::Buffer(in[1]);
    return TensorList{data_parallel(net, {.devices = kTwo}, in[0])};
  };
  EXPECT_TRUE(gradcheck(f, {x, b}));
}

// Of a gradient's own gradient, as a gradient penalty needs it.
TEST_F(ParityC, DataParallelFunctionDeletion) {
  Net net, plain = net.clone();
  Tensor x = randn({6, 5});
  auto penalty = [&](auto run) {
    Tensor in = x.clone().requires_grad_();
    Tensor g = grad({run(in).sum()}, {in}, {.create_graph = true})[0];
    square(g.norm() - 1).backward();
  };
  penalty([&](const Tensor& in) { return data_parallel(net, {.devices = kTwo}, in); });
  penalty([&](const Tensor& in) { return plain(in); });
  EXPECT_TRUE(allclose(net.fc1.weight.grad(), plain.fc1.weight.grad(), 1e-4, 1e-5));
  EXPECT_TRUE(allclose(net.fc2.weight.grad(), plain.fc2.weight.grad(), 1e-4, 1e-5));
}

struct Holds : Function<Holds> {
  std::shared_ptr<int> token;
  Tensor forward(const Tensor& x, const std::shared_ptr<int>& t) {
    token = t;
    return x.clone();
  }
  TensorList backward(const TensorList& g) { return g; }
};
struct Holder : nn::Module<Holder> {
  static constexpr bool other_members = true;
  nn::Linear fc{5, 3};
  TUTTI_FIELDS(fc)
  std::shared_ptr<int> token = std::make_shared<int>(1);
  Tensor forward(const Tensor& x) { return Holds::apply(fc(x), token); }
};
TEST_F(ParityC, DataParallelModelNoRefcycles) {
  auto step = [] {
    parallel::DataParallel net(Net{}, {.devices = kTwo});
    net(randn({6, 5})).sum().backward();
  };
  step();
  // Nodes hold what they keep: when all are gone, nobody else holds the token.
  Holder holder;
  {
    parallel::DataParallel net(holder, {.devices = kTwo});
    Tensor y = net(randn({6, 5}));
    EXPECT_GE(holder.token.use_count(), 4);  // two nodes, and the module inside
    y.sum().backward();
  }
  EXPECT_EQ(holder.token.use_count(), 1);
  int64_t before = memory::statistics().bytes_in_use;
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(memory::statistics().bytes_in_use, before);
}

TEST_F(ParityC, ZeroGrad) {
  struct Zeroes : nn::Module<Zeroes> {
    nn::Linear fc{5, 2};
    TUTTI_FIELDS(fc)
    Tensor forward(const Tensor& x) {
      zero_grad();
      return fc(x);
    }
  } net;
  net.fc.weight.sum().backward();
  testing::internal::CaptureStderr();
  data_parallel(net, {.devices = kTwo}, randn({4, 5}));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("zero_grad() of a replica of Zeroes has no effect"));
  EXPECT_TRUE(equal(net.fc.weight.grad(), ones({2, 5})));
  net.zero_grad();
  EXPECT_FALSE(net.fc.weight.grad().defined() && net.fc.weight.grad().abs().sum().item<double>() > 0);
}

TEST_F(ParityC, Autocast) {
  struct Casts : nn::Module<Casts> {
    nn::Linear fc{5, 2};
    TUTTI_FIELDS(fc)
    Tensor forward(const Tensor& x) {
      amp::Autocast guard(DType::bf16);
      return fc(x);
    }
  } net;
  EXPECT_EQ(data_parallel(net, {.devices = kTwo}, randn({4, 5})).dtype(), DType::bf16);
}

TEST_F(ParityC, SaveReplicaModule) {
  Net net;
  std::vector<Net> replicas = replicate(net, kTwo);
  Scratch scratch;
  std::string path = scratch / "replica.safetensors";
  io::save_safetensors(path, replicas[1].state_dict());
  Net other;
  other.load_state_dict(io::load_safetensors(path));
  EXPECT_TRUE(equal(other.fc1.weight, net.fc1.weight));
}

struct ConvNet : nn::Module<ConvNet> {
  nn::Conv2d conv1{3, 8, 3}, conv2{8, 4, 1};
  TUTTI_FIELDS(conv1, conv2)
  Tensor forward(const Tensor& x) { return conv2(relu(conv1(x))); }
};
TEST_F(ParityC, StridedGradLayout) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      ConvNet net;
      net.to({.dtype = dtype, .format = format});
      Tensor x = randn({4, 3, 6, 6}).to(dtype).contiguous(format);
      expect_same(net, dtype == DType::f32 ? 1e-5 : 0.05, {.devices = kTwo}, x);
      ConvNet plain = net.clone();
      data_parallel(net, {.devices = kTwo}, x).sum().backward();
      plain(x).sum().backward();
      EXPECT_EQ(net.conv1.weight.grad().strides(), plain.conv1.weight.grad().strides());
      for (const Tensor& p : net.parameters())
        EXPECT_TRUE(p.grad().is_contiguous(p.dim() == 4 ? format : MemoryFormat::contiguous));
    }
}

}  // namespace
}  // namespace tutti
