// The protocol of the TCP store, as a server meets it: before the secret is proven (first byte even) and after it.
#include <algorithm>

#include "base/check.h"
#include "comm/store/session.h"
#include "tests/support/fuzz.h"

namespace tutti::fuzz {
namespace {

using store::Op;

const std::string kSecret = "secret";
const Digest kServerNonce{1}, kClientNonce{2};

std::string claim() { return store::make_claim(kSecret, store::make_greeting(kServerNonce), kClientNonce); }

std::string frames(const std::vector<store::Request>& requests) {
  std::string bytes;
  uint64_t number = 0;
  for (auto& request : requests) store::put_frame(bytes, ++number, request);
  store::put_take_back(bytes, number);
  return bytes;
}

// Everything that is answered must be a reply that a client understands, and no more than the bounds allow.
void check_output(store::Session& session, store::Frames& answers, bool proven) {
  std::string_view output = session.output();
  TUTTI_ASSERT(output.size() <= (proven ? store::kMaxOutput : store::kGreetingBytes + store::kAnswerBytes));
  if (proven) answers.add(output);
  session.sent(output.size());
  for (auto frame = answers.next(); !frame.empty(); frame = answers.next()) {
    store::Reply reply;
    TUTTI_ASSERT(decode(frame.substr(8), reply));
  }
  TUTTI_ASSERT(!answers.broken());
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<store::Request> all = {{.op = Op::set, .keys = {"a", "b"}, .values = {"1", "text"}},
                                     {.op = Op::get, .keys = {"a", "b"}},
                                     {.op = Op::add, .number = 5, .keys = {"a"}},
                                     {.op = Op::compare_and_set, .keys = {"a"}, .values = {"6", "7"}},
                                     {.op = Op::append, .keys = {"a"}, .values = {"8"}},
                                     {.op = Op::pop, .keys = {"q"}},
                                     {.op = Op::push, .keys = {"q"}, .values = {"item"}},
                                     {.op = Op::push, .keys = {"q"}, .values = {"item"}},
                                     {.op = Op::queue_size, .keys = {"q"}},
                                     {.op = Op::count, .keys = {""}},
                                     {.op = Op::list, .keys = {""}},
                                     {.op = Op::erase, .keys = {"a"}},
                                     {.op = Op::clear, .keys = {""}}};
  std::vector<store::Request> waits = {{.op = Op::wait, .keys = {"x", "y"}},
                                       {.op = Op::pop, .keys = {"q"}},
                                       {.op = Op::get, .waits = false, .keys = {"x"}},
                                       {.op = Op::get, .keys = {"y"}},
                                       {.op = Op::set, .keys = {"y", "x"}, .values = {"", "1"}},
                                       {.op = Op::wait, .keys = {"never"}}};
  return {'\0' + claim(), '\1' + frames(all), '\1' + frames(waits), '\3' + frames(waits) + frames(all)};
}

void target(const std::string& bytes) {
  if (bytes.empty()) return;
  bool proven = bytes[0] & 1;
  size_t piece = 1 + static_cast<unsigned char>(bytes[0]) / 2 * 37;
  store::Board board;
  store::Session other(board, kSecret, kServerNonce, [] {});  // whose requests wait for what the first one does
  store::Session session(board, kSecret, kServerNonce, [] {});
  store::Frames answers, other_answers;
  for (auto* one : {&session, &other}) {
    TUTTI_ASSERT(one->wanted() == store::kClaimBytes);
    if (!proven) continue;
    TUTTI_ASSERT(one->receive(claim()) && one->proven());
    one->sent(one->output().size());
  }
  if (proven) other.receive(frames({{.op = Op::wait, .keys = {"a", "x"}}, {.op = Op::pop, .keys = {"q"}}}));
  bool alive = true;
  for (std::string_view rest = std::string_view(bytes).substr(1); alive && !rest.empty();) {
    size_t count = std::min({piece, rest.size(), session.wanted()});
    TUTTI_ASSERT(count > 0);  // all output was sent, so it must want something
    alive = session.receive(rest.substr(0, count));
    rest.remove_prefix(count);
    do check_output(session, answers, proven);
    while (alive && session.wanted() == 0 && (alive = session.proceed()));
    check_output(other, other_answers, proven);
    if (!proven && session.proven()) break;  // the claim was right: the next phase has seeds of its own
  }
}

}  // namespace tutti::fuzz
