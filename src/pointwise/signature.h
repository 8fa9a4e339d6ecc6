// What a pointwise operator accepts and gives, and the tables of its kernels.
#pragma once

#include <cstdint>
#include <span>

#include "tutti/operator.h"

namespace tutti::pointwise {

/// Kernels see contiguous tiles of one of these; other dtypes are converted on the way in and out.
enum class Kind : uint8_t { f32, f64, i64, c64, c128 };
inline constexpr int kKinds = 5;
inline constexpr int kMaxArity = 4;

enum Accepts : uint8_t { kBool = 1, kInt = 2, kFloat = 4, kComplex = 8, kReal = 7, kEverything = 15 };
enum class Result : uint8_t { common, boolean, real };  // real: the real dtype of a complex input

/// What an operator does with sparse tensors; src/ops/sparse/arithmetic.h says it of each.
enum class SparseForm : uint8_t { none, sum, difference, product, quotient, sum_of_products, linear, keeps_zero };

struct Signature {
  uint8_t accepts = kEverything;
  Result result = Result::common;
  bool integers_to_float = false;  // integer and bool inputs are computed as floats
  bool condition = false;          // input 0 is a condition and takes no part in promotion
  bool stepwise = false;           // the derivative is zero almost everywhere
  bool divides_integers = false;   // input 1 must not hold an integer zero
  SparseForm sparse = SparseForm::none;
};

/// in[k] are tiles of the kind, out is one too (or bytes, for Result::boolean).
using Tile = void (*)(void* out, const void* const* in, int64_t count);
struct Kernels {
  Tile forward[kKinds] = {};
  Tile gradient[kMaxArity][kKinds] = {};  // of input k: in[0] is the output's gradient, in[1...] the inputs
};

class Composed;

struct PointwiseOperator : Operator {
  Signature signature;
  int arity = 0;
  Kernels kernels;
  const struct GradientOperator* gradients = nullptr;  // one for each input; null if not differentiable
  // Of bools and integers smaller than i64: a tile that takes elements of this dtype as they lie; null for the others.
  Tile (*narrow)(DType common) = nullptr;
  // An operator of input 0 whose kernels are used instead, if there is one for these inputs. See Note [Sooner].
  const PointwiseOperator* (*sooner)(std::span<const Tensor* const> inputs) = nullptr;
  // The second derivative by inputs k and j, as a composition of public operators.
  Composed (*second)(int k, int j, const Composed* inputs) = nullptr;
};

/// From the output's gradient and the inputs to the gradient of input `which`.
struct GradientOperator : Operator {
  const PointwiseOperator* of = nullptr;
  int which = 0;
};

/// The parts of a descriptor that are the same for every pointwise operator.
void infer(const Call& call, std::span<TensorSpec> outputs);
void run(const Call& call);
void gradient(GradientCall& call);
void infer_gradient(const Call& call, std::span<TensorSpec> outputs);
void run_gradient(const Call& call);
void second_gradient(GradientCall& call);

/// The dtype in which inputs are computed; throws DTypeError naming what is accepted.
DType common_dtype(const char* name, const Signature& signature, std::span<const Tensor* const> inputs);
/// What the public functions do: call(), or the arithmetic of sparse tensors where an input is one.
Tensor apply(const PointwiseOperator& op, std::initializer_list<const Tensor*> inputs);
Tensor& apply_out(const PointwiseOperator& op, std::initializer_list<const Tensor*> inputs, Tensor& out);

/// Whether it is a PointwiseOperator or a GradientOperator: there are other pointwise ones.
inline bool has_formula(const Operator& op) { return op.cpu == &run; }
inline bool has_formula_of_gradient(const Operator& op) { return op.cpu == &run_gradient; }

/// The kernels for this machine; null where there are none for an instruction set.
Kernels best(const Kernels& base, const Kernels* v3, const Kernels* v4);

}  // namespace tutti::pointwise
