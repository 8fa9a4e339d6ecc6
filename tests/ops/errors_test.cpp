// Errors name the function that was called and say what would be right.
#include "tests/support/expect_ops.h"
#include "tutti/dlpack.h"
#include "tutti/ops/conv.h"
#include "tutti/ops/norm.h"
#include "tutti/ops/pool.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace test;  // NOLINT

TEST(Errors, NameTheFunctionCalled) {
  Tensor x = zeros({2, 3}), wrong = zeros({4});
  EXPECT_THAT(message_of<ShapeError>([&] { x.copy_(wrong); }), StartsWith("copy_: f32[4] on cpu:0 does not broadcast"));
  EXPECT_THAT(message_of<ShapeError>([&] { x.copy_(zeros({1, 2, 3, 1})); }), StartsWith("copy_:"));
  EXPECT_THAT(message_of<ShapeError>([&] { x.index_put_({Slice()}, wrong); }), StartsWith("index_put_:"));
  EXPECT_THAT(message_of<ShapeError>([&] { masked_fill(x, wrong > 0, 1); }), StartsWith("masked_fill:"));
  EXPECT_THAT(message_of<ShapeError>([&] { x.masked_fill_(wrong > 0, 1); }), StartsWith("masked_fill_:"));
  EXPECT_THAT(message_of<ShapeError>([&] { x[0].masked_fill_(x > 0, 1); }), HasSubstr("is larger than"));
  EXPECT_THAT(message_of<DTypeError>([&] { matmul(x, zeros({3, 2}, f64)); }), StartsWith("matmul: operands must have"));
  EXPECT_THAT(message_of<ShapeError>([&] { complex(x, wrong); }), StartsWith("complex: the parts"));
  EXPECT_THAT(message_of<ShapeError>([] { zeros({2, -1}); }), StartsWith("zeros: sizes must not be negative: [2, -1]"));
  EXPECT_THAT(message_of<ShapeError>([] { ones({-1}); }), StartsWith("ones:"));
  EXPECT_THAT(message_of<ShapeError>([] { full({-1}, 1); }), StartsWith("full:"));
  EXPECT_THAT(message_of<ShapeError>([] { empty({-1}); }), StartsWith("empty:"));
  EXPECT_THAT(message_of<ShapeError>([] { randn({-1}); }), StartsWith("randn:"));
  EXPECT_THAT(message_of<ShapeError>([] { randint(2, {-1}); }), StartsWith("randint:"));
  EXPECT_THAT(message_of<ShapeError>([] { eye(-1); }), StartsWith("eye:"));
  EXPECT_THAT(message_of<ShapeError>([] { to_sparse(ones({2, 2, 2}), 1).transpose(0, 1); }),
              StartsWith("transpose: needs matrices"));
}

TEST(Errors, SayWhatIsAllowed) {
  Tensor x = zeros({2, 3});
  EXPECT_THAT(message_of<IndexError>([&] { x[2]; }), HasSubstr("use -2 to 1"));
  EXPECT_THAT(message_of<IndexError>([&] { x.index({0, 5}); }), AllOf(StartsWith("index:"), HasSubstr("use -3 to 2")));
  EXPECT_THAT(message_of<IndexError>([&] { x.index_select(1, tensor({3})); }), HasSubstr("use -3 to 2"));
  EXPECT_THAT(message_of<IndexError>([] { one_hot(tensor({-1, 2})); }), HasSubstr("class -1"));
  EXPECT_THAT(message_of<IndexError>([] { one_hot(tensor({4}), 3); }), HasSubstr("one of the 3 classes"));
  EXPECT_THAT(message_of<ValueError>([&] { (void)(x * x.grad()); }),
              AllOf(StartsWith("mul: input 1 is undefined"), HasSubstr(".grad()")));
  EXPECT_THROW(unbind(tensor(1)), ShapeError);
  EXPECT_THROW(chunk(tensor(1), 2), ShapeError);
  EXPECT_THROW(tensor(1).size(0), IndexError);
  EXPECT_THROW(tensor(1).stride(-1), IndexError);
}

TEST(Errors, NameWhatWasCalled) {
  Tensor x = ones({2, 3}), nothing, sparse = to_sparse(x);
  EXPECT_THAT(message_of<ShapeError>([&] { x.masked_fill_(ones({2, 2}) > 0, 1); }), StartsWith("masked_fill_:"));
  EXPECT_THAT(message_of<ValueError>([&] { x.masked_fill_(nothing, 1); }), StartsWith("masked_fill_:"));
  EXPECT_THAT(message_of<ShapeError>([&] { expand(ones({1}), {3}).zero_(); }), StartsWith("zero_:"));
  EXPECT_THAT(message_of<ShapeError>([&] { x.fill_(ones({2})); }), StartsWith("fill_:"));
  EXPECT_THAT(message_of<ValueError>([&] { sparse.fill_(1); }), AllOf(StartsWith("fill_:"), HasSubstr("to_dense()")));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.zero_(); }), StartsWith("zero_:"));
  EXPECT_THAT(message_of<DTypeError>([&] { einsum("ij,jk->ik", {x, ones({3, 2}, f64)}); }),
              AllOf(StartsWith("einsum:"), HasSubstr("operand 1 is f64[3, 2]")));
  EXPECT_THAT(message_of<DeviceError>([&] { einsum("ij,jk->ik", {x, ones({3, 2}, Device("meta"))}); }),
              StartsWith("einsum:"));
  EXPECT_THAT(message_of<DeviceError>([&] { outer(x[0], ones({2}, Device("meta"))); }), StartsWith("outer:"));
  EXPECT_THAT(message_of<ValueError>([&] { cat({x, nothing}); }), StartsWith("cat: tensor 1 of 2 is undefined"));
  EXPECT_THAT(message_of<ValueError>([&] { stack({nothing, x}); }), StartsWith("stack: tensor 0 of 2 is undefined"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.clone(); }), StartsWith("clone:"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.contiguous(); }), StartsWith("contiguous:"));
  EXPECT_THAT(message_of<ValueError>([&] { to_dlpack(nothing); }), StartsWith("to_dlpack:"));
  EXPECT_THAT(message_of<ValueError>([&] { sum(nothing); }), StartsWith("sum:"));
  EXPECT_THAT(message_of<ValueError>([&] { exp(sparse); }),
              AllOf(StartsWith("exp:"), HasSubstr("sparse f32[2, 3] on cpu:0"), HasSubstr("to_dense()")));
}

TEST(Errors, OfDimsAndIndicesSayShapesAndPlaces) {
  Tensor x = zeros({2, 3});
  EXPECT_EQ(message_of<IndexError>([&] { sum(x, 2); }),
            "sum: dim 2 is out of range for f32[2, 3] on cpu:0: use -2 to 1");
  EXPECT_THAT(message_of<IndexError>([&] { x.size(-3); }), HasSubstr("f32[2, 3]"));
  EXPECT_THAT(message_of<IndexError>([&] { softmax(x, 4); }), AllOf(StartsWith("softmax:"), HasSubstr("f32[2, 3]")));
  Tensor i = tensor({{0, 1}, {2, 7}});
  auto text = AllOf(HasSubstr("index 7 is out of range for dim 1 of size 3"), HasSubstr("at [1, 1] of indices [2, 2]"));
  EXPECT_THAT(message_of<IndexError>([&] { scatter(x, 1, i, 1); }), AllOf(StartsWith("scatter:"), text));
  EXPECT_THAT(message_of<IndexError>([&] { gather(x, 1, i); }), AllOf(StartsWith("gather:"), text));
  EXPECT_THAT(message_of<IndexError>([&] { index_add(x, 0, tensor({0, 5}), x); }),
              AllOf(StartsWith("index_add: index 5"), HasSubstr("at [1] of indices [2]")));
  EXPECT_THAT(message_of<IndexError>([&] { x.index_put_({tensor({-9})}, 1); }),
              AllOf(StartsWith("index_put: index -9"), HasSubstr("at [0] of indices [1]")));
  EXPECT_THAT(message_of<IndexError>([] { index_select(zeros({0, 2}), 0, tensor({0})); }), HasSubstr("has size 0"));
}

// What a function is made of has names of its own, which its caller never wrote. (The table gives every operator
// arguments that do not fit, and looks at the names: check_errors.)
TEST(Errors, NameTheFunctionAndNotItsParts) {
  Tensor x = ones({2, 3}), sparse = to_sparse(x), wrong = tensor({7}), c = ones({2, 3}, c64);
  auto operation = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), StartsWith(e.operation() + ": "));
      return e.operation();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(operation([&] { index_copy(x, 0, wrong, ones({1, 3})); }), "index_copy");
  EXPECT_EQ(operation([&] {
              Tensor y = ones({2, 3});
              index_copy_(y, 0, wrong, ones({1, 3}));
            }),
            "index_copy_");
  EXPECT_EQ(operation([&] {
              Tensor y = ones({2, 3});
              index_fill_(y, 0, wrong, 1);
            }),
            "index_fill_");
  EXPECT_EQ(operation([&] { argsort(c); }), "argsort");
  EXPECT_EQ(operation([&] { argsort(x, 5); }), "argsort");
  EXPECT_EQ(operation([&] { kthvalue(sparse, 1); }), "kthvalue");
  EXPECT_EQ(operation([&] { median(sparse); }), "median");
  EXPECT_EQ(operation([&] { unique(sparse); }), "unique");
  EXPECT_EQ(operation([&] { bincount(to_sparse(wrong)); }), "bincount");
  EXPECT_EQ(operation([&] { bincount(wrong, ones({1}, Device("meta"))); }), "bincount");
  EXPECT_EQ(operation([&] { one_hot(to_sparse(wrong)); }), "one_hot");
  EXPECT_EQ(operation([&] { chunk(x, 2, 5); }), "chunk");
  EXPECT_EQ(operation([&] { x.index({Slice(0, 2, -1)}); }), "index");
  EXPECT_EQ(operation([&] { matmul_out(x, ones({2, 2}), ones({2, 2})); }), "matmul");
  EXPECT_EQ(operation([&] { allclose(x, ones({4})); }), "allclose");
  EXPECT_EQ(operation([&] { equal(x, Tensor()); }), "equal");
  EXPECT_EQ(operation([&] { allclose(Tensor(), x); }), "allclose");
  EXPECT_EQ(operation([&] { max_pool2d(ones({1, 1, 4, 4}, c64), 2); }), "max_pool2d");
  EXPECT_EQ(operation([&] { conv_transpose1d(ones({1, 1, 4}), ones({1, 1, 2}, f64)); }), "conv_transpose1d");
  EXPECT_EQ(operation([&] { add(ones({3}), ones({4}), 2); }), "add");
  EXPECT_EQ(operation([&] { ones({3}).add_(ones({4}), 2); }), "add");
  EXPECT_EQ(operation([&] { sub(ones({3}), ones({4}), 2); }), "sub");
  EXPECT_EQ(operation([&] { ones({3}).sub_(ones({4}), 2); }), "sub");
  EXPECT_EQ(operation([&] { batch_norm(ones({2, 1}, i64), {}, {}, zeros({1}), ones({1}), false); }), "batch_norm");
}

TEST(Errors, OfCreationNameTheFunction) {
  Tensor x = ones({2, 3}), nothing;
  EXPECT_THAT(message_of<ShapeError>([] { tril_indices(-1, 2); }), StartsWith("tril_indices: the size must not be"));
  EXPECT_THAT(message_of<ShapeError>([] { triu_indices(2, -1); }), StartsWith("triu_indices:"));
  EXPECT_THAT(message_of<ShapeError>([&] { full({1}, x); }), StartsWith("full: the value must be a number"));
  EXPECT_THAT(message_of<ShapeError>([&] { full_like(x, x); }), StartsWith("full_like: the value must be a number"));
  EXPECT_THAT(message_of<ShapeError>([&] { arange(x); }), StartsWith("arange:"));
  EXPECT_THAT(message_of<DeviceError>([&] { arange(ones({}, Device("meta"))); }), StartsWith("arange:"));
  EXPECT_THAT(message_of<ValueError>([&] { arange(std::complex<double>(0, 1)); }), StartsWith("arange:"));
  EXPECT_THAT(message_of<ShapeError>([] { linspace(0, 1, INT64_MAX); }), StartsWith("linspace:"));
  EXPECT_THAT(message_of<ShapeError>([] { empty({2}, {}, MemoryFormat::channels_last); }), StartsWith("empty:"));
  EXPECT_THAT(message_of<ValueError>([&] { full({1}, nothing); }), StartsWith("full: the value is undefined"));
  EXPECT_THAT(message_of<ValueError>([&] { full_like(x, nothing); }), StartsWith("full_like: the value is undefined"));
  EXPECT_THAT(message_of<ValueError>([&] { arange(nothing); }), StartsWith("arange: the tensor is undefined"));
  EXPECT_THAT(message_of<ValueError>([&] { arange(0, 3, nothing); }), StartsWith("arange: the tensor is undefined"));
}

TEST(Errors, OfMethodsNameTheMethod) {
  Tensor x = ones({2, 3}), nothing;
  auto undefined = [](const char* name) { return StartsWith(std::string(name) + ": the tensor is undefined"); };
  EXPECT_THAT(message_of<ValueError>([&] { nothing.to(f64); }), undefined("to"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.to(Device("cpu")); }), undefined("to"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.to({.dtype = f64}); }), undefined("to"));
  EXPECT_THAT(message_of<ValueError>([&] { x.type_as(nothing); }), undefined("type_as"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.type_as(x); }), undefined("type_as"));
  EXPECT_THAT(message_of<ValueError>([&] { x.view_as(nothing); }), undefined("view_as"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.view_as(x); }), undefined("view_as"));
  EXPECT_THAT(message_of<ValueError>([&] { x.expand_as(nothing); }), undefined("expand_as"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.t(); }), undefined("t"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.detach_(); }), undefined("detach_"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.requires_grad_(); }), undefined("requires_grad_"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.uniform_(); }), undefined("uniform_"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.normal_(); }), undefined("normal_"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.bernoulli_(); }), undefined("bernoulli_"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.exponential_(); }), undefined("exponential_"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.random_(0, 2); }), undefined("random_"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.fill_diagonal_(1); }), undefined("fill_diagonal_"));
  EXPECT_THAT(message_of<ValueError>([&] { nothing.set_version(1); }), undefined("set_version"));
  EXPECT_THAT(message_of<ValueError>([&] { (void)nothing.size(0); }), undefined("size"));
  EXPECT_THAT(message_of<ValueError>([&] { (void)nothing.stride(0); }), undefined("stride"));
  EXPECT_THAT(message_of<ValueError>([&] { (void)nothing.is_sparse(); }), undefined("is_sparse"));
  EXPECT_THAT(message_of<ValueError>([&] { (void)nothing.is_floating(); }), undefined("is_floating"));
  EXPECT_THAT(message_of<ValueError>([&] { (void)nothing.is_complex(); }), undefined("is_complex"));
  EXPECT_THAT(message_of<ValueError>([&] { (void)nothing.is_coalesced(); }), undefined("is_coalesced"));
  EXPECT_THAT(message_of<ValueError>([&] { (void)nothing.sparse_dim(); }), undefined("sparse_dim"));
  EXPECT_THAT(message_of<ValueError>([&] { (void)nothing.element_size(); }), undefined("element_size"));
  EXPECT_THAT(message_of<ValueError>([&] { (void)nothing.data<float>(); }), undefined("data"));
  EXPECT_THAT(message_of<ShapeError>([&] { x.view_as(ones({4})); }), StartsWith("view_as:"));
  EXPECT_THAT(message_of<DTypeError>([] { ones({2}, i64).std(); }), StartsWith("std:"));
  EXPECT_THAT(message_of<DTypeError>([] { stddev(ones({2}, i64)); }), StartsWith("stddev:"));
  EXPECT_THAT(message_of<ShapeError>([&] { max(x, ones({4})); }), StartsWith("max:"));
  EXPECT_THAT(message_of<ShapeError>([&] { min(x, ones({4})); }), StartsWith("min:"));
  EXPECT_THAT(message_of<ValueError>([&] { roll(to_sparse(x), 1); }), StartsWith("roll:"));
}

TEST(Errors, BoolsAreNotSubtracted) {
  Tensor b = tensor({true, false});
  EXPECT_THAT(message_of<DTypeError>([&] { (void)(b - b); }), StartsWith("sub: does not take bool"));
  EXPECT_THAT(message_of<DTypeError>([&] { (void)-b; }), StartsWith("neg: does not take bool"));
  EXPECT_EQ((b - 1).dtype(), i64);
  EXPECT_EQ((b - tensor({1.0, 2.0})).dtype(), f32);
}

TEST(Errors, DevicesThatAreNotThere) {
  EXPECT_THAT(message_of<DeviceError>([] { zeros({2}, Device("cuda:0")); }),
              AllOf(StartsWith("zeros:"), HasSubstr("built without CUDA")));
  EXPECT_THAT(message_of<DeviceError>([] { ones({2}).to("cuda"); }), HasSubstr("built without CUDA"));
  EXPECT_THAT(message_of<DeviceError>([] { zeros({2}, Device("cpu:3")); }),
              AllOf(HasSubstr("there is no cpu:3"), HasSubstr("1 cpu device;"), HasSubstr("set_cpu_devices")));
  Devices devices(2);
  EXPECT_EQ(zeros({2}, Device("cpu:1")).device(), Device("cpu:1"));
  EXPECT_THAT(message_of<DeviceError>([] { rand({2}, Device("cpu:2")); }), HasSubstr("2 cpu devices"));
  EXPECT_THROW(ones({2}).to("cpu:2"), DeviceError);
  EXPECT_THROW(arange(3, Device("cpu:2")), DeviceError);
  Options nowhere{.device = "cpu:2"};
  Tensor x = ones({2, 2});
  auto text = [](const char* name) { return StartsWith(std::string(name) + ": there is no cpu:2"); };
  EXPECT_THAT(message_of<DeviceError>([&] { randperm(3, nowhere); }), text("randperm"));
  EXPECT_THAT(message_of<DeviceError>([&] { randint(3, {2}, nowhere); }), text("randint"));
  EXPECT_THAT(message_of<DeviceError>([&] { zeros_like(x, nowhere); }), text("zeros_like"));
  EXPECT_THAT(message_of<DeviceError>([&] { zeros_like(to_sparse(x), nowhere); }), text("zeros_like"));
  EXPECT_THAT(message_of<DeviceError>([&] { ones_like(x, nowhere); }), text("ones_like"));
  EXPECT_THAT(message_of<DeviceError>([&] { full_like(x, 1, nowhere); }), text("full_like"));
  EXPECT_THAT(message_of<DeviceError>([&] { empty_like(x, nowhere); }), text("empty_like"));
  EXPECT_THAT(message_of<DeviceError>([&] { rand_like(x, nowhere); }), text("rand_like"));
  EXPECT_THAT(message_of<DeviceError>([&] { eye(2, 2, nowhere); }), text("eye"));
  EXPECT_THAT(message_of<DeviceError>([&] { linspace(0, 1, 2, nowhere); }), text("linspace"));
  EXPECT_THAT(message_of<DeviceError>([&] { tensor({1, 2}, nowhere); }), text("tensor"));
  EXPECT_THAT(message_of<DeviceError>([&] { tensor(1, nowhere); }), text("tensor"));
  EXPECT_THAT(message_of<DeviceError>([&] { empty_strided({2}, {1}, nowhere); }), text("empty_strided"));
  EXPECT_THAT(message_of<DeviceError>([&] { from_blob(x.raw_data(), {2}, nowhere); }), text("from_blob"));
  EXPECT_THAT(message_of<DeviceError>([] { randperm(3, Device("cuda:0")); }), StartsWith("randperm:"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Errors, OutOfMemory) {
  std::string message = message_of<MemoryError>([] { zeros({int64_t{1} << 50, 16}); });
  EXPECT_THAT(message, AllOf(StartsWith("zeros: no memory for a tensor f32[1125899906842624, 16]"),
                             HasSubstr("72057594037927936 bytes")));
  EXPECT_THROW(ones({int64_t{1} << 50}).sum(), Error);
  // Small tensors seen as large ones, and results that are.
  Tensor large = ones({1, 1}).expand({int64_t{1} << 25, int64_t{1} << 25});
  auto none = HasSubstr("no memory for the result, f32[33554432, 33554432]: out of memory");
  EXPECT_THAT(message_of<MemoryError>([&] { exp(large); }), AllOf(StartsWith("exp: "), none));
  EXPECT_THAT(message_of<MemoryError>([&] { (void)(large + 1); }), AllOf(StartsWith("add: "), none));
  EXPECT_THAT(message_of<MemoryError>([&] { large.clone(); }), AllOf(StartsWith("clone: "), none));
  EXPECT_THAT(message_of<MemoryError>([&] { large.contiguous(); }), AllOf(StartsWith("contiguous: "), none));
  EXPECT_THAT(message_of<MemoryError>([&] { large.to(f64); }), StartsWith("cast: "));
  EXPECT_THAT(message_of<MemoryError>([&] { reshape(ones({2, 1}).expand({2, int64_t{1} << 50}), {-1}); }),
              StartsWith("reshape: "));
  EXPECT_THAT(message_of<MemoryError>([&] { mm(large.slice(1, 0, 2), large.slice(0, 0, 2)); }),
              AllOf(StartsWith("mm: "), none));
  EXPECT_THAT(message_of<MemoryError>([&] { matmul(large.slice(1, 0, 2), large.slice(0, 0, 2)); }),
              AllOf(StartsWith("matmul: "), none));
  EXPECT_THAT(message_of<MemoryError>([&] { tile(ones({1}), {int64_t{1} << 50}); }), StartsWith("tile: "));
  EXPECT_THAT(message_of<ShapeError>([&] { repeat(large, {1 << 5, 1 << 5}); }),
              StartsWith("repeat: [1073741824, 1073741824] has too many elements"));
  EXPECT_THAT(message_of<MemoryError>([&] { bincount(tensor({int64_t{1} << 50})); }), StartsWith("bincount: "));
  // What a kernel works with: an input that it wants in one piece.
  EXPECT_THAT(message_of<MemoryError>([&] { one_hot(zeros({1}, i64).expand({int64_t{1} << 50}), 0); }),
              StartsWith("one_hot: "));
}
#endif

TEST(Errors, ConditionsAreBools) {
  EXPECT_THAT(message_of<DTypeError>([] { where(tensor({0.5, 0.0}), ones({2}), zeros({2})); }),
              HasSubstr("where: the condition f32[2] on cpu:0 is not bool"));
  EXPECT_THROW(where(tensor({1, 0}, {u8}), 1, 2), DTypeError);
  EXPECT_EQ(values(where(tensor({true, false}), 1, 2)), (Doubles{1, 2}));
}

TEST(Errors, OfDivisionByZeroOnlyWhereSomethingIsDivided) {
  EXPECT_EQ(floor_divide(zeros({0}, {i64}), 0).numel(), 0);
  EXPECT_THROW(floor_divide(ones({1}, {i64}), 0), ValueError);
}

}  // namespace
}  // namespace tutti
