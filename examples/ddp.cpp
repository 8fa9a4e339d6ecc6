// Training on many ranks, one thing after the other: docs/ddp.md explains it.
#include <cstdio>
#include <stdexcept>

#include "flags.h"
#include "tutti/tutti.h"

using namespace tutti;

namespace {

void require(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(what);
}

// What an error of rank 0 says.
template <class F>
void show_error(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    if (rank() == 0) std::printf("%s\n\n", e.what());
  }
}

struct Net : nn::Module<Net> {
  nn::Linear fc1{16, 32}, fc2{32, 4};
  TUTTI_FIELDS(fc1, fc2)
  Tensor forward(const Tensor& x) { return fc2(relu(fc1(x))); }
};

// Points in 16 dims, whose kind is the largest of their first four numbers.
auto points(int64_t count) {
  Tensor x = randn({count, 16});
  return data::TensorDataset(x, x.narrow(1, 0, 4).argmax(1));
}

void train() {
  spawn_ranks(4, [] {
    manual_seed(1);
    auto all = points(1024);  // the same on all ranks
    data::DataLoader loader(all, {.batch_size = 32, .sampler = data::distributed_sampler(all.size())});

    parallel::DistributedDataParallel ddp(Net{});  // all ranks begin with rank 0's parameters
    optim::Adam adam(ddp.parameters(), {.lr = 0.01});
    double first = 0, last = 0;
    for (int epoch = 0; epoch < 4; ++epoch)
      for (auto& [x, y] : loader) {  // this rank's quarter
        Tensor loss = cross_entropy(ddp(x), y);
        adam.zero_grad();
        loss.backward();  // gradients are averages over all ranks when it returns
        adam.step();
        last = loss.item<double>();
        if (first == 0) first = last;
      }
    require(last < 0.6 * first, "it learns");
    require(ddp.state_dict().contains("fc1.weight"), "names are those of Net");
  });
}

void uneven_batches() {
  spawn_ranks(3, [] {
    parallel::DistributedDataParallel ddp(Net{}, {.average = parallel::Average::samples});
    int64_t rows = 4 + rank();
    Tensor x = randn({rows, 16}), y = randint(0, 4, {rows});
    ddp.set_samples(static_cast<double>(rows));  // this rank's mean counts for so many
    cross_entropy(ddp(x), y).backward();
    ddp.check_equal();
  });
}

void accumulate() {
  spawn_ranks(2, [] {
    parallel::DistributedDataParallel ddp(Net{});
    for (int part = 0; part < 4; ++part) {
      std::optional<parallel::NoSync> guard;
      if (part < 3) guard.emplace(ddp.no_sync());
      (cross_entropy(ddp(randn({8, 16})), randint(0, 4, {8})) / 4).backward();  // the fourth averages the sum
    }
    ddp.check_equal();
  });
}

struct Experts : nn::Module<Experts> {
  std::vector<nn::Linear> experts{nn::Linear(16, 4), nn::Linear(16, 4), nn::Linear(16, 4)};
  TUTTI_FIELDS(experts)
  Tensor forward(const Tensor& x, size_t which) { return experts[which](x); }
};

void unused() {
  spawn_ranks(2, [] {
    parallel::DistributedDataParallel ddp(Experts{});
    ddp(randn({8, 16}), size_t(rank())).sum().backward();  // each rank another one
    parallel::UnusedParameters unused = ddp.unused_parameters();
    if (rank() == 0) {
      for (auto& name : unused.here) std::printf("not used here: %s\n", name.c_str());
      for (auto& name : unused.everywhere) std::printf("not used by anyone: %s\n", name.c_str());
      std::printf("\n");
    }
  });
}

struct Normal : nn::Module<Normal> {
  nn::Conv2d conv{1, 8, 3};
  nn::BatchNorm2d norm{8};
  nn::Linear head{8, 4};
  TUTTI_FIELDS(conv, norm, head)
  Tensor forward(const Tensor& x) { return head(relu(norm(conv(x))).mean({2, 3})); }
};

void batch_norms() {
  spawn_ranks(2, [] {
    Normal net;
    parallel::sync_batch_norms(net);  // the same layers, whose batch is now that of all ranks
    parallel::DistributedDataParallel ddp(
        net, {.buffers = parallel::BufferPolicy::average,                                       // or broadcast, none
              .buffer_policy = {{"norm.num_batches_tracked", parallel::BufferPolicy::none}}});  // but for this one
    cross_entropy(ddp(randn({4, 1, 8, 8})), randint(0, 4, {4})).backward();
  });
}

void uneven_inputs() {
  spawn_ranks(3, [] {
    parallel::DistributedDataParallel ddp(Net{});
    optim::Adam adam(ddp.parameters());
    int64_t seen = 0;
    parallel::Joinable count([] { all_reduce(zeros({1}, i64)); });  // in place of the one below
    int last = parallel::join({ddp, adam, count}, [&] {
      for (int i = 0; i <= 2 * rank(); ++i) {  // as many batches as this rank has
        adam.zero_grad();
        cross_entropy(ddp(randn({8, 16})), randint(0, 4, {8})).backward();
        adam.step();
        Tensor rows = full({1}, 8, i64);
        count.announce();
        all_reduce(rows);
        seen += rows.item<int64_t>();
      }
    });
    require(last == 2 && (rank() != 2 || seen == 8 * (1 + 3 + 5)), "all batches count");
    ddp.check_equal();
  });
}

void hooks() {
  spawn_ranks(2, [] {
    parallel::DistributedDataParallel half(Net{}, {.hook = parallel::compress(bf16)});
    half(randn({4, 16})).sum().backward();

    auto plain = [](parallel::GradientBucket& bucket) {
      return all_reduce_async(bucket.buffer, bucket.average);  // begins; backward goes on, and waits at its end
    };
    parallel::DistributedDataParallel own(Net{}, {.hook = plain});
    own(randn({4, 16})).sum().backward();
    own.check_equal();
  });
}

void local_sgd() {
  spawn_ranks(2, [] {
    auto nothing = [](parallel::GradientBucket&) { return parallel::Communication(); };
    parallel::DistributedDataParallel ddp(Net{}, {.hook = nothing});  // each rank takes its own steps ...
    optim::SGD sgd(ddp.parameters(), {.lr = 0.05});
    for (int step = 1; step <= 16; ++step) {
      sgd.zero_grad();
      cross_entropy(ddp(randn({8, 16})), randint(0, 4, {8})).backward();
      sgd.step();
      if (step % 8 == 0) {  // ... and now and then they meet in the middle
        NoGrad guard;
        all_reduce(ddp.parameters(), {.op = Reduce::average});
      }
    }
    ddp.check_equal();
  });
}

void errors() {
  spawn_ranks(3, [] {
    show_error([] {
      nn::Linear layer(rank() == 1 ? 5 : 3, 2);
      parallel::DistributedDataParallel ddp(layer);
    });
  });
  spawn_ranks(3, [] {
    show_error([] {
      Net net;
      parallel::DistributedDataParallel ddp(net, {.checksum_every = 100});
      if (rank() == 2) {
        NoGrad guard;
        net.fc2.weight[0].mul_(2);  // a defect of the program
      }
      ddp.check_equal();  // or by itself after 100 steps
    });
  });
  spawn_ranks(1, [] {
    show_error([] {
      parallel::DistributedDataParallel ddp(Experts{}, {.static_graph = true});
      ddp(randn({8, 16}), size_t{0}).sum().backward();
      ddp(randn({8, 16}), size_t{1}).sum().backward();
    });
  });
}

}  // namespace

// One process, several devices: no ranks.
void devices() {
  set_cpu_devices(2);  // cpu:0 and cpu:1, each with half of the cores
  {
    parallel::DataParallel net(Net{});  // lives on cpu:0
    Tensor x = randn({64, 16});
    Tensor y = net(x);            // each device takes half of x; the outputs are put together on cpu:0
    square(y).mean().backward();  // gradients of both halves arrive in net.module
    require(y.size(0) == 64 && net.module.fc1.weight.grad().defined(), "as one module");

    Tensor loss = zeros({});
    for (const Tensor& part : net.apart(x))  // or they stay where they are ...
      loss = loss + square(part).sum().to("cpu:0");
    loss.backward();  // ... and so do their gradients
  }
  set_cpu_devices(1);
}

int main(int argc, char** argv) {
  flags::Options("ddp", "DistributedDataParallel and DataParallel: what docs/ddp.md explains.").parse(argc, argv);
  devices();
  train();
  uneven_batches();
  accumulate();
  unused();
  batch_norms();
  uneven_inputs();
  hooks();
  local_sgd();
  errors();
}
