#include "graph/entries.h"

#include <algorithm>
#include <unordered_set>

#include "graph/symbolic.h"

namespace tutti::graph {

std::shared_ptr<Entry> Entries::find(const std::string& key, const Holds& holds) const {
  auto it = entries_.find(key);
  if (it == entries_.end()) return nullptr;
  for (const auto& entry : it->second)
    if (holds(*entry)) return entry;
  return nullptr;
}

std::pair<std::shared_ptr<Entry>, std::shared_ptr<Entry>> Entries::around(const std::string& family, int64_t batch,
                                                                          const Holds& holds) const {
  std::shared_ptr<Entry> low, high;
  auto it = families_.find(family);
  if (it == families_.end()) return {};
  for (const auto& e : it->second) {
    if (!holds(*e)) continue;
    if (e->batch < batch && (!low || e->batch > low->batch)) low = e;
    if (e->batch > batch && (!high || e->batch < high->batch)) high = e;
  }
  return {low, high};
}

bool Entries::knows_form(const std::string& family, Entry& entry) const {
  auto it = families_.find(family);
  if (it == families_.end()) return false;
  const List& list = it->second;
  auto other = std::find_if(list.rbegin(), list.rend(), [&](auto& other) {
    return other->batch != entry.batch && have_one_form(*other, entry, entry.why);
  });
  if (other == list.rend()) return false;
  // Two traces of one form: see Note [Arguments that are captured].
  (*other)->given.also(entry.given);
  entry.given.also((*other)->given);
  entry.why.clear();
  return list.size() < kSamples || find_spare(list, entry.why);
}

void Entries::add_traced(const std::string& key, const std::optional<std::string>& family, std::shared_ptr<Entry> entry,
                         bool known) {
  entries_[key].push_back(entry);
  order_.push_back(entry);
  entry->is_form = !known;
  if (!known) ++forms_;
  if (!family) return;
  List& list = families_[*family];
  auto place = std::find_if(list.begin(), list.end(), [&](auto& other) { return other->batch > entry->batch; });
  list.insert(place, std::move(entry));
  std::string why;
  size_t spare = list.size() > kSamples ? find_spare(list, why) : 0;
  if (!spare) return;
  std::shared_ptr<Entry> lost = list[spare];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(spare));
  std::erase(order_, lost);
  for (auto& [other, entries] : entries_) std::erase(entries, lost);
  std::erase_if(entries_, [](auto& keyed) { return keyed.second.empty(); });
}

std::vector<std::shared_ptr<Entry>> Entries::forget(const std::function<bool(const Entry&)>& lost) {
  // Asked once of each: others may be losing more at this moment.
  std::vector<std::shared_ptr<Entry>> traced;
  std::unordered_set<const Entry*> gone;
  for (const auto& entry : order_)
    if (lost(*entry) && gone.insert(entry.get()).second) traced.push_back(entry);
  for (const auto& [key, entry] : fitted_)
    if (lost(*entry)) gone.insert(entry.get());
  if (gone.empty()) return traced;
  auto drop = [&](auto& list) { std::erase_if(list, [&](const auto& entry) { return gone.count(entry.get()) > 0; }); };
  for (const auto& entry : traced) forms_ -= entry->is_form;
  drop(order_);
  for (auto* map : {&entries_, &families_}) {
    for (auto& [key, list] : *map) drop(list);
    std::erase_if(*map, [](auto& keyed) { return keyed.second.empty(); });
  }
  std::erase_if(fitted_, [&](const auto& fitted) { return gone.count(fitted.second.get()) > 0; });
  return traced;
}

void Entries::add_fitted(const std::string& key, std::shared_ptr<Entry> entry) {
  entries_[key].push_back(entry);
  fitted_.emplace_back(key, std::move(entry));
  if (fitted_.size() <= kFitted) return;
  auto it = entries_.find(fitted_.front().first);
  std::erase(it->second, fitted_.front().second);
  if (it->second.empty()) entries_.erase(it);
  fitted_.pop_front();
}

// One that would be fitted just so, were it not there; 0 and `why` if there is none. Sizes that grow from call to call
// would become many. Of several it is one with the fewest backward graphs: what is fitted has those of both neighbours.
size_t Entries::find_spare(const List& family, std::string& why) {
  size_t best = 0, fewest = 0;
  for (size_t i = 1; i + 1 < family.size(); ++i) {
    Entry &low = *family[i - 1], &here = *family[i], &high = *family[i + 1];
    bool between = low.batch < here.batch && here.batch < high.batch;
    if (between && have_one_form(low, here, why, true) && have_one_form(here, high, why, true) &&
        have_one_form(low, high, why, true)) {
      std::lock_guard lock(here.mutex);
      if (best && here.backwards.size() >= fewest) continue;
      best = i;
      fewest = here.backwards.size();
    }
  }
  return best;
}

}  // namespace tutti::graph
