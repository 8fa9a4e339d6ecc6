#include "comm/group/fault.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/check.h"
#include "comm/group/call.h"
#include "comm/transport/transport.h"

namespace tutti {
namespace {

constexpr const char* kFaultOperation = "faults";
constexpr std::array<const char*, 4> kKinds = {"delay", "drop", "fail", "kill"};

void check_fault(const Fault& f) {
  check<ValueError>(f.rank >= -1, kFaultOperation, "there is no rank {}; -1 means any", f.rank);
  check<ValueError>(f.probability >= 0 && f.probability <= 1, kFaultOperation,
                    "the probability {} is not between 0 and 1", f.probability);
  check<ValueError>((f.call >= 0) != (f.probability > 0), kFaultOperation,
                    "a fault happens at the call of one number (from 0 on) or with a probability: one of them is to be "
                    "given, and call is {}, probability {}",
                    f.call, f.probability);
  check<ValueError>(f.time >= std::chrono::nanoseconds(0), kFaultOperation, "a delay cannot be negative");
  bool known = f.collective.empty();
  for (int k = 0; k <= static_cast<int>(comm::Kind::recv); ++k)
    known = known || f.collective == comm::name(static_cast<comm::Kind>(k));
  check<ValueError>(known, kFaultOperation, "there is no collective called '{}'", f.collective);
}

template <class T>
T parse_number(std::string_view text, std::string_view word) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check<ValueError>(error == std::errc() && end == text.data() + text.size(), kFaultOperation,
                    "'{}' is not a number in '{}'", text, word);
  return value;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> list;
  while (!text.empty()) {
    size_t end = std::min(text.find(at), text.size());
    if (end > 0) list.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return list;
}

Fault parse_fault(const std::vector<std::string_view>& words) {
  Fault fault;
  auto kind = std::find(kKinds.begin(), kKinds.end(), words[0]);
  check<ValueError>(kind != kKinds.end(), kFaultOperation, "'{}' is no kind of fault: delay, drop, fail and kill are",
                    words[0]);
  fault.kind = static_cast<Fault::Kind>(kind - kKinds.begin());
  for (size_t i = 1; i < words.size(); ++i) {
    std::string_view word = words[i], key = word.substr(0, word.find('='));
    std::string_view value = word.substr(std::min(word.size(), key.size() + 1));
    if (key == "rank")
      fault.rank = parse_number<int>(value, word);
    else if (key == "call")
      fault.call = parse_number<int64_t>(value, word);
    else if (key == "probability")
      fault.probability = parse_number<double>(value, word);
    else if (key == "ms")
      fault.time = std::chrono::nanoseconds(static_cast<int64_t>(1e6 * parse_number<double>(value, word)));
    else if (key == "collective")
      fault.collective = value;
    else
      fail<ValueError>(kFaultOperation,
                       "'{}' says nothing about a fault: rank=, call=, probability=, ms= and collective= do", word);
  }
  check_fault(fault);
  return fault;
}

}  // namespace

FaultPlan parse_faults(std::string_view text) {
  FaultPlan plan;
  for (std::string_view part : split(text, ';')) {
    std::vector<std::string_view> words = split(part, ' ');
    if (words.empty()) continue;
    if (words[0].starts_with("seed="))
      plan.seed = parse_number<uint64_t>(words[0].substr(5), words[0]);
    else
      plan.faults.push_back(parse_fault(words));
  }
  return plan;
}

InjectFaults::InjectFaults(std::vector<Fault> faults, uint64_t seed)
    : rank_(world().handle()->state), id_(rank_->faults.add(faults, seed, rank_->rank)) {}
InjectFaults::~InjectFaults() { rank_->faults.remove(id_); }

namespace comm {

uint64_t FaultInjector::add(const std::vector<Fault>& faults, uint64_t seed, int rank) {
  for (const Fault& f : faults) check_fault(f);
  std::lock_guard lock(mutex_);
  uint64_t id = ids_++, number = 0;
  for (const Fault& f : faults) {
    std::seed_seq seeds{seed & 0xffffffff, seed >> 32, static_cast<uint64_t>(rank), number++};
    if (f.rank < 0 || f.rank == rank) armed_.push_back({id, f, std::mt19937_64(seeds)});
  }
  active_.store(!armed_.empty());
  return id;
}

void FaultInjector::remove(uint64_t id) {
  std::lock_guard lock(mutex_);
  std::erase_if(armed_, [&](const Armed& a) { return a.id == id; });
  active_.store(!armed_.empty());
}

FaultInjector::Meeting FaultInjector::next(const char* collective) {
  std::lock_guard lock(mutex_);
  Meeting meeting;
  for (Armed& a : armed_) {
    if (!a.fault.collective.empty() && a.fault.collective != collective) continue;
    int64_t call = a.calls++;
    // Drawn for every call, so that one fault's luck does not depend on another's.
    bool lucky = a.fault.probability > 0 && std::uniform_real_distribution<double>()(a.random) < a.fault.probability;
    if (call != a.fault.call && !lucky) continue;
    if (a.fault.kind == Fault::delay) {
      meeting.delay += a.fault.time;
    } else if (!meeting.fault) {
      meeting.fault = a.fault;
      meeting.call = call;
    }
  }
  return meeting;
}

}  // namespace comm
}  // namespace tutti
