// Random collectives on random groups, of random dtypes and sizes, waited for or not, with delays and faults: every
// result is checked exactly, every fault must end the run, and nothing may be left behind. All of it follows from a
// seed: what went wrong can be had again.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "tests/support/entries.h"
#include "tools/flags/flags.h"
#include "tutti/comm.h"
#include "tutti/context.h"
#include "tutti/ops.h"

using namespace tutti;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Random = std::mt19937_64;

namespace {

int pick(Random& random, int count) { return static_cast<int>(random() % static_cast<uint64_t>(count)); }
template <class T>
T one_of(Random& random, std::initializer_list<T> list) {
  return list.begin()[pick(random, static_cast<int>(list.size()))];
}

enum class Kind {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  gather,
  scatter,
  reduce_scatter,
  all_to_all,
  barrier,
  message,
  list,             // many tensors in one call, of four kinds
  all_gather_rows,  // parts of one tensor, of sizes that differ
  reduce_scatter_rows,
  all_to_all_rows,
  ring,        // messages in a batch, from any source
  taken_back,  // a receive of what nobody sends
  object,      // from here on: calls that wait
  sparse,
  monitored_barrier
};
constexpr int kKinds = 19;

/// What all ranks do at once; they all draw the same.
struct Step {
  int number;
  Kind kind;
  size_t group;
  DType dtype;
  Reduce op;
  int64_t count;  // of elements, in each part
  int root;
  bool asynchronous, strided;
  bool chosen;  // each rank gives a weight, or a factor
  bool remade;  // before it, the group is dropped, with what is on its way in it, and made again
};

Step draw_step(Random& random, int number, const std::vector<std::vector<int>>& groups) {
  Step s;
  s.number = number;
  s.kind = static_cast<Kind>(pick(random, kKinds));
  s.group = static_cast<size_t>(pick(random, static_cast<int>(groups.size())));
  s.dtype = one_of(random, {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i8, DType::u8, DType::i16,
                            DType::i32, DType::i64, DType::boolean, DType::c64, DType::c128});
  s.op = one_of(random, {Reduce::sum, Reduce::product, Reduce::min, Reduce::max, Reduce::average, Reduce::band,
                         Reduce::bor, Reduce::bxor});
  auto size = static_cast<int>(groups[s.group].size());
  bool real = !is_complex(s.dtype), whole = real && !is_floating(s.dtype);
  if ((s.op == Reduce::min || s.op == Reduce::max) && !real) s.op = Reduce::sum;
  if (s.op >= Reduce::band && !whole) s.op = Reduce::sum;
  if (s.op == Reduce::average && whole) s.op = Reduce::sum;
  s.chosen = pick(random, 2) == 0 && !whole && (s.op == Reduce::sum || s.op == Reduce::average);
  if (s.op == Reduce::average && !s.chosen && (size & (size - 1)) != 0) s.op = Reduce::sum;  // 1/n is exact
  s.count = one_of<int64_t>(random, {0, 1, 3, 17, 256, 1025, 5000, 40'000});
  s.root = pick(random, size);
  s.asynchronous = pick(random, 3) == 0 && s.kind < Kind::object;
  s.strided = pick(random, 4) == 0;
  s.remade = pick(random, 12) == 0;
  return s;
}

// What rank k of a group of n gives with its numbers; weights add up to 8, so that the average is exact.
double share(const Step& s, size_t k, size_t n) {
  if (!s.chosen) return 1;
  if (s.op == Reduce::sum) return k % 2 ? 2 : 1;
  return k == 0 ? 9 - static_cast<double>(n) : 1;
}
ReduceOptions options(const Step& s, const Group& group) {
  ReduceOptions o{.op = s.op, .root = s.root, .group = group};
  if (s.chosen)
    (s.op == Reduce::sum ? o.factor : o.weight) =
        share(s, static_cast<size_t>(group.rank()), static_cast<size_t>(group.size()));
  return o;
}

// Small numbers, which no reduction of a few ranks rounds: 1 or 2 for products.
double value(const Step& s, int rank, int part, int64_t i) {
  auto mix = static_cast<uint64_t>(rank * 7 + part * 3 + s.number) + static_cast<uint64_t>(i);
  if (s.dtype == DType::boolean) return static_cast<double>(mix % 2);
  return static_cast<double>(mix % (s.op == Reduce::product ? 2 : 5) + 1);
}
using Values = std::vector<double>;
Values values(const Step& s, int rank, int part) {
  Values v(static_cast<size_t>(s.count));
  for (int64_t i = 0; i < s.count; ++i) v[static_cast<size_t>(i)] = value(s, rank, part, i);
  return v;
}
Values reduced(const Step& s, const std::vector<int>& ranks, int part) {
  size_t n = ranks.size();
  auto combined = [&](double a, double b) {
    int bits_a = static_cast<int>(a), bits_b = static_cast<int>(b);
    return s.op == Reduce::product     ? a * b
           : s.op == Reduce::min       ? std::min(a, b)
           : s.op == Reduce::max       ? std::max(a, b)
           : s.op == Reduce::band      ? bits_a & bits_b
           : s.op == Reduce::bor       ? bits_a | bits_b
           : s.op == Reduce::bxor      ? bits_a ^ bits_b
           : s.dtype == DType::boolean ? std::max(a, b)
                                       : a + b;
  };
  Values sum;
  for (size_t k = 0; k < n; ++k) {
    Values x = values(s, ranks[k], part);
    for (double& v : x) v *= share(s, k, n);
    if (k == 0) sum = x;
    for (size_t i = 0; k > 0 && i < sum.size(); ++i) sum[i] = combined(sum[i], x[i]);
  }
  if (s.op == Reduce::average)
    for (double& x : sum) x /= s.chosen ? 8 : static_cast<double>(n);
  return sum;
}

Tensor in_memory(const Step& s, Tensor x) {
  if (!s.strided) return x;
  Tensor wide = zeros({x.numel(), 2}, {.dtype = x.dtype()});
  Tensor column = wide.narrow(1, 1, 1).squeeze(1);
  column.copy_(x);
  return column;
}
Tensor given(const Step& s, int rank, int part) {
  Values v = values(s, rank, part);
  Tensor x = empty({s.count}, {.dtype = DType::f64});
  std::copy(v.begin(), v.end(), x.data<double>());
  return in_memory(s, x.to(s.dtype));
}
Tensor room(const Step& s) { return in_memory(s, full({s.count}, 99, {.dtype = s.dtype})); }

struct WrongResult : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void expect(const Step& s, const Tensor& got, const Values& wanted) {
  Tensor plain = (is_complex(s.dtype) ? real(got) : got).to(DType::f64).contiguous();
  if (plain.numel() != static_cast<int64_t>(wanted.size()))
    throw WrongResult(fmt::format("step {}: {} should be of {} elements", s.number, describe(got), wanted.size()));
  for (int64_t i = 0; i < plain.numel(); ++i)
    if (plain.data<double>()[i] != wanted[static_cast<size_t>(i)])
      throw WrongResult(fmt::format("step {}: element {} of {} is {} and should be {}", s.number, i, describe(got),
                                    plain.data<double>()[i], wanted[static_cast<size_t>(i)]));
}

// The first ones, of which rank a gives rank b so many; in a call where each rank has one part, b is 0.
int64_t rows(const Step& s, int a, int b) { return s.count * ((a + b + s.number) % 3) / 2; }
Tensor first(const Tensor& x, int64_t count) { return x.narrow(0, 0, count); }
void append(Values& to, const Values& from, int64_t count) { to.insert(to.end(), from.begin(), from.begin() + count); }

/// A call that was started, and what is to be looked at when it has ended.
struct Pending {
  Work work;
  std::function<void()> check;
};

// Parts of one tensor, of sizes that differ. n is the size of the group, mine the rank in it.
Pending begin_rows(const Step& s, const Group& group, const TensorList& ins, const ReduceOptions& reduce) {
  const std::vector<int>& ranks = group.ranks();
  int n = group.size(), mine = group.rank();
  bool all = s.kind == Kind::all_to_all_rows;
  Shape gives, takes;
  Values wanted;
  TensorList parts;
  int64_t taken = 0;
  for (int k = 0; k < n; ++k) {
    gives.push_back(rows(s, all ? mine : k, all ? k : 0));
    takes.push_back(rows(s, k, all ? mine : 0));
    taken += takes.back();
    parts.push_back(first(ins[static_cast<size_t>(k)], gives.back()));
    append(wanted, values(s, ranks[static_cast<size_t>(k)], all ? mine : 0), takes.back());
  }
  Tensor y = full({taken}, 99, {.dtype = s.dtype}), part = full({rows(s, mine, 0)}, 99, {.dtype = s.dtype});
  CollectiveOptions plain{.group = group};
  if (all) return {all_to_all_async(y, cat(parts), takes, gives, plain), [=] { expect(s, y, wanted); }};
  if (s.kind == Kind::all_gather_rows)
    return {all_gather_async(y, first(ins[0], rows(s, mine, 0)), takes, plain), [=] { expect(s, y, wanted); }};
  Values sum = reduced(s, ranks, mine);
  sum.resize(static_cast<size_t>(part.numel()));
  return {reduce_scatter_async(part, cat(parts), gives, reduce), [=] { expect(s, part, sum); }};
}

Pending begin_ring(const Step& s, const Group& group, const Tensor& x, const Tensor& y) {
  int n = group.size(), mine = group.rank();
  MessageOptions message{.tag = 100 + s.number, .group = group};
  std::vector<Work> works = batch_messages({send_op(x, (mine + 1) % n, message), recv_op(y, -1, message)});
  int before = group.ranks()[static_cast<size_t>((mine + n - 1) % n)];
  return {works[0], [=]() mutable {
            works[1].wait();
            expect(s, y, values(s, before, 0));
          }};
}

// Lists of tensors: three that are reduced or broadcast, or two that are gathered or scattered.
Pending begin_list(const Step& s, const Group& group, const TensorList& outs, const TensorList& ins,
                   const ReduceOptions& reduce) {
  const std::vector<int>& ranks = group.ranks();
  int me = rank(), mine = group.rank(), root = ranks[static_cast<size_t>(s.root)];
  TensorList xs{given(s, me, 0), given(s, me, 1), given(s, me, 2)}, more;
  for (size_t k = 0; k < outs.size(); ++k) more.push_back(room(s));
  Tensor y = room(s), z = room(s);
  switch (s.number % 4) {
    case 0:
      return {all_reduce_async(xs, reduce), [=] {
                for (int part = 0; part < 3; ++part) expect(s, xs[static_cast<size_t>(part)], reduced(s, ranks, part));
              }};
    case 1:
      return {broadcast_async(xs, {.root = s.root, .group = group}), [=] {
                for (int part = 0; part < 3; ++part) expect(s, xs[static_cast<size_t>(part)], values(s, root, part));
              }};
    case 2:
      return {all_gather_async({outs, more}, {xs[0], xs[1]}, {.group = group}), [=] {
                for (size_t k = 0; k < outs.size(); ++k) {
                  expect(s, outs[k], values(s, ranks[k], 0));
                  expect(s, more[k], values(s, ranks[k], 1));
                }
              }};
    default:
      return {reduce_scatter_async({y, z}, {ins, ins}, reduce), [=] {
                expect(s, y, reduced(s, ranks, mine));
                expect(s, z, reduced(s, ranks, mine));
              }};
  }
}

Pending begin_step(const Step& s, const Group& group) {
  const std::vector<int>& ranks = group.ranks();
  int me = rank(), mine = group.rank(), n = group.size(), root = ranks[static_cast<size_t>(s.root)];
  ReduceOptions reduce = options(s, group);
  RootOptions rooted{.root = s.root, .group = group};
  CollectiveOptions plain{.group = group};
  TensorList outs, ins;
  for (int k = 0; k < n; ++k) {
    outs.push_back(room(s));
    ins.push_back(given(s, me, k));
  }
  Tensor x = given(s, me, 0), y = room(s);
  auto expect_all = [=](bool all_to_all) {
    for (int k = 0; k < n; ++k)
      expect(s, outs[static_cast<size_t>(k)], values(s, ranks[static_cast<size_t>(k)], all_to_all ? mine : 0));
  };
  switch (s.kind) {
    case Kind::all_reduce:
      return {all_reduce_async(x, reduce), [=] { expect(s, x, reduced(s, ranks, 0)); }};
    case Kind::reduce:
      return {reduce_async(x, reduce), [=] { expect(s, x, me == root ? reduced(s, ranks, 0) : values(s, me, 0)); }};
    case Kind::broadcast:
      return {broadcast_async(x, rooted), [=] { expect(s, x, values(s, root, 0)); }};
    case Kind::all_gather:
      return {all_gather_async(outs, x, plain), [=] { expect_all(false); }};
    case Kind::gather:
      return {gather_async(me == root ? outs : TensorList(), x, rooted), [=] {
                if (me == root) expect_all(false);
              }};
    case Kind::scatter:
      return {scatter_async(y, me == root ? ins : TensorList(), rooted), [=] { expect(s, y, values(s, root, mine)); }};
    case Kind::reduce_scatter:
      return {reduce_scatter_async(y, ins, reduce), [=] { expect(s, y, reduced(s, ranks, mine)); }};
    case Kind::all_to_all:
      return {all_to_all_async(outs, ins, plain), [=] { expect_all(true); }};
    case Kind::barrier:
      return {barrier_async(plain), [] {}};
    case Kind::message: {  // from the root to the one after it
      MessageOptions message{.tag = s.number % 3, .group = group};
      int to = (s.root + 1) % n;
      if (mine == s.root && n > 1) return {send_async(x, to, message), [] {}};
      if (mine == to && n > 1) return {recv_async(y, s.root, message), [=] { expect(s, y, values(s, root, 0)); }};
      return {Work(), [] {}};
    }
    case Kind::list:
      return begin_list(s, group, outs, ins, reduce);
    case Kind::taken_back: {
      if (mine != s.root) return {Work(), [] {}};
      Work work = recv_async(y, -1, {.tag = 10'000 + s.number, .group = group});
      return {Work(), [=]() mutable {
                if (work.cancel()) return;
                work.wait();  // throws where another rank has failed before
                throw WrongResult(fmt::format("step {}: it should be cancelled", s.number));
              }};
    }
    case Kind::all_gather_rows:
    case Kind::reduce_scatter_rows:
    case Kind::all_to_all_rows:
      return begin_rows(s, group, ins, reduce);
    case Kind::ring:
      return begin_ring(s, group, x, y);
    case Kind::object:
    case Kind::sparse:
    case Kind::monitored_barrier:
      break;  // run_step() has
  }
  return {};
}

void run_objects(const Step& s, const Group& group) {
  using Object = std::pair<int, std::vector<double>>;
  Values mine = values(s, rank(), 0);
  std::vector<Object> all = all_gather_object(Object(rank(), mine), {.group = group});
  Object from_root(rank(), mine);
  broadcast_object(from_root, {.root = s.root, .group = group});
  for (size_t k = 0; k < all.size(); ++k)
    if (all[k] != Object(group.ranks()[k], values(s, group.ranks()[k], 0)))
      throw WrongResult(fmt::format("step {}: the object of rank {} is another", s.number, group.ranks()[k]));
  if (from_root != all[static_cast<size_t>(s.root)])
    throw WrongResult(fmt::format("step {}: the object of the root is another", s.number));
}

// Each rank has rows of its own, and one that all have.
void run_sparse(const Step& s, const Group& group) {
  int64_t size = 2 + group.size();
  Tensor indices = tensor({int64_t{0}, int64_t{2 + group.rank()}}).view({1, 2});
  Tensor x = sparse_coo(indices, tensor({rank() + 1.0, rank() + 2.0}), {size});
  all_reduce(x, {.group = group});
  Values wanted(static_cast<size_t>(size));
  for (size_t k = 0; k < group.ranks().size(); ++k) {
    wanted[0] += group.ranks()[k] + 1;
    wanted[2 + k] = group.ranks()[k] + 2;
  }
  Step plain = s;
  plain.dtype = DType::f64;
  expect(plain, to_dense(x), wanted);
}

/// The same of a call that is waited for at once: the other way through the library.
bool run_step(const Step& s, const Group& group) {
  Tensor x = given(s, rank(), 0);
  if (s.kind == Kind::all_reduce) {
    all_reduce(x, options(s, group));
    expect(s, x, reduced(s, group.ranks(), 0));
    return true;
  }
  if (s.kind == Kind::object) return run_objects(s, group), true;
  if (s.kind == Kind::sparse) return run_sparse(s, group), true;
  if (s.kind == Kind::monitored_barrier) return monitored_barrier({.group = group}), true;
  if (s.kind == Kind::broadcast) {
    broadcast(x, {.root = s.root, .group = group});
    expect(s, x, values(s, group.ranks()[static_cast<size_t>(s.root)], 0));
    return true;
  }
  return false;
}

std::vector<std::vector<int>> draw_groups(Random& random, int n) {
  std::vector<int> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<int>> groups{all};
  for (int k = 0; k < 3; ++k) {
    std::shuffle(all.begin(), all.end(), random);
    groups.emplace_back(all.begin(), all.begin() + 1 + pick(random, n));
  }
  return groups;
}

// One rank's run.
void body(uint64_t seed, int steps) {
  NoGrad guard;
  Random random(seed);
  auto members = draw_groups(random, world_size());
  std::vector<Group> groups;
  for (auto& ranks : members) groups.push_back(world().subgroup(ranks));
  std::vector<Pending> pending;
  auto settle = [&] {
    for (Pending& p : pending) {
      p.work.wait();
      p.check();
    }
    pending.clear();
  };
  for (int k = 0; k < steps; ++k) {
    Step s = draw_step(random, k, members);
    bool all_wait = pick(random, 5) == 0;
    if (s.remade) groups[s.group] = world().subgroup(members[s.group]);
    const Group& group = groups[s.group];
    if (group.rank() >= 0 && (s.asynchronous || !run_step(s, group))) {
      Pending p = begin_step(s, group);
      if (s.asynchronous) {
        pending.push_back(std::move(p));
      } else {
        p.work.wait();
        p.check();
      }
    }
    if (all_wait || pending.size() > 8) settle();
  }
  settle();
  barrier();
}

// How many calls a rank makes at least.
int64_t calls_of(int rank, int ranks, uint64_t seed, int steps) {
  Random random(seed);
  auto members = draw_groups(random, ranks);
  int64_t calls = 1;
  for (int k = 0; k < steps; ++k) {
    Step s = draw_step(random, k, members);
    pick(random, 5);
    const std::vector<int>& group = members[s.group];
    auto mine = std::find(group.begin(), group.end(), rank) - group.begin(), n = std::ssize(group);
    if (mine == n) continue;
    if (s.kind == Kind::message && (n == 1 || (mine != s.root && mine != (s.root + 1) % n))) continue;
    if (s.kind == Kind::taken_back && mine != s.root) continue;
    if (s.kind == Kind::monitored_barrier && n == 1) continue;
    ++calls;
  }
  return calls;
}

struct Round {
  uint64_t seed;
  bool processes;
  int ranks, steps;
  std::vector<Fault> faults;
  bool drops = false;

  std::string text() const {
    constexpr const char* names[] = {"delay", "drop", "fail", "kill"};
    std::string all;
    for (const Fault& f : faults)
      if (f.kind != Fault::delay) all += fmt::format(", {} at call {} of rank {}", names[f.kind], f.call, f.rank);
    return fmt::format("seed {}: {} {}{}", seed, ranks, processes ? "processes" : "threads", all);
  }
};

Round draw_round(uint64_t seed, const std::string& only) {
  Random random(seed);
  Round r{.seed = seed, .processes = pick(random, 2) == 1, .ranks = 1 + pick(random, 6), .steps = 60, .faults = {}};
  if (only == "threads") r.processes = false;
  if (only == "processes") r.processes = true;
  if (pick(random, 2)) r.faults.push_back({.kind = Fault::delay, .probability = 0.05, .time = 200us});
  if (pick(random, 2)) {
    Fault fault{.kind = one_of(random, {Fault::fail, Fault::kill, Fault::fail, Fault::kill, Fault::drop})};
    fault.rank = pick(random, r.ranks);
    fault.call = pick(random, 40);
    r.drops = fault.kind == Fault::drop;
    r.faults.push_back(fault);
  }
  return r;
}

// A lost part makes the calls of a rank meet the others' next ones: they do not fit, or give other numbers, or wait for
// what does not come, or for a rank that has ended. Everything else is a fault of its own.
bool may_follow_a_drop(const std::string& error) {
  for (const char* text : {"should be", "is another", "the object of rank", "ranks disagree", "waited", "did not come",
                           "wait for each other in a circle", "work of its own that cannot go on", "ended without",
                           "but rank", "could not begin", "takes "})
    if (error.find(text) != std::string::npos) return error.find("by signal") == std::string::npos;
  return false;
}

// "": as it should be.
std::string run_round(const Round& r, const std::string& transport) {
  SpawnOptions options{.timeout = r.drops ? 1000ms : 120'000ms, .seed = r.seed, .faults = r.faults};
  options.transport = transport;      // of processes
  if (transport.starts_with("shm+"))  // on two hosts
    for (int rank = 0; rank < r.ranks; ++rank) options.hosts.push_back(rank * 2 / r.ranks);
  bool faulty = !r.faults.empty() && r.faults.back().kind != Fault::delay;
  try {
    auto run = [&] { body(r.seed, r.steps); };
    r.processes ? spawn_processes(r.ranks, run, options) : spawn_ranks(r.ranks, run, options);
  } catch (const std::exception& e) {
    if (r.drops) return may_follow_a_drop(e.what()) ? "" : std::string("after a lost part: ") + e.what();
    bool meant = faulty && (std::string(e.what()).find("injected fault") != std::string::npos ||
                            std::string(e.what()).find("was killed") != std::string::npos);
    return meant ? "" : e.what();
  }
  const Fault* fault = faulty && !r.drops ? &r.faults.back() : nullptr;
  if (fault && fault->call < calls_of(fault->rank, r.ranks, r.seed, r.steps)) return "the fault has ended nothing";
  return "";
}

size_t threads() { return test::entries("/proc/self/task"); }
size_t descriptors() { return test::entries("/proc/self/fd"); }
size_t shared_files() { return test::entries("/dev/shm", fmt::format("tutti-{}-", ::getpid())); }

}  // namespace

int main(int argc, char** argv) {
  double seconds = 60;
  int64_t seed = 1;
  bool is_short = false;
  std::string only, transport;
  tutti::flags::Options options("soak_collectives",
                                "Random collectives in random groups, some with faults, until the time is up.");
  options.flag("--short", "a few seconds, for the tests", is_short);
  options.real("--seconds", "N", "until these are over", seconds);
  options.number("--seed", "N", "begin with these random numbers", seed);
  options.choice("--only", "rounds of this kind only", only, {"threads", "processes"});
  options.text("--transport", "NAME", "of processes, and only those: shm, ucx, gloo, shm+ucx or shm+gloo", transport);
  options.parse(argc, argv);
  if (is_short) seconds = 4;
  if (!transport.empty())
    only = "processes";
  else
    transport = "shm";
#ifdef TUTTI_SANITIZE_THREAD  // does not follow a process that has threads into its children
  only = "threads";
#endif
  int64_t rounds = 0, failed = 0, faulty = 0;
  size_t most_threads = 0, most_descriptors = 0;
  for (auto end = Clock::now() + std::chrono::duration<double>(seconds); Clock::now() < end; ++rounds) {
    ::alarm(300);  // a hang ends the program
    Round r = draw_round(static_cast<uint64_t>(seed + rounds), only);
    faulty += !r.faults.empty() && r.faults.back().kind != Fault::delay;
    std::string wrong = run_round(r, transport);
    // A thread that has been joined is seen for a moment yet; and a few, kept for good, are made when first needed.
    constexpr int64_t kLater = 3;
    for (int i = 0; i < 500 && rounds >= 20 && threads() > most_threads + kLater; ++i)
      std::this_thread::sleep_for(10ms);
    if (rounds < 20) {
      most_threads = std::max(most_threads, threads());
      most_descriptors = std::max(most_descriptors, descriptors());
    } else if (threads() > most_threads + kLater || descriptors() > most_descriptors) {
      wrong += fmt::format(" {} threads and {} descriptors are left; there were {} and {}", threads(), descriptors(),
                           most_threads, most_descriptors);
    }
    if (shared_files() > 0) wrong += fmt::format(" {} files are left in /dev/shm", shared_files());
    if (wrong.empty()) continue;
    ++failed;
    std::printf("%s\n  %s\n", r.text().c_str(), wrong.c_str());
    std::fflush(stdout);
  }
  std::printf("%ld rounds of 60 steps, %ld with a fault: %ld wrong\n", long(rounds), long(faulty), long(failed));
  return failed ? 1 : 0;
}
