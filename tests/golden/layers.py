"""PyTorch's layers: what tests/nn/layers_test.cpp loads by load_state_dict and compares.

<case>/in<i>: inputs; /state/<name>: parameters and buffers before; /after/<name>: buffers after; /out<i>: outputs;
/grads and /seconds: the gradients of Σ weights·outputs and of Σ weights·gradients by the floating-point inputs and then
by the parameters in the order of their names, all in one flat array, zeros where none flows. Where PyTorch has no
second gradient, there is no /seconds.
"""

import math

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from cases import Inputs, as_list, weights


class RMSNorm(nn.Module):
    def __init__(self, sizes, eps=1e-6, affine=True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(sizes)) if affine else None
        self.eps, self.dims = eps, tuple(range(-len(sizes), 0))

    def forward(self, x):
        y = x / (x.square().mean(self.dims, keepdim=True) + self.eps).sqrt()
        return y if self.weight is None else y * self.weight


class Hardsigmoid(nn.Module):
    """PyTorch's own has 1/6 in f32, and neither has second gradients."""

    def forward(self, x):
        return nn.functional.hardtanh(x + 3, 0.0, 6.0) / 6


class Hardswish(nn.Module):
    def forward(self, x):
        return x * nn.functional.hardtanh(x + 3, 0.0, 6.0) / 6


class WithoutBias(nn.Module):
    """A norm that has a weight only."""

    def __init__(self, norm, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.norm = norm

    def forward(self, x):
        return self.norm(x, self.weight)


class Bag(nn.Module):
    """EmbeddingBag of public operators, which has second gradients."""

    def __init__(self, entries, width, mode, padding_idx=None, include_last_offset=False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(entries, width))
        self.mode, self.padding_idx, self.has_last = mode, padding_idx, include_last_offset

    def forward(self, ids, offsets=None, factors=None):
        if offsets is None:
            offsets, ids = torch.arange(0, ids.numel(), ids.shape[1]), ids.flatten()
        ends = offsets.tolist()[1:] + ([] if self.has_last else [len(ids)])
        bags = []
        for begin, end in zip(offsets.tolist(), ends):
            keep = [i for i in range(begin, end) if ids[i].item() != self.padding_idx]
            rows = self.weight[ids[keep]]
            if factors is not None:
                rows = rows * factors[keep].unsqueeze(1)
            if not keep:
                bags.append(self.weight[:1].sum(0) * 0)
            elif self.mode == "max":
                bags.append(rows.max(0).values)
            else:
                bags.append(rows.mean(0) if self.mode == "mean" else rows.sum(0))
        return torch.stack(bags)


class Fair(nn.Module):
    """Embedding with scale_grad_by_freq of public operators: of each row, the part that counts is differentiated."""

    def __init__(self, entries, width, padding_idx=None):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(entries, width))
        self.padding_idx = padding_idx

    def forward(self, ids):
        counts = torch.bincount(ids.flatten(), minlength=len(self.weight))
        share = (1 / counts.clamp(min=1).double()).unsqueeze(1)
        if self.padding_idx is not None:
            share[self.padding_idx] = 0
        return (self.weight * share + (self.weight * (1 - share)).detach())[ids]


def flat(gradients, wanted):
    return torch.cat([(torch.zeros_like(w) if g is None else g.to_dense()).flatten() for g, w in zip(gradients, wanted)])


class Layers:
    def __init__(self, file):
        self.file = file

    def case(self, key, module, *inputs, run=None, orders=2, train=True, low=-2.0, size=1.0):
        """An input is a shape, or a tensor."""
        r = Inputs(key)
        module = module.double().train(train)
        with torch.no_grad():
            for name, p in sorted(module.named_parameters()):
                p.copy_(r.real(*p.shape, low=-size, high=size))
            for name, b in sorted(module.named_buffers()):
                if b.is_floating_point():
                    b.copy_(r.real(*b.shape, low=0.25, high=2))
        inputs = [r.real(*x, low=low) if isinstance(x, tuple) else x for x in inputs]
        for i, x in enumerate(inputs):
            self.put(f"{key}/in{i}", x)
        for name, t in module.state_dict().items():
            self.put(f"{key}/state/{name}", t)
        wanted = [x.requires_grad_() for x in inputs if x.is_floating_point()]
        wanted += [p for _, p in sorted(module.named_parameters())]
        outputs = as_list(run(module, *inputs) if run else module(*inputs))
        for i, y in enumerate(outputs):
            self.file.put(f"{key}/out{i}", y)
        for name, b in module.named_buffers():
            self.file.put(f"{key}/after/{name}", b)
        if orders == 0:
            return
        roots = [y for y in outputs if y.requires_grad]
        grads = torch.autograd.grad(roots, wanted, [weights(y) for y in roots], allow_unused=True, create_graph=orders > 1)
        self.file.put(f"{key}/grads", flat(grads, wanted))
        if orders < 2:
            return
        roots = [g for g in grads if g is not None and g.requires_grad]
        seconds = [None] * len(wanted)
        if roots:
            seconds = torch.autograd.grad(roots, wanted, [weights(g) for g in roots], allow_unused=True)
        self.file.put(f"{key}/seconds", flat(seconds, wanted))

    def put(self, key, x):
        """Inputs have few digits: f32 holds them."""
        self.file.put(key, x.float() if x.is_floating_point() else x)


def linear(c):
    c.case("linear", nn.Linear(3, 4), (2, 3))
    c.case("linear.deep", nn.Linear(3, 4), (2, 2, 3))
    c.case("linear.one", nn.Linear(3, 4, bias=False), (3,))
    c.case("bilinear", nn.Bilinear(2, 3, 2), (4, 2), (4, 3))
    c.case("bilinear.nobias", nn.Bilinear(2, 3, 2, bias=False), (2, 2, 2), (2, 2, 3))
    c.case("sequential", nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 2))), (2, 3))


def conv(c):
    c.case("conv1d", nn.Conv1d(2, 3, 3, stride=2, padding=1), (2, 2, 7))
    c.case("conv1d.circular", nn.Conv1d(2, 2, 3, padding=2, padding_mode="circular"), (2, 2, 5))
    c.case("conv2d", nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2), (2, 2, 5, 6))
    c.case("conv2d.nobias", nn.Conv2d(2, 2, 2, bias=False), (2, 3, 3))
    c.case("conv2d.same", nn.Conv2d(2, 2, (2, 3), padding="same", dilation=(1, 2)), (1, 2, 4, 5))
    c.case("conv2d.reflect", nn.Conv2d(2, 2, 3, padding=(1, 2), padding_mode="reflect"), (1, 2, 4, 4))
    c.case("conv2d.replicate", nn.Conv2d(2, 2, 3, padding=(1, 2), stride=2, padding_mode="replicate"), (1, 2, 4, 4))
    c.case("conv2d.circular", nn.Conv2d(2, 2, 3, padding=(1, 2), padding_mode="circular"), (1, 2, 4, 4))
    c.case("conv2d.same.circular", nn.Conv2d(2, 2, (4, 3), padding="same", padding_mode="circular"), (1, 2, 5, 4))
    same = nn.Conv2d(2, 2, (2, 3), padding="same", dilation=(1, 2), padding_mode="replicate")
    c.case("conv2d.same.replicate", same, (1, 2, 3, 4))
    c.case("conv2d.same.reflect", nn.Conv2d(2, 2, (4, 3), padding="same", padding_mode="reflect"), (1, 2, 5, 4))
    c.case("conv3d", nn.Conv3d(2, 2, 2, stride=(1, 2, 1), padding=1), (1, 2, 2, 3, 3))
    c.case("conv3d.replicate", nn.Conv3d(1, 2, 2, padding=(0, 1, 2), padding_mode="replicate"), (1, 1, 2, 2, 3))
    c.case("conv1d.reflect", nn.Conv1d(2, 2, 3, padding=2, stride=2, padding_mode="reflect"), (2, 2, 5))
    c.case("conv1d.replicate", nn.Conv1d(2, 2, 3, padding=2, dilation=2, padding_mode="replicate"), (2, 2, 5))
    c.case("conv1d.same", nn.Conv1d(2, 2, 4, padding="same", dilation=3), (1, 2, 6))
    c.case("conv3d.groups", nn.Conv3d(2, 4, (1, 2, 2), dilation=(1, 2, 1), groups=2, bias=False), (1, 2, 2, 4, 3))
    c.case("conv3d.reflect", nn.Conv3d(1, 2, 2, padding=(1, 0, 2), padding_mode="reflect"), (1, 1, 2, 2, 3))
    c.case("conv3d.circular", nn.Conv3d(1, 2, 2, padding=(1, 0, 2), padding_mode="circular"), (1, 1, 2, 2, 3))
    c.case("conv3d.same", nn.Conv3d(1, 2, (2, 1, 3), padding="same", dilation=(1, 1, 2)), (1, 1, 3, 2, 4))
    c.case("transpose1d", nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, output_padding=1), (2, 2, 4))
    c.case("transpose2d", nn.ConvTranspose2d(4, 2, (3, 2), stride=(2, 1), padding=(1, 0), groups=2), (1, 4, 3, 3))
    c.case("transpose2d.nobias", nn.ConvTranspose2d(2, 2, 2, dilation=2, bias=False), (2, 2, 3, 3))
    c.case("transpose1d.groups", nn.ConvTranspose1d(4, 2, 3, stride=2, dilation=2, groups=2, bias=False), (1, 4, 3))
    c.case("transpose3d.groups", nn.ConvTranspose3d(2, 4, (1, 2, 2), dilation=(1, 1, 2), groups=2, bias=False), (1, 2, 2, 2, 2))
    c.case("transpose3d", nn.ConvTranspose3d(2, 2, 2, stride=(1, 2, 1), output_padding=(0, 1, 0)), (1, 2, 2, 2, 3))


def pool(c):
    r = Inputs("pool")
    x1, x2, x3 = r.distinct(2, 2, 7), r.distinct(1, 2, 5, 6), r.distinct(1, 2, 4, 3, 4)
    c.case("max1d", nn.MaxPool1d(3, stride=2, padding=1), x1)
    c.case("avg1d", nn.AvgPool1d(3, stride=2, padding=1, count_include_pad=False), x1)
    c.case("amax1d", nn.AdaptiveMaxPool1d(3), x1)
    c.case("aavg1d", nn.AdaptiveAvgPool1d(3), x1)
    c.case("max2d", nn.MaxPool2d((2, 3), ceil_mode=True, dilation=(2, 1)), x2)
    c.case("avg2d", nn.AvgPool2d((2, 3), stride=(1, 2), padding=1, ceil_mode=True), x2)
    c.case("amax2d", nn.AdaptiveMaxPool2d((2, 4)), x2)
    c.case("aavg2d", nn.AdaptiveAvgPool2d((2, 4)), x2)
    c.case("max3d", nn.MaxPool3d(2, stride=1), x3)
    c.case("avg3d", nn.AvgPool3d(2, stride=(2, 1, 1)), x3)
    c.case("max1d.ceil", nn.MaxPool1d(2, stride=3, dilation=2, ceil_mode=True), x1)
    c.case("avg1d.ceil", nn.AvgPool1d(2, stride=2, ceil_mode=True), x1)
    c.case("max3d.ceil", nn.MaxPool3d(2, stride=(3, 2, 1), dilation=(1, 1, 2), ceil_mode=True), x3)
    c.case("avg3d.ceil", nn.AvgPool3d(2, stride=(3, 2, 2), padding=1, ceil_mode=True, count_include_pad=False), x3)
    c.case("avg3d.divisor", nn.AvgPool3d(2, stride=2, padding=1, divisor_override=3), x3)
    c.case("amax3d", nn.AdaptiveMaxPool3d((2, 1, 2)), x3)
    c.case("aavg3d", nn.AdaptiveAvgPool3d((2, 1, 2)), x3)


def norm(c):
    def two(module, first, x):
        module(first)
        return module(x)

    # The gradient by the first of two batches is none.
    shapes = {"1d": (4, 3), "1d.long": (2, 3, 4), "2d": (3, 2, 2, 3), "3d": (2, 2, 2, 2, 2)}
    makers = {"1d": nn.BatchNorm1d, "2d": nn.BatchNorm2d, "3d": nn.BatchNorm3d}
    for label, shape in shapes.items():
        make = makers[label[:2]]
        c.case(f"batch{label}", make(shape[1]), shape, shape, run=two)
        c.case(f"batch{label}.eval", make(shape[1]), shape, train=False)
    c.case("batch2d.average", nn.BatchNorm2d(2, momentum=None, eps=1e-2), (3, 2, 2, 3), (3, 2, 2, 3), run=two)
    c.case("batch1d.plain", nn.BatchNorm1d(3, affine=False, momentum=0.3), (4, 3), (4, 3), run=two)
    c.case("batch2d.untracked", nn.BatchNorm2d(2, track_running_stats=False), (3, 2, 2, 3), train=False)
    c.case("batch2d.untracked.train", nn.BatchNorm2d(2, track_running_stats=False), (3, 2, 2, 3))
    c.case("instance1d", nn.InstanceNorm1d(3), (2, 3, 4))
    c.case("instance2d.plain", nn.InstanceNorm2d(2, track_running_stats=True), (2, 2, 2, 3))
    c.case("instance2d.plain.eval", nn.InstanceNorm2d(2, track_running_stats=True), (2, 2, 2, 3), train=False)
    c.case("instance2d", nn.InstanceNorm2d(2, affine=True, eps=1e-3), (2, 2, 2, 3))
    c.case("instance2d.tracked", nn.InstanceNorm2d(2, affine=True, track_running_stats=True), (2, 2, 2, 3))
    c.case("instance2d.eval", nn.InstanceNorm2d(2, affine=True, track_running_stats=True), (2, 2, 2, 3), train=False)
    c.case("instance3d", nn.InstanceNorm3d(2, affine=True), (2, 2, 2, 2, 2))
    for label, make, shape in [("1d", nn.InstanceNorm1d, (2, 3, 4)), ("3d", nn.InstanceNorm3d, (2, 2, 2, 2, 2))]:
        c.case(f"instance{label}.tracked", make(shape[1], affine=True, track_running_stats=True, momentum=0.3), shape)
        c.case(f"instance{label}.eval", make(shape[1], affine=True, track_running_stats=True), shape, train=False)
    c.case("layer.nobias", WithoutBias(lambda x, w: nn.functional.layer_norm(x, (4,), w), 4), (3, 4))
    c.case("group.nobias", WithoutBias(lambda x, w: nn.functional.group_norm(x, 2, w), 4), (2, 4, 3))
    c.case("layer", nn.LayerNorm(4), (3, 4))
    c.case("layer.two", nn.LayerNorm((2, 3), eps=1e-2), (2, 2, 3))
    c.case("layer.plain", nn.LayerNorm(4, elementwise_affine=False), (3, 4))
    c.case("group", nn.GroupNorm(2, 4), (2, 4, 3))
    c.case("group.plain", nn.GroupNorm(1, 4, affine=False, eps=1e-2), (2, 4, 2, 2))
    c.case("rms", RMSNorm((4,)), (3, 4))
    c.case("rms.two", RMSNorm((2, 3), eps=1e-2), (2, 2, 3))
    c.case("rms.plain", RMSNorm((4,), affine=False), (3, 4))


def embedding(c):
    ids = torch.tensor([[1, 4, 2], [2, 0, 1]])
    c.case("embedding", nn.Embedding(5, 3), ids)
    c.case("embedding.padding", nn.Embedding(5, 3, padding_idx=1, scale_grad_by_freq=True), ids, orders=1)
    c.case("embedding.sparse", nn.Embedding(5, 3, sparse=True), ids, orders=1)
    line, offsets = ids.flatten(), torch.tensor([0, 2, 2])
    c.case("bag.sum", nn.EmbeddingBag(5, 3, mode="sum"), ids, orders=1)
    c.case("bag.twice.sum", Bag(5, 3, "sum", padding_idx=1), line, offsets)
    c.case("bag.twice.mean", Bag(5, 3, "mean"), line, offsets)
    c.case("bag.twice.max", Bag(5, 3, "max"), line, offsets)
    c.case("bag.twice.weighted", Bag(5, 3, "sum", padding_idx=4), line, offsets, (6,))
    # Bags are linear in the table; squares of them have second gradients that are not zero.
    squared = lambda m, *x: m(*x).square()
    c.case("embedding.fair", Fair(5, 3, padding_idx=1), ids, run=squared)
    c.case("bag.squared.mean", Bag(5, 3, "mean", padding_idx=1), line, offsets, run=squared)
    c.case("bag.squared.max", Bag(5, 3, "max", padding_idx=4), line, offsets, run=squared)
    c.case("bag.squared.matrix", Bag(5, 3, "mean"), ids, run=squared)
    c.case("bag.squared.matrix.max", Bag(5, 3, "max"), ids, run=squared)
    last = Bag(5, 3, "mean", padding_idx=2, include_last_offset=True)
    c.case("bag.squared.last", last, line, torch.tensor([0, 2, 2, 6]), run=squared)
    weighted = lambda m, i, o, w: m(i, o, w)
    c.case("bag.sparse.weighted", nn.EmbeddingBag(5, 3, mode="sum", sparse=True), line, offsets, (6,), run=weighted, orders=1)
    c.case("bag.sparse.padding", nn.EmbeddingBag(5, 3, mode="sum", sparse=True, padding_idx=1), line, offsets, orders=1)
    c.case("bag.sparse", nn.EmbeddingBag(5, 3, mode="sum", sparse=True), ids, orders=1)
    c.case("bag.last", nn.EmbeddingBag(5, 3, mode="mean", include_last_offset=True), line, torch.tensor([0, 2, 6]), orders=1)
    # What is shortened in place is seen in "after", which holds no parameters: hence as an output.
    shortened = lambda m, i: (m(i), m.weight.detach().clone())
    c.case("embedding.norm", nn.Embedding(5, 3, max_norm=1.0), ids, run=shortened, orders=1)
    c.case("embedding.norm1", nn.Embedding(5, 3, max_norm=1.5, norm_type=1.0), ids, run=shortened, orders=1)
    c.case("bag.norm", nn.EmbeddingBag(5, 3, max_norm=1.0, norm_type=3.0), ids, run=shortened, orders=1)
    c.case("bag.mean", nn.EmbeddingBag(5, 3, padding_idx=2), line, offsets, orders=1)
    c.case("bag.max", nn.EmbeddingBag(5, 3, mode="max"), line, offsets, orders=1)
    run = lambda m, i, o, w: m(i, o, w)
    c.case("bag.weighted", nn.EmbeddingBag(5, 3, mode="sum"), line, offsets, (6,), run=run, orders=1)


def recurrent(c):
    def plain(module, x):
        y, last = module(x)
        return (y, *as_list(last))

    def started(module, x, *state):
        y, last = module(x, state if len(state) > 1 else state[0])
        return (y, *as_list(last))

    def lengths(module, x, n):
        y, last = module(pack_padded_sequence(x, n, batch_first=module.batch_first, enforce_sorted=False))
        y = pad_packed_sequence(y, batch_first=module.batch_first, total_length=x.shape[1 if module.batch_first else 0])[0]
        return (y, *as_list(last))

    for name, make in {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}.items():
        states = 2 if name == "lstm" else 1
        c.case(name, make(3, 2), (3, 2, 3), run=plain)
        c.case(f"{name}.deep", make(2, 2, num_layers=2, bidirectional=True), (3, 2, 2), run=plain)
        c.case(f"{name}.first", make(2, 2, bias=False, batch_first=True), (2, 3, 2), *[(1, 2, 2)] * states, run=started)
        long = make(2, 2, batch_first=True, bidirectional=True)
        c.case(f"{name}.lengths", long, (3, 4, 2), torch.tensor([2, 4, 1]), run=lengths)
    c.case("rnn.relu", nn.RNN(3, 2, nonlinearity="relu"), (3, 2, 3), run=plain)
    c.case("lstm.projection", nn.LSTM(2, 3, num_layers=2, proj_size=2), (3, 2, 2), run=plain)
    c.case("lstm.projection.first", nn.LSTM(2, 3, bias=False, batch_first=True, proj_size=2), (2, 3, 2), run=plain)
    both = nn.LSTM(2, 3, bidirectional=True, proj_size=2)
    c.case("lstm.projection.lengths", both, (4, 3, 2), torch.tensor([2, 4, 1]), run=lengths)
    c.case("lstm.single", nn.LSTM(3, 2), (3, 3), run=plain)


def attention(c):
    def attend(module, q, k, v, **options):
        return module(q, k, v, need_weights=False, **options)[0]

    def own(module, x, **options):
        return attend(module, x, x, x, **options)

    make = nn.MultiheadAttention
    banned = torch.triu(torch.ones(3, 3, dtype=torch.bool), 1)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    c.case("attention", make(4, 2), (3, 2, 4), run=own)
    c.case("attention.first", make(4, 2, batch_first=True), (2, 3, 4), run=own)
    c.case("attention.single", make(4, 2), (3, 4), run=own)
    c.case("attention.cross", make(4, 2), (2, 2, 4), (3, 2, 4), (3, 2, 4), run=attend)
    c.case("attention.nobias", make(4, 2, bias=False), (2, 2, 4), (3, 2, 4), (3, 2, 4), run=attend)
    wide = make(4, 2, kdim=3, vdim=2, batch_first=True)
    c.case("attention.wide", wide, (2, 2, 4), (2, 3, 3), (2, 3, 2), run=attend)
    c.case("attention.wide.nobias", make(4, 2, kdim=3, vdim=2, bias=False), (2, 2, 4), (3, 2, 3), (3, 2, 2), run=attend)
    c.case("attention.wide.bias_kv", make(4, 2, kdim=3, add_bias_kv=True), (2, 2, 4), (3, 2, 3), (3, 2, 4), run=attend)
    c.case("attention.causal", make(4, 2), (3, 2, 4), run=lambda m, x: own(m, x, attn_mask=banned))
    masked = lambda m, x, mask: own(m, x, attn_mask=mask)
    c.case("attention.bool", make(4, 2), (3, 2, 4), torch.tensor([[1, 0, 0], [0, 0, 1], [0, 1, 0]]).bool(), run=masked)
    c.case("attention.added", make(4, 2), (3, 2, 4), (3, 3), run=masked)
    c.case("attention.heads", make(4, 2), (3, 2, 4), (4, 3, 3), run=masked)
    several = Inputs("several").boolean(4, 3, 3) & ~torch.eye(3).bool()
    c.case("attention.bool.heads", make(4, 2), (3, 2, 4), several, run=masked)
    keys = lambda m, x, p: own(m, x, key_padding_mask=p)
    c.case("attention.padding", make(4, 2), (3, 2, 4), padding, run=keys)
    both = lambda m, x, mask, p: own(m, x, attn_mask=mask, key_padding_mask=p)
    c.case("attention.both", make(4, 2), (3, 2, 4), (3, 3), padding, run=both)
    c.case("attention.bools", make(4, 2), (3, 2, 4), banned, padding, run=both)
    c.case("attention.bias_kv", make(4, 2, add_bias_kv=True), (3, 2, 4), banned, padding, run=both)
    more = make(4, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True)
    c.case("attention.more", more, (2, 2, 4), (2, 3, 4), (2, 3, 4), run=attend)
    # An added mask that is causal too, of keys of which there are more than it speaks of.
    past = lambda m, x, mask, p=None: own(m, x, attn_mask=mask.masked_fill(banned, -math.inf), key_padding_mask=p)
    c.case("attention.bias_kv.causal", make(4, 2, add_bias_kv=True), (3, 2, 4), (3, 3), run=past)
    every = make(4, 2, add_bias_kv=True, add_zero_attn=True)
    c.case("attention.more.causal", every, (3, 2, 4), (4, 3, 3), padding, run=past)
    c.case("attention.zero", make(4, 2, add_zero_attn=True), (3, 2, 4), (3, 3), run=masked)
    weighted = lambda m, x: m(x, x, x, key_padding_mask=padding)
    c.case("attention.weights", make(4, 2), (3, 2, 4), run=weighted)
    heads = lambda m, q, k: m(q, k, k, average_attn_weights=False)
    c.case("attention.weights.heads", make(4, 2, batch_first=True), (2, 2, 4), (2, 3, 4), run=heads)
    c.case("attention.weights.single", make(4, 2, add_zero_attn=True), (2, 4), (3, 4), run=heads)


def transformer(c):
    o = {"dim_feedforward": 3, "dropout": 0.0}
    banned = torch.triu(torch.ones(3, 3, dtype=torch.bool), 1)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    encoder, decoder = nn.TransformerEncoderLayer, nn.TransformerDecoderLayer
    c.case("encoder", encoder(4, 2, **o), (3, 2, 4), size=0.5)
    c.case("encoder.gelu", encoder(4, 2, activation="gelu", batch_first=True, norm_first=True, **o), (2, 3, 4), size=0.5)
    run = lambda m, x, p: m(x, src_mask=banned, src_key_padding_mask=p)
    c.case("encoder.masked", encoder(4, 2, layer_norm_eps=1e-3, **o), (3, 2, 4), padding, run=run, size=0.5)
    c.case("decoder", decoder(4, 2, **o), (2, 2, 4), (3, 2, 4), size=0.5)
    run = lambda m, x, y, p: m(x, y, tgt_mask=banned, memory_key_padding_mask=p)
    last = decoder(4, 2, activation="gelu", batch_first=True, norm_first=True, **o)
    c.case("decoder.gelu", last, (2, 3, 4), (2, 3, 4), padding, run=run, size=0.5)
    run = lambda m, x, y, seen, p: m(x, y, memory_mask=seen, tgt_key_padding_mask=p)
    c.case("decoder.masked", decoder(4, 2, layer_norm_eps=1e-3, **o), (3, 2, 4), (2, 2, 4), (3, 2), padding, run=run, size=0.5)
    run = lambda m, x, p: m(x, mask=banned, src_key_padding_mask=p)
    c.case("encoders.masked", nn.TransformerEncoder(encoder(4, 2, **o), 2), (3, 2, 4), padding, run=run, size=0.5)
    whole = nn.TransformerDecoder(last, 2, nn.LayerNorm(4))
    run = lambda m, x, y, seen, p: m(x, y, tgt_mask=banned, memory_mask=seen, tgt_key_padding_mask=p, memory_key_padding_mask=p)
    c.case("decoders.masked", whole, (2, 3, 4), (2, 3, 4), (3, 3), padding, run=run, size=0.5)
    c.case("decoders.normed", nn.TransformerDecoder(decoder(4, 2, **o), 1, nn.LayerNorm(4)), (2, 2, 4), (3, 2, 4), size=0.5)
    c.case("decoders.bare", nn.TransformerDecoder(decoder(4, 2, norm_first=True, **o), 1), (2, 2, 4), (3, 2, 4), size=0.5)
    c.case("encoders", nn.TransformerEncoder(encoder(4, 2, norm_first=True, **o), 2, nn.LayerNorm(4)), (2, 2, 4), size=0.5)
    c.case("decoders", nn.TransformerDecoder(decoder(4, 2, **o), 2), (2, 1, 4), (2, 1, 4), size=0.5)
    c.case("encoders.normed", nn.TransformerEncoder(encoder(4, 2, **o), 1, nn.LayerNorm(4)), (2, 2, 4), size=0.5)
    c.case("encoders.bare", nn.TransformerEncoder(encoder(4, 2, norm_first=True, **o), 1), (2, 2, 4), size=0.5)


def activation(c):
    c.case("prelu", nn.PReLU(), (2, 3))
    c.case("prelu.channels", nn.PReLU(3), (2, 3, 2))
    for key, module in {
        "relu": nn.ReLU(), "relu6": nn.ReLU6(), "leaky": nn.LeakyReLU(0.2), "elu": nn.ELU(1.5), "selu": nn.SELU(),
        "celu": nn.CELU(0.5), "silu": nn.SiLU(), "mish": nn.Mish(), "softplus": nn.Softplus(2), "softsign": nn.Softsign(),
        "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(), "logsigmoid": nn.LogSigmoid(), "hardtanh": nn.Hardtanh(-0.5, 1.5),
        "hardsigmoid": Hardsigmoid(), "hardswish": Hardswish(), "hardshrink": nn.Hardshrink(0.7),
        "softshrink": nn.Softshrink(0.7), "threshold": nn.Threshold(0.3, -0.5), "tanhshrink": nn.Tanhshrink(),
        "gelu": nn.GELU(), "gelu.tanh": nn.GELU("tanh"), "softmax": nn.Softmax(1), "logsoftmax": nn.LogSoftmax(0),
        "glu": nn.GLU(1), "softmin": nn.Softmin(0),
    }.items():
        c.case(key, module, (3, 4), low=-5.0 if key.startswith("hard") else -2.0)
    c.case("rrelu.eval", nn.RReLU(0.1, 0.4), (3, 4), train=False)


def fill(file):
    layers = Layers(file)
    for part in [linear, conv, pool, norm, embedding, activation]:
        part(layers)


def fill_sequences(file):
    layers = Layers(file)
    for part in [recurrent, attention, transformer]:
        part(layers)
