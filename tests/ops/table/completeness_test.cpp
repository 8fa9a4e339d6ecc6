// Every operator that the headers declare has a row in the table, and every golden belongs to a row.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <vector>

#include "tests/support/table.h"

namespace tutti::test {
namespace {

// What has no row, and why.
const std::map<std::string, std::string> covered_elsewhere = {
    {"tensor", "makes a tensor from numbers: tests/tensor"},
    {"tensor_of_number", "under tensor"},
    {"tensor_of_values", "under tensor"},
    {"from_blob", "makes a tensor from memory: tests/tensor"},
    {"view_on", "needs a second device: tests/ops/shape_test.cpp"},
    {"empty", "its values are undefined"},
    {"empty_strided", "its values are undefined"},
    {"empty_like", "its values are undefined"},
    {"broadcast_shapes", "takes shapes; under broadcast_tensors and every binary row"},
    {"equal", "gives a bool: tests/ops"},
    {"allclose", "gives a bool: tests/ops"},
    {"max_pool1d_with_indices", "beside max_pool1d"},
    {"max_pool2d_with_indices", "beside max_pool2d"},
    {"max_pool3d_with_indices", "beside max_pool3d"},
    {"adaptive_max_pool1d_with_indices", "beside adaptive_max_pool1d"},
    {"adaptive_max_pool2d_with_indices", "beside adaptive_max_pool2d"},
    {"adaptive_max_pool3d_with_indices", "beside adaptive_max_pool3d"},
    {"unique", "gives several results: tests/ops/forms_test.cpp"},
    {"same_pads", "takes shapes: tests/ops/conv_test.cpp"},
};

// Rows that call several overloads of their operator: how many. All others have a row each.
const std::map<std::string, int> overloads_in_rows = {
    {"arange", 2},     // to a number; from, to and by numbers
    {"tensordot", 2},  // a number of dims; lists of them
};

// The functions that a header declares and how many overloads of each. Those that take one option instead of a list of
// them are templates that build the list.
std::map<std::string, int> overloads_in(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path << " cannot be read; the tests run in the source directory";
  std::map<std::string, int> names;
  bool short_form = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("  requires ")) continue;
    if (line.starts_with("template ")) {
      short_form = line.find("OneOption") != std::string::npos;
      continue;
    }
    if (line.starts_with("inline ")) line.erase(0, 7);
    for (const char* result : {"Tensor ", "Tensor& ", "TensorList ", "ValuesIndices ", "ValuesIndices& ", "Shape ",
                               "bool ", "RnnResult ", "LstmResult ", "Unique ", "BatchStatistics "}) {
      size_t start = std::string(result).size(), end = line.find('(');
      if (short_form || !line.starts_with(result) || end == std::string::npos) continue;
      std::string name = line.substr(start, end - start);
      if (name.starts_with("operator") ||
          name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789") == std::string::npos)
        ++names[name];
    }
    short_form = false;
  }
  return names;
}

// Functions of tensors that a header declares with a result that overloads_in() does not know.
std::vector<std::string> unread_in(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  auto names = overloads_in(path);
  for (std::string line; std::getline(file, line);) {
    size_t end = line.find("(const Tensor"), start = line.rfind(' ', end);
    if (end == std::string::npos || start == std::string::npos || line[0] == ' ' || line[0] == '/') continue;
    if (!names.contains(line.substr(start + 1, end - start - 1))) lines.push_back(line);
  }
  return lines;
}

// The operator of a form in place or into outputs; of others the name itself.
std::string operator_of(std::string name, const std::map<std::string, int>& names) {
  for (std::string ending : {"_out", "_"})
    if (name.ends_with(ending) && names.contains(name.substr(0, name.size() - ending.size())))
      name.resize(name.size() - ending.size());
  return name;
}

std::set<std::string> declared_in(const std::string& path) {
  std::set<std::string> operators;
  auto names = overloads_in(path);
  for (auto& [name, count] : names)
    if (!name.starts_with("operator")) operators.insert(operator_of(name, names));
  return operators;
}

std::vector<std::string> headers() {
  std::vector<std::string> list = {"include/tutti/pointwise/functions.h", "include/tutti/ops.h",
                                   "include/tutti/random.h"};
  for (auto& file : std::filesystem::directory_iterator("include/tutti/ops")) list.push_back(file.path());
  return list;
}

std::map<std::string, int> all_overloads() {
  std::map<std::string, int> all;
  for (const std::string& header : headers())
    for (auto& [name, count] : overloads_in(header)) all[name] += count;
  return all;
}

TEST(OperatorTable, HasEveryOperator) {
  std::set<std::string> rows;
  for (const Row& r : all_rows()) rows.insert(r.operator_name());
  size_t found = 0;
  for (const std::string& header : headers()) {
    for (const std::string& line : unread_in(header))
      ADD_FAILURE() << header << " declares\n  " << line
                    << "\nwhose result this test does not know: add it to overloads_in()";
    for (const std::string& name : declared_in(header)) {
      ++found;
      EXPECT_TRUE(rows.contains(name) || covered_elsewhere.contains(name))
          << name << " (" << header << ") has no row in tests/ops/table: add one";
      EXPECT_FALSE(rows.contains(name) && covered_elsewhere.contains(name))
          << name << " has a row: take it off the list";
    }
  }
  EXPECT_GT(found, 200u) << "the headers are written in a way that this test cannot read";
}

TEST(OperatorTable, HasEveryOverload) {
  std::map<std::string, int> rows, declared = all_overloads();
  for (const Row& r : all_rows()) ++rows[r.operator_name()];
  for (auto& [name, count] : declared) {
    if (name.starts_with("operator") || covered_elsewhere.contains(name) || operator_of(name, declared) != name)
      continue;
    auto listed = overloads_in_rows.find(name);
    if (listed != overloads_in_rows.end())
      EXPECT_EQ(count, listed->second) << name << " has other overloads than the list of these says";
    else
      EXPECT_GE(rows[name], count) << name << " has more overloads than rows in tests/ops/table: add one for each";
  }
  EXPECT_EQ(declared["max"], 4);
  EXPECT_EQ(declared["zeros"], 1) << "short forms are counted";
}

// Forms of operators that are not pointwise (whose rows try them) and operators of C++ are named by a test.
TEST(OperatorTable, HasATestForEveryForm) {
  std::string text;
  for (const char* path : {"tests/ops/out_test.cpp", "tests/ops/forms_test.cpp", "tests/ops/alias_test.cpp",
                           "tests/ops/index_test.cpp", "tests/ops/errors_test.cpp"}) {
    std::ifstream file(path);
    EXPECT_TRUE(file.good()) << path;
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  // A call of that name, not of one that ends so.
  auto count_of = [&](const std::string& name) {
    int found = 0;
    for (size_t at = 0; (at = text.find(name + "(", at)) != std::string::npos; ++at)
      found += at == 0 || (!std::isalnum(text[at - 1]) && text[at - 1] != '_');
    return found;
  };
  auto declared = overloads_in("include/tutti/ops.h");
  int forms = 0, symbols = 0;
  for (auto& [name, count] : declared) {
    if (name.starts_with("operator")) {
      EXPECT_GE(count_of(name), count) << name << " has fewer tests than overloads";
      ++symbols;
    } else if (operator_of(name, declared) != name) {
      EXPECT_GT(count_of(name), 0) << name << " is in no test of forms";
      ++forms;
    }
  }
  EXPECT_GT(forms, 55);
  EXPECT_GT(symbols, 15);
}

TEST(OperatorTable, HasNoRowTwice) {
  std::set<std::string> names;
  for (const Row& r : all_rows()) EXPECT_TRUE(names.insert(r.name).second) << r.name;
}

TEST(OperatorTable, HasARowForEveryGolden) {
  std::set<std::string> names;
  for (const Row& r : all_rows()) names.insert(r.name);
  EXPECT_GE(row_goldens().size(), 10u);
  for (const std::string& name : row_goldens())
    for (const std::string& key : Npz("tests/golden/" + name + ".npz").keys())
      EXPECT_TRUE(names.contains(key.substr(0, key.find('/'))))
          << key << " in " << name << ".npz is compared with nothing";
}

// What a test writes in quotes, without dots at the ends and without what follows a slash; and which families it takes
// as a whole, by keys("family.").
struct Quoted {
  std::set<std::string> words, families;
  explicit Quoted(const std::vector<const char*>& paths) {
    for (const char* path : paths) {
      std::ifstream file(path);
      EXPECT_TRUE(file.good()) << path << " cannot be read";
      for (std::string line; std::getline(file, line);) read(line);
    }
  }
  // Whether a name is one of the words, or several joined by dots. Numbers may come from anywhere.
  bool names(const std::string& key) const {
    for (const std::string& family : families)
      if (key.starts_with(family)) return true;
    if (words.contains(key) || key.find_first_not_of("0123456789") == std::string::npos) return true;
    for (size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
      std::string head = key.substr(0, dot);
      if ((words.contains(head) || head.find_first_not_of("0123456789") == std::string::npos) &&
          names(key.substr(dot + 1)))
        return true;
    }
    return false;
  }

 private:
  void read(const std::string& line) {
    for (size_t begin = line.find('"'); begin != std::string::npos;) {
      size_t end = line.find('"', begin + 1);
      if (end == std::string::npos) return;
      std::string word = line.substr(begin + 1, end - begin - 1);
      if (line.substr(0, begin).ends_with("keys(")) families.insert(word);
      word.resize(std::min(word.size(), word.find('/')));
      while (word.ends_with('.')) word.pop_back();
      while (word.starts_with('.')) word.erase(0, 1);
      words.insert(word);
      begin = line.find('"', end + 1);
    }
  }
};

// A golden that was added and is not read would pass for a test.
TEST(Goldens, AreNamedByTheirTests) {
  struct Golden {
    const char* name;
    std::vector<const char*> tests;
  };
  std::vector<std::string> read;
  for (const Golden& golden : {Golden{"layers", {"tests/nn/layers_test.cpp"}},
                               {"layers_sequences", {"tests/nn/sequences_test.cpp"}},
                               {"curves", {"tests/nn/curves_test.cpp"}},
                               {"optim",
                                {"tests/optim/optimizer_test.cpp", "tests/optim/schedule_test.cpp",
                                 "tests/optim/gradients_test.cpp", "tests/optim/sparse_test.cpp"}}}) {
    read.emplace_back(golden.name);
    Quoted quoted(golden.tests);
    std::set<std::string> cases;
    for (const std::string& key : Npz("tests/golden/" + std::string(golden.name) + ".npz").keys())
      cases.insert(key.substr(0, key.find('/')));
    EXPECT_GT(cases.size(), 4u) << golden.name;
    for (const std::string& key : cases)
      EXPECT_TRUE(quoted.names(key)) << key << " in " << golden.name << ".npz is compared with nothing";
    EXPECT_FALSE(quoted.names("no such case"));
  }
  EXPECT_EQ(read, other_goldens);
}

}  // namespace
}  // namespace tutti::test
