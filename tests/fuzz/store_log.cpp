// The file of a FileStore: whatever is in it, opening it works or says what is wrong.
#include "base/check.h"
#include "tests/support/fuzz.h"
#include "tests/support/scratch.h"
#include "tutti/comm/store.h"

namespace tutti::fuzz {
namespace {

const test::Scratch& scratch() {
  static test::Scratch directory;
  return directory;
}

}  // namespace

std::vector<std::string> seeds() {
  std::string path = scratch() / "seed";
  {
    FileStore store(path);
    store.multi_set({{"a", "1"}, {"b", "text"}});
    store.add("a", 5);
    store.append("b", "more");
    store.push("q", "item");
    store.pop("q");
    store.compare_and_set("c", "", "x");
    store.erase("c");
    store.clear("b");
  }
  std::ifstream file(path, std::ios::binary);
  std::string all{std::istreambuf_iterator<char>(file), {}};
  return {all, all.substr(0, 16), all.substr(0, 70)};
}

void target(const std::string& bytes) {
  std::string path = scratch() / "store";
  std::filesystem::remove(path);  // some file systems write a file to disk that is cut off and written again
  std::ofstream(path, std::ios::binary) << bytes;
  FileStore store(path, {.timeout = std::chrono::seconds(1)});
  auto count = store.count();
  TUTTI_ASSERT(static_cast<int64_t>(store.list().size()) == count);
  store.set("added", "x");  // what can be read can be written on
  TUTTI_ASSERT(FileStore(path).get("added") == "x");
}

}  // namespace tutti::fuzz
