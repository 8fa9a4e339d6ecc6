#include "io/blob.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "io/descriptor.h"
#include "tutti/io/file.h"
#include "tutti/ops.h"

namespace tutti::io {

std::shared_ptr<Blob> Blob::map(const std::string& path, const char* operation) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  check<FileError>(file.get() >= 0, operation, "{} cannot be opened: {}", path, std::strerror(errno));
  struct stat status{};
  check<FileError>(::fstat(file.get(), &status) == 0, operation, "{}: {}", path, std::strerror(errno));
  check<FileError>(S_ISREG(status.st_mode), operation, "{} is not a file", path);
  std::shared_ptr<Blob> blob(new Blob);
  blob->name_ = path;
  blob->size_ = static_cast<size_t>(status.st_size);
  if (blob->size_ == 0) return blob;
  void* memory = ::mmap(nullptr, blob->size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
  check<FileError>(memory != MAP_FAILED, operation, "{} cannot be mapped: {}", path, std::strerror(errno));
  blob->data_ = static_cast<char*>(memory);
  blob->mapped_ = true;
  return blob;
}

std::shared_ptr<Blob> Blob::own(std::string bytes, std::string name) {
  std::shared_ptr<Blob> blob(new Blob);
  blob->name_ = std::move(name);
  blob->owned_ = std::move(bytes);
  blob->data_ = blob->owned_.data();
  blob->size_ = blob->owned_.size();
  return blob;
}

Blob::~Blob() {
  if (mapped_) ::munmap(data_, size_);
}

std::string read_file(const std::string& path) {
  auto blob = Blob::map(path, "read_file");
  return std::string(blob->bytes());
}

bool bytes_of(const Shape& sizes, size_t element, uint64_t& bytes) {
  if (sizes.size() > kMaxDims) return false;
  uint64_t product = element;
  bool empty = false;
  for (int64_t size : sizes) {
    if (size < 0) return false;
    if (size == 0) empty = true;
    if (size > 0 && __builtin_mul_overflow(product, static_cast<uint64_t>(size), &product)) return false;
    if (product > uint64_t{1} << 62) return false;
  }
  bytes = empty ? 0 : product;
  return true;
}

Tensor for_file(const Tensor& tensor, const char* operation, std::string_view name) {
  check<ValueError>(tensor.defined(), operation, "{} is an undefined tensor", name);
  check<ValueError>(!tensor.is_sparse(), operation, "{} is sparse ({}); save its indices and values, or to_dense()",
                    name, tensor);
  check<DeviceError>(!tensor.device().is_meta(), operation, "{} has no values ({})", name, tensor);
  return tensor.detach().to(Device()).contiguous();
}

}  // namespace tutti::io
