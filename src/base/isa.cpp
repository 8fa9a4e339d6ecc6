#include "base/isa.h"

#include <cstdlib>
#include <string_view>

namespace tutti {
namespace {

Isa detect() {
  Isa found = Isa::base;
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512cd");
  found = v4 ? Isa::v4 : v3 ? Isa::v3 : Isa::base;
#endif
  // Note [Kernels for one machine] in cmake/TuttiIsa.cmake.
  constexpr std::string_view built = TUTTI_ISA_BUILT;
  if (built != "all") {
    constexpr Isa only = built == "v4" ? Isa::v4 : Isa::v3;
    found = found >= only ? only : Isa::base;
  }
  const char* wish = std::getenv("TUTTI_ISA");
  if (wish && std::string_view(wish) == "base") return Isa::base;
  if (wish && std::string_view(wish) == "v3" && found > Isa::v3) return built == "all" ? Isa::v3 : Isa::base;
  return found;
}

}  // namespace

Isa best_isa() {
  static const Isa isa = detect();
  return isa;
}

}  // namespace tutti
