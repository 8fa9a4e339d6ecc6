"""Embeddings and bags of them."""

import torch
import torch.nn.functional as F

from cases import Inputs
from twice import twice


def fill(file):
    def case(name, function, make, second=True, key=None):
        """The random numbers come from the name; the key, where it is another, says the row and the case."""
        twice(file, key or name, function, make(Inputs(name)), second)

    index = torch.tensor([[1, 4, 1], [0, 6, 4]])
    table = lambda x: [x.real(7, 3), index]
    look = lambda w, i, **options: F.embedding(i, w, **options)
    case("embedding", look, table, key="embedding/matrix")
    case("embedding.scalar", look, lambda x: [x.real(7, 3), torch.tensor(2)], key="embedding/scalar")
    case("embedding.padding", lambda w, i: look(w, i, padding_idx=4), table)
    case("embedding.frequency", lambda w, i: look(w, i, scale_grad_by_freq=True), table, second=False)
    case("embedding.sparse", lambda w, i: look(w, i, padding_idx=-3, sparse=True), table, second=False)
    short = lambda w, i: look(w.clone(), i, max_norm=1.5, norm_type=3.0)
    file.case("embedding.max_norm", short, table(Inputs("embedding.max_norm")), gradients=False)

    list_ = torch.tensor([1, 4, 1, 0, 6, 4, 2])
    offsets = torch.tensor([0, 3, 3, 6])
    ends = torch.tensor([0, 3, 3, 6, 7])
    for mode in ("sum", "mean", "max"):
        bags = lambda x: [x.real(7, 3), list_, offsets]
        list_key, matrix_key = f"embedding_bag.{mode}/list", f"embedding_bag.{mode}/matrix"
        case(f"embedding_bag.{mode}", lambda w, i, o: F.embedding_bag(i, w, o, mode=mode), bags, second=False, key=list_key)
        case(
            f"embedding_bag.{mode}.last",
            lambda w, i, o: F.embedding_bag(i, w, o, mode=mode, include_last_offset=True),
            lambda x: [x.real(7, 3), list_, ends],
            second=False,
        )
        case(f"embedding_bag.{mode}.padding", lambda w, i, o: F.embedding_bag(i, w, o, mode=mode, padding_idx=4), bags, second=False)
        case(f"embedding_bag.{mode}.matrix", lambda w, i: F.embedding_bag(i, w, mode=mode), table, second=False, key=matrix_key)
        if mode != "max":
            case(f"embedding_bag.{mode}.sparse", lambda w, i, o: F.embedding_bag(i, w, o, mode=mode, sparse=True), bags, second=False)
    weighted = lambda x: [x.real(7, 3), list_, offsets, x.real(7)]
    run = lambda w, i, o, p, **options: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=p, **options)
    case("embedding_bag.weights", run, weighted, second=False)
    case("embedding_bag.weights.padding", lambda *a: run(*a, padding_idx=1), weighted, second=False)
