#include "tests/support/fuzz.h"
#include "tests/support/scratch.h"
#include "tutti/io.h"
#include "tutti/ops.h"

namespace tutti::fuzz {

std::vector<std::string> seeds() {
  test::Scratch scratch;
  std::vector<std::string> list;
  io::save_safetensors(scratch / "a", {{"x", arange(6).reshape({2, 3})}, {"b", ones({3}, {boolean})}}, {{"k", "v"}});
  list.push_back(io::read_file(scratch / "a"));
  io::save_safetensors(scratch / "a", {});
  list.push_back(io::read_file(scratch / "a"));
  io::save_safetensors(scratch / "a", {{"", zeros({0, 2})}, {"h", ones({1, 1, 1}, {f16})}, {"z", ones({2}, {c64})}});
  list.push_back(io::read_file(scratch / "a"));
  return list;
}

void target(const std::string& bytes) {
  io::SafeTensors file(bytes, "fuzz");
  for (auto& name : file.names()) {
    if (!file.info(name).dtype) continue;
    Tensor t = file.map(name);
    if (t.numel() > 0) t.flatten()[t.numel() - 1].item<std::complex<double>>();
    if (t.dim() > 0 && t.size(0) > 0) file.read_rows(name, t.size(0) - 1, 1);
  }
}

}  // namespace tutti::fuzz
