// Checks of values and derivatives: against PyTorch's numbers, against differences, in every dtype.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tests/support/compare.h"
#include "tests/support/table.h"
#include "tutti/autograd.h"

namespace tutti::test {
namespace {

// All of PyTorch's numbers. The tests run in the source directory.
const std::vector<Npz>& goldens() {
  static const std::vector<Npz> files = [] {
    std::vector<Npz> list;
    for (const std::string& name : row_goldens()) list.emplace_back("tests/golden/" + name + ".npz");
    return list;
  }();
  return files;
}

// One case of a row: arrays named <row>/<case>/in0, in1, ... out0, ... grad0, ... second0, ... (or <row>/in0, ... where
// there is but one).
struct Golden {
  std::string name;
  TensorList inputs, outputs, gradients, seconds;  // a gradient that PyTorch has not is undefined
};

Golden read_case(const Npz& file, const std::string& prefix) {
  Golden g{.name = prefix, .inputs = {}, .outputs = {}, .gradients = {}, .seconds = {}};
  auto read_all = [&](const char* kind, TensorList& to) {
    for (int i = 0; file.has(prefix + kind + std::to_string(i)); ++i)
      to.push_back(file.read(prefix + kind + std::to_string(i)));
  };
  read_all("in", g.inputs);
  read_all("out", g.outputs);
  auto read_some = [&](const char* kind, TensorList& to) {
    for (size_t i = 0; i < g.inputs.size(); ++i) {
      std::string key = prefix + kind + std::to_string(i);
      to.push_back(file.has(key) ? file.read(key) : Tensor());
    }
  };
  read_some("grad", g.gradients);
  read_some("second", g.seconds);
  return g;
}

// The cases of a row whose names do (or do not) begin with "special".
std::vector<Golden> cases_of(const Row& row, bool special) {
  std::vector<Golden> list;
  for (const Npz& file : goldens()) {
    std::string last;
    for (const std::string& key : file.keys(row.name + "/")) {
      std::string prefix = key.substr(0, key.rfind('/') + 1);
      if (prefix == last) continue;
      last = prefix;
      if (prefix.substr(row.name.size() + 1).starts_with("special") == special) list.push_back(read_case(file, prefix));
    }
  }
  return list;
}

DType narrower(DType t) { return t == f64 ? f32 : t == c128 ? c64 : t; }

bool any_defined(In tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.defined(); });
}

// Gradients by the inputs that want one, against those of a case.
void compare_gradients(const Row& row, In gradients, In inputs, In expected, const char* what) {
  for (size_t i = 0, k = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    ASSERT_LT(k, gradients.size()) << "no output carries a gradient";
    EXPECT_TRUE(close(gradients[k], expected[i], precision(inputs[i].dtype()) * row.looseness))
        << what << " of input " << i;
    ++k;
  }
}

// Runs a case with its inputs as they are, or as f32 and c64.
void compare_case(const Row& row, const Golden& g, bool narrow) {
  TensorList inputs;
  for (size_t i = 0; i < g.inputs.size(); ++i) {
    Tensor x = g.inputs[i].clone();
    if (narrow) x = x.to(narrower(x.dtype()));
    if (g.gradients[i].defined()) x.requires_grad_();
    inputs.push_back(x);
  }
  SCOPED_TRACE(g.name + (narrow ? " in f32: " : ": ") + describe_all(inputs));
  TensorList outputs = row.body(inputs);
  ASSERT_EQ(outputs.size(), g.outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    DType expected = narrow && !row.fixed_dtype ? narrower(g.outputs[i].dtype()) : g.outputs[i].dtype();
    EXPECT_EQ(name(outputs[i].dtype()), name(expected)) << "dtype of output " << i;
    EXPECT_TRUE(close(outputs[i], g.outputs[i], precision(expected) * row.looseness)) << "output " << i;
  }
  bool twice = any_defined(g.seconds);
  TensorList gradients = weighted_gradients(outputs, inputs, twice);
  compare_gradients(row, gradients, inputs, g.gradients, "gradient");
  if (!twice) return;
  TensorList seconds = weighted_gradients(gradients, inputs);
  if (seconds.empty())  // the gradients depend on nothing
    for (auto& x : gradients) seconds.push_back(zeros_like(x));
  compare_gradients(row, seconds, inputs, g.seconds, "second gradient");
}

bool has_wide_floats(In inputs) {
  for (auto& x : inputs)
    if (narrower(x.dtype()) != x.dtype()) return true;
  return false;
}

void compare_with_reference(const Row& row) {
  auto samples = row.all_samples();
  if (samples.empty()) samples.emplace_back();
  for (const Sample& sample : samples)
    for (DType dtype : {row.main_dtype(), narrower(row.main_dtype())}) {
      TensorList inputs = make_inputs(sample, dtype), outputs = row.body(inputs), expected = row.reference_body(inputs);
      SCOPED_TRACE("reference: " + describe_all(inputs));
      ASSERT_EQ(outputs.size(), expected.size());
      for (size_t i = 0; i < outputs.size(); ++i)
        EXPECT_TRUE(close(outputs[i], expected[i], precision(outputs[i].dtype()) * row.looseness)) << "output " << i;
    }
}

// Whether the first derivative depends on nothing: that of rounding, of an empty product.
bool has_constant_gradient(const Row& row, In inputs) {
  TensorList roots, weights;
  for (auto& y : row.body(inputs))
    if (y.requires_grad()) {
      roots.push_back(y);
      weights.push_back(fixed_weights(y).requires_grad_());
    }
  TensorList wanted;
  for (auto& x : inputs)
    if (x.requires_grad()) wanted.push_back(x);
  TensorList gradients = grad(roots, wanted, {.create_graph = true, .allow_unused = true}, weights);
  return std::none_of(gradients.begin(), gradients.end(), [](auto& g) { return g.defined() && g.requires_grad(); });
}

void check_derivatives(const Row& row, bool second) {
  auto checker = second ? &gradgradcheck : &gradcheck;
  bool checked = false;
  for (DType dtype : {f64, c128}) {
    if (!(row.taken & takes_bit(dtype)) || (dtype == c128 && !row.complex_gradient)) continue;
    for (const Sample& sample : row.all_samples()) {
      TensorList inputs = as_leaves(make_inputs(sample, dtype), sample);
      SCOPED_TRACE(describe_all(inputs));
      checked = true;
      try {
        if (second) {
          // Who has no gradient of the gradient must say so: it could have been forgotten.
          bool constant = row.gradient_is_constant && row.gradient_is_constant(inputs);
          EXPECT_EQ(has_constant_gradient(row, inputs), constant)
              << (constant ? "the row says constant_gradient(), but the gradient has one"
                           : "the gradient has no gradient: is it made of differentiable operators? If it is a "
                             "constant, say constant_gradient()");
          if (constant) continue;
        }
        EXPECT_TRUE(checker(row.body, inputs, {}));
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what();
      }
    }
  }
  EXPECT_TRUE(checked) << "neither f64 nor c128 is taken: say no_gradient()";
}

// ---- Dtypes

DType reference_dtype(DType t) {
  switch (category(t)) {
    case Category::floating:
      return f64;
    case Category::complex:
      return c128;
    default:
      return i64;
  }
}

TensorList converted(In inputs, const Sample& sample, DType dtype) {
  TensorList list;
  for (size_t k = 0; k < inputs.size(); ++k)
    list.push_back(sample[k].role == Input::values ? inputs[k].detach().to(dtype) : inputs[k]);
  return list;
}

TensorList on_meta(In inputs) {
  TensorList list;
  for (auto& x : inputs) list.push_back(empty_strided(x.sizes(), x.strides(), {.dtype = x.dtype(), .device = "meta"}));
  return list;
}

void expect_refused(const Row& row, In inputs, const char* where) {
  try {
    TensorList outputs = row.body(inputs);
    ADD_FAILURE() << "takes it" << where << " and gives " << describe_all(outputs)
                  << "; the row says that it should throw DTypeError";
  } catch (const DTypeError&) {
  } catch (const std::exception& e) {
    ADD_FAILURE() << "throws something else than DTypeError" << where << ": " << e.what();
  }
}

// A float's result has the dtype that the wide result suggests.
DType expected_dtype(const Row& row, DType wide, DType tested) {
  if (row.fixed_dtype) return wide;
  if (is_floating(wide)) return to_real(tested);
  if (is_complex(wide)) return to_complex(tested);
  return wide;
}

// Whether output i is made of places or counts, which are i64 whatever goes in.
bool counts(const Row& row, In inputs, const Sample& sample, size_t i) {
  if (!(row.taken & (kFloat | kComplex))) return false;
  return row.body(converted(inputs, sample, row.taken & kFloat ? f64 : c128))[i].dtype() == i64;
}

// Integers stay what they are, unless they count or the row says otherwise; results that are bools or floats are so for
// all of them.
DType expected_of_integers(const Row& row, In inputs, const Sample& sample, size_t i, DType wide, DType tested) {
  if (row.fixed_dtype) return wide;
  if (is_floating(wide)) return f32;
  if (is_complex(wide)) return c64;
  if (wide != i64 || row.integers_become_i64 || counts(row, inputs, sample, i)) return wide;
  if (tested == boolean && row.body(inputs)[i].dtype() == i64) return wide;  // a number in the row is an integer
  return tested;
}

void check_dtype(const Row& row, const Sample& sample, DType dtype) {
  TensorList inputs = as_leaves(make_inputs(sample, dtype), sample);
  SCOPED_TRACE(describe_all(inputs));
  if (!row.takes_dtype(dtype)) {
    expect_refused(row, inputs, "");
    expect_refused(row, on_meta(inputs), " on meta");
    return;
  }
  double tolerance = row.looseness * (dtype == bf16 || dtype == f16 ? row.half_looseness : 1);
  TensorList outputs = row.body(inputs);
  if (row.sees_bytes || (dtype == boolean && row.bools_apart)) return;
  // Integers whose result is a float are compared with the same values as floats.
  bool floats = is_differentiable(dtype);
  DType wide = !floats && !outputs.empty() && is_differentiable(outputs[0].dtype()) ? f64 : reference_dtype(dtype);
  TensorList wide_inputs = as_leaves(converted(inputs, sample, wide), sample), expected = row.body(wide_inputs);
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    DType wanted_dtype = floats ? expected_dtype(row, expected[i].dtype(), dtype)
                                : expected_of_integers(row, inputs, sample, i, expected[i].dtype(), dtype);
    EXPECT_EQ(name(outputs[i].dtype()), name(wanted_dtype)) << "dtype of output " << i;
    NoGrad guard;
    Tensor wanted = is_differentiable(outputs[i].dtype()) ? expected[i] : expected[i].to(outputs[i].dtype());
    EXPECT_TRUE(close(outputs[i], wanted, precision(outputs[i].dtype()) * tolerance)) << "output " << i;
  }
  if (!floats || !row.has_gradient || (is_complex(dtype) && !row.complex_gradient)) return;
  TensorList gradients = weighted_gradients(outputs, inputs), wanted = weighted_gradients(expected, wide_inputs);
  ASSERT_EQ(gradients.size(), wanted.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_EQ(name(gradients[i].dtype()), name(dtype)) << "dtype of gradient " << i;
    EXPECT_TRUE(close(gradients[i], wanted[i], precision(dtype) * tolerance)) << "gradient " << i;
  }
}

// ---- Special values

// Equal up to rounding; NaN, infinities and the signs of zeros must agree. PyTorch's functions give 0 for some results
// that are denormal or nearly so.
bool agrees(double ours, double theirs, DType dtype, double relative, bool signed_zeros) {
  if (std::isnan(ours) || std::isnan(theirs)) return std::isnan(ours) && std::isnan(theirs);
  if (std::isinf(ours) || std::isinf(theirs)) return ours == theirs;
  if (theirs == 0 && std::abs(ours) < (dtype == f64 ? 1e-306 : 1e-37))
    return !signed_zeros || ours != 0 || std::signbit(ours) == std::signbit(theirs);
  return std::abs(ours - theirs) <= relative * std::abs(theirs);
}

}  // namespace

void check_golden(const Row& row) {
  if (row.reference_body) {
    compare_with_reference(row);
    return;
  }
  auto cases = cases_of(row, false);
  ASSERT_FALSE(cases.empty()) << "there is no golden for " << row.name
                              << ": add it to tests/golden/make.py, or give the row a reference";
  for (const Golden& g : cases) {
    compare_case(row, g, false);
    if (has_wide_floats(g.inputs) && !row.sees_bytes) compare_case(row, g, true);
  }
}

const std::vector<std::string>& row_goldens() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (auto& file : std::filesystem::directory_iterator("tests/golden")) {
      std::string name = file.path().stem().string();
      if (file.path().extension() == ".npz" &&
          std::find(other_goldens.begin(), other_goldens.end(), name) == other_goldens.end())
        list.push_back(name);
    }
    std::sort(list.begin(), list.end());
    return list;
  }();
  return names;
}

// Of whole numbers, of which every dtype has the same.
void check_created(const Row& row) {
  Out wide = row.creation({.dtype = f64});
  for (int t = 0; t < kDTypes; ++t) {
    auto dtype = static_cast<DType>(t);
    SCOPED_TRACE(name(dtype));
    if (!row.takes_dtype(dtype)) {
      EXPECT_THROW(row.creation({.dtype = dtype}), DTypeError);
      continue;
    }
    Out made = row.creation({.dtype = dtype}), meta = row.creation({.dtype = dtype, .device = "meta"});
    ASSERT_EQ(made.size(), wide.size());
    ASSERT_EQ(meta.size(), wide.size());
    for (size_t i = 0; i < made.size(); ++i) {
      EXPECT_EQ(name(made[i].dtype()), name(dtype));
      EXPECT_TRUE(same_form(meta[i], made[i]));
      EXPECT_TRUE(meta[i].device().is_meta());
      if (row.draws) continue;
      EXPECT_TRUE(close(made[i], wide[i].to(dtype), 0)) << "output " << i;
    }
  }
}

void check_gradient(const Row& row) { check_derivatives(row, false); }
void check_second_gradient(const Row& row) { check_derivatives(row, true); }

void check_dtypes(const Row& row) {
  for (int t = 0; t < kDTypes; ++t)
    for (const Sample& sample : row.all_samples()) {
      try {
        check_dtype(row, sample, static_cast<DType>(t));
      } catch (const std::exception& e) {
        ADD_FAILURE() << name(static_cast<DType>(t)) << ": threw " << e.what();
      }
    }
}

// What floats can be, and all pairs of that: against the row's own reference.
void check_special_by_reference(const Row& row) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> list = {0, -0.0, 1, -1, 0.5, -2.5, 1e-40, 1e30, -1e30, inf, -inf, std::nan("")};
  for (DType dtype : {f64, f32}) {
    TensorList inputs;
    auto n = static_cast<int64_t>(list.size());
    for (int k = 0; k < row.arity; ++k) {
      Shape sizes = Shape::filled(static_cast<size_t>(row.arity), 1);
      sizes[static_cast<size_t>(k)] = n;
      inputs.push_back(tensor(list, {.dtype = dtype}).view(sizes));
    }
    Tensor ours = row.body(inputs)[0], wanted = row.reference_body(inputs)[0];
    EXPECT_TRUE(close(ours, wanted, precision(dtype) * row.looseness)) << row.name << " of special values";
  }
}

// Inputs of two dtypes are computed in the one that the categories give: bool < integers < floats < complex, where
// zero-dimensional tensors matter by a higher category only.
DType mixed_dtype(DType first, DType second, bool zero_dimensional) {
  if (!zero_dimensional || category(second) > category(first)) {
    if (zero_dimensional && is_complex(second) && is_floating(first)) return to_complex(first);
    return promote(first, second);
  }
  return first;
}

void check_mixed_pair(const Row& row, DType first, DType second, bool zero_dimensional) {
  const Sample sample = row.sample_of({2, 3});
  TensorList inputs = make_inputs(sample, first), others = make_inputs(sample, second), alike;
  const size_t from = row.first_is_mask ? 2 : 1;
  for (size_t k = from; k < inputs.size(); ++k) inputs[k] = zero_dimensional ? others[k][1][2].clone() : others[k];
  const DType common = mixed_dtype(first, second, zero_dimensional);
  SCOPED_TRACE(describe_all(inputs));
  for (size_t k = 0; k < inputs.size(); ++k)
    alike.push_back(sample[k].role == Input::values ? inputs[k].to(common) : inputs[k]);
  if (!row.takes_dtype(common)) {
    EXPECT_THROW(row.body(inputs), DTypeError);
    return;
  }
  Tensor result = row.body(inputs)[0], expected = row.body(alike)[0];
  EXPECT_EQ(name(result.dtype()), name(expected.dtype()));
  // What is computed may be nearer than what was rounded to the common dtype first.
  bool exact = true;
  for (size_t k = 0; k < inputs.size(); ++k) exact = exact && identical(alike[k].to(c128), inputs[k].to(c128));
  auto agree = [&](const Tensor& got, const Tensor& wanted) {
    return !exact || close(got, wanted, precision(got.dtype()) * row.looseness);
  };
  EXPECT_TRUE(agree(result, expected));
  if (!row.in_place || row.first_is_mask) return;
  TensorList changed = inputs;
  changed[0] = inputs[0].clone();
  if (category(expected.dtype()) > category(first)) {
    EXPECT_THROW(row.in_place(changed), DTypeError);
    EXPECT_TRUE(identical(changed[0], inputs[0]));
  } else {
    row.in_place(changed);
    EXPECT_TRUE(agree(changed[0], expected.to(first)));
  }
}

void check_mixed(const Row& row) {
  for (int a = 0; a < kDTypes; ++a)
    for (int b = 0; b < kDTypes; ++b)
      for (bool zero_dimensional : {false, true})
        if (a != b) check_mixed_pair(row, static_cast<DType>(a), static_cast<DType>(b), zero_dimensional);
}

void check_special(const Row& row) {
  if (row.reference_body) return check_special_by_reference(row);
  auto cases = cases_of(row, true);
  ASSERT_FALSE(cases.empty()) << "there are no special values for " << row.name << " in tests/golden/make.py";
  for (const Golden& g : cases) {
    Tensor result = row.body(g.inputs)[0];
    ASSERT_EQ(name(result.dtype()), name(g.outputs[0].dtype())) << g.name;
    ASSERT_EQ(result.sizes(), g.outputs[0].sizes()) << g.name;
    std::vector<std::vector<double>> inputs;
    for (auto& x : broadcast_tensors(g.inputs)) inputs.push_back(x.to_vector<double>());
    auto ours = result.to_vector<double>(), theirs = g.outputs[0].to_vector<double>();
    for (size_t i = 0; i < ours.size(); ++i) {
      if (agrees(ours[i], theirs[i], result.dtype(), precision(result.dtype()) * row.looseness, row.signed_zeros))
        continue;
      std::vector<double> at;
      for (auto& values : inputs) at.push_back(values[i]);
      bool deliberate = false;
      for (auto& c : row.conventions) deliberate = deliberate || c.applies(at, ours[i], theirs[i]);
      EXPECT_TRUE(deliberate) << row.name << testing::PrintToString(at) << " in " << name(g.inputs[0].dtype()) << " is "
                              << ours[i] << ", PyTorch says " << theirs[i];
    }
  }
}

}  // namespace tutti::test
