// Every pair of options and ways of use, against one process that does the work of all ranks.
#include <map>

#include "tests/parallel/support.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using parallel::BufferPolicy;
using parallel::DdpOptions;

enum Feature {
  kSmallBuckets,
  kSamples,
  kStatic,
  kCompress,
  kUserHook,
  kChecksum,
  kAverageBuffers,
  kOwnBuffers,
  kNoSync,
  kCheckpoint,
  kTwice,
  kSparse,
  kRankDiffers,
  kCreateGraph,
  kJoin,
  kSyncNorm,
  kOwnSink,
  kFrozen,
  kHalf,
  kOtherRoot,
  kOtherGroup,
  kChanges,
  kForwards,
  kFeatures
};
constexpr const char* kNames[kFeatures] = {
    "small buckets",   "samples",      "static graph", "compress",         "user hook",       "checksum",
    "average buffers", "own buffers",  "no_sync",      "checkpoint",       "twice",           "sparse",
    "rank differs",    "create_graph", "join",         "sync batch norms", "own sink",        "frozen",
    "f16 hook",        "other root",   "other group",  "changing graph",   "several forwards"};

struct Features {
  bool on[kFeatures] = {};
  bool operator[](Feature f) const { return on[f]; }
};

struct Net : nn::Module<Net> {
  nn::Embedding words;
  nn::Linear one{4, 4}, two{4, 4}, other{4, 4};
  nn::BatchNorm1d norm{4};
  TUTTI_FIELDS(words, one, two, other, norm)
  explicit Net(bool sparse) : words(20, 4, {.sparse = sparse}) {}
  Tensor body(const Tensor& x, bool twice) { return tanh(two(twice ? tanh(two(x)) : x)); }
  Tensor forward(const Tensor& x, const Features& f, bool use_other) {
    Tensor h = norm(one(words(x)));
    h = f[kCheckpoint] ? checkpoint([this, &f](const Tensor& y) { return body(y, f[kTwice]); }, h) : body(h, f[kTwice]);
    if (f[kCheckpoint] && f[kTwice]) h = tanh(two(h));
    return use_other ? other(h) : h;
  }
};

int64_t rows_of(const Features& f, int r) { return f[kSamples] ? r + 2 : 3; }
int64_t first_row(const Features& f, int r) {
  int64_t row = 0;
  for (int k = 0; k < r; ++k) row += rows_of(f, k);
  return row;
}
int steps_of(const Features& f, int r) { return f[kJoin] ? 3 - r : 3; }
Tensor words_of(const Features& f, int step, int part, int r) {
  manual_seed(static_cast<uint64_t>(100 * step + part));
  return randint(0, 20, {first_row(f, world_size())}).narrow(0, first_row(f, r), rows_of(f, r));
}
int parts_of(const Features& f) { return f[kNoSync] ? 2 : 1; }
int forwards_of(const Features& f) { return f[kForwards] ? 2 : 1; }
bool uses_other(const Features& f, int r, int step) {
  return (!f[kRankDiffers] || r == 0) && (!f[kChanges] || step % 2 == 1);
}
// The group: the other way round, so that no rank is what it is in the world.
std::vector<int> ranks_of(const Features& f) {
  std::vector<int> ranks;
  for (int r = 0; r < world_size(); ++r) ranks.push_back(f[kOtherGroup] ? world_size() - 1 - r : r);
  return ranks;
}
int root_of(const Features& f) { return f[kOtherRoot] ? world_size() - 1 : 0; }

// Means over rows, so that ranks' losses can be put together by weights.
Tensor loss_of_rows(const Tensor& y) { return (y * (y + 0.5)).mean(1).mean(); }

// One process: what all active ranks do in a step, put together.
void reference_step(std::vector<Net>& nets, const Features& f, int step) {
  double total = 0;
  for (int r = 0; r < world_size(); ++r)
    if (step < steps_of(f, r)) total += f[kSamples] ? static_cast<double>(rows_of(f, r)) : 1;
  auto loss_of_forward = [&](int number) {
    TensorList xs;
    for (int r = 0; r < world_size(); ++r)
      if (step < steps_of(f, r)) xs.push_back(words_of(f, step, number, r));
    Tensor sum = zeros({}, {f64}), all;
    if (f[kSyncNorm]) all = nets[0](cat(xs), f, false);
    for (int r = 0, k = 0, row = 0; r < world_size(); ++r) {
      if (step >= steps_of(f, r)) continue;
      double weight = (f[kSamples] ? static_cast<double>(rows_of(f, r)) : 1) / total;
      Tensor y = f[kSyncNorm] ? all.narrow(0, row, rows_of(f, r))
                              : nets[static_cast<size_t>(r)](xs[static_cast<size_t>(k)], f, false);
      if (uses_other(f, r, step)) y = nets[0].other(y);
      sum = sum + loss_of_rows(y) * weight;
      row += static_cast<int>(rows_of(f, r));
      ++k;
    }
    return sum;
  };
  for (int part = 0; part < parts_of(f); ++part) {
    Tensor sum = zeros({}, {f64});
    for (int k = 0; k < forwards_of(f); ++k) sum = sum + loss_of_forward(part + 10 * k);
    sum.backward();
  }
}

parallel::CommunicationHook user_hook() {
  return [](parallel::GradientBucket& b) -> std::function<void()> {
    for (size_t i = 0; i < b.gradients.size(); ++i) EXPECT_EQ(b.gradients[i].sizes(), b.parameters[i].sizes());
    return [&b] { all_reduce(b.buffer, b.average); };
  };
}

DdpOptions options_of(const Features& f) {
  DdpOptions o;
  if (f[kSmallBuckets]) o.bucket_bytes = 100;
  if (f[kSamples]) o.average = parallel::Average::samples;
  o.static_graph = f[kStatic];
  if (f[kCompress]) o.hook = parallel::compress(bf16);
  if (f[kHalf]) o.hook = parallel::compress(f16);
  if (f[kOtherGroup]) o.group = world().subgroup(ranks_of(f));
  o.root = root_of(f);
  if (f[kUserHook]) o.hook = user_hook();
  if (f[kChecksum]) o.checksum_every = 1;
  if (f[kAverageBuffers]) o.buffers = BufferPolicy::average;
  if (f[kOwnBuffers]) o.buffer_policy["norm.running_mean"] = BufferPolicy::none;
  return o;
}

// What becomes of the running means at the end of a step in which some ranks were active.
void sync_means(std::vector<Net>& nets, const Features& f, int step) {
  NoGrad guard;
  if (f[kOwnBuffers] || f[kSyncNorm]) return;
  Tensor sum = zeros({4}, {f64});
  double total = 0;
  std::vector<int> ranks = ranks_of(f);
  // Inside of join() the first that is active counts as the root.
  if (!f[kAverageBuffers] && !f[kJoin]) ranks = {ranks[static_cast<size_t>(root_of(f))]};
  for (int r : ranks) {
    if (step >= steps_of(f, r) || (total > 0 && !f[kAverageBuffers])) continue;
    double weight = f[kSamples] ? static_cast<double>(rows_of(f, r)) : 1;
    sum = sum + nets[static_cast<size_t>(r)].norm.running_mean * weight;
    total += weight;
  }
  for (Net& net : nets) net.norm.running_mean.copy_(sum / total);
}

bool possible(Feature a, Feature b) {
  auto is = [&](Feature x, Feature y) { return (a == x && b == y) || (a == y && b == x); };
  if (is(kCompress, kUserHook) || is(kHalf, kUserHook) || is(kHalf, kCompress)) return false;  // there is one hook
  return !is(kStatic, kChanges);
}

// Gradients that have a graph hold what they were made from, and it them: such circles are taken apart at the end.
struct Clear {
  std::vector<nn::ModuleBase*> modules;
  ~Clear() {
    for (auto* m : modules) m->zero_grad();
  }
};

void train_with(const Features& f) {
  Net net = seeded<Net>(f[kSparse]);
  if (f[kFrozen]) net.one.requires_grad_(false);
  // One of the reference's modules for each rank, whose parameters are shared and whose buffers are not.
  std::vector<Net> nets{net.clone()};
  for (int r = 1; r < world_size(); ++r) {
    nets.push_back(nets[0]);
    nets.back().norm.running_mean = nets[0].norm.running_mean.clone();
    nets.back().norm.running_var = nets[0].norm.running_var.clone();
    nets.back().norm.num_batches_tracked = nets[0].norm.num_batches_tracked.clone();
  }
  Clear clear{{&net, &nets[0]}};
  auto norms = std::make_shared<std::optional<parallel::SyncedBatchNorms>>();
  if (f[kSyncNorm]) norms->emplace(parallel::sync_batch_norms(net, world().subgroup(ranks_of(f))));
  DistributedDataParallel ddp(net, options_of(f));
  optim::SGD sgd(ddp.parameters(), {.lr = 0.1}), alone(nets[0].parameters(), {.lr = 0.1});
  double tolerance = f[kCompress] || f[kHalf] ? 0.01 : 1e-11;
  Table table;
  auto body = [&] {
    for (int step = 0; step < steps_of(f, rank()); ++step) {
      std::optional<SinkGuard> sink;
      if (f[kOwnSink]) sink.emplace(table);
      sgd.zero_grad();
      for (int part = 0; part < parts_of(f); ++part) {
        std::optional<parallel::NoSync> quiet;
        if (part + 1 < parts_of(f)) quiet.emplace(ddp.no_sync());
        if (f[kSamples]) ddp.set_samples(static_cast<double>(rows_of(f, rank())));
        Tensor loss = zeros({}, {f64});
        for (int k = 0; k < forwards_of(f); ++k)
          loss = loss + loss_of_rows(ddp(words_of(f, step, part + 10 * k, rank()), f, uses_other(f, rank(), step)));
        loss.backward({.create_graph = f[kCreateGraph]});
      }
      {
        Context plain = context();
        plain.sink = nullptr;
        ContextGuard guard(plain);
        alone.zero_grad();
        reference_step(nets, f, step);
        sync_means(nets, f, step);
      }
      auto wanted = nets[0].named_parameters();
      for (auto& [name, p] : net.named_parameters()) {
        auto same = std::find_if(wanted.begin(), wanted.end(), [&](auto& w) { return w.first == name; });
        expect_close(gradient_sink().gradient(p), same->second.grad(), name, tolerance);
      }
      expect_close(net.norm.running_mean, nets[f[kSyncNorm] ? 0 : static_cast<size_t>(rank())].norm.running_mean,
                   "running mean", tolerance);
      sgd.step();
      sink.reset();
      Context plain = context();
      plain.sink = nullptr;
      ContextGuard guard(plain);
      alone.step();
    }
  };
  if (!f[kJoin]) return body();
  std::vector<parallel::Joinable> parts{ddp};
  if (f[kSyncNorm]) parts.push_back(**norms);
  Group group = world().subgroup(ranks_of(f));
  EXPECT_EQ(parallel::join(parts, body, {.group = group}), f[kOtherGroup] ? world_size() - 1 : 0);  // rank 0
  for (int step = steps_of(f, rank()); step < 3; ++step) {
    alone.zero_grad();
    reference_step(nets, f, step);
    alone.step();
  }
  for (auto& [name, p] : net.named_parameters()) {
    auto wanted = nets[0].state_dict();
    expect_close(p, wanted.at(name), name, tolerance);
  }
  ddp.check_equal();
}

struct Pairs : QuickTest<2> {};

TUTTI_RANK_TEST(Pairs, OfOptions) {
  for (int a = 0; a < kFeatures; ++a)
    for (int b = a; b < kFeatures; ++b) {
      if (!possible(static_cast<Feature>(a), static_cast<Feature>(b))) continue;
      SCOPED_TRACE(std::string(kNames[a]) + " with " + kNames[b]);
      if (std::getenv("SHOW") && rank() == 0) std::fprintf(stderr, "%s with %s\n", kNames[a], kNames[b]);
      Features f;
      f.on[a] = f.on[b] = true;
      ASSERT_NO_FATAL_FAILURE(train_with(f));
      ASSERT_FALSE(testing::Test::HasFailure()) << kNames[a] << " with " << kNames[b];
    }
}

TUTTI_RANK_TEST(Pairs, AndMany) {
  Features f;
  for (Feature k : {kSmallBuckets, kUserHook, kChecksum, kAverageBuffers, kNoSync, kCheckpoint, kTwice, kSparse,
                    kRankDiffers, kJoin, kOwnSink, kOtherRoot, kOtherGroup, kChanges, kForwards})
    f.on[k] = true;
  train_with(f);
}

}  // namespace
}  // namespace tutti
