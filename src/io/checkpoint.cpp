#include "tutti/io/checkpoint.h"

#include <filesystem>
#include <set>

#include "base/check.h"
#include "io/names.h"
#include "tutti/context.h"

namespace tutti::io {

// A seed is any 64 bits, a number of a State is signed: the bits are kept.
State state_of(const Generator& generator) {
  auto [seed, position] = generator.state();
  return {{"seed", static_cast<int64_t>(seed)},
          {"position", static_cast<int64_t>(position)},
          {"rank", static_cast<int64_t>(generator.rank())}};
}
void load_into(Generator& generator, const State& state) {
  auto seed = static_cast<uint64_t>(state["seed"].as<int64_t>());
  auto position = static_cast<uint64_t>(state["position"].as<int64_t>());
  int64_t saved = state.has("rank") ? state["rank"].as<int64_t>() : -1;
  // One rank's checkpoint serves all: each goes on with numbers of its own, which are equally far.
  int me = saved >= 0 ? context().rank : -1;
  if (me >= 0) seed += static_cast<uint64_t>(me - saved);
  generator.set_state({seed, position}, me);
}

Checkpoint::Checkpoint(std::string path, std::initializer_list<Part> parts) : path_(std::move(path)), parts_(parts) {
  std::set<std::string> names;
  for (auto& part : parts_)
    check<ValueError>(names.insert(part.name).second, "Checkpoint", "{} would have two parts named \"{}\"", path_,
                      part.name);
}

namespace {
// Runs what concerns one part; what it throws says of which part and file.
template <class F>
auto about(const std::string& path, const Part& part, F&& run) {
  auto text = [&](const Error& e) {
    return fmt::format("Checkpoint: part \"{}\" of {}: {}", part.name, path, e.what());
  };
  try {
    return run();
  } catch (const FileError& e) {
    throw FileError(text(e), e.operation());
  } catch (const ValueError& e) {
    throw ValueError(text(e), e.operation());
  }
}
}  // namespace

void Checkpoint::save() const {
  State all;
  for (auto& part : parts_) all[part.name] = about(path_, part, part.save);
  save_state(path_, all);
}

bool Checkpoint::load() {
  if (!std::filesystem::exists(path_)) return false;
  const State all = load_state(path_);
  for (auto& part : parts_)
    check<FileError>(all.has(part.name), "Checkpoint", "{} has no part \"{}\"; it has {}", path_, part.name,
                     names_of(all.entries, [](const Entry& e) { return e.name; }));
  for (auto& part : parts_) about(path_, part, [&] { part.load(all[part.name]); });
  return true;
}

}  // namespace tutti::io
