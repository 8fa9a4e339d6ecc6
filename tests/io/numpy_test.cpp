#include "tutti/io/numpy.h"

#include <fstream>

#include "io/zip.h"
#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"
#include "tests/support/scratch.h"
#include "tutti/io.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using io::Npz;
using io::parse_npy;
using testing::HasSubstr;

std::string npy(const std::string& descr, const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size());
  bytes += '\0';
  return bytes + header + data;
}

struct StringOutput : io::Output {
  std::string bytes;
  void write(const void* data, size_t count) override { bytes.append(static_cast<const char*>(data), count); }
};

std::string zip(const std::string& name, const std::string& data, uint64_t limit = 0xfffffffe) {
  StringOutput out;
  io::ZipWriter writer(out, limit);
  writer.add(name, data, {});
  writer.add("second.npy", npy("|u1", "(2,)", "xy"), {});
  writer.finish();
  return out.bytes;
}

void expect_goldens(const Npz& file) {
  Tensor rows = arange(12).reshape({3, 4});
  for (auto [name, dtype] : {std::pair{"f4", f32},
                             {"f8", f64},
                             {"f2", f16},
                             {"i1", i8},
                             {"i2", i16},
                             {"i4", i32},
                             {"i8", i64},
                             {"c8", c64},
                             {"c16", c128},
                             {"b1", boolean}})
    EXPECT_TRUE(identical(file.read(name), (rows - 5).to(dtype))) << name;
  for (auto [name, dtype] : {std::pair{"u1", u8}, {"u2", i32}, {"u4", i64}, {"u8", i64}})
    EXPECT_TRUE(identical(file.read(name), (rows * 20).to(dtype))) << name;
  EXPECT_EQ(file.read("complex")[1][2].item<std::complex<double>>(), std::complex<double>(6, 6));
  EXPECT_EQ(file.read("complex")[0][1].item<std::complex<double>>(), std::complex<double>(1, 9));
  EXPECT_TRUE(identical(file.read("scalar"), tensor(2.5, {f64})));
  EXPECT_EQ(file.read("empty").sizes(), Shape({2, 0, 3}));
  EXPECT_TRUE(identical(file.read("columns"), rows.to(f32)));
  EXPECT_TRUE(identical(file.read("cube"), arange(24).reshape({2, 3, 4})));
  EXPECT_TRUE(identical(file.read("big"), rows.to(i32)));
  EXPECT_EQ(file.read("big_complex")[2][1].item<std::complex<float>>(), std::complex<float>(9, -2));
  EXPECT_EQ(values(file.read("folder/name")), (Doubles{1.5, -2.5}));
}

TEST(Npz, ReadsPythonsStoredAndCompressedFiles) {
  expect_goldens(Npz("tests/io/golden/arrays.npz"));
  Npz packed("tests/io/golden/packed.npz");
  expect_goldens(packed);
  Tensor zeros = packed.read("zeros");
  EXPECT_EQ(zeros.sizes(), Shape({100000}));
  EXPECT_EQ(zeros.abs().sum().item<int64_t>(), 0);
  EXPECT_TRUE(identical(io::load_npy("tests/io/golden/rows.npy"), arange(12).reshape({3, 4}).to(f32)));
}

TEST(Npz, GivesBackWhatItGot) {
  Scratch scratch;
  io::Tensors tensors;
  for (DType dtype : {f32, f64, f16, i8, u8, i16, i32, i64, boolean, c64, c128}) {
    Tensor t = (arange(12) - 5).reshape({3, 4}).to(dtype);
    tensors["x/" + std::string(name(dtype))] = t;
    io::save_npy(scratch / "one.npy", t.transpose(0, 1));
    EXPECT_TRUE(identical(io::load_npy(scratch / "one.npy"), t.transpose(0, 1).contiguous()));
  }
  tensors["scalar"] = tensor(2.5);
  tensors["one"] = ones({1});
  tensors["none"] = zeros({2, 0, 3});
  io::save_npz(scratch / "f.npz", tensors);
  io::Tensors got = io::load_npz(scratch / "f.npz");
  EXPECT_EQ(got.size(), tensors.size());
  for (auto& [name, expected] : tensors) EXPECT_TRUE(identical(got[name], expected)) << name;
  EXPECT_THAT(message_of<DTypeError>([&] { io::save_npy(scratch / "b", ones({1}, {bf16})); }), HasSubstr("bf16"));
}

TEST(Npz, FindsMembersAlsoTheLargeWay) {
  std::string array = npy("<i8", "(1,)", std::string("\7\0\0\0\0\0\0\0", 8));
  for (uint64_t limit : {uint64_t{0xfffffffe}, uint64_t{100}, uint64_t{10}, uint64_t{0}}) {
    Npz file(zip("x/in0.npy", array, limit), "memory");
    EXPECT_EQ(file.keys("x/"), std::vector<std::string>{"x/in0"});
    EXPECT_TRUE(file.keys("y").empty());
    EXPECT_EQ(file.read("x/in0").item<int64_t>(), 7);
    EXPECT_EQ(values(file.read("second")), (Doubles{'x', 'y'}));
    EXPECT_THROW(file.read("x/in1"), FileError);
  }
}

TEST(Npy, RefusesWhatItDoesNotKnow) {
  auto refusal = [](const std::string& bytes) { return message_of<FileError>([&] { parse_npy(bytes, "a"); }); };
  std::string eight(8, '\0');
  EXPECT_EQ(refusal(npy("<f8", "(1,)", eight)), "nothing was thrown");
  EXPECT_THAT(refusal(npy("|O", "(1,)", eight)), HasSubstr("'|O' are not read"));
  EXPECT_THAT(refusal(npy("<U2", "(1,)", eight)), HasSubstr("'<U2'"));
  EXPECT_THAT(refusal(npy("<f8", "(-1,)", eight)), HasSubstr("size"));
  EXPECT_THAT(refusal(npy("<f8", "(99999999999999999999,)", "")), HasSubstr("size"));
  EXPECT_THAT(refusal(npy("<f8", "(1048576, 1048576, 1048576, 1048576)", "")), HasSubstr("too large"));
  EXPECT_THAT(refusal(npy("<f8", "(1048576, 1048576, 1048576, 1048576, 0)", "")), HasSubstr("too large"));
  EXPECT_THAT(refusal(npy("<f8", "(1,)", eight + "x")), HasSubstr("takes 8 bytes, and 9 are there"));
  EXPECT_THAT(refusal(npy("<f8", "(1,", eight)), HasSubstr("bad header"));
  EXPECT_THAT(refusal(npy("<f8", "(1 1)", eight)), HasSubstr("in the shape"));
  EXPECT_THAT(refusal(npy("<u8", "(1,)", std::string(8, '\xff'))), HasSubstr("2^63"));
  std::string version = npy("<f8", "(1,)", eight);
  version[6] = 9;
  EXPECT_THAT(refusal(version), HasSubstr("version 9"));
  EXPECT_THROW(Npz("/no/such/file.npz"), FileError);
  EXPECT_THROW(io::load_npy("/no/such/file.npy"), FileError);
}

TEST(Npz, RefusesEveryTruncation) {
  std::string whole = npy("<f8", "(2,)", std::string(16, '\0'));
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_THROW(parse_npy(whole.substr(0, length), "a"), FileError);
  std::string archive = zip("x.npy", whole);
  for (size_t length = 0; length < archive.size(); ++length)
    EXPECT_THROW(Npz(archive.substr(0, length), "memory").read("x"), FileError) << length;
}

// Any byte may be anything: the reader throws or reads, but never leaves its memory. Data is guarded by checksums.
TEST(Npz, SurvivesEveryDamagedByte) {
  for (uint64_t limit : {uint64_t{0xfffffffe}, uint64_t{0}}) {
    std::string archive = zip("x.npy", npy("<f8", "(2,)", std::string(16, '\0')), limit);
    for (size_t i = 0; i < archive.size(); ++i)
      for (int value : {0, 1, 0x7f, 0x80, 0xff}) {
        std::string damaged = archive;
        damaged[i] = static_cast<char>(value);
        try {
          Npz file(damaged, "memory");
          for (auto& key : file.keys()) {
            Tensor t = file.read(key);
            EXPECT_TRUE(t.dtype() == u8 || values(t) == (Doubles{0, 0})) << i;
          }
        } catch (const FileError&) {
        }
      }
  }
}

}  // namespace
}  // namespace tutti
