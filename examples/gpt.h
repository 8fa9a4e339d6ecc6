// A small GPT that reads and writes text character by character, for the examples.
#pragma once

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "tutti/tutti.h"

using namespace tutti;  // NOLINT: an example's own header

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

// This repository's own text: its documentation, headers and examples.
inline std::vector<std::string> own_files() {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  for (const char* folder : {"docs", "include", "examples"})
    if (fs::is_directory(folder))
      for (auto& entry : fs::recursive_directory_iterator(folder))
        if (auto kind = entry.path().extension(); kind == ".md" || kind == ".h" || kind == ".cpp")
          files.push_back(entry.path().string());
  if (files.empty())
    throw std::runtime_error("there is no docs, include or examples here: run this from the repository's root");
  std::sort(files.begin(), files.end());
  return files;
}

// Characters drawn one by one from what the model expects next; a lower temperature makes it surer of itself.
inline std::string write(Gpt& gpt, const data::Vocabulary& letters, const std::string& beginning, int64_t count,
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
