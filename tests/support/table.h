// The table that drives the tests of operators. A row says what an operator is given; from it come a dozen tests, each
// named after the check and the row: OperatorGradcheck.exp, OperatorLayouts.sum/dims.
//
//   add_rows({
//       POINTWISE(exp).takes(kNumber),                                       // a whole row
//       POINTWISE(acosh).takes(kNumber).on({{1.2, 4}}),                      // with a domain for its input
//       row("sum.dims", [](In x) -> Out { return {sum(x[0], {0, 2})}; }, {{value({2, 3, 4})}}).takes(kNumber),
//   });
//
// The part of the name before the dot is the operator's. PyTorch's numbers for a row are in tests/golden, made by
// make.py under the row's name; where PyTorch has no such operator, the row brings a plain reference.
#pragma once

#include <functional>
#include <source_location>
#include <string>
#include <vector>

#include "tests/support/npz.h"
#include "tutti/ops.h"

namespace tutti::test {

using In = const TensorList&;
using Out = TensorList;
using Body = std::function<Out(In)>;

/// Categories of dtypes that an operator takes. The others must be refused with DTypeError.
enum Takes : uint8_t { kBool = 1, kInt = 2, kFloat = 4, kComplex = 8, kReal = 7, kNumber = 15 };
uint8_t takes_bit(DType dtype);

struct Domain {
  double low = -2, high = 2;
};

/// One input of a sample.
struct Input {
  enum Role : uint8_t { values, indices, mask };  // values have the dtype under test, indices i64, masks bool
  Shape sizes;
  Domain domain;
  Role role = values;
  std::vector<double> given = {};  // of indices and masks; a mask without is made up
  bool wants_gradient = true;      // where values of its dtype can have one
};
using Sample = std::vector<Input>;
inline Input value(Shape sizes, Domain domain = {}) { return {std::move(sizes), domain}; }
/// A value by which the operator does not differentiate: the weights of classes, say.
inline Input constant(Shape sizes, Domain domain = {}) { return {std::move(sizes), domain, Input::values, {}, false}; }
inline Input indices(Shape sizes, std::vector<double> given) {
  return {std::move(sizes), {}, Input::indices, std::move(given)};
}
inline Input mask(Shape sizes, std::vector<double> given) {
  return {std::move(sizes), {}, Input::mask, std::move(given)};
}
/// Evenly scattered values, distinct and away from round numbers; for integers, whole numbers of the domain.
TensorList make_inputs(const Sample& sample, DType dtype);

/// A deliberate difference from PyTorch at special values (NaN, infinities, signed zeros, ...).
struct Convention {
  std::string reason;
  std::function<bool(const std::vector<double>& inputs, double ours, double theirs)> applies;
};

struct Row {
  std::string name;
  Body body;
  std::vector<Sample> samples;
  std::source_location where;

  int arity = 0;  // of a pointwise operator; 0 for the others
  std::vector<Domain> domains;
  std::function<void(Tensor& out, In)> write;        // the form that writes into `out`
  std::function<void(TensorList& inputs)> in_place;  // the form that changes inputs[0]
  Body reference_body;
  std::vector<Convention> conventions;
  uint8_t taken = kReal;
  bool has_gradient = true, complex_gradient = true, has_second_gradient = true;
  bool shape_from_values = false, meta_bounds = false, needs_contiguous = false, first_is_mask = false;
  bool shows_layout = false, draws = false;
  std::vector<std::string> other_names;
  bool fixed_dtype = false, sees_bytes = false, bools_apart = false, signed_zeros = true, ignores_devices = false;
  bool integers_become_i64 = false;
  std::function<bool(In)> gradient_is_constant;  // undefined: never
  std::function<Out(const Options&)> creation;
  std::vector<DType> refused;
  double looseness = 1, half_looseness = 1;

  Row& takes(uint8_t bits) { return taken = bits, *this; }
  /// Some dtypes of the categories it takes are refused all the same.
  Row& refuses(std::vector<DType> dtypes) { return refused = std::move(dtypes), *this; }
  /// The row itself chooses the dtype of the result.
  Row& chooses_dtype() { return fixed_dtype = true, *this; }
  /// The result shows how values are stored: another dtype gives another result.
  Row& shows_bytes() { return sees_bytes = true, *this; }
  /// Small integers, and bools, have results in i64: sums, products.
  Row& widens_integers() { return integers_become_i64 = true, *this; }
  /// Bools are not treated as the integers 0 and 1.
  Row& bools_differ() { return bools_apart = true, *this; }
  /// The domains of a pointwise operator's inputs.
  Row& on(std::vector<Domain> list) { return domains = std::move(list), *this; }
  Row& sample(Sample s) { return samples.push_back(std::move(s)), *this; }
  /// Input 0 of a pointwise operator is a condition.
  Row& chooses() { return first_is_mask = true, *this; }
  /// Not differentiable (its results carry no gradient).
  Row& no_gradient() { return has_gradient = false, *this; }
  /// Differentiable for real inputs only.
  Row& real_gradient() { return complex_gradient = false, *this; }
  Row& no_second_gradient() { return has_second_gradient = false, *this; }
  /// The gradient depends on neither the inputs nor the output's gradient, so there is none of it: that of rounding.
  Row& constant_gradient(std::function<bool(In)> where = [](In) { return true; }) {
    return gradient_is_constant = std::move(where), *this;
  }
  /// An operator that makes tensors from options: its results in every dtype, and on meta.
  Row& creates(std::function<Out(const Options&)> f) { return creation = std::move(f), *this; }
  /// The shape of the result depends on values: meta tensors are refused.
  Row& dynamic() { return shape_from_values = true, *this; }
  /// The same, but meta tensors tell how large the result can be at most.
  Row& bounded() { return shape_from_values = meta_bounds = true, *this; }
  /// Other layouts may be refused with a ShapeError.
  Row& contiguous_only() { return needs_contiguous = true, *this; }
  /// Another layout means another result.
  Row& sees_strides() { return shows_layout = true, *this; }
  /// Errors may name another operator: one that stands in the row's body for its own sake, or of which this is a case.
  Row& speaks_of(std::string operation) { return other_names.push_back(std::move(operation)), *this; }
  /// Multiplies every tolerance; the second, that of bf16 and f16 (for operators composed of several roundings).
  Row& loose(double factor, double half_factor = 1) { return looseness = factor, half_looseness = half_factor, *this; }
  Row& reference(Body body) { return reference_body = std::move(body), *this; }
  Row& changes(std::function<void(TensorList&)> f) { return in_place = std::move(f), *this; }
  Row& differs(std::string reason, std::function<bool(const std::vector<double>&, double, double)> applies) {
    return conventions.push_back({std::move(reason), std::move(applies)}), *this;
  }

  /// Draws random numbers: all functions of the row are called with the generator at one and the same place.
  Row& random() { return draws = true, *this; }

  /// Each input has a result of its own, on its own device.
  Row& any_devices() { return ignores_devices = true, *this; }
  /// The signs of zeros among the special values are not PyTorch's.
  Row& any_zero() { return signed_zeros = false, *this; }

  /// NaN gives NaN, where PyTorch gives a number.
  Row& keeps_nan();
  /// Infinities give the limit, where PyTorch gives NaN.
  Row& has_limits();
  /// Huge numbers give a finite result, where PyTorch's overflows on the way.
  Row& no_overflow();

  bool takes_dtype(DType dtype) const;
  bool pointwise() const { return arity > 0; }
  std::string operator_name() const { return name.substr(0, name.find('.')); }
  /// What the checks that need only one dtype use.
  DType main_dtype() const { return taken & kFloat ? f64 : taken & kComplex ? c128 : taken & kInt ? i64 : boolean; }
  std::vector<Sample> all_samples() const;
  /// A sample with the same sizes for every input of a pointwise operator.
  Sample sample_of(const Shape& sizes) const;
};

Row row(std::string name, Body body, std::vector<Sample> samples,
        std::source_location where = std::source_location::current());

Row pointwise(const char* name, Tensor (*f)(const Tensor&), Tensor& (*f_)(Tensor&),
              Tensor& (*out)(Tensor&, const Tensor&), std::source_location where = std::source_location::current());
Row pointwise(const char* name, Tensor (*f)(const Tensor&, const Tensor&), Tensor& (*f_)(Tensor&, const Tensor&),
              Tensor& (*out)(Tensor&, const Tensor&, const Tensor&),
              std::source_location where = std::source_location::current());
Row pointwise(const char* name, Tensor (*f)(const Tensor&, const Tensor&, const Tensor&),
              Tensor& (*f_)(Tensor&, const Tensor&, const Tensor&),
              Tensor& (*out)(Tensor&, const Tensor&, const Tensor&, const Tensor&),
              std::source_location where = std::source_location::current());
Row pointwise(const char* name, Tensor (*f)(const Tensor&, const Tensor&, const Tensor&, const Tensor&),
              Tensor& (*f_)(Tensor&, const Tensor&, const Tensor&, const Tensor&),
              Tensor& (*out)(Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&),
              std::source_location where = std::source_location::current());

/// A row for a pointwise operator with its three forms; and for one that has no form in place.
#define POINTWISE(f) ::tutti::test::pointwise(#f, &::tutti::f, &::tutti::f##_, &::tutti::f##_out)
#define POINTWISE_PURE(f) ::tutti::test::pointwise(#f, &::tutti::f, nullptr, &::tutti::f##_out)

/// Registers the rows and their tests. To be called before main, from the initialiser of a constant.
bool add_rows(std::vector<Row> rows);
const std::vector<Row>& all_rows();

inline Out both(const ValuesIndices& v) { return {v.values, v.indices}; }

// ---- The checks; see checks.cpp, checks_forms.cpp and checks_compiled.cpp.
void check_golden(const Row& row);
void check_gradient(const Row& row);
void check_second_gradient(const Row& row);
void check_meta(const Row& row);
void check_layouts(const Row& row);
void check_dtypes(const Row& row);
void check_forms(const Row& row);
void check_edges(const Row& row);
void check_empty(const Row& row);
void check_special(const Row& row);
void check_created(const Row& row);
void check_mixed(const Row& row);
void check_errors(const Row& row);
void check_compiled(const Row& row);

// ---- What they share.

/// The files of goldens whose cases are rows: all but those that the tests of modules and optimizers read themselves.
const std::vector<std::string>& row_goldens();
inline const std::vector<std::string> other_goldens = {"layers", "layers_sequences", "curves", "optim"};
/// Where the generator begins for rows that draw.
inline constexpr uint64_t kRowSeed = 7;
/// Copies that are leaves, those of differentiable dtype wanting gradients unless the sample says that they are
/// constant.
TensorList as_leaves(In inputs, const Sample& sample);
/// Gradients of Σ weights·outputs by all inputs that want one, dense, zeros where none flows. Empty where no output
/// carries a gradient.
TensorList weighted_gradients(In outputs, In inputs, bool create_graph = false);
std::string describe_all(In tensors);

}  // namespace tutti::test
