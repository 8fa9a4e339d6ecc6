#include "tests/support/fuzz.h"
#include "tutti/io.h"
#include "tutti/ops.h"

namespace tutti::fuzz {

std::vector<std::string> seeds() {
  io::State state{{"number", 1},
                  {"double", 0.5},
                  {"infinite", 1 / 0.0},
                  {"flag", true},
                  {"text", "a \" ü \n"},
                  {"list", io::ValueList{1, "x", io::State{{"y", tensor({1, 2})}}}},
                  {"complex", ones({2}, {c128})},
                  {"none", Tensor()}};
  return {io::state_to_bytes(state), io::state_to_bytes({}), io::state_to_bytes({{"x", arange(4)}})};
}

void target(const std::string& bytes) {
  io::State state = io::state_from_bytes(bytes, "fuzz");
  io::state_to_bytes(state);  // what was read can be written
}

}  // namespace tutti::fuzz
