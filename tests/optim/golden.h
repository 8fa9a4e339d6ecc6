// What PyTorch's optimizers and schedules do (tests/golden/optim.py).
#pragma once

#include "tests/support/npz.h"

namespace tutti::test {

inline const Npz& golden() {
  static const Npz file("tests/golden/optim.npz");
  return file;
}

}  // namespace tutti::test
