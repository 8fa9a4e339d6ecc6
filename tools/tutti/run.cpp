// tutti run: a program as several ranks.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "base/cores.h"
#include "tools/tutti/command.h"
#include "tools/tutti/nodes.h"
#include "tools/tutti/supervise.h"

namespace tutti::tool {
namespace {

namespace fs = std::filesystem;

struct RunOptions {
  int64_t ranks = 0, nodes = 1, node = 0, port = 29400, max_restarts = 0;
  double grace = 5, join_timeout = 300, node_timeout = 30;
  std::string address, hosts, rsh = "ssh -o BatchMode=yes", log_folder, trace;
  std::vector<std::string> variables;
  bool plain = false, quiet = false, no_bind = false, controlled = false;
  Words command;
};

RunOptions parse(const Words& words) {
  RunOptions o;
  Options options(
      "tutti run [options] program [arguments]",
      "Starts a program as several ranks, which find their world in the environment, and waits for all. When "
      "one fails, the\nothers are ended, and its exit code is this program's.");
  options.number("-n, --ranks", "N", "ranks on this host, or on each (one for each core)", o.ranks, 1, 1 << 16);
  options.flag("--plain", "print lines as they are, without the rank in front", o.plain);
  options.flag("--quiet", "print nothing of the ranks (see --log)", o.quiet);
  options.text("--log", "FOLDER", "what rank r prints goes to FOLDER/rank-r.out and .err too (anew)", o.log_folder);
  options.text("--trace", "FOLDER", "ranks leave their flight records there: see tutti trace", o.trace);
  options.flag("--no-bind", "let ranks run on any core, instead of an equal share for each", o.no_bind);
  options.number("--max-restarts", "N", "start all ranks again after a failure, at most so often", o.max_restarts);
  options.real("--grace", "SECONDS", "that ranks have to end by themselves before they are killed (5)", o.grace);
  options.list("--env", "NAME=VALUE", "a variable for the ranks (may be repeated)", o.variables);
  options.text("--hosts", "A,B:4,...", "start on these hosts, by ssh; :4 is that host's number of ranks ([::1]:4)",
               o.hosts);
  options.text("--rsh", "COMMAND", "instead of ssh", o.rsh);
  options.number("--nnodes", "N", "one of N commands like this one, each on a host of its own", o.nodes, 1, 1 << 16);
  options.number("--node-rank", "K", "which of them, from 0 on", o.node);
  options.text("--master-addr", "HOST", "where node 0 is, as the others reach it", o.address);
  options.number("--master-port", "PORT", "where node 0 listens for the others (29400)", o.port, 1, 65535);
  options.real("--join-timeout", "SECONDS", "that nodes wait for each other (300)", o.join_timeout);
  options.real("--node-timeout", "SECONDS", "after which a node that says nothing counts as lost (30)", o.node_timeout);
  options.flag("--controlled", "used between hosts: orders come by standard input", o.controlled);
  o.command = options.parse(words);
  if (o.command.empty()) throw UsageError("name the program to run");
  if (o.node >= o.nodes)
    throw UsageError(fmt::format("--node-rank is {} of {} nodes: they are numbered from 0", o.node, o.nodes));
  if (!o.hosts.empty() && o.nodes > 1)
    throw UsageError("--hosts starts on all nodes by itself: --nnodes is not for it");
  if (o.nodes > 1 && o.address.empty()) throw UsageError("--nnodes needs --master-addr: where node 0 is");
  if (o.node_timeout < 0.1) throw UsageError("--node-timeout is at least 0.1 seconds");
  for (const std::string& v : o.variables)
    if (v.find('=') == std::string::npos || v[0] == '=')
      throw UsageError(fmt::format("--env takes NAME=VALUE, not '{}'", v));
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
                                    int epoch) {
  std::vector<Process> list;
  std::string logs = folder_of(o.log_folder, o, epoch), trace = folder_of(o.trace, o, epoch);
  auto n = static_cast<int>(o.ranks);
  for (int local = 0; local < n; ++local) {
    int rank = place.first_rank + local;
    Process p;
    p.name = fmt::format("rank {}", rank);
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
                     {"TUTTI_EPOCH", std::to_string(epoch)},
                     {"TUTTI_MAX_RESTARTS", std::to_string(o.max_restarts)}};
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
               .max_restarts = o.max_restarts},
              signals);
  for (int epoch = 0;; ++epoch) {
    Nodes::Place place = nodes.meet(epoch, static_cast<int>(o.ranks));
    std::vector<Process> processes = rank_processes(o, place, secret, epoch);
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
    if (verdict.code == 0) return 0;
    if (ending.by_signal) return 128 + ending.signal;
    if (verdict.lost)
      printer.print(2, fmt::format("tutti: {}\n", verdict.text));
    else if (ending.first < 0 || (ending.secondary && verdict.text != verdict_of(ending).text))
      printer.print(2, fmt::format("tutti: on another node, {}\n", verdict.text));
    bool over = verdict.final || ending.signal != 0 || epoch >= o.max_restarts;
    if (!over)
      printer.print(2, fmt::format("tutti: starts all ranks again: {} of {} restarts\n", epoch + 1, o.max_restarts));
    if (!printer.flush(signals) || over) return verdict.code;
  }
}

// ---- Many hosts, by ssh

struct Host {
  std::string name;     // as ssh knows it: with a user, maybe
  std::string address;  // as others reach it
  int64_t ranks;
};

int64_t parse_ranks(const std::string& text, const std::string& part) {
  int64_t ranks = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  if (error != std::errc() || end != text.data() + text.size() || ranks < 1)
    throw UsageError(fmt::format("--hosts: '{}' does not name a number of ranks", part));
  return ranks;
}

// [user@]name, or [user@]address of IPv6, which has colons of its own: with a number of ranks it is in brackets.
Host parse_host(const std::string& part, int64_t ranks) {
  size_t at = part.find('@') == std::string::npos ? 0 : part.find('@') + 1;
  std::string user = part.substr(0, at), rest = part.substr(at), count;
  if (rest.starts_with('[')) {
    size_t end = rest.find(']');
    if (end == std::string::npos || (end + 1 < rest.size() && rest[end + 1] != ':'))
      throw UsageError(fmt::format("--hosts: '{}' should be like [::1] or [::1]:4", part));
    if (end + 1 < rest.size()) ranks = parse_ranks(rest.substr(end + 2), part);
    rest = rest.substr(1, end - 1);
  } else if (std::count(rest.begin(), rest.end(), ':') == 1) {
    size_t colon = rest.find(':');
    ranks = parse_ranks(rest.substr(colon + 1), part);
    rest = rest.substr(0, colon);
  }
  if (rest.empty()) throw UsageError(fmt::format("--hosts: '{}' is a host without a name", part));
  return {user + rest, rest, ranks};
}

std::vector<Host> parse_hosts(const RunOptions& o) {
  std::vector<Host> list;
  for (const std::string& part : split(o.hosts, ',')) list.push_back(parse_host(part, o.ranks));
  if (list.size() != static_cast<size_t>(std::count(o.hosts.begin(), o.hosts.end(), ',')) + 1)
    throw UsageError(fmt::format("--hosts: a name is missing in '{}'", o.hosts));
  return list;
}

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
  std::vector<Host> hosts = parse_hosts(o);
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
    return 128 + e.signal;
  }
}

}  // namespace tutti::tool
