#include "tutti/io/safetensors.h"

#include <fstream>

#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"
#include "tests/support/scratch.h"
#include "tutti/io.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using io::SafeTensors;
using testing::HasSubstr;

constexpr DType kStorable[] = {f32, f64, bf16, f16, i8, u8, i16, i32, i64, boolean, c64};

std::string file_of(const std::string& header, const std::string& data) {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<char*>(&length), 8) + header + data;
}

std::string refusal(const std::string& header, const std::string& data = {}) {
  return message_of<FileError>([&] { SafeTensors(file_of(header, data), "memory"); });
}

TEST(SafeTensors, GivesBackWhatItGot) {
  Scratch scratch;
  io::Tensors tensors;
  for (DType dtype : kStorable) tensors["x/" + std::string(name(dtype))] = (arange(12) - 5).reshape({3, 4}).to(dtype);
  tensors["view"] = tensors["x/f32"].transpose(0, 1);
  tensors["scalar"] = tensor(2.5);
  tensors["none"] = zeros({2, 0, 3});
  tensors["a \"quoted\"\n ü"] = tensor({1, 2});
  io::save_safetensors(scratch / "f", tensors, {{"key", "text \"\\ \n ü"}, {"", ""}});
  SafeTensors file(scratch / "f");
  EXPECT_EQ(file.names().size(), tensors.size());
  EXPECT_EQ(file.metadata(), (io::Metadata{{"key", "text \"\\ \n ü"}, {"", ""}}));
  for (auto& [name, expected] : tensors) {
    EXPECT_EQ(file.info(name).sizes, expected.sizes());
    EXPECT_EQ(file.info(name).dtype, expected.dtype());
    EXPECT_TRUE(identical(file.read(name), expected.contiguous())) << name;
    EXPECT_TRUE(identical(file.map(name), expected.contiguous())) << name;
    EXPECT_EQ(file.info(name).offset % expected.element_size(), 0u);
  }
  EXPECT_TRUE(identical(io::load_safetensors(scratch / "f").at("view"), tensors["view"].contiguous()));
  EXPECT_FALSE(file.has("nothing"));
  EXPECT_THROW(file.read("nothing"), FileError);
}

TEST(SafeTensors, ReadsPythonsFile) {
  SafeTensors file("tests/io/golden/python.safetensors");
  EXPECT_EQ(file.metadata(), (io::Metadata{{"made", "by Python"}, {"text", "line\nline \"two\" ü"}}));
  for (auto [name, dtype] : {std::pair{"f4", f32}, {"f8", f64}, {"f2", f16}, {"i1", i8}, {"i2", i16}, {"i8", i64}})
    EXPECT_TRUE(identical(file.read(name), (arange(12) - 5).reshape({3, 4}).to(dtype))) << name;
  EXPECT_TRUE(identical(file.read("u1"), (arange(12) * 20).reshape({3, 4}).to(u8)));
  EXPECT_TRUE(identical(file.read("b1"), (arange(12) != 5).reshape({3, 4})));
  EXPECT_EQ(file.read("empty").sizes(), Shape({2, 0, 3}));
  EXPECT_EQ(file.read("scalar").item<double>(), 2.5);
  EXPECT_EQ(values(file.read("a \"name\" with ünïcode/and.dots")), (Doubles{1, 2, 3}));
  // A dtype that Tutti lacks is listed, and refused only when it is read.
  EXPECT_EQ(file.info("u2").stored, "U16");
  EXPECT_FALSE(file.info("u2").dtype.has_value());
  EXPECT_THAT(message_of<DTypeError>([&] { file.read("u2"); }), HasSubstr("U16"));
}

TEST(SafeTensors, MapsWithoutCopies) {
  Scratch scratch;
  Tensor x = arange(1000).to(f32).reshape({100, 10});
  io::save_safetensors(scratch / "f", {{"x", x}, {"y", ones({3}, {u8})}});
  Tensor a, b;
  {
    SafeTensors file(scratch / "f");
    a = file.map("x");
    b = file.map("x");
    EXPECT_EQ(a.raw_data(), b.raw_data());
    Tensor rows = file.read_rows("x", 10, 3);
    EXPECT_TRUE(identical(rows, x.narrow(0, 10, 3).contiguous()));
    EXPECT_EQ(file.read_rows("x", 100, 0).sizes(), Shape({0, 10}));
    EXPECT_THROW(file.read_rows("x", 98, 3), IndexError);
    EXPECT_THROW(file.read_rows("x", -1, 3), IndexError);
    EXPECT_THROW(file.read_rows("x", 1, INT64_MAX), IndexError);
  }
  // The mapping lives as long as its tensors; it is private, and the file may be replaced meanwhile.
  a[0].fill_(7);
  io::save_safetensors(scratch / "f", {{"x", zeros({1})}});
  EXPECT_EQ(b[0][3].item<float>(), 7);
  EXPECT_EQ(b[99][9].item<float>(), 999);
}

TEST(SafeTensors, CopiesWhatIsNotAligned) {
  std::string header = R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  header += std::string(8 - header.size() % 8 + 3, ' ');
  SafeTensors file(file_of(header, std::string("\0\0\x80\x3f", 4)), "memory");
  EXPECT_EQ(file.map("x").item<float>(), 1);
}

// Only the rows that are asked for are looked at: whether they are aligned, and whether they are bools.
TEST(SafeTensors, ReadsRowsAlone) {
  std::string header = R"({"x":{"dtype":"BOOL","shape":[3,2],"data_offsets":[0,6]})";
  header += R"(,"y":{"dtype":"I16","shape":[2,1],"data_offsets":[6,10]}})";
  header += std::string(8 - header.size() % 8 + 3, ' ');
  SafeTensors file(file_of(header, std::string("\0\1\1\1\7\0\1\0\2\0", 10)), "memory");
  EXPECT_EQ(values(file.read_rows("x", 0, 2)), (Doubles{0, 1, 1, 1}));
  EXPECT_THAT(message_of<FileError>([&] { file.read_rows("x", 1, 2); }), HasSubstr("neither 0 nor 1"));
  EXPECT_THROW(file.read("x"), FileError);
  EXPECT_EQ(values(file.read_rows("y", 1, 1)), (Doubles{2}));
}

TEST(SafeTensors, RefusesWhatItCannotHold) {
  Scratch scratch;
  EXPECT_THAT(message_of<DTypeError>([&] { io::save_safetensors(scratch / "f", {{"z", zeros({2}, {c128})}}); }),
              HasSubstr("c128"));
  EXPECT_THROW(io::save_safetensors(scratch / "f", {{"z", Tensor()}}), ValueError);
  EXPECT_THROW(io::save_safetensors(scratch / "f", {{"__metadata__", zeros({1})}}), ValueError);
  EXPECT_THROW(io::save_safetensors(scratch / "f", {{"z\xff", zeros({1})}}), ValueError);
  EXPECT_THROW(io::save_safetensors(scratch / "f", {{"s", eye(3).to_sparse()}}), ValueError);
  EXPECT_THROW(io::save_safetensors(scratch / "f", {{"m", zeros({1}, {.device = "meta"})}}), DeviceError);
  EXPECT_TRUE(scratch.files().empty());
}

TEST(SafeTensors, RefusesWrongHeaders) {
  EXPECT_EQ(refusal("{}"), "nothing was thrown");
  EXPECT_EQ(refusal(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "ab"), "nothing was thrown");
  EXPECT_THAT(refusal(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "abc"), HasSubstr("1 bytes after"));
  EXPECT_THAT(refusal(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "a"), HasSubstr("data that has 1"));
  EXPECT_THAT(refusal(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", "abc"), HasSubstr("hole at byte"));
  EXPECT_THAT(refusal(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                          "y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                      "abc"),
              HasSubstr("overlap at byte"));
  EXPECT_THAT(refusal(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", "ab"), HasSubstr("[2, 0)"));
  EXPECT_THAT(refusal(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,2]}})", "ab"), HasSubstr("takes 8 bytes"));
  EXPECT_THAT(refusal(R"({"x":{"dtype":"Q9","shape":[2],"data_offsets":[0,2]}})", "ab"), HasSubstr("'Q9'"));
  EXPECT_THAT(refusal(R"({"x":{"dtype":"F4","shape":[1],"data_offsets":[0,0]}})"), HasSubstr("cannot be"));
  EXPECT_THAT(refusal(R"({"x":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}})", "ab"), HasSubstr("from 0"));
  EXPECT_THAT(refusal(R"({"x":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}})", "ab"), HasSubstr("integers"));
  EXPECT_THAT(refusal(R"({"x":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})"),
              HasSubstr("cannot be"));
  EXPECT_THAT(refusal(R"({"x":{"dtype":"U8","shape":2,"data_offsets":[0,2]}})", "ab"), HasSubstr("no list 'shape'"));
  EXPECT_THAT(refusal(R"({"x":{"dtype":"U8","shape":[2]}})", "ab"), HasSubstr("no list 'data_offsets'"));
  EXPECT_THAT(refusal(R"({"x":[]})"), HasSubstr("no dtype"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":1}})"), HasSubstr("no text"));
  EXPECT_THAT(refusal(R"({"__metadata__":[]})"), HasSubstr("no map"));
  EXPECT_THAT(refusal("[]"), HasSubstr("'{'"));
  EXPECT_THAT(refusal("{\"x\":{},\"x\":{}}"), HasSubstr("twice"));
  EXPECT_THAT(refusal("{\"\xff\":{}}"), HasSubstr("UTF-8"));
  std::string deep = "{\"x\":" + std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_THAT(refusal(deep), HasSubstr("too deep"));
  EXPECT_THAT(message_of<FileError>([] { SafeTensors(std::string(8, '\xff') + "{}", "memory"); }), HasSubstr("most"));
  EXPECT_THAT(message_of<FileError>([] {
                SafeTensors file(file_of(R"({"x":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", "\1\2"), "m");
                file.read("x");
              }),
              HasSubstr("neither 0 nor 1"));
}

TEST(SafeTensors, RefusesEveryTruncation) {
  Scratch scratch;
  io::save_safetensors(scratch / "f", {{"x", arange(5)}, {"y", ones({3}, {u8})}}, {{"key", "value"}});
  std::string whole = io::read_file(scratch / "f");
  for (size_t length = 0; length < whole.size(); ++length) {
    std::ofstream(scratch / "cut", std::ios::binary) << whole.substr(0, length);
    EXPECT_THROW(SafeTensors(scratch / "cut"), FileError) << length;
  }
}

TEST(SafeTensors, SaysWhatIsProbablyWrong) {
  Scratch scratch;
  std::ofstream(scratch / "text") << "the quick brown fox jumps over the lazy dog";
  EXPECT_THAT(message_of<FileError>([&] { SafeTensors(scratch / "text"); }), HasSubstr("Is this a safetensors file?"));
  io::save_safetensors(scratch / "f", {{"x", arange(5)}});
  std::string whole = io::read_file(scratch / "f");
  EXPECT_THAT(message_of<FileError>([&] { SafeTensors(whole.substr(0, whole.size() - 1), "memory"); }),
              HasSubstr("the file is cut short"));
  EXPECT_THAT(message_of<ValueError>([&] { io::save_safetensors(scratch / "g", {{"table", to_sparse(eye(3))}}); }),
              HasSubstr("'table' is a sparse tensor"));
  EXPECT_THAT(message_of<FileError>([&] { io::save_safetensors(scratch / "none/f", {{"x", arange(5)}}); }),
              testing::AllOf(HasSubstr(scratch / "none/f cannot be written"),
                             HasSubstr("there is no directory " + (scratch / "none"))));
}

TEST(SafeTensors, SaysWhatItHas) {
  Scratch scratch;
  std::map<std::string, Tensor> many;
  for (char c = 'a'; c <= 'l'; ++c) many[std::string(1, c)] = ones({1});
  io::save_safetensors(scratch / "f", many);
  EXPECT_THAT(message_of<FileError>([&] { SafeTensors(scratch / "f").read("W"); }),
              HasSubstr("has no tensor 'W'; it has a, b, c, d, e, f, g, h, i, j and 2 more"));
}

}  // namespace
}  // namespace tutti
