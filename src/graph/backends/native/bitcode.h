// The pointwise formulas as LLVM bitcode (see primitives.h), embedded in libtutti_native.so. Apart from what uses LLVM,
// since it is compiled anew whenever a formula changes.
#pragma once

#include <string_view>

namespace tutti::native {

struct Level {
  std::string_view bitcode = {};  // empty: there is none for this instruction set
  const char* cpu = "";
};
/// Of base, v3 or v4.
Level level_of(std::string_view isa);
/// Differs where the bitcode does.
const char* bitcode_hash();

}  // namespace tutti::native
