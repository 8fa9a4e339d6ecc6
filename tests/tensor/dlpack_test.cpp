#include "tutti/dlpack.h"

#include "tests/support/expect_ops.h"
#include "tutti/dlpack_types.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

// Memory of another library, that counts how often it is given back.
struct Foreign {
  DLManagedTensor managed{};
  std::vector<int64_t> shape, strides;
  int deleted = 0;

  Foreign(void* data, DLDataType dtype, std::vector<int64_t> sizes, std::vector<int64_t> steps = {})
      : shape(std::move(sizes)), strides(std::move(steps)) {
    managed.dl_tensor = {data,  {kDLCPU, 0},  static_cast<int32_t>(shape.size()),
                         dtype, shape.data(), strides.empty() ? nullptr : strides.data(),
                         0};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensor* self) { ++static_cast<Foreign*>(self->manager_ctx)->deleted; };
  }
};
constexpr DLDataType kFloat32{kDLFloat, 32, 1};

TEST(DLPack, ExportsEveryDType) {
  struct Row {
    DType dtype;
    uint8_t code, bits;
  };
  for (auto [dtype, code, bits] :
       {Row{f32, 2, 32}, Row{f64, 2, 64}, Row{bf16, 4, 16}, Row{f16, 2, 16}, Row{i8, 0, 8}, Row{u8, 1, 8},
        Row{i16, 0, 16}, Row{i32, 0, 32}, Row{i64, 0, 64}, Row{boolean, 6, 8}, Row{c64, 5, 64}, Row{c128, 5, 128}}) {
    Tensor x = tensor({{1, 0, 1}, {0, 1, 1}}, {dtype});
    DLManagedTensor* m = to_dlpack(x);
    EXPECT_EQ(m->dl_tensor.dtype.code, code) << name(dtype);
    EXPECT_EQ(m->dl_tensor.dtype.bits, bits) << name(dtype);
    EXPECT_EQ(m->dl_tensor.dtype.lanes, 1);
    EXPECT_EQ(m->dl_tensor.device.device_type, kDLCPU);
    EXPECT_EQ(m->dl_tensor.ndim, 2);
    EXPECT_EQ(m->dl_tensor.data, x.raw_data());
    Tensor back = from_dlpack(m);
    EXPECT_EQ(back.dtype(), dtype);
    EXPECT_EQ(back.raw_data(), x.raw_data());
    EXPECT_EQ(values(back), values(x));
  }
}

TEST(DLPack, StridesAndOffsets) {
  Tensor x = arange(24, {f64}).view({4, 6}).t().slice(0, 1, 6, 2);
  Tensor back = from_dlpack(to_dlpack(x));
  EXPECT_EQ(back.strides(), x.strides());
  EXPECT_EQ(values(back), values(x));
  back.select(0, 0).fill_(-1);
  EXPECT_EQ(x.select(0, 0).select(0, 2).item<double>(), -1);
  Tensor scalar = from_dlpack(to_dlpack(tensor(3.5)));
  EXPECT_EQ(scalar.dim(), 0);
  EXPECT_EQ(scalar.item<double>(), 3.5);
  EXPECT_EQ(from_dlpack(to_dlpack(zeros({0, 3}))).sizes(), (Shape{0, 3}));
}

TEST(DLPack, TheExportedKeepsTheMemory) {
  DLManagedTensor* m = nullptr;
  {
    Tensor x = full({1000}, 7);
    m = to_dlpack(x);
  }
  EXPECT_EQ(static_cast<int64_t*>(m->dl_tensor.data)[999], 7);
  m->deleter(m);
}

TEST(DLPack, TheDeleterRunsOnce) {
  float data[6] = {1, 2, 3, 4, 5, 6};
  Foreign foreign(data, kFloat32, {2, 3});
  {
    Tensor x = from_dlpack(&foreign.managed);
    Tensor part = x.select(0, 1);
    EXPECT_EQ(values(x), (Doubles{1, 2, 3, 4, 5, 6}));
    x.reset();
    EXPECT_EQ(foreign.deleted, 0);
    part.fill_(9);
  }
  EXPECT_EQ(foreign.deleted, 1);
  EXPECT_EQ(data[5], 9);
  Foreign strided(data, kFloat32, {3, 2}, {1, 3});
  {
    Tensor x = from_dlpack(&strided.managed);
    EXPECT_EQ(values(x), (Doubles{1, 9, 2, 9, 3, 9}));
    DLManagedTensor* again = to_dlpack(x);
    x.reset();
    EXPECT_EQ(strided.deleted, 0);
    again->deleter(again);
  }
  EXPECT_EQ(strided.deleted, 1);
  Foreign none(data, kFloat32, {2});
  none.managed.deleter = nullptr;
  from_dlpack(&none.managed);
  Foreign offset(data, kFloat32, {2});
  offset.managed.dl_tensor.byte_offset = 4;
  EXPECT_EQ(values(from_dlpack(&offset.managed)), (Doubles{2, 3}));
}

TEST(DLPack, RefusesWhatItCannotUse) {
  float data[4] = {};
  auto import_error = [&](auto change) {
    Foreign f(data, kFloat32, {2});
    change(f.managed.dl_tensor);
    std::string text = message_of<Error>([&] { from_dlpack(&f.managed); });
    EXPECT_EQ(f.deleted, 0);  // still the caller's
    return text;
  };
  EXPECT_THAT(import_error([](DLTensor& t) { t.dtype.lanes = 4; }), HasSubstr("4 lanes"));
  EXPECT_THAT(import_error([](DLTensor& t) { t.dtype = {kDLUInt, 32, 1}; }), HasSubstr("type code 1 with 32 bits"));
  EXPECT_THAT(import_error([](DLTensor& t) { t.device.device_type = static_cast<DLDeviceType>(10); }),
              HasSubstr("device type 10"));
  EXPECT_THAT(import_error([](DLTensor& t) { t.byte_offset = 2; }), HasSubstr("aligned"));
  std::string cuda = import_error([](DLTensor& t) { t.device.device_type = kDLCUDA; });
  EXPECT_TRUE(cuda.starts_with("from_dlpack:")) << cuda;
  EXPECT_THAT(import_error([](DLTensor& t) { t.data = nullptr; }), HasSubstr("null pointer"));
  int64_t backwards[] = {-1};
  EXPECT_THAT(import_error([&](DLTensor& t) { t.strides = backwards; }), HasSubstr("negative strides"));
  EXPECT_THAT(message_of<ValueError>([] { from_dlpack(nullptr); }), HasSubstr("null"));
  EXPECT_THAT(message_of<ValueError>([] { to_dlpack(Tensor()); }), HasSubstr("to_dlpack: the tensor is undefined"));
  EXPECT_THAT(message_of<GradError>([] { to_dlpack(ones({2}, {.requires_grad = true})); }), HasSubstr("detach()"));
  EXPECT_THAT(message_of<DeviceError>([] { to_dlpack(zeros({2}, {.device = "meta"})); }), HasSubstr("no memory"));
  EXPECT_THAT(message_of<ValueError>([] { to_dlpack(ones({2}).to_sparse()); }), HasSubstr("values()"));
}

}  // namespace
}  // namespace tutti
