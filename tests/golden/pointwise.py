"""Cases of the pointwise operators: a line each, as in tests/ops/table."""

import math

import torch
import torch.nn.functional as F

from cases import Inputs

where = torch.where
nan, inf = math.nan, math.inf

# name: (function, kinds, domains). Kinds: f, c: floating and complex with gradients; i, b: integers and bools.
# Domains of the inputs default to (-2, 2); one of whole numbers is given as (low, high, "i") where it differs.
R = (-2.0, 2.0)
LOG = (0.2, 3.0)
UNIT = (-0.95, 0.95)

unary = {
    "relu": (F.relu, "fi", R),
    "relu6": (F.relu6, "fi", (-2.0, 8.0)),
    "selu": (F.selu, "f", R),
    "gelu": (F.gelu, "f", R),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), "f", R),
    "silu": (F.silu, "f", R),
    "mish": (F.mish, "f", R),
    "softsign": (F.softsign, "f", R),
    "hardsigmoid": (lambda x: (x / 6 + 0.5).clamp(0, 1), "f", (-5.0, 5.0)),
    "hardswish": (F.hardswish, "f", (-5.0, 5.0)),
    "tanhshrink": (F.tanhshrink, "f", R),
    "neg": (torch.neg, "fic", R),
    "reciprocal": (torch.reciprocal, "fic", (0.5, 3.0)),
    "square": (torch.square, "fic", R),
    "abs": (torch.abs, "fic", R),
    "sign": (torch.sign, "fib", R),
    "conj": (lambda x: torch.conj(x).resolve_conj(), "fic", R),
    "exp": (torch.exp, "fibc", R),
    "exp2": (lambda x: torch.exp(x * math.log(2)) if x.is_complex() else torch.exp2(x), "fibc", R),
    "expm1": (lambda x: torch.exp(x) - 1 if x.is_complex() else torch.expm1(x), "fibc", R),
    "log": (torch.log, "fibc", LOG),
    "log2": (torch.log2, "fibc", LOG),
    "log10": (torch.log10, "fibc", LOG),
    "log1p": (lambda x: torch.log(1 + x) if x.is_complex() else torch.log1p(x), "fibc", (-0.6, 3.0)),
    "sqrt": (torch.sqrt, "fibc", LOG),
    "rsqrt": (torch.rsqrt, "fibc", LOG),
    "logit": (torch.logit, "f", (0.05, 0.95)),
    "erf": (torch.erf, "fib", R),
    "erfc": (torch.erfc, "fib", R),
    "erfinv": (torch.erfinv, "f", UNIT),
    "lgamma": (torch.lgamma, "f", (-3.0, 4.0)),
    "digamma": (torch.digamma, "f", (-3.0, 4.0)),
    "trigamma": (lambda x: torch.polygamma(1, x), "f", (-3.0, 4.0)),
    "sigmoid": (torch.sigmoid, "fibc", R),
    "log_sigmoid": (F.logsigmoid, "f", R),
    "isnan": (torch.isnan, "fic", R),
    "isinf": (torch.isinf, "fic", R),
    "isfinite": (torch.isfinite, "fic", R),
    "signbit": (torch.signbit, "fi", R),
    "logical_not": (torch.logical_not, "fibc", R),
    "bitwise_not": (torch.bitwise_not, "ib", R),
    "floor": (torch.floor, "fi", R),
    "ceil": (torch.ceil, "fi", R),
    "round": (torch.round, "fi", R),
    "trunc": (torch.trunc, "fi", R),
    "frac": (torch.frac, "f", R),
    "sin": (torch.sin, "fibc", R),
    "cos": (torch.cos, "fibc", R),
    "tan": (torch.tan, "fibc", (-1.2, 1.2)),
    "asin": (torch.asin, "fibc", UNIT),
    "acos": (torch.acos, "fibc", UNIT),
    "atan": (torch.atan, "fibc", R),
    "sinh": (torch.sinh, "fibc", R),
    "cosh": (torch.cosh, "fibc", R),
    "tanh": (torch.tanh, "fibc", R),
    "asinh": (torch.asinh, "fibc", R),
    "acosh": (torch.acosh, "fibc", (1.1, 4.0)),
    "atanh": (torch.atanh, "fibc", UNIT),
    "sinc": (torch.sinc, "f", R),
    "deg2rad": (torch.deg2rad, "fi", (-200.0, 200.0)),
    "rad2deg": (torch.rad2deg, "fi", R),
}

D = (0.5, 3.0)  # divisors

binary = {
    "leaky_relu": (lambda x, s: where(x > 0, x, x * s), "f", R, (0.1, 0.5)),
    "elu": (lambda x, a: where(x > 0, x, a * torch.expm1(x)), "f", R, (0.5, 1.5)),
    "celu": (lambda x, a: where(x > 0, x, a * torch.expm1(x / a)), "f", R, (0.5, 1.5)),
    "softplus": (lambda x, b: torch.log1p(torch.exp(x * b)) / b, "f", R, (0.5, 2.0)),
    "hardshrink": (lambda x, b: where(x.abs() <= b, torch.zeros_like(x), x), "f", R, (0.3, 0.8)),
    "softshrink": (lambda x, b: where(x > b, x - b, where(x < -b, x + b, torch.zeros_like(x))), "f", R, (0.3, 0.8)),
    "add": (torch.add, "fibc", R, R),
    "sub": (torch.sub, "fic", R, R),
    "mul": (torch.mul, "fibc", R, R),
    "div": (torch.div, "fic", R, D),
    "floor_divide": (lambda x, y: torch.div(x, y, rounding_mode="floor"), "fi", (-5.0, 5.0), D),
    "trunc_divide": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), "fi", (-5.0, 5.0), D),
    "remainder": (torch.remainder, "fi", (-5.0, 5.0), D),
    "fmod": (torch.fmod, "fi", (-5.0, 5.0), D),
    "pow": (torch.pow, "fc", (0.3, 3.0), R),
    "maximum": (torch.maximum, "fib", R, R),
    "minimum": (torch.minimum, "fib", R, R),
    "fmax": (torch.maximum, "fi", R, R),
    "fmin": (torch.minimum, "fi", R, R),
    "clamp_min": (lambda x, l: where(x < l, l, x), "fi", R, R),
    "clamp_max": (lambda x, h: where(x > h, h, x), "fi", R, R),
    "hypot": (torch.hypot, "f", R, R),
    "copysign": (torch.copysign, "fi", R, R),
    "heaviside": (torch.heaviside, "i", R, R),
    "logaddexp": (torch.logaddexp, "f", R, R),
    "logaddexp2": (torch.logaddexp2, "f", R, R),
    "xlogy": (torch.xlogy, "fi", R, LOG),
    "xlog1py": (torch.special.xlog1py, "f", R, (-0.6, 3.0)),
    "eq": (torch.eq, "fibc", (-0.2, 0.2), (-0.2, 0.2)),
    "ne": (torch.ne, "fibc", (-0.2, 0.2), (-0.2, 0.2)),
    "lt": (torch.lt, "fib", (-0.2, 0.2), (-0.2, 0.2)),
    "le": (torch.le, "fib", (-0.2, 0.2), (-0.2, 0.2)),
    "gt": (torch.gt, "fib", (-0.2, 0.2), (-0.2, 0.2)),
    "ge": (torch.ge, "fib", (-0.2, 0.2), (-0.2, 0.2)),
    "logical_and": (torch.logical_and, "fibc", R, R),
    "logical_or": (torch.logical_or, "fibc", R, R),
    "logical_xor": (torch.logical_xor, "fibc", R, R),
    "bitwise_and": (torch.bitwise_and, "ib", R, R),
    "bitwise_or": (torch.bitwise_or, "ib", R, R),
    "bitwise_xor": (torch.bitwise_xor, "ib", R, R),
    "shift_left": (torch.bitwise_left_shift, "i", R, (0.0, 4.0)),
    "shift_right": (torch.bitwise_right_shift, "i", R, (0.0, 4.0)),
    "atan2": (torch.atan2, "f", R, R),
}


def isclose(x, y, rtol, atol):
    return (x - y).abs() <= atol + rtol * y.abs()


def clamped_above(x, high):
    return where(x > high, high, x)


more = {
    "hardtanh": (lambda x, l, h: where(x <= l, l, where(x >= h, h, x)), "f", R, (-1.0, -0.5), (0.5, 1.0)),
    "threshold": (lambda x, t, v: where(x > t, x, v), "f", R, (-0.5, 0.5), R),
    "clamp": (lambda x, l, h: clamped_above(where(x < l, l, x), h), "fi", R, (-1.0, -0.2), (0.2, 1.0)),
    "lerp": (lambda x, y, w: x + w * (y - x), "f", R, R, (-0.3, 1.3)),
    "addcmul": (lambda x, y, z, v: x + v * y * z, "fic", R, R, R, R),
    "addcdiv": (lambda x, y, z, v: x + v * y / z, "fc", R, R, D, R),
    "fused_multiply_add": (lambda x, y, z: x * y + z, "f", R, R, R),
    "isclose": (isclose, "f", R, R, (0.1, 0.3), (0.1, 0.5)),
    "nan_to_num": (lambda x, a, b, c: x + 0 * (a + b + c), "f", R, R, R, R),
}


def whole(inputs, sizes, domain):
    """Whole numbers: those of the domain where it has some, small ones elsewhere."""
    low, high = math.ceil(domain[0]), math.floor(domain[1])
    if domain == R:
        low, high = -20, 20
    return inputs.integer(*sizes, low=low, high=high) if low < high else inputs.integer(*sizes, low=0, high=1)


def fill(file):
    for table in (unary, binary, more):
        for name, (function, kinds, *domains) in table.items():
            # Shapes that broadcast, so that gradients have to be summed.
            sizes = [(2, 4)] if len(domains) == 1 else [(2, 1, 4), (3, 1), (4,), ()]
            for kind in kinds:
                key = f"{name}/{kind}"
                x = Inputs(key)
                make = {
                    "f": lambda s, d: x.real(*s, low=d[0], high=d[1]),
                    "c": lambda s, d: x.complex(*s, low=d[0], high=d[1]),
                    "i": lambda s, d: whole(x, s, d),
                    "b": lambda s, d: x.boolean(*s),
                }[kind]
                file.case(key, function, [make(s, d) for s, d in zip(sizes, domains)])
    x = Inputs("heaviside/f")
    at_zero = torch.tensor([[-1.5, 0.0, 2.0], [0.0, -0.25, 0.0]], dtype=torch.float64)
    file.case("heaviside/f", torch.heaviside, [at_zero, x.real(3)], gradients=False)
    x = Inputs("pow/i")
    file.case("pow/i", torch.pow, [x.integer(2, 4, low=-3, high=3), x.integer(4, low=0, high=4)])
    for kind in "fc":
        x = Inputs("where/" + kind)
        make = x.real if kind == "f" else x.complex
        file.case(f"where/{kind}", torch.where, [x.boolean(2, 1, 4), make(3, 1), make(4)])
    # Other dtypes, and how they mix.
    x = Inputs("dtypes")
    for a, b in [("uint8", "int8"), ("int32", "bool"), ("int16", "float32"), ("float64", "complex64"), ("float32", "float64")]:
        inputs = [(x.integer(2, 4, low=0, high=9) % 5).to(getattr(torch, t)) for t in (a, b)]
        for name in ("add", "mul", "eq"):
            file.case(f"{name}/{a}_{b}", getattr(torch, name), inputs, gradients=False)
        file.case(f"div/{a}_{b}", torch.div, [inputs[0], inputs[1] + True], gradients=False)


    # At kinks, the derivative is a convention: PyTorch's.
    for name, (function, values, *numbers) in kinks.items():
        values, *numbers = (torch.tensor(t, dtype=torch.float64) for t in (values, *numbers))
        file.case(f"{name}/kinks", lambda x, *_: function(x), [values, *numbers], gradients="first")


kinks = {
    "relu": (F.relu, [0.0, -0.0]),
    "relu6": (F.relu6, [0.0, 6.0]),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.125), [0.0, -0.0], 0.125),
    "elu": (lambda x: F.elu(x, 1.5), [0.0, -0.0], 1.5),
    "celu": (lambda x: F.celu(x, 1.5), [0.0, -0.0], 1.5),
    "selu": (F.selu, [0.0, -0.0]),
    "softsign": (F.softsign, [0.0, -0.0]),
    "hardtanh": (lambda x: F.hardtanh(x, -1.0, 1.0), [-1.0, 1.0], -1.0, 1.0),
    "hardsigmoid": (F.hardsigmoid, [-3.0, 3.0]),
    "hardswish": (F.hardswish, [-3.0, 3.0]),
    "hardshrink": (lambda x: F.hardshrink(x, 0.5), [-0.5, 0.5], 0.5),
    "softshrink": (lambda x: F.softshrink(x, 0.5), [-0.5, 0.5], 0.5),
    "threshold": (lambda x: F.threshold(x, 0.5, 2.0), [0.5], 0.5, 2.0),
    "abs": (torch.abs, [0.0, -0.0]),
    "clamp": (lambda x: torch.clamp(x, -1.0, 1.0), [-1.0, 1.0], -1.0, 1.0),
    "clamp_min": (lambda x: torch.clamp_min(x, -1.0), [-1.0], -1.0),
    "clamp_max": (lambda x: torch.clamp_max(x, 1.0), [1.0], 1.0),
    "maximum": (lambda x: torch.maximum(x, torch.ones(1, dtype=x.dtype)), [1.0], [1.0]),
    "minimum": (lambda x: torch.minimum(x, torch.ones(1, dtype=x.dtype)), [1.0], [1.0]),
    "sqrt": (torch.sqrt, [0.0]),
    "hypot": (lambda x: torch.hypot(x, torch.zeros(1, dtype=x.dtype)), [3.0, -3.0], [0.0]),
    "sign": (torch.sign, [0.0]),
    "round": (torch.round, [0.5, 1.5, 2.0]),
    "sinc": (torch.sinc, [0.0]),
    "pow": (lambda x: torch.pow(x, torch.tensor([0.0, 1.0, 2.0, 0.5], dtype=x.dtype)), [0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 2.0, 0.5]),
    "xlogy": (lambda x: torch.xlogy(x, torch.tensor([2.0], dtype=x.dtype)), [0.0], [2.0]),
}


# ---- Special values: NaN, infinities, signed zeros, denormals, huge numbers and ordinary ones between.

tiny = {torch.float64: 5e-324, torch.float32: 1e-45}
small = {torch.float64: 1e-310, torch.float32: 1e-39}
huge = {torch.float64: 1e300, torch.float32: 1e37}
most = {torch.float64: 1.7976931348623157e308, torch.float32: 3.4028234663852886e38}


def special(dtype, count):
    a, b, c, d = (t[dtype] for t in (tiny, small, huge, most))
    few = [nan, inf, -inf, 0.0, -0.0, 1.0, -2.5]
    some = few + [0.5, a, -b, c, -c, -1.0]
    many = some + [-a, b, d, -d, 2.0, 3.0, -3.0, 6.0, 1e-3, 20.0, -20.0, 90.0, -90.0, 1e5, -1e5, 0.9999, -0.5, -1.5]
    return torch.tensor({7: few, 13: some, 31: many}[count], dtype=dtype)


# Parameters of activations are numbers here, and the functions PyTorch's own.
with_numbers = {
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.125), [0.125]),
    "elu": (lambda x: F.elu(x, 1.5), [1.5]),
    "celu": (lambda x: F.celu(x, 1.5), [1.5]),
    "softplus": (lambda x: F.softplus(x, 1.0, 60.0), [1.0]),
    "hardshrink": (lambda x: F.hardshrink(x, 0.5), [0.5]),
    "softshrink": (lambda x: F.softshrink(x, 0.5), [0.5]),
    "hardtanh": (lambda x: F.hardtanh(x, -1.0, 1.0), [-1.0, 1.0]),
    "threshold": (lambda x: F.threshold(x, 0.5, 2.0), [0.5, 2.0]),
    "nan_to_num": (lambda x: torch.nan_to_num(x, 7.0, 8.0, -9.0), [7.0, 8.0, -9.0]),
}


# Above, these are written out: PyTorch's gradient of hardsigmoid has 1/6 in f32, and its fmax and fmin give ties to one
# side, ours to both.
own = {"hardsigmoid": F.hardsigmoid, "fmax": torch.fmax, "fmin": torch.fmin, "clamp_min": torch.clamp_min, "clamp_max": torch.clamp_max}


def rounded(function):
    """In f64 and then rounded: what f32 should give, without the shortcuts that PyTorch takes there."""

    def result(x):
        y = function(x.double())
        return y.to(x.dtype) if y.is_floating_point() else y

    return result


def fill_special(file):
    for dtype, suffix in ((torch.float64, ""), (torch.float32, "32")):
        x = special(dtype, 31)
        for name, (function, kinds, _) in unary.items():
            function = own.get(name, function)
            if "f" in kinds:
                file.case(f"{name}/special{suffix}", rounded(function), [x], gradients=False)
        for name, (function, numbers) in with_numbers.items():
            numbers = [torch.tensor(n, dtype=dtype) for n in numbers]
            file.case(f"{name}/special{suffix}", lambda x, *_: rounded(function)(x), [x, *numbers], gradients=False)
        y = special(dtype, 13)
        for name, (function, kinds, *_) in [*binary.items(), ("heaviside", (torch.heaviside, "f"))]:
            function = own.get(name, function)
            if "f" in kinds and name not in with_numbers:
                file.case(f"{name}/special{suffix}", function, [y[:, None], y], gradients=False)
        z = special(dtype, 7)
        grid = [z[:, None, None], z[:, None], z]
        for name, function in [("clamp", torch.clamp), ("lerp", torch.lerp), ("fused_multiply_add", fma(dtype))]:
            file.case(f"{name}/special{suffix}", function, grid, gradients=False)
        file.case(f"where/special{suffix}", torch.where, [torch.tensor([[True], [False]]), z, z.flip(0)], gradients=False)
        one = torch.tensor(2.0, dtype=dtype)
        file.case(f"addcmul/special{suffix}", lambda x, y, z, v: torch.addcmul(x, y, z, value=2.0), [*grid, one], gradients=False)
        file.case(f"addcdiv/special{suffix}", lambda x, y, z, v: torch.addcdiv(x, y, z, value=2.0), [*grid, one], gradients=False)
        close = [torch.tensor(t, dtype=dtype) for t in (0.25, 0.5)]
        file.case(f"isclose/special{suffix}", lambda x, y, r, a: torch.isclose(x, y, 0.25, 0.5), [y[:, None], y, *close], gradients=False)


def fma(dtype):
    """Exact in a wider type; the special values need no more than that."""
    import numpy as np

    def function(x, y, z):
        wide = x.numpy().astype(np.longdouble) * y.numpy().astype(np.longdouble) + z.numpy().astype(np.longdouble)
        return torch.from_numpy(wide.astype(np.float64 if dtype == torch.float64 else np.float32))

    return function
