// What to listen to next: songs become vectors, a listener is the mean of the songs she played. A step looks up a few
// hundred rows of a large table; gradients are sparse, so it costs what it touches and not the size of the table.
#include <cstdio>

#include "flags.h"
#include "learned.h"
#include "tutti/tutti.h"

using namespace tutti;

constexpr int64_t kGenres = 12, kPerGenre = 5'000, kSongs = kGenres * kPerGenre;

struct Batch {
  Tensor played, offsets;  // songs of all listeners one after the other, and where each listener's begin
  Tensor offered;          // [listeners]: a song
  Tensor liked;            // f32 [listeners]: whether she liked it
  TUTTI_FIELDS(played, offsets, offered, liked)
};

// Every listener has one genre at heart. Songs within a genre are played as in life: a few of them most of the time.
Tensor songs_of(const Tensor& genre) {
  Tensor rank = (pow(rand(genre.sizes()), 4.0) * double(kPerGenre)).to(i64);
  return rank * kGenres + genre;
}
Batch make_batch(int64_t listeners) {
  Tensor genre = randint(0, kGenres, {listeners}), count = randint(3, 15, {listeners});
  Tensor offsets = cumsum(count, 0) - count;
  Tensor played = masked_select(songs_of(genre.unsqueeze(1).expand({listeners, 14})), arange(14) < count.unsqueeze(1));
  Tensor liked = randint(0, 2, {listeners});
  Tensor other = (genre + randint(1, kGenres, {listeners})) % kGenres;
  return {played, offsets, songs_of(where(liked == 1, genre, other)), liked.to(f32)};
}

struct Recommender : nn::Module<Recommender> {
  nn::EmbeddingBag listener{kSongs, 32, {.mode = BagMode::mean, .sparse = true}};
  nn::Embedding song{kSongs, 32, {.sparse = true}};
  TUTTI_FIELDS(listener, song)

  Recommender() {
    for (Tensor table : {listener.weight, song.weight}) nn::init::normal_(table, 0, 0.1);
  }
  Tensor forward(const Batch& b) { return (listener(b.played, b.offsets) * song(b.offered)).sum(-1); }
};

int main(int argc, char** argv) {
  int64_t steps = 1500;
  flags::Options options("recommender", "Learns which songs go together, with sparse gradients of large tables.");
  options.number("--steps", "N", "steps of training", steps, 1);
  options.parse(argc, argv);

  manual_seed(1);
  Recommender model;
  std::printf("%s\n", to_string(model).c_str());
  optim::SparseAdam adam(model.parameters(), {.lr = 0.02});
  Learned learned;
  Progress bar(steps, {.label = "listening"});
  int64_t rows = 0;
  for (int64_t step = 0; step < steps; ++step) {
    Batch batch = make_batch(256);
    Tensor loss = binary_cross_entropy_with_logits(model(batch), batch.liked);
    adam.zero_grad();
    loss.backward();
    adam.step();
    rows += batch.played.numel() + batch.offered.numel();
    bar.step({{"loss", learned.add(loss.item<double>())}});
  }
  bar.finish();
  std::printf("a step touched at most %ld of %ld rows\n", long(rows / steps), long(2 * kSongs));

  NoGrad no_grad;
  Batch test = make_batch(4096);
  double right = ((model(test) > 0).to(f32) == test.liked).to(f32).mean().item<double>();
  std::printf("guessed right whether a song is liked: %.1f %%\n", right * 100);

  Tensor history = tensor({7, 7 + kGenres, 7 + 3 * kGenres, 7 + 8 * kGenres});  // all of genre 7
  Tensor scores = mv(model.song.weight.slice(0, 0, 100 * kGenres), model.listener(history.unsqueeze(0)).squeeze(0));
  std::printf("to a listener of genre 7 it recommends:");
  for (int64_t s : topk(scores, 5).indices.to_vector<int64_t>())
    std::printf("  song %ld (genre %ld)", long(s), long(s % kGenres));
  std::printf("\n");
  return learned.status();
}
