"""Scaled dot-product attention by its formula (PyTorch 1.13 has no such function with these options)."""

import math

import torch

from cases import Inputs
from twice import twice


def attention(q, k, v, mask=None, causal=False, scale=None):
    scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    return scores.softmax(-1) @ v


def fill(file):
    def case(name, key, function, make):
        """The name is what the random numbers come from; the key says the row and the case."""
        twice(file, f"scaled_dot_product_attention{key}", function, make(Inputs(name)))

    plain = lambda x: [x.real(2, 5, 3), x.real(2, 7, 3), x.real(2, 7, 4)]
    case("plain", "/batch", attention, plain)
    case("matrix", "/matrix", attention, lambda x: [x.real(5, 3), x.real(7, 3), x.real(7, 4)])
    case("scale", ".scale", lambda *a: attention(*a, scale=0.3), plain)
    case("causal", ".causal/wide", lambda *a: attention(*a, causal=True), plain)
    case("causal.tall", ".causal/tall", lambda *a: attention(*a, causal=True), lambda x: [x.real(2, 6, 3), x.real(2, 4, 3), x.real(2, 4, 2)])
    allowed = torch.tensor([[1, 0, 1, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0, 1]] * 2 + [[1] * 7]).bool()
    case("bool", ".bool", lambda q, k, v, m: attention(q, k, v, m), lambda x: plain(x) + [allowed])
    case("bool.causal", ".bool.causal", lambda q, k, v, m: attention(q, k, v, m | torch.eye(5, 7).bool(), causal=True), lambda x: plain(x) + [allowed])
    case("added", ".added/whole", attention, lambda x: plain(x) + [x.real(5, 7)])
    case("added.row", ".added/row", attention, lambda x: plain(x) + [x.real(2, 1, 7)])
    case("broadcast", "/broadcast", attention, lambda x: [x.real(2, 1, 4, 3), x.real(3, 5, 3), x.real(3, 5, 2)])
    grouped = lambda q, k, v: attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), causal=True)
    case("grouped", ".causal/grouped", grouped, lambda x: [x.real(2, 4, 3, 3), x.real(2, 2, 3, 3), x.real(2, 2, 3, 2)])
