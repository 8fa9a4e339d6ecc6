// Two ways to be parallel in one model: a table of a million songs that no trainer could hold lives on two servers,
// which every trainer asks for the few rows that it needs; the layers behind it are small, and every trainer has them,
// averaged by DistributedDataParallel. A driver makes the trainers and tells them what to do. Seven workers, which are
// threads here; with --as processes they are processes.
#include <cstdio>
#include <shared_mutex>

#include "flags.h"
#include "learned.h"
#include "tutti/rpc.h"
#include "tutti/tutti.h"

using namespace tutti;

constexpr int kTrainers = 4, kServers = 2, kDriver = kTrainers + kServers;
constexpr int64_t kGenres = 20, kWidth = 16;

std::string name_of(int rank) {
  if (rank < kTrainers) return "trainer" + std::to_string(rank);
  return rank == kDriver ? "driver" : "server" + std::to_string(rank - kTrainers);
}

/// Every second row of the table. Its gradients are sparse: a step costs what it touches.
class Shard {
 public:
  explicit Shard(int64_t rows) : table_(rows, kWidth, {.mode = BagMode::sum, .sparse = true}) {
    nn::init::normal_(table_.weight, 0, 0.1);
  }
  /// The sums of rows, for each bag.
  Tensor look_up(const Tensor& rows, const Tensor& offsets) {
    std::shared_lock lock(mutex_);
    return table_(rows, offsets);
  }
  /// By the gradients that a trainer's context has brought here. Trainers do not wait for each other.
  void step(dist_autograd::ContextId context) {
    std::unique_lock lock(mutex_);
    SinkGuard gradients(dist_autograd::sink(context));
    adam_.step();
  }

 private:
  nn::EmbeddingBag table_;
  optim::SparseAdam adam_{table_.parameters(), {.lr = 0.02}};
  std::shared_mutex mutex_;
};
using ShardRef = rpc::RemoteRef<Shard>;

/// What a listener has played, and a song that she may like: songs of one genre go together.
struct Batch {
  Tensor songs;  // [listeners, 1 + played]: the first is the one that is offered
  Tensor liked;
};
Batch make_batch(int64_t listeners, int64_t songs) {
  Tensor genre = randint(0, kGenres, {listeners, 1}), liked = randint(0, 2, {listeners, 1});
  Tensor other = (genre + randint(1, kGenres, {listeners, 1})) % kGenres;
  Tensor genres = cat({where(liked == 1, genre, other), genre.expand({listeners, 8})}, 1);
  Tensor rank = (pow(rand(genres.sizes()), 6.0) * double(songs / kGenres)).to(i64);  // a few are played most
  return {rank * kGenres + genres, liked.to(f32)};
}

struct Scorer : nn::Module<Scorer> {
  nn::Linear hidden{3 * kWidth, 32}, out{32, 1};
  TUTTI_FIELDS(hidden, out)
  Tensor forward(const Tensor& offered, const Tensor& played) {
    return out(relu(hidden(cat({offered, played, offered * played}, 1))));
  }
};

class Trainer {
 public:
  Trainer(std::vector<ShardRef> shards, int64_t songs) : shards_(std::move(shards)), songs_(songs) {
    manual_seed(static_cast<uint64_t>(rank()));
  }
  std::vector<double> train(int64_t steps) {
    std::vector<double> losses;
    for (int64_t step = 0; step < steps; ++step) {
      Batch batch = make_batch(64, songs_);
      dist_autograd::Context context;
      Tensor offered = rows_of(batch.songs.slice(1, 0, 1)), played = rows_of(batch.songs.slice(1, 1, 9)) / 8;
      Tensor loss = binary_cross_entropy_with_logits(scorer_(offered, played), batch.liked);
      dist_autograd::backward(context, {loss});  // here, and on both servers
      {
        SinkGuard gradients(dist_autograd::sink(context));
        adam_.step();
      }
      std::vector<rpc::Future<>> stepped;
      for (const ShardRef& shard : shards_) stepped.push_back(shard.async<&Shard::step>(context.id()));
      rpc::all(stepped).wait();
      losses.push_back(loss.item<double>());
    }
    return losses;
  }

 private:
  // Each server adds up those of a bag that it has, at the same time.
  Tensor rows_of(const Tensor& songs) {
    std::vector<rpc::Future<Tensor>> parts;
    for (int64_t server = 0; server < kServers; ++server) {
      Tensor here = songs % kServers == server;
      Tensor count = here.to(i64).sum(1);
      parts.push_back(shards_[static_cast<size_t>(server)].async<&Shard::look_up>(
          floor_divide(masked_select(songs, here), kServers), cumsum(count, 0) - count));
    }
    Tensor sum = parts[0].wait();
    for (size_t k = 1; k < parts.size(); ++k) sum = sum + parts[k].wait();
    return sum;
  }
  std::vector<ShardRef> shards_;
  int64_t songs_;
  parallel::DistributedDataParallel<Scorer> scorer_{Scorer{}, {.group = world().subgroup({0, 1, 2, 3})}};
  optim::Adam adam_{scorer_.parameters(), {.lr = 0.01}};
};

void drive(int64_t songs, int64_t steps) {
  std::vector<ShardRef> shards;
  for (int s = 0; s < kServers; ++s) shards.push_back(rpc::remote<Shard>(name_of(kTrainers + s), songs / kServers));
  std::vector<rpc::RemoteRef<Trainer>> trainers;
  for (int r = 0; r < kTrainers; ++r) trainers.push_back(rpc::remote<Trainer>(name_of(r), shards, songs));
  Learned learned;
  for (int64_t done = 0; done < steps;) {
    int64_t some = std::min<int64_t>(50, steps - done);
    std::vector<rpc::Future<std::vector<double>>> running;
    for (const auto& trainer : trainers) running.push_back(trainer.async<&Trainer::train>(some));
    double mean = 0;
    auto all = rpc::all(running).wait();
    for (int64_t k = 0; k < some; ++k) {
      mean = 0;
      for (const auto& losses : all) mean += losses[static_cast<size_t>(k)] / kTrainers;
      learned.add(mean);
    }
    done += some;
    std::printf("step %4ld  loss %.4f\n", long(done), mean);
  }
  if (learned.status() != 0) throw Error("it has not learned");
}

int main(int argc, char** argv) {
  int64_t songs = 1'000'000, steps = 400;
  std::string as = "threads";
  flags::Options options("hybrid_recommender",
                         "Recommends songs: a large table on two servers, small layers on four trainers.");
  options.number("--songs", "N", "rows of the table", songs, 1000);
  options.number("--steps", "N", "steps of training", steps, 1);
  options.choice("--as", "what the workers are", as, {"threads", "processes"});
  options.parse(argc, argv);

  auto body = [&] {
    rpc::Session session({.name = name_of(rank())});
    if (rank() == kDriver) drive(songs, steps);
  };
  as == "processes" ? spawn_processes(kDriver + 1, body) : spawn_ranks(kDriver + 1, body);
}
