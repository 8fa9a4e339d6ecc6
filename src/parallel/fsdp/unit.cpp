// Units, and where to find them.
#include "parallel/fsdp/unit.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/check.h"
#include "comm/group/call.h"
#include "nn/visit.h"
#include "optim/parts.h"
#include "parallel/agree.h"
#include "parallel/fsdp/family.h"
#include "tutti/ops.h"

namespace tutti::parallel {
namespace {

// Of all ranks that are threads of this process: a parameter is one rank's.
struct Registry {
  std::mutex mutex;
  struct Entry {
    std::weak_ptr<ShardUnit> unit;
    size_t flat, member;
  };
  std::unordered_map<const TensorImpl*, Entry> entries;
};
Registry& registry() {
  static auto* all = new Registry;  // never destroyed: modules in static storage may outlive any order
  return *all;
}

// Calls f(parameter) for all fields that hold one, without making names: it runs in every forward.
template <class F>
class EachParameter final : public nn::detail::FieldVisitor {
 public:
  explicit EachParameter(F f) : f_(f) {}
  void parameter(const std::string&, nn::Parameter& p) override {
    if (p.defined()) f_(p);
  }
  void buffer(const std::string&, nn::Buffer&) override {}
  void module(const std::string&, nn::ModuleBase& m) override { m.visit_fields(*this); }

 private:
  F f_;
};

// A parameter that is in a unit already is in a module below, which has all parameters of that unit, each as often as
// it was there; or it is shared between modules of different units.
struct Below {
  std::shared_ptr<ShardUnit> unit;
  std::map<const ShardMember*, int64_t> found;  // and how often
};
void check_below(const std::vector<Below>& below, const std::unordered_map<const TensorImpl*, std::string>& names) {
  for (const auto& [unit, found] : below)
    for (const ShardFlat& flat : unit->flats)
      for (const ShardMember& m : flat.members()) {
        auto met = found.find(&m);
        int64_t count = met == found.end() ? 0 : met->second;
        if (count == m.occurrences) continue;
        auto name = names.find(m.shard.impl());
        fail<ValueError>(kShardName,
                         "{} is shared with a module that has been sharded before, where it is {} of the unit {}: "
                         "shard neither by itself, but a module that has both",
                         name == names.end() ? "a parameter" : name->second, m.name, unit->name);
      }
}

}  // namespace

ShardPlace find_shard(const Tensor& parameter) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  auto found = all.entries.find(parameter.impl());
  if (found == all.entries.end()) return {};
  auto unit = found->second.unit.lock();
  if (!unit) return {};
  ShardFlat& flat = unit->flats[found->second.flat];
  return {unit, &flat, &flat.members()[found->second.member]};
}

void register_unit(const std::shared_ptr<ShardUnit>& unit) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  for (size_t f = 0; f < unit->flats.size(); ++f)
    for (size_t k = 0; k < unit->flats[f].members().size(); ++k)
      all.entries[unit->flats[f].members()[k].shard.impl()] = {unit, f, k};
  optim::set_part_finder([](const Tensor& parameter) { return static_cast<bool>(find_shard(parameter)); });
}

ShardUnit::~ShardUnit() {
  family->forget(this);
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  for (ShardFlat& flat : flats)
    for (ShardMember& m : flat.members()) all.entries.erase(m.shard.impl());
}

ShardUnit::ShardUnit(nn::ModuleBase& module, const FullyShardOptions& o, const std::shared_ptr<ShardFamily>& whose)
    : name(module.type_name()), options(o), family(whose) {
  std::unordered_map<const TensorImpl*, std::string> names;
  std::vector<Below> below;  // in the order of the module's fields, which is the same on all ranks
  std::vector<ShardMember> own;
  std::unordered_map<const TensorImpl*, size_t> known;
  for (auto& [path, parameter] : module.named_parameters()) names[parameter.impl()] = path;
  EachParameter visitor([&](nn::Parameter& p) {
    if (ShardPlace place = find_shard(p)) {
      auto same = std::find_if(below.begin(), below.end(), [&](const Below& b) { return b.unit == place.unit; });
      if (same == below.end()) same = below.insert(below.end(), {place.unit, {}});
      ++same->found[place.member];
      return;
    }
    auto [at, fresh] = known.emplace(p.impl(), own.size());
    if (fresh)
      own.push_back({.name = names[p.impl()], .shard = p, .whole = {}, .sizes = {}, .strides = {}, .slot = {}});
    ++own[at->second].occurrences;
    ++occurrences_;
  });
  visitor.module("", module);
  check_below(below, names);
  for (const auto& [unit, found] : below) family->adopt(unit);

  NamedTensors list;
  for (const ShardMember& m : own) list.emplace_back(m.name, m.shard);
  family->begin_alike(list, module, options);

  std::map<std::tuple<int, bool, int>, std::vector<ShardMember>> kinds;
  for (ShardMember& m : own)
    kinds[{static_cast<int>(m.shard.dtype()), !m.shard.requires_grad(), m.shard.device().index}].push_back(m);
  for (auto& [kind, members] : kinds) flats.emplace_back(std::move(members), family->group(), options.mixed);
  for (size_t f = 0; f < flats.size(); ++f)
    for (size_t k = 0; k < flats[f].members().size(); ++k) {
      index_[flats[f].members()[k].shard.impl()] = {f, k};
      index_[flats[f].members()[k].whole.impl()] = {f, k};
    }
}

void ShardUnit::start_gather(const CollectiveOptions& o) {
  if (!gathers) gathers = comm::lasting("fully_shard: the parameters of " + name, "fully_shard: a unit's parameters");
  comm::PurposeGuard purpose(gathers);
  if (state != State::freed) return;
  version = shard_version();
  for (ShardFlat& flat : flats) flat.start_gather(o);
  state = State::coming;
}
void ShardUnit::finish_gather() {
  if (state != State::coming) return;
  for (ShardFlat& flat : flats) flat.finish_gather();
  state = State::there;
}
void ShardUnit::free_whole() {
  finish_gather();
  for (ShardFlat& flat : flats) flat.free_whole();
  state = State::freed;
}

bool ShardUnit::trainable() const {
  return std::any_of(flats.begin(), flats.end(), [](const ShardFlat& f) { return f.trainable(); });
}
bool ShardUnit::any_filled() const {
  return std::any_of(flats.begin(), flats.end(), [](const ShardFlat& f) { return f.any_filled(); });
}
uint64_t ShardUnit::shard_version() const {
  uint64_t sum = 0;
  for (const ShardFlat& flat : flats) sum += flat.version();
  return sum;
}

int64_t ShardUnit::show_some(nn::ModuleBase& module, bool whole) {
  int64_t met = 0;
  EachParameter visitor([&](nn::Parameter& p) {
    auto found = index_.find(p.impl());
    if (found == index_.end()) return;
    const ShardMember& m = flats[found->second.first].members()[found->second.second];
    static_cast<Tensor&>(p) = whole ? m.whole : m.shard;
    ++met;
  });
  visitor.module("", module);
  return met;
}

void ShardUnit::show(nn::ModuleBase& module, bool whole) {
  if (flats.empty()) return;
  int64_t met = show_some(module, whole);
  check<ValueError>(met == occurrences_, kShardName,
                    "{} of the {} parameters of this {} are not those that were sharded: they have been replaced, or "
                    "it is a clone, which is to be made before",
                    occurrences_ - met, occurrences_, name);
}

bool ShardUnit::has_parameters_of(nn::ModuleBase& module) const {
  bool any = false;
  EachParameter visitor([&](nn::Parameter& p) { any = any || index_.contains(p.impl()); });
  visitor.module("", module);
  return any;
}

}  // namespace tutti::parallel
