// A parameter server: it has the weights, workers fetch them, find gradients on their own data and send those back,
// each at its own pace. Nobody waits for anybody; a gradient that was found with weights that are too old is thrown
// away. Workers are threads here; with --as processes they are processes.
#include <cstdio>
#include <mutex>

#include "flags.h"
#include "learned.h"
#include "tutti/rpc.h"
#include "tutti/tutti.h"

using namespace tutti;

struct Net : nn::Module<Net> {
  nn::Linear hidden{2, 32}, out{32, 1};
  TUTTI_FIELDS(hidden, out)
  Tensor forward(const Tensor& x) { return out(tanh(hidden(x))); }
};

struct Weights {
  int64_t version = 0;
  nn::StateDict state;
  TUTTI_FIELDS(version, state)
};

class Server {
 public:
  explicit Server(int64_t staleness) : staleness_(staleness) {}
  Weights pull() {
    std::lock_guard lock(mutex_);
    // Copies: by the time they are on their way, the next push may change them.
    return {version_, tree::map(net_.state_dict(), [](const Tensor& t) { return t.detach().clone(); })};
  }
  /// Says whether they were of use.
  bool push(int64_t version, const TensorList& gradients, double loss) {
    std::lock_guard lock(mutex_);
    if (version_ - version > staleness_) {
      ++stale_;
      return false;
    }
    TensorList parameters = net_.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_grad(gradients.at(i));
    adam_.step();
    ++version_;
    learned_.add(loss);
    return true;
  }
  std::string report() {
    std::lock_guard lock(mutex_);
    if (learned_.status() != 0) throw Error("it has not learned");
    return std::to_string(version_) + " updates, and " + std::to_string(stale_) + " that were too old";
  }

 private:
  std::mutex mutex_;
  Net net_;
  optim::Adam adam_{net_.parameters(), {.lr = 0.01}};
  int64_t version_ = 0, stale_ = 0;
  const int64_t staleness_;
  Learned learned_;
};

void work(const rpc::RemoteRef<Server>& server, int64_t steps) {
  manual_seed(static_cast<uint64_t>(rank()));
  Net net;
  for (int64_t step = 0; step < steps; ++step) {
    Weights weights = server.call<&Server::pull>();
    net.load_state_dict(weights.state);
    Tensor x = randn({64, 2}), y = (x * x).sum(1, true);
    Tensor loss = mse_loss(net(x), y);
    server.call<&Server::push>(weights.version, grad({loss}, net.parameters()), loss.item<double>());
  }
}

int main(int argc, char** argv) {
  int64_t steps = 300, workers = 3, staleness = 4;
  std::string as = "threads";
  flags::Options options("parameter_server", "Workers train with the weights of a server, each at its own pace.");
  options.number("--steps", "N", "steps of each worker", steps, 1);
  options.number("--workers", "N", "workers that send gradients", workers, 1, 1000);
  options.number("--staleness", "N", "updates by which weights may be too old for their gradients to count", staleness);
  options.choice("--as", "what the workers are", as, {"threads", "processes"});
  options.parse(argc, argv);

  auto body = [&] {
    rpc::Session session;
    if (rank() != 0) return;
    auto server = rpc::share(std::make_shared<Server>(staleness));
    std::vector<rpc::Future<>> running;
    for (int r = 1; r < world_size(); ++r) running.push_back(rpc::async<&work>(r, server, steps));
    rpc::all(running).wait();
    std::printf("%s\n", server.call<&Server::report>().c_str());
  };
  int ranks = static_cast<int>(workers) + 1;
  as == "processes" ? spawn_processes(ranks, body) : spawn_ranks(ranks, body);
}
