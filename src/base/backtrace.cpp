#include "base/backtrace.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "base/names.h"

#ifdef TUTTI_HAVE_LIBBACKTRACE
#include <backtrace.h>
#endif

namespace tutti {
namespace {

// Frames of the library itself say nothing to a user about where they called it, nor do those that called main.
bool is_ours(std::string_view function, std::string_view file) {
  return function.starts_with("tutti::") || function.starts_with("__libc_start") || function == "_start" ||
         file.find("/include/tutti/") != std::string_view::npos ||
         function.find("tutti::detail::") != std::string_view::npos;
}

constexpr int kMostFrames = 64;
constexpr int kMostLines = 6;

struct Lines {
  std::string text;
  int count = 0;
  bool with_lines = false;
  void add(std::string_view function, std::string_view file, int line) {
    if (count >= kMostLines || is_ours(function, file)) return;
    ++count;
    with_lines = with_lines || !file.empty();
    text += file.empty() ? fmt::format("  in {}\n", function) : fmt::format("  {}:{} in {}\n", file, line, function);
  }
};

// Frames without files were compiled without debug information; who reads them should know how to get lines.
std::string finished(const Lines& lines) {
#ifdef TUTTI_HAVE_LIBBACKTRACE
  constexpr auto advice = "  (compile your program with -g1 to see files and lines here)\n";
#else
  constexpr auto advice = "  (this library was built without libbacktrace, which finds files and lines)\n";
#endif
  return lines.with_lines ? lines.text : lines.text + advice;
}

}  // namespace

#ifdef TUTTI_HAVE_LIBBACKTRACE

std::string backtrace_text() {
  static backtrace_state* state = backtrace_create_state(nullptr, 1, [](void*, const char*, int) {}, nullptr);
  Lines lines;
  backtrace_full(
      state, 1,
      [](void* data, uintptr_t pc, const char* file, int line, const char* function) {
        std::string name = function ? demangle(function) : "";
        Dl_info info{};
        if (name.empty() && dladdr(reinterpret_cast<void*>(pc), &info) && info.dli_sname)
          name = demangle(info.dli_sname);
        if (name.empty() && !file) return 0;
        static_cast<Lines*>(data)->add(name.empty() ? "?" : name, file ? file : "", line);
        return 0;
      },
      [](void*, const char*, int) {}, &lines);
  return finished(lines);
}

#else

std::string backtrace_text() {
  void* frames[kMostFrames];
  int count = backtrace(frames, kMostFrames);
  Lines lines;
  for (int i = 1; i < count; ++i) {
    Dl_info info{};
    if (dladdr(frames[i], &info) && info.dli_sname) lines.add(demangle(info.dli_sname), "", 0);
  }
  return finished(lines);
}

#endif

}  // namespace tutti
