// Rows of src/ops/embedding. Where padding or frequencies change a gradient, so that it is no derivative any more,
// PyTorch's numbers have it; differences are then taken of lookups that they do not concern.
#include "tutti/ops/embedding.h"

#include "tests/support/table.h"

namespace tutti::test {
namespace {

Row lookup(const char* name, const EmbeddingOptions& o, std::vector<double> at,
           std::source_location where = std::source_location::current()) {
  return row(
      name, [o](In x) -> Out { return {embedding(x[0], x[1], o)}; }, {{value({5, 2}), indices({2, 2}, std::move(at))}},
      where);
}

const bool lookups = add_rows({
    lookup("embedding", {}, {1, 4, 1, 0}).takes(kNumber).sample({value({5, 2}), indices({}, {3})}),
    lookup("embedding.padding", {.padding_idx = 4}, {1, 3, 1, 0}).takes(kNumber),
    lookup("embedding.frequency", {.scale_grad_by_freq = true}, {1, 4, 2, 0}).takes(kNumber),
    lookup("embedding.sparse", {.padding_idx = -3, .sparse = true}, {1, 4, 1, 0}).takes(kNumber),
    // Shortens rows of the table itself.
    row("embedding.max_norm",
        [](In x) -> Out {
          Tensor table = x[0].detach().clone();
          Tensor found = embedding(table, x[1], {.max_norm = 1.5, .norm_type = 3});
          return {found};
        },
        {{value({5, 2}), indices({2, 2}, {1, 4, 1, 0})}})
        .takes(kFloat | kComplex)
        .no_gradient()
        .speaks_of("detach"),
});

bool add_bags() {
  std::vector<Row> rows;
  Input table = value({5, 2}), list = indices({6}, {1, 4, 1, 0, 3, 4}), offsets = indices({3}, {0, 3, 3});
  Sample bags = {table, list, offsets};
  auto bag = [&](const std::string& name, const EmbeddingBagOptions& o, std::vector<Sample> samples,
                 std::source_location where = std::source_location::current()) {
    auto body = [o](In x) -> Out { return {embedding_bag(x[0], x[1], x.size() > 2 ? x[2] : Tensor(), o)}; };
    rows.push_back(row("embedding_bag." + name, body, std::move(samples), where).takes(kFloat));
  };
  for (BagMode mode : {BagMode::sum, BagMode::mean, BagMode::max}) {
    std::string name = to_string(mode);
    bag(name, {.mode = mode}, {bags, {table, indices({2, 2}, {1, 4, 1, 0})}});
    bag(name + ".last", {.mode = mode, .include_last_offset = true}, {{table, list, indices({4}, {0, 3, 3, 6})}});
    bag(name + ".padding", {.mode = mode, .padding_idx = 4}, {bags});
    if (mode != BagMode::max) bag(name + ".sparse", {.mode = mode, .sparse = true}, {bags});
  }
  for (auto [name, padding] : {std::pair<const char*, std::optional<int64_t>>{"weights", {}}, {"weights.padding", 1}})
    rows.push_back(row("embedding_bag." + std::string(name),
                       [padding = padding](In x) -> Out {
                         EmbeddingBagOptions o{.mode = BagMode::sum};
                         o.per_sample_weights = x[3].clone();  // of an undefined one, none
                         o.padding_idx = padding;
                         return {embedding_bag(x[0], x[1], x[2], o)};
                       },
                       {{table, list, offsets, value({6})}})
                       .takes(kFloat)
                       .speaks_of("clone"));
  // Shortens rows of the table itself, as embedding does.
  rows.push_back(row("embedding_bag.max_norm",
                     [](In x) -> Out {
                       Tensor table = x[0].detach().clone();
                       Tensor found = embedding_bag(table, x[1], x[2], {.max_norm = 1.5});
                       return {found, table};
                     },
                     {bags})
                     .takes(kFloat)
                     .no_gradient()
                     .speaks_of("detach")
                     .reference([](In x) -> Out {
                       Tensor table = x[0].clone();
                       embedding(table, x[1], {.max_norm = 1.5});
                       return {embedding_bag(table, x[1], x[2]), table};
                     }));
  return add_rows(std::move(rows));
}
const bool bags_of_lookups = add_bags();

}  // namespace
}  // namespace tutti::test
