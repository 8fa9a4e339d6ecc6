"""Cases of the operators that layers are made of: as File.case, and the gradients of the gradients too."""

import torch

from cases import Inputs, as_list, weights


def second(file, key, function, inputs):
    """second<i>: the gradient by input i of Σ weights·gradients, the gradients being those that File.case keeps."""
    inputs = [x.clone() for x in inputs]
    wanted = [x.requires_grad_() for x in inputs if x.is_floating_point()]
    outputs = [y for y in as_list(function(*inputs)) if y.requires_grad]
    gradients = torch.autograd.grad(outputs, wanted, [weights(y) for y in outputs], create_graph=True, allow_unused=True)
    roots = [g for g in gradients if g is not None and g.requires_grad]
    if not roots:
        return
    found = torch.autograd.grad(roots, wanted, [weights(g) for g in roots], allow_unused=True)
    for i, x in enumerate(inputs):
        for w, g in zip(wanted, found):
            if w is x:
                file.put(f"{key}/second{i}", torch.zeros_like(x) if g is None else g)


def case(file, name, function, *shapes, twice=True, distinct=False, **domain):
    """Inputs of these shapes, in f64; an entry that is no tuple is taken as an input itself."""
    key = f"{name}/f"
    x = Inputs(key)
    make = x.distinct if distinct else lambda *s: x.real(*s, **domain)
    inputs = [make(*s) if isinstance(s, tuple) else s for s in shapes]
    file.case(key, function, inputs)
    if twice:
        second(file, key, function, inputs)
