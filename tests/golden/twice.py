"""Cases with second gradients, for the families of operators that layers are made of."""

import torch

from cases import as_list, weights


def twice(file, key, function, inputs, second=True):
    """What File.case keeps, for all floating-point inputs, and second<i>: the gradients of sum(weights * gradients) by the
    same inputs. Where nothing flows there are zeros, which are compared as well."""
    inputs = [x.clone() for x in inputs]
    wanted = [x.requires_grad_() for x in inputs if x.is_floating_point()]
    outputs = as_list(function(*inputs))
    for i, x in enumerate(inputs):
        file.put(f"{key}/in{i}", x)
    for i, y in enumerate(outputs):
        file.put(f"{key}/out{i}", y)
    def keep(kind, found):
        found = iter(found)
        for i, x in enumerate(inputs):
            if x.is_floating_point():
                g = next(found)
                file.put(f"{key}/{kind}{i}", torch.zeros_like(x) if g is None else g.to_dense())

    roots = [y for y in outputs if y.requires_grad]
    grads = torch.autograd.grad(roots, wanted, [weights(y) for y in roots], allow_unused=True, create_graph=second)
    keep("grad", grads)
    if not second:
        return
    roots = [g for g in grads if g is not None and g.requires_grad]
    seconds = [None] * len(wanted)
    if roots:
        seconds = torch.autograd.grad(roots, wanted, [weights(g) for g in roots], allow_unused=True)
    keep("second", seconds)
