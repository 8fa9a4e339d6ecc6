#include "/work/main/src/pointwise/composed.h"
#define TUTTI_POINTWISE(...)
#define TUTTI_POINTWISE_PURE(...)
#include "/work/main/src/pointwise/activation.isa.cpp"
#include "/work/main/src/pointwise/arithmetic.isa.cpp"
#include "/work/main/src/pointwise/comparison.isa.cpp"
#include "/work/main/src/pointwise/complex.isa.cpp"
#include "/work/main/src/pointwise/exponential.isa.cpp"
#include "/work/main/src/pointwise/logic.isa.cpp"
#include "/work/main/src/pointwise/rounding.isa.cpp"
#include "/work/main/src/pointwise/select.isa.cpp"
#include "/work/main/src/pointwise/trigonometric.isa.cpp"

using namespace tutti::pointwise;
template <class F,int K> struct D1 { template<class... X> static auto value(X... x){ return derivative<F,K>(x...);} };
template <class F,int K,int J> Composed second(const Composed* p);
Composed a(1.0);
void use(const Composed&);
void go(){
use(Relu::value(a));use(derivative<Relu,0>(a));use(derivative<D1<Relu,0>,0>(a));
use(Relu6::value(a));use(derivative<Relu6,0>(a));use(derivative<D1<Relu6,0>,0>(a));
use(LeakyRelu::value(a,a));use(derivative<LeakyRelu,0>(a,a));use(derivative<D1<LeakyRelu,0>,0>(a,a));use(derivative<D1<LeakyRelu,0>,1>(a,a));use(derivative<LeakyRelu,1>(a,a));use(derivative<D1<LeakyRelu,1>,0>(a,a));use(derivative<D1<LeakyRelu,1>,1>(a,a));
use(Elu::value(a,a));use(derivative<Elu,0>(a,a));use(derivative<D1<Elu,0>,0>(a,a));use(derivative<D1<Elu,0>,1>(a,a));use(derivative<Elu,1>(a,a));use(derivative<D1<Elu,1>,0>(a,a));use(derivative<D1<Elu,1>,1>(a,a));
use(Selu::value(a));use(derivative<Selu,0>(a));use(derivative<D1<Selu,0>,0>(a));
use(Celu::value(a,a));use(derivative<Celu,0>(a,a));use(derivative<D1<Celu,0>,0>(a,a));use(derivative<D1<Celu,0>,1>(a,a));use(derivative<Celu,1>(a,a));use(derivative<D1<Celu,1>,0>(a,a));use(derivative<D1<Celu,1>,1>(a,a));
use(Gelu::value(a));use(derivative<Gelu,0>(a));use(derivative<D1<Gelu,0>,0>(a));
use(GeluTanh::value(a));use(derivative<GeluTanh,0>(a));use(derivative<D1<GeluTanh,0>,0>(a));
use(Silu::value(a));use(derivative<Silu,0>(a));use(derivative<D1<Silu,0>,0>(a));
use(Mish::value(a));use(derivative<Mish,0>(a));use(derivative<D1<Mish,0>,0>(a));
use(Softplus::value(a,a));use(derivative<Softplus,0>(a,a));use(derivative<D1<Softplus,0>,0>(a,a));use(derivative<D1<Softplus,0>,1>(a,a));use(derivative<Softplus,1>(a,a));use(derivative<D1<Softplus,1>,0>(a,a));use(derivative<D1<Softplus,1>,1>(a,a));
use(Softsign::value(a));use(derivative<Softsign,0>(a));use(derivative<D1<Softsign,0>,0>(a));
use(Hardtanh::value(a,a,a));use(derivative<Hardtanh,0>(a,a,a));use(derivative<D1<Hardtanh,0>,0>(a,a,a));use(derivative<D1<Hardtanh,0>,1>(a,a,a));use(derivative<D1<Hardtanh,0>,2>(a,a,a));use(derivative<Hardtanh,1>(a,a,a));use(derivative<D1<Hardtanh,1>,0>(a,a,a));use(derivative<D1<Hardtanh,1>,1>(a,a,a));use(derivative<D1<Hardtanh,1>,2>(a,a,a));use(derivative<Hardtanh,2>(a,a,a));use(derivative<D1<Hardtanh,2>,0>(a,a,a));use(derivative<D1<Hardtanh,2>,1>(a,a,a));use(derivative<D1<Hardtanh,2>,2>(a,a,a));
use(Hardsigmoid::value(a));use(derivative<Hardsigmoid,0>(a));use(derivative<D1<Hardsigmoid,0>,0>(a));
use(Hardswish::value(a));use(derivative<Hardswish,0>(a));use(derivative<D1<Hardswish,0>,0>(a));
use(Hardshrink::value(a,a));use(derivative<Hardshrink,0>(a,a));use(derivative<D1<Hardshrink,0>,0>(a,a));use(derivative<D1<Hardshrink,0>,1>(a,a));use(derivative<Hardshrink,1>(a,a));use(derivative<D1<Hardshrink,1>,0>(a,a));use(derivative<D1<Hardshrink,1>,1>(a,a));
use(Softshrink::value(a,a));use(derivative<Softshrink,0>(a,a));use(derivative<D1<Softshrink,0>,0>(a,a));use(derivative<D1<Softshrink,0>,1>(a,a));use(derivative<Softshrink,1>(a,a));use(derivative<D1<Softshrink,1>,0>(a,a));use(derivative<D1<Softshrink,1>,1>(a,a));
use(Threshold::value(a,a,a));use(derivative<Threshold,0>(a,a,a));use(derivative<D1<Threshold,0>,0>(a,a,a));use(derivative<D1<Threshold,0>,1>(a,a,a));use(derivative<D1<Threshold,0>,2>(a,a,a));use(derivative<Threshold,1>(a,a,a));use(derivative<D1<Threshold,1>,0>(a,a,a));use(derivative<D1<Threshold,1>,1>(a,a,a));use(derivative<D1<Threshold,1>,2>(a,a,a));use(derivative<Threshold,2>(a,a,a));use(derivative<D1<Threshold,2>,0>(a,a,a));use(derivative<D1<Threshold,2>,1>(a,a,a));use(derivative<D1<Threshold,2>,2>(a,a,a));
use(Tanhshrink::value(a));use(derivative<Tanhshrink,0>(a));use(derivative<D1<Tanhshrink,0>,0>(a));
use(Add::value(a,a));use(derivative<Add,0>(a,a));use(derivative<D1<Add,0>,0>(a,a));use(derivative<D1<Add,0>,1>(a,a));use(derivative<Add,1>(a,a));use(derivative<D1<Add,1>,0>(a,a));use(derivative<D1<Add,1>,1>(a,a));
use(Sub::value(a,a));use(derivative<Sub,0>(a,a));use(derivative<D1<Sub,0>,0>(a,a));use(derivative<D1<Sub,0>,1>(a,a));use(derivative<Sub,1>(a,a));use(derivative<D1<Sub,1>,0>(a,a));use(derivative<D1<Sub,1>,1>(a,a));
use(Mul::value(a,a));use(derivative<Mul,0>(a,a));use(derivative<D1<Mul,0>,0>(a,a));use(derivative<D1<Mul,0>,1>(a,a));use(derivative<Mul,1>(a,a));use(derivative<D1<Mul,1>,0>(a,a));use(derivative<D1<Mul,1>,1>(a,a));
use(Div::value(a,a));use(derivative<Div,0>(a,a));use(derivative<D1<Div,0>,0>(a,a));use(derivative<D1<Div,0>,1>(a,a));use(derivative<Div,1>(a,a));use(derivative<D1<Div,1>,0>(a,a));use(derivative<D1<Div,1>,1>(a,a));
use(FloorDivide::value(a,a));use(derivative<FloorDivide,0>(a,a));use(derivative<D1<FloorDivide,0>,0>(a,a));use(derivative<D1<FloorDivide,0>,1>(a,a));use(derivative<FloorDivide,1>(a,a));use(derivative<D1<FloorDivide,1>,0>(a,a));use(derivative<D1<FloorDivide,1>,1>(a,a));
use(TruncDivide::value(a,a));use(derivative<TruncDivide,0>(a,a));use(derivative<D1<TruncDivide,0>,0>(a,a));use(derivative<D1<TruncDivide,0>,1>(a,a));use(derivative<TruncDivide,1>(a,a));use(derivative<D1<TruncDivide,1>,0>(a,a));use(derivative<D1<TruncDivide,1>,1>(a,a));
use(Remainder::value(a,a));use(derivative<Remainder,0>(a,a));use(derivative<D1<Remainder,0>,0>(a,a));use(derivative<D1<Remainder,0>,1>(a,a));use(derivative<Remainder,1>(a,a));use(derivative<D1<Remainder,1>,0>(a,a));use(derivative<D1<Remainder,1>,1>(a,a));
use(Fmod::value(a,a));use(derivative<Fmod,0>(a,a));use(derivative<D1<Fmod,0>,0>(a,a));use(derivative<D1<Fmod,0>,1>(a,a));use(derivative<Fmod,1>(a,a));use(derivative<D1<Fmod,1>,0>(a,a));use(derivative<D1<Fmod,1>,1>(a,a));
use(Neg::value(a));use(derivative<Neg,0>(a));use(derivative<D1<Neg,0>,0>(a));
use(Reciprocal::value(a));use(derivative<Reciprocal,0>(a));use(derivative<D1<Reciprocal,0>,0>(a));
use(Square::value(a));use(derivative<Square,0>(a));use(derivative<D1<Square,0>,0>(a));
use(Abs::value(a));use(derivative<Abs,0>(a));use(derivative<D1<Abs,0>,0>(a));
use(Sign::value(a));use(derivative<Sign,0>(a));use(derivative<D1<Sign,0>,0>(a));
use(Pow::value(a,a));use(derivative<Pow,0>(a,a));use(derivative<D1<Pow,0>,0>(a,a));use(derivative<D1<Pow,0>,1>(a,a));use(derivative<Pow,1>(a,a));use(derivative<D1<Pow,1>,0>(a,a));use(derivative<D1<Pow,1>,1>(a,a));
use(Maximum::value(a,a));use(derivative<Maximum,0>(a,a));use(derivative<D1<Maximum,0>,0>(a,a));use(derivative<D1<Maximum,0>,1>(a,a));use(derivative<Maximum,1>(a,a));use(derivative<D1<Maximum,1>,0>(a,a));use(derivative<D1<Maximum,1>,1>(a,a));
use(Minimum::value(a,a));use(derivative<Minimum,0>(a,a));use(derivative<D1<Minimum,0>,0>(a,a));use(derivative<D1<Minimum,0>,1>(a,a));use(derivative<Minimum,1>(a,a));use(derivative<D1<Minimum,1>,0>(a,a));use(derivative<D1<Minimum,1>,1>(a,a));
use(Fmax::value(a,a));use(derivative<Fmax,0>(a,a));use(derivative<D1<Fmax,0>,0>(a,a));use(derivative<D1<Fmax,0>,1>(a,a));use(derivative<Fmax,1>(a,a));use(derivative<D1<Fmax,1>,0>(a,a));use(derivative<D1<Fmax,1>,1>(a,a));
use(Fmin::value(a,a));use(derivative<Fmin,0>(a,a));use(derivative<D1<Fmin,0>,0>(a,a));use(derivative<D1<Fmin,0>,1>(a,a));use(derivative<Fmin,1>(a,a));use(derivative<D1<Fmin,1>,0>(a,a));use(derivative<D1<Fmin,1>,1>(a,a));
use(Clamp::value(a,a,a));use(derivative<Clamp,0>(a,a,a));use(derivative<D1<Clamp,0>,0>(a,a,a));use(derivative<D1<Clamp,0>,1>(a,a,a));use(derivative<D1<Clamp,0>,2>(a,a,a));use(derivative<Clamp,1>(a,a,a));use(derivative<D1<Clamp,1>,0>(a,a,a));use(derivative<D1<Clamp,1>,1>(a,a,a));use(derivative<D1<Clamp,1>,2>(a,a,a));use(derivative<Clamp,2>(a,a,a));use(derivative<D1<Clamp,2>,0>(a,a,a));use(derivative<D1<Clamp,2>,1>(a,a,a));use(derivative<D1<Clamp,2>,2>(a,a,a));
use(Lerp::value(a,a,a));use(derivative<Lerp,0>(a,a,a));use(derivative<D1<Lerp,0>,0>(a,a,a));use(derivative<D1<Lerp,0>,1>(a,a,a));use(derivative<D1<Lerp,0>,2>(a,a,a));use(derivative<Lerp,1>(a,a,a));use(derivative<D1<Lerp,1>,0>(a,a,a));use(derivative<D1<Lerp,1>,1>(a,a,a));use(derivative<D1<Lerp,1>,2>(a,a,a));use(derivative<Lerp,2>(a,a,a));use(derivative<D1<Lerp,2>,0>(a,a,a));use(derivative<D1<Lerp,2>,1>(a,a,a));use(derivative<D1<Lerp,2>,2>(a,a,a));
use(Addcmul::value(a,a,a,a));use(derivative<Addcmul,0>(a,a,a,a));use(derivative<D1<Addcmul,0>,0>(a,a,a,a));use(derivative<D1<Addcmul,0>,1>(a,a,a,a));use(derivative<D1<Addcmul,0>,2>(a,a,a,a));use(derivative<D1<Addcmul,0>,3>(a,a,a,a));use(derivative<Addcmul,1>(a,a,a,a));use(derivative<D1<Addcmul,1>,0>(a,a,a,a));use(derivative<D1<Addcmul,1>,1>(a,a,a,a));use(derivative<D1<Addcmul,1>,2>(a,a,a,a));use(derivative<D1<Addcmul,1>,3>(a,a,a,a));use(derivative<Addcmul,2>(a,a,a,a));use(derivative<D1<Addcmul,2>,0>(a,a,a,a));use(derivative<D1<Addcmul,2>,1>(a,a,a,a));use(derivative<D1<Addcmul,2>,2>(a,a,a,a));use(derivative<D1<Addcmul,2>,3>(a,a,a,a));use(derivative<Addcmul,3>(a,a,a,a));use(derivative<D1<Addcmul,3>,0>(a,a,a,a));use(derivative<D1<Addcmul,3>,1>(a,a,a,a));use(derivative<D1<Addcmul,3>,2>(a,a,a,a));use(derivative<D1<Addcmul,3>,3>(a,a,a,a));
use(Addcdiv::value(a,a,a,a));use(derivative<Addcdiv,0>(a,a,a,a));use(derivative<D1<Addcdiv,0>,0>(a,a,a,a));use(derivative<D1<Addcdiv,0>,1>(a,a,a,a));use(derivative<D1<Addcdiv,0>,2>(a,a,a,a));use(derivative<D1<Addcdiv,0>,3>(a,a,a,a));use(derivative<Addcdiv,1>(a,a,a,a));use(derivative<D1<Addcdiv,1>,0>(a,a,a,a));use(derivative<D1<Addcdiv,1>,1>(a,a,a,a));use(derivative<D1<Addcdiv,1>,2>(a,a,a,a));use(derivative<D1<Addcdiv,1>,3>(a,a,a,a));use(derivative<Addcdiv,2>(a,a,a,a));use(derivative<D1<Addcdiv,2>,0>(a,a,a,a));use(derivative<D1<Addcdiv,2>,1>(a,a,a,a));use(derivative<D1<Addcdiv,2>,2>(a,a,a,a));use(derivative<D1<Addcdiv,2>,3>(a,a,a,a));use(derivative<Addcdiv,3>(a,a,a,a));use(derivative<D1<Addcdiv,3>,0>(a,a,a,a));use(derivative<D1<Addcdiv,3>,1>(a,a,a,a));use(derivative<D1<Addcdiv,3>,2>(a,a,a,a));use(derivative<D1<Addcdiv,3>,3>(a,a,a,a));
use(Hypot::value(a,a));use(derivative<Hypot,0>(a,a));use(derivative<D1<Hypot,0>,0>(a,a));use(derivative<D1<Hypot,0>,1>(a,a));use(derivative<Hypot,1>(a,a));use(derivative<D1<Hypot,1>,0>(a,a));use(derivative<D1<Hypot,1>,1>(a,a));
use(Copysign::value(a,a));use(derivative<Copysign,0>(a,a));use(derivative<D1<Copysign,0>,0>(a,a));use(derivative<D1<Copysign,0>,1>(a,a));use(derivative<Copysign,1>(a,a));use(derivative<D1<Copysign,1>,0>(a,a));use(derivative<D1<Copysign,1>,1>(a,a));
use(Heaviside::value(a,a));use(derivative<Heaviside,0>(a,a));use(derivative<D1<Heaviside,0>,0>(a,a));use(derivative<D1<Heaviside,0>,1>(a,a));use(derivative<Heaviside,1>(a,a));use(derivative<D1<Heaviside,1>,0>(a,a));use(derivative<D1<Heaviside,1>,1>(a,a));
use(FusedMultiplyAdd::value(a,a,a));use(derivative<FusedMultiplyAdd,0>(a,a,a));use(derivative<D1<FusedMultiplyAdd,0>,0>(a,a,a));use(derivative<D1<FusedMultiplyAdd,0>,1>(a,a,a));use(derivative<D1<FusedMultiplyAdd,0>,2>(a,a,a));use(derivative<FusedMultiplyAdd,1>(a,a,a));use(derivative<D1<FusedMultiplyAdd,1>,0>(a,a,a));use(derivative<D1<FusedMultiplyAdd,1>,1>(a,a,a));use(derivative<D1<FusedMultiplyAdd,1>,2>(a,a,a));use(derivative<FusedMultiplyAdd,2>(a,a,a));use(derivative<D1<FusedMultiplyAdd,2>,0>(a,a,a));use(derivative<D1<FusedMultiplyAdd,2>,1>(a,a,a));use(derivative<D1<FusedMultiplyAdd,2>,2>(a,a,a));
use(Conj::value(a));use(derivative<Conj,0>(a));use(derivative<D1<Conj,0>,0>(a));
use(Exp::value(a));use(derivative<Exp,0>(a));use(derivative<D1<Exp,0>,0>(a));
use(Exp2::value(a));use(derivative<Exp2,0>(a));use(derivative<D1<Exp2,0>,0>(a));
use(Expm1::value(a));use(derivative<Expm1,0>(a));use(derivative<D1<Expm1,0>,0>(a));
use(Log::value(a));use(derivative<Log,0>(a));use(derivative<D1<Log,0>,0>(a));
use(Log2::value(a));use(derivative<Log2,0>(a));use(derivative<D1<Log2,0>,0>(a));
use(Log10::value(a));use(derivative<Log10,0>(a));use(derivative<D1<Log10,0>,0>(a));
use(Log1p::value(a));use(derivative<Log1p,0>(a));use(derivative<D1<Log1p,0>,0>(a));
use(Sqrt::value(a));use(derivative<Sqrt,0>(a));use(derivative<D1<Sqrt,0>,0>(a));
use(Rsqrt::value(a));use(derivative<Rsqrt,0>(a));use(derivative<D1<Rsqrt,0>,0>(a));
use(LogAddExp::value(a,a));use(derivative<LogAddExp,0>(a,a));use(derivative<D1<LogAddExp,0>,0>(a,a));use(derivative<D1<LogAddExp,0>,1>(a,a));use(derivative<LogAddExp,1>(a,a));use(derivative<D1<LogAddExp,1>,0>(a,a));use(derivative<D1<LogAddExp,1>,1>(a,a));
use(LogAddExp2::value(a,a));use(derivative<LogAddExp2,0>(a,a));use(derivative<D1<LogAddExp2,0>,0>(a,a));use(derivative<D1<LogAddExp2,0>,1>(a,a));use(derivative<LogAddExp2,1>(a,a));use(derivative<D1<LogAddExp2,1>,0>(a,a));use(derivative<D1<LogAddExp2,1>,1>(a,a));
use(Xlogy::value(a,a));use(derivative<Xlogy,0>(a,a));use(derivative<D1<Xlogy,0>,0>(a,a));use(derivative<D1<Xlogy,0>,1>(a,a));use(derivative<Xlogy,1>(a,a));use(derivative<D1<Xlogy,1>,0>(a,a));use(derivative<D1<Xlogy,1>,1>(a,a));
use(Xlog1py::value(a,a));use(derivative<Xlog1py,0>(a,a));use(derivative<D1<Xlog1py,0>,0>(a,a));use(derivative<D1<Xlog1py,0>,1>(a,a));use(derivative<Xlog1py,1>(a,a));use(derivative<D1<Xlog1py,1>,0>(a,a));use(derivative<D1<Xlog1py,1>,1>(a,a));
use(Logit::value(a));use(derivative<Logit,0>(a));use(derivative<D1<Logit,0>,0>(a));
use(Erf::value(a));use(derivative<Erf,0>(a));use(derivative<D1<Erf,0>,0>(a));
use(Erfc::value(a));use(derivative<Erfc,0>(a));use(derivative<D1<Erfc,0>,0>(a));
use(Erfinv::value(a));use(derivative<Erfinv,0>(a));use(derivative<D1<Erfinv,0>,0>(a));
use(Lgamma::value(a));use(derivative<Lgamma,0>(a));use(derivative<D1<Lgamma,0>,0>(a));
use(Digamma::value(a));use(derivative<Digamma,0>(a));use(derivative<D1<Digamma,0>,0>(a));
use(Trigamma::value(a));use(derivative<Trigamma,0>(a));use(derivative<D1<Trigamma,0>,0>(a));
use(Sigmoid::value(a));use(derivative<Sigmoid,0>(a));use(derivative<D1<Sigmoid,0>,0>(a));
use(LogSigmoid::value(a));use(derivative<LogSigmoid,0>(a));use(derivative<D1<LogSigmoid,0>,0>(a));
use(Floor::value(a));use(derivative<Floor,0>(a));use(derivative<D1<Floor,0>,0>(a));
use(Ceil::value(a));use(derivative<Ceil,0>(a));use(derivative<D1<Ceil,0>,0>(a));
use(Round::value(a));use(derivative<Round,0>(a));use(derivative<D1<Round,0>,0>(a));
use(Trunc::value(a));use(derivative<Trunc,0>(a));use(derivative<D1<Trunc,0>,0>(a));
use(Frac::value(a));use(derivative<Frac,0>(a));use(derivative<D1<Frac,0>,0>(a));
use(Where::value(a,a,a));use(derivative<Where,0>(a,a,a));use(derivative<D1<Where,0>,0>(a,a,a));use(derivative<D1<Where,0>,1>(a,a,a));use(derivative<D1<Where,0>,2>(a,a,a));use(derivative<Where,1>(a,a,a));use(derivative<D1<Where,1>,0>(a,a,a));use(derivative<D1<Where,1>,1>(a,a,a));use(derivative<D1<Where,1>,2>(a,a,a));use(derivative<Where,2>(a,a,a));use(derivative<D1<Where,2>,0>(a,a,a));use(derivative<D1<Where,2>,1>(a,a,a));use(derivative<D1<Where,2>,2>(a,a,a));
use(NanToNum::value(a,a,a,a));use(derivative<NanToNum,0>(a,a,a,a));use(derivative<D1<NanToNum,0>,0>(a,a,a,a));use(derivative<D1<NanToNum,0>,1>(a,a,a,a));use(derivative<D1<NanToNum,0>,2>(a,a,a,a));use(derivative<D1<NanToNum,0>,3>(a,a,a,a));use(derivative<NanToNum,1>(a,a,a,a));use(derivative<D1<NanToNum,1>,0>(a,a,a,a));use(derivative<D1<NanToNum,1>,1>(a,a,a,a));use(derivative<D1<NanToNum,1>,2>(a,a,a,a));use(derivative<D1<NanToNum,1>,3>(a,a,a,a));use(derivative<NanToNum,2>(a,a,a,a));use(derivative<D1<NanToNum,2>,0>(a,a,a,a));use(derivative<D1<NanToNum,2>,1>(a,a,a,a));use(derivative<D1<NanToNum,2>,2>(a,a,a,a));use(derivative<D1<NanToNum,2>,3>(a,a,a,a));use(derivative<NanToNum,3>(a,a,a,a));use(derivative<D1<NanToNum,3>,0>(a,a,a,a));use(derivative<D1<NanToNum,3>,1>(a,a,a,a));use(derivative<D1<NanToNum,3>,2>(a,a,a,a));use(derivative<D1<NanToNum,3>,3>(a,a,a,a));
use(Sin::value(a));use(derivative<Sin,0>(a));use(derivative<D1<Sin,0>,0>(a));
use(Cos::value(a));use(derivative<Cos,0>(a));use(derivative<D1<Cos,0>,0>(a));
use(Tan::value(a));use(derivative<Tan,0>(a));use(derivative<D1<Tan,0>,0>(a));
use(Asin::value(a));use(derivative<Asin,0>(a));use(derivative<D1<Asin,0>,0>(a));
use(Acos::value(a));use(derivative<Acos,0>(a));use(derivative<D1<Acos,0>,0>(a));
use(Atan::value(a));use(derivative<Atan,0>(a));use(derivative<D1<Atan,0>,0>(a));
use(Atan2::value(a,a));use(derivative<Atan2,0>(a,a));use(derivative<D1<Atan2,0>,0>(a,a));use(derivative<D1<Atan2,0>,1>(a,a));use(derivative<Atan2,1>(a,a));use(derivative<D1<Atan2,1>,0>(a,a));use(derivative<D1<Atan2,1>,1>(a,a));
use(Sinh::value(a));use(derivative<Sinh,0>(a));use(derivative<D1<Sinh,0>,0>(a));
use(Cosh::value(a));use(derivative<Cosh,0>(a));use(derivative<D1<Cosh,0>,0>(a));
use(Tanh::value(a));use(derivative<Tanh,0>(a));use(derivative<D1<Tanh,0>,0>(a));
use(Asinh::value(a));use(derivative<Asinh,0>(a));use(derivative<D1<Asinh,0>,0>(a));
use(Acosh::value(a));use(derivative<Acosh,0>(a));use(derivative<D1<Acosh,0>,0>(a));
use(Atanh::value(a));use(derivative<Atanh,0>(a));use(derivative<D1<Atanh,0>,0>(a));
use(Sinc::value(a));use(derivative<Sinc,0>(a));use(derivative<D1<Sinc,0>,0>(a));
use(Deg2Rad::value(a));use(derivative<Deg2Rad,0>(a));use(derivative<D1<Deg2Rad,0>,0>(a));
use(Rad2Deg::value(a));use(derivative<Rad2Deg,0>(a));use(derivative<D1<Rad2Deg,0>,0>(a));
}
