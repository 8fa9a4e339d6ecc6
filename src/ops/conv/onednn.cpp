// Convolution by oneDNN, in f32. Primitives are made once for each problem and kept.
#include <omp.h>

#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "base/memory.h"
#include "base/parallel.h"
#include "ops/conv/problem.h"

namespace tutti::convolution {
namespace {

using dnnl::memory;

dnnl::engine& engine() {
  static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
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

// An operand of a primitive: how it lies in the tensor, how the primitive wants it, and the way between.
struct Slot {
  memory::desc given, wanted;
  std::optional<dnnl::reorder> reorder;
  memory::desc scratchpad;  // of the reorder
  bool written = false;

  void connect(bool result) {
    written = result;
    if (given == wanted) return;
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    dnnl::reorder::primitive_desc pd(engine(), result ? wanted : given, engine(), result ? given : wanted, attr);
    reorder.emplace(pd);
    scratchpad = pd.scratchpad_desc();
  }
  void run(memory& from, memory& to) const;
};

// All that a problem needs, made once. Immutable after that, so threads may share it: the scratchpad is each caller's
// own.
struct Prepared {
  dnnl::primitive primitive;
  Slot x, w, y;
  std::optional<memory::desc> bias;
  memory::desc scratchpad;
  bool possible = false;
};

memory::dims dims_of(const Shape& s) { return {s.begin(), s.end()}; }

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

memory::desc any_layout(const memory::desc& d) { return {d.dims(), memory::data_type::f32, memory::format_tag::any}; }

// What the primitive is told of x and y. Channels-last stays as it is, and costs no reordering; for contiguous ones
// oneDNN chooses the layout (with channels in blocks), which is worth the reordering: plain nchw takes 2-3 times as
// long.
memory::desc data_layout(const memory::desc& given, const Shape& sizes, bool last) {
  if (!last) return any_layout(given);
  return {dims_of(sizes), memory::data_type::f32,
          sizes.size() == 4 ? memory::format_tag::nhwc : memory::format_tag::ndhwc};
}

void prepare(Prepared& r, const Problem& p, const Operands& o) {
  r.x.given = {dims_of(p.x), memory::data_type::f32, dims_of(o.x.strides())};
  r.y.given = {dims_of(p.y), memory::data_type::f32, dims_of(o.y.strides())};
  r.w.given = weight_desc(p, o.w.strides());
  bool last = is_channels_last(o.x) || is_channels_last(o.y);
  memory::desc x = data_layout(r.x.given, p.x, last), y = data_layout(r.y.given, p.y, last), w = any_layout(r.w.given);
  memory::dims stride = dims_of(p.stride), padding = dims_of(p.padding), dilation = dims_of(p.dilation);
  for (auto& d : dilation) --d;
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  auto algorithm = dnnl::algorithm::convolution_direct;
  auto finish = [&](auto pd, const memory::desc& px, const memory::desc& pw, const memory::desc& py) {
    r.x.wanted = px;
    r.w.wanted = pw;
    r.y.wanted = py;
    r.scratchpad = pd.scratchpad_desc();
  };
  using Forward = dnnl::convolution_forward;
  auto kind = p.pass == Pass::forward ? dnnl::prop_kind::forward_inference : dnnl::prop_kind::forward_training;
  if (p.pass == Pass::forward && o.bias.defined()) {
    r.bias = memory::desc({p.w[0]}, memory::data_type::f32, memory::format_tag::a);
    Forward::primitive_desc pd({kind, algorithm, x, w, *r.bias, y, stride, dilation, padding, padding}, attr, engine());
    finish(pd, pd.src_desc(), pd.weights_desc(), pd.dst_desc());
    r.primitive = Forward(pd);
  } else {
    Forward::primitive_desc hint({kind, algorithm, x, w, y, stride, dilation, padding, padding}, attr, engine());
    if (p.pass == Pass::forward) {
      finish(hint, hint.src_desc(), hint.weights_desc(), hint.dst_desc());
      r.primitive = Forward(hint);
    } else if (p.pass == Pass::data) {
      using Data = dnnl::convolution_backward_data;
      Data::primitive_desc pd({algorithm, x, w, y, stride, dilation, padding, padding}, attr, engine(), hint);
      finish(pd, pd.diff_src_desc(), pd.weights_desc(), pd.diff_dst_desc());
      r.primitive = Data(pd);
    } else {
      using Weights = dnnl::convolution_backward_weights;
      Weights::primitive_desc pd({algorithm, x, w, y, stride, dilation, padding, padding}, attr, engine(), hint);
      finish(pd, pd.src_desc(), pd.diff_weights_desc(), pd.diff_dst_desc());
      r.primitive = Weights(pd);
    }
  }
  r.x.connect(p.pass == Pass::data);
  r.w.connect(p.pass == Pass::weight);
  r.y.connect(p.pass == Pass::forward);
  r.possible = true;
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
                is_channels_last(o.y) << 4 | o.bias.defined() << 5);
  key.push_back(threads);
  key.push_back(p.groups);
  for (const Shape* s : {&p.x, &p.w, &p.y, &p.stride, &p.padding, &p.dilation})
    key.insert(key.end(), s->begin(), s->end());
  return key;
}

// Shapes that vary without end must not fill the memory.
constexpr size_t kMostPrepared = 1024;

std::shared_ptr<const Prepared> prepared(const Problem& p, const Operands& o, int threads) {
  static std::shared_mutex mutex;
  static std::unordered_map<Key, std::shared_ptr<const Prepared>, KeyHash> cache;
  Key key = key_of(p, o, threads);
  {
    std::shared_lock lock(mutex);
    if (auto it = cache.find(key); it != cache.end()) return it->second;
  }
  auto fresh = std::make_shared<Prepared>();
  try {
    prepare(*fresh, p, o);
  } catch (const dnnl::error& e) {
    if (e.status != dnnl_unimplemented && e.status != dnnl_invalid_arguments) throw;
    *fresh = {};
  }
  std::unique_lock lock(mutex);
  if (cache.size() >= kMostPrepared) cache.clear();
  return cache.emplace(std::move(key), std::move(fresh)).first->second;
}

// ---- Running

dnnl::stream& stream() {
  thread_local dnnl::stream s(engine());
  return s;
}

void Slot::run(memory& from, memory& to) const {
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
        copy_(slot.reorder ? slot.wanted.get_size() : 0),
        wanted_(slot.reorder ? memory(slot.wanted, engine(), copy_.data()) : given_) {
    if (slot_.reorder && !slot_.written) slot_.run(given_, wanted_);
  }
  const memory& get() const { return wanted_; }
  void finish() {
    if (slot_.reorder && slot_.written) slot_.run(wanted_, given_);
  }

 private:
  const Slot& slot_;
  memory given_;
  Buffer copy_;
  memory wanted_;
};

}  // namespace

bool run_onednn(const Problem& p, const Operands& o) {
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

}  // namespace tutti::convolution
