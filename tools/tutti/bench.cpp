// tutti bench: the cost of collectives, as a table of sizes, in the manner of NCCL's tests.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>

#include "tools/tutti/command.h"
#include "tools/tutti/output.h"
#include "tutti/comm.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti::tool {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
  std::string collective = "all_reduce", dtype = "f32", op = "sum";
  int64_t ranks = 2, root = 0, begin = 4, end = 64 << 20, factor = 4, iterations = 0, warmup = 3;
  bool processes = false, asynchronous = false, no_check = false, json = false;
};

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16,     DType::i8,  DType::u8,
                             DType::i16, DType::i32, DType::i64,  DType::boolean, DType::c64, DType::c128};
constexpr const char* kReduceNames[] = {"sum", "average", "product", "min", "max", "band", "bor", "bxor"};

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (DType d : kDTypes) names.emplace_back(name(d));
  return names;
}

// Of words that the options have checked.
DType dtype_of(const std::string& text) {
  return *std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](DType d) { return text == name(d); });
}
Reduce reduce_of(const std::string& text) {
  return static_cast<Reduce>(std::find(std::begin(kReduceNames), std::end(kReduceNames), text) - kReduceNames);
}

/// One collective on tensors of one size: `bytes` is what NCCL's tests call the size, the larger of what a rank gives
/// and gets.
struct Job {
  Tensor in, out;
  std::function<Work()> start;
  std::function<void()> run;
  std::function<Tensor()> expected;  // of out; undefined where there is nothing to expect
  double factor = 1;                 // of the bus bandwidth over the algorithm's
};

struct Setting {
  DType dtype;
  Reduce op;
  int root;
};

// Numbers that every reduction has exactly the same result of, whatever the dtype: 1 + (index + rank) % 2.
Tensor numbers(int64_t count, int rank, DType dtype) {
  Tensor x = (arange(count, {.dtype = DType::i64}) + rank) % 2 + 1;
  return x.to(dtype);
}

Tensor reduced(int64_t count, const Setting& s, int n) {
  auto given = [&](int r, DType dtype) { return numbers(count, r, s.dtype).to(dtype); };
  if (s.op >= Reduce::band) {
    Tensor bits = given(0, DType::i64);
    for (int r = 1; r < n; ++r) {
      Tensor x = given(r, DType::i64);
      bits = s.op == Reduce::band  ? bitwise_and(bits, x)
             : s.op == Reduce::bor ? bitwise_or(bits, x)
                                   : bitwise_xor(bits, x);
    }
    return bits;
  }
  Tensor result = given(0, DType::f64);
  for (int r = 1; r < n; ++r) {
    Tensor x = given(r, DType::f64);
    result = s.op == Reduce::product ? result * x
             : s.op == Reduce::min   ? minimum(result, x)
             : s.op == Reduce::max   ? maximum(result, x)
                                     : result + x;
  }
  return s.op == Reduce::average ? result / n : result;
}

using Make = Job (*)(int64_t count, const Setting& s);

Job make_all_reduce(int64_t count, const Setting& s) {
  int n = world_size();
  Tensor x = numbers(count, rank(), s.dtype), out = empty(x.sizes(), {.dtype = s.dtype});
  return {x,
          out,
          [=] { return all_reduce_async(out, {.op = s.op}); },
          [=] { all_reduce(out, {.op = s.op}); },
          [=] { return reduced(count, s, n); },
          2.0 * (n - 1) / n};
}
Job make_reduce(int64_t count, const Setting& s) {
  int n = world_size();
  Tensor x = numbers(count, rank(), s.dtype), out = empty(x.sizes(), {.dtype = s.dtype});
  return {x,
          out,
          [=] { return reduce_async(out, {.op = s.op, .root = s.root}); },
          [=] { reduce(out, {.op = s.op, .root = s.root}); },
          [=] { return rank() == s.root ? reduced(count, s, n) : Tensor(); },
          1};
}
Job make_broadcast(int64_t count, const Setting& s) {
  Tensor x = numbers(count, rank(), s.dtype), out = empty(x.sizes(), {.dtype = s.dtype});
  return {x,
          out,
          [=] { return broadcast_async(out, {.root = s.root}); },
          [=] { broadcast(out, {.root = s.root}); },
          [=] { return numbers(count, s.root, s.dtype); },
          1};
}
Job make_all_gather(int64_t count, const Setting& s) {
  int n = world_size();
  int64_t part = std::max<int64_t>(1, count / n);
  Tensor x = numbers(part, rank(), s.dtype), out = empty({part * n}, {.dtype = s.dtype});
  auto expected = [=] {
    TensorList parts;
    for (int r = 0; r < n; ++r) parts.push_back(numbers(part, r, s.dtype));
    return cat(parts, 0);
  };
  return {x, out, [=] { return all_gather_async(out, x); }, [=] { all_gather(out, x); }, expected, (n - 1.0) / n};
}
Job make_reduce_scatter(int64_t count, const Setting& s) {
  int n = world_size();
  int64_t part = std::max<int64_t>(1, count / n);
  Tensor x = numbers(part * n, rank(), s.dtype), out = empty({part}, {.dtype = s.dtype});
  return {x,
          out,
          [=] { return reduce_scatter_async(out, x, {.op = s.op}); },
          [=] { reduce_scatter(out, x, {.op = s.op}); },
          [=] { return reduced(part * n, s, n).narrow(0, part * rank(), part); },
          (n - 1.0) / n};
}
Job make_all_to_all(int64_t count, const Setting& s) {
  int n = world_size();
  int64_t part = std::max<int64_t>(1, count / n);
  Tensor x = numbers(part * n, rank(), s.dtype), out = empty({part * n}, {.dtype = s.dtype});
  auto expected = [=] {
    TensorList parts;
    for (int r = 0; r < n; ++r) parts.push_back(numbers(part * n, r, s.dtype).narrow(0, part * rank(), part));
    return cat(parts, 0);
  };
  return {x, out, [=] { return all_to_all_async(out, x); }, [=] { all_to_all(out, x); }, expected, (n - 1.0) / n};
}
Job make_gather(int64_t count, const Setting& s) {
  int n = world_size();
  int64_t part = std::max<int64_t>(1, count / n);
  bool root = rank() == s.root;
  Tensor x = numbers(part, rank(), s.dtype), out = empty({part * n}, {.dtype = s.dtype});
  TensorList parts = root ? split(out, Shape::filled(static_cast<size_t>(n), part), 0) : TensorList();
  auto expected = [=] {
    TensorList list;
    for (int r = 0; r < n; ++r) list.push_back(numbers(part, r, s.dtype));
    return root ? cat(list, 0) : Tensor();
  };
  return {x,
          out,
          [=] { return gather_async(parts, x, {.root = s.root}); },
          [=] { gather(parts, x, {.root = s.root}); },
          expected,
          (n - 1.0) / n};
}
Job make_scatter(int64_t count, const Setting& s) {
  int n = world_size();
  int64_t part = std::max<int64_t>(1, count / n);
  Tensor x = numbers(part * n, s.root, s.dtype), out = empty({part}, {.dtype = s.dtype});
  TensorList parts = rank() == s.root ? split(x, Shape::filled(static_cast<size_t>(n), part), 0) : TensorList();
  return {x,
          out,
          [=] { return scatter_async(out, parts, {.root = s.root}); },
          [=] { scatter(out, parts, {.root = s.root}); },
          [=] { return x.narrow(0, part * rank(), part); },
          (n - 1.0) / n};
}
Job make_send_recv(int64_t count, const Setting& s) {  // to the next rank, from the last
  int n = world_size(), next = (rank() + 1) % n, last = (rank() + n - 1) % n;
  Tensor x = numbers(count, rank(), s.dtype), out = empty({count}, {.dtype = s.dtype});
  auto run = [=] {
    for (Work& w : batch_messages({send_op(x, next), recv_op(out, last)})) w.wait();
  };
  return {x, out, nullptr, run, [=] { return numbers(count, last, s.dtype); }, 1};
}
Job make_barrier(int64_t, const Setting&) {
  return {Tensor(), Tensor(), [] { return barrier_async(); }, [] { barrier(); }, [] { return Tensor(); }, 0};
}

const std::map<std::string, Make>& kinds() {
  static const std::map<std::string, Make> map{{"all_reduce", make_all_reduce},
                                               {"reduce", make_reduce},
                                               {"broadcast", make_broadcast},
                                               {"all_gather", make_all_gather},
                                               {"gather", make_gather},
                                               {"scatter", make_scatter},
                                               {"reduce_scatter", make_reduce_scatter},
                                               {"all_to_all", make_all_to_all},
                                               {"send_recv", make_send_recv},
                                               {"barrier", make_barrier}};
  return map;
}

// What all_reduce and its like overwrite is given back first.
void refill(Job& job) {
  if (job.in.defined() && job.in.sizes() == job.out.sizes() && job.in.raw_data() != job.out.raw_data())
    job.out.copy_(job.in);
  else if (job.out.defined())
    job.out.zero_();
}

int64_t wrong_elements(Job& job, bool averages) {
  refill(job);
  job.run();
  Tensor expected = job.expected();
  if (!expected.defined()) return 0;
  expected = expected.to(job.out.dtype());
  // Averages are sums times 1/n, which may differ in the last place from what is expected.
  Tensor same = averages ? abs(job.out - expected) <= abs(expected) * 0.01 : eq(job.out, expected);
  return job.out.numel() - same.to(DType::i64).sum().item<int64_t>();
}

struct Row {
  int64_t bytes = 0, count = 0, iterations = 0, wrong = 0;
  double seconds = 0, bandwidth = 0, bus = 0;
};

double measure(const Job& job, const BenchOptions& o, int64_t iterations) {
  barrier();
  auto begin = Clock::now();
  if (o.asynchronous && job.start) {
    Work work;
    for (int64_t i = 0; i < iterations; ++i) work = job.start();
    work.wait();
  } else {
    for (int64_t i = 0; i < iterations; ++i) job.run();
  }
  Tensor time = full({1}, std::chrono::duration<double>(Clock::now() - begin).count(), {.dtype = DType::f64});
  all_reduce(time, {.op = Reduce::max});
  return time.item<double>() / static_cast<double>(iterations);
}

Row measure_size(const BenchOptions& o, const Setting& s, int64_t bytes) {
  NoGrad guard;
  int64_t count = std::max<int64_t>(1, bytes / static_cast<int64_t>(size_of(s.dtype)));
  Job job = kinds().at(o.collective)(count, s);
  Row row;
  if (job.out.defined()) row.bytes = std::max(job.in.numel(), job.out.numel()) * static_cast<int64_t>(size_of(s.dtype));
  row.count = row.bytes / static_cast<int64_t>(size_of(s.dtype));
  for (int64_t i = 0; i < o.warmup; ++i) job.run();
  row.iterations =
      o.iterations ? o.iterations : std::clamp<int64_t>(static_cast<int64_t>(0.05 / measure(job, o, 3)), 5, 20'000);
  std::vector<double> samples;
  for (int k = 0; k < 5; ++k) samples.push_back(measure(job, o, row.iterations));
  std::nth_element(samples.begin(), samples.begin() + 2, samples.end());
  row.seconds = samples[2];
  row.bandwidth = static_cast<double>(row.bytes) / row.seconds;
  row.bus = row.bandwidth * job.factor;
  if (!o.no_check) {
    Tensor wrong = full({1}, wrong_elements(job, s.op == Reduce::average), {.dtype = DType::i64});
    all_reduce(wrong);
    row.wrong = wrong.item<int64_t>();
  }
  return row;
}

// On every rank; says whether all was right.
bool measure_all(const BenchOptions& o) {
  Setting s{dtype_of(o.dtype), reduce_of(o.op), static_cast<int>(o.root)};
  bool right = true, first = rank() == 0;
  auto print = [&](const std::string& text) {
    if (first) write_all(1, text);
  };
  if (!o.json)
    print(fmt::format("# {} {} {}, {} ranks by {}{}\n# {:>12} {:>12} {:>10} {:>12} {:>10} {:>10} {:>8}\n", o.collective,
                      o.dtype, o.op, world_size(), world().transport(), o.asynchronous ? ", asynchronous" : "", "bytes",
                      "elements", "times", "time us", "alg GB/s", "bus GB/s", "wrong"));
  for (int64_t bytes = o.begin; bytes <= o.end; bytes *= o.factor) {
    Row row = measure_size(o, s, bytes);
    right = right && row.wrong == 0;
    if (o.json)
      print(fmt::format(
          "{{\"collective\":\"{}\",\"dtype\":\"{}\",\"ranks\":{},\"transport\":\"{}\",\"bytes\":{},\"us\":{:.3f},"
          "\"alg_gb_s\":{:.4f},\"bus_gb_s\":{:.4f},\"wrong\":{}}}\n",
          o.collective, o.dtype, world_size(), world().transport(), row.bytes, row.seconds * 1e6, row.bandwidth * 1e-9,
          row.bus * 1e-9, row.wrong));
    else
      print(fmt::format("  {:>12} {:>12} {:>10} {:>12.2f} {:>10.3f} {:>10.3f} {:>8}\n", row.bytes, row.count,
                        row.iterations, row.seconds * 1e6, row.bandwidth * 1e-9, row.bus * 1e-9,
                        o.no_check ? "-" : std::to_string(row.wrong)));
    if (o.collective == "barrier" || bytes > o.end / o.factor) break;
  }
  return right;
}

}  // namespace

int bench(const Words& words) {
  BenchOptions o;
  std::vector<std::string> names;
  for (const auto& [name, kind] : kinds()) names.push_back(name);
  Options options(
      "tutti bench",
      "Measures a collective for many sizes, and checks its results. Ranks are threads, or processes, or those that "
      "tutti run or mpirun started it as. Bus bandwidth is the algorithm's times what must pass every rank: the number "
      "to compare with the hardware.");
  options.argument("COLLECTIVE", fmt::format("{}", fmt::join(names, ", ")), o.collective);
  options.number("-n, --ranks", "N", "ranks", o.ranks, 1, 4096);
  options.flag("-p, --processes", "ranks are processes", o.processes);
  options.bytes("-b, --begin", "smallest size", o.begin);
  options.bytes("-e, --end", "largest size", o.end);
  options.number("-f, --factor", "F", "from one size to the next", o.factor, 2);
  options.choice("-d, --dtype", "of the elements", o.dtype, dtype_names());
  options.choice("-o, --op", "what a reduction does", o.op, {std::begin(kReduceNames), std::end(kReduceNames)});
  options.number("-r, --root", "RANK", "of reduce, broadcast, gather and scatter", o.root);
  options.number("-i, --iterations", "N", "calls in a measurement (as many as take 50 ms); the median of five counts",
                 o.iterations, 1);
  options.number("-w, --warmup", "N", "calls before", o.warmup);
  options.flag("-a, --async", "start all calls, then wait", o.asynchronous);
  options.flag("--no-check", "do not check results", o.no_check);
  options.flag("--json", "a line of JSON for each size", o.json);
  options.example("tutti bench all_reduce -n 4 -p -b 4K -e 16M", "four processes that share memory");
  options.example("tutti run -n 4 tutti bench all_gather", "ranks as tutti run starts them");
  options.parse_all(words);
  if (!kinds().contains(o.collective)) {
    std::string near = nearest(o.collective, names);
    throw UsageError(fmt::format("there is no collective '{}': there are {}{}", o.collective, fmt::join(names, ", "),
                                 near.empty() ? "" : fmt::format("; did you mean {}?", near)));
  }
  if (o.begin < 1 || o.end < o.begin)
    throw UsageError("sizes begin at 1 byte at least, and end where they begin or later");
  bool started = std::getenv("RANK") || std::getenv("OMPI_COMM_WORLD_RANK") || std::getenv("PMI_RANK") ||
                 std::getenv("SLURM_PROCID");
  if (o.root >= (started ? world_size() : o.ranks))
    throw UsageError(fmt::format("there is no rank {} to be the root", o.root));
  auto body = [&] {
    if (!measure_all(o)) throw Error("results are wrong", "bench");
  };
  if (started)
    body();
  else if (o.processes)
    spawn_processes(static_cast<int>(o.ranks), body);
  else
    spawn_ranks(static_cast<int>(o.ranks), body);
  return 0;
}

}  // namespace tutti::tool
