// Graphs for batch sizes that were never traced.
//
// Note [Symbolic batch]
// A function that was traced for two batch sizes has two graphs. If they are the same but for numbers (sizes of a view,
// the length of an arange, a divisor), and each of those follows from the batch size in one of a few simple ways, then
// a size between the two has that same graph, with its own numbers: no run of the function is needed for it, and no
// code, since generated loops take shapes as operands. Types of values are never guessed: operators' own infer gives
// them, and must give what was seen for both sizes that were traced.
//
// Sizes beyond those that were traced are traced. The host code of a function may look at the batch size and decide
// (`if (n == 1)`, `min(n, 32)`, and so do operators themselves); what is the same on both sides of a size is taken to
// be so there, and what is not leaves the two without a common form.
#pragma once

#include "graph/function.h"

namespace tutti::graph {

/// How the numbers of a graph depend on the batch size.
class Form {
 public:
  /// From two graphs of one function. Throws Mismatch.
  Form(const Graph& a, int64_t batch_a, const Graph& b, int64_t batch_b);

  struct Mismatch {
    std::string why;
  };
  using GiveType = std::function<Type(const Input&)>;
  /// The graph for another batch size; `given` says what arguments and saved values are. Throws Mismatch where an
  /// operator does not take its numbers.
  Graph at(int64_t batch, const GiveType& given) const;
  /// How many numbers depend on the batch size.
  size_t symbols() const;

  /// slope · n + plus; or, of real numbers, one of the kinds below, where s is `scale`.
  struct Number {
    enum Kind : uint8_t {
      affine,
      times,      // s · n
      over,       // s / n
      inverse,    // 1 / (s · n)
      unbiasing,  // s · n / (s · n - 1)
      unbiased,   // plus / (s · n - 1)
    } kind = affine;
    int64_t slope = 0, plus = 0;
    double scale = 0;
    bool real = false, constant = false;
  };

 private:
  const Graph graph_;
  std::vector<Number> numbers_;  // in the order in which they are met
};

/// The entry for `call`, whose batch size lies between those of two that were traced; null, and `why`, if these have no
/// common form.
std::shared_ptr<Entry> fit_entry(Entry& low, Entry& high, const tutti::detail::Invocation& call, int64_t batch,
                                 const MakeOptions& options, std::string& why);
/// Whether the two are one function of the batch size; else `why` not. `backwards`: and those of their
/// backward graphs that both have are too.
bool have_one_form(Entry& a, Entry& b, std::string& why, bool backwards = false);

}  // namespace tutti::graph
