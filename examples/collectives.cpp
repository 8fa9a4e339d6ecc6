// Groups and collectives, one after the other: docs/collectives.md explains them.
#include <chrono>
#include <cstdio>
#include <map>
#include <stdexcept>

#include "flags.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace std::chrono_literals;

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

void world_and_groups() {
  spawn_ranks(4, [] {
    Tensor x = full({3}, rank(), f32);
    all_reduce(x);  // 0 + 1 + 2 + 3, on every rank
    require(x[0].item<int>() == 6, "the sum of ranks");

    Group pair = world().split(rank() / 2);    // {0, 1} and {2, 3}: who gives the same colour
    Group ends = world().subgroup({3, 0});     // these, in this order: rank 3 is number 0 in it
    Group host = world().split_by_host();      // who is on the same machine
    broadcast(x, {.root = 1, .group = pair});  // roots and peers are numbered inside the group
    if (ends.rank() >= 0) barrier({.group = ends});
    if (rank() == 0) std::printf("%s\n\n", to_string(host).c_str());
  });
}

void the_collectives() {
  spawn_ranks(4, [] {
    int n = world_size(), me = rank();
    Tensor x = full({2}, me, f32);

    all_reduce(x, {.op = Reduce::max});  // sum, average, product, min, max, band, bor, bxor
    Tensor loss = full({}, me, f32);
    double rows = me + 1.0;                                     // batches of unequal size ...
    all_reduce(loss, {.op = Reduce::average, .weight = rows});  // ... averaged by row, not by rank
    require(loss.item<double>() == 2, "weights");

    TensorList parts;
    for (int k = 0; k < n; ++k) parts.push_back(zeros({k}));
    all_gather(parts, full({me}, me, f32));  // rank k's part has k numbers
    Tensor whole = zeros({2 * n});
    all_gather(whole, x);      // or into one tensor
    reduce_scatter(x, whole);  // the other way round, adding
    Tensor out = zeros({n});
    all_to_all(out, full({n}, me, f32));  // element k goes to rank k
    require(out[3].item<int>() == 3, "all_to_all");

    TensorList many{zeros({3}), zeros({5, 5}), zeros({1})};
    all_reduce(many);  // one call for all of them
  });
}

void asynchronous_calls() {
  spawn_ranks(4, [] {
    Tensor gradients = ones({1000}), other = ones({10});
    Work work = all_reduce_async(gradients);
    other = other * 2;  // meanwhile; gradients must be left alone
    work.wait();
    require(gradients[0].item<int>() == 4, "asynchronous");
  });
}

void messages() {
  spawn_ranks(4, [] {
    int n = world_size(), me = rank(), next = (me + 1) % n, last = (me + n - 1) % n;
    Tensor mine = full({3}, me, f32), theirs = zeros({3});
    for (Work& work : batch_messages({send_op(mine, next), recv_op(theirs, last)})) work.wait();
    require(theirs[0].item<int>() == last, "a ring");

    if (me == 0) {
      for (int k = 1; k < n; ++k) {
        Tensor result = zeros({1});
        int from = recv(result, -1, {.tag = 1});  // from whoever is ready
        require(result.item<int>() == from, "any source");
      }
    } else {
      send(full({1}, me, f32), 0, {.tag = 1});
    }
  });
}

void gradients_through_collectives() {
  spawn_ranks(4, [] {
    Tensor w = full({2}, rank() + 1.0).requires_grad_();
    Tensor y = fn::all_reduce(w * w);  // Σ w², on every rank
    (y * (rank() + 1)).sum().backward();
    // All ranks' losses count: (1 + 2 + 3 + 4) · 2w
    require(equal(w.grad(), 20 * w.detach()), "the gradient of all ranks' losses");
  });
}

struct Plan {
  std::string name;
  std::vector<int64_t> sizes;
  std::map<std::string, Tensor> tensors;
  TUTTI_FIELDS(name, sizes, tensors)
};

void objects() {
  spawn_ranks(4, [] {
    Plan plan;
    if (rank() == 0) plan = {"first", {1, 2, 3}, {{"scale", tensor({0.5})}}};
    broadcast_object(plan);
    std::vector<double> seconds = all_gather_object(rank() * 0.1);
    require(plan.tensors.at("scale").item<double>() == 0.5 && seconds.size() == 4, "objects");
  });
}

void sparse_gradients() {
  spawn_ranks(2, [] {
    Tensor rows = tensor({0, rank() + 1}).view({1, 2});
    Tensor gradient = sparse_coo(rows, ones({2, 3}), {1000, 3});
    all_reduce(gradient, {.op = Reduce::average});  // only rows that some rank has are moved
    require(gradient.indices().size(1) == 3, "the union of rows");
  });
}

void late_ranks() {
  spawn_ranks(4, [] {
    Arrivals arrivals = monitored_barrier({.timeout = 10s});
    if (rank() == 0 && arrivals.skew > 1.0) std::printf("rank %d is slow\n", arrivals.last);
  });
}

void errors() {
  // Ranks that disagree.
  spawn_ranks(2, [] {
    show_error([] {
      if (rank() == 0)
        all_reduce(ones({2, 3}));
      else
        broadcast(ones({2, 3}));
    });
  });
  // A rank that fails: what the others see, and what spawn_ranks throws.
  try {
    spawn_ranks(2, [] {
      if (rank() == 1) throw ValueError("no such file");
      try {
        barrier();
      } catch (const RankFailure& e) {
        std::printf("%s\n\n", e.what());
        throw;
      }
    });
  } catch (const ValueError& e) {
    std::printf("%s\n\n", e.what());
  }
  // A rank that does not come.
  try {
    spawn_ranks(2, [] {
      if (rank() == 1) return;
      barrier();
    });
  } catch (const RankFailure& e) {
    std::printf("%s\n\n", e.what());
  }
  // Ranks that are late.
  spawn_ranks(3, [] {
    if (rank() > 0) recv(zeros({1}), 0);  // until rank 0 has given up
    show_error([] { monitored_barrier({.timeout = 50ms}); });
    if (rank() == 0)
      for (int k : {1, 2}) send(zeros({1}), k);
  });
  // A wait that takes too long.
  try {
    spawn_ranks(2, [] {
      if (rank() == 1)
        recv(zeros({1}), 0);
      else
        all_reduce(ones({4}), {.timeout = 50ms});
    });
  } catch (const TimeoutError& e) {
    std::printf("%s\n\n", e.what());
  }
  // What would lose a gradient.
  spawn_ranks(2, [] { show_error([] { all_reduce(ones({2}).requires_grad_()); }); });
}

}  // namespace

int main(int argc, char** argv) {
  flags::Options("collectives", "Groups and collectives, one after the other, and the errors of ranks that disagree.")
      .parse(argc, argv);
  world_and_groups();
  the_collectives();
  asynchronous_calls();
  messages();
  gradients_through_collectives();
  objects();
  sparse_gradients();
  late_ranks();
  errors();
}
