#include "tutti/io/events.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <thread>

#include "io/crc32c.h"
#include "tests/support/expect_ops.h"
#include "tests/support/scratch.h"
#include "tutti/io.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT

template <class T>
T take(std::string_view& bytes) {
  T value{};
  if (bytes.size() < sizeof value) throw std::runtime_error("cut off");
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

// The records of a file, their checksums checked.
std::vector<std::string> records(const std::string& path) {
  std::string file = io::read_file(path);
  std::string_view bytes = file;
  std::vector<std::string> list;
  while (!bytes.empty()) {
    std::string_view length_bytes = bytes.substr(0, 8);
    auto length = take<uint64_t>(bytes);
    EXPECT_EQ(take<uint32_t>(bytes), io::masked_crc32c(length_bytes));
    std::string_view data = bytes.substr(0, length);
    bytes.remove_prefix(length);
    EXPECT_EQ(take<uint32_t>(bytes), io::masked_crc32c(data));
    list.emplace_back(data);
  }
  return list;
}

uint64_t varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    auto byte = take<uint8_t>(bytes);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

// A message's fields: number → bytes (of the value as it is on the wire).
std::map<int, std::string> fields(std::string_view bytes) {
  std::map<int, std::string> found;
  while (!bytes.empty()) {
    uint64_t key = varint(bytes), size = 8;
    if ((key & 7) == 0) {
      uint64_t value = varint(bytes);
      found[static_cast<int>(key >> 3)] = std::string(reinterpret_cast<char*>(&value), 8);
      continue;
    }
    if ((key & 7) == 2) size = varint(bytes);
    if ((key & 7) == 5) size = 4;
    found[static_cast<int>(key >> 3)] = bytes.substr(0, size);
    bytes.remove_prefix(size);
  }
  return found;
}

template <class T>
T as(const std::string& bytes) {
  std::string_view view = bytes;
  return take<T>(view);
}

std::map<int, std::string> value_of(const std::string& record) { return fields(fields(fields(record)[5])[1]); }

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(io::crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(io::crc32c(""), 0u);
  EXPECT_EQ(io::crc32c(std::string(32, '\0')), 0x8a9136aau);
}

TEST(EventWriter, WritesScalarsTextAndHistograms) {
  Scratch scratch;
  std::string path;
  {
    io::EventWriter writer(scratch / "a/b");
    writer.add_scalar("loss", 0.25, 7);
    writer.add_scalar("late", 1, int64_t{1} << 40);
    writer.add_text("notes", "**hello**", 1);
    writer.add_histogram("weights", tensor({0., 1., 2., 3., 4., HUGE_VAL}), 2, 4);
    path = writer.path();
    writer.flush();
    EXPECT_EQ(records(path).size(), 5u);
  }
  auto list = records(path);
  ASSERT_EQ(list.size(), 5u);
  EXPECT_EQ(fields(list[0])[3], "brain.Event:2");
  EXPECT_GT(as<double>(fields(list[0])[1]), 1.6e9);
  EXPECT_EQ(as<int64_t>(fields(list[1])[2]), 7);
  EXPECT_EQ(value_of(list[1])[1], "loss");
  EXPECT_EQ(as<float>(value_of(list[1])[2]), 0.25f);
  EXPECT_EQ(as<int64_t>(fields(list[2])[2]), int64_t{1} << 40);
  EXPECT_EQ(fields(value_of(list[3])[8])[8], "**hello**");
  EXPECT_EQ(fields(fields(value_of(list[3])[9])[1])[1], "text");
  auto histogram = fields(value_of(list[4])[5]);
  EXPECT_EQ(as<double>(histogram[1]), 0);
  EXPECT_EQ(as<double>(histogram[2]), 4);
  EXPECT_EQ(as<double>(histogram[3]), 5);
  EXPECT_EQ(as<double>(histogram[4]), 10);
  EXPECT_EQ(as<double>(histogram[5]), 30);
  auto doubles = [](const std::string& bytes) {
    Doubles list(bytes.size() / 8);
    std::memcpy(list.data(), bytes.data(), bytes.size());
    return list;
  };
  EXPECT_EQ(doubles(histogram[6]), (Doubles{1, 2, 3, 4}));
  EXPECT_EQ(doubles(histogram[7]), (Doubles{1, 1, 1, 2}));
}

// tests/io/golden/events.py made the reference.
TEST(EventWriter, WritesWhatAnotherEncoderWrites) {
  Scratch scratch;
  double time = 1700000000.0;
  io::EventWriter writer(scratch.path(), {.clock = [&] { return time += 0.25; }});
  writer.add_scalar("loss", 0.1, 0);
  writer.add_scalar("loss/ü €", -1e30, 300);
  writer.add_scalar("negative", HUGE_VAL, -1);
  writer.add_scalar("late", 0, (int64_t{1} << 62) + 1);
  writer.add_text("notes", "**hello** ü\n" + std::string(200, 'x'), 1);
  writer.add_histogram("weights", tensor({0., 1., 2., 3., 4., HUGE_VAL}), 2, 4);
  writer.add_histogram("nothing", zeros({0}), 3, 2);
  writer.flush();
  std::string found = io::read_file(writer.path()), wanted = io::read_file("tests/io/golden/events.reference");
  EXPECT_EQ(found.size(), wanted.size());
  auto [at, other] = std::ranges::mismatch(found, wanted);
  EXPECT_TRUE(found == wanted) << "they differ at byte " << at - found.begin();
}

TEST(EventWriter, WritesImages) {
  Scratch scratch;
  io::EventWriter writer(scratch.path());
  writer.add_image("grey", tensor({{0., 0.5, 1.}, {2., -1., 0.25}}), 0);
  writer.add_image("colour", arange(12).to(u8).reshape({3, 2, 2}), 0);
  writer.flush();
  auto list = records(writer.path());
  auto image = fields(value_of(list[1])[4]);
  EXPECT_EQ(as<int64_t>(image[1]), 2);
  EXPECT_EQ(as<int64_t>(image[2]), 3);
  EXPECT_EQ(as<int64_t>(image[3]), 1);
  std::string& png = image[4];
  ASSERT_EQ(png.substr(0, 8), std::string("\x89PNG\r\n\x1a\n", 8));
  size_t data = png.find("IDAT") + 4;
  unsigned char pixels[8];
  uLongf size = sizeof pixels;
  ASSERT_EQ(::uncompress(pixels, &size, reinterpret_cast<Bytef*>(png.data() + data), png.size() - data), Z_OK);
  EXPECT_THAT(pixels, testing::ElementsAre(0, 0, 128, 255, 0, 255, 0, 64));
  EXPECT_EQ(as<int64_t>(fields(value_of(list[2])[4])[3]), 3);
  EXPECT_THROW(writer.add_image("x", ones({2, 2, 2}), 0), ShapeError);
  EXPECT_THROW(writer.add_image("x", ones({2, 2}, {i64}), 0), DTypeError);
}

TEST(EventWriter, TakesManyThreads) {
  Scratch scratch;
  io::EventWriter writer(scratch.path());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) writer.add_scalar("x", i, i);
    });
  for (auto& thread : threads) thread.join();
  writer.flush();
  EXPECT_EQ(records(writer.path()).size(), 2001u);
  EXPECT_THROW(io::EventWriter("/proc/none"), FileError);
}

}  // namespace
}  // namespace tutti
