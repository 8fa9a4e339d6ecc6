// Checkpoints: the whole of a run in one file, in two calls.
//
//   io::Checkpoint run("run.ckpt", {{"model", net}, {"adam", adam}, {"schedule", schedule},
//                                   {"random", generator()}, {"loader", loader}, {"step", step}});
//   run.load();   // goes on where the file was written; false if there is none
//   ...
//   run.save();   // a crash at any moment leaves the old file or the new one whole
#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "tutti/io/state.h"
#include "tutti/random.h"
#include "tutti/tree.h"

namespace tutti::io {

/// What something that can be kept has to say, and to be told. A generator, a number or a flag can be kept as it is,
/// and so can what has state() and load_state(), or state_dict() and load_state_dict().
State state_of(const Generator& generator);
void load_into(Generator& generator, const State& state);

/// A named part of a run. It refers to the object, which must live as long.
struct Part {
  std::string name;
  std::function<Value()> save;
  std::function<void(const Value&)> load;

  template <class T>
    requires(!std::is_const_v<T>)
  Part(std::string part, T& object) : name(std::move(part)) {
    if constexpr (std::same_as<T, bool> || std::same_as<T, double>) {
      save = [&object] { return Value(object); };
      load = [&object](const Value& value) { object = value.as<T>(); };
    } else if constexpr (std::integral<T>) {
      save = [&object] { return Value(object); };
      load = [&object](const Value& value) { object = static_cast<T>(value.as<int64_t>()); };
    } else if constexpr (std::derived_from<T, Generator>) {
      save = [&object] { return Value(state_of(object)); };
      load = [&object](const Value& value) { load_into(object, value.as<State>()); };
    } else if constexpr (requires { object.load_state_dict(object.state_dict()); }) {
      save = [&object] { return Value(from_tensors(object.state_dict())); };
      load = [&object](const Value& value) { object.load_state_dict(to_tensors(value.as<State>())); };
    } else if constexpr (requires(const State& s) { object.load_state(s); }) {
      save = [&object] { return Value(object.state()); };
      load = [&object](const Value& value) { object.load_state(value.as<State>()); };
    } else {
      static_assert(tree::HasFields<decltype(object.state())>,
                    "a part of a checkpoint has state() and load_state(), or is a module, a generator or a number");
      save = [&object] { return Value(from_fields(object.state())); };
      load = [&object](const Value& value) {
        auto state = object.state();
        to_fields(value.as<State>(), state);
        object.load_state(state);
      };
    }
  }

 private:
  static State from_tensors(const std::map<std::string, Tensor>& tensors);
  static std::map<std::string, Tensor> to_tensors(const State& state);
  template <class S>
  static State from_fields(const S& fields) {
    State state;
    tree::for_each_child(fields, [&](const tree::Key& key, auto& value) { state[key.text()] = value; });
    return state;
  }
  template <class S>
  static void to_fields(const State& state, S& fields) {
    tree::for_each_child(fields, [&](const tree::Key& key, auto& value) {
      value = state[key.text()].template as<std::decay_t<decltype(value)>>();
    });
  }
};

class Checkpoint {
 public:
  Checkpoint(std::string path, std::initializer_list<Part> parts) : path_(std::move(path)), parts_(parts) {}
  const std::string& path() const { return path_; }

  void save() const;
  /// Gives each part the state it had; false, and nothing happens, if there is no file. FileError if the file lacks a
  /// part, ValueError where a part is not what it was; parts before that one have been loaded then.
  bool load();

 private:
  std::string path_;
  std::vector<Part> parts_;
};

}  // namespace tutti::io
