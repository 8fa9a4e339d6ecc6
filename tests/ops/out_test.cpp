// Forms that write into given tensors: each f_out gives what f gives, each f_ what f gives, with its gradient.
#include "tests/support/expect_ops.h"
#include "tutti/autograd.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using namespace test;  // NOLINT

using Write = std::function<void(Tensor&)>;

// Writes into an undefined tensor, a fresh one, a strided one and one of a wider dtype; refuses a wrong shape.
void expect_out(const char* name, const Tensor& expected, const Write& write) {
  SCOPED_TRACE(name);
  Tensor undefined;
  write(undefined);
  EXPECT_TRUE(equal(undefined, expected)) << undefined << expected;
  Tensor given = full_like(expected, 1), alias = given;
  uint64_t version = given.version();
  write(given);
  EXPECT_TRUE(equal(alias, expected)) << "the result is not in the given tensor";
  EXPECT_GT(alias.version(), version);
  Shape doubled = expected.sizes();
  doubled.push_back(2);
  Tensor stepped = empty(doubled, {expected.dtype()}).select(-1, 1), view = stepped;
  write(view);
  EXPECT_TRUE(equal(stepped, expected));
  if (expected.dtype() == f32) {
    Tensor wide = empty(expected.sizes(), f64), same = wide;
    write(wide);
    EXPECT_TRUE(equal(same, expected.to(f64)));
    Tensor whole = empty(expected.sizes(), i64);
    EXPECT_THROW(write(whole), DTypeError);
  }
  Tensor wrong = empty({7, 7, 7}, {expected.dtype()});
  EXPECT_THROW(write(wrong), ShapeError);
}

TEST(OutForms, Reductions) {
  manual_seed(2);
  Tensor x = randn({3, 4}), b = x > 0, cube = randn({2, 3, 4});
  expect_out("prod", prod(x, 1), [&](Tensor& out) { prod_out(out, x, 1); });
  expect_out("amax", amax(cube, {0, 2}), [&](Tensor& out) { amax_out(out, cube, {0, 2}); });
  expect_out("amin", amin(x, 0, true), [&](Tensor& out) { amin_out(out, x, 0, true); });
  expect_out("argmin", argmin(x, 1), [&](Tensor& out) { argmin_out(out, x, 1); });
  expect_out("argmin of all", argmin(x), [&](Tensor& out) { argmin_out(out, x); });
  expect_out("all", all(b, 1), [&](Tensor& out) { all_out(out, b, 1); });
  expect_out("any", any(b), [&](Tensor& out) { any_out(out, b); });
  for (double p : {0.0, 1.0, 2.0, 3.0}) expect_out("norm", norm(x, p, 1), [&](Tensor& out) { norm_out(out, x, p, 1); });
  expect_out("var", var(x, 1, false, 0), [&](Tensor& out) { var_out(out, x, 1, false, 0); });
  expect_out("stddev", stddev(x, 0), [&](Tensor& out) { stddev_out(out, x, 0); });
  expect_out("logsumexp", logsumexp(x, {0, 1}), [&](Tensor& out) { logsumexp_out(out, x, {0, 1}); });
  expect_out("cumprod", cumprod(x, 0), [&](Tensor& out) { cumprod_out(out, x, 0); });
  expect_out("cumprod of a number", cumprod(x[0][0], 0), [&](Tensor& out) { cumprod_out(out, x[0][0], 0); });
  expect_out("log_softmax", log_softmax(x, 1), [&](Tensor& out) { log_softmax_out(out, x, 1); });
  expect_out("log_softmax of a number", log_softmax(x[0][0], 0),
             [&](Tensor& out) { log_softmax_out(out, x[0][0], 0); });
  Tensor z = complex(randn({3, 4}), randn({3, 4}));
  Tensor into = empty({3});
  EXPECT_TRUE(equal(var_out(into, z, 1), var(z, 1)));
  EXPECT_TRUE(equal(stddev_out(into, z, 1), stddev(z, 1)));
  EXPECT_TRUE(equal(norm_out(into, z, 2, 1), norm(z, 2, 1)));
}

TEST(OutForms, MoreProducts) {
  manual_seed(1);
  Tensor a = randn({2, 3}), b = randn({3, 4}), v = randn({3}), w = randn({3});
  Tensor p = randn({2, 2, 3}), q = randn({2, 3, 2}), c = randn({2, 2, 2}), m = randn({2, 4});
  expect_out("mv", mv(a, v), [&](Tensor& out) { mv_out(out, a, v); });
  expect_out("dot", dot(v, w), [&](Tensor& out) { dot_out(out, v, w); });
  expect_out("outer", outer(v, w), [&](Tensor& out) { outer_out(out, v, w); });
  expect_out("tensordot", tensordot(p, q, {1, 2}, {2, 1}),
             [&](Tensor& out) { tensordot_out(out, p, q, {1, 2}, {2, 1}); });
  expect_out("tensordot of last and first", tensordot(a, b, 1), [&](Tensor& out) { tensordot_out(out, a, b, 1); });
  expect_out("einsum", einsum("bij,bjk->kb", {p, q}), [&](Tensor& out) { einsum_out(out, "bij,bjk->kb", {p, q}); });
  expect_out("baddbmm", baddbmm(c, p, q, 2, 0.5), [&](Tensor& out) { baddbmm_out(out, c, p, q, 2, 0.5); });
  Tensor sum = m.clone(), batches = c.clone();
  EXPECT_TRUE(sum.addmm_(a, b, 0.5, 2).is_same(sum));
  EXPECT_TRUE(equal(sum, m.addmm(a, b, 0.5, 2)));
  EXPECT_TRUE(equal(m.addmm(a, b), addmm(m, a, b)));
  EXPECT_TRUE(equal(batches.baddbmm_(p, q), c.baddbmm(p, q)));
  EXPECT_TRUE(equal(c.baddbmm(p, q), baddbmm(c, p, q)));
}

TEST(OutForms, Indexing) {
  manual_seed(3);
  Tensor x = randn({3, 4}), i = tensor({{0, 2}, {1, 1}, {3, 0}}), list = tensor({2, 0}), mask = x > 0;
  Tensor source = randn({3, 2});
  expect_out("gather", gather(x, 1, i), [&](Tensor& out) { gather_out(out, x, 1, i); });
  expect_out("scatter", scatter(x, 1, i, source), [&](Tensor& out) { scatter_out(out, x, 1, i, source); });
  expect_out("scatter_add", scatter_add(x, 1, i, source), [&](Tensor& out) { scatter_add_out(out, x, 1, i, source); });
  expect_out("index_select", index_select(x, 1, list), [&](Tensor& out) { index_select_out(out, x, 1, list); });
  expect_out("masked_select", masked_select(x, mask), [&](Tensor& out) { masked_select_out(out, x, mask); });
  Tensor columns = randn({3, 2});
  expect_out("index_add", index_add(x, 1, list, columns),
             [&](Tensor& out) { index_add_out(out, x, 1, list, columns); });
  expect_out("index_copy", index_copy(x, 1, list, columns),
             [&](Tensor& out) { index_copy_out(out, x, 1, list, columns); });
  expect_out("index_fill", index_fill(x, 1, list, 7), [&](Tensor& out) { index_fill_out(out, x, 1, list, 7); });
  expect_out("masked_fill", masked_fill(x, mask, 7), [&](Tensor& out) { masked_fill_out(out, x, mask, 7); });
  expect_out("nonzero", nonzero(mask), [&](Tensor& out) { nonzero_out(out, mask); });
  expect_out("argsort", argsort(x, 0), [&](Tensor& out) { argsort_out(out, x, 0); });
  expect_out("median", median(x), [&](Tensor& out) { median_out(out, x); });
  expect_out("tril", tril(x), [&](Tensor& out) { tril_out(out, x); });
  expect_out("triu", triu(x, 1), [&](Tensor& out) { triu_out(out, x, 1); });
}

TEST(OutForms, ValuesAndIndices) {
  manual_seed(4);
  Tensor x = randn({3, 4});
  auto expect_both = [&](const ValuesIndices& expected, const std::function<void(ValuesIndices&)>& write) {
    ValuesIndices fresh, given{empty_like(expected.values), empty_like(expected.indices)}, alias = given;
    write(fresh);
    EXPECT_TRUE(equal(fresh.values, expected.values) && equal(fresh.indices, expected.indices));
    write(given);
    EXPECT_TRUE(equal(alias.values, expected.values) && equal(alias.indices, expected.indices));
    ValuesIndices half{empty_like(expected.values), {}};
    write(half);
    EXPECT_TRUE(equal(half.indices, expected.indices));
    ValuesIndices wrong{empty({9}), {}};
    EXPECT_THROW(write(wrong), ShapeError);
  };
  expect_both(sort(x, 0, true), [&](ValuesIndices& out) { sort_out(out, x, 0, true); });
  expect_both(topk(x, 2), [&](ValuesIndices& out) { topk_out(out, x, 2); });
  expect_both(kthvalue(x, 2, 0), [&](ValuesIndices& out) { kthvalue_out(out, x, 2, 0); });
  expect_both(median(x, 1, true), [&](ValuesIndices& out) { median_out(out, x, 1, true); });
  expect_both(max(x, 1), [&](ValuesIndices& out) { max_out(out, x, 1); });
  expect_both(min(x, 0, true), [&](ValuesIndices& out) { min_out(out, x, 0, true); });
}

// Into one of the arguments, a part of it, or what begins where it ends; and on into gradients.
TEST(OutForms, ShareMemoryWithArguments) {
  manual_seed(8);
  Tensor x = randn({3, 4}), list = tensor({2, 0}), columns = randn({3, 2}), mask = x > 0;
  auto expect_same = [&](const char* name, const std::function<Tensor(const Tensor&)>& f,
                         const std::function<void(Tensor&, const Tensor&)>& into) {
    SCOPED_TRACE(name);
    Tensor expected = f(x), same = x.clone();
    into(same, same);
    EXPECT_TRUE(equal(same, expected));
    Tensor rows = cat({x, x}), shifted = rows.slice(0, 1, 4);
    into(shifted, rows.slice(0, 0, 3));
    EXPECT_TRUE(equal(rows.slice(0, 1, 4), expected));
    EXPECT_TRUE(equal(rows[0], x[0]) && equal(rows.slice(0, 4), x.slice(0, 1)));
    Tensor leaf = x.clone().requires_grad_(), other = x.clone().requires_grad_(), out = empty_like(x);
    Tensor weights = randn({3, 4});
    into(out, leaf);
    EXPECT_TRUE(equal(grad(sum(out * weights), leaf), grad(sum(f(other) * weights), other)));
  };
  expect_same(
      "index_add", [&](auto& t) { return index_add(t, 1, list, columns); },
      [&](Tensor& out, auto& t) { index_add_out(out, t, 1, list, columns); });
  expect_same(
      "index_copy", [&](auto& t) { return index_copy(t, 1, list, columns); },
      [&](Tensor& out, auto& t) { index_copy_out(out, t, 1, list, columns); });
  expect_same(
      "index_fill", [&](auto& t) { return index_fill(t, 1, list, 7); },
      [&](Tensor& out, auto& t) { index_fill_out(out, t, 1, list, 7); });
  expect_same(
      "masked_fill", [&](auto& t) { return masked_fill(t, mask, 7); },
      [&](Tensor& out, auto& t) { masked_fill_out(out, t, mask, 7); });
  Tensor y = x.clone();
  EXPECT_TRUE(masked_fill_(y, mask, 7).is_same(y));
  EXPECT_TRUE(equal(y, masked_fill(x, mask, 7)));
  // A result that cannot be written leaves both as they were.
  ValuesIndices refused{zeros({3}), zeros({3})};
  refused.indices = zeros({3}, boolean);
  EXPECT_THROW(kthvalue_out(refused, x, 1), DTypeError);
  Tensor both = empty({3}, {i64});
  ValuesIndices same{both, both}, half{Tensor(), empty({7}, {i64})};
  EXPECT_THROW(median_out(same, arange(12).reshape({3, 4}), 1), ValueError);
  EXPECT_THROW(median_out(half, arange(12).reshape({3, 4}), 1), ShapeError);
  EXPECT_FALSE(half.values.defined());
  EXPECT_TRUE(equal(refused.values, zeros({3})));
}

// What a form in place leaves, and its gradient, is that of the other form.
void expect_in_place(const char* name, const Tensor& x, const std::function<Tensor(const Tensor&)>& f,
                     const std::function<void(Tensor&)>& f_) {
  SCOPED_TRACE(name);
  Tensor leaf = x.clone().requires_grad_(), other = x.clone().requires_grad_();
  Tensor expected = f(leaf), changed = other * 1, alias = changed;
  f_(changed);
  EXPECT_TRUE(equal(alias.detach(), expected.detach())) << alias << expected;
  if (!expected.requires_grad()) return;
  Tensor weights = randn(x.sizes(), x.dtype());
  EXPECT_TRUE(allclose(grad(sum(changed * weights), other), grad(sum(expected * weights), leaf)));
  Tensor turned = x.t().clone().t();
  f_(turned);
  EXPECT_TRUE(equal(turned, expected.detach()));
}

TEST(InPlaceForms, CarryGradients) {
  manual_seed(5);
  Tensor x = randn({3, 3}, f64), a = randn({3, 2}, f64), b = randn({2, 3}, f64);
  expect_in_place("cumsum_", x, [](auto& t) { return cumsum(t, 1); }, [](Tensor& t) { t.cumsum_(1); });
  expect_in_place("cumprod_", x, [](auto& t) { return cumprod(t, 0); }, [](Tensor& t) { t.cumprod_(0); });
  expect_in_place("tril_", x, [](auto& t) { return tril(t); }, [](Tensor& t) { t.tril_(); });
  expect_in_place("triu_", x, [](auto& t) { return triu(t, 1); }, [](Tensor& t) { t.triu_(1); });
  expect_in_place("addmm_", x, [&](auto& t) { return addmm(t, a, b, 2, 3); }, [&](Tensor& t) { t.addmm_(a, b, 2, 3); });
  Tensor whole = tensor({{1, 2}, {3, 4}}, i32);
  EXPECT_THAT(values(cumsum_(whole, 0)), ElementsAre(1, 2, 4, 6));
  EXPECT_EQ(whole.dtype(), i32);
}

TEST(InPlaceForms, OfComparisonsAndLogic) {
  Tensor x = tensor({0.0, 1.0, 2.0}), y = tensor({1.0, 1.0, 1.0});
  auto left = [&](Tensor& (*f_)(Tensor&, const Tensor&)) {
    Tensor t = x.clone();
    f_(t, y);
    EXPECT_EQ(t.dtype(), f32);
    return values(t);
  };
  EXPECT_THAT(left(eq_), ElementsAre(0, 1, 0));
  EXPECT_THAT(left(ne_), ElementsAre(1, 0, 1));
  EXPECT_THAT(left(lt_), ElementsAre(1, 0, 0));
  EXPECT_THAT(left(le_), ElementsAre(1, 1, 0));
  EXPECT_THAT(left(gt_), ElementsAre(0, 0, 1));
  EXPECT_THAT(left(ge_), ElementsAre(0, 1, 1));
  EXPECT_THAT(left(logical_and_), ElementsAre(0, 1, 1));
  EXPECT_THAT(left(logical_or_), ElementsAre(1, 1, 1));
  EXPECT_THAT(left(logical_xor_), ElementsAre(1, 0, 0));
  EXPECT_THAT(values(x.clone().logical_not_()), ElementsAre(1, 0, 0));
  Tensor mask = tensor({true, false});
  EXPECT_THAT(values(mask.logical_and_(tensor({true, true}))), ElementsAre(1, 0));
  EXPECT_THAT(values(mask.ne_(tensor({true, true}))), ElementsAre(0, 1));
}

TEST(InPlaceForms, Dropout) {
  manual_seed(6);
  Tensor x = randn({40, 5}, f64), kept = x.clone();
  manual_seed(7);
  Tensor expected = dropout(x, 0.3);
  manual_seed(7);
  EXPECT_TRUE(dropout_(x, 0.3).is_same(x));
  EXPECT_TRUE(equal(x, expected));
  EXPECT_FALSE(equal(x, kept));
  EXPECT_TRUE(dropout_(kept, 0.3, false).is_same(kept));
  Tensor leaf = randn({8}, {.requires_grad = true}), y = leaf * 1;
  dropout_(y, 0.5);
  EXPECT_TRUE(equal(grad(sum(y), leaf), where(y.detach() == 0, 0, full_like(y.detach(), 2))));
  Tensor all = ones({3});
  EXPECT_THAT(values(dropout_(all, 1)), ElementsAre(0, 0, 0));
  EXPECT_THROW(dropout_(all, 1.5), ValueError);
}

TEST(InPlaceForms, RefuseLeaves) {
  Tensor leaf = ones({2, 2}, {.requires_grad = true});
  EXPECT_THAT(message_of<GradError>([&] { leaf.tril_(); }), StartsWith("tril:"));
  EXPECT_THAT(message_of<GradError>([&] { leaf.cumsum_(0); }), StartsWith("cumsum:"));
  EXPECT_THAT(message_of<GradError>([&] { leaf.eq_(1); }), StartsWith("eq:"));
  EXPECT_THAT(message_of<GradError>([&] { leaf.masked_fill_(leaf.detach() > 0, 1); }), StartsWith("masked_fill_:"));
  EXPECT_THAT(message_of<GradError>([&] { leaf.zero_(); }), StartsWith("zero_:"));
  // Who changed what backward needs is said by the name that was called.
  Tensor x = ones({2}, {.requires_grad = true}), y = x * 2, z = softmax(y, 0);
  z.masked_fill_(tensor({true, false}), 0);
  EXPECT_THAT(message_of<VersionError>([&] { sum(z).backward(); }), HasSubstr("masked_fill_"));
}

// What a kernel cannot write itself goes through a tensor of its own; on meta there is nothing to copy back.
TEST(Out, MetaTensorsOfAnyStrides) {
  Options meta{.device = "meta"};
  Tensor out = empty({4, 2}, meta).t(), expected = out;
  mm_out(out, empty({2, 3}, meta), empty({3, 4}, meta));
  softmax_out(out, empty({2, 4}, meta), 1);
  out.uniform_();
  EXPECT_TRUE(out.is_same(expected));
  EXPECT_EQ(out.strides(), (Shape{1, 2}));
}

TEST(Out, SeveralResultsNeedMemoryOfTheirOwn) {
  Tensor x = tensor({{3, 1}, {4, 9}}, {i64}), v = zeros({2}, {i64}), memory = zeros({3}, {i64});
  ValuesIndices same{v, v}, meeting{memory.narrow(0, 0, 2), memory.narrow(0, 1, 2)};
  for (ValuesIndices* out : {&same, &meeting}) {
    EXPECT_THAT(message_of<ValueError>([&] { max_out(*out, x, 1); }), HasSubstr("share memory"));
    EXPECT_THAT(message_of<ValueError>([&] { min_out(*out, x, 1); }), HasSubstr("share memory"));
  }
  Tensor line = tensor({3, 1}, {i64});
  EXPECT_THAT(message_of<ValueError>([&] { sort_out(same, line); }), HasSubstr("share memory"));
  EXPECT_THAT(message_of<ValueError>([&] { topk_out(same, line, 2); }), HasSubstr("share memory"));
  Tensor halves = zeros({4}, {i64});
  ValuesIndices apart{halves.narrow(0, 0, 2), halves.narrow(0, 2, 2)};
  max_out(apart, x, 1);
  EXPECT_EQ(values(halves), (Doubles{3, 9, 0, 1}));
}

}  // namespace
}  // namespace tutti
