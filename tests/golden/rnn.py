"""Recurrent layers. Inputs: x, the initial states, lengths if the case has them, then weights layer by layer."""

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from cases import Inputs
from twice import twice


def fill(file):
    makers = {
        "tanh": lambda *a, **o: torch.nn.RNN(*a, **o),
        "relu": lambda *a, **o: torch.nn.RNN(*a, nonlinearity="relu", **o),
        "gru": lambda *a, **o: torch.nn.GRU(*a, **o),
        "lstm": lambda *a, **o: torch.nn.LSTM(*a, **o),
    }

    def case(cell, label, sizes=(4, 3, 3), lengths=None, first=False, **options):
        """sizes: steps, batch (None: no batch), inputs."""
        steps, batch, inputs = sizes
        module = makers[cell](inputs, 2, batch_first=first, **options).double()
        r = Inputs(f"{cell}.{label}")
        count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
        shape = (steps, inputs) if batch is None else (batch, steps, inputs) if first else (steps, batch, inputs)
        rows = [count] + ([] if batch is None else [batch])
        states = [r.real(*rows, options.get("proj_size", 2) or 2)] + ([r.real(*rows, 2)] if cell == "lstm" else [])
        values = [r.real(*shape)] + states + ([torch.tensor(lengths)] if lengths else [])
        values += [r.real(*p.shape, low=-1, high=1) for p in module.parameters()]

        def run(x, *rest):
            rest = list(rest)
            state = [rest.pop(0) for _ in states]
            if lengths:
                x = pack_padded_sequence(x, rest.pop(0), batch_first=first, enforce_sorted=False)
            state = tuple(state) if cell == "lstm" else state[0]
            module._flat_weights = rest  # what forward reads; the parameters are only where it comes from
            y, last = module(x, state)
            if lengths:
                y = pad_packed_sequence(y, batch_first=first, total_length=steps)[0]
            return (y, *last) if cell == "lstm" else (y, last)

        twice(file, f"{'rnn.' if cell in ('tanh', 'relu') else ''}{cell}.{label}", run, values)

    for cell in makers:
        case(cell, "plain")
        case(cell, "nobias", bias=False)
        case(cell, "deep", sizes=(3, 2, 3), num_layers=2, bidirectional=True)
        case(cell, "single", sizes=(3, None, 3), bidirectional=True)
        case(cell, "lengths", lengths=[2, 4, 1], first=True, num_layers=2, bidirectional=True)
    case("lstm", "projection", sizes=(3, 2, 3), num_layers=2, bidirectional=True, proj_size=1)
    case("lstm", "projection.lengths", lengths=[2, 4, 1], proj_size=1)
