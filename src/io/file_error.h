#pragma once
#include "tutti/error.h"
namespace tutti {
struct FileError : Error {
  using Error::Error;
};
}  // namespace tutti
