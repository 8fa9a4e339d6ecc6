// The error of a program whose ranks disagree: rank 1 sums a tensor of another shape. Every rank throws it.
#include <cstdio>

#include "flags.h"
#include "tutti/tutti.h"

using namespace tutti;

int main(int argc, char** argv) {
  flags::Options("mismatch", "Prints the error of ranks that disagree: one passes a tensor of another shape.")
      .parse(argc, argv);
  launch(4, [] {
    try {
      Tensor x = rank() == 1 ? ones({4}) : ones({3});
      all_reduce(x);
    } catch (const MismatchError& e) {
      if (rank() == 0) std::printf("%s\n", e.what());
    }
  });
}
