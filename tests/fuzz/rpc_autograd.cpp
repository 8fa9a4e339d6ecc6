// What distributed autograd adds to calls and answers, as the worker that they come to takes it apart: the extension of
// a message, and what it says of the message's tensors.
#include <cstring>

#include "base/check.h"
#include "rpc/autograd/hooks.h"
#include "rpc/message.h"
#include "tests/fuzz/rpc_bytes.h"
#include "tests/support/fuzz.h"
#include "tutti/rpc.h"
#include "tutti/tutti.h"

namespace tutti::fuzz {
namespace {

using dist_autograd::detail::message_hooks;
using rpc::detail::Kind;
using rpc::detail::Message;
using rpc::detail::WireHeader;

// Its first context has the same number in every session.
std::string message_in_context(Kind kind, TensorList tensors) {
  rpc::Session session;
  dist_autograd::Context context;
  Message m;
  m.kind = kind;
  m.from = 0;
  m.number = 5;
  m.tensors = std::move(tensors);
  m.extension = message_hooks().outgoing(0, kind, m.tensors);
  check<InternalError>(!m.extension.empty(), "fuzz", "a message without an extension");
  return bytes_of(std::move(m));
}

Tensor leaf(const Shape& sizes) { return ones(sizes).requires_grad_(); }

}  // namespace

std::vector<std::string> seeds() {
  return {message_in_context(Kind::call, {leaf({2, 3})}), message_in_context(Kind::call, {arange(4)}),
          message_in_context(Kind::call, {leaf({2}), arange(3), Tensor(), leaf({1, 2})}),
          message_in_context(Kind::answer, {arange(3), leaf({2, 2}) * 2})};
}

// What it may do is to make tensors of the message require gradients, those that can, in a context that there is.
void target(const std::string& bytes) {
  WireHeader header;
  if (bytes.size() < sizeof header) return;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::string rest = bytes.substr(sizeof header);
  // Lengths that do not add up are found first; so that what is behind that is reached too, the extension takes what is
  // left where there are no data.
  uint64_t others = header.table_bytes + header.body_bytes;
  if (header.data_bytes == 0 && others >= header.body_bytes && others <= rest.size())
    header.extension_bytes = static_cast<uint32_t>(rest.size() - others);
  Message m = rpc::detail::unpack(header, rest, nullptr);
  rpc::Session session;
  dist_autograd::Context own;
  size_t count = m.tensors.size();
  for (Kind kind : {Kind::call, Kind::answer}) {
    TensorList tensors = m.tensors;
    Context inside = context();
    message_hooks().incoming(0, kind, m.extension, tensors, inside);
    check<InternalError>(tensors.size() == count, "fuzz", "a message lost tensors");
    for (const Tensor& t : tensors)
      if (t.defined() && t.requires_grad())
        check<InternalError>(is_differentiable(t.dtype()) && t.grad_node() != nullptr, "fuzz",
                             "a tensor requires a gradient that nobody can send back");
  }
}

}  // namespace tutti::fuzz
