// Rows of src/ops/rnn. Inputs: x, the initial states, lengths if the row has them, then weights layer by layer. What is
// an option is copied where it is there, since an undefined one would be none.
#include "tutti/ops/rnn.h"

#include "tests/support/table.h"

namespace tutti::test {
namespace {

enum class Layers : uint8_t { tanh, relu, gru, lstm };

struct RnnForm {
  const char* name;
  RnnOptions options = {};
  bool batch = true, bias = true, lengths = false, projection = false;
};

TensorList run_layers(Layers kind, const Tensor& x, const TensorList& states, const std::vector<RnnWeights>& weights,
                      const RnnOptions& o) {
  if (kind == Layers::lstm) {
    LstmResult r = lstm(x, {states[0], states[1]}, weights, o);
    return {r.output, r.hidden, r.cell};
  }
  Nonlinearity f = kind == Layers::tanh ? Nonlinearity::tanh : Nonlinearity::relu;
  RnnResult r = kind == Layers::gru ? gru(x, states[0], weights, o) : rnn(x, states[0], weights, f, o);
  return {r.output, r.hidden};
}

Body layers_of(Layers kind, const RnnForm& form) {
  return [=](In x) -> Out {
    size_t at = 1;
    TensorList states;
    for (int i = 0; i < (kind == Layers::lstm ? 2 : 1); ++i) states.push_back(x[at++].clone());
    RnnOptions o = form.options;
    if (form.lengths) o.lengths = x[at++].clone();
    std::vector<RnnWeights> weights;
    while (at < x.size()) {
      RnnWeights w{x[at], x[at + 1]};
      at += 2;
      if (form.bias) w.b_ih = x[at].clone(), w.b_hh = x[at + 1].clone(), at += 2;
      if (form.projection) w.w_hr = x[at++].clone();
      weights.push_back(w);
    }
    return run_layers(kind, x[0], states, weights, o);
  };
}

// Two steps of two features, one unit in each direction.
Sample smallest(Layers kind, const RnnForm& form) {
  int64_t gates = kind == Layers::lstm ? 4 : kind == Layers::gru ? 3 : 1;
  int64_t directions = form.options.bidirectional ? 2 : 1, count = form.options.layers * directions;
  int64_t units = form.projection ? 2 : 1;
  Sample sample = {form.batch ? value({2, 2, 2}) : value({2, 2})};
  sample.push_back(form.batch ? value({count, 2, 1}) : value({count, 1}));
  if (kind == Layers::lstm) sample.push_back(form.batch ? value({count, 2, units}) : value({count, units}));
  if (form.lengths) sample.push_back(indices({2}, {1, 2}));
  auto weight = [](const Shape& sizes) { return value(sizes, {-1, 1}); };  // so that units are not saturated
  for (int64_t i = 0; i < count; ++i) {
    sample.push_back(weight({gates * units, i < directions ? 2 : directions}));
    sample.push_back(weight({gates * units, 1}));
    for (int b = 0; b < (form.bias ? 2 : 0); ++b) sample.push_back(weight({gates * units}));
    if (form.projection) sample.push_back(weight({1, units}));
  }
  return sample;
}

bool add_recurrent() {
  const RnnOptions deep{.layers = 2, .bidirectional = true};
  RnnOptions padded = deep;
  padded.batch_first = true;
  std::vector<RnnForm> forms = {{.name = "plain"},
                                {.name = "nobias", .bias = false},
                                {.name = "deep", .options = deep},
                                {.name = "single", .options = {.bidirectional = true}, .batch = false},
                                {.name = "lengths", .options = padded, .lengths = true},
                                {.name = "projection", .options = deep, .projection = true},
                                {.name = "projection.lengths", .lengths = true, .projection = true}};
  std::vector<Row> rows;
  for (auto [name, kind] : {std::pair{"rnn.tanh.", Layers::tanh},
                            {"rnn.relu.", Layers::relu},
                            {"gru.", Layers::gru},
                            {"lstm.", Layers::lstm}})
    for (const RnnForm& form : forms)
      if (kind == Layers::lstm || !form.projection)
        rows.push_back(row(std::string(name) + form.name, layers_of(kind, form), {smallest(kind, form)})
                           .takes(kFloat)
                           .loose(1, 4)
                           .speaks_of("clone"));
  return add_rows(std::move(rows));
}
const bool recurrent_rows = add_recurrent();

}  // namespace
}  // namespace tutti::test
