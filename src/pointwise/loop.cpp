#include "pointwise/loop.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/parallel.h"
#include "base/small_vector.h"
#include "base/stream.h"
#include "pointwise/transpose.h"
#include "tensor/call.h"
#include "tensor/convert.h"
#include "tensor/impl.h"
#include "tutti/ops.h"

namespace tutti::pointwise {
namespace {

constexpr int64_t kTile = 512;                // elements: a few tiles of f64 fit the first-level cache
constexpr int64_t kGrain = 32768;             // elements a thread takes at a time: fewer cost less than its waking
constexpr size_t kStream = size_t{16} << 20;  // outputs from this size on go past the caches
constexpr int kMaxOperands = kMaxArity + 2;
constexpr size_t kMaxDims = 24;  // after merging

struct Operand {
  std::byte* data = nullptr;
  int64_t stride[kMaxDims];  // in elements, by dim of the loop, innermost first
  int64_t size = 0;          // bytes of an element
  bool native = false;       // of the kind the kernel works on: can be used where it lies
  Convert convert = nullptr;
};

// The iteration space: dims that are contiguous in all operands are merged, innermost first.
struct Space {
  SmallVector<int64_t, 8> sizes;
  int64_t total = 1;
};

struct Loop {
  Tile tile;
  int64_t kind_size, result_size;
  Space space;
  int operands;  // 0 is the output
  Operand operand[kMaxOperands];

  bool stream = false;

  // The address of element `index` of an operand, and how many follow it in the innermost dim.
  std::byte* locate(const Operand& o, int64_t index) const {
    int64_t offset = 0;
    for (size_t d = 0; d < space.sizes.size(); ++d) {
      offset += index % space.sizes[d] * o.stride[d];
      index /= space.sizes[d];
    }
    return o.data + offset * o.size;
  }

  void load(const Operand& o, int64_t index, int64_t count, std::byte* buffer) const {
    while (count > 0) {
      int64_t run = std::min(count, space.sizes[0] - index % space.sizes[0]);
      o.convert(buffer, 1, locate(o, index), o.stride[0], run);
      buffer += run * kind_size;
      index += run;
      count -= run;
    }
  }
  void store(const Operand& o, int64_t index, int64_t count, const std::byte* buffer) const {
    while (count > 0) {
      int64_t run = std::min(count, space.sizes[0] - index % space.sizes[0]);
      o.convert(locate(o, index), o.stride[0], buffer, 1, run);
      buffer += run * result_size;
      index += run;
      count -= run;
    }
  }

  void range(int64_t begin, int64_t end) const {
    alignas(64) std::byte buffers[kMaxOperands][kTile * 16];
    bool filled[kMaxOperands] = {};
    int64_t inner = space.sizes[0];
    bool all_direct = !stream;
    for (int k = 0; k < operands; ++k) all_direct = all_direct && operand[k].native && operand[k].stride[0] == 1;
    // Short rows are gathered, several to a tile; long ones are used in place.
    bool rows = inner >= 64 || space.sizes.size() == 1;
    while (begin < end) {
      int64_t count = std::min(end - begin, rows ? inner - begin % inner : kTile);
      if (!all_direct || !rows) count = std::min(count, kTile);
      const void* in[kMaxOperands];
      for (int k = 1; k < operands; ++k) {
        const Operand& o = operand[k];
        if (rows && o.native && o.stride[0] == 1) {
          in[k - 1] = locate(o, begin);
          continue;
        }
        in[k - 1] = buffers[k];
        // A number fills its tile once.
        bool constant = is_constant(o);
        if (constant && filled[k]) continue;
        load(o, begin, constant ? std::min(kTile, end - begin) : count, buffers[k]);
        filled[k] = constant;
      }
      const Operand& out = operand[0];
      bool direct = rows && out.native && out.stride[0] == 1;
      if (direct && !stream) {
        tile(locate(out, begin), in, count);
      } else {
        tile(buffers[0], in, count);
        if (stream) fetch_ahead(in, begin, count);
        if (direct)
          stream_copy(locate(out, begin), buffers[0], static_cast<size_t>(count * result_size));
        else
          store(out, begin, count, buffers[0]);
      }
      begin += count;
    }
    if (stream) stream_fence();
  }

  // While a tile is streamed out nothing is read: ask for the next one meanwhile.
  void fetch_ahead(const void* const* in, int64_t begin, int64_t count) const {
    for (int k = 1; k < operands; ++k) {
      if (!operand[k].native || operand[k].stride[0] != 1 || begin + count >= space.total) continue;
      const auto* next = static_cast<const std::byte*>(in[k - 1]) + count * kind_size;
      for (int64_t b = 0; b < count * kind_size; b += 64) fetch(next + b);
    }
  }

  bool is_constant(const Operand& o) const {
    for (size_t d = 0; d < space.sizes.size(); ++d)
      if (o.stride[d] != 0) return false;
    return true;
  }
};

// Strides of `t` broadcast to the loop's dims before merging, innermost first.
void broadcast_strides(const TensorImpl* t, const TensorImpl* out, const SmallVector<size_t, 8>& order,
                       SmallVector<int64_t, 8>& strides) {
  size_t missing = out->sizes.size() - t->sizes.size();
  for (size_t d : order) {
    bool broadcast = d < missing || (t->sizes[d - missing] == 1 && out->sizes[d] != 1);
    strides.push_back(broadcast ? 0 : t->strides[d - missing]);
  }
}

}  // namespace

Kind kind_of(DType common) {
  switch (common) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
      return Kind::f32;
    case DType::f64:
      return Kind::f64;
    case DType::c64:
      return Kind::c64;
    case DType::c128:
      return Kind::c128;
    default:
      return Kind::i64;
  }
}

DType dtype_of_kind(Kind kind) {
  constexpr DType dtypes[] = {DType::f32, DType::f64, DType::i64, DType::c64, DType::c128};
  return dtypes[static_cast<int>(kind)];
}

void for_each_tile(const char* name, Tile tile, DType native, DType result, const Tensor& out,
                   std::span<const Tensor* const> inputs) {
  const TensorImpl* o = impl(out);
  if (o->numel == 0) return;

  // Small and simple operands skip all that follows.
  bool simple = o->dtype == result && o->contiguous && o->numel <= kGrain;
  const void* direct[kMaxOperands];
  for (size_t k = 0; k < inputs.size() && simple; ++k) {
    const TensorImpl* t = impl(*inputs[k]);
    simple = t->dtype == native && t->contiguous && t->numel == o->numel;
    direct[k] = simple ? t->data() : nullptr;
  }
  if (simple) {
    tile(o->data(), direct, o->numel);
    return;
  }

  Loop loop;
  loop.tile = tile;
  loop.kind_size = static_cast<int64_t>(size_of(native));
  loop.result_size = static_cast<int64_t>(size_of(result));
  loop.operands = static_cast<int>(inputs.size()) + 1;

  // Dims in order of the output's strides, innermost first.
  SmallVector<size_t, 8> order;
  for (size_t d = o->sizes.size(); d-- > 0;) order.push_back(d);
  if (!o->contiguous)
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return o->strides[a] < o->strides[b]; });
  SmallVector<int64_t, 8> strides[kMaxOperands];
  broadcast_strides(o, o, order, strides[0]);
  for (size_t k = 0; k < inputs.size(); ++k) broadcast_strides(impl(*inputs[k]), o, order, strides[k + 1]);

  // Merge neighbouring dims that every operand walks as one.
  for (size_t i = 0; i < order.size(); ++i) {
    int64_t size = o->sizes[order[i]];
    if (size == 1) continue;
    auto& sizes = loop.space.sizes;
    bool merge = !sizes.empty();
    for (int k = 0; k < loop.operands && merge; ++k)
      merge = strides[k][i] == loop.operand[k].stride[sizes.size() - 1] * sizes[sizes.size() - 1];
    if (merge) {
      sizes[sizes.size() - 1] *= size;
    } else {
      check<ShapeError>(sizes.size() < kMaxDims, name,
                        "{} has more than {} dims that cannot be walked as one; contiguous() may help", out, kMaxDims);
      for (int k = 0; k < loop.operands; ++k) loop.operand[k].stride[sizes.size()] = strides[k][i];
      sizes.push_back(size);
    }
  }
  if (loop.space.sizes.empty()) {
    loop.space.sizes.push_back(1);
    for (int k = 0; k < loop.operands; ++k) loop.operand[k].stride[0] = 1;
  }
  loop.space.total = o->numel;

  for (int k = 0; k < loop.operands; ++k) {
    const TensorImpl* t = k == 0 ? o : impl(*inputs[static_cast<size_t>(k) - 1]);
    Operand& operand = loop.operand[k];
    operand.data = t->data();
    operand.size = static_cast<int64_t>(size_of(t->dtype));
    operand.native = t->dtype == (k == 0 ? result : native);
    operand.convert = k == 0 ? converter(t->dtype, result) : converter(native, t->dtype);
  }
  bool apart = true;
  for (const Tensor* x : inputs) apart = apart && !(impl(*x)->storage == o->storage);
  loop.stream = apart && static_cast<size_t>(o->numel * loop.result_size) >= kStream;

  parallel_for(loop.space.total, kGrain, [&](int64_t begin, int64_t end) { loop.range(begin, end); });
}

namespace {

[[noreturn]] void no_tile(const char* name, DType common) { fail<DTypeError>(name, "has no kernel for {}", common); }

}  // namespace

namespace {
void check_divisor(const char* name, const Tensor& divisor) {
  NoGrad guard;
  check<ValueError>(divisor.device().is_meta() || eq(divisor, 0).any().item<bool>() == false, name,
                    "an integer was divided by zero: {} holds a 0", divisor);
}
}  // namespace

void run(const Call& call) {
  const auto& op = static_cast<const PointwiseOperator&>(call.op);
  DType common = common_dtype(op.name, op.signature, call.inputs);
  Kind kind = kind_of(common);
  DType native = dtype_of_kind(kind);
  Tile tile = op.kernels.forward[static_cast<int>(kind)];
  if (op.narrow)
    if (Tile narrow = op.narrow(common)) tile = narrow, native = common;
  if (op.sooner)
    if (const PointwiseOperator* other = op.sooner(call.inputs);
        other && other->kernels.forward[static_cast<int>(kind)])
      tile = other->kernels.forward[static_cast<int>(kind)];
  if (!tile) no_tile(op.name, common);
  if (op.signature.divides_integers && kind == Kind::i64 && call.output().numel() != 0)
    check_divisor(op.name, call.input(1));
  DType result = op.signature.result == Result::boolean ? DType::boolean
                 : op.signature.result == Result::real  ? to_real(native)
                                                        : native;
  for_each_tile(op.name, tile, native, result, call.output(), call.inputs);
}

void run_gradient(const Call& call) {
  const auto& op = static_cast<const GradientOperator&>(call.op);
  DType common = promote(call.input(0).dtype(), common_dtype(op.name, op.of->signature, call.inputs.subspan(1)));
  Kind kind = kind_of(common);
  Tile tile = op.of->kernels.gradient[op.which][static_cast<int>(kind)];
  if (op.of->sooner && op.which == 0)
    if (const PointwiseOperator* other = op.of->sooner(call.inputs.subspan(1));
        other && other->kernels.gradient[0][static_cast<int>(kind)])
      tile = other->kernels.gradient[0][static_cast<int>(kind)];
  if (!tile) no_tile(op.name, common);
  for_each_tile(op.name, tile, dtype_of_kind(kind), dtype_of_kind(kind), call.output(), call.inputs);
}

}  // namespace tutti::pointwise

namespace tutti {

void copy_into(const Tensor& to, const Tensor& from) {
  using namespace pointwise;
  if (copy_transposed(to, from)) return;
  // A copy is a loop whose tile does nothing: loading and storing convert. What is between must hold every value.
  DType d = to.dtype(), s = from.dtype();
  DType common = d == DType::boolean                                  ? s
                 : (s == DType::boolean || category(d) > category(s)) ? d
                 : category(d) < category(s)                          ? s
                                                                      : promote(d, s);
  if (category(common) == Category::integer && category(d) == category(s)) common = DType::i64;
  DType native = d == s ? d : dtype_of_kind(kind_of(common));
  auto tile_of = []<int Size>(std::integral_constant<int, Size>) -> Tile {
    return [](void* out, const void* const* in, int64_t n) { std::memcpy(out, in[0], static_cast<size_t>(n) * Size); };
  };
  Tile tile = size_of(native) == 1   ? tile_of(std::integral_constant<int, 1>())
              : size_of(native) == 2 ? tile_of(std::integral_constant<int, 2>())
              : size_of(native) == 4 ? tile_of(std::integral_constant<int, 4>())
              : size_of(native) == 8 ? tile_of(std::integral_constant<int, 8>())
                                     : tile_of(std::integral_constant<int, 16>());
  const Tensor* inputs[] = {&from};
  for_each_tile("copy", tile, native, native, to, inputs);
}

}  // namespace tutti
