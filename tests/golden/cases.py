"""What the lists of cases share: inputs, weights, gradients and writing."""

import zlib

import numpy as np
import torch


class Inputs:
    """Random inputs of one case, the same at every run."""

    def __init__(self, key):
        self.random = np.random.default_rng(zlib.crc32(key.encode()))

    def real(self, *sizes, low=-2.0, high=2.0):
        """Multiples of 1/32 strictly inside the domain."""
        first, last = int(np.floor(low * 32)) + 1, int(np.ceil(high * 32)) - 1
        return torch.from_numpy(np.array(self.random.integers(first, last, sizes, endpoint=True) / 32.0))

    def distinct(self, *sizes, low=-2.0):
        """Like real, but no two are equal: for sorting and extrema."""
        count = int(np.prod(sizes))
        return torch.from_numpy(self.random.permutation(count).reshape(sizes) / 8.0 + low + 1 / 32)

    def complex(self, *sizes, low=-2.0, high=2.0):
        return torch.complex(self.real(*sizes, low=low, high=high), self.real(*sizes, low=-1.5, high=1.5))

    def integer(self, *sizes, low=-5, high=5):
        return torch.from_numpy(np.array(self.random.integers(low, high, sizes, endpoint=True)))

    def boolean(self, *sizes):
        return torch.from_numpy(np.array(self.random.integers(0, 2, sizes), dtype=bool))


def weights(output):
    """The fixed weights of support/compare.cpp."""
    i = torch.arange(output.numel())
    w = (i * 7 % 11 - 4).double() / 8 + 0.0625
    if output.is_complex():
        w = torch.complex(w, (i * 5 % 7 - 2).double() / 8)
    return w.reshape(output.shape).to(output.dtype)


def as_list(outputs):
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


class File:
    def __init__(self):
        self.arrays = {}

    def put(self, key, tensor):
        self.arrays[key] = np.array(tensor.detach().resolve_conj().numpy(), order="C")

    def case(self, key, function, inputs, gradients=True):
        """Runs the function; gradients are kept for the floating-point inputs (or just the first) where there are any."""
        inputs = [x.clone() for x in inputs]
        wanted = [x for x in inputs if x.is_floating_point() or x.is_complex()] if gradients else []
        if gradients == "first":
            wanted = inputs[:1]
        for x in wanted:
            x.requires_grad_()
        outputs = as_list(function(*inputs))
        roots = [y for y in outputs if y.requires_grad]
        for i, x in enumerate(inputs):
            self.put(f"{key}/in{i}", x)
        for i, y in enumerate(outputs):
            self.put(f"{key}/out{i}", y)
        if not roots or not wanted:
            return
        found = torch.autograd.grad(roots, wanted, [weights(y) for y in roots], allow_unused=True)
        found = iter(torch.zeros_like(x) if g is None else g for g, x in zip(found, wanted))
        for i, x in enumerate(inputs):
            if any(x is w for w in wanted):
                self.put(f"{key}/grad{i}", next(found))

    def write(self, path):
        np.savez(path, **self.arrays)
        print(f"{path.name}: {len(self.arrays)} arrays, {path.stat().st_size} bytes")
