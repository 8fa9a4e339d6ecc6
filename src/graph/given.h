// Who the arguments of a traced call were.
//
// Note [Arguments that are captured]
// While a function is traced, an argument cannot be told from a tensor that the function finds elsewhere (captures) if
// both are one, or share memory. The graph then says "argument" for both, which is right for this very argument and for
// no other. So a graph is at first for the tensors it was traced with. The first call that brings another tensor in
// an argument's place is traced too, which is that call's run: where both graphs are the same, what both call
// "argument" is no captured tensor, which would have been the same in both calls, and the argument may be anything from
// then on. (Of tensors that share memory, as rows of one large tensor do, that is known for other tensors of this
// memory only.) Where they differ, both are kept, each for its own tensors. No second trace is needed for a tensor that
// nobody has any more: the function does not have it either. (Ranks must not differ in what they trace, and cannot
// agree on what is still somewhere in use: where there are collectives, tensors are compared and that is all.)
//
// What a traced backward pass meets is as ambiguous (a hook may have captured an argument), and is treated alike.
#pragma once

#include "tensor/impl.h"

namespace tutti::graph {

struct Entry;
struct Graph;

/// Who has it locks it.
class Given {
 public:
  Given() = default;
  /// `lasting`: whether tensors that nobody has any more are still compared.
  Given(const TensorList& arguments, bool lasting);

  /// Nothing needs to be compared: arguments may be any.
  bool any() const { return items_.empty(); }
  /// Whether the graph serves these arguments.
  bool fits(const TensorList& arguments);
  /// A trace with these arguments gave the same graph.
  void also(const TensorList& arguments);
  /// The same of a graph that is like this one but for numbers.
  void also(const Given& other);
  /// Lets go of what nobody else has.
  void forget_lost();

 private:
  struct Item {
    size_t index = 0;  // of the argument
    const TensorImpl* object = nullptr;
    std::shared_ptr<const Ref<Storage>> memory = {};
    std::shared_ptr<const Tensor> leaf =
        {};  // the object, if it may be given other memory; others have a history to hold
    int64_t offset = 0;
    bool requires_grad = false;
    bool anyone = false, anywhere = false;  // it may be any tensor of that memory: that begins there, or elsewhere

    bool is(const Tensor& x) const;
    bool in_memory(const TensorImpl* x) const;
    bool lost() const;
    bool compare(const TensorImpl* other, const Storage* other_memory, int64_t other_offset);
  };
  std::vector<Item> items_;  // arguments of which it is not known that they may be any
  bool lasting_ = false;
};

/// Whether the graph may make fewer calls of other ranks than the function itself.
bool may_bucket(const Graph& graph);
/// Whether nodes are the same calls of the same values, and inputs come from the same places.
bool same_structure(const Graph& a, const Graph& b);
/// Whether two traces of one function are the same but for the tensors they were given. `a_traced`: a's graph, as it
/// was before backward passes asked for more.
bool same_trace(const Entry& a, const Graph& a_traced, const Entry& b);

}  // namespace tutti::graph
