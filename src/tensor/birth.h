// Where the next tensor of a given geometry is to lie. See Note [Gradients born in place] in autograd/homes.h.
#pragma once

#include <span>

#include "tutti/tensor.h"

namespace tutti {

struct Birthplace {
  Tensor home;
  size_t edge = 0;  // of the node, by which what is born here is to leave
  bool used = false;
};

/// While it lives, the first tensor that this thread makes with the sizes, strides, dtype and device of a place's home
/// lies in that memory.
class BirthGuard {
 public:
  explicit BirthGuard(std::span<Birthplace> places);
  ~BirthGuard();
  BirthGuard(const BirthGuard&) = delete;
  BirthGuard& operator=(const BirthGuard&) = delete;

 private:
  friend bool is_born(TensorImpl& t);
  std::span<Birthplace> places_;
  BirthGuard* outer_;
};

}  // namespace tutti
