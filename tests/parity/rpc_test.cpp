// Section B: DistributedDataParallel together with calls and distributed autograd. Six workers: four trainers, one
// that holds remote parts of the model, and a master that drives the trainers by references to them.
#include <thread>

#include "tests/support/entries.h"
#include "tests/support/expect.h"
#include "tutti/testing.h"
#include "tutti/tutti.h"

namespace tutti::parity_b {  // functions that are called have names of their own

using namespace std::chrono_literals;
using dist_autograd::get_gradients;
using parallel::DistributedDataParallel;

constexpr int kTrainers = 4, kRemote = 4, kMaster = 5, kWorkers = 6;
constexpr int64_t kRows = 2, kSparse = 3, kDense = 2, kHidden = 3, kOut = 1;

std::string name_of(int rank) {
  return rank < kTrainers ? "trainer" + std::to_string(rank) : rank == kRemote ? "remote" : "master";
}
Group trainers() { return world().subgroup({0, 1, 2, 3}); }

// ---- The model

enum class DdpMode : uint8_t { none, outside, inside };

struct FeatureSet {
  Tensor dense, sparse, values;
  TUTTI_FIELDS(dense, sparse, values)
  FeatureSet part(int64_t begin, int64_t end) const {
    auto cut = [&](const Tensor& t) { return t.narrow(0, begin, end - begin).clone(); };
    return {cut(dense), cut(sparse), cut(values)};
  }
};
/// Sixteen examples whose gradients cancel.
FeatureSet training_examples() {
  std::vector<float> dense, values;
  std::vector<int64_t> sparse;
  for (float value : {-1.f, 1.f})
    for (float x : {-value, value})
      for (float y : {value, -value})
        for (int64_t z : {0, 1}) {
          dense.insert(dense.end(), {x, y});
          sparse.push_back(z);
          values.push_back(value);
        }
  return {tensor(dense).view({16, kDense}), tensor(sparse), tensor(values).view({16, 1})};
}

nn::Linear make_linear(int64_t in, int64_t out) {
  nn::Linear linear(in, out, {.bias = false});
  NoGrad guard;
  linear.weight.fill_(1);
  linear.weight[0][0].fill_(-1);
  return linear;
}

struct RemoteEM {
  nn::EmbeddingBag em{kRows, kSparse, {.mode = BagMode::sum}};
  RemoteEM() {
    NoGrad guard;
    em.weight.fill_(1);
  }
  Tensor forward(const Tensor& input) { return em(input, arange(input.size(0))); }
  /// In the context of the call.
  Tensor gradient() { return get_gradients(dist_autograd::current()).at(em.weight); }
};
struct RemoteNet {
  nn::Linear fc = make_linear(kDense + kSparse, kHidden);
  Tensor forward(const Tensor& x) { return relu(fc(x)); }
  Tensor gradient() { return get_gradients(dist_autograd::current()).at(fc.weight); }
};
using EMRef = rpc::RemoteRef<RemoteEM>;
using NetRef = rpc::RemoteRef<RemoteNet>;

struct HybridModel : nn::Module<HybridModel> {
  static constexpr bool other_members = true;
  nn::Linear fc1 = make_linear(kDense, kDense), fc2 = make_linear(kHidden, kOut);
  TUTTI_FIELDS(fc1, fc2)
  EMRef em;
  NetRef net;
  std::shared_ptr<DistributedDataParallel<nn::Linear>> ddp;  // around fc2

  HybridModel(EMRef em, NetRef net, DdpMode mode) : em(std::move(em)), net(std::move(net)) {
    if (mode == DdpMode::inside)
      ddp = std::make_shared<DistributedDataParallel<nn::Linear>>(fc2, parallel::DdpOptions{.group = trainers()});
  }
  Tensor forward(const FeatureSet& input) {
    Tensor sparse = em.call<&RemoteEM::forward>(input.sparse);
    Tensor x = cat({fc1(input.dense), sparse}, 1);
    x = net.async<&RemoteNet::forward>(x).wait();
    return ddp ? (*ddp)(x) : fc2(x);
  }
};

/// Of fc1, fc2, the remote embedding and the remote layer.
struct Grads {
  Tensor fc1, fc2, em, net;
  TUTTI_FIELDS(fc1, fc2, em, net)
};

class Trainer {
 public:
  Trainer(const EMRef& em, const NetRef& net, DdpMode mode) : hybrid_(em, net, mode) {
    if (mode == DdpMode::outside)
      ddp_ = std::make_shared<DistributedDataParallel<HybridModel>>(hybrid_, parallel::DdpOptions{.group = trainers()});
  }
  /// The last batch's gradients.
  Grads train(const std::vector<FeatureSet>& batches, bool uneven) {
    Grads last;
    auto all = [&] {
      for (const FeatureSet& b : batches) last = train_batch(b);
    };
    if (uneven)
      parallel::join({*ddp_}, all, {.group = trainers()});
    else
      all();
    EXPECT_FALSE(hybrid_.fc1.weight.grad().defined());
    EXPECT_FALSE(hybrid_.fc2.weight.grad().defined());
    return last;
  }

 private:
  Grads train_batch(const FeatureSet& batch) {
    dist_autograd::Context context;
    Tensor y = ddp_ ? (*ddp_)(batch) : hybrid_(batch);
    dist_autograd::backward(context, {(y * batch.values).sum()});
    auto grads = get_gradients(context);
    EXPECT_EQ(grads.size(), 2u);
    return {grads.at(hybrid_.fc1.weight), grads.at(hybrid_.fc2.weight), hybrid_.em.call<&RemoteEM::gradient>(),
            hybrid_.net.call<&RemoteNet::gradient>()};
  }
  HybridModel hybrid_;
  std::shared_ptr<DistributedDataParallel<HybridModel>> ddp_;
};

/// The same, all of it here, and without averages.
Grads local_grads(const FeatureSet& batch) {
  RemoteEM em;
  RemoteNet net;
  nn::Linear fc1 = make_linear(kDense, kDense), fc2 = make_linear(kHidden, kOut);
  Tensor y = fc2(net.forward(cat({fc1(batch.dense), em.forward(batch.sparse)}, 1)));
  (y * batch.values).sum().backward();
  return {fc1.weight.grad(), fc2.weight.grad(), em.em.weight.grad(), net.fc.weight.grad()};
}

// ---- Workers that serve until the master says that it is enough

struct Signals {
  std::mutex mutex;
  std::map<int, rpc::Promise<void>> promises;
  rpc::Promise<void> of(int rank) {
    std::lock_guard lock(mutex);
    return promises[rank];
  }
  void forget(int rank) {
    std::lock_guard lock(mutex);
    promises.erase(rank);
  }
  static Signals& instance() {
    static Signals signals;
    return signals;
  }
};
void set_shutdown_signal() { Signals::instance().of(rank()).set(); }
size_t contexts_here() { return dist_autograd::statistics().contexts; }

/// Runs f on the master; the others serve.
void on_master(const std::function<void()>& f) {
  rpc::Session session({.name = name_of(rank())});
  if (rank() == kMaster) {
    f();
    for (int r = 0; r < kWorkers; ++r) {
      auto until = std::chrono::steady_clock::now() + 20s;
      while (rpc::sync<&contexts_here>(r) > 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      EXPECT_EQ(rpc::sync<&contexts_here>(r), 0u) << r;
    }
    for (int r = 0; r < kWorkers; ++r)
      if (r != kMaster) rpc::sync<&set_shutdown_signal>(name_of(r));
  } else {
    EXPECT_TRUE(Signals::instance().of(rank()).future().wait_for(60s));
    Signals::instance().forget(rank());
  }
  EXPECT_TRUE(session.shutdown().empty());
}

/// One training step by all trainers; what each of them found.
std::vector<Grads> train(DdpMode mode, bool uneven = false) {
  auto em = rpc::remote<RemoteEM>("remote");
  auto net = rpc::remote<RemoteNet>("remote");
  std::vector<rpc::RemoteRef<Trainer>> references;
  for (int r = 0; r < kTrainers; ++r) references.push_back(rpc::remote<Trainer>(name_of(r), em, net, mode));
  FeatureSet examples = training_examples();
  std::vector<rpc::Future<Grads>> futures;
  for (int r = 0; r < kTrainers; ++r) {
    std::vector<FeatureSet> batches = {examples.part(4 * r, 4 * r + 4)};
    if (uneven) {
      batches = {examples.part(4 * r, 4 * r + 2), examples.part(4 * r + 2, 4 * r + 4)};
      if (r < kTrainers / 2) batches.pop_back();
    }
    futures.push_back(references[static_cast<size_t>(r)].async<&Trainer::train>(batches, uneven));
  }
  return rpc::all(futures).wait();
}

Grads expected(int r) { return local_grads(training_examples().part(4 * r, 4 * r + 4)); }
bool same(const Tensor& a, const Tensor& b) { return a.defined() && a.to_vector<float>() == b.to_vector<float>(); }
bool is_zero(const Tensor& t) { return same(t, zeros_like(t)); }

struct ParityB : harness::TransportTest<kWorkers> {
  test::Devices devices{2};
  static std::vector<harness::Runner> runners() {
    std::vector<harness::Runner> some;
    for (const auto& runner : harness::every_transport())
      if (runner.name == "threads" || runner.name == "shm" || runner.name == "shm_ucx") some.push_back(runner);
    return some;
  }
};

// ---- The rows

// RemoteEM, RemoteNet, HybridModel, FeatureSet, Trainer: made remotely, driven by methods with and without waiting.
TUTTI_RANK_TEST(ParityB, HybridModel) {
  on_master([] {
    auto em = rpc::remote<RemoteEM>("remote");
    auto net = rpc::remote<RemoteNet>("remote");
    auto trainer = rpc::remote<Trainer>("trainer2", em, net, DdpMode::none);
    FeatureSet batch = training_examples().part(3, 9);
    Grads waited = trainer.call<&Trainer::train>(std::vector<FeatureSet>{batch}, false);
    Grads later = trainer.async<&Trainer::train>(std::vector<FeatureSet>{batch}, false).wait();
    Grads local = local_grads(batch);
    for (const Grads* g : {&waited, &later}) {
      EXPECT_TRUE(same(g->fc1, local.fc1));
      EXPECT_TRUE(same(g->fc2, local.fc2));
      EXPECT_TRUE(same(g->em, local.em));
      EXPECT_TRUE(same(g->net, local.net));
    }
    EXPECT_EQ(trainer.owner().name, "trainer2");
  });
}

TUTTI_RANK_TEST(ParityB, BackwardNoDdp) {
  on_master([] {
    auto grads = train(DdpMode::none);
    for (int r = 0; r < kTrainers; ++r) {
      const Grads& g = grads[static_cast<size_t>(r)];
      Grads e = expected(r);
      EXPECT_TRUE(same(g.fc1, e.fc1)) << r;
      EXPECT_TRUE(same(g.fc2, e.fc2)) << r;
      EXPECT_TRUE(same(g.em, e.em)) << r;
      EXPECT_TRUE(same(g.net, e.net)) << r;
      EXPECT_FALSE(is_zero(g.fc1) || is_zero(g.fc2) || is_zero(g.em) || is_zero(g.net)) << r;
    }
  });
}

void expect_averages(DdpMode mode) {
  auto grads = train(mode);
  for (int r = 0; r < kTrainers; ++r) {
    const Grads& g = grads[static_cast<size_t>(r)];
    Grads e = expected(r);
    EXPECT_TRUE(is_zero(g.fc2)) << r;
    if (mode == DdpMode::outside) {
      EXPECT_TRUE(is_zero(g.fc1)) << r;
    } else {
      EXPECT_TRUE(same(g.fc1, e.fc1)) << r;
      EXPECT_FALSE(is_zero(g.fc1)) << r;
    }
    // What is not wrapped is each trainer's own.
    EXPECT_TRUE(same(g.em, e.em)) << r;
    EXPECT_TRUE(same(g.net, e.net)) << r;
  }
}
TUTTI_RANK_TEST(ParityB, BackwardDdpOutside) {
  on_master([] { expect_averages(DdpMode::outside); });
}
TUTTI_RANK_TEST(ParityB, BackwardDdpInside) {
  on_master([] { expect_averages(DdpMode::inside); });
}

TUTTI_RANK_TEST(ParityB, BackwardDdpOutsideUnevenInputs) {
  on_master([] {
    auto grads = train(DdpMode::outside, true);
    FeatureSet examples = training_examples();
    auto half = [&](int r, int k) { return local_grads(examples.part(4 * r + 2 * k, 4 * r + 2 * k + 2)); };
    // First all trainers, then those that have more.
    Tensor first = (half(0, 0).fc1 + half(1, 0).fc1 + half(2, 0).fc1 + half(3, 0).fc1) / 4;
    Tensor second = (half(2, 1).fc1 + half(3, 1).fc1) / 2;
    for (int r = 0; r < kTrainers; ++r) {
      bool fewer = r < kTrainers / 2;
      const Grads& g = grads[static_cast<size_t>(r)];
      EXPECT_TRUE(same(g.fc1, fewer ? first : second)) << r;
      EXPECT_TRUE(same(g.net, half(r, fewer ? 0 : 1).net)) << r;
      EXPECT_TRUE(same(g.em, half(r, fewer ? 0 : 1).em)) << r;
    }
  });
}

/// In a context, and by a local backward: the same gradients.
template <class M>
void compare(DistributedDataParallel<M>& ddp, const Tensor& input) {
  dist_autograd::Context context;
  Tensor y = ddp(input);
  dist_autograd::backward(context, {(y * y).sum().sqrt()});
  auto grads = get_gradients(context);
  EXPECT_EQ(grads.size(), ddp.parameters().size());
  ddp.zero_grad();
  Tensor z = ddp(input);
  (z * z).sum().sqrt().backward();
  for (const auto& [name, p] : ddp.named_parameters()) {
    ASSERT_TRUE(p.grad().defined()) << name;
    EXPECT_EQ(p.grad().is_sparse(), grads.at(p).is_sparse()) << name;
    auto dense = [](const Tensor& t) { return t.is_sparse() ? t.to_dense() : t; };
    EXPECT_TRUE(same(dense(grads.at(p)), dense(p.grad()))) << name;
  }
}
TUTTI_RANK_TEST(ParityB, DdpComparison) {
  rpc::Session session({.name = name_of(rank())});
  manual_seed(static_cast<uint64_t>(rank()));
  DistributedDataParallel ddp(nn::Linear(2, 3));
  for (int i = 0; i < 3; ++i) compare(ddp, rand({3, 2}));
}
TUTTI_RANK_TEST(ParityB, DdpComparisonUnevenInputs) {
  rpc::Session session({.name = name_of(rank())});
  manual_seed(static_cast<uint64_t>(rank()));
  DistributedDataParallel ddp(nn::Linear(2, 3));
  parallel::join({ddp}, [&] {
    for (int i = 0; i < 1 + 2 * (rank() % 2); ++i) compare(ddp, rand({3, 2}));
  });
}

struct SparseNet : nn::Module<SparseNet> {
  nn::EmbeddingBag em{10, 3, {.mode = BagMode::mean, .sparse = true}};
  TUTTI_FIELDS(em)
  Tensor forward(const Tensor& input) { return em(input, tensor({int64_t{0}, int64_t{4}})); }
};
TUTTI_RANK_TEST(ParityB, DdpDistAutogradSparseGrads) {
  rpc::Session session({.name = name_of(rank())});
  manual_seed(static_cast<uint64_t>(rank()));
  DistributedDataParallel ddp(SparseNet{});
  for (int i = 0; i < 3; ++i) compare(ddp, randint(0, 10, {8}));
}

Tensor gradient_of(const rpc::RemoteRef<Tensor>& parameter) {
  return get_gradients(dist_autograd::current()).at(parameter.local_value()).to(Device());
}
Tensor weight_gradient(const rpc::RemoteModule<nn::Linear>& m) {
  return rpc::sync<&gradient_of>(m.owner(), m.remote_parameters()[0]);
}
/// A layer here and the same on another worker, in front of and behind a wrapped one.
void local_vs_remote(const std::string& place) {
  rpc::Session session({.name = name_of(rank())});
  if (rank() < kTrainers) {
    manual_seed(static_cast<uint64_t>(rank()));
    rpc::RemoteModule<nn::Linear> remote1(place, 10, 5), remote3(place, 4, 2);
    nn::Linear layer1 = remote1.to_here(), layer3 = remote3.to_here();
    DistributedDataParallel layer2(nn::Linear(5, 4), {.group = trainers()});
    Tensor x = rand({10, 10});
    layer3(layer2(layer1(x))).sum().backward();
    dist_autograd::Context context;
    dist_autograd::backward(context, {remote3(layer2(remote1(x))).sum()});
    auto grads = get_gradients(context);
    EXPECT_TRUE(same(grads.at(layer2.module.weight), layer2.module.weight.grad()));
    EXPECT_TRUE(same(grads.at(layer2.module.bias), layer2.module.bias.grad()));
    EXPECT_TRUE(same(weight_gradient(remote1), layer1.weight.grad()));
    EXPECT_TRUE(same(weight_gradient(remote3), layer3.weight.grad()));
  }
}
TUTTI_RANK_TEST(ParityB, DdpDistAutogradLocalVsRemote) {
  local_vs_remote("remote/cpu");
  local_vs_remote("remote");
}
// A device that is not the first: a logical one.
TUTTI_RANK_TEST(ParityB, DdpDistAutogradLocalVsRemoteGpu) { local_vs_remote("remote/cpu:1"); }

/// Of this process, while no rank does anything; one rank counts, since counting opens a file. Between hosts there are
/// also connections, which are made when they are first needed.
struct Possessions {
  size_t files = 0, threads = 0;
  static Possessions count() {
    Possessions p;
    barrier();
    if (rank() == 0 && world().transport().find('+') == std::string::npos)
      p = {test::entries("/proc/self/fd"), test::entries("/proc/self/task")};
    barrier();
    return p;
  }
};

// Groups are made, used and let go, and made again; what they had is given back.
TUTTI_RANK_TEST(ParityB, DestroyPg) {
  Possessions before, after;
  for (int round = 0; round < 4; ++round) {
    {
      rpc::Session session({.name = name_of(rank())});
      if (rank() < kTrainers) {
        Group group = trainers();
        DistributedDataParallel ddp(nn::Linear(2, 3), {.group = group});
        compare(ddp, ones({3, 2}) * (round + 1));
        barrier({.group = group});
      }
      EXPECT_TRUE(session.shutdown().empty());
    }
    (round == 1 ? before : after) = Possessions::count();
  }
  EXPECT_LE(after.files, before.files);
}

// Workers serve until they are told, and leave nothing behind.
TUTTI_RANK_TEST(ParityB, SetShutdownSignal) {
  Possessions before, after;
  for (int round = 0; round < 3; ++round) {
    on_master([] { train(DdpMode::outside); });
    (round == 1 ? before : after) = Possessions::count();
  }
  EXPECT_LE(after.files, before.files);
  EXPECT_LE(after.threads, before.threads);
  EXPECT_THROW(rpc::sync<&contexts_here>(0), ValueError);
}

}  // namespace tutti::parity_b
