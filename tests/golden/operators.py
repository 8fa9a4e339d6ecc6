"""Cases of the operators that are not pointwise, in the order of tests/ops/table."""

import math

import torch
import torch.nn.functional as F

from cases import Inputs

inf = math.inf


def fill(file):
    def case(name, function, make, kinds="fc", gradients=True):
        """make(x) gives the inputs, x(sizes...) being values of each kind in turn: f, c, i, b."""
        for kind in kinds:
            x = Inputs(f"{name}/{kind}")
            x.value = {"f": x.real, "c": x.complex, "i": x.integer, "b": lambda *s, **_: x.boolean(*s)}[kind]
            file.case(f"{name}/{kind}", function, make(x), gradients)

    def one(*sizes, **domain):
        return lambda x: [x.value(*sizes, **domain)]

    def several(*shapes):
        return lambda x: [x.value(*s) for s in shapes]

    index = lambda *values: torch.tensor(values)

    # ---- view
    case("view", lambda x: x.view(3, -1), one(2, 3, 2), "fi")
    case("view_dtype", lambda x: x.view(torch.int16), one(2, 4), "fi", gradients=False)
    case("reshape", lambda x: x.reshape(4, -1), one(2, 3, 2))
    case("permute", lambda x: x.permute(2, 0, -2), one(2, 3, 4))
    case("transpose", lambda x: x.transpose(0, -1), one(2, 3, 2))
    case("movedim", lambda x: (x.movedim(0, -1), x.movedim((2, 0), (0, 1))), one(2, 3, 4))
    case("squeeze", lambda x: x.squeeze(), one(1, 3, 1, 2))
    case("squeeze.dim", lambda x: x.squeeze(-2), one(2, 1, 3))
    case("unsqueeze", lambda x: (x.unsqueeze(-1), x.unsqueeze(1)), one(2, 3))
    case("expand", lambda x: x.expand(2, -1, 3, 2), one(3, 1, 2))
    case("narrow", lambda x: x.narrow(1, -3, 2), one(2, 5, 2))
    case("slice", lambda x: (x[..., 1::2], x[-9:9], x[:, 3:1]), one(2, 3, 5))
    case("select", lambda x: x.select(1, -2), one(2, 3, 2))
    case("split", lambda x: x.split(2, 1), one(2, 5))
    case("split.lengths", lambda x: x.split([1, 0, 3], -1), one(2, 4))
    case("chunk", lambda x: x.chunk(3, 0), one(7, 2))
    case("unbind", lambda x: x.unbind(-1), one(2, 3))
    case("flatten", lambda x: (x.flatten(1, -2), x.flatten()), one(2, 2, 3, 2))
    case("as_strided", lambda x: x.as_strided((3, 2), (2, 1), 1), one(2, 4))
    case("diagonal", lambda x: (x.diagonal(1, -1, 0), x.diagonal(-1)), one(4, 2, 3))
    case("unfold", lambda x: x.unfold(1, 3, 2), one(2, 7))
    case("broadcast_tensors", torch.broadcast_tensors, several((3, 1), (2,), ()))
    case("sum_to", lambda x: (x.sum_to_size(3, 1), x.sum()), one(2, 3, 4))
    case("flip", lambda x: x.flip(0, -1), one(2, 3, 2), "fci")
    case("roll", lambda x: (x.roll((1, -2), (0, 1)), x.roll(3)), one(2, 3), "fci")
    case("repeat", lambda x: x.repeat(2, 1, 3), one(2, 2), "fci")
    case("tile", lambda x: (x.tile((2,)), x.tile((2, 1, 3))), one(2, 2), "fci")
    case("diag", lambda x: (x.diag(), x.diag(-1)), one(3), "fci")
    case("diag.matrix", lambda x: (x.diag(), x.diag(1)), one(3, 4), "fci")
    case("meshgrid", lambda *x: torch.meshgrid(*x, indexing="ij"), several((2,), (3,), ()), "fci")
    case("meshgrid.columns", lambda *x: torch.meshgrid(*x, indexing="xy"), several((2,), (3,), (2,)), "fci")
    case("repeat_interleave", lambda x: x.repeat_interleave(2, 1), one(2, 3), "fci")
    case("cat", lambda *x: torch.cat(x, 1), several((2, 3), (2, 1), (2, 0)), "fci")
    case("stack", lambda *x: (torch.stack(x, -1), torch.stack(x, 0)), several((2, 3), (2, 3)), "fci")
    case("pad", lambda x: F.pad(x, (1, 2, 0, 1), value=1.5), one(2, 3))
    case("pad.crop", lambda x: F.pad(x, (-1, 2, 1, -1)), one(3, 3), "fci")
    for mode, pads in [("reflect", (1, 2, 2, 1)), ("replicate", (1, 2, 0, 3)), ("circular", (1, 2, 0, 1))]:
        case(f"pad.{mode}", lambda x: F.pad(x, pads, mode=mode), one(1, 2, 3, 4), "fc")

    # ---- create, convert, complex, sparse
    double = torch.float64
    none = lambda x: []
    case("arange", lambda: (torch.arange(5), torch.arange(2, 9, 3), torch.arange(7, 0, -2), torch.arange(0.5, 3.0, 0.75, dtype=double)), none, "f")
    case("linspace", lambda: (torch.linspace(-1, 2, 7, dtype=double), torch.linspace(3, 3, 1, dtype=double)), none, "f")
    case("eye", lambda: (torch.eye(3), torch.eye(2, 4, dtype=torch.int64)), none, "f")
    case("tril_indices", lambda: (torch.tril_indices(3, 4), torch.tril_indices(3, 3, -1)), none, "f")
    case("triu_indices", lambda: (torch.triu_indices(3, 4), torch.triu_indices(3, 3, 1)), none, "f")
    case("zeros_like", torch.zeros_like, one(2, 3), "fci", gradients=False)
    case("ones_like", torch.ones_like, one(2, 3), "fci", gradients=False)
    case("full_like", lambda x: torch.full_like(x, 1), one(2, 3), "fci", gradients=False)
    case("tril", lambda x: (x.tril(), x.tril(-1)), one(3, 4), "fcib")
    case("triu", lambda x: (x.triu(), x.triu(1)), one(2, 3, 4), "fcib")
    file.case("cast/f", lambda x: x.to(torch.complex128), [Inputs("cast/f").real(2, 3)])
    file.case("cast/i", lambda x: x.to(torch.complex128), [Inputs("cast/i").integer(2, 3)])
    file.case("cast.real/c", torch.real, [Inputs("cast.real/c").complex(2, 3)])
    file.case("cast.real/i", lambda x: x.to(double), [Inputs("cast.real/i").integer(2, 3)])
    for name in ("copy_to", "clone", "contiguous"):
        case(name, lambda x: x.clone(), one(2, 3), "fci")
    case("clone.channels_last", lambda x: x.clone(), one(2, 3, 2, 2))
    case("real", lambda x: torch.real(x).clone(), one(2, 3))
    case("imag", lambda x: torch.imag(x).clone(), one(2, 3), "c")
    case("angle", torch.angle, one(2, 3))
    case("view_as_real", lambda x: torch.view_as_real(x).clone(), one(2, 3), "c")
    case("view_as_complex", torch.view_as_complex, one(3, 2), "f")
    case("complex", torch.complex, several((2, 3), (2, 3)), "f")

    def dense(values):
        entries = torch.stack([torch.stack([values[0] * 0, values[0] + values[2]]), torch.zeros(2, dtype=values.dtype), torch.stack([values[1], values[1] * 0])])
        return entries

    case("sparse_coo", dense, one(3))
    case("to_dense", dense, one(3))
    case("coalesce", lambda v: torch.stack([v[0] + v[2], v[1]]), one(3))
    case("sparse_values", lambda v: v.clone(), one(2))
    case("sparse_indices", lambda v: torch.tensor([[0, 2], [1, 0]]), one(3), gradients=False)
    case("to_sparse", lambda x: (x.clone(), x.clone()), one(3, 2))

    # ---- reduce
    case("sum", lambda x: x.sum(), one(2, 3), "fcib")
    case("sum.dims", lambda x: (x.sum((0, -1)), x.sum(1, True)), one(2, 3, 4), "fcib")
    case("sum.dtype", lambda x: x.to(torch.complex128).sum(1), one(2, 3), "fi")
    case("mean", lambda x: x.mean(), one(2, 3))
    case("mean.dims", lambda x: (x.mean((0, -1)), x.mean(1, True)), one(2, 3, 4))
    case("prod", lambda x: x.prod(), one(2, 3), "fcib")
    case("prod.dims", lambda x: (x.prod(0).prod(0), x.prod(-1, True)), one(2, 3, 2), "fci")
    zeros = torch.tensor([[1, 0, 1], [0, 1, 0]])
    case("prod.zeros", lambda x: (x * zeros).prod(1), one(2, 3, low=0.5))
    distinct = lambda *sizes: lambda x: [x.distinct(*sizes)]
    ties = torch.tensor([[1.5, 0.5, 1.5], [-2.0, -2.0, 1.5]], dtype=double)
    for name, f in (("amax", torch.amax), ("amin", torch.amin)):
        case(name, lambda x: (f(x, (0, 1, 2)), f(x, (0, 2)), f(x, -1, True)), distinct(2, 3, 2), "f")
        case(name, lambda x: (f(x, (0, 1, 2)), f(x, (0, 2)), f(x, -1, True)), one(2, 3, 2), "ib")
        file.case(f"{name}/ties", lambda x: (f(x, (0, 1, 2)), f(x, (0, 2)), f(x, -1, True)), [ties.reshape(1, 2, 3)])
    for name, f in (("max", torch.max), ("min", torch.min)):
        case(name, f, distinct(2, 3), "f")
        case(name, f, one(2, 3), "ib")
        # With ties: the gradient is shared, and the first index is taken.
        file.case(f"{name}/ties", f, [ties])
        along = (lambda x: f(x, 1)) if name == "max" else (lambda x: f(x, -1, True))
        case(f"{name}.dim", along, distinct(2, 3, 2), "f")
        case(f"{name}.dim", along, distinct_whole(2, 3, 2), "i")
    for name, f in (("argmax", torch.argmax), ("argmin", torch.argmin)):
        case(name, lambda x: (f(x), f(x, 0), f(x, -1, True)), distinct(3, 4), "f", gradients=False)
        case(name, lambda x: (f(x), f(x, 0), f(x, -1, True)), distinct_whole(3, 4), "i", gradients=False)
    for name, f in (("all", torch.all), ("any", torch.any)):
        case(name, lambda x: (f(x), f(x, 1), f(x, 0, True)), one(3, 4), "fcib", gradients=False)
    nonzeros = lambda x: (x.count_nonzero(), x.count_nonzero(1), x.count_nonzero(0)[None])
    case("count_nonzero", nonzeros, lambda x: [x.value(3, 4) * x.boolean(3, 4)], "fcib", gradients=False)
    norm = torch.linalg.vector_norm
    case("norm", lambda x: (norm(x), norm(x, 2, 1), norm(x, 2, 0, True)), one(3, 4))
    case("norm.1", lambda x: (norm(x, 1), norm(x, 1, -1)), one(3, 4))
    case("norm.3", lambda x: (norm(x, 3), norm(x, 3, 0)), one(3, 4))
    case("norm.half", lambda x: norm(x, 0.5, 0), one(3, 4))
    case("norm.infinity", lambda x: (norm(x, inf), norm(x, -inf, 1)), distinct(3, 4), "f")
    case("norm.0", lambda x: (norm(x, 0), norm(x, 0, 1)), one(3, 4), gradients=False)
    for name, f in (("var", torch.var), ("stddev", torch.std)):
        case(name, lambda x: (f(x), f(x, 1), f(x, (0, 1), correction=0, keepdim=True)), one(3, 4))
    case("trace", torch.trace, one(3, 4), "fci")
    case("median", torch.median, distinct(2, 4), "f")
    case("median", torch.median, distinct_whole(2, 4), "i")
    case("median.dim", lambda x: (*x.median(1), *x.median(0, True)), distinct(3, 4), "f")
    file.case("median.dim/nan", lambda x: (*x.median(1), *x.median(0, True)), [torch.tensor([[1.0, math.nan, -inf], [2.0, 0.5, 3.0]], dtype=double)], gradients=False)
    case("logsumexp", lambda x: (x.logsumexp((0, 1)), x.logsumexp(1), x.logsumexp((0, 1), True)), one(3, 4), "f")
    case("cumsum", lambda x: (x.cumsum(0), x.cumsum(-1)), one(2, 3, 2), "fcib")
    case("cumprod", lambda x: (x.cumprod(0), x.cumprod(-1)), one(2, 3), "fcib")
    file.case("cumprod/zeros", lambda x: (x.cumprod(0), x.cumprod(-1)), [torch.tensor([[2.0, 0.0, 1.5], [0.5, 0.0, 0.0]], dtype=double)])
    case("softmax", lambda x: (x.softmax(-1), x.softmax(0)), one(2, 3, 2), "f")
    case("log_softmax", lambda x: (x.log_softmax(-1), x.log_softmax(0)), one(2, 3, 2), "f")

    case("softmax.dtype", lambda x: (x.softmax(0, dtype=double), x.log_softmax(-1, dtype=double)), one(2, 3), "fi")
    case("cumsum.dtype", lambda x: (x.cumsum(0, dtype=double), x.cumprod(-1, dtype=double)), one(2, 3), "fi")

    # ---- matmul
    dot = lambda a, b: (a * b).sum()  # torch.dot of complex numbers is 0 with some builds of BLAS
    case("mm", torch.mm, several((2, 3), (3, 4)), "fci")
    case("mv", torch.mv, several((2, 3), (3,)), "fci")
    case("bmm", torch.bmm, several((2, 2, 3), (2, 3, 2)), "fci")
    case("matmul.1x1", dot, several((3,), (3,)), "fci")
    case("matmul.2x1", torch.matmul, several((2, 3), (3,)), "fci")
    case("matmul.1x2", torch.matmul, several((3,), (3, 2)), "fci")
    case("matmul.2x2", torch.matmul, several((2, 3), (3, 2)), "fci")
    case("matmul.3x2", torch.matmul, several((2, 2, 3), (3, 2)), "fci")
    case("matmul.batches", torch.matmul, several((2, 1, 2, 3), (2, 3, 2)), "fci")
    both = lambda f: lambda c, a, b: (f(c, a, b), f(c, a, b, beta=2, alpha=3))
    case("addmm", both(torch.addmm), several((2, 4), (2, 3), (3, 4)), "fci")
    case("baddbmm", both(torch.baddbmm), several((2, 2, 2), (2, 2, 3), (2, 3, 2)), "fci")
    case("dot", dot, several((4,), (4,)), "fci")
    case("outer", torch.outer, several((2,), (3,)), "fci")
    tensordot = lambda a, b: (torch.tensordot(a, b, 2), torch.tensordot(a, b, ([1], [0])), torch.tensordot(a, b, 0))
    case("tensordot", tensordot, several((2, 3, 2), (3, 2, 2)))
    e = torch.einsum
    case("einsum", lambda a, b: e("bij,bjk->bik", a, b), several((2, 2, 3), (2, 3, 2)))
    case("einsum.trace", lambda a: (e("ii", a), e("ii->i", a).clone(), e("ij->ji", a).clone()), one(3, 3))
    case("einsum.ellipsis", lambda a, b: e("...i,ij->...j", a, b), several((2, 2, 3), (3, 2)))
    case("einsum.implicit", lambda a, b: (e("ij,jk", a, b), e("ij,jk->", a, b)), several((2, 3), (3, 2)))
    case("einsum.three", lambda a, b, c: (e("i,ij,j", a, b, c), e("a,ab,b->ab", a, b, c)), several((2,), (2, 3), (3,)))

    # ---- index
    case("index.basic", lambda x: (x[1], x[1:, ..., -1], x[..., None, ::2]), one(3, 2, 4), "fci")
    pick = index([0, -1], [1, 0])
    case("index.tensor", lambda x, i: (x[i], x[:, i % 2]), lambda x: [x.value(3, 2), pick], "fci")
    two = lambda x: [x.value(3, 2, 2), index(0, 2, 0), index(1, 0, 1)]
    case("index.tensors", lambda x, i, j: (x[i, :, j], x[i, j]), two, "fci")
    mask = torch.tensor([[True, False, True], [False, False, True]])
    case("index.mask", lambda x, m: (x[m], x[1, m[0]]), lambda x: [x.value(2, 3), mask], "fci")

    def put(x, i, v, w):
        return x.index_put((i,), v), torch.stack([x[:, 0], w], 1)

    case("index_put", put, lambda x: [x.value(3, 2), index(2, 0), x.value(2, 2), x.value(3)], "fci")
    case("index_put.accumulate", lambda x, i, v: x.index_put((i,), v, True), lambda x: [x.value(3, 2), index(0, 2, 0), x.value(3, 2)], "fci")
    case("gather", lambda x, i: x.gather(0, i), lambda x: [x.value(3, 2), index([0, 2], [1, 0])], "fci")
    case("scatter", lambda x, i, s: x.scatter(0, i, s), lambda x: [x.value(3, 2), index([0, 2], [1, 0]), x.value(2, 2)], "fci")
    add = lambda x: [x.value(2, 3), index([0, 0, 2], [1, 1, 1]), x.value(2, 3)]
    case("scatter_add", lambda x, i, s: x.scatter_add(1, i, s), add, "fci")
    case("index_select", lambda x, i: x.index_select(1, i), lambda x: [x.value(2, 3), index(2, 0, 0, 1)], "fci")
    case("index_add", lambda x, i, s: x.index_add(0, i, s), lambda x: [x.value(3, 2), index(0, 2, 0, 0), x.value(4, 2)], "fci")
    case("index_copy", lambda x, i, s: x.index_copy(0, i, s), lambda x: [x.value(3, 2), index(2, 0), x.value(2, 2)], "fci")
    case("index_fill", lambda x, i, v: x.index_fill(1, i, v), lambda x: [x.value(2, 3), index(2, 0), x.value()], "fci")
    case("masked_select", torch.masked_select, lambda x: [x.value(2, 3), mask], "fci")
    case("masked_fill", torch.masked_fill, lambda x: [x.value(2, 3), mask, x.value()], "fci")
    case("nonzero", torch.nonzero, lambda x: [x.value(2, 3) * x.boolean(2, 3)], "fcib", gradients=False)
    case("topk", lambda x: x.topk(2), distinct(2, 5), "f")
    case("topk", lambda x: x.topk(2), distinct_whole(2, 5), "i")
    case("topk.smallest", lambda x: x.topk(2, 0, False), distinct(4, 3), "f")
    stable = lambda x, dim=-1, descending=False: torch.sort(x, stable=True, dim=dim, descending=descending)
    case("sort", stable, distinct(2, 5), "f")
    case("sort", stable, lambda x: [x.integer(2, 5, low=0, high=2)], "i")
    file.case("sort/nan", stable, [torch.tensor([[1.0, math.nan, -inf, inf, -0.0, 0.0]], dtype=double)])
    case("sort.descending", lambda x: stable(x, 0, True), distinct(4, 3), "f")
    case("sort.descending", lambda x: stable(x, 0, True), lambda x: [x.integer(5, 2, low=0, high=2)], "i")
    case("argsort", lambda x: (stable(x)[1], stable(x, 0, True)[1]), distinct(4, 3), "f", gradients=False)
    case("kthvalue", lambda x: (*x.kthvalue(2), *x.kthvalue(3, 0, True)), distinct(3, 4), "f")
    case("kthvalue", lambda x: (*x.kthvalue(2), *x.kthvalue(3, 0, True)), distinct_whole(3, 4), "i")
    case("bincount", lambda i: (torch.bincount(i), torch.bincount(i, minlength=7)), lambda x: [index(0, 3, 1, 3)], "i")
    hot = lambda x: [index([0, 3, 1], [2, 2, 0])]
    case("one_hot", lambda i: F.one_hot(i, 4), hot, "i")
    case("one_hot.unknown", lambda i: F.one_hot(i), hot, "i")


def distinct_whole(*sizes):
    return lambda x: [(x.distinct(*sizes) * 8).round().long()]
