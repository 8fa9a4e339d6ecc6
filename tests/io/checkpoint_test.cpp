#include "tutti/io/checkpoint.h"

#include <filesystem>

#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tests/support/scratch.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using testing::HasSubstr;

struct Net : nn::Module<Net> {
  nn::Linear fc1{6, 8}, fc2{8, 3};
  nn::BatchNorm1d norm{8};
  nn::Dropout dropout{0.3};
  TUTTI_FIELDS(fc1, fc2, norm, dropout)
  Tensor forward(const Tensor& x) { return fc2(dropout(relu(norm(fc1(x))))); }
};

// Everything that a run consists of.
struct Training {
  Net net;
  optim::Adam adam{net.parameters(), {.lr = 1e-2, .amsgrad = true}};
  optim::Scheduler schedule{adam, optim::warmup(5) * optim::cosine(40)};
  amp::GradScaler scaler{{.scale = 8, .growth_interval = 3}};
  data::DataLoader<data::TensorDataset<Tensor, Tensor>> loader;
  int64_t step = 0;
  double best = 1e9;
  bool done = false;
  io::Checkpoint checkpoint;

  Training(const std::string& path, Tensor x, Tensor y)
      : loader(data::TensorDataset(std::move(x), std::move(y)), {.batch_size = 5, .shuffle = true}),
        checkpoint(path, {{"model", net},
                          {"adam", adam},
                          {"schedule", schedule},
                          {"scaler", scaler},
                          {"random", generator()},
                          {"loader", loader},
                          {"step", step},
                          {"best", best},
                          {"done", done}}) {}

  void train(int64_t until) {
    while (step < until)
      for (auto& [x, y] : loader) {
        Tensor loss = cross_entropy(net(x), y);
        adam.zero_grad();
        scaler.scale(loss).backward();
        scaler.step(adam);
        scaler.update();
        schedule.step();
        best = std::min(best, loss.item<double>());
        if (++step == until) break;
      }
    done = step == 30;
  }
};

TEST(Checkpoint, ResumesBitForBit) {
  Scratch scratch;
  manual_seed(1);
  Tensor x = randn({23, 6}), y = randint(0, 3, {23});

  manual_seed(2);
  Training whole(scratch / "whole", x, y);
  whole.train(30);

  manual_seed(2);
  Training first(scratch / "half", x, y);
  EXPECT_FALSE(first.checkpoint.load());  // there is none yet
  first.train(13);                        // in the middle of an epoch
  first.checkpoint.save();
  first.train(17);  // what comes after the file was written is forgotten

  manual_seed(99);
  Training second(scratch / "half", x, y);
  ASSERT_TRUE(second.checkpoint.load());
  EXPECT_EQ(second.step, 13);
  EXPECT_EQ(second.schedule.steps(), 13);
  second.train(30);

  auto expected = whole.net.state_dict(), found = second.net.state_dict();
  ASSERT_EQ(expected.size(), found.size());
  for (auto& [name, tensor] : expected) EXPECT_TRUE(equal(tensor, found.at(name))) << name;
  EXPECT_EQ(whole.best, second.best);
  EXPECT_EQ(whole.scaler.scale(), second.scaler.scale());
  EXPECT_TRUE(second.done);
}

TEST(Checkpoint, KeepsAllBitsOfASeed) {
  Scratch scratch;
  Generator generator(0xfedcba9876543210u);
  generator.reserve(7);
  io::Checkpoint(scratch / "g", {{"g", generator}}).save();
  Generator other;
  ASSERT_TRUE(io::Checkpoint(scratch / "g", {{"g", other}}).load());
  EXPECT_EQ(other.state(), generator.state());
}

TEST(Checkpoint, NamesThePartThatIsMissing) {
  Scratch scratch;
  int64_t step = 3, epoch = 4;
  io::Checkpoint(scratch / "c", {{"step", step}}).save();
  step = 0;
  io::Checkpoint both(scratch / "c", {{"step", step}, {"epoch", epoch}});
  EXPECT_THAT([&] { both.load(); }, testing::ThrowsMessage<FileError>(HasSubstr("\"epoch\"")));
  EXPECT_EQ(step, 0);  // nothing was loaded
  double wrong = 0;
  io::Checkpoint(scratch / "c", {{"step", wrong}}).load();  // an integer is a number too
  EXPECT_EQ(wrong, 3);
  bool flag = false;
  EXPECT_THROW(io::Checkpoint(scratch / "c", {{"step", flag}}).load(), FileError);
}

TEST(Checkpoint, KeepsAveragesPlateausAndPlainValues) {
  Scratch scratch;
  manual_seed(1);
  Net net, other;
  optim::Ema<Net> ema(net, 0.9), fresh(other);
  optim::Adam adam(net.parameters());
  optim::Plateau plateau(adam);
  plateau.step(0.5);
  ema.updates = 3;
  float rate = 0.1f;
  std::string note = "begin";
  std::optional<double> best = 0.25;
  std::vector<std::pair<int, double>> history{{1, 0.5}, {2, 0.25}};
  Tensor table = arange(3);
  int8_t small = 5;
  io::Checkpoint(scratch / "c", {{"ema", ema},
                                 {"plateau", plateau},
                                 {"rate", rate},
                                 {"note", note},
                                 {"best", best},
                                 {"history", history},
                                 {"table", table},
                                 {"small", small}})
      .save();
  float loaded_rate = 0;
  std::string loaded_note;
  std::optional<double> loaded_best;
  std::vector<std::pair<int, double>> loaded_history;
  Tensor loaded_table;
  int8_t loaded_small = 0;
  optim::Plateau loaded_plateau(adam);
  ASSERT_TRUE(io::Checkpoint(scratch / "c", {{"ema", fresh},
                                             {"plateau", loaded_plateau},
                                             {"rate", loaded_rate},
                                             {"note", loaded_note},
                                             {"best", loaded_best},
                                             {"history", loaded_history},
                                             {"table", loaded_table},
                                             {"small", loaded_small}})
                  .load());
  EXPECT_EQ(loaded_rate, rate);
  EXPECT_EQ(loaded_note, note);
  EXPECT_EQ(loaded_best, best);
  EXPECT_EQ(loaded_history, history);
  EXPECT_TRUE(equal(loaded_table, table));
  EXPECT_EQ(loaded_small, 5);
  EXPECT_EQ(loaded_plateau.state()["best"].as<double>(), 0.5);
  EXPECT_EQ(fresh.updates, 3);
  EXPECT_TRUE(equal(fresh.module.fc1.weight, net.fc1.weight));
  bool flag = false;
  EXPECT_THROW(io::Checkpoint(scratch / "c", {{"small", flag}}).load(), FileError);
}

TEST(Checkpoint, NamesThePartAndTheFile) {
  Scratch scratch;
  std::string path = scratch / "c";
  int64_t large = 5000000000, other = 1;
  EXPECT_THAT(message_of<ValueError>([&] { io::Checkpoint(path, {{"step", large}, {"step", other}}); }),
              HasSubstr("two parts named \"step\""));
  manual_seed(1);
  nn::Linear net(2, 3), wider(2, 4);
  io::Checkpoint(path, {{"step", large}, {"net", net}}).save();
  int small = 7;
  EXPECT_THAT(message_of<FileError>([&] { io::Checkpoint(path, {{"step", small}}).load(); }),
              testing::AllOf(HasSubstr("part \"step\" of " + path), HasSubstr("5000000000")));
  EXPECT_EQ(small, 7);
  EXPECT_THAT(message_of<ValueError>([&] { io::Checkpoint(path, {{"net", wider}}).load(); }),
              testing::AllOf(HasSubstr("part \"net\" of " + path), HasSubstr("weight")));
}

}  // namespace
}  // namespace tutti
