// Between the library and libtutti_native.so, which holds LLVM and is loaded when code is first generated: three C
// functions. Code travels as text (LLVM's assembly language) and comes back as object files.
#pragma once

#include <cstddef>

extern "C" {

/// Is given bytes, once; or, where a function returns false, the text of an error.
using tutti_native_take = void (*)(void* to, const char* bytes, size_t count);

/// Everything but its text and `isa` (base, v3 or v4) that generated code depends on: versions of LLVM and of the
/// primitives; empty if there are no primitives for this instruction set.
const char* tutti_native_identity(const char* isa);
/// Links the text with the primitives it calls, optimises it and makes an object file; or assembly for people.
bool tutti_native_compile(const char* text, size_t size, const char* isa, bool assembly, tutti_native_take take,
                          void* to);
/// Makes an object file part of the process, for good, and finds functions in it.
bool tutti_native_load(const char* object, size_t size, const char* const* names, void** addresses, size_t count,
                       tutti_native_take take, void* to);
}
