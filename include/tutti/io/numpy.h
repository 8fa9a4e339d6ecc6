// numpy's files: .npy holds one array, .npz (a zip archive) several by name.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/io/safetensors.h"

namespace tutti::io {

/// Written atomically. numpy has no bf16: cast such a tensor first.
void save_npy(const std::string& path, const Tensor& tensor);
/// Either byte order, row- or column-major. uint16 and uint32 become i32 and i64; uint64 becomes i64 if its values fit.
Tensor load_npy(const std::string& path);
/// The array in the bytes of a .npy file; `name` stands for the path in errors.
Tensor parse_npy(std::string_view bytes, const std::string& name);

/// Written atomically; stored, not compressed.
void save_npz(const std::string& path, const Tensors& tensors);
Tensors load_npz(const std::string& path);

/// An .npz file whose arrays are read one by one, each checked by its checksum.
class Npz {
 public:
  explicit Npz(const std::string& path);
  Npz(std::string bytes, std::string name);

  /// Names of the arrays (without ".npy") that begin with `prefix`, in order.
  std::vector<std::string> keys(const std::string& prefix = {}) const;
  bool has(const std::string& key) const { return members_.contains(key); }
  Tensor read(const std::string& key) const;

 private:
  struct Member {
    uint64_t offset, stored, size;  // where its data is in the file, bytes there, bytes unpacked
    uint32_t checksum;
    bool packed;
  };
  void find_members();

  std::shared_ptr<Blob> blob_;
  std::map<std::string, Member> members_;
};

}  // namespace tutti::io
