#include <algorithm>
#include <cstring>
#include <span>

#include "base/check.h"
#include "comm/transport/exchange.h"

namespace tutti::comm {
namespace {

constexpr int64_t kFirst = 256 << 10;  // bytes of a part that go before it is known whether they are wanted

// What is for a rank goes to it directly: what can be in the first message, and then the rest.
class PartsExchange final : public Exchange {
 public:
  PartsExchange(const ExchangeContext& c, const Call& call)
      : c_(c), call_(call), n_(static_cast<int>(c.layout.host_of.size())), me_(c.layout.me) {}

  void begin() override {
    come_.tentative = sent_.tentative = !confirmed_;
    begun_ = true;
    move(0, come_, sent_);
  }
  bool has_first() const override { return come_.done(); }
  void confirm(const std::vector<CallFacts>&) override { confirmed_ = true; }
  void run() override {
    if (!begun_) begin();
    Pending rest;
    move(1, rest, rest);
    move_here();
    for (int k = 0; k < n_; ++k)
      if (remote(k) && bytes(takes(k)) > kFirst) {
        c_.count_round();
        break;
      }
    for (Pending* p : {&come_, &sent_, &rest}) c_.await(*p);
    if (come_.misfit)
      tutti::fail<ConnectionError>(comm::name(call_.kind), "a message of a length that cannot be has come from a rank");
  }
  void abandon() override {
    for (const WireName& name : expected_) c_.wire.unreceive(name);
    c_.await(sent_);
  }

 private:
  static Piece part(const Pieces& list, int k) {
    if (list.empty()) return {};
    return list[list.size() == 1 ? 0 : index(k)];
  }
  bool scatters() const { return call_.kind == Kind::scatter; }
  Piece takes(int k) const { return !scatters() || k == call_.root ? part(call_.out, k) : Piece{}; }
  Piece given(int k) const { return !scatters() || me_ == call_.root ? part(call_.in, k) : Piece{}; }
  bool remote(int k) const { return c_.layout.host_of[index(k)] != c_.layout.here(); }
  int64_t bytes(const Piece& p) const { return p.count * static_cast<int64_t>(size_of(call_.dtype)); }

  // Message 0: the first bytes; message 1: all others.
  void move(uint64_t message, Pending& come, Pending& sent) {
    auto piece = [&](const Piece& p) -> std::span<std::byte> {
      int64_t first = std::min(bytes(p), kFirst);
      return message == 0 ? std::span(bytes_at(p), index(first))
                          : std::span(bytes_at(p) + first, index(bytes(p) - first));
    };
    auto name = [&](int from) {
      return WireName{c_.group, c_.first_part + message, c_.ranks[index(from)], Channel::part};
    };
    for (int k = 0; k < n_; ++k)
      if (auto to = piece(takes(k)); remote(k) && !to.empty()) {
        if (!confirmed_) expected_.push_back(name(k));
        c_.wire.receive(name(k), to.data(), to.size(), come);
      }
    for (int step = 1; step < n_; ++step) {
      int k = (me_ + step) % n_;
      if (auto from = piece(given(k)); remote(k) && !from.empty())
        c_.wire.send(c_.ranks[index(k)], name(me_), from.data(), from.size(), sent);
    }
  }

  void move_here() {
    if (!c_.inner) {
      if (Piece p = given(me_), q = takes(me_); p.count && q.count && p.data != q.data)
        std::memcpy(q.data, p.data, index(bytes(p)));
      return;
    }
    Pieces in, out;
    const auto& local = c_.layout.local();
    for (int k : local) {
      in.push_back({given(k).data, bytes(given(k))});
      out.push_back({takes(k).data, bytes(takes(k))});
    }
    auto rank = static_cast<int>(std::find(local.begin(), local.end(), me_) - local.begin());
    Call parts{.kind = Kind::all_to_all,
               .dtype = DType::u8,
               .in = std::move(in),
               .out = std::move(out),
               .place = call_.place,
               .purpose = call_.purpose};
    c_.inner->run(rank, std::move(parts), c_.time_left());
  }

  const ExchangeContext c_;
  const Call& call_;
  const int n_, me_;
  bool begun_ = false, confirmed_ = false;
  std::vector<WireName> expected_;
  Pending come_, sent_;
};

}  // namespace

std::unique_ptr<Exchange> make_parts_exchange(const ExchangeContext& context, const Call& call) {
  return std::make_unique<PartsExchange>(context, call);
}

}  // namespace tutti::comm
