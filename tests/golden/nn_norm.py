"""Normalisations, in the order of tests/ops/table/norm_test.cpp."""

import torch
import torch.nn.functional as F

from nn_cases import case


def rms(x, w, dims, eps):
    return x * torch.rsqrt(x.square().mean(dims, keepdim=True) + eps) * w


def fill(file):
    case(file, "layer_norm", lambda x, w, b: F.layer_norm(x, (5,), w, b), (3, 2, 5), (5,), (5,))
    case(file, "layer_norm.dims", lambda x, w, b: F.layer_norm(x, (3, 4), w, b, 0.125), (2, 3, 4), (3, 4), (3, 4))
    case(file, "layer_norm.plain", lambda x: F.layer_norm(x, (37,)), (4, 37))
    case(file, "rms_norm", lambda x, w: rms(x, w, (1, 2), 0.25), (3, 2, 5), (2, 5))
    case(file, "rms_norm.plain", lambda x: rms(x, 1, (-1,), 1e-6), (3, 20))
    case(file, "group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), (2, 4, 3, 2), (4,), (4,))
    case(file, "group_norm.flat", lambda x: F.group_norm(x, 3, eps=0.125), (3, 6))
    batch = lambda x, w, b: F.batch_norm(x, None, None, w, b, True)
    case(file, "batch_norm", batch, (3, 2, 2, 3), (2,), (2,))
    case(file, "batch_norm.flat", lambda x, w, b: F.batch_norm(x, None, None, w, b, True, eps=0.125), (4, 3), (3,), (3,))
    case(file, "batch_norm.plain", lambda x: F.batch_norm(x, None, None, None, None, True), (2, 3, 5))

    def running(x, mean, var):
        mean, var = mean.detach().clone(), var.detach().clone()
        F.batch_norm(x.detach(), mean, var, None, None, True, 0.25)
        return mean, var

    case(file, "batch_norm.running", running, (3, 2, 4), (2,), (2,), twice=False, low=0.5)

    def instances(x, mean, var):
        mean, var = mean.detach().clone(), var.detach().clone()
        F.instance_norm(x.detach(), mean, var, None, None, True, 0.25)
        return mean, var

    case(file, "instance_norm.running", instances, (3, 2, 4), (2,), (2,), twice=False, low=0.5)

    def evaluation(x, w, b, mean, var):
        w, b, mean, var = (t.view(1, 2, 1) for t in (w, b, mean, var))
        return (x - mean) / torch.sqrt(var + 0.125) * w + b

    case(file, "batch_norm.eval", evaluation, (3, 2, 4), (2,), (2,), (2,), (2,), low=0.5)
    case(file, "batch_norm_apply", evaluation, (3, 2, 4), (2,), (2,), (2,), (2,), low=0.5)
    case(file, "instance_norm", lambda x, w, b: F.instance_norm(x, None, None, w, b, True), (2, 3, 2, 4), (3,), (3,))
    case(file, "batch_norm_statistics", lambda x: (x.mean((0, 2)), x.var((0, 2), unbiased=False)), (3, 2, 4))
