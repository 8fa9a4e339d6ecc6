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

/// What something that can be kept has to say, and to be told. A generator can be kept, what has state() and
/// load_state(), or state_dict() and load_state_dict(), and any value that to_state() takes as a field: a number, a
/// flag, a string, a vector of losses.
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
    if constexpr (std::derived_from<T, Generator>) {
      save = [&object] { return Value(state_of(object)); };
      load = [&object](const Value& value) { load_into(object, value.as<State>()); };
    } else if constexpr (requires { object.load_state_dict(object.state_dict()); }) {
      using Tensors = std::map<std::string, Tensor>;
      save = [&object] { return Value(to_state(Tensors(object.state_dict()))); };
      load = [&object](const Value& value) { object.load_state_dict(from_state<Tensors>(value.as<State>())); };
    } else if constexpr (requires(const State& s) { object.load_state(s); }) {
      save = [&object] { return Value(object.state()); };
      load = [&object](const Value& value) { object.load_state(value.as<State>()); };
    } else if constexpr (requires { object.load_state(object.state()); }) {
      using Fields = std::remove_cvref_t<decltype(object.state())>;
      static_assert(StateStruct<Fields>, "what state() gives is a State, or a struct with TUTTI_FIELDS");
      save = [&object] { return Value(to_state(object.state())); };
      load = [&object](const Value& value) { object.load_state(from_state<Fields>(value.as<State>())); };
    } else {
      save = [&object] { return detail::to_value(object); };
      load = [&object](const Value& value) { object = detail::from_value<T>(value); };
    }
  }
};

class Checkpoint {
 public:
  /// ValueError if two parts have one name.
  Checkpoint(std::string path, std::initializer_list<Part> parts);
  const std::string& path() const { return path_; }

  void save() const;
  /// Gives each part the state it had; false, and nothing happens, if there is no file. FileError if the file lacks a
  /// part, ValueError where a part is not what it was, naming it; parts before that one have been loaded then.
  bool load();

 private:
  std::string path_;
  std::vector<Part> parts_;
};

}  // namespace tutti::io
