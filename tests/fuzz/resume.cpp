// A state that anyone may have written, given to everything that takes one: it is refused, or what took it goes on.
#include "base/check.h"
#include "tests/support/fuzz.h"
#include "tutti/tutti.h"

namespace tutti::fuzz {
namespace {

using namespace optim;  // NOLINT

TensorList parameters() {
  TensorList list{full({3}, 0.5).requires_grad_(), ones({2}, {bf16}).requires_grad_(),
                  ones({2}, {c64}).requires_grad_()};
  for (const Tensor& p : list) p.set_grad(ones(p.sizes(), {p.dtype()}));
  return list;
}

TensorList tables() {
  Tensor table = full({4, 2}, 0.5).requires_grad_();
  table.set_grad(sparse_coo(tensor({{1, 3, 1}}), ones({3, 2}), {4, 2}));
  return {table};
}

struct Run {
  nn::Linear net{2, 3};
  nn::LazyLinear lazy{2};
  Adam adam{parameters(), {.amsgrad = true}};
  RMSprop rmsprop{parameters(), {.momentum = 0.5, .centered = true}};
  SGD sgd{parameters(), {.momentum = 0.9}};
  Adagrad adagrad{parameters()};
  Lion lion{{parameters()[0]}};
  AdamW adamw{parameters(), {.weight_decay = 0.1}};
  SparseAdam sparse{tables()};
  Scheduler schedule{adam, cosine_restarts(3, 2) * warmup(10) * step_decay(5) * multi_step({3})};
  Plateau plateau{adam, {.patience = 0}};
  Ema<nn::Linear> ema{net};
  amp::GradScaler scaler{{.growth_interval = 2}};
  data::DataLoader<data::TensorDataset<Tensor>> loader{data::TensorDataset(arange(7)),
                                                       {.batch_size = 2, .shuffle = true}};
  int32_t number = 0;
  std::optional<std::vector<double>> history = std::vector<double>{0.5};

  std::vector<io::Part> parts() {
    return {{"net", net},         {"lazy", lazy},       {"adam", adam},         {"rmsprop", rmsprop},
            {"sgd", sgd},         {"adagrad", adagrad}, {"schedule", schedule}, {"lion", lion},
            {"plateau", plateau}, {"ema", ema},         {"scaler", scaler},     {"loader", loader},
            {"n", number},        {"history", history}, {"adamw", adamw},       {"sparse", sparse}};
  }
  std::vector<Optimizer*> optimizers() { return {&adam, &rmsprop, &sgd, &adagrad, &lion, &adamw, &sparse}; }
  void go_on() {
    for (Optimizer* o : optimizers()) {
      o->step();
      o->step();
    }
    schedule.step();
    plateau.step(1);
    plateau.step(1);
    ema.update(net);
    scaler.step(adam);
    scaler.update();
    net(ones({1, 2}));
    try {
      lazy(ones({1, 2}));
    } catch (const Error&) {  // it takes other inputs then
    }
    for (auto& batch : loader) (void)batch;
    for (auto& batch : loader) (void)batch;
  }
};

// What an optimizer keeps is read as floating-point memory, so nothing else may ever get there.
void check_kept(const Optimizer& optimizer) {
  const io::State state = optimizer.state();
  for (const io::Value& group : state["groups"].as<io::ValueList>())
    for (const io::Value& slot : group.as<io::State>()["parameters"].as<io::ValueList>())
      for (const auto& [name, value] : slot.as<io::State>().entries) {
        if (value.is<int64_t>()) TUTTI_ASSERT(value.as<int64_t>() >= 0);
        if (value.is<Tensor>()) TUTTI_ASSERT(value.as<Tensor>().is_floating() || value.as<Tensor>().is_complex());
      }
}

std::string saved(int steps) {
  Run run;
  run.lazy(ones({1, 2}));
  for (int i = 0; i < steps; ++i) run.go_on();
  io::State all;
  for (auto& part : run.parts()) all[part.name] = part.save();
  return io::state_to_bytes(all);
}

// Most damaged bytes are no state any more. Then they only say where the tree of a good one is damaged, and how.
void damage(io::Value& value, std::string_view& how) {
  if (how.empty()) return;
  auto byte = static_cast<unsigned char>(how.back());
  how.remove_suffix(1);
  if (auto* state = std::get_if<io::State>(&value.value); state && byte < 224) {
    if (!state->entries.empty()) damage(state->entries[byte % state->entries.size()].value, how);
    return;
  }
  if (auto* list = std::get_if<io::ValueList>(&value.value); list && byte < 224) {
    if (!list->empty()) damage((*list)[byte % list->size()], how);
    return;
  }
  const io::Value others[] = {-1,
                              INT64_MAX,
                              INT64_MIN,
                              0.0 / 0.0,
                              -1.0,
                              1e300,
                              true,
                              "text",
                              Tensor(),
                              zeros({3}, {boolean}),
                              zeros({3}, {c128}),
                              zeros({3}, {i64}),
                              zeros({2}, {f64}),
                              zeros({3}, {f16}),
                              zeros({0, 5}),
                              zeros({3, 1}),
                              io::State(),
                              io::ValueList(),
                              io::ValueList{1, 2.0}};
  value = others[byte % std::size(others)];
}

}  // namespace

std::vector<std::string> seeds() {
  static const std::vector<std::string> made{saved(0), saved(2)};
  return made;
}

void target(const std::string& bytes) {
  static const io::State good = io::state_from_bytes(seeds()[1], "seed");
  io::State state;
  try {
    state = io::state_from_bytes(bytes, "fuzz");
  } catch (const Error&) {
    io::Value value(io::clone(good));
    std::string path;
    std::mt19937_64 random(std::hash<std::string>()(bytes));
    for (int i = 0; i < 16; ++i) path += static_cast<char>(random());
    std::string_view how(path);
    while (!how.empty()) damage(value, how);
    state = value.as<io::State>();
  }
  Run run;
  const io::State& loaded = state;
  for (auto& part : run.parts()) {
    const io::Value* value = loaded.find(part.name);
    if (!value) continue;
    try {
      part.load(*value);
    } catch (const InternalError&) {
      throw;
    } catch (const Error&) {  // refused
    }
  }
  for (const Optimizer* o : run.optimizers()) check_kept(*o);
  try {
    run.go_on();
  } catch (const Error& error) {  // what took a state must go on
    throw InternalError(error.what(), "resume");
  }
}

}  // namespace tutti::fuzz
