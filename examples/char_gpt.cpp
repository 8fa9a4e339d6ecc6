// A small GPT learns to write like this repository, character by character, and shows what it can.
#include <cstdio>

#include "flags.h"
#include "gpt.h"
#include "learned.h"
#include "tutti/tutti.h"

int main(int argc, char** argv) {
  int64_t steps = 2000, length = 500;
  std::vector<std::string> files;
  flags::Options options("char_gpt", "A small GPT learns to write like some text, character by character.");
  options.arguments("FILE", "what it reads (the documentation and headers below this folder)", files);
  options.number("--steps", "N", "steps of training", steps, 1);
  options.number("--length", "N", "characters to write at the end", length, 1);
  options.parse(argc, argv);
  if (files.empty()) files = own_files();
  if (files.empty()) {
    std::fprintf(stderr, "there is nothing to learn from here: name some text files\n");
    return 2;
  }

  manual_seed(1);
  std::string text = data::read_text(files);
  auto letters = data::Vocabulary::characters(text);
  Gpt gpt({.vocabulary = int64_t(letters.size())});
  std::printf("%zu files, %zu bytes, %zu different characters; a model of %ld parameters\n", files.size(), text.size(),
              letters.size(), long(gpt.parameter_count()));

  data::SequenceDataset pieces(letters.encode(text), gpt.options.length, gpt.options.length / 2);
  data::DataLoader loader(pieces, {.batch_size = 16, .shuffle = true, .drop_last = true, .workers = 1});
  optim::AdamW adam(gpt.parameters(), {.lr = 2e-3, .beta2 = 0.99, .weight_decay = 0.01});
  optim::Scheduler schedule(adam, optim::warmup(std::max<int64_t>(1, steps / 20)) * optim::cosine(steps, 0.1));

  Learned learned;
  Progress bar(steps, {.label = "training"});
  for (int64_t step = 0; step < steps;) {
    for (auto& [now, next] : loader) {
      Tensor loss = cross_entropy(gpt(now).flatten(0, 1), next.flatten());
      adam.zero_grad();
      loss.backward();
      optim::clip_grad_norm_(gpt.parameters(), 1.0);
      adam.step();
      schedule.step();
      bar.step({{"loss", learned.add(loss.item<double>())}});
      if (++step == steps) break;
    }
  }
  bar.finish();
  std::printf("\n%s\n", write(gpt, letters, "// ", length).c_str());
  return learned.status();
}
