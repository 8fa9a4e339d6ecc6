// Updates by sparse gradients: only the rows that have one.
#pragma once

#include "optim/slot.h"
#include "tutti/ops.h"
#include "tutti/optim/optimizer.h"

namespace tutti::optim {

/// The rows of a parameter, of its gradient and of its state that a sparse gradient names, each once.
struct Rows {
  Tensor parameter, gradient;
  TensorList state;
};

/// Calls f(slot, gradient) for slots with sparse gradients and takes those out of both lists.
template <class F>
void take_sparse(std::vector<Slot*>& slots, TensorList& gradients, F&& f) {
  size_t kept = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (gradients[i].is_sparse()) {
      f(*slots[i], gradients[i]);
      continue;
    }
    slots[kept] = slots[i];
    gradients[kept++] = gradients[i];
  }
  slots.resize(kept);
  gradients.resize(kept);
}

/// Takes the rows out, lets f change parameter and state, and puts them back. Of complex numbers f sees the two parts,
/// each a number of its own, as the rules over dense gradients do.
template <class F>
void change_rows(Slot& slot, const Tensor& gradient, F&& f) {
  Tensor g = gradient.coalesce();
  std::vector<Index> where;
  Tensor indices = g.indices();
  for (int64_t d = 0; d < g.sparse_dim(); ++d) where.emplace_back(indices[d]);
  bool complex = slot.parameter.is_complex();
  Rows rows{slot.parameter.detach().index(where), g.values(), {}};
  for (Tensor& s : slot.state) fit_state(s, slot.parameter);
  for (const Tensor& s : slot.state) rows.state.push_back(s.defined() ? s.index(where) : s);
  if (rows.gradient.numel() == 0) return;
  auto parts = [&](Tensor& x) {
    if (complex && x.defined()) x = view_as_real(x.contiguous());
  };
  auto whole = [&](const Tensor& x) { return complex ? view_as_complex(x.contiguous()) : x; };
  parts(rows.parameter);
  parts(rows.gradient);
  for (Tensor& s : rows.state) parts(s);
  f(rows);
  slot.parameter.index_put_(where, whole(rows.parameter));
  for (size_t k = 0; k < slot.state.size(); ++k)
    if (slot.state[k].defined()) slot.state[k].index_put_(where, whole(rows.state[k]));
}

}  // namespace tutti::optim
