"""Cases with second gradients, for the families of operators that layers are made of."""

import torch

from cases import as_list, weights


def twice(file, key, function, inputs, second=True):
    """Beside what File.case keeps: second<i>, the gradients of sum(weights * gradients) by the same inputs. What is zero
    is left out."""
    inputs = [x.clone() for x in inputs]
    wanted = [x.requires_grad_() for x in inputs if x.is_floating_point()]
    outputs = as_list(function(*inputs))
    for i, x in enumerate(inputs):
        file.put(f"{key}/in{i}", x)
    for i, y in enumerate(outputs):
        file.put(f"{key}/out{i}", y)
    if not wanted:
        return

    def keep(kind, found):
        found = iter(found)
        for i, x in enumerate(inputs):
            if x.is_floating_point():
                g = next(found)
                if g is not None and g.to_dense().any():
                    file.put(f"{key}/{kind}{i}", g.to_dense())

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
