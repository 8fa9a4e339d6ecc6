// Training that is killed, again and again, and goes on as if nothing had been: to the last bit.
//
// The program starts itself as a process that trains and writes checkpoints, kills it (SIGKILL) at random moments and
// starts it again until it gets to the end. Then it compares the weights with those of a run that was left alone.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>

#include "flags.h"
#include "tutti/tutti.h"

using namespace tutti;

struct Net : nn::Module<Net> {
  nn::Linear fc1{784, 64}, fc2{64, 10};
  nn::Dropout dropout{0.2};  // draws random numbers: their state is part of the run
  TUTTI_FIELDS(fc1, fc2, dropout)
  Tensor forward(const Tensor& x) { return fc2(dropout(relu(fc1(x.flatten(1))))); }
};

// Trains to the end from wherever the file is, and leaves the weights in `path`.weights. Gives the last loss.
double train(const std::string& path, int64_t steps) {
  manual_seed(1);
  data::Digits digits = data::digits(1'000, 1);
  data::DataLoader loader(data::TensorDataset(digits.images, digits.labels),
                          {.batch_size = 32, .shuffle = true, .workers = 1});
  Net net;
  optim::Adam adam(net.parameters(), {.lr = 1e-3});
  optim::Scheduler schedule(adam, optim::warmup(10) * optim::cosine(steps));
  int64_t step = 0;
  double last = 0;

  io::Checkpoint checkpoint(path, {{"model", net},
                                   {"adam", adam},
                                   {"schedule", schedule},
                                   {"random", generator()},
                                   {"loader", loader},
                                   {"step", step}});
  if (checkpoint.load()) std::printf("  goes on at step %ld\n", long(step));
  while (step < steps) {
    for (auto& [images, labels] : loader) {
      adam.zero_grad();
      Tensor loss = cross_entropy(net(images), labels);
      loss.backward();
      adam.step();
      schedule.step();
      last = loss.item<double>();
      if (++step % 5 == 0) checkpoint.save();
      if (step == steps) break;
    }
  }
  io::save_safetensors(path + ".weights", net.state_dict());
  return last;
}

// Runs train() in a process of its own, which has so many milliseconds to live; says whether it got to the end.
bool train_briefly(const char* program, const std::string& path, int64_t steps, int milliseconds) {
  std::string count = std::to_string(steps);
  std::fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    execl(program, program, "--steps", count.c_str(), "--train", path.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  for (int waited = 0; waitpid(child, &status, WNOHANG) == 0; ++waited) {
    if (waited == milliseconds) kill(child, SIGKILL);
    usleep(1000);
  }
  if (WIFSIGNALED(status)) return false;
  if (WEXITSTATUS(status) != 0) std::exit(1);  // it has said why
  return true;
}

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int64_t steps = 1000;
  std::string path;
  flags::Options options("resume",
                         "Kills training again and again, and compares what it gets to with a run left alone.");
  options.number("--steps", "N", "steps of training", steps, 1);
  options.advanced();
  options.text("--train", "FILE", "only train, with this checkpoint: what the program starts itself with", path);
  options.parse(argc, argv);
  if (!path.empty()) {
    train(path, steps);
    return 0;
  }

  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / ("tutti-resume-" + std::to_string(getpid()))).string();
  fs::create_directory(folder);
  std::printf("a run that is left alone\n");
  double loss = train(folder + "/calm", steps);

  std::printf("a run that is killed at random moments\n");
  std::mt19937 random(std::random_device{}());
  int kills = 0, life = 40;
  while (!train_briefly("/proc/self/exe", folder + "/hard", steps, life + int(random() % 80))) {
    ++kills;
    life += 5;  // a machine may be slow: it gets there in the end
  }

  auto calm = io::load_safetensors(folder + "/calm.weights"), hard = io::load_safetensors(folder + "/hard.weights");
  bool same = true;
  for (auto& [name, tensor] : calm) same = same && equal(tensor, hard.at(name));
  fs::remove_all(folder);
  std::printf("killed %d times; the weights are %s\n", kills, same ? "the same, bit for bit" : "DIFFERENT");
  std::printf("its last loss was %.2f; guessing among ten digits has %.2f\n", loss, std::log(10.0));
  return same && loss < std::log(10.0) ? 0 : 1;
}
