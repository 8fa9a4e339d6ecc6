#include "tests/support/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/compare.h"
#include "tutti/autograd.h"
#include "tutti/random.h"
#include "tutti/trace.h"

namespace tutti::test {
namespace {

std::vector<Row>& stored_rows() {
  static std::vector<Row> rows;
  return rows;
}

class RowTest : public testing::Test {
 public:
  RowTest(void (*check)(const Row&), size_t index) : check_(check), index_(index) {}
  void TestBody() override {
    try {
      check_(stored_rows()[index_]);
    } catch (const std::exception& e) {
      ADD_FAILURE() << "threw: " << e.what();
    }
  }

 private:
  void (*check_)(const Row&);
  size_t index_;
};

void register_test(const char* suite, void (*check)(const Row&), const Row& row, size_t index) {
  std::string name = row.name;
  for (char& c : name)
    if (c == '.') c = '/';
  testing::RegisterTest(suite, name.c_str(), nullptr, nullptr, row.where.file_name(),
                        static_cast<int>(row.where.line()),
                        [=]() -> testing::Test* { return new RowTest(check, index); });
}

// The i-th of a sequence that fills [0, 1) evenly; `which` tells the inputs of a sample apart.
double scattered(int64_t i, size_t which) {
  double x = static_cast<double>(i + 1) * 0.6180339887498949 + static_cast<double>(which) * 0.3819660112501051 * 1.7 +
             0.1234567;
  return x - std::floor(x);
}

double whole_number(Domain d, double u, bool unsigned_) {
  double low = std::ceil(unsigned_ ? std::max(d.low, 0.0) : d.low),
         high = std::floor(unsigned_ && d.high < 0 ? -d.low : d.high);
  return low > high ? 0 : std::min(high, std::floor(low + u * (high - low + 1)));
}

Tensor make_input(const Input& input, size_t which, DType dtype) {
  if (input.role == Input::mask && input.given.empty())
    dtype = boolean;
  else if (input.role != Input::values)
    return tensor(input.given, {.dtype = input.role == Input::indices ? i64 : boolean}).view(input.sizes);
  std::vector<std::complex<double>> values;
  for (int64_t i = 0; i < input.sizes.product(); ++i) {
    double u = scattered(i, which), real = input.domain.low + u * (input.domain.high - input.domain.low), imaginary = 0;
    if (category(dtype) == Category::boolean) real = u > 0.4 || input.domain.low > 0;
    if (category(dtype) == Category::integer) real = whole_number(input.domain, u, dtype == u8);
    if (is_complex(dtype)) imaginary = 2.5 * scattered(i, which + 7) - 1.2;
    values.emplace_back(real, imaginary);
  }
  return tensor(values, {.dtype = dtype}).view(input.sizes);
}

// The same function of the same numbers. Where it is traced, whoever does so has the generator at its place: the change
// of it could not be part of a graph.
template <class F>
F seeded(F f) {
  if (!f) return f;
  return [f = std::move(f)](auto&... arguments) {
    if (!tracing()) manual_seed(kRowSeed);
    return f(arguments...);
  };
}

template <class F, class G, class H, size_t... I>
Row make_pointwise(const char* name, F f, G f_, H out, std::source_location where, std::index_sequence<I...>) {
  Row r = row(name, [f](In x) -> Out { return {f(x[I]...)}; }, {}, where);
  r.arity = sizeof...(I);
  if (f_)
    r.in_place = [f_](TensorList& x) {
      auto& first = x[0];
      [&]<size_t... J>(std::index_sequence<J...>) {
        f_(first, x[J + 1]...);
      }(std::make_index_sequence<sizeof...(I) - 1>());
    };
  r.write = [out](Tensor& to, In x) { out(to, x[I]...); };
  return r;
}

}  // namespace

uint8_t takes_bit(DType dtype) {
  constexpr uint8_t bits[] = {kBool, kInt, kFloat, kComplex};
  return bits[static_cast<int>(category(dtype))];
}

TensorList make_inputs(const Sample& sample, DType dtype) {
  TensorList inputs;
  for (size_t k = 0; k < sample.size(); ++k) inputs.push_back(make_input(sample[k], k, dtype));
  return inputs;
}

Row& Row::keeps_nan() {
  return differs("NaN propagates", [](auto& x, double ours, double) {
    return std::isnan(ours) && std::any_of(x.begin(), x.end(), [](double v) { return std::isnan(v); });
  });
}
Row& Row::has_limits() {
  return differs("the limit exists", [](auto& x, double ours, double theirs) {
    return std::isnan(theirs) && !std::isnan(ours) &&
           std::none_of(x.begin(), x.end(), [](double v) { return std::isnan(v); });
  });
}
Row& Row::no_overflow() {
  return differs("the result is finite",
                 [](auto&, double ours, double theirs) { return std::isinf(theirs) && std::isfinite(ours); });
}

bool Row::takes_dtype(DType dtype) const {
  return taken & takes_bit(dtype) && std::find(refused.begin(), refused.end(), dtype) == refused.end();
}

Sample Row::sample_of(const Shape& sizes) const {
  Sample sample;
  for (int k = 0; k < arity; ++k) {
    auto i = static_cast<size_t>(k);
    sample.push_back(value(sizes, i < domains.size() ? domains[i] : Domain()));
    if (first_is_mask && k == 0) sample[0].role = Input::mask;
  }
  return sample;
}

std::vector<Sample> Row::all_samples() const {
  std::vector<Sample> list = samples;
  if (pointwise()) {
    list.push_back(sample_of({2, 3}));
    if (arity > 1) {
      // Shapes that broadcast against each other.
      const Shape shapes[] = {{2, 1, 3}, {2, 1}, {3}, {}};
      Sample mixed = sample_of({});
      for (size_t k = 0; k < mixed.size(); ++k) mixed[k].sizes = shapes[k];
      list.push_back(mixed);
    }
  }
  return list;
}

Row row(std::string name, Body body, std::vector<Sample> samples, std::source_location where) {
  Row r;
  r.name = std::move(name);
  r.body = std::move(body);
  r.samples = std::move(samples);
  r.where = where;
  return r;
}

Row pointwise(const char* name, Tensor (*f)(const Tensor&), Tensor& (*f_)(Tensor&),
              Tensor& (*out)(Tensor&, const Tensor&), std::source_location where) {
  return make_pointwise(name, f, f_, out, where, std::make_index_sequence<1>());
}
Row pointwise(const char* name, Tensor (*f)(const Tensor&, const Tensor&), Tensor& (*f_)(Tensor&, const Tensor&),
              Tensor& (*out)(Tensor&, const Tensor&, const Tensor&), std::source_location where) {
  return make_pointwise(name, f, f_, out, where, std::make_index_sequence<2>());
}
Row pointwise(const char* name, Tensor (*f)(const Tensor&, const Tensor&, const Tensor&),
              Tensor& (*f_)(Tensor&, const Tensor&, const Tensor&),
              Tensor& (*out)(Tensor&, const Tensor&, const Tensor&, const Tensor&), std::source_location where) {
  return make_pointwise(name, f, f_, out, where, std::make_index_sequence<3>());
}
Row pointwise(const char* name, Tensor (*f)(const Tensor&, const Tensor&, const Tensor&, const Tensor&),
              Tensor& (*f_)(Tensor&, const Tensor&, const Tensor&, const Tensor&),
              Tensor& (*out)(Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&),
              std::source_location where) {
  return make_pointwise(name, f, f_, out, where, std::make_index_sequence<4>());
}

bool add_rows(std::vector<Row> rows) {
  for (Row& r : rows) {
    size_t index = stored_rows().size();
    if (r.draws) {
      r.body = seeded(std::move(r.body));
      r.reference_body = seeded(std::move(r.reference_body));
      r.in_place = seeded(std::move(r.in_place));
      r.creation = seeded(std::move(r.creation));
    }
    stored_rows().push_back(std::move(r));
    const Row& row = stored_rows().back();
    register_test("OperatorGolden", check_golden, row, index);
    register_test("OperatorForms", check_forms, row, index);
    if (row.creation) register_test("OperatorCreation", check_created, row, index);
    if (row.samples.empty() && !row.pointwise()) continue;
    register_test("OperatorMeta", check_meta, row, index);
    register_test("OperatorCompiled", check_compiled, row, index);
    register_test("OperatorErrors", check_errors, row, index);
    register_test("OperatorLayouts", check_layouts, row, index);
    bool typed = row.pointwise();
    for (const Sample& sample : row.samples)
      for (const Input& input : sample) typed = typed || input.role == Input::values;
    if (typed) register_test("OperatorDTypes", check_dtypes, row, index);
    if (row.has_gradient) register_test("OperatorGradcheck", check_gradient, row, index);
    if (row.has_gradient && row.has_second_gradient)
      register_test("OperatorGradgradcheck", check_second_gradient, row, index);
    if (row.pointwise()) register_test("OperatorEdges", check_edges, row, index);
    if (!row.pointwise()) register_test("OperatorEmpty", check_empty, row, index);
    if (row.arity > 1) register_test("OperatorMixed", check_mixed, row, index);
    if (row.pointwise() && row.taken & kFloat) register_test("OperatorSpecial", check_special, row, index);
  }
  return true;
}

const std::vector<Row>& all_rows() { return stored_rows(); }

TensorList as_leaves(In inputs, const Sample& sample) {
  TensorList leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensor leaf = inputs[i].detach();
    if (is_differentiable(leaf.dtype()) && sample[i].wants_gradient) leaf.requires_grad_();
    leaves.push_back(leaf);
  }
  return leaves;
}

TensorList weighted_gradients(In outputs, In inputs, bool create_graph) {
  TensorList roots, weights, wanted;
  for (auto& y : outputs)
    if (y.requires_grad()) {
      roots.push_back(y);
      weights.push_back(fixed_weights(y));
    }
  for (auto& x : inputs)
    if (x.requires_grad()) wanted.push_back(x);
  if (roots.empty() || wanted.empty()) return {};
  TensorList gradients = grad(roots, wanted, {.create_graph = create_graph, .allow_unused = true}, weights);
  for (size_t i = 0; i < gradients.size(); ++i)
    gradients[i] = gradients[i].defined() ? to_dense(gradients[i]) : zeros_like(wanted[i]);
  return gradients;
}

std::string describe_all(In tensors) {
  std::string text;
  for (auto& t : tensors) text += (text.empty() ? "" : ", ") + describe(t) + " strides " + to_string(t.strides());
  return text;
}

}  // namespace tutti::test
