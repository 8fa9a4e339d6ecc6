#include "graph/backends/native/bitcode.h"

#include <cstddef>

#define TUTTI_EMBED(name, file)                                                              \
  asm(".section .rodata\n.balign 16\n"                                                       \
      ".global " #name "\n.hidden " #name "\n" #name ":\n.incbin \"" file                    \
      "\"\n"                                                                                 \
      ".global " #name "_end\n.hidden " #name "_end\n" #name "_end:\n.byte 0\n.previous\n"); \
  extern "C" __attribute__((visibility("hidden"))) const char name[], name##_end[];

TUTTI_EMBED(tutti_bitcode_base, TUTTI_BITCODE_BASE)
#ifdef TUTTI_BITCODE_V3
TUTTI_EMBED(tutti_bitcode_v3, TUTTI_BITCODE_V3)
#endif
#ifdef TUTTI_BITCODE_V4
TUTTI_EMBED(tutti_bitcode_v4, TUTTI_BITCODE_V4)
#endif

namespace tutti::native {

Level level_of(std::string_view isa) {
  if (isa == "base")
    return {{tutti_bitcode_base, static_cast<size_t>(tutti_bitcode_base_end - tutti_bitcode_base)}, TUTTI_BASE_CPU};
#ifdef TUTTI_BITCODE_V3
  if (isa == "v3")
    return {{tutti_bitcode_v3, static_cast<size_t>(tutti_bitcode_v3_end - tutti_bitcode_v3)}, "x86-64-v3"};
#endif
#ifdef TUTTI_BITCODE_V4
  if (isa == "v4")
    return {{tutti_bitcode_v4, static_cast<size_t>(tutti_bitcode_v4_end - tutti_bitcode_v4)}, "x86-64-v4"};
#endif
  return {};
}

const char* bitcode_hash() { return TUTTI_BITCODE_HASH; }

}  // namespace tutti::native
