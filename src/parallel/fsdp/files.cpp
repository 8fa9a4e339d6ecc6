// Checkpoints that every rank writes its part of.
//
// Note [Files of a sharded checkpoint]
// A folder has a file `checkpoint` and a folder named by the number that it gives. There every rank has written a file
// rank-<r>.safetensors with what it has of each tensor: some of its elements, in the order in which they lie in memory;
// the metadata say from which on. Whoever loads knows which elements it wants, and takes them from the files that have
// them: neither how many ranks there were nor how units were made matters. What is not cut (buffers, options, shapes)
// is in `checkpoint`, which is written last, so that it never speaks of files that are not there.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "base/check.h"
#include "comm/group/call.h"
#include "parallel/fsdp/family.h"
#include "parallel/fsdp/state.h"
#include "tutti/comm/objects.h"
#include "tutti/io/safetensors.h"
#include "tutti/ops.h"

namespace tutti::parallel {
namespace {

namespace fs = std::filesystem;
using io::State;
using io::Value;
using io::ValueList;

constexpr const char* kSave = "save_sharded";
constexpr const char* kLoad = "load_sharded";

std::string main_file(const std::string& folder) { return folder + "/checkpoint"; }
std::string rank_file(const std::string& folder, int64_t number, int rank) {
  return fmt::format("{}/{}/rank-{}.safetensors", folder, number, rank);
}

Value to_list(const Shape& shape) {
  ValueList list;
  for (int64_t n : shape) list.emplace_back(n);
  return list;
}
Shape to_shape(const Value& value) {
  Shape shape;
  for (const Value& n : value.as<ValueList>()) shape.push_back(n.as<int64_t>());
  return shape;
}

// The group that cuts, and the one that repeats, if any.
struct Ranks {
  Group group, replicas;
  bool writes() const { return !replicas.defined() || replicas.rank() == 0; }
  bool first() const { return writes() && group.rank() == 0; }
  /// What each rank has, by its number in the world.
  std::map<int, int64_t> all(int64_t mine) const {
    std::map<int, int64_t> result;
    auto near = all_gather_object(std::pair(rank(), mine), {.group = group});
    std::vector<decltype(near)> known{near};
    if (replicas.defined()) known = all_gather_object(near, {.group = replicas});
    for (const auto& part : known) result.insert(part.begin(), part.end());
    return result;
  }
  void meet() const {
    barrier({.group = group});
    if (replicas.defined()) barrier({.group = replicas});
  }
};
std::optional<Ranks> find_ranks(const nn::ModuleBase& module) {
  for (const Tensor& p : module.parameters())
    if (ShardPlace place = find_shard(p)) return Ranks{place.unit->family->group(), place.unit->options.replicas};
  return {};
}
Ranks ranks_of(const nn::ModuleBase& module) {
  std::optional<Ranks> ranks = find_ranks(module);
  check<ValueError>(ranks.has_value(), kSave, "no parameter of this {} is sharded", module.type_name());
  return *ranks;
}

// Parts of tensors, gathered for one file.
struct Parts {
  io::Tensors tensors;
  io::Metadata begins;
  void add(const std::string& key, const ShardMember& m, const Tensor& part) {
    if (m.begin == m.end) return;
    tensors[key] = part.detach();
    begins[key] = std::to_string(m.begin);
  }
};

// The files of all ranks that saved, and what is where.
class ShardFiles {
 public:
  ShardFiles(const std::string& folder, int64_t number, int64_t ranks) : folder_(folder) {
    for (int r = 0; r < ranks; ++r) files_.emplace_back(rank_file(folder, number, r));
  }
  bool has(const std::string& key) const {
    return std::any_of(files_.begin(), files_.end(), [&](auto& f) { return f.has(key); });
  }
  /// Elements begin to end of a tensor. Of the files, only these are touched.
  Tensor read(const std::string& key, int64_t begin, int64_t end) const {
    Tensor result;
    int64_t found = 0;
    for (const io::SafeTensors& file : files_) {
      if (!file.has(key)) continue;
      Tensor part = file.map(key);
      if (!result.defined()) result = empty({end - begin}, {.dtype = part.dtype()});
      int64_t first = begin_of(file, key);
      int64_t from = std::max(begin, first), to = std::min(end, first + part.numel());
      if (from >= to) continue;
      result.narrow(0, from - begin, to - from).copy_(part.narrow(0, from - first, to - from));
      found += to - from;
    }
    check<FileError>(result.defined() && found == end - begin, kLoad,
                     "{} lacks {} of the {} elements of {} that are asked for", folder_, end - begin - found,
                     end - begin, key);
    return result;
  }

 private:
  int64_t begin_of(const io::SafeTensors& file, const std::string& key) const {
    auto text = file.metadata().find(key);
    int64_t begin = -1;
    if (text != file.metadata().end()) {
      const char* last = text->second.data() + text->second.size();
      if (std::from_chars(text->second.data(), last, begin).ptr != last) begin = -1;
    }
    check<FileError>(begin >= 0, kLoad, "a file of {} does not say where its part of {} begins", folder_, key);
    return begin;
  }
  std::string folder_;
  std::vector<io::SafeTensors> files_;
};

// What this rank is to have of something saved under these shape and strides.
Tensor read_part(const ShardFiles& files, const std::string& key, const Tensor& parameter, const Shape& sizes,
                 const Shape& strides) {
  int64_t count = 1;
  for (int64_t n : sizes) count *= n;
  ShardPlace place = find_shard(parameter);
  if (place && place.member->strides == strides) return files.read(key, place.member->begin, place.member->end);
  Tensor whole = as_strided(files.read(key, 0, count), sizes, strides, 0);
  if (!place) return whole;
  return in_memory(*place.member, whole).narrow(0, place.member->begin, place.member->end - place.member->begin);
}

int64_t next_number(const std::string& folder) {
  if (!fs::exists(main_file(folder))) return 1;
  return io::load_state(main_file(folder))["number"].as<int64_t>() + 1;
}

// Those of other numbers are older, or of a save that did not end.
void remove_others(const std::string& folder, int64_t number) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string name = entry.path().filename().string();
    bool numbered = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (numbered && name != std::to_string(number)) fs::remove_all(entry.path());
  }
}

// The checkpoint that is there now. Ranks on other hosts may not see yet what the first has written: either all have
// the same one, or none has any. Of modules that are not sharded nobody knows who else loads.
std::optional<State> find_checkpoint(const std::string& folder, const nn::ModuleBase& module) {
  std::optional<State> mine;
  std::exception_ptr error;
  int64_t number = 0;
  try {
    if (fs::exists(main_file(folder))) mine = io::load_state(main_file(folder));
    if (mine) number = std::as_const(*mine)["number"].as<int64_t>();
  } catch (const std::exception&) {  // others hear of it before this rank throws
    error = std::current_exception();
    number = -1;
  }
  if (std::optional<Ranks> ranks = find_ranks(module)) {
    comm::PurposeGuard purpose("load_sharded: whether all ranks see the same checkpoint");
    std::map<int, int64_t> numbers = ranks->all(number);
    if (error) std::rethrow_exception(error);
    int64_t newest = 0;
    for (auto [rank, n] : numbers) newest = std::max(newest, n);
    std::string others;
    for (auto [rank, n] : numbers)
      if (n != newest)
        others += fmt::format("\n  rank {} {}", rank,
                              n == 0  ? "sees none"
                              : n < 0 ? "cannot read it"
                                      : fmt::format("sees number {}, not {}", n, newest));
    check<FileError>(others.empty(), kLoad, "not all ranks see the same checkpoint in {}; nothing was loaded{}", folder,
                     others);
  }
  if (error) std::rethrow_exception(error);
  return mine;
}

}  // namespace

void save_sharded(const std::string& folder, const nn::ModuleBase& module, const optim::Optimizer* optimizer) {
  NoGrad guard;
  Ranks ranks = ranks_of(module);
  int64_t number = 0;
  if (ranks.first()) {
    std::error_code error;
    fs::create_directories(folder, error);
    check<FileError>(!error, kSave, "{} cannot be made: {}", folder, error.message());
    number = next_number(folder);
    fs::create_directories(fmt::format("{}/{}", folder, number), error);
    check<FileError>(!error, kSave, "{}/{} cannot be made: {}", folder, number, error.message());
  }
  if (ranks.replicas.defined()) broadcast_object(number, {.root = 0, .group = ranks.replicas});
  broadcast_object(number, {.root = 0, .group = ranks.group});

  Parts parts;
  State model, shapes, whole{{"number", number}, {"ranks", ranks.group.size()}};
  for (auto& [path, t] : entries_of(module)) {
    if (ShardPlace place = find_shard(t)) {
      parts.add("model/" + path, *place.member, t);
      shapes[path] = State{{"sizes", to_list(place.member->sizes)}, {"strides", to_list(place.member->strides)}};
    } else {
      model[path] = t.detach();
    }
  }
  whole["model"] = std::move(model);
  whole["shapes"] = std::move(shapes);
  if (optimizer) {
    State state = optimizer->state();
    each_slot(state, *optimizer, [&](State& slot, const Tensor& parameter, const std::string& which) {
      ShardPlace place = find_shard(parameter);
      if (!place) return;
      for (io::Entry& e : slot.entries)
        if (Tensor* t = std::get_if<Tensor>(&e.value.value); t && t->defined()) {
          parts.add("optimizer/" + which + "/" + e.name, *place.member, *t);
          t->reset();
        }
      slot["sizes"] = to_list(place.member->sizes);
      slot["strides"] = to_list(place.member->strides);
    });
    whole["optimizer"] = std::move(state);
  }
  if (ranks.writes()) io::save_safetensors(rank_file(folder, number, ranks.group.rank()), parts.tensors, parts.begins);
  ranks.meet();
  if (ranks.first()) {
    io::save_state(main_file(folder), whole);
    remove_others(folder, number);
  }
  ranks.meet();
}

bool load_sharded(const std::string& folder, nn::ModuleBase& module, optim::Optimizer* optimizer) {
  NoGrad guard;
  const std::optional<State> found = find_checkpoint(folder, module);
  if (!found) return false;
  const State& whole = *found;
  ShardFiles files(folder, whole["number"].as<int64_t>(), whole["ranks"].as<int64_t>());
  nn::StateDict state = io::from_state<nn::StateDict>(whole["model"].as<State>());
  const State& shapes = whole["shapes"].as<State>();
  for (auto& [path, t] : entries_of(module)) {
    const Value* saved = shapes.find(path);
    if (!saved) continue;
    Shape sizes = to_shape(saved->as<State>()["sizes"]), strides = to_shape(saved->as<State>()["strides"]);
    ShardPlace place = find_shard(t);
    const Shape& here = place ? place.member->sizes : t.sizes();
    check<ValueError>(here == sizes, kLoad, "{} is {} here, {} in {}", path, here, sizes, folder);
    state[path] = read_part(files, "model/" + path, t, sizes, strides);
  }
  module.load_state_dict(state);
  if (!optimizer) return true;
  check<FileError>(whole.has("optimizer"), kLoad, "{} has no state of an optimizer", folder);
  State steps = whole["optimizer"].as<State>();
  each_slot(steps, *optimizer, [&](State& slot, const Tensor& parameter, const std::string& which) {
    for (io::Entry& e : slot.entries) {
      Tensor* t = std::get_if<Tensor>(&e.value.value);
      std::string key = "optimizer/" + which + "/" + e.name;
      if (t && !t->defined() && files.has(key))
        *t = read_part(files, key, parameter, to_shape(std::as_const(slot)["sizes"]),
                       to_shape(std::as_const(slot)["strides"]));
    }
  });
  optimizer->load_state(steps);
  return true;
}

}  // namespace tutti::parallel
