// Checks of how an operator is called: layouts, meta tensors, given outputs, in place, shapes at the edges.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/check.h"
#include "tests/support/compare.h"
#include "tests/support/table.h"
#include "tutti/autograd.h"
#include "tutti/trace.h"

namespace tutti::test {
namespace {

Tensor on_meta(const Tensor& x) {
  return empty_strided(x.sizes(), x.strides(), {.dtype = x.dtype(), .device = "meta"});
}

// Inputs arranged in memory as asked; empty where an arrangement exists for none of them.
TensorList arranged(In inputs, Arrangement arrangement) {
  TensorList list;
  bool any = false;
  for (auto& x : inputs) {
    Tensor y = arrange(x, arrangement);
    any = any || y.defined();
    list.push_back(y.defined() ? y : x);
  }
  return any ? list : TensorList();
}

bool has_images(const std::vector<Sample>& samples) {
  for (auto& sample : samples)
    for (const Input& input : sample)
      if (input.sizes.size() >= 4 && input.role == Input::values) return true;
  return false;
}

// Images can be channels-last: the samples, and one of images where there is none and the row takes one.
std::vector<Sample> samples_for_layouts(const Row& row) {
  auto samples = row.all_samples();
  if (row.pointwise()) {
    samples.push_back(row.sample_of({2, 3, 2, 2}));
  } else if (!has_images(samples) && samples[0].size() == 1 && samples[0][0].role == Input::values) {
    Sample images = {value({2, 3, 2, 2}, samples[0][0].domain)};
    try {
      row.body(make_inputs(images, row.main_dtype()));
      samples.push_back(images);
    } catch (const Error&) {
    }
  }
  return samples;
}

// ---- A tracer that watches every operator a row calls, its gradients included, and calls each again: into outputs
// that exist, and on meta tensors.
class Probe final : public Tracer {
 public:
  bool call(const Operator& op, std::span<const Tensor* const> inputs, Attributes attributes,
            std::span<Tensor> outputs) override {
    bool fresh = std::none_of(outputs.begin(), outputs.end(), [](const Tensor& t) { return t.defined(); });
    tutti::call(op, inputs, attributes, outputs);
    bool strided = true;
    for (auto& t : outputs) strided = strided && t.layout() == Layout::strided;
    for (const Tensor* x : inputs) strided = strided && (!x->defined() || x->layout() == Layout::strided);
    if (!fresh || op.random || op.dynamic_shape || !strided) return true;
    NoGrad guard;
    if (op.view_of < 0)
      for (Arrangement a : {Arrangement::contiguous, Arrangement::transposed, Arrangement::stepped})
        call_into(op, inputs, attributes, outputs, a);
    if (op.view_of < 0) call_onto_inputs(op, inputs, attributes, outputs);
    call_on_meta(op, inputs, attributes, outputs);
    ++calls_;
    return true;
  }
  int calls() const { return calls_; }

 private:
  void call_into(const Operator& op, std::span<const Tensor* const> inputs, Attributes attributes,
                 std::span<Tensor> expected, Arrangement arrangement) {
    TensorList outputs;
    for (auto& t : expected) {
      Tensor garbage = full(t.sizes(), 77, {.dtype = t.dtype(), .device = t.device()});
      Tensor out = t.device().is_cpu() ? arrange(garbage, arrangement) : garbage;
      if (!out.defined()) return;
      outputs.push_back(out);
    }
    TensorList given = outputs;
    tutti::call(op, inputs, attributes, outputs);
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_TRUE(outputs[i].is_same(given[i])) << op.name << " replaced a given output";
      EXPECT_TRUE(identical(outputs[i], expected[i])) << op.name << " into an output that is " << name(arrangement);
    }
  }
  // Outputs that are inputs, wherever they fit.
  void call_onto_inputs(const Operator& op, std::span<const Tensor* const> inputs, Attributes attributes,
                        std::span<Tensor> expected) {
    for (size_t i = 0; i < expected.size(); ++i)
      for (size_t k = 0; k < inputs.size(); ++k) {
        const Tensor& x = *inputs[k];
        if (!x.defined() || !x.device().is_cpu() || !x.is_contiguous() || !same_form(x, expected[i])) continue;
        Tensor both = x.detach().clone();
        std::vector<const Tensor*> pointers(inputs.begin(), inputs.end());
        pointers[k] = &both;
        TensorList outputs(expected.size());
        outputs[i] = both;
        tutti::call(op, pointers, attributes, outputs);
        std::lock_guard lock(mutex_);
        EXPECT_TRUE(outputs[i].is_same(both)) << op.name << " replaced a given output";
        for (size_t j = 0; j < outputs.size(); ++j)
          EXPECT_TRUE(identical(outputs[j], expected[j])) << op.name << " where output " << i << " is input " << k;
      }
  }
  void call_on_meta(const Operator& op, std::span<const Tensor* const> inputs, Attributes attributes,
                    std::span<Tensor> expected) {
    TensorList copies, outputs(expected.size());
    // Numbers stay what they are.
    for (const Tensor* x : inputs) copies.push_back(x->defined() && !x->is_number() ? on_meta(*x) : *x);
    std::vector<const Tensor*> pointers;
    for (auto& t : copies) pointers.push_back(&t);
    std::vector<TensorSpec> specs(outputs.size());
    try {
      op.infer({op, pointers, attributes, outputs}, specs);
    } catch (const DeviceError&) {
      return;  // a device among the attributes, to which nothing can be copied from meta; check_meta() sees the row
               // whole
    }
    if (!specs[0].device.is_meta()) return;
    tutti::call(op, pointers, attributes, outputs);
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_TRUE(same_form(outputs[i], expected[i])) << op.name << " on meta";
    }
  }

  std::mutex mutex_;
  std::atomic<int> calls_ = 0;
};

bool can_differentiate(const Row& row) { return row.has_gradient && (row.taken & kFloat || row.complex_gradient); }

TensorList main_inputs(const Row& row, const Sample& sample) {
  TensorList inputs = make_inputs(sample, row.main_dtype());
  return can_differentiate(row) ? as_leaves(inputs, sample) : inputs;
}

// ---- In place

// f(x) again by the form that changes x, on leaves' copies, with gradients through the change.
void check_in_place(const Row& row, In inputs, Arrangement arrangement) {
  TensorList expected = row.body(inputs);
  Tensor first = arrange(inputs[0].detach(), arrangement);
  if (!first.defined() || !(expected[0].sizes() == first.sizes()) || expected[0].dtype() != first.dtype()) return;
  SCOPED_TRACE(std::string("in place, ") + name(arrangement));
  TensorList changed = inputs;
  Tensor leaf = first;
  if (can_differentiate(row)) leaf.requires_grad_();
  // A leaf that wants a gradient must not be changed; a tensor computed from it (in the same memory order) may.
  Tensor work = empty_strided(first.sizes(), first.strides(), {.dtype = first.dtype()});
  work.copy_(leaf);
  changed[0] = work;
  uint64_t version = work.version();
  row.in_place(changed);
  EXPECT_GT(work.version(), version) << "the version does not show the change";
  EXPECT_TRUE(identical(work, expected[0]));
  if (!can_differentiate(row)) return;
  TensorList leaves = inputs;
  leaves[0] = leaf;
  TensorList got = weighted_gradients({work}, leaves), wanted = weighted_gradients({expected[0]}, inputs);
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(close(got[i], wanted[i], 1e-12)) << "gradient " << i;
}

void check_written(const Row& row, In inputs) {
  TensorList plain;
  for (auto& x : inputs) plain.push_back(x.detach());
  Tensor expected = row.body(plain)[0];
  for (Arrangement a :
       {Arrangement::contiguous, Arrangement::transposed, Arrangement::stepped, Arrangement::channels_last}) {
    Tensor out = arrange(zeros(expected.sizes(), {.dtype = expected.dtype()}), a);
    if (!out.defined()) continue;
    row.write(out, plain);
    EXPECT_TRUE(identical(out, expected)) << "written into a " << name(a) << " tensor";
  }
  // A result may be written into a wider dtype, and into no narrower kind.
  if (expected.dtype() == f64) {
    Tensor wide = zeros(expected.sizes(), {.dtype = c128}), narrow = zeros(expected.sizes(), {.dtype = i64});
    row.write(wide, plain);
    EXPECT_TRUE(close(wide, expected, 0)) << "written into c128";
    EXPECT_THROW(row.write(narrow, plain), DTypeError);
  }
  Shape wrong = expected.sizes();
  wrong.push_back(2);
  Tensor misfit = zeros(wrong, {.dtype = expected.dtype()});
  EXPECT_THROW(row.write(misfit, plain), ShapeError);
}

// ---- Edges

// Element i of the result, from element i of every input alone.
void check_elements(const Row& row, const Shape& sizes) {
  TensorList inputs = make_inputs(row.sample_of(sizes), row.main_dtype());
  Tensor whole = row.body(inputs)[0];
  ASSERT_EQ(whole.sizes(), sizes);
  Tensor flat = whole.reshape({-1});
  int64_t n = flat.numel(), step = std::max<int64_t>(1, n / 50);
  for (int64_t i = 0; i < n; i += step) {
    TensorList single;
    for (auto& x : inputs) single.push_back(x.reshape({-1}).select(0, i));
    Tensor one = row.body(single)[0];
    ASSERT_EQ(one.dim(), 0);
    ASSERT_TRUE(identical(flat.select(0, i), one)) << "element " << i << " of " << to_string(sizes);
  }
}

// ---- Layouts

// The row's own, and those that are converted as they are gathered. Rows that draw give other numbers in each.
std::vector<DType> dtypes_for_layouts(const Row& row, bool all) {
  std::vector<DType> list = {row.main_dtype()};
  for (int t = 0; t < kDTypes && !row.draws; ++t) {
    auto dtype = static_cast<DType>(t);
    bool wanted = all || dtype == f32 || dtype == bf16 || dtype == c64 || dtype == i32 || dtype == boolean;
    if (wanted && dtype != list[0] && row.takes_dtype(dtype)) list.push_back(dtype);
  }
  return list;
}

double looseness(const Row& row, DType dtype) {
  return row.looseness * (dtype == bf16 || dtype == f16 ? row.half_looseness : 1);
}

void check_meta_of(const Row& row, const Sample& sample, DType dtype, Arrangement a) {
  TensorList inputs = arranged(make_inputs(sample, dtype), a), copies;
  if (inputs.empty()) return;
  SCOPED_TRACE(describe_all(inputs));
  for (auto& x : inputs) copies.push_back(on_meta(x));
  if (row.shape_from_values && !row.meta_bounds) {
    EXPECT_THROW(row.body(copies), DeviceError);
    return;
  }
  TensorList expected = row.body(inputs), outputs = row.body(copies);
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_TRUE(outputs[i].device().is_meta()) << "output " << i << " is on " << outputs[i].device().str();
    if (!row.meta_bounds) {
      EXPECT_TRUE(same_form(outputs[i], expected[i])) << "output " << i;
      continue;
    }
    EXPECT_EQ(outputs[i].dtype(), expected[i].dtype());
    ASSERT_EQ(outputs[i].dim(), expected[i].dim());
    for (int64_t d = 0; d < outputs[i].dim(); ++d) EXPECT_GE(outputs[i].size(d), expected[i].size(d));
  }
}

void check_layout(const Row& row, const Sample& sample, DType dtype, Arrangement a) {
  TensorList inputs = arranged(make_inputs(sample, dtype), a), plain;
  if (inputs.empty()) return;
  SCOPED_TRACE(std::string(name(a)) + ": " + describe_all(inputs));
  for (auto& x : inputs) plain.push_back(x.clone(MemoryFormat::contiguous));
  if (is_differentiable(dtype) && row.has_gradient && (!is_complex(dtype) || row.complex_gradient)) {
    inputs = as_leaves(inputs, sample);
    plain = as_leaves(plain, sample);
  }
  TensorList outputs, expected;
  try {
    expected = row.body(plain);
  } catch (const Error& e) {  // what repeats has other values, which may be indices out of order
    EXPECT_TRUE(a == Arrangement::expanded) << e.what();
    EXPECT_THROW(row.body(inputs), Error);
    return;
  }
  try {
    outputs = row.body(inputs);
  } catch (const Error& e) {
    EXPECT_TRUE((row.needs_contiguous || row.shows_layout) && a != Arrangement::contiguous) << e.what();
    EXPECT_EQ(e.operation(), row.operator_name());
    return;
  }
  if (row.shows_layout && a != Arrangement::contiguous) {
    for (size_t i = 0; i < outputs.size(); ++i) EXPECT_EQ(outputs[i].sizes(), expected[i].sizes());
    return;
  }
  auto tolerance = [&](DType t) { return dtype == row.main_dtype() ? 1e-13 : precision(t) * looseness(row, dtype); };
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(name(outputs[i].dtype()), name(expected[i].dtype()));
    EXPECT_TRUE(close(outputs[i], expected[i], tolerance(outputs[i].dtype()))) << "output " << i;
  }
  TensorList got = weighted_gradients(outputs, inputs), wanted = weighted_gradients(expected, plain);
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(close(got[i], wanted[i], tolerance(dtype))) << "gradient " << i;
}

}  // namespace

void check_meta(const Row& row) {
  for (DType dtype : dtypes_for_layouts(row, true))
    for (const Sample& sample : samples_for_layouts(row))
      for (Arrangement a :
           {Arrangement::contiguous, Arrangement::transposed, Arrangement::stepped, Arrangement::channels_last})
        if (!row.needs_contiguous || a == Arrangement::contiguous) check_meta_of(row, sample, dtype, a);
}

void check_layouts(const Row& row) {
  for (DType dtype : dtypes_for_layouts(row, false))
    for (const Sample& sample : samples_for_layouts(row))
      for (Arrangement a : kArrangements) check_layout(row, sample, dtype, a);
}

void check_forms(const Row& row) {
  auto samples = row.all_samples();
  if (samples.empty()) samples.emplace_back();
  for (const Sample& sample : samples) {
    TensorList inputs = main_inputs(row, sample);
    SCOPED_TRACE(describe_all(inputs));
    Probe probe;
    {
      TraceGuard guard(probe);
      weighted_gradients(row.body(inputs), inputs);
    }
    if (row.pointwise()) {
      EXPECT_GT(probe.calls(), can_differentiate(row) ? 1 : 0);
    }
    if (row.write) check_written(row, inputs);
    if (row.in_place)
      for (Arrangement a : {Arrangement::contiguous, Arrangement::transposed, Arrangement::stepped})
        check_in_place(row, inputs, a);
  }
}

void check_edges(const Row& row) {
  for (const Shape& sizes : {Shape{0}, Shape{2, 0, 3}}) {
    TensorList inputs = main_inputs(row, row.sample_of(sizes)), outputs = row.body(inputs);
    EXPECT_EQ(outputs[0].sizes(), sizes);
    for (auto& g : weighted_gradients(outputs, inputs)) EXPECT_EQ(g.sizes(), sizes);
  }
  // Lone elements, and the same ones within vectors, their tails, and pieces done by different threads: equal bits.
  for (const Shape& sizes : {Shape{}, Shape{1}, Shape{1, 1, 1}, Shape{37}, Shape{3, 1, 5}, Shape{40, 1000}})
    check_elements(row, sizes);
  if (row.arity < 2) return;
  // Sizes that do not broadcast are refused, with the operator named.
  TensorList inputs = make_inputs(row.sample_of({2, 3}), row.main_dtype());
  inputs[1] = make_inputs(row.sample_of({2, 4}), row.main_dtype())[1];
  try {
    row.body(inputs);
    ADD_FAILURE() << "takes shapes [2, 3] and [2, 4]";
  } catch (const ShapeError& e) {
    EXPECT_EQ(e.operation(), row.operator_name());
  }
}

// The error names the operator that was called, or one that the row says.
static void expect_named(const Row& row, const Error& e) {
  std::string own = row.operator_name();
  bool named = e.operation() == own || e.operation() == own + "_" ||
               std::find(row.other_names.begin(), row.other_names.end(), e.operation()) != row.other_names.end();
  EXPECT_TRUE(named) << "an error of " << own << " reads \"" << e.what() << '"';
}

// Inputs with a dim of size zero, and zero-dimensional ones: an Error or a result, whose shape is the one that is
// inferred and whose gradients have the shapes of the inputs; nothing else.
void check_empty(const Row& row) {
  for (const Sample& sample : row.all_samples()) {
    for (size_t k = 0; k < sample.size(); ++k) {
      if (sample[k].role != Input::values) continue;
      for (size_t d = 0; d <= sample[k].sizes.size(); ++d) {
        Sample edge = sample;
        if (d < edge[k].sizes.size())
          edge[k].sizes[d] = 0;
        else
          edge[k].sizes = {};
        TensorList inputs = main_inputs(row, edge), outputs;
        SCOPED_TRACE(describe_all(inputs));
        try {
          outputs = row.body(inputs);
          TensorList gradients = weighted_gradients(outputs, inputs);
          for (size_t i = 0, g = 0; i < inputs.size() && g < gradients.size(); ++i)
            if (inputs[i].requires_grad()) {
              EXPECT_EQ(gradients[g++].sizes(), inputs[i].sizes());
            }
        } catch (const InternalError& e) {
          ADD_FAILURE() << e.what();
        } catch (const Error& e) {
          expect_named(row, e);
          continue;
        }
        if (row.shape_from_values) continue;
        TensorList empty;
        for (auto& x : inputs) empty.push_back(on_meta(x));
        TensorList inferred = row.body(empty);
        for (size_t i = 0; i < outputs.size(); ++i) EXPECT_EQ(inferred[i].sizes(), outputs[i].sizes());
      }
    }
  }
}

// What an operator that takes x may not take: other shapes, dtypes and layouts.
static TensorList unfit(const Tensor& x) {
  Tensor y = x.detach();
  TensorList list = {unsqueeze(y, 0), cat({y.reshape({-1}), y.reshape({-1}), ones({1}, y.dtype())})};
  if (y.dim() > 0) list.push_back(cat({y, y}, -1));
  if (y.dim() > 0) list.push_back(cat({y, y}, 0));
  for (DType dtype : {boolean, f32, f64, c64}) list.push_back(y.to(dtype));
  if (y.dim() > 0) list.push_back(to_sparse(y));
  return list;
}

void check_errors(const Row& row) {
  auto throws = [&](In inputs) {
    try {
      return !row.body(inputs)[0].defined();  // what passes its input through may pass nothing through
    } catch (const Error& e) {
      expect_named(row, e);
      return true;
    }
  };
  for (const Sample& sample : row.all_samples()) {
    TensorList inputs = main_inputs(row, sample);
    SCOPED_TRACE(describe_all(inputs));
    for (size_t k = 0; k < inputs.size(); ++k) {
      TensorList wrong = inputs;
      wrong[k] = Tensor();
      EXPECT_TRUE(throws(wrong)) << "input " << k << " is undefined";
      for (const Tensor& other : unfit(inputs[k])) {
        wrong[k] = other;
        SCOPED_TRACE("input " + std::to_string(k) + " is " + describe_all({other}));
        throws(wrong);  // or it takes that as well
      }
      if (inputs.size() == 1 || row.ignores_devices) continue;
      wrong[k] = on_meta(inputs[k]);
      try {
        row.body(wrong);
        ADD_FAILURE() << "input " << k << " has no values, the others have, and it does not care";
      } catch (const DeviceError& e) {
        expect_named(row, e);
      }
    }
  }
}

}  // namespace tutti::test
