// Errors on their way between processes: by the name of their class, and their text.
#pragma once

#include <exception>
#include <string>

namespace tutti::comm {

/// "" for classes that are not Tutti's.
std::string class_of(const std::exception_ptr& error);
/// Throws an error of that class, or a RankFailure that says whose error it was.
[[noreturn]] void rethrow_as(const std::string& kind, int rank, const std::string& text);

/// Throws the error, as an object of the calling thread's own where its class is Tutti's: what one thread made and
/// another looks at is freed by either, in an order that tools cannot see.
[[noreturn]] void rethrow_copy(const std::exception_ptr& error);

/// Throws an error of the same class (of those that are not Tutti's: an Error that holds it nested) whose text begins
/// so.
[[noreturn]] void rethrow_with(const std::exception_ptr& error, const std::string& beginning);

}  // namespace tutti::comm
