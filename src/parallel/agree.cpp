#include "parallel/agree.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/check.h"
#include "tutti/comm/objects.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti::parallel {
namespace {

// Four lanes, so that the multiplications of one do not wait for another's. Not against an adversary.
uint64_t hash_bytes(const void* data, size_t bytes) {
  constexpr uint64_t kPrime = 0x9E3779B97F4A7C15u;
  uint64_t lanes[4] = {1, 2, 3, 4};
  const auto* p = static_cast<const char*>(data);
  auto mix = [&](uint64_t& lane, uint64_t word) {
    lane = (lane ^ word) * kPrime;
    lane ^= lane >> 29;
  };
  size_t i = 0;
  for (; i + 32 <= bytes; i += 32) {
    uint64_t words[4];
    std::memcpy(words, p + i, 32);
    for (int k = 0; k < 4; ++k) mix(lanes[k], words[k]);
  }
  for (; i < bytes; ++i) mix(lanes[0], static_cast<unsigned char>(p[i]));
  for (int k = 1; k < 4; ++k) mix(lanes[0], lanes[k]);
  return lanes[0] ^ bytes;
}

uint64_t hash_facts(const Facts& facts) {
  std::string all;
  for (const auto& [name, value] : facts) all += name + '\0' + value + '\0';
  return hash_bytes(all.data(), all.size());
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

// "\n  fc.weight: f32[3, 4] on ranks 0, 1; f32[3, 5] on rank 2", for each name of which ranks think differently.
std::string differences(const std::vector<Facts>& all, const std::vector<int>& ranks) {
  std::vector<std::string> names;
  std::map<std::string, std::map<std::string, std::vector<int>>> values;
  for (size_t r = 0; r < all.size(); ++r)
    for (const auto& [name, value] : all[r]) {
      if (!values.contains(name)) names.push_back(name);
      values[name][value].push_back(ranks[r]);
    }
  std::string text;
  for (const std::string& name : names) {
    auto& by_value = values[name];
    size_t present = 0;
    for (const auto& [value, who] : by_value) present += who.size();
    if (by_value.size() == 1 && present == all.size()) continue;
    text += fmt::format("\n  {}:", name);
    const char* separator = " ";
    for (const auto& [value, who] : by_value) {
      text += fmt::format("{}{} on {}", separator, value, rank_list(who));
      separator = "; ";
    }
    std::vector<int> without;
    for (size_t r = 0; r < all.size(); ++r)
      if (std::none_of(all[r].begin(), all[r].end(), [&](const auto& fact) { return fact.first == name; }))
        without.push_back(ranks[r]);
    if (!without.empty()) text += fmt::format("{}not on {}", separator, rank_list(without));
  }
  return text.empty() ? "\n  they are the same, but not in the same order" : text;
}

std::vector<int64_t> gather_hashes(const std::vector<int64_t>& mine, const CollectiveOptions& options) {
  auto count = static_cast<int64_t>(mine.size());
  Tensor all = zeros({options.group.size() * count}, {.dtype = DType::i64});
  all_gather(all, tensor(mine, {.dtype = DType::i64}), options);
  return all.to_vector<int64_t>();
}

}  // namespace

Facts facts_of(const char* kind, const NamedTensors& tensors) {
  Facts facts;
  for (const auto& [name, t] : tensors) {
    // Gradients lie in buckets as their parameters do: the order of elements is the same on all ranks, or no sum is.
    bool turned = t.requires_grad() && !t.is_contiguous() && t.is_contiguous(MemoryFormat::channels_last);
    facts.emplace_back(fmt::format("{} {}", kind, name),
                       fmt::format("{}{}{}{}", t.dtype(), t.sizes(), turned ? " in channels_last order" : "",
                                   t.requires_grad() ? "" : " without a gradient"));
  }
  return facts;
}

void check_agree(const char* operation, const Facts& facts, const CollectiveOptions& options) {
  NoGrad guard;
  std::vector<int64_t> hashes = gather_hashes({static_cast<int64_t>(hash_facts(facts))}, options);
  if (std::all_of(hashes.begin(), hashes.end(), [&](int64_t h) { return h == hashes[0]; })) return;
  std::vector<Facts> all = all_gather_object(facts, options);
  fail<MismatchError>(operation, "ranks disagree:{}", differences(all, options.group.ranks()));
}

void check_equal_bits(const char* operation, const NamedTensors& tensors, const CollectiveOptions& options) {
  NoGrad guard;
  std::vector<int64_t> mine;
  for (const auto& [name, t] : tensors) {
    Tensor c = t.detach().contiguous();
    mine.push_back(static_cast<int64_t>(hash_bytes(c.raw_data(), static_cast<size_t>(c.numel()) * c.element_size())));
  }
  std::vector<int64_t> all = gather_hashes(mine, options);
  auto ranks = static_cast<size_t>(options.group.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    std::map<int64_t, std::vector<int>> who;
    for (size_t r = 0; r < ranks; ++r) who[all[r * mine.size() + i]].push_back(options.group.ranks()[r]);
    if (who.size() == 1) continue;
    std::vector<std::vector<int>> alike;
    for (auto& [hash, list] : who) alike.push_back(std::move(list));
    std::sort(alike.begin(), alike.end(), [](const auto& a, const auto& b) {
      return a.size() != b.size() ? a.size() > b.size() : a < b;  // most ranks first
    });
    std::string others;
    for (size_t k = 1; k < alike.size(); ++k) others += " and another on " + rank_list(alike[k]);
    fail<MismatchError>(
        operation, "ranks have drifted apart: {} is the first parameter whose bits differ; it is one thing on {}{}",
        tensors[i].first, rank_list(alike[0]), others);
  }
}

std::vector<TensorList> by_kind(const TensorList& tensors) {
  std::vector<TensorList> lists;
  for (const Tensor& t : tensors) {
    auto list = std::find_if(lists.begin(), lists.end(), [&](const TensorList& l) {
      return l[0].dtype() == t.dtype() && l[0].device() == t.device();
    });
    if (list == lists.end())
      lists.push_back({t});
    else
      list->push_back(t);
  }
  return lists;
}

}  // namespace tutti::parallel
