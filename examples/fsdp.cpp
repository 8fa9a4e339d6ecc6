// A GPT that is too large for what one rank may use, trained by several: each keeps its part of the parameters, of
// their gradients and of Adam's states, and whole layers only while they are used.
#include <cstdio>

#include "flags.h"
#include "gpt.h"
#include "learned.h"

constexpr double kMiB = 1 << 20;

struct Settings {
  int64_t ranks = 4, layers = 8, steps = 60;
  std::string checkpoint;
};

// Layers are cut as they are made: there is never more than one whole.
Gpt make_sharded(const Settings& settings, int64_t vocabulary) {
  Gpt gpt({.vocabulary = vocabulary, .length = 32, .layers = 0, .dropout = 0});
  nn::TransformerOptions layer{.feedforward = 512, .dropout = 0, .gelu = true, .batch_first = true, .norm_first = true};
  for (int64_t i = 0; i < settings.layers; ++i) {
    gpt.body.layers.emplace_back(gpt.options.width, gpt.options.heads, layer);
    parallel::fully_shard(gpt.body.layers.back());
  }
  parallel::fully_shard(gpt);  // embeddings, the last norm and the head
  return gpt;
}

void train(const Settings& settings) {
  bool first = rank() == 0;
  std::string text = data::read_text(own_files());
  auto letters = data::Vocabulary::characters(text);
  Gpt gpt = make_sharded(settings, int64_t(letters.size()));

  // Outside of forward, parameters are this rank's parts: optimizers keep as much.
  optim::AdamW adam(gpt.parameters(), {.lr = 1e-3});
  Tensor count = tensor({gpt.parameter_count()}, i64);
  double here = 16.0 * double(gpt.parameter_count()) / kMiB;  // four numbers of four bytes for each parameter
  all_reduce(count);
  if (first)
    std::printf("parameters, gradients and states of Adam need %.1f MiB, and %.1f MiB on each of %d ranks\n",
                16.0 * count.item<double>() / kMiB, here, world_size());

  // From however many ranks saved it.
  bool keeps = !settings.checkpoint.empty(), goes_on = keeps && parallel::load_sharded(settings.checkpoint, gpt, &adam);
  if (goes_on && first) std::printf("goes on from %s\n", settings.checkpoint.c_str());

  data::SequenceDataset pieces(letters.encode(text), gpt.options.length, gpt.options.length);
  data::DataLoader loader(pieces,
                          {.batch_size = 8, .drop_last = true, .sampler = data::distributed_sampler(pieces.size())});
  Learned learned;
  int64_t step = 0;
  for (auto& [now, next] : loader) {
    Tensor loss = cross_entropy(gpt(now).flatten(0, 1), next.flatten());
    adam.zero_grad();
    loss.backward();                                   // gradients are averages over all ranks, and cut
    parallel::clip_grad_norm_(gpt.parameters(), 1.0);  // of the whole gradient
    adam.step();

    NoGrad guard;
    all_reduce(loss, {.op = Reduce::average});
    learned.add(loss.item<double>());
    if (first && step % 10 == 0) std::printf("step %3ld, loss %.4f\n", long(step), loss.item<double>());
    if (++step == settings.steps) break;
  }
  if (keeps) {
    parallel::save_sharded(settings.checkpoint, gpt, &adam);
    // And the model in one piece, for those who use it elsewhere.
    nn::StateDict whole = parallel::full_state_dict(gpt);
    if (first) io::save_safetensors(settings.checkpoint + "/gpt.safetensors", whole);
  }
  if (first && !goes_on && learned.status() != 0) throw std::runtime_error("nothing was learned");
}

int main(int argc, char** argv) {
  Settings settings;
  flags::Options options("fsdp", "Trains a GPT of which every rank keeps a part (fully_shard).");
  options.number("--ranks", "N", "processes, where no launcher started them", settings.ranks, 1, 1000);
  options.number("--layers", "N", "layers of the model", settings.layers, 1);
  options.number("--steps", "N", "steps of training", settings.steps, 1);
  options.text("--checkpoint", "FOLDER", "go on from there, and save there at the end", settings.checkpoint);
  options.example("tutti run -n 4 fsdp --layers 16", "ranks as tutti run starts them");
  options.parse(argc, argv);
  try {
    if (world_size() > 1)  // started as a rank of something
      train(settings);
    else
      spawn_processes(int(settings.ranks), [&] { train(settings); });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
