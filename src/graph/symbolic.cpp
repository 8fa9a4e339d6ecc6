#include "graph/symbolic.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <variant>

#include "base/check.h"
#include "graph/passes/passes.h"
#include "tensor/impl.h"

namespace tutti::graph {
namespace {

using Mismatch = Form::Mismatch;
using Symbol = Form::Number;

template <class... Args>
[[noreturn]] void differ(fmt::format_string<Args...> text, Args&&... args) {
  throw Mismatch{fmt::format(text, std::forward<Args>(args)...)};
}

std::string name_of(const Graph& graph, size_t k) {
  const Node& n = graph.nodes[k];
  return fmt::format("node {} ({})", k, n.op ? n.op->name : name(n.kind));
}

// ---- Numbers

// Multiples of the batch size, of its neighbours, or it plus something: what products of shapes, views and ranges give.
// Two points lie on some line always, so others are not believed.
std::optional<Symbol> fit_integer(int64_t a, int64_t na, int64_t b, int64_t nb) {
  if (a == b) return Symbol{.plus = a, .constant = true};
  if ((b - a) % (nb - na)) return {};
  int64_t slope = (b - a) / (nb - na), plus = a - slope * na;
  bool simple = plus == 0 || slope == 1 || plus == slope || plus == -slope;
  // A square, or a product of neighbours, is zero at 0 or 1 just as a multiple is.
  bool may_be_square = (a == 0 || b == 0) && slope != 1 && slope != -1;
  if (!simple || may_be_square) return {};
  return Symbol{.slope = slope, .plus = plus};
}

double value_of(const Symbol& s, double n) {
  switch (s.kind) {
    case Symbol::times:
      return s.scale * n;
    case Symbol::over:
      return s.scale / n;
    case Symbol::inverse:
      return 1 / (s.scale * n);
    case Symbol::unbiasing:
      return s.scale * n / (s.scale * n - 1);
    case Symbol::unbiased:
      return static_cast<double>(s.plus) / (s.scale * n - 1);
    default:
      return static_cast<double>(s.slope) * n + static_cast<double>(s.plus);
  }
}

std::optional<Symbol> fit_real(double a, int64_t na, double b, int64_t nb) {
  if (std::bit_cast<int64_t>(a) == std::bit_cast<int64_t>(b)) return Symbol{.scale = a, .real = true, .constant = true};
  constexpr double kWhole = 1LL << 52;
  if (std::rint(a) == a && std::rint(b) == b && std::abs(a) < kWhole && std::abs(b) < kWhole)
    if (auto s = fit_integer(static_cast<int64_t>(a), na, static_cast<int64_t>(b), nb)) {
      s->real = true;
      return s;
    }
  auto x = static_cast<double>(na), y = static_cast<double>(nb);
  for (const Symbol& s :
       {Symbol{.kind = Symbol::over, .scale = a * x, .real = true},
        Symbol{.kind = Symbol::over, .scale = std::rint(a * x), .real = true},
        Symbol{.kind = Symbol::inverse, .scale = std::rint(1 / (a * x)), .real = true},
        Symbol{.kind = Symbol::times, .scale = a / x, .real = true},
        Symbol{.kind = Symbol::unbiasing, .scale = std::rint(a / (a - 1) / x), .real = true},
        Symbol{.kind = Symbol::unbiased, .plus = 1, .scale = std::rint((1 / a + 1) / x), .real = true},
        Symbol{.kind = Symbol::unbiased, .plus = 2, .scale = std::rint((2 / a + 1) / x), .real = true}})
    if (value_of(s, x) == a && value_of(s, y) == b) return s;
  return {};
}

// ---- Walking a graph

constexpr size_t kInputs = static_cast<size_t>(-1);

// All numbers of a graph that may depend on the batch size, in order; `done` is called after those of inputs and of
// each node.
class Walk {
 public:
  explicit Walk(NumberVisitor& visitor) : visitor_(visitor) {}

  template <class F>
  void run(Graph& graph, F&& done) {
    for (Input& in : graph.inputs) {
      if (in.origin == Origin::constant) visit_constant(in);
      // What cannot be asked for when the graph is fitted.
      if (in.origin == Origin::gradient) visit_type(graph.values[at(in.value)].type);
    }
    done(kInputs);
    for (size_t k = 0; k < graph.nodes.size(); ++k) {
      Node& n = graph.nodes[k];
      if (n.attributes.data && n.attributes.type->visit)
        n.attributes.type->visit(const_cast<void*>(n.attributes.data), visitor_);
      if (n.kind == Kind::resize) visitor_.visit(n.number);
      if (n.kind == Kind::empty) visit_type(graph.values[at(n.outputs[0])].type);
      if (n.kind == Kind::alias) {
        Type& t = graph.values[at(n.outputs[0])].type;
        int64_t begin = graph.type(n.inputs[0]).offset;
        t.offset -= begin;  // arguments begin where they like
        visit_type(t);
        t.offset += begin;
      }
      done(k);
    }
  }

  void visit_type(Type& t) {
    for (int64_t& s : t.sizes) visitor_.visit(s);
    for (int64_t& s : t.strides) visitor_.visit(s);
    visitor_.visit(t.offset);
  }

 private:
  void visit_constant(Input& in) {
    if (!in.tensor.is_number()) return;
    std::byte* data = impl(in.tensor)->data();
    if (in.tensor.dtype() == DType::i64)
      visitor_.visit(*reinterpret_cast<int64_t*>(data));
    else if (in.tensor.dtype() == DType::f64)
      visitor_.visit(*reinterpret_cast<double*>(data));
  }

  NumberVisitor& visitor_;
};

struct Collector final : NumberVisitor {
  std::vector<std::variant<int64_t, double>> numbers;
  std::vector<size_t> ends;  // how many numbers there were after the inputs and after each node

  explicit Collector(Graph& graph) {
    Walk(*this).run(graph, [&](size_t) { ends.push_back(numbers.size()); });
  }
  void visit(int64_t& n) override { numbers.emplace_back(n); }
  void visit(double& n) override { numbers.emplace_back(n); }
};

struct Setter final : NumberVisitor {
  const std::vector<Symbol>& numbers;
  int64_t batch;
  size_t next = 0;

  Setter(const std::vector<Symbol>& list, int64_t n) : numbers(list), batch(n) {}
  void visit(int64_t& n) override {
    const Symbol& s = numbers[next++];
    if (!s.constant) n = s.slope * batch + s.plus;
  }
  void visit(double& n) override {
    const Symbol& s = numbers[next++];
    if (!s.constant) n = value_of(s, static_cast<double>(batch));
  }
};

// A graph whose attributes and numbers are its own.
Graph owning_copy(const Graph& graph) {
  Graph copy = graph;
  for (Node& n : copy.nodes)
    if (n.attributes.data) n.owner = copy_attributes(n.attributes);
  for (Input& in : copy.inputs)
    if (in.origin == Origin::constant && in.tensor.is_number()) {
      NoGrad no_grad;
      ModeGuard off(0, kTraceMode);
      in.tensor = in.tensor.clone();
      impl(in.tensor)->number = true;
    }
  return copy;
}

// ---- Comparing

bool same_traced_input(const Input& a, const Input& b) {
  return a.value == b.value && a.origin == b.origin && a.index == b.index && a.fresh == b.fresh;
}
bool same_traced_inputs(const std::vector<Input>& a, const std::vector<Input>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_traced_input);
}
bool same_guards(const std::vector<std::pair<Input, bool>>& a, const std::vector<std::pair<Input, bool>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](auto& x, auto& y) { return same_traced_input(x.first, y.first) && x.second == y.second; });
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  const TensorImpl *x = impl(a), *y = impl(b);
  if (x->numel == 0) return true;
  if (!x->storage || !x->device.is_cpu()) return false;
  auto bytes = static_cast<size_t>(bytes_of(type_of(a)));
  return std::memcmp(x->data(), y->data(), bytes) == 0;
}

void compare_inputs(const Graph& a, const Graph& b) {
  if (!same_traced_inputs(a.inputs, b.inputs)) differ("other tensors are used");
  for (size_t i = 0; i < a.inputs.size(); ++i) {
    const Tensor &x = a.inputs[i].tensor, &y = b.inputs[i].tensor;
    if (a.inputs[i].origin == Origin::captured && !x.is_same(y)) differ("another tensor is captured");
    if (a.inputs[i].origin != Origin::constant) continue;
    bool fitted = x.is_number() && (x.dtype() == DType::i64 || x.dtype() == DType::f64);
    if (!(type_of(x) == type_of(y)) || (!fitted && !same_bytes(x, y))) differ("it makes a tensor of other numbers");
  }
}

void compare_nodes(const Graph& a, const Graph& b) {
  if (a.nodes.size() != b.nodes.size() || a.values.size() != b.values.size() || a.outputs != b.outputs)
    differ("other operators are called ({} nodes and {})", a.nodes.size(), b.nodes.size());
  for (size_t k = 0; k < a.nodes.size(); ++k) {
    const Node &x = a.nodes[k], &y = b.nodes[k];
    bool same = x.kind == y.kind && x.op == y.op && x.inputs == y.inputs && x.outputs == y.outputs &&
                x.writes == y.writes && x.keeps_version == y.keeps_version && x.absolute == y.absolute &&
                x.attributes.type == y.attributes.type && (x.kind == Kind::resize || x.number == y.number);
    if (!same) differ("{} and {} are different calls", name_of(a, k), name_of(b, k));
  }
  for (size_t v = 0; v < a.values.size(); ++v)
    if (a.values[v].memory != b.values[v].memory || a.values[v].producer != b.values[v].producer)
      differ("value %{} shares memory with others", v);
}

// What the form gives for a size that was traced must be what was traced.
void check_form(const Form& form, const Graph& graph, int64_t batch) {
  Graph made = form.at(batch, [&](const Input& in) { return graph.type(in.value); });
  for (size_t k = 0; k < graph.nodes.size(); ++k) {
    const Attributes &x = made.nodes[k].attributes, &y = graph.nodes[k].attributes;
    if (x.data && !x.type->equal(x.data, y.data))
      differ("{} has attributes that do not simply follow from the batch size: {} at {}", name_of(graph, k),
             y.type->print(y.data), batch);
    for (ValueId v : graph.nodes[k].outputs)
      if (!(made.type(v) == graph.type(v)))
        differ("the result of {} does not simply follow from the batch size", name_of(graph, k));
  }
}

// ---- Types

void infer_outputs(Graph& graph, size_t k) {
  if (k == kInputs || graph.nodes[k].kind != Kind::call || graph.nodes[k].op->dynamic_shape) return;
  const Node& n = graph.nodes[k];
  bool all_written = true;
  for (size_t i = 0; i < n.outputs.size(); ++i) all_written = all_written && n.is_written(i);
  if (all_written) return;
  auto specs = infer_types(graph, n);
  if (!specs) differ("{} does not take its inputs", name_of(graph, k));
  for (size_t i = 0; i < n.outputs.size(); ++i) {
    Type& t = graph.values[at(n.outputs[i])].type;
    if (n.is_written(i) || t.layout != Layout::strided) continue;
    const TensorSpec& s = (*specs)[i];
    t.sizes = s.sizes;
    t.strides = s.strided ? s.strides : contiguous_strides(s.sizes);
    t.offset = s.offset;
  }
}

}  // namespace

Form::Form(const Graph& a, int64_t batch_a, const Graph& b, int64_t batch_b) : graph_(owning_copy(a)) {
  compare_nodes(a, b);
  compare_inputs(a, b);
  Graph x = graph_, y = b;
  Collector of_a(x), of_b(y);
  if (of_a.ends != of_b.ends) differ("a list among attributes has another length");
  for (size_t i = 0; i < of_a.numbers.size(); ++i) {
    std::optional<Number> number;
    if (auto* integer = std::get_if<int64_t>(&of_a.numbers[i]))
      number = fit_integer(*integer, batch_a, std::get<int64_t>(of_b.numbers[i]), batch_b);
    else
      number = fit_real(std::get<double>(of_a.numbers[i]), batch_a, std::get<double>(of_b.numbers[i]), batch_b);
    if (!number) {
      auto k = static_cast<size_t>(std::upper_bound(of_a.ends.begin(), of_a.ends.end(), i) - of_a.ends.begin());
      auto text = [](auto& n) { return std::visit([](auto v) { return fmt::format("{}", v); }, n); };
      differ("{} is {} for {} and {} for {}, which does not simply follow",
             k ? "a number of " + name_of(a, k - 1) : "a number that is used", text(of_a.numbers[i]), batch_a,
             text(of_b.numbers[i]), batch_b);
    }
    numbers_.push_back(*number);
  }
  check_form(*this, a, batch_a);
  check_form(*this, b, batch_b);
}

size_t Form::symbols() const {
  return static_cast<size_t>(std::count_if(numbers_.begin(), numbers_.end(), [](auto& s) { return !s.constant; }));
}

Graph Form::at(int64_t batch, const GiveType& given) const {
  Graph graph = owning_copy(graph_);
  for (const Input& in : graph.inputs)
    if (in.origin == Origin::argument || in.origin == Origin::saved) graph.values[graph::at(in.value)].type = given(in);
  Setter setter(numbers_, batch);
  Walk(setter).run(graph, [&](size_t k) { infer_outputs(graph, k); });
  return graph;
}

namespace {

bool same_results(const Entry& a, const Entry& b) {
  auto same = [](const Result& x, const Result& y) {
    return x.kind == y.kind && x.index == y.index && same_traced_input(x.of, y.of) &&
           x.chain.size() == y.chain.size() && x.early == y.early && x.made == y.made && x.root == y.root &&
           x.aliases == y.aliases;
  };
  return a.rest == b.rest && std::equal(a.results.begin(), a.results.end(), b.results.begin(), b.results.end(), same);
}

void compare_entries(const Entry& a, const Entry& b) {
  if (!same_results(a, b)) differ("it returns something else");
  bool targets = std::equal(
      a.targets.begin(), a.targets.end(), b.targets.begin(), b.targets.end(),
      [](auto& x, auto& y) { return same_traced_input(x.input, y.input) && x.leaf == y.leaf && x.edges == y.edges; });
  bool facts =
      std::equal(a.captured_facts.begin(), a.captured_facts.end(), b.captured_facts.begin(), b.captured_facts.end(),
                 [](auto& x, auto& y) {
                   return x.tensor.is_same(y.tensor) && x.requires_grad == y.requires_grad && x.readable == y.readable;
                 });
  bool same = targets && facts && same_traced_inputs(a.mutated, b.mutated) &&
              same_traced_inputs(a.leaf_inputs, b.leaf_inputs) && same_guards(a.gradients, b.gradients) &&
              a.value_roots == b.value_roots && a.value_count == b.value_count && a.leaf_count == b.leaf_count &&
              a.pure == b.pure && a.live == b.live;
  if (!same) differ("gradients or effects go elsewhere");
}

// Gradients come as the results that they belong to are; where a result is rows without gaps, so are they.
Type gradient_type(const Entry& entry, const Input& in, const Type& seen) {
  ValueId root = kNone;
  auto index = static_cast<size_t>(in.index);
  if (index >= entry.value_roots) root = entry.mutated[index - entry.value_roots].value;
  auto traced = entry.traced();
  for (const Result& r : entry.results)
    if (r.root == in.index) root = traced->outputs[at(r.index)];
  if (root == kNone) differ("a gradient belongs to no result");
  Type t = seen;
  t.sizes = traced->type(root).sizes;
  if (is_contiguous(seen.sizes, seen.strides)) {
    t.strides = contiguous_strides(t.sizes);
    return t;
  }
  // Else they are one number, that of a sum, expanded; dims of one row are left as they were by that.
  bool expanded = t.sizes.size() == seen.sizes.size();
  for (size_t i = 0; expanded && i < t.sizes.size(); ++i)
    expanded = seen.strides[i] == 0 || (t.sizes[i] == 1 && seen.sizes[i] == 1);
  if (!expanded) differ("a gradient is laid out in a way of its own");
  return t;
}

struct Pair {
  std::shared_ptr<Backward> a, b;
  std::unique_ptr<Form> form;
};

// Whether gradients come for the same results.
bool same_gradients(const Backward& a, const Backward& b) {
  auto indices = [](const Backward& of) {
    std::vector<int32_t> list;
    for (const Input& in : of.traced.inputs)
      if (in.origin == Origin::argument) list.push_back(in.index);
    std::sort(list.begin(), list.end());
    return list;
  };
  return indices(a) == indices(b);
}

// Every backward graph of one with that of the other. One that the other has not is no difference: no such pass has
// come there yet, nor need one ever.
std::vector<Pair> pair_backwards(const Entry& low, const Entry& high) {
  std::vector<Pair> pairs;
  for (const auto& a : low.backwards) {
    std::string why;
    Pair pair{.a = a, .b = {}, .form = {}};
    for (const auto& b : high.backwards) {
      try {
        if (!same_guards(a->gradients, b->gradients) || !same_gradients(*a, *b)) continue;
        pair.form = std::make_unique<Form>(a->traced, low.batch, b->traced, high.batch);
        pair.b = b;
        break;
      } catch (const Mismatch& e) {
        why = e.why;
      }
    }
    if (pair.form)
      pairs.push_back(std::move(pair));
    else if (!why.empty())
      differ("backward: {}", why);
  }
  return pairs;
}

void add_backward(Entry& entry, const Pair& pair, int64_t batch, const MakeOptions& options) {
  auto backward = std::make_shared<Backward>();
  auto forward = entry.traced();
  backward->traced = pair.form->at(batch, [&](const Input& in) {
    return in.origin == Origin::saved ? forward->type(in.index)
                                      : gradient_type(entry, in, pair.a->traced.type(in.value));
  });
  std::vector<const Type*> forms(entry.value_roots + entry.mutated.size());
  for (const Input& in : backward->traced.inputs)
    if (in.origin == Origin::argument) forms[at(in.index)] = &backward->traced.type(in.value);
  backward->key = gradient_key(forms);
  backward->gradients = pair.a->gradients;
  backward->given = pair.a->given;
  backward->given.also(pair.b->given);
  prepare_backward(*forward, *backward, options);
  keep_backward(entry, std::move(backward));
}

std::shared_ptr<Entry> entry_like(const Entry& like, const Form& form, const tutti::detail::Invocation& call,
                                  int64_t batch) {
  auto entry = std::make_shared<Entry>();
  entry->name = like.name;
  Graph traced = form.at(batch, [&](const Input& in) { return type_of(call.tensors[at(in.index)]); });
  entry->results = like.results;
  for (Result& r : entry->results)
    for (Node& link : r.chain) link = traced.nodes[at(traced.values[at(link.outputs[0])].producer)];
  entry->set_traced(std::move(traced));
  entry->at_first = entry->traced();
  entry->targets = like.targets;
  entry->mutated = like.mutated;
  entry->value_roots = like.value_roots;
  entry->leaf_inputs = like.leaf_inputs;
  entry->gradients = like.gradients;
  entry->captured_facts = like.captured_facts;
  entry->outside = like.outside;
  entry->lasting = like.lasting;
  entry->random = like.random;
  entry->pure = like.pure;
  entry->result = like.result;
  entry->rest = like.rest;
  entry->batch = batch;
  entry->value_count = like.value_count;
  entry->leaf_count = like.leaf_count;
  return entry;
}

}  // namespace

std::shared_ptr<Entry> fit_entry(Entry& low, Entry& high, const tutti::detail::Invocation& call, int64_t batch,
                                 const MakeOptions& options, std::string& why) {
  std::scoped_lock lock(low.mutex, high.mutex);
  try {
    compare_entries(low, high);
    auto entry = entry_like(low, Form(*low.traced(), low.batch, *high.traced(), high.batch), call, batch);
    for (const Pair& pair : pair_backwards(low, high)) add_backward(*entry, pair, batch, options);
    return entry;
  } catch (const Mismatch& e) {
    why = e.why;
    return nullptr;
  }
}

bool have_one_form(Entry& a, Entry& b, std::string& why, bool backwards) {
  std::scoped_lock lock(a.mutex, b.mutex);
  try {
    compare_entries(a, b);
    [[maybe_unused]] Form common(*a.traced(), a.batch, *b.traced(), b.batch);  // throws where there is none
    if (backwards) pair_backwards(a, b);
    return true;
  } catch (const Mismatch& e) {
    why = e.why;
    return false;
  }
}

}  // namespace tutti::graph
