// The hooks of a module.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tutti/nn/module.h"
#include "tutti/trace.h"

namespace tutti::nn::detail {

struct HookState {
  /// Unlike its address, never that of another one.
  const uint64_t id = [] {
    static std::atomic<uint64_t> next = 0;
    return ++next;
  }();
  std::atomic<bool> removed = false;  // copies may run on threads of their own
};

/// Hooks of one kind. Copies share the entries, so that a handle removes its hook from all of them.
template <class Function>
class HookList {
 public:
  struct Entry {
    explicit Entry(Function f) : function(std::move(f)) {}
    Entry(const Entry& other) : function(other.function) { state->removed = other.state->removed.load(); }
    const std::shared_ptr<HookState> state = std::make_shared<HookState>();  // may outlive what the hook holds
    Function function;
  };

  HookHandle add(Function function) {
    std::erase_if(entries_, [](const auto& e) { return e->state->removed.load(); });
    auto entry = std::make_shared<Entry>(std::move(function));
    entries_.push_back(entry);
    return HookHandle([state = entry->state] { state->removed = true; });
  }
  bool empty() const {
    for (const auto& e : entries_)
      if (!e->state->removed) return false;
    return true;
  }
  /// Calls each; one that is added or removed meanwhile is not disturbed.
  template <class... Args>
  void run(Args&... args) const {
    for (const auto& e : std::vector<std::shared_ptr<Entry>>(entries_))
      if (!e->state->removed) e->function(args...);
  }
  void unshare() {
    for (auto& e : entries_) e = std::make_shared<Entry>(*e);
  }
  void list(std::vector<std::shared_ptr<const HookState>>& all) const {
    for (const auto& e : entries_) all.push_back(e->state);
  }

 private:
  std::vector<std::shared_ptr<Entry>> entries_;
};

struct Hooks {
  HookList<ForwardPreHook> forward_pre;
  HookList<ForwardHook> forward;
  HookList<ForwardFailureHook> forward_failure;
  HookList<BackwardPreHook> backward_pre;
  HookList<BackwardHook> backward;

  void unshare() {
    forward_pre.unshare();
    forward.unshare();
    forward_failure.unshare();
    backward_pre.unshare();
    backward.unshare();
  }
  std::vector<std::shared_ptr<const HookState>> list() const {
    std::vector<std::shared_ptr<const HookState>> all;
    forward_pre.list(all);
    forward.list(all);
    forward_failure.list(all);
    backward_pre.list(all);
    backward.list(all);
    return all;
  }
};

/// Whether a module trains, and which hooks it has, for those who must know when that changes. May outlive it.
class Setting final : public Outside {
 public:
  explicit Setting(std::string module) : module_(std::move(module)) {}
  void set(bool training, const Hooks* hooks);
  /// It stays as it was, and its hooks go with it.
  void module_is_gone();
  uint64_t now() const override;
  std::function<bool()> lasting() const override;
  std::string text() const override;

 private:
  uint64_t number() const;

  const std::string module_;
  mutable std::mutex mutex_;
  uint64_t last_ = 0;
  bool gone_ = false;
  bool training_ = true;
  std::vector<std::shared_ptr<const HookState>> hooks_;
};

/// What forward hooks of one call of a module leave for its backward hooks, each under a key of its own.
using CallNotes = std::map<const void*, std::shared_ptr<const void>>;
/// Of the call whose forward or backward hooks run in this thread; null where none do, or nothing is recorded.
CallNotes* call_notes();

}  // namespace tutti::nn::detail
