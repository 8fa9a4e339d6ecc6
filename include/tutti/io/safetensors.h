// safetensors: named tensors and some text in one file, readable by every framework. Reading maps the file: opening
// costs the header, and a tensor, or some rows of it, costs what is touched.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/tensor.h"

namespace tutti::io {

class Blob;
class Output;
using Tensors = std::map<std::string, Tensor>;
using Metadata = std::map<std::string, std::string>;

/// Written atomically. Views are written as the values they show; c128, which the format lacks, and sparse tensors are
/// refused. The bytes depend on nothing but the contents.
void save_safetensors(const std::string& path, const Tensors& tensors, const Metadata& metadata = {});
void write_safetensors(Output& out, const Tensors& tensors, const Metadata& metadata = {});
/// Copies of all tensors.
Tensors load_safetensors(const std::string& path);

class SafeTensors {
 public:
  struct Info {
    std::string stored;          // the dtype's name in the file
    std::optional<DType> dtype;  // empty for those that Tutti lacks (unsigned, 8-bit floats): they cannot be read
    Shape sizes;
    uint64_t offset, bytes;  // in the file
  };

  /// Reads and checks the header: names, sizes and places must fit the file exactly, without holes or overlaps.
  explicit SafeTensors(const std::string& path);
  /// From memory; `name` stands for the path in errors.
  SafeTensors(std::string bytes, std::string name);

  std::vector<std::string> names() const;
  bool has(const std::string& name) const { return infos_.contains(name); }
  const Info& info(const std::string& name) const;
  const Metadata& metadata() const { return metadata_; }

  /// A copy.
  Tensor read(const std::string& name) const;
  /// A copy of rows first ... first + count - 1 of the first dim; the rest of the file is not touched.
  Tensor read_rows(const std::string& name, int64_t first, int64_t count) const;
  /// The file's own bytes as a tensor, without a copy; it keeps the mapping alive. Writing to it changes no file,
  /// but what this object gives of that tensor later. While it lives the file may be replaced (write_atomically,
  /// rename) but must not be cut short in place.
  Tensor map(const std::string& name) const;

 private:
  void parse();

  std::shared_ptr<Blob> blob_;
  std::map<std::string, Info> infos_;
  Metadata metadata_;
};

}  // namespace tutti::io
