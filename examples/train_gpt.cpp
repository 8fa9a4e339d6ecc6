// A small GPT learns to write like this repository, on several ranks: the whole of distributed training in one file.
//   train_gpt [--ranks 4] [--transport threads|shm] [--steps 1000] [--length 400] [--out folder]
//   tutti run -n 4 train_gpt                   the same on processes, or on hosts
// However the ranks are run, the losses are the same to the last bit; the last line is a number made of all of them.
#include <bit>
#include <chrono>
#include <cstdio>
#include <iostream>

#include "curve.h"
#include "flags.h"
#include "gpt.h"
#include "learned.h"

struct Settings {
  int64_t ranks, steps, length;
  std::string transport, out;
};

// What every rank does.
void train(const Settings& settings) {
  bool first = rank() == 0;
  std::string text = data::read_text(own_files());
  auto letters = data::Vocabulary::characters(text);
  // Small buckets, so that the first are on their way long before backward ends.
  parallel::DistributedDataParallel gpt(Gpt({.vocabulary = int64_t(letters.size()), .length = 64, .dropout = 0}),
                                        {.bucket_bytes = 256 << 10});
  if (first)
    std::printf(
        "%zu bytes of text (this repository's own sources), %zu different characters; a model of %ld parameters "
        "on %s\n",
        text.size(), letters.size(), long(gpt.parameter_count()), to_string(world()).c_str());

  data::SequenceDataset pieces(letters.encode(text), 64, 32);
  data::DataLoader loader(pieces,
                          {.batch_size = 8, .drop_last = true, .sampler = data::distributed_sampler(pieces.size())});
  optim::AdamW adam(gpt.parameters(), {.lr = 2e-3, .beta2 = 0.99, .weight_decay = 0.01});
  optim::Scheduler schedule(
      adam, optim::warmup(std::max<int64_t>(1, settings.steps / 20)) * optim::cosine(settings.steps, 0.1));

  Learned learned;
  std::vector<double> losses;
  double tokens = 0, hidden = 0, exposed = 0;
  auto begin = std::chrono::steady_clock::now();
  Progress bar(settings.steps, {.label = "reading", .enabled = first});
  while (int64_t(losses.size()) < settings.steps) {
    for (auto& [now, next] : loader) {
      Tensor loss = cross_entropy(gpt(now).flatten(0, 1), next.flatten());
      adam.zero_grad();
      loss.backward();  // gradients are averaged over all ranks while it runs
      optim::clip_grad_norm_(gpt.parameters(), 1.0);
      adam.step();
      schedule.step();

      NoGrad guard;
      all_reduce(loss, {.op = Reduce::average});
      losses.push_back(learned.add(loss.item<double>()));
      tokens += double(now.numel()) * world_size();
      auto [total, waited] = gpt.communication_time();
      hidden += total - waited;
      exposed += waited;
      double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      bar.step({{"loss", losses.back()},
                {"tokens/s", tokens / seconds},
                {"hidden ms", 1e3 * hidden / double(losses.size())},
                {"exposed ms", 1e3 * exposed / double(losses.size())}});
      if (int64_t(losses.size()) == settings.steps) break;
    }
  }
  bar.finish();

  gpt.check_equal();
  Trace trace = gather_trace();
  if (!first) return;
  std::printf("\n%s\n\n", write(gpt.module, letters, "// ", settings.length).c_str());
  std::string curve = settings.out + "/loss.svg", spans = settings.out + "/trace.json";
  trace.save(spans);
  if (draw_curve(curve, losses, "loss of a character GPT on " + to_string(world())))
    std::printf("the loss as a picture: %s\nwhat the ranks did last, for https://ui.perfetto.dev: %s\n", curve.c_str(),
                spans.c_str());
  uint64_t bits = 0;
  for (double loss : losses) bits = std::rotl((bits ^ std::bit_cast<uint64_t>(loss)) * 0x9E3779B97F4A7C15u, 31);
  std::printf("%ld steps, loss %.4f, all losses together %016lx\n", long(losses.size()), losses.back(),
              static_cast<unsigned long>(bits));
  if (learned.status() != 0) throw std::runtime_error("nothing was learned");
}

int main(int argc, char** argv) {
  Settings settings{.ranks = 4, .steps = 1000, .length = 400, .transport = "threads", .out = "."};
  flags::Options options("train_gpt", "A small GPT learns to write like this repository, on several ranks.");
  options.number("--ranks", "N", "ranks, where no launcher started them", settings.ranks, 1, 1000);
  options.choice("--transport", "what carries their messages: ranks are threads, or processes that share memory",
                 settings.transport, {"threads", "shm"});
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
