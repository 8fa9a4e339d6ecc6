// What a training step costs (forward, backward, Adam): a multilayer perceptron, an LSTM, a convolutional network and a
// small GPT, on one and two threads, and the memory at most in use. libtorch, where installed, takes turns with the
// same models (bench/peers/train_libtorch.cpp).
#include <fcntl.h>
#include <fmt/core.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>

#include "base/isa.h"
#include "bench/support/figure.h"
#include "bench/support/measure.h"
#include "bench/support/peer.h"
#include "bench/support/run.h"
#include "tutti/tutti.h"

using namespace bench;
using namespace tutti;

namespace {

using bench::Options;  // there is tutti's, too

constexpr const char* kServe = "--serve";  // what a process of one contender is started with
constexpr double kRate = 1e-4;             // small: hundreds of steps on the same batch must not lead to zeros

/// A step on a fixed batch; `loss(net)` is the forward pass.
template <class Net, class Loss>
std::function<void()> step_of(Net net, Loss loss) {
  auto adam = std::make_shared<optim::Adam>(net.parameters(), optim::AdamOptions{.lr = kRate});
  return [net, adam, loss]() mutable {
    adam->zero_grad();
    loss(net).backward();
    adam->step();
  };
}

std::function<void()> mlp() {
  using nn::Linear, nn::ReLU;
  nn::Sequential net(Linear(1024, 1024), ReLU(), Linear(1024, 1024), ReLU(), Linear(1024, 1024), ReLU());
  return step_of(net, [x = randn({64, 1024}), y = randn({64, 1024})](auto& n) { return mse_loss(n(x), y); });
}

struct SequenceNet : nn::Module<SequenceNet> {
  nn::LSTM lstm{256, 256, {.layers = 3}};
  nn::Linear head{256, 1};
  TUTTI_FIELDS(lstm, head)
  Tensor forward(const Tensor& x) { return head(lstm(x).output); }
};
std::function<void()> lstm() {
  Tensor x = randn({100, 12, 256}), y = randn({100, 12, 1});
  return step_of(SequenceNet(), [x, y](auto& n) { return mse_loss(n(x), y); });
}

std::function<void()> cnn() {
  using nn::Conv2d, nn::ReLU, nn::MaxPool2d;
  nn::Sequential net(Conv2d(3, 32, 3, {.padding = 1}), ReLU(), Conv2d(32, 64, 3, {.padding = 1}), ReLU(), MaxPool2d(2),
                     Conv2d(64, 64, 3, {.padding = 1}), ReLU(), MaxPool2d(2), nn::Flatten(), nn::Linear(4096, 10));
  Tensor x = randn({32, 3, 32, 32}), y = randint(0, 10, {32});
  return step_of(net, [x, y](auto& n) { return cross_entropy(n(x), y); });
}

constexpr int64_t kVocabulary = 96, kWidth = 128, kHeads = 4, kLayers = 4, kLength = 64, kBatch = 8;
struct Gpt : nn::Module<Gpt> {
  nn::Embedding tokens{kVocabulary, kWidth}, places{kLength, kWidth};
  nn::TransformerEncoder body{
      kWidth,
      kHeads,
      kLayers,
      {.feedforward = 4 * kWidth, .dropout = 0, .gelu = true, .batch_first = true, .norm_first = true}};
  nn::Linear head{kWidth, kVocabulary};
  TUTTI_FIELDS(tokens, places, body, head)
  Tensor forward(const Tensor& x) {
    return head(body(tokens(x) + places(arange(x.size(1))), nn::AttendOptions{.causal = true}));
  }
};
std::function<void()> gpt() {
  Tensor x = randint(0, kVocabulary, {kBatch, kLength}), y = randint(0, kVocabulary, {kBatch * kLength});
  return step_of(Gpt(), [x, y](auto& n) { return cross_entropy(n(x).view({-1, kVocabulary}), y); });
}

std::function<void()> product() {
  return [a = randn({1024, 1024}), b = randn({1024, 1024})] { matmul(a, b); };
}

struct Model {
  const char* name;
  std::function<void()> (*make)();
  double of_peer = NAN;  // wanted on one thread
  // GFLOP of its products, forward and both gradients (not that of the first layer's input): the least that a step can
  // take, at the rate of a large product. Convolutions by Winograd need fewer than they are counted as: not given.
  double products = NAN;
};
constexpr double kGptTokens = kBatch * kLength;
constexpr Model kModels[] = {
    {"mlp", mlp, 0.6, 8 * 2e-9 * 64 * 1024 * 1024},
    {"lstm", lstm, 0.45, (3 * 6 - 1) * 2e-9 * 100 * 12 * 256 * 1024},
    {"cnn", cnn, 0.5},
    {"gpt", gpt, 0.5, 3 * 2e-9 * kGptTokens* kWidth*(kLayers * (12 * kWidth + 2 * kLength) + kVocabulary)},
};
constexpr Model kProduct{"product", product, NAN, 2e-9 * 1024 * 1024 * 1024};

void use_threads(int threads) {
  context().threads = threads;
  omp_set_num_threads(threads);
  set_libtorch_threads(threads);
}

// ---- Processes: each contender has its own, so that neither finds the heap as the other left it.

double resident(const char* key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return std::strtod(line.c_str() + std::strlen(key) + 1, nullptr) / 1024;
  return NAN;
}

/// The other end of a Process: answers each line of standard input with a number.
int serve(const std::string& who, const std::string& name, int threads) {
  use_threads(threads);
  manual_seed(1);
  double idle = resident("VmRSS:");
  Contender work;
  for (auto& model : kModels)
    if (model.name == name) work = who == "tutti" ? contender(who, model.make()) : libtorch(name, {});
  if (name == kProduct.name) work = contender(who, kProduct.make());
  if (!work.run) return 2;
  char question[16];
  for (int64_t count; std::scanf("%15s %ld", question, &count) == 2;) {
    std::string_view asked = question;
    Time time = asked == "wall" ? Time::wall : Time::processor;
    double answer = asked == "idle" ? idle : asked == "peak" ? resident("VmHWM:") : now(time);
    if (count > 0) {
      work.run(count);
      answer = now(time) - answer;
    }
    fmt::print("{}\n", answer);
    std::fflush(stdout);
  }
  return 0;
}

class Process {
 public:
  Process(const std::string& who, const std::string& name, int threads) {
    int down[2], up[2];
    if (pipe2(down, O_CLOEXEC) || pipe2(up, O_CLOEXEC)) throw std::runtime_error("no pipes");
    std::string count = std::to_string(threads);
    child_ = fork();
    if (child_ == 0) {
      dup2(down[0], 0);
      dup2(up[1], 1);
      execl("/proc/self/exe", "bench_train", kServe, who.c_str(), name.c_str(), count.c_str(), nullptr);
      _exit(127);
    }
    close(down[0]);
    close(up[1]);
    to_ = fdopen(down[1], "w");
    from_ = fdopen(up[0], "r");
  }
  ~Process() {
    std::fclose(to_);  // it ends when there are no more questions
    std::fclose(from_);
    waitpid(child_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  double ask(const char* what, int64_t count = 0) {
    double answer = NAN;
    std::fprintf(to_, "%s %ld\n", what, static_cast<long>(count));
    std::fflush(to_);
    if (std::fscanf(from_, "%lf", &answer) != 1) throw std::runtime_error("a process of the benchmark has died");
    return answer;
  }
  double run(int64_t iterations, Time time) { return ask(time == Time::wall ? "wall" : "processor", iterations); }

 private:
  pid_t child_;
  FILE *to_, *from_;
};

Contender in_process(const std::string& who, const char* name, int threads) {
  if (who != "tutti" && !have_libtorch) return {who};
  auto process = std::make_shared<Process>(who, name, threads);
  return {who, [process](int64_t n) { process->run(n, Time::wall); },
          [process](int64_t n, Time time) { return process->run(n, time); }};
}

/// Seconds a GFLOP of a large product.
double rate_of_products(const Options& options, int threads) {
  return measure({in_process("tutti", kProduct.name, threads)}, time_for(threads), options)[0].median /
         kProduct.products;
}

void report_time(const Options& options, const Model& model, int threads, double rate) {
  std::string name = fmt::format("{}_{}", model.name, threads);
  if (!options.wants(name)) return;
  auto t = measure({in_process("tutti", model.name, threads), in_process("libtorch", model.name, threads)},
                   time_for(threads), options);
  report({.name = name,
          .value = t[0].median * 1e3,
          .unit = "ms",
          .peer = "pytorch",
          .peer_value = t[1].median * 1e3,
          .want = threads == 1 ? Want{Want::ratio_at_most, model.of_peer} : Want{},
          .extra = {{"products", model.products * rate * 1e3},
                    {"products_of_peer", model.products * rate / t[1].median},
                    {"best", t[0].best * 1e3},
                    {"best_pytorch", t[1].best * 1e3},
                    {"spread", t[0].spread},
                    {"spread_pytorch", t[1].spread},
                    {"others", t[0].others}}});
}

// ---- Memory

struct Memory {
  double idle = NAN, peak = NAN;  // MiB: before the model is made, the libraries being loaded; at most during ten steps
  double used() const { return peak - idle; }
};
Memory memory_of(const char* who, const char* name) {
  Process process(who, name, 1);
  process.run(10, Time::wall);
  return {process.ask("idle"), process.ask("peak")};
}

void report_memory(const Options& options, const Model& model) {
  std::string name = fmt::format("{}_memory", model.name);
  if (!options.wants(name)) return;
  Memory ours = memory_of("tutti", model.name), peer = have_libtorch ? memory_of("libtorch", model.name) : Memory{};
  report({.name = name,
          .value = ours.used(),
          .unit = "MiB",
          .peer = "pytorch",
          .peer_value = peer.used(),
          .want = {Want::ratio_at_most, 1.0},
          .extra = {{"idle", ours.idle}, {"idle_pytorch", peer.idle}}});
}

std::string details() {
  const char* isa[] = {"base", "v3", "v4"};
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("isa={} onednn={}.{}.{} pytorch={}", isa[static_cast<int>(best_isa())], v->major, v->minor,
                     v->patch, libtorch_version());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && std::string_view(argv[1]) == kServe) return serve(argv[2], argv[3], std::atoi(argv[4]));
  bench::Options options = start(argc, argv, "Measures training steps, beside PyTorch.");
  std::vector<int> threads = options.threads ? std::vector{options.threads} : std::vector{1, 2};
  if (!options.threads && cores() < 2) threads.pop_back();
  print_header(
      "train", threads, details(),
      "ms a training step (forward, backward, Adam) of mlp 3x1024 batch 64, lstm 3x256 batch 12 length 100, "
      "cnn of 3 convolutions batch 32 at 32x32, gpt 4 layers 128 wide length 64 batch 8; _1 and _2: threads; "
      "processor time with 1 thread, wall time with more; products: what the products alone would take at the rate of "
      "one of 1024^3; _memory: MiB at most beyond idle, 1 thread");
  if (!have_libtorch) fmt::print("note no PyTorch here: Tutti is measured alone (make bench PEERS=1 installs it)\n");
  for (int t : threads) {
    double rate = rate_of_products(options, t);
    for (auto& model : kModels) report_time(options, model, t, rate);
  }
  for (auto& model : kModels) report_memory(options, model);
  report_summary();
}
