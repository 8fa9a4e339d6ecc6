// What an optimizer keeps for a parameter, whatever has become of the parameter since: modules are converted to other
// dtypes, devices and memory formats in place, and states come from files.
#pragma once

#include "base/check.h"
#include "tensor/impl.h"
#include "tutti/ops.h"
#include "tutti/optim/optimizer.h"

namespace tutti::optim {

/// The real dtype in which updates of such parameters are computed.
inline DType computing_dtype(DType dtype) {
  return dtype == DType::f64 || dtype == DType::c128 ? DType::f64 : DType::f32;
}

/// Where a state of this parameter lives: its geometry (without gaps) and device, in the dtype of the computation.
inline Tensor empty_state(const Tensor& p) {
  Options options{.dtype = p.is_complex() ? p.dtype() : computing_dtype(p.dtype()), .device = p.device()};
  return is_dense(p.sizes(), p.strides()) ? empty_strided(p.sizes(), p.strides(), options) : empty(p.sizes(), options);
}

/// Whether the tensor's values can be a state of this parameter at all.
inline bool can_be_state(const Tensor& state, const Tensor& p) {
  return !state.is_sparse() && state.sizes() == p.sizes() && state.is_complex() == p.is_complex() &&
         (state.is_floating() || state.is_complex());
}

/// The state as the parameter is now.
inline void fit_state(Tensor& state, const Tensor& p) {
  DType wanted = p.is_complex() ? p.dtype() : computing_dtype(p.dtype());
  if (!state.defined() || (state.dtype() == wanted && state.device() == p.device())) return;
  state = empty_state(p).copy_(state);
}

}  // namespace tutti::optim
