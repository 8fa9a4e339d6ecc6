"""PyTorch's optimizers and schedules.

The gradients are given ones, not those of a loss: grads/<parameter> has one for each of 20 steps. Of each case the
parameters after every step are kept. Parameter b has no gradient at step 5.
"""

import numpy as np
import torch

from cases import File, Inputs

STEPS = 20


class Lion(torch.optim.Optimizer):
    """Chen et al., Symbolic Discovery of Optimization Algorithms, algorithm 2."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = -p.grad if group["maximize"] else p.grad
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.copy_(p - group["lr"] * ((b1 * m + (1 - b1) * g).sign() + group["weight_decay"] * p))
                m.copy_(b2 * m + (1 - b2) * g)


def optimizers():
    o = torch.optim
    yield "sgd", o.SGD, dict(lr=0.1)
    yield "sgd.momentum", o.SGD, dict(lr=0.1, momentum=0.9)
    yield "sgd.dampening", o.SGD, dict(lr=0.1, momentum=0.9, dampening=0.3)
    yield "sgd.decay", o.SGD, dict(lr=0.1, weight_decay=0.2)
    yield "sgd.nesterov", o.SGD, dict(lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.1)
    yield "sgd.maximize", o.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.1, maximize=True)
    yield "adam", o.Adam, dict()
    yield "adam.betas", o.Adam, dict(lr=0.05, betas=(0.7, 0.8), eps=1e-2)
    yield "adam.decay", o.Adam, dict(lr=0.05, weight_decay=0.2)
    yield "adam.amsgrad", o.Adam, dict(lr=0.05, betas=(0.9, 0.6), amsgrad=True)
    yield "adam.maximize", o.Adam, dict(lr=0.05, weight_decay=0.1, maximize=True)
    yield "adamw", o.AdamW, dict()
    yield "adamw.decay", o.AdamW, dict(lr=0.05, weight_decay=0.3)
    yield "adamw.amsgrad", o.AdamW, dict(lr=0.05, betas=(0.8, 0.6), eps=1e-3, amsgrad=True)
    yield "adamw.maximize", o.AdamW, dict(lr=0.05, weight_decay=0.1, maximize=True)
    yield "adagrad", o.Adagrad, dict()
    yield "adagrad.lr_decay", o.Adagrad, dict(lr=0.1, lr_decay=0.2)
    yield "adagrad.decay", o.Adagrad, dict(lr=0.1, weight_decay=0.2)
    yield "adagrad.initial", o.Adagrad, dict(lr=0.1, initial_accumulator_value=0.5, eps=1e-2)
    yield "adagrad.maximize", o.Adagrad, dict(lr=0.1, weight_decay=0.1, maximize=True)
    yield "rmsprop", o.RMSprop, dict()
    yield "rmsprop.alpha", o.RMSprop, dict(lr=0.02, alpha=0.7, eps=1e-2)
    yield "rmsprop.decay", o.RMSprop, dict(lr=0.02, weight_decay=0.2)
    yield "rmsprop.momentum", o.RMSprop, dict(lr=0.02, alpha=0.9, momentum=0.8)
    yield "rmsprop.centered", o.RMSprop, dict(lr=0.02, alpha=0.9, centered=True)
    yield "rmsprop.all", o.RMSprop, dict(lr=0.02, alpha=0.9, centered=True, momentum=0.5, weight_decay=0.1, maximize=True)
    yield "lion", Lion, dict()
    yield "lion.decay", Lion, dict(lr=0.02, betas=(0.6, 0.8), weight_decay=0.3)
    yield "lion.maximize", Lion, dict(lr=0.02, weight_decay=0.1, maximize=True)


def run(file, key, names, start, grads, make):
    """make(parameters) gives the optimizer; grads[name](step) a gradient or None."""
    params = [start[n].clone().requires_grad_() for n in names]
    optimizer = make(params)
    kept = [[] for _ in names]
    for step in range(STEPS):
        for n, p in zip(names, params):
            p.grad = grads[n](step)
        optimizer.step()
        for k, p in zip(kept, params):
            k.append(p.detach().clone())
    for n, k in zip(names, kept):
        file.put(f"{key}/{n}", torch.stack(k))


def fill(file):
    r = Inputs("optim")
    start = {"a": r.real(3, 5), "b": r.real(4), "c": r.complex(3), "table": r.real(6, 2)}
    dense = {"a": r.real(STEPS, 3, 5), "b": r.real(STEPS, 4), "c": r.complex(STEPS, 3)}
    rows, values = r.integer(STEPS, 4, low=0, high=4), r.real(STEPS, 4, 2)
    for n, t in start.items():
        file.put(f"start/{n}", t)
    for n, t in dense.items():
        file.put(f"grads/{n}", t)
    file.put("rows", rows)
    file.put("values", values)
    grads = {n: (lambda i, t=t: t[i].clone()) for n, t in dense.items()}
    grads["b"] = lambda i: None if i == 4 else dense["b"][i].clone()
    grads["table"] = lambda i: torch.sparse_coo_tensor(rows[i][None], values[i], (6, 2))
    grads["second"] = lambda i: grads["table"](STEPS - 1 - i)
    start["second"] = start["table"]

    for key, maker, options in optimizers():
        names = ["a", "b"] + (["c"] if maker is not Lion and not options.get("amsgrad") else [])
        run(file, key, names, start, grads, lambda p: maker(p, **options))
        if options.get("amsgrad"):
            # PyTorch 1.13 has no such rule for complex numbers; they are two real ones each.
            part = File()
            pairs = {"c": torch.view_as_real(start["c"])}
            halves = {"c": lambda i: torch.view_as_real(dense["c"][i].clone())}
            run(part, key, ["c"], pairs, halves, lambda p: maker(p, **options))
            file.put(f"{key}/c", torch.view_as_complex(torch.from_numpy(part.arrays[f"{key}/c"])))
    o = torch.optim
    run(file, "sparse.sgd.plain", ["table"], start, grads, lambda p: o.SGD(p, lr=0.1))
    run(file, "sparse.sgd", ["table"], start, grads, lambda p: o.SGD(p, lr=0.1, maximize=True))
    run(file, "sparse.adagrad", ["table"], start, grads, lambda p: o.Adagrad(p, lr=0.1, lr_decay=0.1))
    run(file, "sparse.adam", ["table"], start, grads, lambda p: o.SparseAdam(p, lr=0.05, betas=(0.8, 0.9)))
    run(file, "sparse.maximize", ["table"], start, grads, lambda p: o.SparseAdam(p, lr=0.05, maximize=True))
    run(file, "sparse.eps", ["table"], start, grads, lambda p: o.SparseAdam(p, lr=0.05, eps=0.3))
    initial = dict(lr=0.1, initial_accumulator_value=0.5, eps=0.2)
    run(file, "sparse.adagrad.initial", ["table"], start, grads, lambda p: o.Adagrad(p, **initial))
    maximize = dict(lr=0.1, maximize=True)
    run(file, "sparse.adagrad.maximize", ["table"], start, grads, lambda p: o.Adagrad(p, **maximize))
    for key, maker, second in [
        ("sgd", o.SGD, dict(momentum=0.5)),
        ("adam", o.Adam, dict(betas=(0.5, 0.6), amsgrad=True)),
        ("adamw", o.AdamW, dict(betas=(0.5, 0.6), eps=0.1)),
        ("adagrad", o.Adagrad, dict(lr_decay=0.1, weight_decay=0.2, eps=0.1)),
        ("rmsprop", o.RMSprop, dict(alpha=0.8, momentum=0.5, centered=True)),
        ("lion", Lion, dict(betas=(0.5, 0.99), weight_decay=0.2)),
        ("sparse", o.SparseAdam, dict(betas=(0.5, 0.999), eps=0.1)),
    ]:
        groups = lambda p: [dict(params=p[:1]), dict(params=p[1:], lr=0.3, **second)]
        names = ["table", "second"] if key == "sparse" else ["a", "b"]
        run(file, f"groups.{key}", names, start, grads, lambda p: maker(groups(p), lr=0.1))
    schedules(file)
    clipping(file)


def schedules(file):
    s = torch.optim.lr_scheduler

    def rates(key, make, steps, lr=0.5, **options):
        p = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([p], lr=lr, momentum=0.9, **options)
        scheduler = make(optimizer)
        found, momenta = [], []
        for _ in range(steps):
            found.append(optimizer.param_groups[0]["lr"])
            momenta.append(optimizer.param_groups[0]["momentum"])
            optimizer.step()
            scheduler.step()
        file.put(f"schedule/{key}", torch.tensor(np.array(found)))
        return momenta

    rates("step", lambda o: s.StepLR(o, 3, 0.3), 12)
    rates("multi", lambda o: s.MultiStepLR(o, [2, 5, 5, 9], 0.3), 12)
    rates("exponential", lambda o: s.ExponentialLR(o, 0.8), 12)
    rates("cosine", lambda o: s.CosineAnnealingLR(o, 11, eta_min=0.05), 12)
    rates("restarts", lambda o: s.CosineAnnealingWarmRestarts(o, 3, 2, eta_min=0.05), 24)
    rates("linear", lambda o: s.LinearLR(o, 0.25, 0.75, 5), 9)
    rates("polynomial", lambda o: s.PolynomialLR(o, 8, 2.0), 11)
    momenta = rates("cycle", lambda o: s.OneCycleLR(o, 0.5, total_steps=20, pct_start=0.4), 19)
    file.put("schedule/cycle.momentum", torch.tensor(np.array(momenta)))
    chain = lambda o: s.SequentialLR(o, [s.LinearLR(o, 0.1, 1.0, 4), s.ExponentialLR(o, 0.7)], [4])
    rates("sequential", chain, 10)
    both = lambda o: s.ChainedScheduler([s.LinearLR(o, 0.1, 1.0, 4), s.ExponentialLR(o, 0.7)])
    rates("chained", both, 10)

    measures = [5, 4, 4.5, 4.2, 4.1, 4, 3.99999, 3, 3, 3, 3, 3.1, 2.9, 2.9, 2.9, 2.9, 2.9, 2.9, 2.9, 2.9, 2.9, 2.9]
    file.put("plateau/measures", torch.tensor(measures).double())
    for key, sign, options in [
        ("min", 1, dict(patience=2, factor=0.5)),
        ("cooldown", 1, dict(patience=1, factor=0.3, cooldown=2, min_lr=0.01)),
        ("max", -1, dict(patience=2, factor=0.5, mode="max", threshold=0.02)),
    ]:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
        plateau = s.ReduceLROnPlateau(optimizer, **options)
        found = []
        for m in measures:
            plateau.step(10 + sign * m)
            found.append(optimizer.param_groups[0]["lr"])
        file.put(f"plateau/{key}", torch.tensor(np.array(found)))


def clipping(file):
    r = Inputs("clipping")
    grads = [r.real(3, 2), r.real(4), r.real(2, 2, 2)]
    for i, g in enumerate(grads):
        file.put(f"clip/in{i}", g)
    for key, limit, p in [("two", 2.0, 2.0), ("loose", 100.0, 2.0), ("one", 3.0, 1.0), ("three", 1.5, 3.0), ("largest", 0.5, float("inf"))]:
        params = [torch.zeros_like(g).requires_grad_() for g in grads]
        for x, g in zip(params, grads):
            x.grad = g.clone()
        file.put(f"clip/{key}", torch.nn.utils.clip_grad_norm_(params, limit, norm_type=p))
        for i, x in enumerate(params):
            file.put(f"clip/{key}{i}", x.grad)
