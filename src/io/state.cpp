// Note [State in a file]: the metadata "tutti.state" is JSON {"version": 1, "state": tree}. In the tree, integers are
// JSON's without and doubles JSON's with a fraction or exponent; booleans, strings, lists and maps are JSON's. What
// JSON lacks is a map of one key that begins with "$": {"$tensor": name}, {"$complex": name} (a tensor saved as pairs
// of real numbers), {"$double": bits in hex} for infinities and NaN; null is an undefined tensor. A user's key that
// begins with
// "$" gets one more of them.
#include "tutti/io/state.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <set>

#include "base/check.h"
#include "io/json.h"
#include "tutti/io/file.h"
#include "tutti/io/safetensors.h"
#include "tutti/ops.h"

namespace tutti::io {
namespace {

constexpr const char* kStateOperation = "state";
constexpr const char* kKey = "tutti.state";
constexpr int kMaxStateDepth = 60;  // less than the JSON parser's

Json marked(const char* kind, std::string text) { return Json::Map{{kind, std::move(text)}}; }

class Encoder {
 public:
  Json encode(const Value& value, const std::string& path, int depth) {
    check<ValueError>(depth < kMaxStateDepth, kStateOperation, "'{}' is nested deeper than {}", path, kMaxStateDepth);
    return std::visit([&](const auto& v) { return one(v, path, depth); }, value.value);
  }
  Tensors tensors;

 private:
  Json one(int64_t v, const std::string&, int) { return {v}; }
  Json one(bool v, const std::string&, int) { return {v}; }
  Json one(double v, const std::string&, int) {
    if (std::isfinite(v)) return {v};
    return marked("$double", fmt::format("{:016x}", std::bit_cast<uint64_t>(v)));
  }
  Json one(const std::string& v, const std::string& path, int) {
    check<ValueError>(is_utf8(v), kStateOperation, "'{}' is a string that is not UTF-8", path);
    return {v};
  }
  Json one(const Tensor& v, const std::string& path, int) {
    if (!v.defined()) return {};
    std::string name = path;
    while (tensors.contains(name)) name += '\'';  // keys may contain slashes themselves
    // to_dense() etc. are the producer's; here a tensor is its values.
    bool complex = v.is_complex();
    tensors[name] = complex ? as_pairs(v) : v;
    return marked(complex ? "$complex" : "$tensor", name);
  }
  static Tensor as_pairs(const Tensor& v) {
    return v.detach().contiguous().unsqueeze(-1).view_dtype(to_real(v.dtype()));
  }
  Json one(const ValueList& v, const std::string& path, int depth) {
    Json::List list;
    for (size_t i = 0; i < v.size(); ++i) list.push_back(encode(v[i], fmt::format("{}/{}", path, i), depth + 1));
    return {std::move(list)};
  }
  Json one(const State& v, const std::string& path, int depth) {
    Json::Map map;
    std::set<std::string_view> seen;
    for (auto& [key, value] : v.entries) {
      check<ValueError>(is_utf8(key) && seen.insert(key).second, kStateOperation,
                        "'{}' has the key '{}' twice or not UTF-8", path, key);
      map.emplace_back(key.starts_with('$') ? "$" + key : key,
                       encode(value, path.empty() ? key : path + "/" + key, depth + 1));
    }
    return {std::move(map)};
  }
};

class Decoder {
 public:
  explicit Decoder(const SafeTensors& file, const std::string& name) : file_(file), name_(name) {}
  Value decode(const Json& json) {
    if (auto* whole = json.as<int64_t>()) return *whole;
    if (auto* real = json.as<double>()) return *real;
    if (auto* flag = json.as<bool>()) return *flag;
    if (auto* text = json.as<std::string>()) return *text;
    if (auto* list = json.as<Json::List>()) {
      ValueList values;
      for (auto& entry : *list) values.push_back(decode(entry));
      return values;
    }
    if (auto* map = json.as<Json::Map>()) return this->map(*map);
    return Tensor();
  }

 private:
  Value map(const Json::Map& map) {
    if (map.size() == 1 && map[0].first.starts_with('$') && !map[0].first.starts_with("$$"))
      return special(map[0].first, map[0].second);
    State state;
    for (auto& [key, entry] : map) {
      check<FileError>(!key.starts_with('$') || key.starts_with("$$"), kStateOperation, "{}: an unexpected key '{}'",
                       name_, key);
      state.entries.push_back({key.starts_with('$') ? key.substr(1) : key, decode(entry)});
    }
    return state;
  }
  Value special(const std::string& kind, const Json& json) {
    const auto* text = json.as<std::string>();
    check<FileError>(text, kStateOperation, "{}: {} is no text", name_, kind);
    if (kind == "$tensor") return file_.read(*text);
    if (kind == "$complex") {
      Tensor pairs = file_.read(*text);
      check<FileError>(pairs.dim() > 0 && pairs.size(-1) == 2 && (pairs.dtype() == f32 || pairs.dtype() == f64),
                       kStateOperation, "{}: '{}' cannot be complex", name_, *text);
      return pairs.view_dtype(to_complex(pairs.dtype())).squeeze(-1);
    }
    uint64_t bits = 0;
    const char* end = text->data() + text->size();
    check<FileError>(kind == "$double" && std::from_chars(text->data(), end, bits, 16).ptr == end && !text->empty(),
                     kStateOperation, "{}: {} '{}' is not understood", name_, kind, *text);
    return std::bit_cast<double>(bits);
  }
  const SafeTensors& file_;
  const std::string& name_;
};

void write_state(Output& out, const State& state) {
  Encoder encoder;
  Json tree = encoder.encode(state, "", 0);
  Json whole(Json::Map{{"version", int64_t{1}}, {"state", std::move(tree)}});
  write_safetensors(out, encoder.tensors, {{kKey, to_json(whole)}});
}

State read_state(const SafeTensors& file, const std::string& name) {
  auto found = file.metadata().find(kKey);
  check<FileError>(found != file.metadata().end(), kStateOperation, "{} is a safetensors file but holds no state",
                   name);
  Json whole = parse_json(found->second, kStateOperation, name);
  const Json *version = whole.find("version"), *tree = whole.find("state");
  const int64_t* number = version ? version->as<int64_t>() : nullptr;
  check<FileError>(number && *number == 1, kStateOperation, "{}: its version of the format is not known here", name);
  check<FileError>(tree && tree->as<Json::Map>(), kStateOperation, "{} has no state", name);
  Value value = Decoder(file, name).decode(*tree);
  return value.as<State>();
}

struct StringOutput : Output {
  std::string bytes;
  void write(const void* data, size_t count) override { bytes.append(static_cast<const char*>(data), count); }
};

}  // namespace

State::State(std::initializer_list<Entry> list) : entries(list) {}
State::State() = default;
State::State(const State&) = default;
State::State(State&&) noexcept = default;
State& State::operator=(const State&) = default;
State& State::operator=(State&&) noexcept = default;
State::~State() = default;

const Value* State::find(std::string_view name) const {
  for (auto& entry : entries)
    if (entry.name == name) return &entry.value;
  return nullptr;
}

Value& State::operator[](std::string_view name) {
  for (auto& entry : entries)
    if (entry.name == name) return entry.value;
  return entries.emplace_back(Entry{std::string(name), Value()}).value;
}

const Value& State::operator[](std::string_view name) const {
  const Value* found = find(name);
  check<FileError>(found, kStateOperation, "there is no '{}'", name);
  return *found;
}

void Value::wrong_kind(const Value& wanted) const {
  constexpr const char* kinds[] = {"an integer", "a double", "a bool", "a string", "a tensor", "a list", "a state"};
  fail<FileError>(kStateOperation, "{} is wanted and {} is there", kinds[wanted.value.index()], kinds[value.index()]);
}

namespace detail {
void wrong_length(size_t length, size_t wanted) {
  fail<FileError>(kStateOperation, "a list of {} is wanted and one of {} is there", wanted, length);
}
void does_not_fit(int64_t number) { fail<FileError>(kStateOperation, "{} does not fit where it belongs", number); }
void no_alternative(int64_t index, size_t count) {
  fail<FileError>(kStateOperation, "there is no alternative {} of {}", index, count);
}
int64_t key_number(const std::string& text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, number);
  check<FileError>(stop == end && error == std::errc(), kStateOperation, "'{}' is no number, and keys here are", text);
  return number;
}
}  // namespace detail

namespace {
Value clone_value(const Value& value) {
  if (value.is<State>()) return clone(value.as<State>());
  if (value.is<ValueList>()) {
    ValueList list;
    for (const Value& entry : value.as<ValueList>()) list.push_back(clone_value(entry));
    return list;
  }
  if (value.is<Tensor>() && value.as<Tensor>().defined()) return value.as<Tensor>().detach().clone();
  return value;
}
}  // namespace

State clone(const State& state) {
  State copy;
  for (const Entry& entry : state.entries) copy.entries.push_back({entry.name, clone_value(entry.value)});
  return copy;
}

void save_state(const std::string& path, const State& state) {
  write_atomically(path, [&](Output& out) { write_state(out, state); });
}

State load_state(const std::string& path) { return read_state(SafeTensors(path), path); }

std::string state_to_bytes(const State& state) {
  StringOutput out;
  write_state(out, state);
  return std::move(out.bytes);
}

State state_from_bytes(std::string bytes, const std::string& name) {
  return read_state(SafeTensors(std::move(bytes), name), name);
}

}  // namespace tutti::io
