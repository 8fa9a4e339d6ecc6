// Reads numpy's .npz archives as make.py writes them: members stored without compression, arrays in row-major order.
// Nothing in a file is trusted: every offset and size is checked before it is used.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/tensor.h"

namespace tutti::test {

/// The array of a .npy file. Throws ValueError saying what is wrong with it.
Tensor read_npy(std::string_view bytes, const std::string& name);

class Npz {
 public:
  explicit Npz(const std::string& path);
  /// From bytes in memory; `name` stands for the path in errors.
  Npz(std::string bytes, std::string name);

  bool has(const std::string& key) const { return members_.contains(key); }
  Tensor read(const std::string& key) const;
  /// Names of the arrays (without ".npy") that begin with `prefix`, in order.
  std::vector<std::string> keys(const std::string& prefix = {}) const;

 private:
  struct Member {
    size_t offset, size;
  };
  void find_members();

  std::string name_, bytes_;
  std::map<std::string, Member> members_;
};

}  // namespace tutti::test
