#include "tutti/dlpack.h"

#include <memory>

#include "base/check.h"
#include "base/cores.h"
#include "tensor/impl.h"
#include "tutti/context.h"
#include "tutti/dlpack_types.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

struct Exported {
  DLManagedTensor managed;
  Tensor tensor;  // keeps the memory
  Shape sizes, strides;
};

DLDataType dl_dtype(DType dtype) {
  auto bits = static_cast<uint8_t>(8 * size_of(dtype));
  auto code = [&]() -> uint8_t {
    switch (dtype) {
      case DType::boolean:
        return kDLBool;
      case DType::u8:
        return kDLUInt;
      case DType::bf16:
        return kDLBfloat;
      default:
        break;
    }
    return is_complex(dtype) ? kDLComplex : is_floating(dtype) ? kDLFloat : kDLInt;
  }();
  return {code, bits, 1};
}

DType dtype_from(DLDataType type) {
  for (int i = 0; i < kDTypes; ++i) {
    auto dtype = static_cast<DType>(i);
    DLDataType known = dl_dtype(dtype);
    if (known.code == type.code && known.bits == type.bits && known.lanes == type.lanes) return dtype;
  }
  fail<DTypeError>("from_dlpack", "elements of DLPack type code {} with {} bits and {} lanes have no counterpart here",
                   type.code, type.bits, type.lanes);
}

Device device_from(DLDevice device) {
  if (device.device_type == kDLCPU) return context().device.is_cpu() ? context().device : Device();
  check<DeviceError>(device.device_type == kDLCUDA, "from_dlpack",
                     "memory of DLPack device type {} cannot be used here; copy it to the CPU first",
                     static_cast<int>(device.device_type));
  Device there(DeviceKind::cuda, device.device_id);
  check_device(there, "from_dlpack");
  return there;
}

}  // namespace

DLManagedTensor* to_dlpack(const Tensor& tensor) {
  check<ValueError>(tensor.defined(), "to_dlpack", "the tensor is undefined: it was never given a value");
  check<ValueError>(!tensor.is_sparse(), "to_dlpack",
                    "{} has no single block of memory; export its values() and indices()", tensor);
  check<DeviceError>(!tensor.device().is_meta(), "to_dlpack", "{} has no memory", tensor);
  check<GradError>(!tensor.requires_grad(), "to_dlpack",
                   "{} requires a gradient, which others would not see; export detach()", tensor);
  auto* out = new Exported{{}, tensor, tensor.sizes(), tensor.strides()};
  std::unique_ptr<Exported> guard(out);
  DLTensor& t = out->managed.dl_tensor;
  t.data = tensor.raw_data();
  t.device = tensor.device().is_cpu() ? DLDevice{kDLCPU, 0} : DLDevice{kDLCUDA, tensor.device().index};
  t.ndim = static_cast<int32_t>(tensor.dim());
  t.dtype = dl_dtype(tensor.dtype());
  t.shape = out->sizes.data();
  t.strides = out->strides.data();
  t.byte_offset = 0;
  out->managed.manager_ctx = out;
  out->managed.deleter = [](DLManagedTensor* self) { delete static_cast<Exported*>(self->manager_ctx); };
  return &guard.release()->managed;
}

Tensor from_dlpack(DLManagedTensor* managed) {
  constexpr auto name = "from_dlpack";
  check<ValueError>(managed, name, "a null pointer is no tensor");
  const DLTensor& t = managed->dl_tensor;
  check<ShapeError>(t.ndim >= 0 && (t.ndim == 0 || t.shape), name, "{} dims without sizes", t.ndim);
  Shape sizes(std::span<const int64_t>(t.shape, static_cast<size_t>(t.ndim)));
  for (int64_t s : sizes) check<ShapeError>(s >= 0, name, "sizes must not be negative: {}", sizes);
  std::optional<Shape> strides;
  if (t.strides && sizes.product() > 0) {
    strides = Shape(std::span<const int64_t>(t.strides, static_cast<size_t>(t.ndim)));
    for (int64_t s : *strides)
      check<ShapeError>(s >= 0, name, "negative strides are not supported: {}; copy the tensor first", *strides);
  }
  DType dtype = dtype_from(t.dtype);
  Device device = device_from(t.device);
  auto* data = static_cast<std::byte*>(t.data) + t.byte_offset;
  size_t alignment = size_of(is_complex(dtype) ? to_real(dtype) : dtype);
  check<ValueError>(reinterpret_cast<uintptr_t>(data) % alignment == 0, name,
                    "the data is not aligned to its elements of {} bytes", alignment);
  auto release = [managed] {
    if (managed->deleter) managed->deleter(managed);
  };
  return from_blob(data, sizes, {.dtype = dtype, .device = device}, release, strides);
}

}  // namespace tutti
