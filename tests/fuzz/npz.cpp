#include "tests/support/fuzz.h"
#include "tutti/io.h"
#include "tutti/ops.h"

namespace tutti::fuzz {

std::vector<std::string> seeds() {
  return {io::read_file("tests/io/golden/arrays.npz"), io::read_file("tests/io/golden/packed.npz")};
}

void target(const std::string& bytes) {
  io::Npz file(bytes, "fuzz");
  for (auto& key : file.keys()) {
    try {
      file.read(key);
    } catch (const FileError&) {  // the other members may be whole
    }
  }
}

}  // namespace tutti::fuzz
