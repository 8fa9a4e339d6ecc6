// What calls are made of on the caller's side, and the table of functions.
#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>

#include "base/check.h"
#include "base/names.h"
#include "rpc/agent.h"
#include "tutti/rpc/call.h"

namespace tutti::rpc {
namespace detail {
namespace {

const Function* first_function = nullptr;  // set before main() only, and when libraries are loaded

// FNV-1a. Two names with the same number are found out when a session starts.
uint64_t number_of(const char* key) {
  uint64_t hash = 14695981039346656037u;
  for (; *key; ++key) hash = (hash ^ static_cast<unsigned char>(*key)) * 1099511628211u;
  return hash;
}

using Table = std::unordered_map<uint64_t, const Function*>;

Table make_table() {
  Table table;
  for (const Function* f = first_function; f; f = f->next) {
    auto [it, fresh] = table.emplace(f->id, f);
    check<ValueError>(fresh || (it->second->run == f->run && std::strcmp(it->second->key, f->key) == 0), "rpc",
                      "two functions of this program cannot be told apart by messages: {} and {}. Give one of them "
                      "another name, or put it into a namespace",
                      demangle(it->second->key), demangle(f->key));
  }
  return table;
}

std::string place(const To::Where& where) { return fmt::format("{}:{}", where.file_name(), where.line()); }

const RefHandle& checked(const std::shared_ptr<RefHandle>& handle) {
  check<ValueError>(handle != nullptr, "RemoteRef",
                    "this reference is undefined: it was made by RemoteRef(), not by rpc::remote or rpc::share");
  return *handle;
}

/// "a<b, c>" of "a<b, c>, d" and of "a<b, c>>(...)".
std::string_view first_of_list(std::string_view list) {
  int depth = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    char c = list[i];
    if (depth == 0 && (c == ',' || c == '>' || c == ')')) return list.substr(0, i);
    depth += (c == '<' || c == '(') - (c == '>' || c == ')');
  }
  return list;
}

/// Waits until an object is made.
struct Touching {
  static void run(Reader& in, const Answer& answer) {
    answer.object(in, typeid(void));
    in.end();
    answer.send();
  }
};

}  // namespace

Function::Function(const char* key, Run run) noexcept
    : key(key), run(run), id(number_of(key)), next(std::exchange(first_function, this)) {}

// Libraries that are loaded later bring functions of their own.
const Function* find_function(uint64_t id) {
  static std::mutex mutex;
  static Table table;
  static const Function* known = nullptr;
  std::lock_guard lock(mutex);
  if (known != first_function) {
    table = make_table();
    known = first_function;
  }
  auto it = table.find(id);
  return it == table.end() ? nullptr : it->second;
}

void check_functions() { find_function(0); }

// "tutti::rpc::detail::Calling<&(forward(tutti::Tensor const&))>" → "forward(tutti::Tensor const&)"; of methods without
// the object's type, which is in their name; of the library's own what users call.
std::string function_name(const char* key) {
  std::string name = demangle(key);
  const std::string room = "tutti::rpc::detail::";
  if (!name.starts_with(room)) return name;
  size_t open = name.find('<');
  if (open == std::string::npos || !name.ends_with('>')) return name.substr(room.size());
  std::string inside = name.substr(open + 1, name.size() - open - 2);
  if (inside.starts_with("&(") && inside.ends_with(")")) inside = inside.substr(2, inside.size() - 3);
  std::string kind = name.substr(room.size(), open - room.size());
  if (kind == "Method") {
    std::string_view method = std::string_view(inside).substr(first_of_list(inside).size());
    size_t begin = method.find_first_not_of(", &(");
    if (begin != std::string_view::npos) inside = method.substr(begin);
  }
  const std::string hosted = room + "forward_hosted<", autograd = "tutti::dist_autograd::detail::";
  if (size_t at = inside.find(hosted); at != std::string::npos)
    return fmt::format("RemoteModule<{}>", first_of_list(std::string_view(inside).substr(at + hosted.size())));
  if (size_t at = inside.find(autograd); at != std::string::npos && at <= 1)
    return "dist_autograd's " + inside.substr(at + autograd.size());
  return kind == "Making" ? "the making of " + inside : kind == "Fetching" ? "to_here() of " + inside : inside;
}

// ---- Outgoing

struct Outgoing::State {
  std::shared_ptr<Agent> agent;
  CallPlan plan;
  std::string file;
  To::Where where;
  Message message;
};

Outgoing::Outgoing(const To& to, const Function& function) : state_(std::make_shared<State>()) {
  State& s = *state_;
  s.agent = Agent::current("rpc");
  s.where = to.where;
  s.plan = {s.agent->number_of(to), to.timeout,      false,        function.key,
            to.where.file_name(),   to.where.line(), std::string()};
  s.message.function = function.id;
}

Outgoing::Outgoing(const std::shared_ptr<RefHandle>& reference, To::Time timeout, const To::Where& where,
                   const Function& function)
    : state_(std::make_shared<State>()) {
  State& s = *state_;
  s.agent = checked(reference).agent();
  s.plan = {reference->id.owner, timeout, false, function.key, where.file_name(), where.line(), reference->made_at};
  s.message.function = function.id;
  Writer(s.message).reference(reference);
}

Outgoing::~Outgoing() = default;
Writer Outgoing::writer() const { return Writer(state_->message); }

void Outgoing::start(const std::shared_ptr<FutureCore>& result, bool waits) {
  state_->plan.waits = waits;
  state_->agent->call(state_->plan, std::move(state_->message), result);
}

std::shared_ptr<RefHandle> Outgoing::start_making(const std::shared_ptr<FutureCore>& result,
                                                  const std::type_info& type) {
  State& s = *state_;
  auto handle = s.agent->references().make(s.plan.to, short_name(type), place(s.where));
  handle->made = result;
  auto& references = s.message.references;
  references.insert(references.begin(), RefRecord{handle->id, kMaking, handle->type, handle->made_at, nullptr});
  start(result, false);
  return handle;
}

// ---- References

const Worker& owner_of(const std::shared_ptr<RefHandle>& handle) {
  return checked(handle).agent()->worker(handle->id.owner);
}

bool is_mine(const std::shared_ptr<RefHandle>& handle) {
  auto agent = checked(handle).agent();
  return handle->id.owner == agent->me();
}

void wait_for_object(const std::shared_ptr<RefHandle>& handle, const To::Where& where) {
  if (checked(handle).made) return handle->made->wait();
  Outgoing call(handle, {}, where, function<Touching>);
  auto result = std::make_shared<CallResult<void>>();
  call.start(result, true);
  result->wait();
}

std::shared_ptr<void> local_object(const std::shared_ptr<RefHandle>& handle, const std::type_info& type) {
  auto agent = checked(handle).agent();
  check<ValueError>(handle->id.owner == agent->me(), "local_value",
                    "the object is on worker '{}' and this is worker '{}': use to_here() for a copy",
                    agent->worker(handle->id.owner).name, agent->worker(agent->me()).name);
  return agent->references().get(handle->id, &type);
}

std::shared_ptr<RefHandle> share_object(std::shared_ptr<void> object, const std::type_info& type,
                                        const To::Where& where) {
  check<ValueError>(object != nullptr, "share", "there is no object");
  auto agent = Agent::current("share");
  auto handle = agent->references().make(agent->me(), short_name(type), place(where));
  agent->references().put({handle->id, kMaking, handle->type, handle->made_at, nullptr}, std::move(object), &type,
                          nullptr);
  return handle;
}

}  // namespace detail

void Writer::reference(const std::shared_ptr<detail::RefHandle>& handle) {
  number(handle != nullptr);
  if (!handle) return;
  handle->agent();  // lives
  message_.references.push_back({handle->id, 0, handle->type, handle->made_at, handle});
}

std::shared_ptr<detail::RefHandle> Reader::reference() {
  if (!detail::read_flag(*this)) return nullptr;
  if (references_ >= message_.references.size()) wrong("one more reference than there are");
  return message_.references[references_++].handle;
}

}  // namespace tutti::rpc
