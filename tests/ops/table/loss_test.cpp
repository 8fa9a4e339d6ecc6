// Rows of src/ops/loss. What is a constant for PyTorch (targets and weights of classes, for the most part) is detached,
// so that its gradient is zero there and here. Inputs are far enough from margins that differences do not cross them.
#include "tutti/ops/loss.h"

#include "tests/support/table.h"

namespace tutti::test {
namespace {

// Losses are composed of several roundings. An input that is an option may be undefined: detach() says that it is not.
Row loss(const std::string& name, Body body, std::vector<Sample> samples,
         std::source_location where = std::source_location::current()) {
  return row(name, std::move(body), std::move(samples), where).takes(kFloat).loose(1, 8).speaks_of("detach");
}

// The same row for each reduction, whose name is the last part of the row's.
using ReducedBody = std::function<Tensor(In, Reduction)>;
void each_reduction(std::vector<Row>& rows, const std::string& name, const ReducedBody& body,
                    const std::vector<Sample>& samples, std::source_location where = std::source_location::current()) {
  for (auto [label, r] : {std::pair{".none", Reduction::none}, {".mean", Reduction::mean}, {".sum", Reduction::sum}})
    rows.push_back(loss(name + label, [body, r](In x) -> Out { return {body(x, r)}; }, samples, where));
}

constexpr Domain kUnit{0.1, 0.9}, kPositive{0.5, 2}, kNear{-1, 1};  // between numbers of kNear lie 0.7 or 1.3

bool add_differences() {
  std::vector<Row> rows;
  Sample two = {value({2, 3}, kNear), value({2, 3}, kNear)};
  each_reduction(rows, "mse_loss", [](In x, Reduction r) { return mse_loss(x[0], x[1], r); }, {two});
  each_reduction(rows, "l1_loss", [](In x, Reduction r) { return l1_loss(x[0], x[1], r); }, {two});
  each_reduction(rows, "smooth_l1_loss", [](In x, Reduction r) { return smooth_l1_loss(x[0], x[1], 0.75, r); }, {two});
  each_reduction(rows, "huber_loss", [](In x, Reduction r) { return huber_loss(x[0], x[1], 1.25, r); }, {two});
  rows.push_back(loss("smooth_l1_loss.zero", [](In x) -> Out { return {smooth_l1_loss(x[0], x[1], 0)}; }, {two}));
  Sample divergence = {value({2, 3}, {-2, -0.1}), value({2, 3}, kUnit)};
  each_reduction(rows, "kl_div", [](In x, Reduction r) { return kl_div(x[0], x[1], {.reduction = r}); }, {divergence});
  each_reduction(rows, "kl_div.log",
                 [](In x, Reduction r) { return kl_div(x[0], x[1], {.log_target = true, .reduction = r}); }, {two});
  rows.push_back(
      loss("kl_div.batchmean", [](In x) -> Out { return {kl_div(x[0], x[1], {.batch_mean = true})}; }, {divergence}));
  rows.push_back(loss("kl_div.log.batchmean",
                      [](In x) -> Out { return {kl_div(x[0], x[1], {.log_target = true, .batch_mean = true})}; },
                      {two}));
  return add_rows(std::move(rows));
}

bool add_binary() {
  std::vector<Row> rows;
  Input x = value({2, 3}, kUnit), t = value({2, 3}, kUnit), fixed_t = constant({2, 3}, kUnit),
        w = value({3}, kPositive), fixed_w = constant({3}, kPositive), logits = value({2, 3});
  each_reduction(rows, "binary_cross_entropy.plain",
                 [](In x, Reduction r) { return binary_cross_entropy(x[0], x[1].detach(), {.reduction = r}); },
                 {{x, fixed_t}});
  each_reduction(rows, "binary_cross_entropy",
                 [](In x, Reduction r) {
                   return binary_cross_entropy(x[0], x[1].detach(), {.weight = x[2].detach(), .reduction = r});
                 },
                 {{x, fixed_t, fixed_w}});
  each_reduction(rows, "binary_cross_entropy.targets",
                 [](In x, Reduction r) { return binary_cross_entropy(x[0], x[1], {.reduction = r}); }, {{x, t}});
  // By the weights too, which in PyTorch have no gradient; so below.
  each_reduction(
      rows, "binary_cross_entropy.weights",
      [](In x, Reduction r) { return binary_cross_entropy(x[0], x[1], {.weight = x[2] * 1, .reduction = r}); },
      {{x, t, w}});

  auto with_logits = [&](const char* form, const ReducedBody& body, const Sample& sample) {
    each_reduction(rows, std::string("binary_cross_entropy_with_logits") + form, body, {sample});
  };
  auto of = [](In x, const BinaryLogitsOptions& o) { return binary_cross_entropy_with_logits(x[0], x[1], o); };
  auto of_constants = [](In x, const BinaryLogitsOptions& o) {
    return binary_cross_entropy_with_logits(x[0], x[1].detach(), o);
  };
  with_logits(".plain", [=](In x, Reduction r) { return of_constants(x, {.reduction = r}); }, {logits, fixed_t});
  with_logits("",
              [=](In x, Reduction r) {
                return of_constants(x, {.weight = x[2].detach(), .pos_weight = x[3].detach(), .reduction = r});
              },
              {logits, fixed_t, fixed_w, fixed_w});
  with_logits(".weight", [=](In x, Reduction r) { return of_constants(x, {.weight = x[2].detach(), .reduction = r}); },
              {logits, fixed_t, fixed_w});
  with_logits(".pos_weight",
              [=](In x, Reduction r) { return of_constants(x, {.pos_weight = x[2].detach(), .reduction = r}); },
              {logits, fixed_t, fixed_w});
  with_logits(".targets", [=](In x, Reduction r) { return of(x, {.pos_weight = x[2].detach(), .reduction = r}); },
              {logits, t, fixed_w});
  with_logits(".weights",
              [=](In x, Reduction r) { return of(x, {.weight = x[2] * 1, .pos_weight = x[3] * 1, .reduction = r}); },
              {logits, t, w, w});
  for (Row& r : rows)
    if (r.name.find(".weights.") != std::string::npos) r.speaks_of("mul");
  return add_rows(std::move(rows));
}

bool add_margins() {
  std::vector<Row> rows;
  Input x = value({3, 4}), one = value({3});
  auto cosine = [](double margin) {
    return
        [=](In x, Reduction r) { return cosine_embedding_loss(x[0], x[1], x[2], {.margin = margin, .reduction = r}); };
  };
  each_reduction(rows, "cosine_embedding_loss", cosine(0.1), {{x, x, indices({3}, {-1, 1, -1})}});
  each_reduction(rows, "cosine_embedding_loss.one", cosine(-0.9), {{one, one, indices({}, {-1})}});
  each_reduction(
      rows, "margin_ranking_loss",
      [](In x, Reduction r) { return margin_ranking_loss(x[0], x[1], x[2], {.margin = 0.3, .reduction = r}); },
      {{value({4}), value({4}), indices({4}, {1, -1, -1, 1})}});
  Sample signs = {value({2, 3}), indices({2, 3}, {1, -1, -1, 1, 1, -1})};
  each_reduction(rows, "hinge_embedding_loss",
                 [](In x, Reduction r) { return hinge_embedding_loss(x[0], x[1], {.margin = 0.7, .reduction = r}); },
                 {signs});
  each_reduction(rows, "soft_margin_loss", [](In x, Reduction r) { return soft_margin_loss(x[0], x[1], r); }, {signs});
  for (int p : {1, 2, 3})
    for (bool swap : {false, true})
      each_reduction(rows, "triplet_margin_loss." + std::to_string(p) + (swap ? ".swap" : ".plain"),
                     [=](In x, Reduction r) {
                       TripletOptions o{.margin = 0.8, .p = double(p), .swap = swap, .reduction = r};
                       return triplet_margin_loss(x[0], x[1], x[2], o);
                     },
                     {{x, x, x}});
  rows.push_back(
      loss("triplet_margin_loss.eps",
           [](In x) -> Out { return {triplet_margin_loss(x[0], x[1], x[2], {.epsilon = 0.5, .swap = true})}; },
           {{x, x, x}}));
  rows.push_back(loss("pairwise_distance", [](In x) -> Out { return {pairwise_distance(x[0], x[1])}; }, {{x, x}}));
  rows.push_back(loss("pairwise_distance.options",
                      [](In x) -> Out { return {pairwise_distance(x[0], x[1], 3, 0.25, true)}; }, {{x, value({4})}}));
  rows.push_back(loss("cosine_similarity", [](In x) -> Out { return {cosine_similarity(x[0], x[1])}; },
                      {{value({2, 3, 2}), value({2, 3, 2})}}));
  rows.push_back(loss("cosine_similarity.broadcast", [](In x) -> Out { return {cosine_similarity(x[0], x[1], -1)}; },
                      {{value({2, 1, 3}), value({2, 3})}}));
  // Some rows are shorter than epsilon.
  rows.push_back(loss("cosine_similarity.eps", [](In x) -> Out { return {cosine_similarity(x[0], x[1], 1, 2.25)}; },
                      {{value({3, 4}, {-2.1, 2.1}), value({3, 4}, {-2.1, 2.1})}}));
  return add_rows(std::move(rows));
}

// Classes as indices or as probabilities, with weights where there is a third input.
bool add_classes() {
  std::vector<Row> rows;
  Input x = value({2, 3, 2}), w = constant({3}, kPositive), soft = value({2, 3, 2}, kUnit);
  auto places = [&](std::vector<double> classes) { return indices({2, 2}, std::move(classes)); };
  std::vector<Sample> hard = {{x, places({0, 2, -100, 1})},
                              {x, places({0, 2, -100, 1}), w},
                              {value({3}), indices({}, {1}), w},
                              {value({1, 3, 2, 2}), indices({1, 2, 2}, {0, 2, 1, 2})}};
  auto entropy = [](CrossEntropyOptions o) {
    return [=](In x, Reduction r) {
      CrossEntropyOptions mine = o;
      mine.reduction = r;
      if (x.size() > 2) mine.weight = x[2].detach();
      return cross_entropy(x[0], x[1], mine);
    };
  };
  auto likelihood = [](NllOptions o) {
    return [=](In x, Reduction r) {
      NllOptions mine = o;
      mine.reduction = r;
      if (x.size() > 2) mine.weight = x[2].detach();
      return nll_loss(x[0], x[1], mine);
    };
  };
  each_reduction(rows, "cross_entropy", entropy({}), hard);
  each_reduction(rows, "cross_entropy.smooth", entropy({.label_smoothing = 0.2}), {hard[1]});
  each_reduction(rows, "cross_entropy.soft", entropy({}), {{x, soft}, {value({3}), value({3}, kUnit), w}});
  each_reduction(rows, "cross_entropy.soft.smooth", entropy({.label_smoothing = 0.2}), {{x, soft, w}});
  each_reduction(rows, "nll_loss", likelihood({}), hard);
  // Ignored: a class, and a number that is none.
  for (auto [label, number] : {std::pair{"class", 2}, {"number", -7}}) {
    double ignored = number;
    Sample sample = {x, places({0, ignored, 1, ignored}), w};
    each_reduction(rows, std::string("cross_entropy.ignore_") + label,
                   entropy({.ignore_index = number, .label_smoothing = 0.1}), {sample});
    each_reduction(rows, std::string("nll_loss.ignore_") + label, likelihood({.ignore_index = number}), {sample});
  }
  return add_rows(std::move(rows));
}

const bool loss_rows = add_differences() && add_binary() && add_margins() && add_classes();

}  // namespace
}  // namespace tutti::test
