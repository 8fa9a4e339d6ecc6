// A small GPT learns to write like this repository, on several ranks: the whole of distributed training in one file.
//   train_gpt [--ranks 4] [--transport threads|shm] [--steps 1000] [--length 400] [--out folder]
//   tutti run -n 4 train_gpt                   the same on processes, or on hosts
// However the ranks are run, the losses are the same to the last bit; the last line has a fingerprint of all of them.
#include <bit>
#include <chrono>
#include <cstdio>
#include <iostream>

#include "flags.h"
#include "gpt.h"
#include "learned.h"

struct Settings {
  int64_t ranks, steps, length;
  std::string transport, out;
};

using Clock = std::chrono::steady_clock;

constexpr int64_t kContext = 64, kBatch = 8;  // characters that the model sees; sequences of them a step, on each rank
constexpr size_t kStepsInPicture = 3;

std::string describe_world() {
  std::string ranks = std::to_string(world_size()) + (world_size() == 1 ? " rank" : " ranks");
  if (world().transport() == "threads") return ranks + " (threads of one process)";
  if (local_size() == world_size()) return ranks + " (processes of one host)";
  return ranks + " (processes on several hosts)";
}

// 813000 is "0.81".
std::string millions(double count) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", 1e-6 * count);
  return text;
}

// What the training took, on one rank: a number for each step.
struct Measured {
  std::vector<double> losses;
  std::vector<Clock::time_point> begins;  // of the steps
  double communication = 0, exposed = 0;  // seconds that averaging gradients took, and that backward waited for it
  double tokens = 0;

  double step_ms(double seconds) const { return 1e3 * seconds / double(losses.size()); }
  double tokens_per_second() const {
    return tokens / std::chrono::duration<double>(Clock::now() - begins.front()).count();
  }
  // The same number means the same losses, to the last bit.
  unsigned long fingerprint() const {
    uint64_t bits = 0;
    for (double loss : losses) bits = std::rotl((bits ^ std::bit_cast<uint64_t>(loss)) * 0x9E3779B97F4A7C15u, 31);
    return bits;
  }
};

std::string indented(const std::string& text) {
  std::string out = "  | ";
  for (char c : text) out += c == '\n' ? std::string("\n  | ") : std::string(1, c);
  return out;
}

// The loss curve, and what the ranks did in the last steps.
void save_pictures(const Settings& settings, const Measured& measured, const Trace& trace,
                   const std::string& subtitle) {
  std::string curve = settings.out + "/loss.svg", picture = settings.out + "/trace.svg",
              events = settings.out + "/trace.json";
  io::save_curve(curve, measured.losses,
                 {.title = "Training loss of a small GPT", .subtitle = subtitle, .y = "loss (nats per character)"});
  size_t steps = measured.losses.size(), shown = std::min(steps, kStepsInPicture);
  std::vector<TraceMark> marks;
  for (size_t k = steps - shown; k < steps; ++k) marks.push_back({measured.begins[k], "step " + std::to_string(k + 1)});
  trace.save(picture, {.title = "The last steps of the training on " + describe_world(),
                       .begin = measured.begins[steps - shown],
                       .marks = marks});
  trace.save(events);
  std::printf(
      "Look at\n"
      "  %-22s the loss of each step\n"
      "  %-22s the last %zu steps on all ranks: who computed, communicated and waited, and when\n"
      "  %-22s all recorded calls, to open in https://ui.perfetto.dev\n\n",
      curve.c_str(), picture.c_str(), shown, events.c_str());
}

// What every rank does.
void train(const Settings& settings) {
  bool first = rank() == 0;
  std::string text = data::read_text(own_files());
  auto letters = data::Vocabulary::characters(text);
  // Small buckets, so that the first are on their way long before backward ends.
  parallel::DistributedDataParallel gpt(Gpt({.vocabulary = int64_t(letters.size()), .length = kContext, .dropout = 0}),
                                        {.bucket_bytes = 256 << 10});
  std::string size = millions(double(gpt.parameter_count())) + " million parameters";
  if (first)
    std::printf(
        "Training a GPT of %s to write like this repository, character by character:\n"
        "%s MB of its own sources and documentation, on %s that average their gradients in each step (DDP).\n",
        size.c_str(), millions(double(text.size())).c_str(), describe_world().c_str());
  std::fflush(stdout);

  data::SequenceDataset pieces(letters.encode(text), kContext, kContext / 2);
  data::DataLoader loader(
      pieces, {.batch_size = kBatch, .drop_last = true, .sampler = data::distributed_sampler(pieces.size())});
  optim::AdamW adam(gpt.parameters(), {.lr = 2e-3, .beta2 = 0.99, .weight_decay = 0.01});
  optim::Scheduler schedule(
      adam, optim::warmup(std::max<int64_t>(1, settings.steps / 20)) * optim::cosine(settings.steps, 0.1));

  Learned learned;
  Measured measured;
  Progress bar(settings.steps, {.label = "training", .enabled = first});
  while (int64_t(measured.losses.size()) < settings.steps) {
    for (auto& [now, next] : loader) {
      measured.begins.push_back(Clock::now());
      Tensor loss = cross_entropy(gpt(now).flatten(0, 1), next.flatten());
      adam.zero_grad();
      loss.backward();  // gradients are averaged over all ranks while it runs
      optim::clip_grad_norm_(gpt.parameters(), 1.0);
      adam.step();
      schedule.step();

      NoGrad guard;
      all_reduce(loss, {.op = Reduce::average});
      measured.losses.push_back(learned.add(loss.item<double>()));
      measured.tokens += double(now.numel()) * world_size();
      measured.communication += gpt.communication_time().total;
      measured.exposed += gpt.communication_time().exposed;
      bar.step({{"loss", measured.losses.back()}, {"tokens/s", measured.tokens_per_second()}});
      if (int64_t(measured.losses.size()) == settings.steps) break;
    }
  }
  bar.finish();
  Trace trace = gather_trace();
  gpt.check_equal();  // all ranks have the same weights, to the last bit
  if (!first) return;

  std::printf("Averaging gradients took %.2f ms a step: %.2f ms of it while backward ran, %.2f ms after it.\n\n",
              measured.step_ms(measured.communication), measured.step_ms(measured.communication - measured.exposed),
              measured.step_ms(measured.exposed));
  std::printf("What the model writes now, after \"// \":\n\n%s\n\n",
              indented(write(gpt.module, letters, "// ", settings.length)).c_str());
  save_pictures(settings, measured, trace,
                size + ", " + millions(double(text.size())) + " MB of text, " + describe_world());
  std::printf("%zu steps, loss %.4f, fingerprint of all losses %016lx\n", measured.losses.size(),
              measured.losses.back(), measured.fingerprint());
  if (learned.status() != 0) throw std::runtime_error("the loss did not fall");
}

int main(int argc, char** argv) {
  Settings settings{.ranks = 4, .steps = 1000, .length = 400, .transport = "threads", .out = "."};
  flags::Options options("train_gpt", "A small GPT learns to write like this repository, on several ranks.");
  options.number("--ranks", "N", "number of ranks, unless a launcher sets it", settings.ranks, 1, 1000);
  options.choice("--transport", "ranks are threads, or processes with shared memory", settings.transport,
                 {"threads", "shm"});
  options.number("--steps", "N", "steps of training", settings.steps, 1);
  options.number("--length", "N", "characters to write at the end", settings.length, 1);
  options.text("--out", "FOLDER", "where the loss curve and the trace go", settings.out);
  options.example("train_gpt --steps 100", "a short run on four threads");
  options.example("tutti run -n 4 train_gpt", "the same on four processes");
  options.parse(argc, argv);
  auto body = [&] { train(settings); };
  try {
    if (world_size() > 1)  // started as a rank of something
      body();
    else if (settings.transport == "shm")
      spawn_processes(int(settings.ranks), body);
    else
      spawn_ranks(int(settings.ranks), body);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
