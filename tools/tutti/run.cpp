// tutti run: a program as several ranks.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <utility>

#include "base/cores.h"
#include "tools/tutti/command.h"
#include "tools/tutti/endings.h"
#include "tools/tutti/joined.h"
#include "tools/tutti/launch_words.h"
#include "tools/tutti/nodes.h"
#include "tools/tutti/supervise.h"

namespace tutti::tool {
namespace {

namespace fs = std::filesystem;

struct RunOptions {
  int64_t ranks = 0, nodes = 1, node = -1, port = 29400, max_restarts = 0;
  int64_t total = 0;  // ranks of all hosts together; 0: `ranks` counts
  double grace = 5, join_timeout = 300, node_timeout = 30;
  std::string address, hosts, rsh = "ssh -o BatchMode=yes", log_folder, trace, job;
  std::vector<std::string> variables;
  bool plain = false, quiet = false, no_bind = false, controlled = false;
  Words command;
};

// As it was typed, where other launchers have names of their own for it.
struct TypedOptions {
  std::string ranks, ranks_of_node, total, nodes, endpoint, backend;
  std::vector<std::string> exported;
  bool standalone = false;
};

void resolve_ranks(const TypedOptions& typed, RunOptions& o) {
  int given = 0;
  auto take = [&](const char* name, const std::string& text, int64_t& value) {
    if (text.empty()) return;
    value = parse_rank_count(name, text);
    if (++given > 1) throw UsageError("give the number of ranks once: -n, -np and --nproc-per-node are the same here");
  };
  take("-n", typed.ranks, o.ranks);
  take("--nproc-per-node", typed.ranks_of_node, o.ranks);
  take("-np", typed.total, o.total);
  if (!o.total || !o.hosts.empty()) return;
  if (o.nodes > 1)
    throw UsageError("-np counts the ranks of all nodes together: with --nnodes say how many this one has (-n)");
  o.ranks = std::exchange(o.total, 0);
}

void resolve_rendezvous(const TypedOptions& typed, RunOptions& o) {
  if (!typed.backend.empty() && typed.backend != "c10d" && typed.backend != "static")
    throw UsageError(
        fmt::format("--rdzv-backend {}: the nodes meet at --rdzv-endpoint by themselves; leave it out, or "
                    "say c10d or static, which mean the same here",
                    typed.backend));
  if (!typed.endpoint.empty()) {
    if (!o.address.empty()) throw UsageError("--rdzv-endpoint says what --master-addr does: give one of them");
    auto [host, port] = parse_endpoint(typed.endpoint, o.port);
    if (port == 0 && o.nodes > 1)
      throw UsageError("--rdzv-endpoint: port 0 is any, which the other nodes would not know: give a number");
    o.address = o.nodes > 1 ? host : "";
    o.port = port;
  }
  if (typed.standalone && o.nodes > 1)
    throw UsageError("--standalone is a job on this host alone: --nnodes is not for it");
  if (o.node >= o.nodes)
    throw UsageError(fmt::format("--node-rank is {} of {} nodes: they are numbered from 0", o.node, o.nodes));
  if (!o.hosts.empty() && o.nodes > 1) throw UsageError("--host starts on all nodes by itself: --nnodes is not for it");
  if (o.nodes > 1 && o.address.empty())
    throw UsageError("--nnodes needs --master-addr (or --rdzv-endpoint): where node 0 is");
}

RunOptions parse(const Words& words) {
  RunOptions o;
  TypedOptions typed;
  Options options("tutti run [options] program [arguments]",
                  "Starts a program as several ranks. When one fails, the others are ended.");
  options.example("tutti run -n 4 ./train", "four processes on this host");
  options.example("tutti run --host a:8,b:8 ./train", "eight on each of two hosts, by ssh");
  options.example("tutti run --log logs -n 4 ./train", "what each prints in a file of its own");
  options.text("-n, --ranks", "N", "ranks on each host (default one for each core)", typed.ranks);
  options.text("-H, --host", "A:8,B:8", "hosts, and the ranks on each; started by ssh", o.hosts);
  options.text("--log", "FOLDER", "write what rank r prints to FOLDER/rank-r.out, .err", o.log_folder);
  options.flag("--plain", "print lines without the rank in front", o.plain);
  options.flag("--quiet", "print nothing of what ranks print", o.quiet);
  options.list("--env", "NAME=VALUE", "a variable for the ranks (may be repeated)", o.variables);
  options.text("--trace", "FOLDER", "keep flight records there: see tutti trace", o.trace);
  options.number("--max-restarts", "N", "start all ranks again after a failure, N times", o.max_restarts);
  options.text("--nnodes", "N", "number of nodes: run this command once on each", typed.nodes);
  options.number("--node-rank", "K", "number of this node, from 0 (default by order of start)", o.node);
  options.text("--master-addr", "HOST", "address of node 0", o.address);

  options.advanced();
  options.text("-np, --np", "N", "ranks of all hosts together, as in mpirun", typed.total);
  options.text("--nproc-per-node", "N", "the same as -n; auto, cpu: one for each core", typed.ranks_of_node);
  options.text("--hosts", "A:8,B:8", "the same as --host ([::1]:4 for an address of IPv6)", o.hosts);
  options.text("--rsh", "COMMAND", "program that starts ranks on other hosts", o.rsh);
  options.list("-x", "NAME[=VALUE]", "like --env; NAME alone copies the value of this shell", typed.exported);
  options.text("--log-dir", "FOLDER", "the same as --log", o.log_folder);
  options.flag("--no-bind", "let ranks run on any core, not a share for each", o.no_bind);
  options.real("--grace", "SECONDS", "time for ranks to end before SIGTERM, then SIGKILL", o.grace);
  options.number("--master-port", "PORT", "where node 0 listens for the others", o.port, 1, 65535);
  options.text("--rdzv-endpoint", "HOST:PORT", "the same as --master-addr and -port", typed.endpoint);
  options.text("--rdzv-id", "NAME", "name of the job: nodes of another job are an error", o.job);
  options.text("--rdzv-backend", "NAME", "c10d or static: nodes meet at the endpoint anyway", typed.backend);
  options.flag("--standalone", "one host, as without --nnodes (for torchrun's users)", typed.standalone);
  options.real("--join-timeout", "SECONDS", "how long nodes wait for each other at the start", o.join_timeout);
  options.real("--node-timeout", "SECONDS", "a node that sends nothing for so long is lost", o.node_timeout);
  options.flag("--controlled", "internal: --host starts other hosts with it", o.controlled);
  o.command = options.parse(words);
  if (o.command.empty()) throw UsageError("no program is given: tutti run -n 4 ./train");
  if (!typed.nodes.empty()) o.nodes = parse_node_count(typed.nodes);
  resolve_rendezvous(typed, o);
  resolve_ranks(typed, o);
  if (o.node_timeout < 0.1) throw UsageError("--node-timeout is at least 0.1 seconds");
  for (const std::string& v : o.variables)
    if (v.find('=') == std::string::npos || v[0] == '=')
      throw UsageError(fmt::format("--env takes NAME=VALUE, not '{}'", v));
  for (const std::string& v : typed.exported) o.variables.push_back(exported_variable(v));
  return o;
}

std::string random_secret() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

std::string secret_of_job() {
  const char* given = std::getenv("TUTTI_SECRET");
  return given && *given ? given : "";
}

// An equal share of the cores for each, or none where there are more ranks than cores.
std::vector<int> cores_of(int rank, int ranks) {
  std::vector<int> all = process_cores(), mine;
  auto n = static_cast<int>(all.size());
  if (ranks > n) return {};
  for (int k = rank * n / ranks; k < (rank + 1) * n / ranks; ++k) mine.push_back(all[static_cast<size_t>(k)]);
  return mine;
}

std::string folder_of(const std::string& folder, const RunOptions& o, int epoch) {
  if (folder.empty()) return "";
  std::string path = fs::absolute(o.max_restarts ? fmt::format("{}/epoch-{}", folder, epoch) : folder).string();
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw UsageError(fmt::format("the folder {} cannot be made: {}", path, error.message()));
  return path;
}

std::vector<Process> rank_processes(const RunOptions& o, const Nodes::Place& place, const std::string& secret,
                                    int epoch, const std::string& joined) {
  std::vector<Process> list;
  std::string logs = folder_of(o.log_folder, o, epoch), trace = folder_of(o.trace, o, epoch);
  auto n = static_cast<int>(o.ranks);
  for (int local = 0; local < n; ++local) {
    int rank = place.first_rank + local;
    Process p;
    p.name = fmt::format("rank {}", rank);
    p.rank = rank;
    if (!o.plain) p.prefix = fmt::format("[{}] ", rank);
    p.command = o.command;
    p.environment = {{"RANK", std::to_string(rank)},
                     {"WORLD_SIZE", std::to_string(place.world_size)},
                     {"LOCAL_RANK", std::to_string(local)},
                     {"LOCAL_WORLD_SIZE", std::to_string(n)},
                     {"NODE_RANK", std::to_string(o.node)},
                     {"GROUP_RANK", std::to_string(o.node)},
                     {"MASTER_ADDR", place.address},
                     {"MASTER_PORT", std::to_string(place.port)},
                     {"TUTTI_SECRET", secret},
                     {"TUTTI_JOINED", joined},
                     {"TUTTI_EPOCH", std::to_string(epoch)},
                     {"TUTTI_MAX_RESTARTS", std::to_string(o.max_restarts)}};
    // Python keeps lines back as the C library does, for which see context.cpp.
    if (!std::getenv("PYTHONUNBUFFERED")) p.environment.emplace_back("PYTHONUNBUFFERED", "1");
    if (!trace.empty()) p.environment.emplace_back("TUTTI_TRACE", trace);
    for (const std::string& v : o.variables)
      p.environment.emplace_back(v.substr(0, v.find('=')), v.substr(v.find('=') + 1));
    if (!o.no_bind) p.cores = cores_of(local, n);
    if (!logs.empty()) p.file = fmt::format("{}/rank-{}", logs, rank);
    list.push_back(std::move(p));
  }
  return list;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

SuperviseOptions supervise_options(const RunOptions& o) { return {.print = !o.quiet, .grace = milliseconds(o.grace)}; }

// Ranks that ended well, and never met. That is an error of a program that uses Tutti, whose copies each did the whole
// work; others (hostname) may be meant so. All ranks join or none does, so node 0 knows. Returns the exit code.
int explain_copies(const RunOptions& o, const Nodes::Place& place, const JoinedFile& file, int connections_before,
                   Printer& printer) {
  if (place.world_size == 1 || o.node != 0 || file.has(LauncherNote::joined) ||
      count_connections(place.port) > connections_before)
    return 0;
  bool error = file.has(LauncherNote::uses_tutti);
  printer.print(2, fmt::format("tutti: {}none of the {} ranks joined the world, so {} copies of {} ran on their own\n"
                               "tutti: a rank joins by its first call of launch(), world(), rank() or a collective\n",
                               error ? "error: " : "", place.world_size, place.world_size, o.command[0]));
  return error ? 1 : 0;
}

int run_here(RunOptions o) {
  if (o.ranks == 0) o.ranks = static_cast<int64_t>(process_cores().size());
  std::string secret = o.controlled ? read_line(0) : secret_of_job();
  if (o.nodes > 1 && secret.empty())
    throw UsageError("between hosts the job needs a secret: set TUTTI_SECRET, the same on all nodes");
  if (secret.empty()) secret = random_secret();
  Signals signals;
  if (o.controlled) signals.obey(0);
  Printer printer;
  Nodes nodes({.nodes = static_cast<int>(o.nodes),
               .node = static_cast<int>(o.node),
               .address = o.address,
               .port = static_cast<uint16_t>(o.port),
               .secret = secret,
               .join_timeout = milliseconds(o.join_timeout),
               .node_timeout = milliseconds(o.node_timeout),
               .max_restarts = o.max_restarts,
               .job = o.job},
              signals);
  o.node = nodes.node();
  JoinedFile joined;
  for (int epoch = 0;; ++epoch) {
    Nodes::Place place = nodes.meet(epoch, static_cast<int>(o.ranks));
    std::vector<Process> processes = rank_processes(o, place, secret, epoch, joined.path());
    int connections_before = count_connections(place.port);
    auto verdict_of = [&](const Ending& e) {
      Nodes::Verdict v{e.code, e.signal != 0 || e.hopeless, e.text};
      if (e.first >= 0) v.text = fmt::format("{}: {}", processes[static_cast<size_t>(e.first)].name, e.text);
      return v;
    };
    SuperviseOptions options = supervise_options(o);
    if (o.nodes > 1) {
      options.interrupted = [&] { return nodes.failed(epoch); };
      options.failed = [&](const Ending& e) { nodes.fail(epoch, verdict_of(e), e.secondary); };
    }
    Ending ending = supervise(processes, options, signals, printer);
    Nodes::Verdict verdict = nodes.end(epoch, verdict_of(ending));
    if (verdict.code == 0) {
      int code = ending.signal == 0 ? explain_copies(o, place, joined, connections_before, printer) : 0;
      printer.flush(signals);
      return code;
    }
    if (ending.by_signal) return 128 + ending.signal;
    if (verdict.lost)
      printer.print(2, fmt::format("tutti: {}\n", verdict.text));
    else if (ending.first < 0 || (ending.secondary && verdict.text != verdict_of(ending).text))
      printer.print(2, fmt::format("tutti: on another node, {}\n", verdict.text));
    bool over = verdict.final || ending.signal != 0 || epoch >= o.max_restarts;
    if (!over)
      printer.print(2, fmt::format("tutti: restarting all ranks (restart {} of {})\n", epoch + 1, o.max_restarts));
    if (!printer.flush(signals) || over) return verdict.code;
  }
}

// ---- Many hosts, by ssh

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string remote_command(const RunOptions& o, const Host& host, size_t node, size_t nodes, const std::string& first) {
  Words words{fs::read_symlink("/proc/self/exe").string(), "run", "--controlled"};
  auto add = [&](const std::string& name, const std::string& value) { words.insert(words.end(), {name, value}); };
  add("--nnodes", std::to_string(nodes));
  add("--node-rank", std::to_string(node));
  add("--master-addr", o.address.empty() ? first : o.address);
  add("--master-port", std::to_string(o.port));
  if (host.ranks) add("-n", std::to_string(host.ranks));
  add("--max-restarts", std::to_string(o.max_restarts));
  add("--grace", fmt::format("{}", o.grace));
  add("--join-timeout", fmt::format("{}", o.join_timeout));
  add("--node-timeout", fmt::format("{}", o.node_timeout));
  for (const std::string& v : o.variables) add("--env", v);
  if (!o.job.empty()) add("--rdzv-id", o.job);
  if (!o.log_folder.empty()) add("--log", o.log_folder);
  if (!o.trace.empty()) add("--trace", o.trace);
  if (o.plain) words.emplace_back("--plain");
  if (o.quiet) words.emplace_back("--quiet");
  if (o.no_bind) words.emplace_back("--no-bind");
  words.emplace_back("--");
  words.insert(words.end(), o.command.begin(), o.command.end());
  std::string text = fmt::format("cd {} && exec", quoted(fs::current_path().string()));
  for (const std::string& w : words) text += " " + quoted(w);
  return text;
}

int run_on_hosts(const RunOptions& o) {
  std::vector<Host> hosts = parse_hosts(o.hosts, o.ranks, o.total);
  Printer printer;
  std::string secret = secret_of_job();
  if (secret.empty()) secret = random_secret();
  Signals signals;
  std::vector<Process> processes;
  for (size_t k = 0; k < hosts.size(); ++k) {
    Process p;
    p.name = fmt::format("host {}", hosts[k].name);
    p.command = split(o.rsh, ' ');
    p.command.push_back(hosts[k].name);
    p.command.push_back(remote_command(o, hosts[k], k, hosts.size(), hosts[0].address));
    p.control = secret;  // not on a command line, which others can read
    processes.push_back(std::move(p));
  }
  // Those there end their ranks, which takes its time; what failed is said there.
  Ending ending = supervise(processes,
                            {.print = true,
                             .explain = false,
                             .grace = std::chrono::milliseconds(static_cast<int64_t>(o.grace * 2000 + 2000))},
                            signals, printer);
  if (ending.first >= 0)
    printer.print(
        2, fmt::format("tutti: {} failed: {}\n", processes[static_cast<size_t>(ending.first)].name, ending.text));
  printer.flush(signals);
  return ending.by_signal ? 128 + ending.signal : ending.code;
}

}  // namespace

int run(const Words& words) {
  RunOptions options = parse(words);
  try {
    return options.hosts.empty() ? run_here(options) : run_on_hosts(options);
  } catch (const Interrupted& e) {
    if (!options.controlled) std::fprintf(stderr, "tutti: interrupted by %s\n", signal_name(e.signal).c_str());
    return 128 + e.signal;
  }
}

}  // namespace tutti::tool
