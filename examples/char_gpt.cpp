// A small GPT learns to write like this repository, character by character, and shows what it can.
//   char_gpt [--steps 2000] [--length 500] [files]      without files: the documentation and headers below this folder
#include <cstdio>
#include <filesystem>

#include "flags.h"
#include "learned.h"
#include "tutti/tutti.h"

using namespace tutti;

struct GptOptions {
  int64_t vocabulary, length = 96, width = 128, heads = 4, layers = 4;
  double dropout = 0.1;
  TUTTI_FIELDS(vocabulary, length, width, heads, layers, dropout)
};

struct Gpt : nn::Module<Gpt> {
  GptOptions options;
  nn::Embedding tokens, places;
  nn::TransformerEncoder body;  // decoder-only: it is an encoder whose attention is causal
  nn::Linear head;
  TUTTI_FIELDS(options, tokens, places, body, head)

  explicit Gpt(const GptOptions& o)
      : options(o),
        tokens(o.vocabulary, o.width),
        places(o.length, o.width),
        body(o.width, o.heads, o.layers,
             {.feedforward = 4 * o.width, .dropout = o.dropout, .gelu = true, .batch_first = true, .norm_first = true}),
        head(o.width, o.vocabulary) {
    for (Tensor table : {tokens.weight, places.weight}) nn::init::normal_(table, 0, 0.02);
  }
  // [batch, time] to the scores of what comes next, [batch, time, vocabulary].
  Tensor forward(const Tensor& text) {
    Tensor x = tokens(text) + places(arange(text.size(1)));
    return head(body(x, nn::AttendOptions{.causal = true}));
  }
};

std::vector<std::string> own_files() {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  for (const char* folder : {"docs", "include", "examples"})
    if (fs::is_directory(folder))
      for (auto& entry : fs::recursive_directory_iterator(folder))
        if (auto kind = entry.path().extension(); kind == ".md" || kind == ".h" || kind == ".cpp")
          files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

// Characters drawn one by one from what the model expects next; a lower temperature makes it surer of itself.
std::string write(Gpt& gpt, const data::Vocabulary& letters, const std::string& beginning, int64_t count,
                  double temperature = 0.7) {
  NoGrad no_grad;
  gpt.eval();
  Tensor text = letters.encode(beginning).unsqueeze(0);
  for (int64_t i = 0; i < count; ++i) {
    Tensor seen = text.slice(1, std::max<int64_t>(0, text.size(1) - gpt.options.length), text.size(1));
    Tensor scores = gpt(seen).select(1, -1) / temperature;
    text = cat({text, multinomial(softmax(scores, -1), 1)}, 1);
  }
  gpt.train();
  return letters.decode(text.squeeze(0));
}

int main(int argc, char** argv) {
  Flags flags(argc, argv);
  int64_t steps = flags.number("--steps", 2000), length = flags.number("--length", 500);
  std::vector<std::string> files = flags.rest().empty() ? own_files() : flags.rest();
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
  Progress bar(steps, {.label = "reading"});
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
