// What distributed autograd adds to messages: Note [What travels with a call].
#pragma once

#include "rpc/message.h"

namespace tutti::dist_autograd::detail {

const rpc::detail::MessageHooks& message_hooks();

}  // namespace tutti::dist_autograd::detail
