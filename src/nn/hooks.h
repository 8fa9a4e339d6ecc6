// The hooks of a module.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tutti/nn/module.h"

namespace tutti::nn::detail {

/// Hooks of one kind. Copies share the entries, so that a handle removes its hook from all of them.
template <class Function>
class HookList {
 public:
  struct Entry {
    explicit Entry(Function f) : function(std::move(f)) {}
    Entry(const Entry& other) : function(other.function), removed(other.removed.load()) {}
    Function function;
    std::atomic<bool> removed = false;  // copies may run on threads of their own
  };

  HookHandle add(Function function) {
    std::erase_if(entries_, [](const auto& e) { return e->removed.load(); });
    auto entry = std::make_shared<Entry>(std::move(function));
    entries_.push_back(entry);
    return HookHandle([weak = std::weak_ptr<Entry>(entry)] {
      if (auto e = weak.lock()) e->removed = true;
    });
  }
  bool empty() const {
    for (const auto& e : entries_)
      if (!e->removed) return false;
    return true;
  }
  /// Calls each; one that is added or removed meanwhile is not disturbed.
  template <class... Args>
  void run(Args&... args) const {
    for (const auto& e : std::vector<std::shared_ptr<Entry>>(entries_))
      if (!e->removed) e->function(args...);
  }
  void unshare() {
    for (auto& e : entries_) e = std::make_shared<Entry>(*e);
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
};

/// What forward hooks of one call of a module leave for its backward hooks, each under a key of its own.
using CallNotes = std::map<const void*, std::shared_ptr<const void>>;
/// Of the call whose forward or backward hooks run in this thread; null where none do, or nothing is recorded.
CallNotes* call_notes();

}  // namespace tutti::nn::detail
