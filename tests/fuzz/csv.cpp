#include "tests/support/fuzz.h"
#include "tutti/data.h"

namespace tutti::fuzz {

std::vector<std::string> seeds() {
  return {"a,b,c\n1,2,3\n4,5,6\n", "a,\"b \"\"c\"\"\"\r\n\"1\",-2e5\r\n\r\n3,inf\n", "x\n\"a\nb\"\n", "",
          "k,v\n,true\n"};
}

void target(const std::string& bytes) {
  data::Csv csv(bytes, "fuzz");
  for (auto& name : csv.names()) {
    csv.categories(name);
    for (DType dtype : {f32, i8, boolean}) {
      try {
        csv.numbers(name, dtype);
      } catch (const FileError&) {  // no numbers
      }
    }
  }
  try {
    csv.matrix();
    data::Csv(bytes, "fuzz", {.header = false, .delimiter = ';', .skip_blank_lines = false});
  } catch (const FileError&) {  // the same
  }
}

}  // namespace tutti::fuzz
