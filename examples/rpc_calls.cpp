// Calls between workers: functions, objects that live elsewhere, futures and coroutines. Workers are threads here, or
// with --as processes processes; nothing else changes.
#include <iostream>

#include "flags.h"
#include "tutti/rpc.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace std::chrono_literals;

struct Statistics {
  int64_t count = 0;
  double mean = 0;
  TUTTI_FIELDS(count, mean)
};

/// Lives on one worker, and is used by all.
class Counter {
 public:
  explicit Counter(std::string name) : name_(std::move(name)) {}
  int64_t add(int64_t amount) { return total_ += amount; }
  std::string text() const { return name_ + ": " + std::to_string(total_); }

 private:
  std::string name_;
  std::atomic<int64_t> total_{0};  // calls of several workers run at the same time
};

Statistics describe_all(const std::vector<Tensor>& tensors) {
  Statistics s;
  for (const Tensor& t : tensors) s.count += t.numel(), s.mean += t.sum().item<double>();
  s.mean /= static_cast<double>(s.count);
  return s;
}

void count_to(const rpc::RemoteRef<Counter>& counter, int64_t end) {
  for (int64_t i = 1; i <= end; ++i) counter.call<&Counter::add>(i);
}

// While a coroutine waits, it holds no thread.
rpc::Future<Tensor> through(Tensor x, std::vector<std::string> workers) {
  if (workers.empty()) co_return x;
  std::string next = workers.back();
  workers.pop_back();
  co_return co_await rpc::async<&through>(next, x * 2, workers);
}

void drive() {
  Statistics s = rpc::sync<&describe_all>("worker1", std::vector<Tensor>{ones({2, 3}), zeros({2})});
  std::cout << s.count << " elements, mean " << s.mean << "\n";

  auto counter = rpc::remote<Counter>("worker2", "steps");
  rpc::Future<> a = rpc::async<&count_to>("worker1", counter, 100);  // a third worker uses it as well
  rpc::Future<> b = rpc::async<&count_to>("worker2", counter, 100);
  rpc::all(a, b).wait();
  std::cout << counter.call<&Counter::text>() << ", on " << counter.owner().name << "\n";

  std::vector<rpc::Future<Statistics>> answers;
  for (const char* worker : {"worker1", "worker2"})
    answers.push_back(rpc::async<&describe_all>(worker, std::vector<Tensor>{ones({4})}));
  size_t first = rpc::any(answers).wait();  // the index of the first that is done
  double mean = answers[first].then([](const Statistics& s) { return s.mean; }).wait();
  std::cout << "worker" << first + 1 << " was first: mean " << mean << "\n";

  Tensor x = rpc::sync<&through>({"worker1", 5s}, ones({1}), std::vector<std::string>{"driver", "worker2", "worker1"});
  std::cout << "doubled " << x.item<double>() << "\n";

  try {
    rpc::sync<&describe_all>("worker1", std::vector<Tensor>{Tensor()});
  } catch (const ValueError& e) {
    std::cout << "an error arrives as what it is: " << e.what() << "\n";
  }
}

int main(int argc, char** argv) {
  std::string as = "threads";
  flags::Options options("rpc_calls", "Calls between workers: functions, objects that live elsewhere, coroutines.");
  options.choice("--as", "what the workers are", as, {"threads", "processes"});
  options.parse(argc, argv);

  auto body = [] {
    rpc::Session session({.name = rank() == 0 ? "driver" : ""});  // the others: worker1, worker2
    if (rank() == 0) drive();
  };
  as == "processes" ? spawn_processes(3, body) : spawn_ranks(3, body);
}
