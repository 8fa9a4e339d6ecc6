#include "graph/backends/native/library.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>
#include <unordered_map>

#include "base/check.h"
#include "base/sha256.h"
#include "graph/backends/native/cache.h"
#include "graph/backends/native/module.h"

namespace tutti::graph::native {
namespace {

const char* isa_name() {
  constexpr const char* names[] = {"base", "v3", "v4"};
  return names[static_cast<int>(best_isa())];
}

// The functions of libtutti_native.so, which stays loaded for good.
struct Module {
  decltype(&tutti_native_identity) identity = nullptr;
  decltype(&tutti_native_compile) compile = nullptr;
  decltype(&tutti_native_load) load = nullptr;
  std::string problem;

  Module() {
    for (const std::string& path : places()) {
      void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (!handle) {
        problem += fmt::format("\n  {}", dlerror());
        continue;
      }
      identity = reinterpret_cast<decltype(identity)>(dlsym(handle, "tutti_native_identity"));
      compile = reinterpret_cast<decltype(compile)>(dlsym(handle, "tutti_native_compile"));
      load = reinterpret_cast<decltype(load)>(dlsym(handle, "tutti_native_load"));
      problem = !identity || !compile || !load ? path + " has not the functions of this version"
                : !*identity(isa_name())       ? fmt::format("{} has no code for this machine ({})", path, isa_name())
                                               : "";
      return;
    }
  }

  static std::vector<std::string> places() {
    if (const char* own = std::getenv("TUTTI_NATIVE")) return {own};
    std::vector<std::string> list;
    std::error_code error;
    Dl_info here;
    if (dladdr(reinterpret_cast<void*>(&unavailable), &here) && here.dli_fname)
      list.push_back(std::filesystem::absolute(here.dli_fname, error).parent_path());
    list.push_back(std::filesystem::read_symlink("/proc/self/exe", error).parent_path());
    list.push_back(list.back() + "/../lib");
    for (std::string& path : list) path += "/libtutti_native.so";
    list.push_back("libtutti_native.so");  // the program's RUNPATH, which CMake's targets bring along
    return list;
  }
};

const Module& module() {
  static const Module loaded;
  return loaded;
}

void take(void* to, const char* bytes, size_t count) { static_cast<std::string*>(to)->assign(bytes, count); }

std::string generate(const std::string& text, bool assembly) {
  std::string result;
  bool done = module().compile(text.data(), text.size(), isa_name(), assembly, take, &result);
  check<InternalError>(done, "compile", "LLVM refuses generated code: {}\n{}", result, text);
  return result;
}

std::string key_of(const std::string& text) {
  Sha256 hash;
  hash.update(TUTTI_VERSION).update(module().identity(isa_name())).update(isa_name()).update(text);
  std::string key;
  for (uint8_t b : hash.digest()) key += fmt::format("{:02x}", b);
  return key;
}

// One lock for all: ranks that are threads want the same kernels at the same time, and the second finds those of the
// first.
class Library {
 public:
  std::vector<Entry> find(const std::vector<Kernel>& kernels) {
    std::lock_guard lock(mutex_);
    std::vector<const Kernel*> missing;
    for (const Kernel& k : kernels)
      if (entries_.emplace(k.name, nullptr).second) missing.push_back(&k);
    try {
      if (!missing.empty()) add(missing);
    } catch (...) {
      for (const Kernel* k : missing) entries_.erase(k->name);
      throw;
    }
    std::vector<Entry> found;
    for (const Kernel& k : kernels) found.push_back(entries_.at(k.name));
    return found;
  }
  void forget() {
    std::lock_guard lock(mutex_);
    entries_.clear();
  }
  LibraryStats stats() {
    std::lock_guard lock(mutex_);
    stats_.kernels = static_cast<int64_t>(entries_.size());
    return stats_;
  }

 private:
  void add(const std::vector<const Kernel*>& kernels) {
    std::string text = write_module(kernels), key = key_of(text);
    Cache cache(cache_directory());
    auto object = cache.find(key);
    ++(object ? stats_.cached : stats_.generated);
    if (!object) {
      object = generate(text, false);
      cache.keep(key, *object);
    }
    std::vector<const char*> names;
    for (const Kernel* k : kernels) names.push_back(k->name.c_str());
    std::vector<void*> addresses(names.size());
    std::string error;
    bool done =
        module().load(object->data(), object->size(), names.data(), addresses.data(), names.size(), take, &error);
    check<InternalError>(done, "compile", "generated code could not be loaded: {}", error);
    for (size_t i = 0; i < kernels.size(); ++i) entries_[kernels[i]->name] = reinterpret_cast<Entry>(addresses[i]);
  }

  std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
  LibraryStats stats_;
};

Library& library() {
  static Library one;
  return one;
}

}  // namespace

const std::string& unavailable() { return module().problem; }
std::vector<Entry> find_entries(const std::vector<Kernel>& kernels) { return library().find(kernels); }
void forget_entries() { library().forget(); }
LibraryStats library_stats() { return library().stats(); }

std::string assembly_of(const std::vector<Kernel>& kernels) {
  std::vector<const Kernel*> list;
  for (const Kernel& k : kernels) list.push_back(&k);
  return generate(write_module(list), true);
}

}  // namespace tutti::graph::native
