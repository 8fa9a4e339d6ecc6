// All entries of a compiled function, by what a call must be like to use them.
#pragma once

#include <deque>
#include <optional>

#include "graph/function.h"

namespace tutti::graph {

/// Who has it locks it.
class Entries {
 public:
  using Holds = std::function<bool(Entry&)>;

  /// The one for this key whose other guards hold too, or null.
  std::shared_ptr<Entry> find(const std::string& key, const Holds& holds) const;
  /// Those of one family that were traced for the next smaller and the next larger batch size, or null.
  std::pair<std::shared_ptr<Entry>, std::shared_ptr<Entry>> around(const std::string& family, int64_t batch,
                                                                   const Holds& holds) const;
  /// Whether the graph is that of another batch size of the family; `entry.why` not. A family that is full of sizes
  /// between which no other is fitted knows none.
  bool knows_form(const std::string& family, Entry& entry) const;
  /// `family`: by all but the batch size. `known`: what knows_form() said.
  void add_traced(const std::string& key, const std::optional<std::string>& family, std::shared_ptr<Entry> entry,
                  bool known);
  void add_fitted(const std::string& key, std::shared_ptr<Entry> entry);
  /// As if these had never been; gives those of them that were traced.
  std::vector<std::shared_ptr<Entry>> forget(const std::function<bool(const Entry&)>& lost);

  /// Traced, in the order in which they came.
  const std::vector<std::shared_ptr<Entry>>& order() const { return order_; }
  /// How many were traced, of which none is the graph of another batch size.
  int64_t forms() const { return forms_; }
  size_t keys() const { return entries_.size(); }

  static constexpr size_t kFitted = 64, kSamples = 8;  // batch sizes whose graphs are kept: fitted, and traced

 private:
  using List = std::vector<std::shared_ptr<Entry>>;
  static size_t find_spare(const List& family, std::string& why);

  std::unordered_map<std::string, List> entries_;                      // none is empty
  std::unordered_map<std::string, List> families_;                     // traced
  std::deque<std::pair<std::string, std::shared_ptr<Entry>>> fitted_;  // not traced; by their keys
  List order_;
  int64_t forms_ = 0;
};

}  // namespace tutti::graph
