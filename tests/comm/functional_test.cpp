// Functional collectives: values, gradients by hand and by differences, meta inference, errors.
#include <cmath>
#include <numeric>
#include <thread>

#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"
#include "tutti/compile.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

class Functional : public testing::TestWithParam<int> {
 protected:
  int n = GetParam();
  double total = n * (n - 1) / 2.0;
};
INSTANTIATE_TEST_SUITE_P(Worlds, Functional, testing::Values(1, 2, 3, 4, 8));

// Of the same numbers the two orders have other bits: a compiler may neither join them nor take one for the other.
TEST_P(Functional, OrdersAreToldApart) {
  spawn_ranks(n, [] {
    auto calls = compile([](const Tensor& x, const Tensor& y) {
      return fn::all_reduce(x) + fn::all_reduce(y, {.order = Order::fastest}) +
             fn::all_reduce(x, {.order = Order::fastest});
    });
    for (int i = 0; i < 2; ++i) calls(ones({5}) * (rank() + 1.0), ones({5}) * (rank() + 2.0));
    std::string text = calls.print();
    EXPECT_THAT(text,
                testing::ContainsRegex("all_reduce\\(%0, group=[^)]*, root=0\\)"));  // by itself, as it was asked for
    EXPECT_THAT(text, HasSubstr("order=fastest"));
  });
}

Tensor leaf(const Shape& sizes, double value) { return full(sizes, value, {f64}).requires_grad_(); }
Tensor random_leaf(const Shape& sizes) { return (rand(sizes, {f64}) + 0.5).requires_grad_(); }

// Rank r's loss is (r+1)·sum(y): the gradient of y is r+1 there.
void backward_by_rank(const TensorList& ys) {
  Tensor loss = zeros({}, {f64});
  for (size_t k = 0; k < ys.size(); ++k) loss = loss + ys[k].sum() * double(k + 1);
  (loss * (rank() + 1)).backward();
}

TEST_P(Functional, AllReduceSumsAndAverages) {
  spawn_ranks(n, [&] {
    double g = total + n;  // Σ (r+1)
    Tensor x = leaf({2, 3}, rank());
    Tensor y = fn::all_reduce(x);
    EXPECT_TRUE(equal(y, full({2, 3}, total, {f64})));
    backward_by_rank({y});
    EXPECT_TRUE(equal(x.grad(), full({2, 3}, g, {f64})));

    x.zero_grad();
    y = fn::all_reduce(x, {.op = Reduce::average});
    backward_by_rank({y});
    EXPECT_NEAR(x.grad()[0][0].item<double>(), g / n, 1e-12);

    x.zero_grad();
    y = fn::all_reduce(x, {.factor = rank() + 2.0});
    double sum = 0, weights = 0;
    for (int r = 0; r < n; ++r) sum += r * (r + 2.0), weights += r + 1;
    EXPECT_EQ(y[1][2].item<double>(), sum);
    backward_by_rank({y});
    EXPECT_EQ(x.grad()[0][1].item<double>(), g * (rank() + 2));

    x.zero_grad();
    y = fn::all_reduce(x, {.op = Reduce::average, .weight = rank() + 1.0});
    backward_by_rank({y});
    EXPECT_NEAR(x.grad()[0][1].item<double>(), g * (rank() + 1) / weights, 1e-12);
  });
}

TEST_P(Functional, AllReduceOfManyTensorsUsesOneCall) {
  spawn_ranks(n, [&] {
    Tensor x = leaf({2}, rank()), z = leaf({0, 4}, 1), w = leaf({3, 1}, 2);
    TensorList ys = fn::all_reduce(TensorList{x, z, w});
    ASSERT_EQ(ys.size(), 3u);
    EXPECT_EQ(values(ys[0]), (Doubles{total, total}));
    EXPECT_EQ(ys[1].sizes(), Shape({0, 4}));
    EXPECT_EQ(ys[2][2][0].item<double>(), 2 * n);
    // To rank 0 one of the results matters only: its share of the others' gradients is nothing.
    (ys[0].sum() + 0 * ys[1].sum() + ys[2].sum() * rank()).backward();
    EXPECT_EQ(values(x.grad()), (Doubles{double(n), double(n)}));
    EXPECT_EQ(values(w.grad()), (Doubles{total, total, total}));
    EXPECT_TRUE(fn::all_reduce(TensorList{}).empty());
  });
}

TEST_P(Functional, ExtremesShareTheGradient) {
  spawn_ranks(n, [&] {
    // Element 0: the last rank alone; element 1: all; element 2: the even ranks.
    Tensor x = tensor({double(rank()), 5.0, rank() % 2 == 0 ? 9.0 : 1.0}, {f64}).requires_grad_();
    Tensor y = fn::all_reduce(x, {.op = Reduce::max});
    EXPECT_EQ(values(y), (Doubles{n - 1.0, 5, 9}));
    backward_by_rank({y});
    double g = total + n;
    int even = (n + 1) / 2;
    Doubles found = values(x.grad()), wanted{rank() == n - 1 ? g : 0, g / n, rank() % 2 == 0 ? g / even : 0};
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(found[i], wanted[i], 1e-12) << i;

    x.zero_grad();
    backward_by_rank({fn::reduce(x, {.op = Reduce::min, .root = n - 1})});
    found = values(x.grad());
    EXPECT_EQ(found[0], rank() == 0 ? n : 0);
    EXPECT_NEAR(found[1], 1, 1e-12);
  });
}

TEST_P(Functional, ProductsWithZeros) {
  spawn_ranks(n, [&] {
    // One zero: that rank alone has a gradient. Two: nobody has.
    Tensor x = tensor({rank() == 0 ? 0.0 : 2.0, rank() < 2 ? 0.0 : 3.0}, {f64}).requires_grad_();
    Tensor y = fn::all_reduce(x, {.op = Reduce::product});
    y.sum().backward();
    Doubles g = values(x.grad());
    EXPECT_EQ(g[0], rank() == 0 ? n * std::pow(2, n - 1) : 0);
    EXPECT_EQ(g[1], n == 1 ? 1 : 0);
  });
}

TEST_P(Functional, ReduceAndBroadcastFromEachRoot) {
  spawn_ranks(n, [&] {
    for (int root = 0; root < n; ++root) {
      Tensor x = leaf({4}, rank());
      Tensor y = fn::reduce(x, {.root = root});
      EXPECT_EQ(y[3].item<double>(), rank() == root ? total : 0);
      backward_by_rank({y});
      EXPECT_TRUE(equal(x.grad(), full({4}, root + 1, {f64})));  // others' y is a constant

      Tensor b = leaf({4}, rank() * 10);
      Tensor z = fn::broadcast(b, {.root = root});
      EXPECT_EQ(z[0].item<double>(), root * 10);
      EXPECT_EQ(b[0].item<double>(), rank() * 10);
      backward_by_rank({z});
      EXPECT_TRUE(equal(b.grad(), full({4}, rank() == root ? total + n : 0, {f64})));
    }
  });
}

TEST_P(Functional, GatherAndScatter) {
  spawn_ranks(n, [&] {
    std::vector<Shape> shapes;
    for (int k = 0; k < n; ++k) shapes.push_back({k, 2});  // rank 0 has nothing
    auto me = static_cast<size_t>(rank());
    for (int root : {0, n - 1}) {
      Tensor x = leaf(shapes[me], rank() + 1);
      TensorList all = fn::gather(x, {.root = root}, shapes);
      for (size_t k = 0; k < all.size(); ++k)
        EXPECT_TRUE(equal(all[k], full(shapes[k], rank() == root ? double(k + 1) : 0, {f64})));
      backward_by_rank(all);
      EXPECT_TRUE(equal(x.grad(), full(shapes[me], (rank() + 1.0) * (root + 1), {f64})));

      TensorList parts;
      for (int k = 0; k < n; ++k) parts.push_back(leaf(shapes[static_cast<size_t>(k)], rank() * 100 + k));
      Tensor y = fn::scatter(parts, {.root = root});
      EXPECT_TRUE(equal(y, full(shapes[me], root * 100 + rank(), {f64})));
      backward_by_rank({y});
      for (size_t k = 0; k < parts.size(); ++k)
        EXPECT_TRUE(equal(parts[k].grad(), full(shapes[k], rank() == root ? double(k + 1) : 0, {f64})));
    }
  });
}

TEST_P(Functional, AllGather) {
  spawn_ranks(n, [&] {
    Tensor x = leaf({2, 2}, rank());
    TensorList all = fn::all_gather(x);
    ASSERT_EQ(all.size(), static_cast<size_t>(n));
    for (int k = 0; k < n; ++k) EXPECT_TRUE(equal(all[static_cast<size_t>(k)], full({2, 2}, k, {f64})));
    backward_by_rank(all);
    EXPECT_TRUE(equal(x.grad(), full({2, 2}, (rank() + 1) * (total + n), {f64})));

    // Uneven, and used in part: only its own result matters to rank r, which says so.
    Tensor u = leaf({rank()}, rank());
    std::vector<Shape> shapes;
    Shape rows;
    for (int k = 0; k < n; ++k) shapes.push_back({k}), rows.push_back(k);
    all = fn::all_gather(u, {}, shapes);
    ((all[static_cast<size_t>(rank())] * 3).sum() + 0 * cat(all).sum()).backward();
    EXPECT_TRUE(equal(u.grad(), full({rank()}, 3, {f64})));

    u.zero_grad();
    Tensor one = fn::all_gather_single(u, {}, rows);
    EXPECT_EQ(one.size(0), static_cast<int64_t>(total));
    (one * one).sum().backward();
    EXPECT_TRUE(equal(u.grad(), full({rank()}, 2.0 * n * rank(), {f64})));
    EXPECT_EQ(fn::all_gather_single(x).sizes(), Shape({2 * n, 2}));
  });
}

TEST_P(Functional, ReduceScatter) {
  spawn_ranks(n, [&] {
    Tensor x = (arange(2 * n).to(f64) + rank()).requires_grad_();
    Tensor y = fn::reduce_scatter(x);
    EXPECT_EQ(values(y), (Doubles{total + n * 2.0 * rank(), total + n * (2.0 * rank() + 1)}));
    backward_by_rank({y});
    for (int64_t i = 0; i < 2 * n; ++i) EXPECT_EQ(x.grad()[i].item<double>(), double(i / 2 + 1));

    TensorList xs;
    Shape rows;
    for (int k = 0; k < n; ++k) xs.push_back(leaf({k, 2}, k)), rows.push_back(k);
    Tensor z = fn::reduce_scatter(xs, {.op = Reduce::average});
    EXPECT_TRUE(z.allclose(full({rank(), 2}, rank(), {f64})));
    backward_by_rank({z});
    for (int k = 0; k < n; ++k)
      EXPECT_TRUE(xs[static_cast<size_t>(k)].grad().allclose(full({k, 2}, (k + 1.0) / n, {f64})));

    Tensor one = fn::reduce_scatter(leaf({static_cast<int64_t>(total), 3}, 1), {}, rows);
    EXPECT_TRUE(equal(one, full({rank(), 3}, n, {f64})));
  });
}

TEST_P(Functional, AllToAll) {
  spawn_ranks(n, [&] {
    int me = rank();
    // Rank a gives rank b a+b numbers (none from 0 to itself).
    TensorList xs;
    std::vector<Shape> shapes;
    Shape rows;
    for (int k = 0; k < n; ++k) {
      xs.push_back(leaf({me + k}, 10 * me + k));
      shapes.push_back({k + me});
      rows.push_back(me + k);
    }
    TensorList ys = fn::all_to_all(xs, {}, shapes);
    for (int k = 0; k < n; ++k) EXPECT_TRUE(equal(ys[static_cast<size_t>(k)], full({me + k}, 10 * k + me, {f64})));
    backward_by_rank(ys);
    for (int k = 0; k < n; ++k)  // (which part, from me) · (which rank)
      EXPECT_TRUE(equal(xs[static_cast<size_t>(k)].grad(), full({me + k}, (me + 1.0) * (k + 1), {f64})));

    Tensor x = leaf({std::accumulate(rows.begin(), rows.end(), int64_t{0}), 2}, me);
    Tensor y = fn::all_to_all_single(x, rows, rows);
    backward_by_rank({y});
    int64_t at = 0;
    for (int k = 0; k < n; ++k) {
      EXPECT_TRUE(equal(y.narrow(0, at, me + k), full({me + k, 2}, k, {f64})));
      EXPECT_TRUE(equal(x.grad().narrow(0, at, me + k), full({me + k, 2}, k + 1, {f64})));
      at += me + k;
    }
    Tensor even = fn::all_to_all_single(leaf({n, 2}, me));
    for (int k = 0; k < n; ++k) EXPECT_EQ(even[k][1].item<double>(), k);
    Tensor splits = tensor(std::vector<int64_t>(rows.begin(), rows.end()));
    EXPECT_TRUE(equal(fn::all_to_all_single(x, splits, splits), y));
  });
}

TEST_P(Functional, DifferencesAgreeToSecondOrder) {
  spawn_ranks(n, [&] {
    using Body = std::function<TensorList(const TensorList&)>;
    Shape rows;
    std::vector<Shape> shapes;
    for (int k = 0; k < n; ++k) rows.push_back(k % 2 + 1), shapes.push_back({k % 2 + 1});
    auto me = static_cast<size_t>(rank());
    double weight = rank() + 0.5;
    std::vector<std::pair<const char*, Body>> bodies{
        {"sum", [](const TensorList& x) { return TensorList{fn::all_reduce(x[0] * x[0])}; }},
        {"average",
         [&](const TensorList& x) {
           return TensorList{fn::all_reduce(exp(x[0]), {.op = Reduce::average, .weight = weight}) * x[0]};
         }},
        {"product", [](const TensorList& x) { return TensorList{fn::all_reduce(x[0], {.op = Reduce::product})}; }},
        {"max", [](const TensorList& x) { return TensorList{fn::all_reduce(x[0] * x[0], {.op = Reduce::max})}; }},
        {"reduce",
         [&](const TensorList& x) {
           return TensorList{fn::reduce(x[0] * x[0], {.factor = weight, .root = n - 1}) * x[0]};
         }},
        {"reduce product",
         [&](const TensorList& x) { return TensorList{fn::reduce(x[0], {.op = Reduce::product, .root = n / 2})}; }},
        {"broadcast",
         [&](const TensorList& x) { return TensorList{fn::broadcast(sin(x[0]), {.root = n / 2}) * x[0]}; }},
        {"all_gather",
         [&](const TensorList& x) {
           TensorList all = fn::all_gather(x[0].narrow(0, 0, rows[me]), {}, shapes);
           for (Tensor& y : all) y = y * y;
           return all;
         }},
        {"all_gather_single",
         [&](const TensorList& x) {
           Tensor y = fn::all_gather_single(x[0].narrow(0, 0, rows[me]), {}, rows);
           return TensorList{y * y};
         }},
        {"gather",
         [&](const TensorList& x) {
           TensorList all = fn::gather(x[0].narrow(0, 0, rows[me]), {.root = n - 1}, shapes);
           for (Tensor& y : all) y = y * y * y;
           return all;
         }},
        {"scatter",
         [&](const TensorList& x) {
           TensorList parts;
           for (int k = 0; k < n; ++k) parts.push_back(x[0] * x[0] * (k + 1));
           return TensorList{fn::scatter(parts, {.root = n - 1})};
         }},
        {"reduce_scatter",
         [&](const TensorList& x) {
           return TensorList{fn::reduce_scatter(TensorList(static_cast<size_t>(n), x[0] * x[0]))};
         }},
        {"reduce_scatter product",
         [&](const TensorList& x) {
           return TensorList{fn::reduce_scatter(TensorList(static_cast<size_t>(n), x[0]), {.op = Reduce::product})};
         }},
        {"all_to_all",
         [&](const TensorList& x) {
           TensorList parts;
           for (int k = 0; k < n; ++k) parts.push_back(x[0] * x[0] * (k + 1));
           return fn::all_to_all(parts);
         }},
        {"all_to_all_single",
         [&](const TensorList& x) {
           Tensor y = fn::all_to_all_single(x[0].repeat({n}));
           return TensorList{y * y};
         }},
    };
    for (auto& [name, f] : bodies) {
      Tensor x = random_leaf({2});
      try {
        EXPECT_TRUE(fn::gradcheck(f, {x})) << name;
        if (n <= 4) {
          EXPECT_TRUE(fn::gradgradcheck(f, {x})) << name;
        }
      } catch (const GradError& e) {
        ADD_FAILURE() << name << ": " << e.what();
        throw;
      }
    }
  });
}

TEST(FunctionalForms, GradcheckOverRanksFindsWrongGradients) {
  struct Wrong : Function<Wrong> {  // forgets that others' losses see x too
    Tensor forward(const Tensor& x) {
      Tensor y = x.clone();
      all_reduce(y);
      return y;
    }
    TensorList backward(const TensorList& g) { return {g[0]}; }
  };
  spawn_ranks(3, [] {
    Tensor x = random_leaf({2});
    auto f = [](const TensorList& xs) { return TensorList{Wrong::apply(xs[0])}; };
    EXPECT_FALSE(fn::gradcheck(f, {x}, {.throw_on_failure = false}));
    EXPECT_THROW(fn::gradcheck(f, {x}), GradError);
    barrier();
  });
}

TEST(FunctionalForms, ComplexNumbers) {
  spawn_ranks(3, [] {
    Tensor x = complex(rand({2}, {f64}) + 0.5, rand({2}, {f64})).requires_grad_();
    for (Reduce op : {Reduce::sum, Reduce::average, Reduce::product}) {
      auto f = [&](const TensorList& xs) { return TensorList{fn::all_reduce(xs[0] * xs[0], {.op = op})}; };
      EXPECT_TRUE(fn::gradcheck(f, {x}));
      EXPECT_TRUE(fn::gradgradcheck(f, {x}));
    }
  });
}

TEST(FunctionalForms, HalfPrecisionAndOddLayouts) {
  spawn_ranks(4, [] {
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      Tensor x = full({2, 3}, rank() + 1, {.dtype = dtype}).requires_grad_();
      Tensor y = fn::all_reduce(x.t() * 1);
      EXPECT_EQ(y.dtype(), dtype);
      EXPECT_EQ(y[2][1].item<double>(), 10);
      y.sum().backward();
      EXPECT_EQ(x.grad().dtype(), dtype);
      EXPECT_EQ(x.grad()[1][2].item<double>(), 4);
    }
    Tensor whole = arange(24).to(f64).view({4, 6}).requires_grad_();
    Tensor part = fn::reduce_scatter(whole.t().narrow(0, 1, 4));  // a view with strides
    EXPECT_EQ(part.sizes(), Shape({1, 4}));
    EXPECT_TRUE(equal(part, whole.t().narrow(0, 1 + rank(), 1) * 4));
    // Integers pass without a gradient.
    EXPECT_EQ(fn::all_reduce(full({2}, 3, {i32}), {.op = Reduce::bxor})[0].item<int>(), 0);
    EXPECT_FALSE(fn::all_gather(full({2}, 3, {i64}))[1].requires_grad());
  });
}

TEST(FunctionalForms, MetaTensorsNeedNoPeers) {
  Device meta("meta");
  spawn_ranks(4, [&] {
    if (rank() != 2) return;
    Tensor x = empty({4, 3}, {.dtype = f32, .device = meta});
    EXPECT_EQ(fn::all_reduce(x).sizes(), Shape({4, 3}));
    EXPECT_TRUE(fn::all_reduce(x).device().is_meta());
    EXPECT_EQ(fn::all_reduce(TensorList{x, x[0]})[1].sizes(), Shape({3}));
    EXPECT_EQ(fn::reduce(x, {.root = 1}).sizes(), Shape({4, 3}));
    EXPECT_EQ(fn::broadcast(x).sizes(), Shape({4, 3}));
    EXPECT_EQ(fn::all_gather(x).size(), 4u);
    EXPECT_EQ(fn::all_gather_single(x).sizes(), Shape({16, 3}));
    EXPECT_EQ(fn::all_gather(x, {}, {Shape{1}, Shape{2}, Shape{4, 3}, Shape{}})[1].sizes(), Shape{2});
    EXPECT_EQ(fn::gather(x)[3].sizes(), Shape({4, 3}));
    EXPECT_EQ(fn::scatter({x, x, x[0], x}).sizes(), Shape{3});
    EXPECT_EQ(fn::reduce_scatter(x).sizes(), Shape({1, 3}));
    EXPECT_EQ(fn::reduce_scatter(x, {}, {1, 0, 3, 0}).sizes(), Shape({3, 3}));
    EXPECT_EQ(fn::all_to_all({x, x, x, x}, {}, {{1}, {2}, {3}, {4}})[3].sizes(), Shape{4});
    EXPECT_EQ(fn::all_to_all_single(x, {5, 6, 7, 8}, {1, 1, 2, 0}).sizes(), Shape({26, 3}));
    EXPECT_THROW(fn::all_reduce(x, {.op = Reduce::band}), DTypeError);
  });
}

TEST(FunctionalForms, BackwardUsesTheGroupOfForwardInAnyThread) {
  spawn_ranks(4, [] {
    Group pair = world().split(rank() % 2);
    Tensor x = leaf({3}, rank());
    Tensor y = fn::all_reduce(x, {.group = pair});
    // A thread without any context of the rank: what the node remembers is enough.
    std::thread helper([&] { (y * y).sum().backward(); });
    helper.join();
    double sum = rank() % 2 == 0 ? 2 : 4;
    EXPECT_EQ(values(x.grad()), (Doubles{4 * sum, 4 * sum, 4 * sum}));
    EXPECT_EQ(node_name(*y.grad_node()), "all_reduce");
  });
}

TEST(FunctionalForms, CollectivesInBackwardKeepTheirOrder) {
  spawn_ranks(4, [] {
    Tensor x = leaf({5}, rank() + 1), w = leaf({5}, 2);
    Tensor a = fn::all_reduce(x * w), b = fn::broadcast(x, {.root = 1}), c = fn::all_gather_single(w);
    Tensor loss = (a * b).sum() + c.sum();
    if (rank() % 2) loss = loss + (x * 3).sum() * 0;  // other operators on some ranks
    loss.backward();
    EXPECT_EQ(x.grad()[0].item<double>(), 8 * 2 + (rank() == 1 ? 4 * 20 : 0));
    EXPECT_EQ(w.grad()[0].item<double>(), 8 * (rank() + 1) + 4);
  });
}

TEST(FunctionalForms, Errors) {
  spawn_ranks(3, [] {
    Tensor x = leaf({4}, 1);
    auto text = [](auto f) { return message_of<Error>(f); };
    EXPECT_THAT(text([&] { fn::all_reduce(Tensor()); }), HasSubstr("all_reduce: an argument is undefined"));
    EXPECT_THAT(text([&] { fn::broadcast(x, {.root = 3}); }), HasSubstr("broadcast: root 3 is not in a group of 3"));
    EXPECT_THAT(text([&] { fn::reduce_scatter(x); }),
                HasSubstr("reduce_scatter: the first dim of f64[4] on cpu:0 does not divide into 3 parts"));
    EXPECT_THAT(text([&] { fn::reduce_scatter(x, {}, {1, 1, 1}); }), HasSubstr("splits [1, 1, 1] do not cut"));
    EXPECT_THAT(text([&] { fn::all_to_all_single(x, {1, 1, 1}, {5, -1, 0}); }), HasSubstr("-1 rows"));
    EXPECT_THAT(text([&] { fn::all_to_all_single(x, {1, 1}, {4, 0, 0}); }), HasSubstr("2 output splits"));
    EXPECT_THAT(text([&] { fn::all_to_all_single(x, {}, {4, 0, 0}); }), HasSubstr("does not divide"));
    EXPECT_THAT(text([&] { fn::scatter({x, x}); }), HasSubstr("scatter: 2 tensors were given for a group of 3"));
    EXPECT_THAT(text([&] { fn::all_to_all({x, x, x.to(f32)}); }), HasSubstr("does not have the dtype"));
    EXPECT_THAT(text([&] { fn::all_gather(x, {}, {{4}, {4}}); }), HasSubstr("2 shapes were given for a group of 3"));
    EXPECT_THAT(text([&] { fn::all_gather(x, {}, {{5}, {5}, {5}}); }), HasSubstr("is not that of f64[4]"));
    EXPECT_THAT(text([&] { fn::all_gather_single(x[0]); }), HasSubstr("has no dim to cut"));
    EXPECT_THAT(text([&] { fn::all_reduce(x, {.op = Reduce::bor}); }),
                HasSubstr("there is no Reduce::bor of f64: integers and bools have bits"));
    EXPECT_THAT(text([&] { fn::all_reduce(x, {.op = Reduce::max, .factor = 2}); }), HasSubstr("factors are for sums"));
    EXPECT_THAT(text([&] { fn::all_reduce(to_sparse(x.detach())); }), HasSubstr("is sparse"));
    Group two = world().subgroup({0, 2});
    if (rank() == 1) {
      EXPECT_THAT(text([&] { fn::all_reduce(x, {.group = two}); }), HasSubstr("rank 1 is not a member"));
    }
    EXPECT_THAT(text([&] { fn::all_reduce(rank() ? x : x.view({2, 2})); }), HasSubstr("the shapes differ"));
    barrier();
  });
}

TEST(FunctionalForms, ARankThatDoesNotRunBackwardIsNamed) {
  auto text = message_of<RankFailure>([] {
    spawn_ranks(3, [] {
      Tensor x = leaf({4}, 1);
      Tensor y = fn::all_reduce(x);
      if (rank() != 1) y.sum().backward();
    });
  });
  EXPECT_THAT(text, HasSubstr("rank 1 failed: it ended without taking part in collective 1"));
  EXPECT_THAT(text, HasSubstr("functional_test.cpp"));
}

// On every way: a result that one rank has forgotten is an error there, and everybody hears of it.
TEST(FunctionalForms, UndefinedGradientsAreErrors) {
  for (const Way& way : all_ways()) {
    SCOPED_TRACE(way.name);
    std::string text = message_of<GradError>([&] {
      way.spawn(3,
                [] {
                  Tensor x = leaf({2}, rank());
                  TensorList all = fn::all_gather(x);
                  Tensor loss = all[0].sum() + all[1].sum();
                  if (rank() != 1) loss = loss + all[2].sum();
                  loss.backward();
                },
                {});
    });
    EXPECT_THAT(text, testing::StartsWith("[rank 1] all_gather: no loss of rank 1 depends on result 2 of this call"));
    EXPECT_THAT(text, HasSubstr("functional_test.cpp:"));
  }
  spawn_ranks(3, [] {
    Tensor x = leaf({2}, rank() + 1.0);
    // Said to be of no account, it is.
    TensorList all = fn::all_gather(x);
    (all[0].sum() + 0 * (all[1].sum() + all[2].sum())).backward();
    EXPECT_EQ(x.grad()[0].item<double>(), rank() == 0 ? 3 : 0);
    // In a pass that is recorded, gradients are used or not as it happens: there, zeros are exact.
    Tensor a = leaf({2}, 1), b = leaf({2}, 2);
    TensorList ys = fn::all_reduce(TensorList{a * a, b * b});
    TensorList first = grad({(ys[0] * ys[1]).sum()}, {a, b}, {.create_graph = true});
    first[0].sum().backward();
    EXPECT_TRUE(a.grad().defined());
    EXPECT_TRUE(b.grad().defined());
  });
}

TEST(FunctionalForms, ManyRanksMakeLongLists) {
  spawn_ranks(40, [] {  // more tensors than a descriptor's bits
    Tensor x = leaf({1}, rank());
    TensorList all = fn::all_gather(x);
    TensorList back = fn::all_to_all(all);
    fn::reduce_scatter(back, {.op = Reduce::max}).sum().backward();
    EXPECT_EQ(back[39].item<double>(), rank());
    EXPECT_TRUE(x.grad().defined());
  });
}

}  // namespace
}  // namespace tutti
