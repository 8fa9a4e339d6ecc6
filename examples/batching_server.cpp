// A model that learns and answers at the same time. Players ask it, one question each, and tell what came of the
// answer; it answers the questions of all players in one batch, since that costs little more than one of them, and
// trains on what they tell. Workers are threads here; with --as processes they are processes.
#include <cstdio>
#include <mutex>

#include "flags.h"
#include "learned.h"
#include "tutti/rpc.h"
#include "tutti/tutti.h"

using namespace tutti;

constexpr int64_t kArms = 4, kSigns = 8;

/// Which of four levers to pull, by eight signs.
class Model {
 public:
  explicit Model(int64_t players) : players_(players) {}

  // A question waits until all players have asked, and holds no thread meanwhile.
  rpc::Future<Tensor> ask(Tensor signs) {
    rpc::Promise<Tensor> answer;
    std::unique_lock lock(mutex_);
    waiting_.push_back({signs, answer});
    if (std::ssize(waiting_) == players_) answer_all();
    return answer.future();
  }
  void leave() {
    std::unique_lock lock(mutex_);
    --players_;
    if (!waiting_.empty() && std::ssize(waiting_) == players_) answer_all();
  }
  /// The reward that pulling this lever brought.
  void tell(const Tensor& signs, int64_t lever, double reward) {
    std::unique_lock lock(mutex_);
    told_.push_back({signs, lever, reward});
    rewards_.add(-reward);
    if (told_.size() == 32) train();
  }
  std::string report() {
    std::unique_lock lock(mutex_);
    if (rewards_.status() != 0) throw Error("it has not learned");
    return std::to_string(questions_) + " questions in " + std::to_string(batches_) + " batches";
  }

 private:
  struct Question {
    Tensor signs;
    rpc::Promise<Tensor> answer;
  };
  struct Experience {
    Tensor signs;
    int64_t lever;
    double reward;
  };
  void answer_all() {
    NoGrad guard;
    TensorList signs;
    for (const Question& q : waiting_) signs.push_back(q.signs);
    Tensor values = net_(stack(signs));
    for (size_t i = 0; i < waiting_.size(); ++i) waiting_[i].answer.set(values[static_cast<int64_t>(i)].clone());
    questions_ += std::ssize(waiting_);
    ++batches_;
    waiting_.clear();
  }
  void train() {
    TensorList signs;
    std::vector<int64_t> levers;
    std::vector<float> rewards;
    for (const Experience& e : told_) {
      signs.push_back(e.signs);
      levers.push_back(e.lever);
      rewards.push_back(static_cast<float>(e.reward));
    }
    told_.clear();
    Tensor guess = gather(net_(stack(signs)), 1, tensor(levers).unsqueeze(1)).squeeze(1);
    adam_.zero_grad();
    mse_loss(guess, tensor(rewards)).backward();
    adam_.step();
  }

  std::mutex mutex_;
  int64_t players_, questions_ = 0, batches_ = 0;
  std::vector<Question> waiting_;
  std::vector<Experience> told_;
  nn::Linear net_{kSigns, kArms};
  optim::Adam adam_{net_.parameters(), {.lr = 0.03}};
  Learned rewards_;
};

void play(const rpc::RemoteRef<Model>& model, int64_t rounds) {
  manual_seed(static_cast<uint64_t>(rank()));
  for (int64_t round = 0; round < rounds; ++round) {
    Tensor signs = randint(0, 2, {kSigns}).to(f32);
    Tensor values = model.call<&Model::ask>(signs);
    int64_t lever =
        rand({}).item<double>() < 0.1 ? randint(0, kArms, {}).item<int64_t>() : argmax(values).item<int64_t>();
    // The sign with the lever's number, and that after it, are good.
    double reward = (signs[lever] + signs[lever + kArms]).item<double>();
    model.async<&Model::tell>(signs, lever, reward);
  }
  model.call<&Model::leave>();
}

int main(int argc, char** argv) {
  int64_t rounds = 400, players = 4;
  std::string as = "threads";
  flags::Options options("batching_server",
                         "A model answers the questions of several players in one batch, and learns.");
  options.number("--rounds", "N", "questions of each player", rounds, 1);
  options.number("--players", "N", "workers that ask", players, 1, 1000);
  options.choice("--as", "what the workers are", as, {"threads", "processes"});
  options.parse(argc, argv);

  auto body = [&] {
    rpc::Session session;
    if (rank() != 0) return;
    auto model = rpc::share(std::make_shared<Model>(players));
    std::vector<rpc::Future<>> running;
    for (int r = 1; r < world_size(); ++r) running.push_back(rpc::async<&play>(r, model, rounds));
    rpc::all(running).wait();
    std::printf("%s\n", model.call<&Model::report>().c_str());
  };
  int ranks = static_cast<int>(players) + 1;
  as == "processes" ? spawn_processes(ranks, body) : spawn_ranks(ranks, body);
}
