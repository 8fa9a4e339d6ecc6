#include "tutti/io/checkpoint.h"

#include <filesystem>

#include "base/check.h"

namespace tutti::io {

// A seed is any 64 bits, a number of a State is signed: the bits are kept.
State state_of(const Generator& generator) {
  auto [seed, position] = generator.state();
  return {{"seed", static_cast<int64_t>(seed)}, {"position", static_cast<int64_t>(position)}};
}
void load_into(Generator& generator, const State& state) {
  generator.set_state(
      {static_cast<uint64_t>(state["seed"].as<int64_t>()), static_cast<uint64_t>(state["position"].as<int64_t>())});
}

void Checkpoint::save() const {
  State all;
  for (auto& part : parts_) all[part.name] = part.save();
  save_state(path_, all);
}

bool Checkpoint::load() {
  if (!std::filesystem::exists(path_)) return false;
  const State all = load_state(path_);
  for (auto& part : parts_)
    check<FileError>(all.has(part.name), "Checkpoint", "{} has no part \"{}\"", path_, part.name);
  for (auto& part : parts_) part.load(all[part.name]);
  return true;
}

}  // namespace tutti::io
