#!/usr/bin/env python3
"""Makes the .npz files beside this one: PyTorch's numbers for the rows of tests/ops/table.

A key is <row>/<case>/in0, in1, ... with the inputs, out0, ... with the outputs, grad0, ... with the gradients of
sum(weights * out) by the inputs that have one and, where a case has them, second0, ... with those of
sum(weights * grad). A row's only case may be <row>/in0, ... itself. Inputs have few binary digits, so that they are the
same in every floating-point dtype. Adding a row changes no other: each has random numbers of its own.

Run: /usr/bin/python3 tests/golden/make.py (PyTorch 1.13 made the committed files).
"""

import pathlib

import torch

import attention
import curves
import embedding
import layers
import loss
import nn_conv
import nn_norm
import nn_pool
import operators
import optim
import pointwise
import rnn
from cases import File

here = pathlib.Path(__file__).parent

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, fill in [
        ("pointwise", pointwise.fill),
        ("special", pointwise.fill_special),
        ("operators", operators.fill),
        ("loss", loss.fill),
        ("embedding", embedding.fill),
        ("attention", attention.fill),
        ("rnn", rnn.fill),
        ("nn_conv", nn_conv.fill),
        ("nn_pool", nn_pool.fill),
        ("nn_norm", nn_norm.fill),
        ("layers", layers.fill),
        ("layers_sequences", layers.fill_sequences),
        ("optim", optim.fill),
        ("curves", curves.fill),
    ]:
        file = File()
        fill(file)
        file.write(here / f"{name}.npz")
