// What of a call a graph depends on, as bytes that are compared, and as text for people.
#pragma once

#include "tensor/impl.h"
#include "tutti/compile.h"

namespace tutti::detail {

/// Whether its memory is there.
bool readable(const TensorImpl* t);
void append_context(std::string& key);
/// -1: there is none.
int64_t batch_of(const Invocation& call);
void append_tensor(std::string& key, const Tensor& x, int64_t batch);
void append_sharing(std::string& key, const TensorList& arguments, const TensorList& watched);
std::vector<std::string> facts_of(const Invocation& call);

}  // namespace tutti::detail
