#include "comm/transport/exchange.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "comm/transport/streams.h"

namespace tutti::comm {
namespace {

constexpr int64_t kPart = 256 << 10;  // bytes of a slice that go in one round
constexpr int64_t kWindow = 4;        // rounds that are on their way at once
constexpr int64_t kAlign = 64;        // slices begin at multiples of these bytes

using Bytes = std::vector<std::byte>;

// Subtrees lie one behind the other where numbers of any dtype are aligned.
int64_t padded(int64_t bytes) { return (bytes + 15) / 16 * 16; }

class SliceExchange final : public Exchange {
 public:
  SliceExchange(const ExchangeContext& c, const Call& call, const std::vector<CallFacts>& calls);
  void begin() override;
  bool has_first() const override { return rounds_[0].given->done() && (contributes_ || rounds_[0].results->done()); }
  void confirm(const std::vector<CallFacts>& calls) override;
  void run() override;
  void abandon() override;

 private:
  struct Range {
    int64_t begin, bytes;  // within the slice
  };
  /// What a round has in memory.
  struct Round {
    std::unique_ptr<Pending> given = std::make_unique<Pending>(), results = std::make_unique<Pending>();
    std::unique_ptr<Pending> sent = std::make_unique<Pending>();  // from memory of the round
    std::vector<Bytes> raw;   // of each rank of this host: its parts of the slices that this rank carries
    Bytes packed;             // results of these slices
    Bytes partials;           // what is sent to owners
    std::vector<Bytes> come;  // of each host: what it sent for this rank's slice
  };

  Range range(int k, int64_t round) const {
    int64_t begin = std::min(round * kPart, length_[index(k)]);
    return {begin, std::min(begin + kPart, length_[index(k)]) - begin};
  }
  bool gives(int rank) const { return reduces_ || rank == call_.root; }
  bool host_gives(int host) const { return contributes_ && (reduces_ || host == root_host_); }
  bool wants(int host) const;
  bool shares() const { return c_.inner != nullptr; }
  int global(int rank) const { return c_.ranks[index(rank)]; }
  WireName name(int from, Channel channel, int64_t round) const {
    return {c_.group, c_.first_part + static_cast<uint64_t>(round), global(from), channel};
  }
  int64_t given_bytes(int host, int64_t bytes) const;
  int64_t offset_in_packed(int local, int k, int64_t round) const;

  int64_t rounds() const;
  void learn(const std::vector<CallFacts>& calls);
  void start(int64_t round);
  void hand_out(Round& r, int64_t round);
  void receive(const WireName& name, std::byte* to, int64_t bytes, Pending& pending);
  void send(int to, const WireName& name, const std::byte* data, int64_t bytes, Round& r, bool of_round);
  const std::byte* raw(const Round& r, int local, int k, int64_t round) const;
  void send_partials(Round& r, int64_t round);
  void finish(int64_t round);
  std::byte* result(Round& r, int k, int64_t round);
  void combine(Round& r, int64_t round);
  void give_result(Round& r, int64_t round);
  void gather(Round& r, int64_t round);
  void local_call(Kind kind, Pieces in, Pieces out);

  const ExchangeContext c_;
  const Call& call_;
  const Layout& layout_;
  const int n_, me_;
  bool confirmed_ = false;
  int64_t begun_ = 0, tentative_ = 0;  // rounds
  std::vector<WireName> expected_;     // tentative messages
  bool reduces_ = false;               // slices are reduced, or only passed on
  bool contributes_ = false;           // owners get their slices from others
  int root_host_ = 0;
  std::vector<int64_t> length_;                 // bytes of each slice
  std::vector<const std::byte*> from_;          // this rank's part of each, if it gives one
  std::vector<std::byte*> to_;                  // where the results belong, null where not wanted
  Bytes staged_;                                // lists of tensors, as one
  std::vector<std::vector<int>> carried_;       // of each rank of this host: slices
  std::vector<int> position_;                   // of each rank in the tree by which they are added
  std::vector<std::vector<Subtree>> subtrees_;  // of each host, of positions
  Reduction reduction_;
  std::vector<double> factors_;
  std::array<Round, kWindow> rounds_;
  Pending first_sends_, sends_;  // from memory of the call
};

bool SliceExchange::wants(int host) const {
  switch (call_.kind) {
    case Kind::all_reduce:
    case Kind::all_gather:
      return true;
    case Kind::broadcast:
      return host != root_host_ || shares();
    case Kind::reduce:
    case Kind::gather:
      return host == root_host_;
    default:
      return false;
  }
}

SliceExchange::SliceExchange(const ExchangeContext& c, const Call& call, const std::vector<CallFacts>& calls)
    : c_(c),
      call_(call),
      layout_(c.layout),
      n_(static_cast<int>(calls.size())),
      me_(c.layout.me),
      reduces_(reduces_something(call.kind)),
      contributes_(reduces_ || call.kind == Kind::broadcast),
      root_host_(has_root(call.kind) ? c.layout.host_of[index(call.root)] : -1),
      length_(index(n_), 0),
      from_(index(n_), nullptr),
      to_(index(n_), nullptr) {
  learn(calls);
  auto element = static_cast<int64_t>(size_of(call.dtype));
  if (call.kind == Kind::reduce_scatter) {
    for (int k = 0; k < n_; ++k) {
      length_[index(k)] = call.in[index(k)].count * element;
      from_[index(k)] = bytes_at(call.in[index(k)]);
    }
    to_[index(me_)] = bytes_at(call.out[0]);
  } else if (contributes_) {
    const Pieces& source = call.kind == Kind::broadcast ? call.out : call.in;
    int64_t total = 0;
    for (const Piece& p : call.out) total += p.count * element;
    const std::byte* in = bytes_at(source[0]);
    std::byte* out = bytes_at(call.out[0]);
    if (call.out.size() > 1) {
      staged_.resize(index(total));
      in = out = staged_.data();
      std::byte* to = staged_.data();
      for (const Piece& p : source) {
        if (p.count && gives(me_)) std::memcpy(to, p.data, index(p.count * element));
        to += p.count * element;
      }
    }
    int64_t each = ((total + n_ - 1) / n_ + kAlign - 1) / kAlign * kAlign;
    for (int k = 0; k < n_; ++k) {
      int64_t begin = std::min(k * each, total);
      length_[index(k)] = std::min(begin + each, total) - begin;
      from_[index(k)] = in + begin;
      if (call.kind != Kind::reduce || me_ == call.root) to_[index(k)] = out + begin;
    }
  } else {
    from_[index(me_)] = bytes_at(call.in[0]);
    if (call.kind == Kind::all_gather || me_ == call.root)
      for (int k = 0; k < n_; ++k) to_[index(k)] = bytes_at(call.out[index(k)]);
  }
  for (int local : layout_.local()) {
    carried_.emplace_back();
    for (int k = 0; k < n_; ++k)
      if (layout_.carrier(layout_.here(), k) == local) carried_.back().push_back(k);
  }
  for (int h = 0; h < layout_.hosts(); ++h) {
    std::vector<bool> mine(index(n_), false);
    for (int r : layout_.members[index(h)]) mine[index(position_[index(r)])] = true;
    subtrees_.push_back(reduces_ ? whole_subtrees(mine) : std::vector<Subtree>{{0, 1}});
  }
}

// What the others' facts say.
void SliceExchange::learn(const std::vector<CallFacts>& calls) {
  Streams s = plan_streams(call_, me_, calls);
  reduction_ = s.reduction;
  std::vector<int> turns;  // who comes when in the tree
  for (const auto& members : layout_.members) turns.insert(turns.end(), members.begin(), members.end());
  if (!call_.fastest) std::iota(turns.begin(), turns.end(), 0);
  position_.resize(index(n_));
  for (int k = 0; k < n_; ++k) position_[index(turns[index(k)])] = k;
  factors_.clear();
  for (size_t k = 0; k < s.factors.size(); ++k) factors_.push_back(s.factors[index(turns[k])]);
  reduction_.factors = factors_;
  // Gathering: a slice is what its owner gives.
  if (!contributes_)
    for (int k = 0; k < n_; ++k) length_[index(k)] = calls[index(k)].header.bytes;
}

void SliceExchange::confirm(const std::vector<CallFacts>& calls) {
  learn(calls);
  confirmed_ = true;
  expected_.clear();
}

int64_t SliceExchange::rounds() const {
  return (*std::max_element(length_.begin(), length_.end()) + kPart - 1) / kPart;
}

void SliceExchange::receive(const WireName& name, std::byte* to, int64_t bytes, Pending& pending) {
  if (!confirmed_) expected_.push_back(name);
  c_.wire.receive(name, to, index(bytes), pending);
}

void SliceExchange::send(int to, const WireName& name, const std::byte* data, int64_t bytes, Round& r, bool of_round) {
  c_.wire.send(global(to), name, data, index(bytes), of_round ? *r.sent : confirmed_ ? sends_ : first_sends_);
}

void SliceExchange::begin() {
  first_sends_.tentative = true;
  for (int64_t end = std::min(kWindow, rounds()); begun_ < end; ++begun_) start(begun_);
  tentative_ = begun_;
}

void SliceExchange::abandon() {
  for (const WireName& name : expected_) c_.wire.unreceive(name);
  c_.await(first_sends_);
  for (Round& r : rounds_) c_.await(*r.sent);
}

// What a host sends for a part of that many bytes.
int64_t SliceExchange::given_bytes(int host, int64_t bytes) const {
  auto element = static_cast<int64_t>(size_of(call_.dtype)),
       wide = static_cast<int64_t>(size_of(combining_dtype(call_.dtype)));
  if (layout_.members[index(host)].size() == 1 || !reduces_) return bytes;
  int64_t sum = 0;
  for (const Subtree& t : subtrees_[index(host)])
    sum += t.hi - t.lo == 1 ? padded(bytes) : padded(bytes / element * wide);
  return sum;
}

// Slices that one rank carries lie one behind the other.
int64_t SliceExchange::offset_in_packed(int local, int k, int64_t round) const {
  int64_t offset = 0;
  for (int c : carried_[index(local)]) {
    if (c == k) break;
    offset += range(c, round).bytes;
  }
  return offset;
}

void SliceExchange::local_call(Kind kind, Pieces in, Pieces out) {
  const auto& local = layout_.local();
  auto rank = static_cast<int>(std::find(local.begin(), local.end(), me_) - local.begin());
  Call call{.kind = kind,
            .dtype = DType::u8,
            .in = std::move(in),
            .out = std::move(out),
            .place = call_.place,
            .purpose = call_.purpose};
  c_.inner->run(rank, std::move(call), c_.time_left());
}

void SliceExchange::run() {
  for (int64_t i = 0, end = rounds(); i < end; ++i) {
    for (; begun_ < std::min(end, i + kWindow); ++begun_) start(begun_);
    finish(i);
  }
  c_.await(first_sends_);
  c_.await(sends_);
  if (!staged_.empty() && (call_.kind != Kind::reduce || me_ == call_.root)) {
    const std::byte* from = staged_.data();
    for (const Piece& p : call_.out) {
      auto bytes = index(p.count) * size_of(call_.dtype);
      if (bytes) std::memcpy(p.data, from, bytes);
      from += bytes;
    }
  }
}

void SliceExchange::start(int64_t round) {
  Round& r = rounds_[index(round % kWindow)];
  int64_t mine = range(me_, round).bytes;
  for (Pending* p : {r.given.get(), r.results.get(), r.sent.get()}) p->tentative = !confirmed_;
  r.come.resize(index(layout_.hosts()));
  if (contributes_ && mine > 0)
    for (int h = 0; h < layout_.hosts(); ++h)
      if (h != layout_.here() && host_gives(h)) {
        r.come[index(h)].resize(index(given_bytes(h, mine)));
        receive(name(layout_.carrier(h, me_), Channel::give, round), r.come[index(h)].data(), given_bytes(h, mine),
                *r.given);
      }
  const auto& local = layout_.local();
  auto at = std::find(local.begin(), local.end(), me_) - local.begin();
  if (shares()) {
    int64_t all = 0;
    for (int k : carried_[index(at)]) all += range(k, round).bytes;
    r.packed.resize(index(all));
  }
  // The host of a broadcast's root has everything already.
  bool receives = wants(layout_.here()) && !(call_.kind == Kind::broadcast && layout_.here() == root_host_);
  if (receives)
    for (int k : carried_[index(at)])
      if (layout_.host_of[index(k)] != layout_.here() && range(k, round).bytes > 0)
        receive(name(k, Channel::result, round), result(r, k, round), range(k, round).bytes, *r.results);
  if (host_gives(layout_.here())) {
    if (shares()) hand_out(r, round);
    send_partials(r, round);
  }
  if (!contributes_ && mine > 0) give_result(r, round);
}

// Where the result of a part goes first: to its place, or where this rank's are packed for the others of its host.
std::byte* SliceExchange::result(Round& r, int k, int64_t round) {
  const auto& local = layout_.local();
  auto at = static_cast<int>(std::find(local.begin(), local.end(), me_) - local.begin());
  if (shares() && call_.kind != Kind::reduce_scatter) return r.packed.data() + offset_in_packed(at, k, round);
  if (to_[index(k)]) return to_[index(k)] + range(k, round).begin;
  // The owner of a slice that only the root wants.
  r.packed.resize(index(range(k, round).bytes));
  return r.packed.data();
}

// Through shared memory: each rank of this host gets what the others have of the slices that it carries.
void SliceExchange::hand_out(Round& r, int64_t round) {
  const auto& local = layout_.local();
  Bytes out;
  std::vector<int64_t> counts;
  for (size_t j = 0; j < local.size(); ++j) {
    int64_t count = 0;
    for (int k : carried_[j]) {
      Range part = range(k, round);
      if (gives(me_) && part.bytes) {
        const std::byte* from = from_[index(k)] + part.begin;
        out.insert(out.end(), from, from + part.bytes);
        count += part.bytes;
      }
    }
    counts.push_back(count);
  }
  auto at = std::find(local.begin(), local.end(), me_) - local.begin();
  int64_t mine = 0;
  for (int k : carried_[index(at)]) mine += range(k, round).bytes;
  Pieces in, to;
  r.raw.resize(local.size());
  std::byte* from = out.data();
  for (size_t j = 0; j < local.size(); ++j) {
    in.push_back({from, counts[j]});
    from += counts[j];
    r.raw[j].resize(gives(local[j]) ? index(mine) : 0);
    to.push_back({r.raw[j].data(), static_cast<int64_t>(r.raw[j].size())});
  }
  local_call(Kind::all_to_all, std::move(in), std::move(to));
}

const std::byte* SliceExchange::raw(const Round& r, int local, int k, int64_t round) const {
  if (!shares()) return from_[index(k)] + range(k, round).begin;
  const auto& members = layout_.local();
  auto at = static_cast<int>(std::find(members.begin(), members.end(), me_) - members.begin());
  return r.raw[index(local)].data() + offset_in_packed(at, k, round);
}

void SliceExchange::send_partials(Round& r, int64_t round) {
  const auto& local = layout_.local();
  auto at = std::find(local.begin(), local.end(), me_) - local.begin();
  auto element = static_cast<int64_t>(size_of(call_.dtype));
  const auto& subtrees = subtrees_[index(layout_.here())];
  int64_t room = 0;
  for (int k : carried_[index(at)])
    if (layout_.host_of[index(k)] != layout_.here()) room += given_bytes(layout_.here(), range(k, round).bytes);
  if (shares()) r.partials.resize(index(room));
  std::byte* to = r.partials.data();
  for (int k : carried_[index(at)]) {
    int64_t bytes = range(k, round).bytes;
    if (layout_.host_of[index(k)] == layout_.here() || bytes == 0) continue;
    if (!shares()) {  // as it is: nobody reads beyond it
      send(k, name(me_, Channel::give, round), raw(r, 0, k, round), bytes, r, false);
      continue;
    }
    const std::byte* begin = to;
    if (!reduces_) {
      auto root = std::find(local.begin(), local.end(), call_.root) - local.begin();
      std::memcpy(to, raw(r, static_cast<int>(root), k, round), index(bytes));
      to += bytes;
    } else {
      std::vector<const void*> sources(index(n_), nullptr);
      for (size_t j = 0; j < local.size(); ++j)
        sources[index(position_[index(local[j])])] = raw(r, static_cast<int>(j), k, round);
      for (const Subtree& t : subtrees) {
        if (t.hi - t.lo == 1) {
          std::memcpy(to, sources[t.lo], index(bytes));
          to += padded(bytes);
        } else {
          reduce_part(reduction_, sources, t.lo, t.hi, to, bytes / element);
          to += padded(bytes / element * static_cast<int64_t>(size_of(combining_dtype(call_.dtype))));
        }
      }
    }
    send(k, name(me_, Channel::give, round), begin, to - begin, r, true);
  }
}

// The owner's part: its slice is made of what all hosts have of it.
void SliceExchange::combine(Round& r, int64_t round) {
  Range part = range(me_, round);
  std::byte* to = result(r, me_, round);
  const auto& local = layout_.local();
  if (!contributes_) {
    std::memmove(to, from_[index(me_)] + part.begin, index(part.bytes));
    return;
  }
  if (!reduces_) {
    const std::byte* from = nullptr;
    if (layout_.here() == root_host_)
      from = raw(r, static_cast<int>(std::find(local.begin(), local.end(), call_.root) - local.begin()), me_, round);
    else
      from = r.come[index(root_host_)].data();
    std::memmove(to, from, index(part.bytes));
    return;
  }
  auto element = static_cast<int64_t>(size_of(call_.dtype)),
       wide = static_cast<int64_t>(size_of(combining_dtype(call_.dtype)));
  std::vector<const void*> sources(index(n_), nullptr);
  std::vector<Partial> partials;
  for (size_t j = 0; j < local.size(); ++j)
    sources[index(position_[index(local[j])])] = raw(r, static_cast<int>(j), me_, round);
  for (int h = 0; h < layout_.hosts(); ++h) {
    if (h == layout_.here()) continue;
    const std::byte* from = r.come[index(h)].data();
    for (const Subtree& t : subtrees_[index(h)]) {
      bool leaf = t.hi - t.lo == 1;
      if (leaf)
        sources[t.lo] = from;
      else
        partials.push_back({t.lo, t.hi, from});
      from += padded(leaf ? part.bytes : part.bytes / element * wide);
    }
  }
  void* target = to;
  reduce_into(reduction_, sources, {&target, 1}, part.bytes / element, partials);
}

void SliceExchange::give_result(Round& r, int64_t round) {
  combine(r, round);
  bool of_round = shares() || !to_[index(me_)];
  for (int h = 0; h < layout_.hosts(); ++h) {
    bool has = call_.kind == Kind::broadcast && h == root_host_;
    if (h != layout_.here() && wants(h) && !has)
      send(layout_.carrier(h, me_), name(me_, Channel::result, round), result(r, me_, round), range(me_, round).bytes,
           r, of_round);
  }
}

void SliceExchange::finish(int64_t round) {
  Round& r = rounds_[index(round % kWindow)];
  bool waited = round < tentative_;  // for what others sent without waiting for anything
  if (contributes_ && !waited) c_.count_round();
  c_.await(*r.given);
  if (contributes_ && range(me_, round).bytes > 0) give_result(r, round);
  if (wants(layout_.here()) && (contributes_ || !waited)) c_.count_round();
  c_.await(*r.results);
  if (shares() && wants(layout_.here()) && call_.kind != Kind::reduce_scatter) gather(r, round);
  c_.await(*r.sent);
  if (r.given->misfit || r.results->misfit)
    tutti::fail<ConnectionError>(comm::name(call_.kind), "a message of a length that cannot be has come from a rank");
}

void SliceExchange::gather(Round& r, int64_t round) {
  const auto& local = layout_.local();
  // On the host of a broadcast's root, carriers have their parts from the root.
  if (call_.kind == Kind::broadcast && layout_.here() == root_host_) {
    auto at = std::find(local.begin(), local.end(), me_) - local.begin();
    auto root = std::find(local.begin(), local.end(), call_.root) - local.begin();
    for (int k : carried_[index(at)])
      if (Range part = range(k, round); part.bytes)
        std::memcpy(result(r, k, round), raw(r, static_cast<int>(root), k, round), index(part.bytes));
  }
  std::vector<Bytes> come(local.size());
  Pieces out;
  for (size_t j = 0; j < local.size(); ++j) {
    int64_t bytes = 0;
    for (int k : carried_[j]) bytes += range(k, round).bytes;
    come[j].resize(index(bytes));
    out.push_back({come[j].data(), bytes});
  }
  Pieces in;
  in.push_back({r.packed.data(), static_cast<int64_t>(r.packed.size())});
  local_call(Kind::all_gather, std::move(in), std::move(out));
  for (size_t j = 0; j < local.size(); ++j) {
    const std::byte* from = come[j].data();
    for (int k : carried_[j]) {
      Range part = range(k, round);
      if (part.bytes && to_[index(k)]) std::memcpy(to_[index(k)] + part.begin, from, index(part.bytes));
      from += part.bytes;
    }
  }
}

}  // namespace

std::unique_ptr<Exchange> make_exchange(const ExchangeContext& context, const Call& call,
                                        const std::vector<CallFacts>& calls) {
  if (call.kind == Kind::scatter || call.kind == Kind::all_to_all) return make_parts_exchange(context, call);
  return std::make_unique<SliceExchange>(context, call, calls);
}

std::optional<std::vector<CallFacts>> assume(const std::vector<std::optional<CallFacts>>& known) {
  const CallFacts* first = nullptr;
  for (const auto& c : known)
    if (c && !first) first = &*c;
  // What all ranks know alike need not be compared by what each gives another.
  for (const auto& c : known) {
    if (c && first->header.kind == Kind::all_gather && c->out != first->out) return {};
    if (c && first->header.kind == Kind::reduce_scatter && c->in != first->in) return {};
  }
  auto element = static_cast<int64_t>(size_of(first->header.dtype));
  std::vector<CallFacts> calls;
  for (size_t k = 0; k < known.size(); ++k) {
    if (known[k]) {
      calls.push_back(*known[k]);
      continue;
    }
    CallFacts other{first->header};
    int64_t given = 0;
    other.in.resize(known.size());
    other.out.resize(known.size());
    other.in_shapes.assign(known.size(), 0);  // of none, which fits all
    other.out_shapes.assign(known.size(), 0);
    for (size_t j = 0; j < known.size(); ++j)
      if (known[j]) {
        other.in[j] = known[j]->out.empty() ? 0 : known[j]->out[k];
        other.out[j] = known[j]->in.empty() ? 0 : known[j]->in[k];
        given = std::max(given, other.in[j]);
      }
    if (first->header.kind == Kind::all_gather || first->header.kind == Kind::gather)
      other.header.bytes = given * element;
    calls.push_back(std::move(other));
  }
  std::vector<int> names(known.size());
  std::iota(names.begin(), names.end(), 0);
  if (find_mismatch(calls, names, 0)) return {};
  return calls;
}

}  // namespace tutti::comm
