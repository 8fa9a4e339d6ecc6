// The compiler: runs a function once, writes down what it does, and from then on runs what was written down.
//
//   auto step = compile([&](const Tensor& x, const Tensor& y) { return cross_entropy(net(x), y); });
//   Tensor loss = step(x, y);   // the first call traces; later ones run the graph
//   loss.backward();            // so does the first backward
//
// Arguments and results are any tensor trees (tree.h). Results, gradients, mutations and hooks are those of eager, bit
// for bit in f32 and f64. A graph is kept with guards: shapes, dtypes, devices, strides, which tensors require
// gradients, share memory or have a .grad, the values of arguments that are no tensors, and all of the thread context.
// When none fits, the function is traced again; explain() says why.
//
// What the function uses beside its arguments is looked up when it is traced: tensors stay the same objects (their
// values may change, as parameters do), numbers stay the same numbers. What changes from call to call is an argument;
// or a tensor named by `watch`. The function must not read values (item(), printing, data()), and what it does to
// anything but tensors happens while tracing only. `tutti graph program` shows what a program compiles. See
// docs/compile.md.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/graph/ir.h"
#include "tutti/tree.h"

namespace tutti {

/// Something that a compiled function cannot do; the text names the line.
struct TraceError : Error {
  using Error::Error;
};

struct CompileOptions {
  std::string name = "function";  // in prints and errors
  /// "native" generates code for pointwise operators, "eager" runs all through operators; left empty: $TUTTI_BACKEND,
  /// else native where LLVM is there.
  std::string backend = {};
  /// The first dim of the first tensor argument with dims (and of all others whose first dim is as large) is a batch
  /// size that may change: sizes between two that were traced run the same graph with their own numbers, and are
  /// neither traced nor compiled. What depends on the batch size in other ways than simple ones is found out, and such
  /// sizes are traced; see docs/compile.md for what is simple.
  bool dynamic_batch = false;
  /// Results are eager's, bit for bit. Without it, generated code may be faster than that: products and sums become one
  /// operation (fma) that rounds once, f16 and bf16 are rounded when they are stored and not between operators, and
  /// products read operands as they lie in memory. Prints say so.
  bool exact = true;
  int64_t limit = 64;  // graphs; one more is a ValueError with the reasons for the last ones
  /// Tensors that the function finds by other ways than its arguments: another object in a place traces again.
  std::function<TensorList()> watch = {};
};

struct CompileStats {
  int64_t forward_graphs = 0, backward_graphs = 0;
  int64_t recompilations = 0;  // forward graphs after the first, but for other batch sizes of dynamic_batch
  int64_t fitted = 0;          // batch sizes that run a graph which was traced for others
  int64_t runs = 0;            // of graphs, forward
  int64_t traces = 0;          // calls that ran the function itself
  int64_t fallbacks = 0;       // backward passes that ran the function again (see docs/compile.md)
  int64_t saved_bytes = 0;     // that calls keep for their backward graphs, beside inputs
  int64_t spared_bytes = 0;    // that they would keep too, were nothing computed again
};

/// What is shown of a compiled function beside its graphs, with their fusion groups and plans of memory.
struct PrintOptions {
  bool code = true;       // what was generated for groups, in LLVM's language
  bool assembly = false;  // that in the machine's instead
};

namespace detail {

class CompiledFunction;

/// One call, with types erased.
struct Invocation {
  TensorList tensors = {};                     // of the arguments
  std::string key = {};                        // all else of the arguments
  std::shared_ptr<const void> arguments = {};  // kept with the key, in which objects are known by their addresses
  /// Runs the function on those tensors in the places of the arguments' own.
  std::function<TensorList(const TensorList&)> body = {};
  std::shared_ptr<const void> result = {};       // what body returned last, without its tensors
  std::shared_ptr<const std::string> rest = {};  // that as a key
};

std::shared_ptr<CompiledFunction> make_compiled(CompileOptions options);
/// The tensors of the result; `call.result` is the rest of it.
TensorList run_compiled(CompiledFunction& function, Invocation& call);
CompileStats stats_of(const CompiledFunction& function);
std::vector<std::shared_ptr<const graph::Graph>> graphs_of(CompiledFunction& function);
std::string print(CompiledFunction& function, const PrintOptions& options);
std::string html(CompiledFunction& function, const PrintOptions& options);
std::string explain(const CompiledFunction& function);

void append_key(std::string& key, const void* bytes, size_t count);

template <class T>
inline constexpr bool is_text_view =
    std::is_trivially_copyable_v<T> && std::is_convertible_v<const T&, std::string_view>;
template <class T>
inline constexpr bool is_view = std::same_as<T, std::string_view>;  // text in quotes stays where it is
template <class T, size_t n>
inline constexpr bool is_view<std::span<T, n>> = true;

/// Everything of a tree that is no tensor.
template <class T>
void write_key(std::string& key, const T& value) {
  if constexpr (requires { value.is_training(); }) {
    bool training = value.is_training();
    append_key(key, &training, sizeof training);
  }
  if constexpr (tree::IsTensor<T>) {
    key += 't';
  } else if constexpr (tree::Composite<T>) {
    key += '(';
    if constexpr (requires { value.index(); }) key += std::to_string(value.index());
    tree::for_each_child(value, [&](const tree::Key& name, auto& child) {
      if (name.key) key += *name.key;
      write_key(key, child);
    });
    key += ')';
  } else if constexpr (is_text_view<T>) {
    if constexpr (std::is_pointer_v<T>)
      if (!value) return append_key(key, nullptr, 0);
    std::string_view text = value;
    append_key(key, text.data(), text.size());
  } else if constexpr (std::is_trivially_copyable_v<T>) {
    append_key(key, &value, sizeof value);
  } else if constexpr (requires { value.get(); }) {
    const void* pointer = value.get();
    append_key(key, &pointer, sizeof pointer);
  } else if constexpr (requires {
                         value.data();
                         value.size();
                       }) {
    append_key(key, value.data(), value.size() * sizeof(*value.data()));
  } else if constexpr (requires { value.begin(); }) {
    for (bool b : value) key += b ? '1' : '0';
  } else {
    static_assert(tree::plain_leaf<T>, "an argument of a compiled function is a tensor tree: see tree.h");
  }
}

}  // namespace detail

/// What compile() returns: called like the function itself. Copies share their graphs.
template <class F>
class Compiled {
 public:
  Compiled(F function, CompileOptions options)
      : function_(std::make_shared<F>(std::move(function))), state_(detail::make_compiled(std::move(options))) {}

  template <class... Args>
  auto operator()(const Args&... args) const {
    static_assert(!(detail::is_view<std::decay_t<const Args>> || ...),
                  "a compiled function keeps its arguments: give it a std::string or std::vector, not a view of one");
    using Arguments = std::tuple<std::decay_t<const Args>...>;
    using Returned = decltype(std::apply(*function_, std::declval<Arguments&>()));
    using Result = std::conditional_t<std::is_void_v<Returned>, std::tuple<>, std::remove_cvref_t<Returned>>;
    auto arguments = std::make_shared<Arguments>(args...);
    detail::Invocation call;
    call.tensors = tree::tensors(*arguments);
    detail::write_key(call.key, *arguments);
    call.arguments = arguments;
    if constexpr (requires { function_->is_training(); }) detail::write_key(call.key, *function_);
    // What is kept of the call keeps its tensors in `call` alone, which can let go of them.
    tree::for_each_tensor(*arguments, [](Tensor& t) { t.reset(); });
    struct Kept {
      Result result;
      std::string rest;
    };
    auto kept = std::make_shared<Kept>();
    call.body = [function = function_, arguments, kept](const TensorList& tensors) {
      Arguments mine = *arguments;
      tree::assign_tensors(mine, tensors);
      if constexpr (std::is_void_v<Returned>)
        std::apply(*function, mine);
      else
        kept->result = std::apply(*function, mine);
      TensorList outputs = tree::tensors(kept->result);
      tree::for_each_tensor(kept->result, [](Tensor& t) { t.reset(); });
      kept->rest.clear();
      detail::write_key(kept->rest, kept->result);
      return outputs;
    };
    call.result = {kept, &kept->result};
    call.rest = {kept, &kept->rest};
    TensorList outputs = detail::run_compiled(*state_, call);
    if constexpr (!std::is_void_v<Returned>) {
      Result whole = *static_cast<const Result*>(call.result.get());
      tree::assign_tensors(whole, outputs);
      return whole;
    }
  }

  /// The function itself: step.function().eval() of a module.
  F& function() const { return *function_; }
  CompileStats stats() const { return detail::stats_of(*state_); }
  /// Forward and backward graphs, in the order in which they were made.
  std::vector<std::shared_ptr<const graph::Graph>> graphs() const { return detail::graphs_of(*state_); }
  /// All graphs as text, and the code that was generated for them.
  std::string print(PrintOptions options = {}) const { return detail::print(*state_, options); }
  /// The same as an HTML page.
  std::string html(PrintOptions options = {}) const { return detail::html(*state_, options); }
  /// How often it was compiled, and why each time.
  std::string explain() const { return detail::explain(*state_); }

 private:
  std::shared_ptr<F> function_;
  std::shared_ptr<detail::CompiledFunction> state_;
};

/// Compiles a callable or a module, of which it keeps a copy (that of a module shares its tensors; std::ref(net) keeps
/// the module itself).
template <class F>
Compiled<std::decay_t<F>> compile(F&& function, CompileOptions options = {}) {
  return Compiled<std::decay_t<F>>(std::forward<F>(function), std::move(options));
}

/// Runs backward passes from graphs of their own: all of a pass is captured the first time, whatever eager operators,
/// compiled functions, hooks and accumulations it is made of, and runs as one graph when a pass of the same form comes
/// again. Hooks and custom functions, which may be others each time, are called each time.
///
///   CompiledBackward backward;
///   for (...) { loss = step(x, y); backward(loss); optimizer.step(); }
class CompiledBackward {
 public:
  explicit CompiledBackward(CompileOptions options = {});
  /// As loss.backward(); the graph of nodes is freed.
  void operator()(const Tensor& root, const Tensor& gradient = {}) const;
  int64_t graph_count() const;
  std::vector<std::shared_ptr<const graph::Graph>> graphs() const;
  CompileStats stats() const;
  /// As those of Compiled.
  std::string print(PrintOptions options = {}) const;
  std::string html(PrintOptions options = {}) const;
  std::string explain() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace tutti
