#include "comm/launch/errors.h"

#include "base/check.h"
#include "comm/launch/launch.h"
#include "tutti/comm/group.h"
#include "tutti/context.h"

// Derived classes before their bases.
// clang-format off
#define TUTTI_ERROR_CLASSES(X) \
  X(MismatchError) \
  X(RankFailure) \
  X(DeadlockError) \
  X(TimeoutError) \
  X(CancelledError) \
  X(InjectedError) \
  X(ShapeError) \
  X(DTypeError) \
  X(DeviceError) \
  X(IndexError) \
  X(ValueError) \
  X(VersionError) \
  X(GradError) \
  X(MemoryError) \
  X(FileError) \
  X(StoreError) \
  X(ConnectionError) \
  X(InternalError) \
  X(Error)
// clang-format on

namespace tutti::comm {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    std::string text = e.what(), prefix = fmt::format("[rank {}] ", e.rank());
    return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

std::string class_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
#define TUTTI_CATCH(Class) \
  }                        \
  catch (const Class&) {   \
    return #Class;
    TUTTI_ERROR_CLASSES(TUTTI_CATCH)
#undef TUTTI_CATCH
  } catch (...) {
    return "";
  }
}

void rethrow_copy(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
#define TUTTI_COPY(Class)  \
  }                        \
  catch (const Class& e) { \
    throw Class(text_of(error), e.operation()); /* said of the rank that throws it */
    TUTTI_ERROR_CLASSES(TUTTI_COPY)
#undef TUTTI_COPY
  }
}

void rethrow_as(const std::string& kind, int rank, const std::string& text) {
  if (kind != "RankFailure") {
    Context mine = context();
    mine.rank = rank;  // errors know where they were made
    ContextGuard guard(mine);
#define TUTTI_THROW(Class) \
  if (kind == #Class) throw Class(text, "");
    TUTTI_ERROR_CLASSES(TUTTI_THROW)
#undef TUTTI_THROW
  }
  fail<RankFailure>("", "rank {} failed: {}", rank, text);
}

void rethrow_with(const std::exception_ptr& error, const std::string& beginning) {
  std::string text = beginning + text_of(error), kind = class_of(error);
#define TUTTI_THROW(Class) \
  if (kind == #Class) throw Class(text, "");
  TUTTI_ERROR_CLASSES(TUTTI_THROW)
#undef TUTTI_THROW
  try {
    std::rethrow_exception(error);
  } catch (...) {
    std::throw_with_nested(Error(text, ""));
  }
}

}  // namespace tutti::comm
