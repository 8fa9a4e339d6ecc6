#include <zlib.h>

#include "tests/support/fuzz.h"
#include "tests/support/scratch.h"
#include "tutti/data.h"
#include "tutti/io.h"

namespace tutti::fuzz {

std::vector<std::string> seeds() {
  test::Scratch scratch;
  std::vector<std::string> list;
  for (Tensor t : {ones({2, 3}, {u8}), zeros({0}, {f64}), ones({}, {i16}), ones({2, 1, 2}, {f32})}) {
    data::save_idx(scratch / "a", t);
    list.push_back(io::read_file(scratch / "a"));
    gzFile file = ::gzopen((scratch / "b").c_str(), "wb");
    ::gzwrite(file, list.back().data(), static_cast<unsigned>(list.back().size()));
    ::gzclose(file);
    list.push_back(io::read_file(scratch / "b"));
  }
  return list;
}

void target(const std::string& bytes) { data::parse_idx(bytes, "fuzz"); }

}  // namespace tutti::fuzz
