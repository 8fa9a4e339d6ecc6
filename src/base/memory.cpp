#include "base/memory.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "base/check.h"

#if defined(TUTTI_SANITIZE_ADDRESS) || defined(TUTTI_SANITIZE_THREAD)
// Pools would hide use-after-free from the sanitizers.
#define TUTTI_POOLS 0
#else
#define TUTTI_POOLS 1
#endif

namespace tutti::memory {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kLarge = size_t{32} << 10;                 // below: per-thread lists; from here on: the shared cache
constexpr size_t kHuge = size_t{2} << 20;                   // from here: huge pages are asked for
[[maybe_unused]] constexpr size_t kKeep = size_t{2} << 20;  // bytes that a thread keeps in its lists

// A counter that many threads change. A thread has a cell of its own while there are any, which nobody else writes:
// then counting is no atomic addition, of which an operator would otherwise pay a dozen. The others share the last
// cell.
struct alignas(64) Cell {
  std::atomic<int64_t> value{0};
};
constexpr unsigned kCells = 32, kSharedCell = kCells - 1, kNoCell = kCells;
std::array<Cell, kCells> in_use;
std::atomic<uint32_t> cells_taken{uint32_t{1} << kSharedCell};
std::atomic<int64_t> cached{0};
std::atomic<int64_t> peak{0};

// Plain thread-locals with constant initialisers: reading them is one instruction.
thread_local constinit unsigned own_cell = kNoCell;
struct CellGuard {  // what a thread has counted stays in its cell, and the next thread that takes it counts on
  ~CellGuard() {
    if (own_cell != kSharedCell) cells_taken.fetch_and(~(uint32_t{1} << own_cell), std::memory_order_release);
    own_cell = kSharedCell;
  }
};
[[gnu::noinline]] unsigned take_cell() {
  static thread_local CellGuard guard;
  (void)guard;
  uint32_t taken = cells_taken.load(std::memory_order_relaxed);
  unsigned cell;
  do {
    cell = static_cast<unsigned>(std::countr_one(taken));
    if (cell == kCells) return own_cell = kSharedCell;
  } while (!cells_taken.compare_exchange_weak(taken, taken | uint32_t{1} << cell, std::memory_order_acquire));
  return own_cell = cell;
}
// To a number that only this thread writes.
void add_alone(std::atomic<int64_t>& value, int64_t bytes) {
  value.store(value.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
}
unsigned cell_index() { return own_cell == kNoCell ? take_cell() : own_cell; }
void count(int64_t bytes) {
  unsigned cell = cell_index();
  auto& value = in_use[cell].value;
  if (cell != kSharedCell)
    add_alone(value, bytes);
  else
    value.fetch_add(bytes, std::memory_order_relaxed);
}

// Only large blocks are worth looking at all cells.
void note_peak() {
  int64_t now = statistics().bytes_in_use, most = peak.load(std::memory_order_relaxed);
  while (now > most && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

// Of bytes that have been counted as in use.
void* from_system(size_t bytes) {
  size_t align = bytes >= kHuge ? kHuge : kAlign;
  void* block = std::aligned_alloc(align, (bytes + align - 1) / align * align);
  if (!block) {
    empty_cache();
    block = std::aligned_alloc(align, (bytes + align - 1) / align * align);
  }
  if (!block) {
    count(-static_cast<int64_t>(bytes));
    auto gibibytes = [](auto n) { return static_cast<double>(n) / 0x1p30; };
    fail<MemoryError>("allocate", "out of memory: {} bytes ({:.1f} GiB) were asked for, {:.1f} GiB are in use", bytes,
                      gibibytes(bytes), gibibytes(statistics().bytes_in_use));
  }
  if (bytes >= kHuge) madvise(block, bytes, MADV_HUGEPAGE);
  return block;
}

#if TUTTI_POOLS

struct FreeBlock {
  FreeBlock* next;
};

enum class ListState : uint8_t { fresh, alive, gone };

// Small sizes come in classes: multiples of 64 up to 2 KiB, from there on four to a doubling.
constexpr size_t kFine = 2048, kFineClasses = kFine / 64, kClasses = kFineClasses + 1 + 4 * 4;
constexpr size_t class_of(size_t bytes) {
  if (bytes <= kFine) return (bytes + 63) / 64;
  size_t doubling = static_cast<size_t>(std::bit_width((bytes - 1) / kFine)) - 1;  // 0 for 2 to 4 KiB
  size_t step = kFine / 4 << doubling;
  return kFineClasses + 4 * doubling + (bytes - (kFine << doubling) + step - 1) / step;
}
constexpr size_t class_bytes(size_t index) {
  if (index <= kFineClasses) return index * 64;
  size_t doubling = (index - kFineClasses - 1) / 4, part = (index - kFineClasses - 1) % 4 + 1;
  return (kFine << doubling) + part * (kFine / 4 << doubling);
}
static_assert(class_bytes(class_of(2049)) == 2560 && class_bytes(class_of(2560)) == 2560 &&
              class_bytes(class_of(4096)) == 4096 && class_bytes(class_of(4097)) == 5120 &&
              class_bytes(class_of(32768)) == 32768 && class_of(32768) < kClasses);

struct SmallLists {
  std::array<FreeBlock*, kClasses> head{};
  size_t bytes = 0;
  std::atomic<int64_t>* own_count = nullptr;  // of a thread that has a cell of its own, until it ends
  void clear() {
    for (auto& first : head)
      while (FreeBlock* block = first) {
        first = block->next;
        std::free(block);
      }
    bytes = 0;
  }
};
// Emptied by a guard object whose destructor runs at thread exit; blocks freed after that go straight to the system.
thread_local constinit SmallLists lists{};
thread_local constinit ListState state = ListState::fresh;
struct ExitGuard {
  ~ExitGuard() {
    lists.own_count = nullptr;
    lists.clear();
    state = ListState::gone;
  }
};
[[gnu::noinline]] void arm_exit_guard() {
  if (state != ListState::fresh) return;
  unsigned cell = cell_index();  // whose guard goes after this one
  static thread_local ExitGuard guard;
  (void)guard;
  state = ListState::alive;
  if (cell != kSharedCell) lists.own_count = &in_use[cell].value;
}

// What nearly all blocks are, in few instructions: small, and of a thread that has a cell of its own. Null where it is
// otherwise, or the list is empty.
inline void* allocate_quickly(size_t bytes) {
  SmallLists& mine = lists;
  if (!mine.own_count || bytes - 1 >= kFine) return nullptr;
  size_t index = (bytes + 63) / 64;
  FreeBlock* block = mine.head[index];
  if (!block) return nullptr;
  mine.head[index] = block->next;
  mine.bytes -= index * 64;
  add_alone(*mine.own_count, static_cast<int64_t>(index * 64));
  return block;
}
inline bool release_quickly(void* block, size_t bytes) {
  SmallLists& mine = lists;
  if (!mine.own_count || bytes - 1 >= kFine || mine.bytes >= kKeep) return false;
  size_t index = (bytes + 63) / 64;
  auto* free_block = static_cast<FreeBlock*>(block);
  free_block->next = mine.head[index];
  mine.head[index] = free_block;
  mine.bytes += index * 64;
  add_alone(*mine.own_count, -static_cast<int64_t>(index * 64));
  return true;
}

// Sizes are rounded up to an eighth of a power of two, so that a list's blocks fit all its users.
size_t large_class(size_t bytes) {
  size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

struct LargeBlock {
  void* memory;
  unsigned user;  // who released it
};
// Who comes for a block gets the last that it has released itself, if there is one among the newest: threads of several
// devices that each took the other's would take them from the caches of each other's cores.
void* take(std::vector<LargeBlock>& blocks, unsigned user) {
  auto end = blocks.rbegin() + static_cast<std::ptrdiff_t>(std::min<size_t>(blocks.size(), 32));
  auto found = std::find_if(blocks.rbegin(), end, [&](const LargeBlock& b) { return b.user == user; });
  auto it = std::prev((found == end ? blocks.rbegin() : found).base());
  void* memory = it->memory;
  blocks.erase(it);
  return memory;
}

struct LargeCache {
  std::mutex mutex;
  std::map<size_t, std::vector<LargeBlock>> blocks;
  int64_t limit;
  LargeCache() {
    const char* text = std::getenv("TUTTI_CACHE_MB");
    limit = (text ? std::atoll(text) : 4096) << 20;
  }
};
LargeCache& large_cache() {
  static auto* cache = new LargeCache;  // never destroyed: tensors in static storage may outlive any order
  return *cache;
}

#endif

[[gnu::noinline]] void* allocate_somehow(size_t bytes) {
  if (bytes == 0) bytes = 1;
#if TUTTI_POOLS
  if (bytes < kLarge) {
    size_t index = class_of(bytes), size = class_bytes(index);
    count(static_cast<int64_t>(size));
    if (FreeBlock* block = lists.head[index]) {
      lists.head[index] = block->next;
      lists.bytes -= size;
      return block;
    }
    if (state == ListState::fresh) arm_exit_guard();
    return from_system(size);
  }
  size_t size = large_class(bytes);
  count(static_cast<int64_t>(size));
  note_peak();
  auto& cache = large_cache();
  {
    std::lock_guard lock(cache.mutex);
    auto it = cache.blocks.find(size);
    if (it != cache.blocks.end() && !it->second.empty()) {
      void* block = take(it->second, cell_index());
      cached.fetch_sub(static_cast<int64_t>(size), std::memory_order_relaxed);
      return block;
    }
  }
  return from_system(size);
#else
  count(static_cast<int64_t>(bytes));
  if (bytes >= kLarge) note_peak();
  return from_system(bytes);
#endif
}

[[gnu::noinline]] void release_somehow(void* block, size_t bytes) noexcept {
  if (bytes == 0) bytes = 1;
#if TUTTI_POOLS
  if (bytes < kLarge) {
    size_t index = class_of(bytes), size = class_bytes(index);
    count(-static_cast<int64_t>(size));
    if (lists.bytes < kKeep && state != ListState::gone) {
      if (state == ListState::fresh) arm_exit_guard();
      auto* free_block = static_cast<FreeBlock*>(block);
      free_block->next = lists.head[index];
      lists.head[index] = free_block;
      lists.bytes += size;
      return;
    }
    std::free(block);
    return;
  }
  auto size = static_cast<int64_t>(large_class(bytes));
  count(-size);
  auto& cache = large_cache();
  if (cached.load(std::memory_order_relaxed) + size > cache.limit) {
    std::free(block);
    return;
  }
  std::lock_guard lock(cache.mutex);
  cache.blocks[static_cast<size_t>(size)].push_back({block, cell_index()});
  cached.fetch_add(size, std::memory_order_relaxed);
#else
  count(-static_cast<int64_t>(bytes));
  std::free(block);
#endif
}

}  // namespace

void* allocate(size_t bytes) {
#if TUTTI_POOLS
  if (void* block = allocate_quickly(bytes)) [[likely]]
    return block;
#endif
  return allocate_somehow(bytes);
}

void release(void* block, size_t bytes) noexcept {
  if (!block) return;
#if TUTTI_POOLS
  if (release_quickly(block, bytes)) [[likely]]
    return;
#endif
  release_somehow(block, bytes);
}

Statistics statistics() {
  int64_t total = 0;
  for (auto& cell : in_use) total += cell.value.load(std::memory_order_relaxed);
  return {total, cached.load(std::memory_order_relaxed), std::max(total, peak.load(std::memory_order_relaxed))};
}
void reset_peak() { peak.store(statistics().bytes_in_use, std::memory_order_relaxed); }

void empty_cache() {
#if TUTTI_POOLS
  lists.clear();
  auto& cache = large_cache();
  std::lock_guard lock(cache.mutex);
  for (auto& [size, blocks] : cache.blocks)
    for (const LargeBlock& block : blocks) {
      cached.fetch_sub(static_cast<int64_t>(size), std::memory_order_relaxed);
      std::free(block.memory);
    }
  cache.blocks.clear();
#ifdef __GLIBC__
  // malloc takes blocks below its threshold for maps, which grows to 32 MiB, from its heaps, and keeps what is freed
  // there.
  malloc_trim(0);
#endif
#endif
}

}  // namespace tutti::memory
