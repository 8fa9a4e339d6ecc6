// What is kept of the calls of a compiled function, and what is forgotten.
#include "graph/entries.h"

#include <gtest/gtest.h>

namespace tutti::graph {
namespace {

std::shared_ptr<Entry> entry_of(int64_t batch) {
  auto entry = std::make_shared<Entry>();
  entry->batch = batch;
  return entry;
}
std::string key_of(int64_t batch) { return "batch " + std::to_string(batch); }
bool always(const Entry&) { return true; }

TEST(Entries, ForgottenSizesLeaveNoKeys) {
  Entries entries;
  for (int64_t n = 1; n <= 100; ++n) {
    auto entry = entry_of(n);
    entries.add_traced(key_of(n), "family", entry, entries.knows_form("family", *entry));
  }
  EXPECT_EQ(entries.forms(), 1);
  EXPECT_EQ(entries.order().size(), Entries::kSamples);
  EXPECT_EQ(entries.keys(), Entries::kSamples);
  EXPECT_TRUE(entries.find(key_of(1), always) && entries.find(key_of(100), always)) << "the outermost stay";
  for (int64_t n = 201; n <= 400; ++n) entries.add_fitted(key_of(n), entry_of(n));
  EXPECT_EQ(entries.keys(), Entries::kSamples + Entries::kFitted);
  EXPECT_FALSE(entries.find(key_of(201), always));
  EXPECT_TRUE(entries.find(key_of(400), always));
}

// Two threads may have fitted the same size at once.
TEST(Entries, AKeyStaysAsLongAsOneOfItsEntries) {
  Entries entries;
  entries.add_fitted("twice", entry_of(5));
  for (size_t n = 2; n < Entries::kFitted; ++n) entries.add_fitted(key_of(static_cast<int64_t>(n)), entry_of(0));
  entries.add_fitted("twice", entry_of(5));
  entries.add_fitted("one more", entry_of(0));
  EXPECT_TRUE(entries.find("twice", always));
  EXPECT_EQ(entries.keys(), Entries::kFitted);
}

}  // namespace
}  // namespace tutti::graph
