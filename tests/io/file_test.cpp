#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "tests/support/crash.h"
#include "tests/support/expect_ops.h"
#include "tests/support/scratch.h"
#include "tutti/io.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using testing::HasSubstr;

TEST(WriteAtomically, Replaces) {
  Scratch scratch;
  std::string path = scratch / "file";
  io::write_atomically(path, [](io::Output& out) { out.write("old"); });
  ::chmod(path.c_str(), 0600);
  std::string large(3 << 20, 'x');
  io::write_atomically(path, [&](io::Output& out) {
    out.write("new");
    out.write(large);
    out.write("end");
    EXPECT_EQ(io::read_file(path), "old");
  });
  EXPECT_EQ(io::read_file(path), "new" + large + "end");
  struct stat status{};
  ::stat(path.c_str(), &status);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(scratch.files(), std::vector<std::string>{"file"});
}

TEST(WriteAtomically, KeepsTheOldFileWhenTheWriterThrows) {
  Scratch scratch;
  std::string path = scratch / "file", text = "the new text";
  io::write_atomically(path, [](io::Output& out) { out.write("old"); });
  for (size_t bytes = 0; bytes <= text.size(); ++bytes) {
    auto write = [&](io::Output& out) {
      out.write(text.substr(0, bytes));
      throw std::runtime_error("no more");
    };
    EXPECT_THROW(io::write_atomically(path, write), std::runtime_error);
    EXPECT_EQ(io::read_file(path), "old");
    EXPECT_EQ(scratch.files().size(), 1u);
  }
}

TEST(WriteAtomically, FollowsLinks) {
  Scratch scratch;
  std::filesystem::create_directory(scratch / "there");
  io::write_atomically(scratch / "there/file", [](io::Output& out) { out.write("old"); });
  std::filesystem::create_symlink("there/file", scratch / "link");
  io::write_atomically(scratch / "link", [](io::Output& out) { out.write("new"); });
  EXPECT_TRUE(std::filesystem::is_symlink(scratch / "link"));
  EXPECT_EQ(io::read_file(scratch / "there/file"), "new");
  // Also one whose file is yet to come, and links to links.
  std::filesystem::create_symlink("there/later", scratch / "early");
  std::filesystem::create_symlink("early", scratch / "earlier");
  io::write_atomically(scratch / "earlier", [](io::Output& out) { out.write("come"); });
  EXPECT_TRUE(std::filesystem::is_symlink(scratch / "early") && std::filesystem::is_symlink(scratch / "earlier"));
  EXPECT_EQ(io::read_file(scratch / "there/later"), "come");
  std::filesystem::create_symlink("circle", scratch / "circle");
  EXPECT_THROW(io::write_atomically(scratch / "circle", [](io::Output&) {}), FileError);
}

TEST(WriteAtomically, RemovesWhatDeadWritersLeftAndNothingElse) {
  Scratch scratch;
  std::string path = scratch / "file";
  std::ofstream(scratch / ".file.tmp-1-0") << "dead";
  std::ofstream(scratch / ".file2.tmp-1-0") << "another's";
  io::write_atomically(path, [&](io::Output& out) {
    EXPECT_FALSE(std::filesystem::exists(scratch / ".file.tmp-1-0"));
    // A writer inside a writer: the outer one is alive, so its file stays.
    io::write_atomically(path, [](io::Output& inner) { inner.write("inner"); });
    out.write("outer");
  });
  EXPECT_EQ(io::read_file(path), "outer");
  EXPECT_EQ(scratch.files().size(), 2u);
}

TEST(WriteAtomically, ThreadsAtOnce) {
  Scratch scratch;
  std::string path = scratch / "file";
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i)
        io::write_atomically(path, [&](io::Output& out) { out.write(std::string(10000, static_cast<char>('a' + t))); });
    });
  for (int i = 0; i < 50; ++i)
    if (std::filesystem::exists(path)) {
      std::string text = io::read_file(path);
      EXPECT_EQ(text, std::string(10000, text.at(0)));
    }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(scratch.files().size(), 1u);
}

TEST(WriteAtomically, SaysWhatIsWrong) {
  Scratch scratch;
  auto nothing = [](io::Output&) {};
  EXPECT_THAT(message_of<FileError>([&] { io::write_atomically(scratch / "no/file", nothing); }),
              HasSubstr("there is no directory"));
  EXPECT_THAT(message_of<FileError>([&] { io::write_atomically(scratch.path(), nothing); }),
              HasSubstr("is a directory"));
  EXPECT_THAT(message_of<FileError>([&] { io::write_atomically(scratch / "", nothing); }),
              HasSubstr("does not name a file"));
  EXPECT_THROW(io::read_file(scratch / "none"), FileError);
  EXPECT_THROW(io::read_file(scratch.path()), FileError);
  EXPECT_THAT(message_of<FileError>([&] { io::read_file("/dev/null"); }), HasSubstr("is not a file"));
}

TEST(Checkpoint, KilledWritersLeaveTheOldOrTheNewOneWhole) {
  CrashResult result = crash_writers(200, 1);
  EXPECT_EQ(result.failure, "");
  EXPECT_EQ(result.kills, 200);
  EXPECT_GT(result.replaced, 20);  // else most writers were killed before they had written anything
}

}  // namespace
}  // namespace tutti
