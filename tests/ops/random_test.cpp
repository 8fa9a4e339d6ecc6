#include "tutti/random.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <thread>

#include "ops/random/kernels.h"
#include "tests/ops/plain_philox.h"
#include "tests/support/expect_ops.h"
#include "tutti/operator.h"
#include "tutti/trace.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

double mean_of(const Doubles& v) {
  double sum = 0;
  for (double x : v) sum += x;
  return sum / static_cast<double>(v.size());
}
double variance_of(const Doubles& v) {
  double m = mean_of(v), sum = 0;
  for (double x : v) sum += (x - m) * (x - m);
  return sum / static_cast<double>(v.size());
}

TEST(Random, PhiloxGivesThePublishedNumbers) {
  PhiloxWords w = plain_philox(0, 0);
  EXPECT_EQ(w.word[0], 0x6627e8d5u);
  EXPECT_EQ(w.word[1], 0xe169c58du);
  EXPECT_EQ(w.word[2], 0xbc57ac4cu);
  EXPECT_EQ(w.word[3], 0x9b00dbd8u);
}

TEST(Random, ElementsTakeTheirNumbersByTheirIndex) {
  manual_seed(77);
  generator().set_state({77, 0xfffffff5ull});  // blocks cross 2^32
  auto got = rand({300}).to_vector<float>();
  PlainStream stream{77, 0xfffffff5ull};
  for (int64_t i = 0; i < 300; ++i) ASSERT_EQ(got[static_cast<size_t>(i)], stream.uniform_f32(i)) << i;
  generator().set_state({5, 100});
  auto doubles = rand({100}, {f64}).to_vector<double>();
  stream = {5, 100};
  for (int64_t i = 0; i < 100; ++i) ASSERT_EQ(doubles[static_cast<size_t>(i)], stream.uniform_f64(i)) << i;
}

TEST(Random, SeedAndPositionDecide) {
  manual_seed(1);
  Tensor a = randn({1000}), b = randn({1000});
  manual_seed(1);
  EXPECT_TRUE(equal(randn({1000}), a));
  auto state = generator().state();
  EXPECT_TRUE(equal(randn({1000}), b));
  EXPECT_FALSE(equal(a, b));
  generator().set_state(state);
  EXPECT_TRUE(equal(randn({1000}), b));
  manual_seed(2);
  EXPECT_FALSE(equal(randn({1000}), a));
}

TEST(Random, ThreadsAndInstructionSetsDoNotMatter) {
  auto draw = [] {
    manual_seed(9);
    TensorList all{rand({100000}),
                   rand({50001}, {f64}),
                   randn({70003}),
                   randn({33333}, {f64}),
                   randn({40001}, {bf16}),
                   randint(-5, 1000003, {60000}),
                   dropout(ones({50000}), 0.3),
                   randperm(5000)};
    return all;
  };
  TensorList one, two;
  {
    ThreadsGuard guard(1);
    one = draw();
  }
  {
    ThreadsGuard guard(4);
    two = draw();
  }
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(equal(one[i], two[i])) << i;

  constexpr int64_t n = 1000;
  RandomRange range{3, 4, 64, n};
  std::vector<float> base(n), best(n);
  kernels_base::random_normal_f32(range, 1, 2, base.data());
  random_normal_f32_pointer()(range, 1, 2, best.data());
  EXPECT_EQ(base, best);
  std::vector<double> base64(n), best64(n);
  kernels_base::random_normal_f64(range, 1, 2, base64.data());
  random_normal_f64_pointer()(range, 1, 2, best64.data());
  EXPECT_EQ(base64, best64);
}

TEST(Random, StridesOfTheOutputDoNotMatter) {
  manual_seed(3);
  Tensor plain = rand({30, 40});
  manual_seed(3);
  Tensor other = zeros({40, 30}).t();
  other.uniform_();
  EXPECT_EQ(other.strides(), (Shape{1, 30}));
  EXPECT_TRUE(equal(other, plain));
  manual_seed(3);
  Tensor like = rand_like(other);
  EXPECT_EQ(like.strides(), other.strides());
  EXPECT_TRUE(equal(like, plain));
  manual_seed(3);
  Tensor normal = randn({30, 40});
  manual_seed(3);
  Tensor normal_like = randn_like(other);
  EXPECT_EQ(normal_like.strides(), other.strides());
  EXPECT_TRUE(equal(normal_like, normal));
}

TEST(Random, PrefixesAgree) {
  manual_seed(4);
  Tensor longer = randn({1000});
  for (int64_t n : {1, 15, 16, 17, 63, 64, 65, 200}) {
    manual_seed(4);
    EXPECT_TRUE(equal(randn({n}), longer.narrow(0, 0, n))) << n;
  }
}

TEST(Random, UniformStaysInside) {
  manual_seed(5);
  for (DType dtype : {f32, f64, bf16, f16}) {
    Tensor x = rand({20000}, {dtype});
    EXPECT_EQ(x.dtype(), dtype);
    auto v = values(x);
    EXPECT_GE(*std::min_element(v.begin(), v.end()), 0) << name(dtype);
    EXPECT_LT(*std::max_element(v.begin(), v.end()), 1) << name(dtype);
    EXPECT_NEAR(mean_of(v), dtype == bf16 ? 0.498 : 0.5, 0.01) << name(dtype);
    EXPECT_NEAR(variance_of(v), 1.0 / 12, 0.003) << name(dtype);
    // Rounding low + u·width must not reach the upper bound.
    x.uniform_(1000, 1000.75);
    v = values(x);
    EXPECT_GE(*std::min_element(v.begin(), v.end()), 1000) << name(dtype);
    if (dtype != bf16) {
      EXPECT_LT(*std::max_element(v.begin(), v.end()), 1000.75) << name(dtype);
    }
    x.uniform_(-3, -1);
    v = values(x);
    EXPECT_GE(*std::min_element(v.begin(), v.end()), -3) << name(dtype);
    EXPECT_LT(*std::max_element(v.begin(), v.end()), -1) << name(dtype);
    x.uniform_(-1, 0);
    v = values(x);
    EXPECT_LT(*std::max_element(v.begin(), v.end()), 0) << name(dtype);
    x.uniform_(2, 2);
    EXPECT_EQ(values(x), Doubles(20000, 2));
  }
}

TEST(Random, NormalHasTheMomentsOfOne) {
  manual_seed(6);
  for (DType dtype : {f32, f64, bf16, f16}) {
    auto v = values(randn({100000}, {dtype}));
    double m = mean_of(v), s = variance_of(v), third = 0, fourth = 0;
    int beyond = 0;
    for (double x : v) {
      third += x * x * x;
      fourth += x * x * x * x;
      beyond += std::abs(x) > 3;
    }
    EXPECT_NEAR(m, 0, 0.012) << name(dtype);
    EXPECT_NEAR(s, 1, 0.02) << name(dtype);
    EXPECT_NEAR(third / 1e5, 0, 0.05) << name(dtype);
    EXPECT_NEAR(fourth / 1e5, 3, 0.12) << name(dtype);
    EXPECT_NEAR(beyond, 270, 70) << name(dtype);
  }
  Tensor x = empty({50000});
  auto v = values(x.normal_(5, 0.5));
  EXPECT_NEAR(mean_of(v), 5, 0.02);
  EXPECT_NEAR(variance_of(v), 0.25, 0.01);
  EXPECT_EQ(values(x.normal_(1, 0)), Doubles(50000, 1));
  // Neighbouring elements (the sine and cosine of one angle among them) do not go together.
  v = values(randn({64000}));
  for (size_t lag : {1, 16, 32, 64}) {
    double sum = 0;
    for (size_t i = 0; i + lag < v.size(); ++i) sum += v[i] * v[i + lag];
    EXPECT_NEAR(sum / 64000, 0, 0.015) << lag;
  }
}

TEST(Random, ComplexNumbersHaveVarianceOne) {
  manual_seed(7);
  for (DType dtype : {c64, c128}) {
    auto z = randn({30000}, {dtype}).to_vector<std::complex<double>>();
    double power = 0, cross = 0;
    for (auto& x : z) {
      power += std::norm(x);
      cross += x.real() * x.imag();
    }
    EXPECT_NEAR(power / 30000, 1, 0.03);
    EXPECT_NEAR(cross / 30000, 0, 0.01);
    auto u = rand({100}, {dtype}).to_vector<std::complex<double>>();
    for (auto& x : u) EXPECT_TRUE(x.real() >= 0 && x.real() < 1 && x.imag() >= 0 && x.imag() < 1);
  }
}

TEST(Random, RandintCoversItsRangeEvenly) {
  manual_seed(8);
  auto v = randint(-3, 4, {70000}).to_vector<int64_t>();
  std::map<int64_t, int> count;
  for (int64_t x : v) ++count[x];
  EXPECT_EQ(count.size(), 7u);
  EXPECT_EQ(count.begin()->first, -3);
  for (auto [x, n] : count) EXPECT_NEAR(n, 10000, 450) << x;
  // Three quarters of all 64-bit numbers: the naive way would give the first third twice as often.
  auto wide = randint(INT64_MIN, int64_t{1} << 62, {30000}).to_vector<int64_t>();
  int first = 0;
  for (int64_t x : wide) first += x < INT64_MIN + (int64_t{1} << 62);
  EXPECT_NEAR(first, 10000, 400);
  auto all = randint(INT64_MIN, INT64_MAX, {1000}).to_vector<int64_t>();
  EXPECT_NEAR(std::count_if(all.begin(), all.end(), [](int64_t x) { return x < 0; }), 500, 80);
  EXPECT_EQ(values(randint(5, 6, {3})), Doubles(3, 5));
  for (DType dtype : {i8, u8, i16, i32, f32, bf16, f16, f64, boolean}) {
    Tensor x = randint(0, 2, {200}, {dtype});
    EXPECT_EQ(x.dtype(), dtype);
    EXPECT_NEAR(mean_of(values(x)), 0.5, 0.15);
  }
  EXPECT_THAT(message_of<ValueError>([] { randint(3, 3, {1}); }), HasSubstr("randint: [3, 3) is empty"));
  EXPECT_THAT(message_of<ValueError>([] { randint(0, 300, {1}, {u8}); }),
              HasSubstr("u8 cannot hold all integers in [0, 300)"));
}

TEST(Random, RandpermIsAPermutation) {
  manual_seed(10);
  for (int64_t n : {0, 1, 2, 100, 5000}) {
    auto p = randperm(n).to_vector<int64_t>();
    auto sorted = p;
    std::sort(sorted.begin(), sorted.end());
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(sorted[static_cast<size_t>(i)], i);
    if (n > 50) {
      EXPECT_NE(p, sorted);
    }
  }
  std::map<std::vector<int64_t>, int> count;
  for (int i = 0; i < 6000; ++i) ++count[randperm(3).to_vector<int64_t>()];
  EXPECT_EQ(count.size(), 6u);
  for (auto& [p, n] : count) EXPECT_NEAR(n, 1000, 130);
  EXPECT_EQ(randperm(10, {i32}).dtype(), i32);
  EXPECT_THAT(message_of<ValueError>([] { randperm(300, {u8}); }), HasSubstr("cannot hold"));
  EXPECT_THAT(message_of<ValueError>([] { randperm(-1); }), HasSubstr("must not be negative"));
}

TEST(Random, Bernoulli) {
  manual_seed(11);
  for (DType dtype : {f32, f64, bf16}) {
    Tensor p = full({40000}, 0.25, {dtype});
    p.narrow(0, 0, 10).fill_(0);
    p.narrow(0, 10, 10).fill_(1);
    auto v = values(bernoulli(p));
    for (int i = 0; i < 10; ++i) EXPECT_EQ(v[static_cast<size_t>(i)], 0);
    for (int i = 10; i < 20; ++i) EXPECT_EQ(v[static_cast<size_t>(i)], 1);
    EXPECT_NEAR(mean_of(v), 0.25, 0.01);
    EXPECT_EQ(bernoulli(p).dtype(), dtype);
  }
  EXPECT_THAT(message_of<ValueError>([] { bernoulli(tensor({0.5, 1.5})); }), HasSubstr("element 1"));
  EXPECT_THAT(message_of<ValueError>([] { bernoulli(tensor({NAN})); }), HasSubstr("[0, 1]"));
  EXPECT_THAT(message_of<DTypeError>([] { bernoulli(tensor({0, 1})); }), HasSubstr("floating"));
  for (DType dtype : {f32, boolean, i64, u8, f16}) {
    Tensor x = empty({40000}, {dtype});
    EXPECT_NEAR(mean_of(values(x.bernoulli_(0.1))), 0.1, 0.01);
    EXPECT_EQ(mean_of(values(x.bernoulli_(0))), 0);
    EXPECT_EQ(mean_of(values(x.bernoulli_(1))), 1);
  }
  Tensor p = full({3}, 0.5, {.requires_grad = true});
  sum(bernoulli(p)).backward();
  EXPECT_EQ(values(p.grad()), Doubles(3, 0));
}

TEST(Random, MultinomialFollowsTheWeights) {
  manual_seed(12);
  Tensor w = tensor({{1.0, 0.0, 3.0}, {0.0, 5.0, 0.0}}, {f64});
  Tensor drawn = multinomial(w, 20000, true);
  EXPECT_EQ(drawn.sizes(), (Shape{2, 20000}));
  EXPECT_EQ(drawn.dtype(), i64);
  auto v = drawn.to_vector<int64_t>();
  EXPECT_NEAR(std::count(v.begin(), v.begin() + 20000, 0), 5000, 250);
  EXPECT_EQ(std::count(v.begin(), v.begin() + 20000, 1), 0);
  EXPECT_EQ(std::count(v.begin() + 20000, v.end(), 1), 20000);
  // Without replacement: all orders by their probabilities; the first draw is by the weights.
  std::map<std::vector<int64_t>, int> orders;
  Tensor weights = tensor({1.0, 2.0, 1.0});
  for (int i = 0; i < 8000; ++i) ++orders[multinomial(weights, 3, false).to_vector<int64_t>()];
  EXPECT_EQ(orders.size(), 6u);
  EXPECT_NEAR((orders[{1, 0, 2}]), 2000, 160);
  EXPECT_NEAR((orders[{0, 1, 2}]), 8000 / 4 * 2 / 3, 150);
  EXPECT_NEAR((orders[{0, 2, 1}]), 8000 / 4 * 1 / 3, 120);
  EXPECT_EQ(multinomial(zeros({0, 3}), 2).sizes(), (Shape{0, 2}));
  EXPECT_EQ(multinomial(tensor({1.0}), 0).sizes(), (Shape{0}));
}

TEST(Random, MultinomialSaysWhatIsWrong) {
  EXPECT_THAT(message_of<ValueError>([] { multinomial(tensor({1.0, -1.0}), 1); }),
              HasSubstr("weight 1 of row 0 is -1"));
  EXPECT_THAT(message_of<ValueError>([] { multinomial(tensor({1.0, NAN}), 1); }), HasSubstr("finite and not negative"));
  EXPECT_THAT(message_of<ValueError>([] { multinomial(zeros({2, 2}), 1); }), HasSubstr("row 0 sum to 0"));
  EXPECT_THAT(message_of<ValueError>([] { multinomial(ones({3}), 4); }),  // no index comes twice unless asked for
              HasSubstr("cannot draw 4 different indices from 3 weights"));
  EXPECT_THAT(message_of<ValueError>([] { multinomial(tensor({1.0, 0.0, 1.0}), 3, false); }),
              HasSubstr("2 positive weights"));
  EXPECT_THAT(message_of<ShapeError>([] { multinomial(ones({2, 2, 2}), 1); }), HasSubstr("1 or 2 dims"));
  EXPECT_THAT(message_of<DTypeError>([] { multinomial(tensor({1, 2}), 1); }), HasSubstr("floating-point weights"));
}

TEST(Random, DropoutDropsAndScales) {
  manual_seed(13);
  for (DType dtype : {f32, f64, bf16, f16, c64, c128}) {
    Tensor x = ones({40000}, {dtype}), y = dropout(x, 0.25);
    EXPECT_EQ(y.dtype(), dtype);
    auto v = values(y);
    auto kept = static_cast<double>(std::count_if(v.begin(), v.end(), [](double a) { return a != 0; }));
    EXPECT_NEAR(kept / 40000, 0.75, 0.01);
    EXPECT_TRUE(std::all_of(v.begin(), v.end(), [](double a) { return a == 0 || std::abs(a - 4.0 / 3) < 0.01; }));
  }
  Tensor x = randn({5});
  EXPECT_TRUE(dropout(x, 0.5, false).is_same(x));
  EXPECT_TRUE(dropout(x, 0).is_same(x));
  EXPECT_EQ(values(dropout(full({4}, INFINITY), 1)), Doubles(4, 0));
  EXPECT_EQ(dropout(zeros({0, 3}), 0.5).sizes(), (Shape{0, 3}));
  EXPECT_EQ(dropout(ones({}), 0.5).dim(), 0);
  EXPECT_THAT(message_of<ValueError>([&] { dropout(x, 1.5); }), HasSubstr("[0, 1], not 1.5"));
  EXPECT_THAT(message_of<ValueError>([&] { dropout(x, -0.1); }), HasSubstr("[0, 1]"));
  EXPECT_THAT(message_of<DTypeError>([&] { dropout(arange(3), 0.5); }), HasSubstr("floating-point or complex"));
}

TEST(Random, DropoutKeepsStridesButNotItsMaskByThem) {
  Tensor x = randn({6, 50}), t = x.t().contiguous().t();
  manual_seed(14);
  Tensor a = dropout(x, 0.5);
  manual_seed(14);
  Tensor b = dropout(t, 0.5);
  EXPECT_EQ(b.strides(), t.strides());
  EXPECT_TRUE(equal(a, b));
  manual_seed(14);
  EXPECT_EQ(dropout(ones({1}).expand({6, 50}), 0.5).sizes(), (Shape{6, 50}));
}

TEST(Random, DropoutGradientsUseTheSameMask) {
  manual_seed(15);
  Tensor x = randn({500}, {.dtype = f64, .requires_grad = true});
  Tensor y = dropout(x, 0.4);
  sum(y).backward({}, true, false);
  Tensor mask = cast(y.detach() != 0, f64) / 0.6;
  EXPECT_TRUE(allclose(x.grad(), mask));
  // Twice: the gradient of the squared gradient goes through the same mask again.
  Tensor z = sum(dropout(x * x, 0.4));
  Tensor g = grad({z}, {x}, {.create_graph = true})[0];
  Tensor second = grad({sum(g)}, {x})[0];
  auto s = values(second), first = values(g), v = values(x);
  for (size_t i = 0; i < s.size(); ++i) {
    ASSERT_TRUE(first[i] == 0 ? s[i] == 0 : std::abs(s[i] - 2 / 0.6) < 1e-9) << i;
    ASSERT_NEAR(first[i], s[i] * v[i], 1e-9);
  }
  Tensor all = ones({3}, {.requires_grad = true});
  sum(dropout(all, 1)).backward();
  EXPECT_EQ(values(all.grad()), Doubles(3, 0));
}

TEST(Random, GeneratorsOfRanksAndThreadsDiffer) {
  EXPECT_EQ(Generator().state().seed, 0u);
  auto first_of = [](int rank) {
    float value = 0;
    std::thread([&] {
      context().rank = rank;
      value = rand({1}).item<float>();
    }).join();
    return value;
  };
  float plain = 0;  // of the main thread
  {
    ContextGuard fresh{Context()};
    plain = rand({1}).item<float>();
  }
  manual_seed(0);
  EXPECT_EQ(rand({1}).item<float>(), plain);
  EXPECT_NE(first_of(-1), plain);
  EXPECT_NE(first_of(-1), first_of(-1));
  EXPECT_NE(first_of(0), first_of(1));
  EXPECT_NE(first_of(0), plain);
  EXPECT_EQ(first_of(1), first_of(1));
}

TEST(Random, InPlaceOnLeavesAndMeta) {
  Tensor x = ones({3}, {.requires_grad = true});
  EXPECT_THAT(message_of<GradError>([&] { x.uniform_(); }), HasSubstr("leaf"));
  {
    NoGrad guard;
    x.normal_();
  }
  EXPECT_TRUE(x.requires_grad());
  EXPECT_TRUE(rand({2}, {.requires_grad = true}).requires_grad());
  auto before = generator().state();
  EXPECT_EQ(randn({1000, 1000}, {.device = "meta"}).sizes(), (Shape{1000, 1000}));
  EXPECT_EQ(generator().state(), before);
  EXPECT_EQ(rand({0}).numel(), 0);
  EXPECT_EQ(rand({}).dim(), 0);
  EXPECT_THAT(message_of<DTypeError>([] { rand({2}, {i64}); }), HasSubstr("use randint"));
  EXPECT_THAT(message_of<ValueError>([] { ones({2}).uniform_(2, 1); }), HasSubstr("[2, 1)"));
  EXPECT_THAT(message_of<ValueError>([] { ones({2}).normal_(0, -1); }), HasSubstr("negative"));
  EXPECT_THAT(message_of<ShapeError>([] { ones({1}).expand({3}).uniform_(); }), HasSubstr("share memory"));
}

TEST(Random, DescriptorsSayThatTheyAreRandom) {
  struct Watch : Tracer {
    std::vector<std::string> random, plain;
    bool call(const Operator& op, std::span<const Tensor* const>, Attributes, std::span<Tensor>) override {
      (op.random ? random : plain).push_back(op.name);
      return false;
    }
  } watch;
  Tensor x = ones({3}), p = full({3}, 0.5);
  {
    TraceGuard guard(watch);
    rand({1});
    randn({1});
    randint(0, 5, {1});
    randperm(3);
    bernoulli(p);
    multinomial(p, 1);
    dropout(x, 0.5);
  }
  EXPECT_EQ(watch.random, (std::vector<std::string>{"uniform", "normal", "randint", "randperm", "bernoulli",
                                                    "multinomial", "random_state"}));
  EXPECT_EQ(watch.plain, (std::vector<std::string>{"dropout"}));
}

}  // namespace
}  // namespace tutti
