#include "tutti/data/readers.h"

#include <zlib.h>

#include <cmath>
#include <fstream>

#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"
#include "tests/support/scratch.h"
#include "tutti/data.h"
#include "tutti/io.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using data::Csv;
using testing::ElementsAre;
using testing::HasSubstr;

std::string gzip(const std::string& text) {
  Scratch scratch;
  gzFile file = ::gzopen((scratch / "f").c_str(), "wb");
  ::gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  ::gzclose(file);
  return io::read_file(scratch / "f");
}

TEST(Idx, ReadsMnistsFormat) {
  std::string file("\0\0\x08\x02\0\0\0\x02\0\0\0\x03\x01\x02\x03\x04\x05\xff", 18);
  Tensor expected = tensor({{1, 2, 3}, {4, 5, 255}}, {u8});
  EXPECT_TRUE(identical(data::parse_idx(file, "memory"), expected));
  std::string packed = gzip(file);
  EXPECT_TRUE(identical(data::parse_idx(packed, "memory"), expected));
  for (size_t length = 0; length < file.size(); ++length)
    EXPECT_THROW(data::parse_idx(file.substr(0, length), "memory"), FileError);
  for (size_t length = 0; length < packed.size(); ++length)
    EXPECT_THROW(data::parse_idx(packed.substr(0, length), "memory"), FileError);
  EXPECT_THROW(data::parse_idx(file + "x", "memory"), FileError);
  EXPECT_THROW(data::parse_idx(gzip(file + "x"), "memory"), FileError);
  EXPECT_THROW(data::parse_idx(packed + "x", "memory"), FileError);
  EXPECT_THROW(data::read_idx("/no/such/file"), FileError);
  // Sizes that are a lie are not allocated.
  std::string lie("\0\0\x0e\x02\xff\xff\xff\xff\xff\xff\xff\xff", 12);
  EXPECT_THAT(message_of<FileError>([&] { data::parse_idx(lie, "memory"); }), HasSubstr("does not fit"));
  EXPECT_THROW(data::parse_idx(gzip(lie), "memory"), FileError);
}

TEST(Idx, GivesBackWhatItGot) {
  Scratch scratch;
  for (DType dtype : {u8, i8, i16, i32, f32, f64}) {
    Tensor t = (arange(6) - 2).reshape({2, 3}).to(dtype);
    data::save_idx(scratch / "f", t.transpose(0, 1));
    EXPECT_TRUE(identical(data::read_idx(scratch / "f"), t.transpose(0, 1).contiguous()));
  }
  data::save_idx(scratch / "f", zeros({0, 3}));
  EXPECT_EQ(data::read_idx(scratch / "f").sizes(), Shape({0, 3}));
  EXPECT_THROW(data::save_idx(scratch / "f", ones({1}, {i64})), DTypeError);
}

TEST(Csv, ReadsQuotesAndTypes) {
  Scratch scratch;
  std::ofstream(scratch / "f", std::ios::binary) << "\xef\xbb\xbfname,\"x, or so\",y,flag\r\n"
                                                    "\"a \"\"b\"\"\nc\",1.5,3,true\r\n"
                                                    "\r\n"
                                                    "d, -2e1 ,+4,0\n"
                                                    "\"\",inf,-9,False";
  Csv csv(scratch / "f");
  EXPECT_THAT(csv.names(), ElementsAre("name", "x, or so", "y", "flag"));
  EXPECT_EQ(csv.rows(), 3u);
  EXPECT_THAT(csv.strings("name"), ElementsAre("a \"b\"\nc", "d", ""));
  EXPECT_EQ(values(csv.numbers("x, or so")), (Doubles{1.5, -20, HUGE_VAL}));
  EXPECT_TRUE(identical(csv.numbers("y", i64), tensor({3, 4, -9})));
  EXPECT_TRUE(identical(csv.numbers("flag", boolean), tensor({true, false, false})));
  EXPECT_EQ(csv.matrix({"y", "x, or so"}, f64).sizes(), Shape({3, 2}));
  EXPECT_EQ(values(csv.matrix({"y", "x, or so"}, f64)), (Doubles{3, 1.5, 4, -20, -9, HUGE_VAL}));
  EXPECT_EQ(csv.numbers("y", bf16).dtype(), bf16);
}

TEST(Csv, OtherForms) {
  Csv plain("1;2\n3;4\n", "memory", {.header = false, .delimiter = ';'});
  EXPECT_THAT(plain.names(), ElementsAre("0", "1"));
  EXPECT_EQ(values(plain.matrix()), (Doubles{1, 2, 3, 4}));
  Csv missing("a,b\n1,\n,2\n", "memory");
  EXPECT_EQ(values(missing.numbers("b", f64, -1)), (Doubles{-1, 2}));
  EXPECT_TRUE(std::isnan(missing.numbers("b", f32, NAN)[0].item<float>()));
  EXPECT_THROW(missing.numbers("b", i64, NAN), ValueError);
  auto [codes, names] = Csv("k\nred\nblue\nred\n", "memory").categories("k");
  EXPECT_EQ(values(codes), (Doubles{1, 0, 1}));
  EXPECT_THAT(names, ElementsAre("blue", "red"));
  EXPECT_EQ(Csv("", "memory").rows(), 0u);
  EXPECT_EQ(Csv("a,b\n", "memory").numbers("a").numel(), 0);
  EXPECT_EQ(Csv("a\n\n1\n", "memory", {.skip_blank_lines = false}).rows(), 2u);
}

TEST(Csv, NumbersFitTheirDType) {
  Csv gap("a\n\"\"\n", "t");
  EXPECT_THAT(message_of<ValueError>([&] { gap.numbers("a", i8, 300); }), HasSubstr("300 in the place of empty cells"));
  EXPECT_EQ(values(gap.numbers("a", i8, -128)), (Doubles{-128}));
  EXPECT_EQ(values(gap.numbers("a", i64, -0x1p63)), (Doubles{-0x1p63}));
  EXPECT_THROW(gap.numbers("a", i64, 0x1p63), ValueError);
  EXPECT_THROW(gap.numbers("a", u8, -1), ValueError);
  EXPECT_THROW(gap.numbers("a", i32, 0.5), ValueError);
  EXPECT_THROW(gap.numbers("a", boolean, 2), ValueError);
  EXPECT_THROW(gap.numbers("a", f16, 1e6), ValueError);
  EXPECT_THROW(gap.numbers("a", f32, 1e39), ValueError);
  EXPECT_EQ(values(gap.numbers("a", f16, HUGE_VAL)), (Doubles{HUGE_VAL}));
  // Too large is an error, too small is nothing, whatever the dtype.
  auto read = [](const std::string& cell, DType dtype) {
    return values(Csv("a\n" + cell + "\n", "t").numbers("a", dtype));
  };
  for (const char* cell : {"1e39", "-1e39", "1e400", "100000e400", "0.001e400", "1e99999999999999999999"})
    EXPECT_THAT(message_of<FileError>([&] { read(cell, f32); }), HasSubstr("too large")) << cell;
  EXPECT_THROW(read("70000", f16), FileError);
  EXPECT_THROW(read("-1e400", f64), FileError);
  EXPECT_EQ(read("1e39", f64), (Doubles{1e39}));
  for (const char* cell : {"1e-60", "1e-400", "-1e-400", "123456e-500", "0.001e-400", "1e-99999999999999999999"})
    EXPECT_EQ(read(cell, f32), (Doubles{0})) << cell;
  EXPECT_EQ(read("0." + std::string(400, '0') + "1", f64), (Doubles{0}));
  EXPECT_EQ(read("inf", f32), (Doubles{HUGE_VAL}));
  EXPECT_THROW(read("1e", f32), FileError);
}

TEST(Csv, ColumnsHaveDifferentNames) {
  EXPECT_THAT(message_of<FileError>([] { Csv("\na,b,a\n1,2,3\n", "t"); }),
              HasSubstr("t: line 2 names two columns 'a'"));
  EXPECT_EQ(Csv("a,b,a\n1,2,3\n", "t", {.header = false}).columns(), 3u);
}

TEST(Csv, NamesLineAndColumn) {
  Csv csv("a,b\n1,2\n\"x\ny\",oops\n3,4\n5,99999\n", "table.csv");
  EXPECT_THAT(message_of<FileError>([&] { csv.numbers("b"); }),
              HasSubstr("table.csv: line 3, column 2 ('b'): 'oops' is no f32"));
  EXPECT_THAT(message_of<FileError>([&] { csv.numbers("c"); }), HasSubstr("its columns are a, b"));
  EXPECT_THAT(message_of<FileError>([] { Csv("a\n1\n300\n", "t").numbers("a", u8); }), HasSubstr("line 3"));
  EXPECT_THAT(message_of<FileError>([] { Csv("a\n1.5\n", "t").numbers("a", i64); }), HasSubstr("'1.5' is no i64"));
  EXPECT_THAT(message_of<FileError>([] { Csv("a,b\n1,2\n3\n", "t"); }), HasSubstr("line 3 has 1 columns"));
  EXPECT_THAT(message_of<FileError>([] { Csv("a,b\n1,\"2\n3,4\n", "t"); }),
              HasSubstr("the quote of line 2, column 2 is not closed"));
  EXPECT_THAT(message_of<FileError>([] { Csv("a,b\n1,\"2\"x\n", "t"); }), HasSubstr("line 2, column 2"));
  EXPECT_THROW(Csv("a\n1\n", "t").numbers("a", c64), DTypeError);
  EXPECT_THROW(csv.cell(9, 0), IndexError);
}

TEST(Text, Vocabularies) {
  auto words = data::Vocabulary::characters("hällo");
  EXPECT_EQ(words.size(), 4u);
  Tensor tokens = words.encode("ähol");
  EXPECT_EQ(values(tokens), (Doubles{3, 0, 2, 1}));
  EXPECT_EQ(words.decode(tokens), "ähol");
  EXPECT_THAT(message_of<ValueError>([&] { words.encode("hä?"); }), HasSubstr("'?' (at byte 3)"));
  EXPECT_THROW(words.decode(tensor({4})), IndexError);
  EXPECT_THROW(data::Vocabulary::characters("\xff"), ValueError);
  auto bytes = data::Vocabulary::bytes();
  EXPECT_EQ(bytes.size(), 256u);
  EXPECT_EQ(bytes.decode(bytes.encode("\xff\0x")), "\xff");
  EXPECT_EQ(bytes.decode(bytes.encode("ü")), "ü");
}

TEST(Text, Sequences) {
  Scratch scratch;
  std::ofstream(scratch / "a") << "abcd";
  std::ofstream(scratch / "b") << "efgh";
  std::string text = data::read_text({scratch / "a", scratch / "b"});
  EXPECT_EQ(text, "abcdefgh");
  auto vocabulary = data::Vocabulary::characters(text);
  data::SequenceDataset dataset(vocabulary.encode(text), 3);
  ASSERT_EQ(dataset.size(), 2u);
  auto [x, y] = dataset.get(1);
  EXPECT_EQ(vocabulary.decode(x), "def");
  EXPECT_EQ(vocabulary.decode(y), "efg");
  EXPECT_EQ(data::SequenceDataset(vocabulary.encode(text), 3, 1).size(), 5u);
  EXPECT_EQ(data::SequenceDataset(vocabulary.encode(text), 8).size(), 0u);
  EXPECT_EQ(data::SequenceDataset(vocabulary.encode(text), 7).size(), 1u);
  EXPECT_THROW(dataset.get(2), IndexError);
  EXPECT_THROW(data::SequenceDataset(ones({2, 2}), 1), ShapeError);
  EXPECT_THROW(data::SequenceDataset(ones({2}, {i64}), 0), ValueError);
}

TEST(Digits, AreDeterministicAndTellApart) {
  auto [images, labels] = data::digits(600, 3);
  EXPECT_EQ(images.sizes(), Shape({600, 1, 28, 28}));
  EXPECT_GE(images.min().item<float>(), 0);
  EXPECT_LE(images.max().item<float>(), 1);
  {
    ThreadsGuard one(1);
    EXPECT_TRUE(identical(data::digits(50, 3).images, images.narrow(0, 0, 50).contiguous()));
  }
  EXPECT_FALSE(identical(data::digits(50, 4).images, images.narrow(0, 0, 50).contiguous()));
  // The mean image of each class, learnt on 400, tells most of the other 200 apart, but not all: there is work to do.
  Tensor flat = images.reshape({600, 784}), known = labels.narrow(0, 0, 400);
  TensorList means;
  for (int digit = 0; digit < 10; ++digit) {
    Tensor is = (known == digit).to(f32);
    EXPECT_GT(is.sum().item<float>(), 15) << digit;
    means.push_back(matmul(is.unsqueeze(0), flat.narrow(0, 0, 400)).squeeze(0) / is.sum());
  }
  Tensor mean = stack(means), rest = flat.narrow(0, 400, 200);
  Tensor distance = (mean * mean).sum(1).unsqueeze(0) - matmul(rest, mean.t()) * 2;
  double right = (distance.argmin(1) == labels.narrow(0, 400, 200)).to(f64).mean().item<double>();
  EXPECT_GT(right, 0.6);
  EXPECT_LT(right, 0.99);
}

TEST(Text, TokensAreWholeNumbers) {
  auto letters = data::Vocabulary::characters("abc");
  EXPECT_THAT(message_of<DTypeError>([&] { letters.decode(tensor({0.5, 1.9})); }), HasSubstr("whole numbers"));
  EXPECT_THAT(message_of<IndexError>([&] { letters.decode(tensor({3})); }), HasSubstr("no token 3: there are 3"));
  EXPECT_THROW(data::SequenceDataset(randn({5}), 2), DTypeError);
}

TEST(Csv, EmptyCellsAreNamedAsSuch) {
  data::Csv table("a,b\n1,\n", "memory");
  EXPECT_THAT(message_of<FileError>([&] { table.numbers("b"); }),
              AllOf(HasSubstr("line 2, column 2 ('b') is empty"), HasSubstr("missing")));
}

}  // namespace
}  // namespace tutti
