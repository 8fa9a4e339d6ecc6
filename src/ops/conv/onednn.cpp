// Convolution by oneDNN, in f32. Primitives are made once for each problem and kept.
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <shared_mutex>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "ops/blocked/blocked.h"
#include "ops/conv/problem.h"

namespace tutti::convolution {
namespace {

using dnnl::memory;

// Never destroyed, like the cache below: threads may still be at work when the program ends.
dnnl::engine& engine() {
  static auto* cpu = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *cpu;
}

// oneDNN works with as many threads as OpenMP would give the calling thread, when it makes a primitive and when it runs
// one; both must be the caller's share.
class Threads {
 public:
  explicit Threads(int share) : saved_(omp_get_max_threads()), share_(share) {
    if (share_ != saved_) omp_set_num_threads(share_);
  }
  ~Threads() {
    if (share_ != saved_) omp_set_num_threads(saved_);
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int saved_, share_;
};

class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes), data_(bytes ? tutti::memory::allocate(bytes) : nullptr) {}
  ~Buffer() {
    if (data_) tutti::memory::release(data_, bytes_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }

 private:
  size_t bytes_;
  void* data_;
};

memory::dims dims_of(const Shape& s) { return {s.begin(), s.end()}; }

// oneDNN 3 takes what describes an operation in the constructor of primitive_desc; oneDNN 2 in an object of its own.
#if DNNL_VERSION_MAJOR >= 3
memory::dims dims_of(const memory::desc& d) { return d.get_dims(); }
template <class Primitive, class... Hint, class... Description>
auto describe(const dnnl::primitive_attr& attr, const std::tuple<Hint...>& hint, const Description&... description) {
  return std::apply(
      [&](const auto&... h) { return typename Primitive::primitive_desc(engine(), description..., h..., attr); }, hint);
}
#else
memory::dims dims_of(const memory::desc& d) { return d.dims(); }
template <class Primitive, class... Hint, class... Description>
auto describe(const dnnl::primitive_attr& attr, const std::tuple<Hint...>& hint, const Description&... description) {
  return std::apply(
      [&](const auto&... h) {
        return typename Primitive::primitive_desc(typename Primitive::desc(description...), attr, engine(), h...);
      },
      hint);
}
#endif

// Of an image under its sizes, maybe with channels in blocks.
bool in_blocks(const Tensor& t, const Shape& sizes) { return t.sizes().size() != sizes.size(); }
memory::desc image_desc(const Tensor& t, const Shape& sizes) {
  if (in_blocks(t, sizes)) return {dims_of(sizes), memory::data_type::f32, memory::format_tag::nChw16c};
  return {dims_of(sizes), memory::data_type::f32, dims_of(t.strides())};
}

// Between channels-last and oneDNN's layout with channels in blocks: whole blocks change places, faster than by its own
// reordering.
struct Blocks {
  int64_t batch = 0, pixels = 0, count = 0;
  int width = 0;  // of a block; 0: there are none

  void copy(const float* from, float* to, bool from_blocks) const {
    constexpr int64_t kPixels = 64;  // at a time: the far ends of the copies stay in the cache
    int64_t tiles = (pixels + kPixels - 1) / kPixels;
    parallel_for(batch * tiles, 4, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        int64_t first = unit % tiles * kPixels, last = std::min(pixels, first + kPixels);
        int64_t image = unit / tiles * pixels * count * width;
        for (int64_t b = 0; b < count; ++b)
          if (width == 16)
            copy_tile<16>(from + image, to + image, b, first, last, from_blocks);
          else
            copy_tile<8>(from + image, to + image, b, first, last, from_blocks);
      }
    });
  }

 private:
  template <int N>
  void copy_tile(const float* from, float* to, int64_t b, int64_t first, int64_t last, bool from_blocks) const {
    for (int64_t i = first; i < last; ++i) {
      int64_t blocked = (b * pixels + i) * N, plain = (i * count + b) * N;
      std::memcpy(to + (from_blocks ? plain : blocked), from + (from_blocks ? blocked : plain), N * sizeof(float));
    }
  }
};

// An operand of a primitive: how it lies in the tensor, how the primitive wants it, and the way between.
struct Slot {
  memory::desc given, wanted;
  std::optional<dnnl::reorder> reorder;
  memory::desc scratchpad;  // of the reorder
  Blocks blocks;            // instead of it, where the layouts are these
  bool written = false;

  bool copied() const { return reorder || blocks.width; }

  void connect(bool result, bool last) {
    written = result;
    if (given == wanted || find_blocks(last)) return;
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    dnnl::reorder::primitive_desc pd(engine(), result ? wanted : given, engine(), result ? given : wanted, attr);
    reorder.emplace(pd);
    scratchpad = pd.scratchpad_desc();
  }
  bool find_blocks(bool last) {
    memory::dims d = dims_of(given);
    if (!last || d.size() != 4) return false;
    for (auto [width, tag] : {std::pair(16, memory::format_tag::nChw16c), std::pair(8, memory::format_tag::nChw8c)})
      if (d[1] % width == 0 && wanted == memory::desc(d, memory::data_type::f32, tag))
        blocks = {d[0], d[2] * d[3], d[1] / width, width};
    return blocks.width;
  }
  void run(memory& from, memory& to) const;
};

// All that a problem needs, made once. Immutable after that, so threads may share it: the scratchpad is each caller's
// own.
struct Prepared {
  dnnl::primitive primitive;
  Slot x{}, w{}, y{};
  std::optional<memory::desc> bias;
  memory::desc scratchpad;
  bool possible = false;
};

// Weights of a convolution in groups have the groups as a dim of their own.
memory::desc weight_desc(const Problem& p, const Shape& strides) {
  memory::dims dims = dims_of(p.w), steps = dims_of(strides);
  if (p.groups > 1) {
    dims[0] /= p.groups;
    dims.insert(dims.begin(), p.groups);
    steps.insert(steps.begin(), steps[0] * dims[1]);
  }
  return {dims, memory::data_type::f32, steps};
}

memory::desc any_layout(const memory::desc& d) { return {dims_of(d), memory::data_type::f32, memory::format_tag::any}; }

// Makes the primitive of a problem.
class Maker {
 public:
  Maker(const Problem& p, const Operands& o) : p_(p), o_(o) {
    attr_.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    for (auto& d : dilation_) --d;
  }

  // `free`: oneDNN chooses the layouts of x and y. Else they are channels-last.
  Prepared make(dnnl::algorithm algorithm, bool free) {
    Prepared r;
    r.x.given = image_desc(o_.x, p_.x);
    r.y.given = image_desc(o_.y, p_.y);
    r.w.given = weight_desc(p_, o_.w.strides());
    memory::desc x = free ? any_layout(r.x.given) : channels_last_desc(p_.x),
                 y = free ? any_layout(r.y.given) : channels_last_desc(p_.y), w = any_layout(r.w.given);
    switch (p_.pass) {
      case Pass::forward:
        make_forward(r, algorithm, x, w, y);
        break;
      case Pass::data: {
        using Data = dnnl::convolution_backward_data;
        auto pd = describe<Data>(attr_, std::tuple(hint(algorithm, x, w, y)), algorithm, x, w, y, stride_, dilation_,
                                 padding_, padding_);
        take(r, pd, pd.diff_src_desc(), pd.weights_desc(), pd.diff_dst_desc());
        r.primitive = Data(pd);
        break;
      }
      case Pass::weight: {
        using Weights = dnnl::convolution_backward_weights;
        auto pd = describe<Weights>(attr_, std::tuple(hint(algorithm, x, w, y)), algorithm, x, w, y, stride_, dilation_,
                                    padding_, padding_);
        take(r, pd, pd.src_desc(), pd.diff_weights_desc(), pd.diff_dst_desc());
        r.primitive = Weights(pd);
        break;
      }
    }
    r.x.connect(p_.pass == Pass::data, is_channels_last(o_.x));
    r.w.connect(p_.pass == Pass::weight, false);
    r.y.connect(p_.pass == Pass::forward, is_channels_last(o_.y));
    r.possible = true;
    return r;
  }

 private:
  using Forward = dnnl::convolution_forward;

  static memory::desc channels_last_desc(const Shape& sizes) {
    return {dims_of(sizes), memory::data_type::f32,
            sizes.size() == 4 ? memory::format_tag::nhwc : memory::format_tag::ndhwc};
  }
  Forward::primitive_desc hint(dnnl::algorithm algorithm, const memory::desc& x, const memory::desc& w,
                               const memory::desc& y) {
    return describe<Forward>(attr_, std::tuple(), dnnl::prop_kind::forward_training, algorithm, x, w, y, stride_,
                             dilation_, padding_, padding_);
  }
  void make_forward(Prepared& r, dnnl::algorithm algorithm, const memory::desc& x, const memory::desc& w,
                    const memory::desc& y) {
    // For inference, Winograd wants weights that are transformed before, by a slow reordering.
    auto kind = dnnl::prop_kind::forward_training;
    if (o_.bias.defined()) r.bias = memory::desc({p_.w[0]}, memory::data_type::f32, memory::format_tag::a);
    auto pd = r.bias ? describe<Forward>(attr_, std::tuple(), kind, algorithm, x, w, *r.bias, y, stride_, dilation_,
                                         padding_, padding_)
                     : describe<Forward>(attr_, std::tuple(), kind, algorithm, x, w, y, stride_, dilation_, padding_,
                                         padding_);
    take(r, pd, pd.src_desc(), pd.weights_desc(), pd.dst_desc());
    r.primitive = Forward(pd);
  }
  template <class Description>
  static void take(Prepared& r, const Description& pd, const memory::desc& x, const memory::desc& w,
                   const memory::desc& y) {
    r.x.wanted = x;
    r.w.wanted = w;
    r.y.wanted = y;
    r.scratchpad = pd.scratchpad_desc();
  }

  const Problem& p_;
  const Operands& o_;
  memory::dims stride_ = dims_of(p_.stride), padding_ = dims_of(p_.padding), dilation_ = dims_of(p_.dilation);
  dnnl::primitive_attr attr_;
};

// Note [Winograd]: 3×3 kernels of stride 1 on enough channels and pixels are computed on tiles of 4×4 results with 36
// instead of 144 products each. Measured with 32 to 256 channels it takes less than half of the time, and results are
// off by 2 to 8 millionths of the largest instead of a few ten millionths. An infinity or NaN spoils its whole tile.
// TUTTI_WINOGRAD=0 turns it off.
bool suits_winograd(const Problem& p) {
  static const bool allowed = [] {
    const char* setting = std::getenv("TUTTI_WINOGRAD");
    return !setting || std::string_view(setting) != "0";
  }();
  bool suits = allowed && p.spatial() == 2 && p.groups == 1 && p.x[1] >= 32 && p.y[1] >= 32;
  for (size_t d = 0; suits && d < 2; ++d)
    suits = p.w[d + 2] == 3 && p.stride[d] == 1 && p.dilation[d] == 1 && p.padding[d] <= 1;
  // With few tiles the transformation of the weights costs more than is won: measured even at 16.
  return suits && p.y[0] * ((p.y[2] + 3) / 4) * ((p.y[3] + 3) / 4) >= 32;
}

// The gradient of 1×1 weights with a stride, of fewer than 16 channels that lie last: with several threads oneDNN 2.6
// writes up to 1,200 bytes beyond its scratchpad. With layouts of its own choice it does not.
bool overruns(const Problem& p) {
  bool one = true, strided = false;
  for (size_t d = 0; d < static_cast<size_t>(p.spatial()); ++d) {
    one = one && p.w[d + 2] == 1;
    strided = strided || p.stride[d] > 1;
  }
  return p.pass == Pass::weight && one && strided && p.w[1] < 16;
}

// What Winograd's transformed tiles may take.
constexpr size_t kMostScratch = size_t{1} << 29;

Prepared prepare(const Problem& p, const Operands& o) {
  auto attempt = [&](dnnl::algorithm algorithm, bool free) -> Prepared {
    try {
      return Maker(p, o).make(algorithm, free);
    } catch (const dnnl::error& e) {
      if (e.status != dnnl_unimplemented && e.status != dnnl_invalid_arguments) throw;
      return {};
    }
  };
  if (suits_winograd(p)) {
    Prepared r = attempt(dnnl::algorithm::convolution_winograd, true);
    if (r.possible && r.scratchpad.get_size() <= kMostScratch) return r;
  }
  // Channels-last stays as it is, and costs no reordering; for contiguous tensors oneDNN chooses the layout (with
  // channels in blocks), which is worth the reordering: plain nchw takes 2-3 times as long.
  bool last = is_channels_last(o.x) || is_channels_last(o.y);
  return attempt(dnnl::algorithm::convolution_direct, !last || overruns(p));
}

// ---- The cache

using Key = std::vector<int64_t>;
struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t h = 1469598103934665603u;
    for (int64_t v : key) h = (h ^ static_cast<uint64_t>(v)) * 1099511628211u;
    return h;
  }
};

Key key_of(const Problem& p, const Operands& o, int threads) {
  Key key;
  key.reserve(32);
  key.push_back(static_cast<int64_t>(p.pass) | is_channels_last(o.x) << 2 | is_channels_last(o.w) << 3 |
                is_channels_last(o.y) << 4 | o.bias.defined() << 5 | in_blocks(o.x, p.x) << 6 |
                in_blocks(o.y, p.y) << 7);
  key.push_back(threads);
  key.push_back(p.groups);
  for (const Shape* s : {&p.x, &p.w, &p.y, &p.stride, &p.padding, &p.dilation})
    key.insert(key.end(), s->begin(), s->end());
  return key;
}

// Shapes that vary without end must not fill the memory.
constexpr size_t kMostPrepared = 1024;

// What `make` makes, once for each key.
template <class T, class Make>
std::shared_ptr<const T> kept(Key key, Make&& make) {
  static auto& mutex = *new std::shared_mutex;
  static auto& cache = *new std::unordered_map<Key, std::shared_ptr<const T>, KeyHash>;
  {
    std::shared_lock lock(mutex);
    if (auto it = cache.find(key); it != cache.end()) return it->second;
  }
  auto fresh = std::make_shared<const T>(make());
  std::unique_lock lock(mutex);
  if (cache.size() >= kMostPrepared) cache.clear();
  return cache.emplace(std::move(key), std::move(fresh)).first->second;
}

std::shared_ptr<const Prepared> prepared(const Problem& p, const Operands& o, int threads) {
  return kept<Prepared>(key_of(p, o, threads), [&] { return prepare(p, o); });
}

// ---- Running

dnnl::stream& stream() {
  thread_local dnnl::stream s(engine());
  return s;
}

void Slot::run(memory& from, memory& to) const {
  if (blocks.width) {
    auto *source = static_cast<float*>(from.get_data_handle()), *target = static_cast<float*>(to.get_data_handle());
    return blocks.copy(source, target, written);
  }
  Buffer scratch(scratchpad.get_size());
  reorder->execute(
      stream(),
      {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, memory(scratchpad, engine(), scratch.data())}});
  stream().wait();
}

// An operand's memory while a primitive runs: the tensor's own, or a reordered copy.
class Bound {
 public:
  Bound(const Slot& slot, const Tensor& t)
      : slot_(slot),
        given_(slot.given, engine(), t.raw_data()),
        copy_(slot.copied() ? slot.wanted.get_size() : 0),
        wanted_(slot.copied() ? memory(slot.wanted, engine(), copy_.data()) : given_) {
    if (slot_.copied() && !slot_.written) slot_.run(given_, wanted_);
  }
  const memory& get() const { return wanted_; }
  void finish() {
    if (slot_.copied() && slot_.written) slot_.run(wanted_, given_);
  }

 private:
  const Slot& slot_;
  memory given_;
  Buffer copy_;
  memory wanted_;
};

}  // namespace

static bool run(const Problem& p, const Operands& o) {
  int share = thread_share();
  Threads threads(share);
  auto r = prepared(p, o, share);
  if (!r->possible) return false;
  Bound x(r->x, o.x), w(r->w, o.w), y(r->y, o.y);
  Buffer scratch(r->scratchpad.get_size());
  memory scratchpad(r->scratchpad, engine(), scratch.data());
  std::unordered_map<int, memory> arguments{{DNNL_ARG_SCRATCHPAD, scratchpad}};
  arguments.emplace(p.pass == Pass::data ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, x.get());
  arguments.emplace(p.pass == Pass::weight ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, w.get());
  arguments.emplace(p.pass == Pass::forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, y.get());
  if (r->bias) arguments.emplace(DNNL_ARG_BIAS, memory(*r->bias, engine(), o.bias.raw_data()));
  r->primitive.execute(stream(), arguments);
  stream().wait();
  x.finish();
  w.finish();
  y.finish();
  return true;
}

template <class F>
static auto with_errors(const char* operation, F&& f) {
  try {
    return f();
  } catch (const dnnl::error& e) {
    check<MemoryError>(e.status != dnnl_out_of_memory, operation, "oneDNN has no memory for it: {}", e.what());
    fail<InternalError>(operation, "oneDNN failed with status {}: {}", static_cast<int>(e.status), e.what());
  }
}

bool run_onednn(const Problem& p, const Operands& o) {
  return with_errors("convolution", [&] { return run(p, o); });
}

Wanted wanted_blocks(const Problem& p, const Operands& o) {
  int share = thread_share();
  Threads threads(share);
  return with_errors("convolution", [&]() -> Wanted {
    auto r = prepared(p, o, share);
    if (!r->possible || p.spatial() != 2) return {};
    auto blocks = [](const Slot& slot, const Shape& sizes) {
      return blocked::divides(sizes) &&
             slot.wanted == memory::desc(dims_of(sizes), memory::data_type::f32, memory::format_tag::nChw16c);
    };
    return {blocks(r->x, p.x), blocks(r->y, p.y)};
  });
}

void reorder_onednn(const Tensor& from, const Tensor& to, const Shape& sizes) {
  int share = thread_share();
  Threads threads(share);
  with_errors("to_blocked", [&] {
    Key key{share, in_blocks(from, sizes)};
    key.insert(key.end(), sizes.begin(), sizes.end());
    auto way = kept<Slot>(std::move(key), [&] {
      Slot slot;
      slot.given = image_desc(from, sizes);
      slot.wanted = image_desc(to, sizes);
      slot.connect(false, false);
      return slot;
    });
    memory source(way->given, engine(), from.raw_data()), target(way->wanted, engine(), to.raw_data());
    if (way->copied())
      way->run(source, target);
    else  // one pixel, or one block of it: the same
      std::memcpy(to.raw_data(), from.raw_data(), way->wanted.get_size());
  });
}

}  // namespace tutti::convolution
