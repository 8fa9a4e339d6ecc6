#include "tests/support/fuzz.h"
#include "tests/support/scratch.h"
#include "tutti/io.h"
#include "tutti/ops.h"

namespace tutti::fuzz {

std::vector<std::string> seeds() {
  test::Scratch scratch;
  std::vector<std::string> list{io::read_file("tests/io/golden/rows.npy")};
  for (Tensor t : {tensor(1.5), zeros({0, 3}), ones({2, 3}, {c64}), ones({5}, {boolean}), ones({1, 1, 2}, {i16})}) {
    io::save_npy(scratch / "a", t);
    list.push_back(io::read_file(scratch / "a"));
  }
  return list;
}

void target(const std::string& bytes) {
  Tensor t = io::parse_npy(bytes, "fuzz");
  if (t.numel() > 0) t.flatten()[t.numel() - 1].item<std::complex<double>>();
}

}  // namespace tutti::fuzz
