"""Losses, with all their options."""

import torch
import torch.nn.functional as F

from cases import Inputs
from twice import twice


def fill(file):
    def case(name, function, make, key=None):
        """The random numbers come from the name; the key, where it is another, says the row and the case."""
        twice(file, key or name, function, make(Inputs(name)))

    for reduction in ("none", "mean", "sum"):
        r = {"reduction": reduction}
        two = lambda x: [x.real(3, 4), x.real(3, 4)]
        case(f"mse_loss.{reduction}", lambda x, t: F.mse_loss(x, t, **r), two)
        case(f"l1_loss.{reduction}", lambda x, t: F.l1_loss(x, t, **r), two)
        case(f"smooth_l1_loss.{reduction}", lambda x, t: F.smooth_l1_loss(x, t, beta=0.75, **r), two)
        case(f"huber_loss.{reduction}", lambda x, t: F.huber_loss(x, t, delta=1.25, **r), two)
        case(f"kl_div.{reduction}", lambda x, t: F.kl_div(x, t, **r), lambda x: [x.real(3, 4), x.real(3, 4, low=0.1, high=1)])
        case(f"kl_div.log.{reduction}", lambda x, t: F.kl_div(x, t, log_target=True, **r), two)
        unit = lambda x: [x.real(3, 4, low=0, high=1), x.real(3, 4, low=0, high=1), x.real(4, low=0, high=2)]
        case(f"binary_cross_entropy.{reduction}", lambda x, t, w: F.binary_cross_entropy(x, t.detach(), w.detach(), **r), unit)
        logits = lambda x: [x.real(3, 4, low=-5, high=5), x.real(3, 4, low=0, high=1), x.real(4, low=0, high=2), x.real(4, low=0, high=3)]
        case(
            f"binary_cross_entropy_with_logits.{reduction}",
            lambda x, t, w, p: F.binary_cross_entropy_with_logits(x, t.detach(), w.detach(), pos_weight=p.detach(), **r),
            logits,
        )
        case(
            f"binary_cross_entropy_with_logits.plain.{reduction}",
            lambda x, t: F.binary_cross_entropy_with_logits(x, t.detach(), **r),
            two,
        )
        pair = lambda x: [x.real(3, 4, low=0, high=1), x.real(3, 4, low=0, high=1)]
        case(f"binary_cross_entropy.plain.{reduction}", lambda x, t: F.binary_cross_entropy(x, t.detach(), **r), pair)
        with_logits = F.binary_cross_entropy_with_logits
        some = lambda x: logits(x)[:3]
        case(f"binary_cross_entropy_with_logits.weight.{reduction}", lambda x, t, w: with_logits(x, t.detach(), w.detach(), **r), some)
        case(
            f"binary_cross_entropy_with_logits.pos_weight.{reduction}",
            lambda x, t, p: with_logits(x, t.detach(), pos_weight=p.detach(), **r),
            some,
        )
        # In public operators, which are differentiable by the targets too, as often as wanted.
        finish = {"none": lambda x: x, "mean": torch.mean, "sum": torch.sum}[reduction]
        entropy = lambda x, t: finish(-(t * x.log() + (1 - t) * torch.log1p(-x)))
        case(f"binary_cross_entropy.targets.{reduction}", entropy, pair)
        positive = lambda x, t, p: finish(-(p.detach() * t * F.logsigmoid(x) + (1 - t) * F.logsigmoid(-x)))
        case(f"binary_cross_entropy_with_logits.targets.{reduction}", positive, some)
        weighed = lambda x, t, w: finish(-w * (t * x.log() + (1 - t) * torch.log1p(-x)))
        case(f"binary_cross_entropy.weights.{reduction}", weighed, unit)
        weighed_logits = lambda x, t, w, p: finish(-w * (p * t * F.logsigmoid(x) + (1 - t) * F.logsigmoid(-x)))
        case(f"binary_cross_entropy_with_logits.weights.{reduction}", weighed_logits, logits)
        sides = lambda x: [x.real(4, 3), x.real(4, 3), torch.tensor([1, -1, -1, 1])]
        case(f"cosine_embedding_loss.{reduction}", lambda x, y, t: F.cosine_embedding_loss(x, y, t, margin=0.1, **r), sides)
        vectors = lambda x: [x.real(3), x.real(3), torch.tensor(-1)]
        case(f"cosine_embedding_loss.one.{reduction}", lambda x, y, t: F.cosine_embedding_loss(x, y, t, margin=-0.9, **r), vectors)
        ranks = lambda x: [x.real(4), x.real(4), torch.tensor([1, -1, -1, 1])]
        case(f"margin_ranking_loss.{reduction}", lambda x, y, t: F.margin_ranking_loss(x, y, t, margin=0.3, **r), ranks)
        hinge = lambda x: [x.real(2, 3), torch.tensor([[1, -1, -1], [1, 1, -1]])]
        case(f"hinge_embedding_loss.{reduction}", lambda x, t: F.hinge_embedding_loss(x, t, margin=0.7, **r), hinge)
        case(f"soft_margin_loss.{reduction}", lambda x, t: F.soft_margin_loss(x, t.double(), **r), hinge)
        three = lambda x: [x.real(4, 3), x.real(4, 3), x.real(4, 3)]
        for p in (1, 2, 3):
            for swap in (False, True):
                case(
                    f"triplet_margin_loss.{p}.{'swap' if swap else 'plain'}.{reduction}",
                    lambda a, b, c: F.triplet_margin_loss(a, b, c, margin=0.8, p=p, swap=swap, **r),
                    three,
                )

    case("smooth_l1_loss.zero", lambda x, t: F.smooth_l1_loss(x, t, beta=0.0), lambda x: [x.real(3, 4), x.real(3, 4)])
    probabilities = lambda x: [x.real(3, 4), x.real(3, 4, low=0.1, high=1)]
    case("kl_div.batchmean", lambda x, t: F.kl_div(x, t, reduction="batchmean"), probabilities)
    two = lambda x: [x.real(3, 4), x.real(3, 4)]
    case("kl_div.log.batchmean", lambda x, t: F.kl_div(x, t, reduction="batchmean", log_target=True), two)
    # PyTorch 1.13 gives the same values, but gradients as if nothing had been clamped.
    unit = lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=2.25)
    case("cosine_similarity.eps", lambda x, y: (unit(x) * unit(y)).sum(1), two)
    case("triplet_margin_loss.eps", lambda a, b, c: F.triplet_margin_loss(a, b, c, eps=0.5, swap=True), lambda x: [x.real(4, 3) for _ in range(3)])
    case("pairwise_distance", lambda x, y: F.pairwise_distance(x, y), two)
    case("pairwise_distance.options", lambda x, y: F.pairwise_distance(x, y, p=3.0, eps=0.25, keepdim=True), two)
    case("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, dim=1), lambda x: [x.real(2, 3, 2), x.real(2, 3, 2)])
    case("cosine_similarity.broadcast", lambda x, y: F.cosine_similarity(x, y, dim=-1), lambda x: [x.real(2, 1, 3), x.real(4, 3)])

    index = lambda *v: torch.tensor(v)
    places = [
        ("row", (5,), torch.tensor(2)),
        ("batch", (4, 5), index(0, 4, -100, 2)),
        ("image", (2, 4, 3), index([0, 3, 1], [2, -100, 2])),
        ("volume", (2, 3, 2, 2), index([[0, 2], [1, 1]], [[2, -100], [0, 1]])),
    ]
    for reduction in ("none", "mean", "sum"):
        for label, sizes, target in places:
            classes = sizes[0] if len(sizes) == 1 else sizes[1]
            for smoothing in (0.0, 0.2):
                for weighted in (False, True):
                    if label in ("row", "volume") and reduction == "sum":
                        continue
                    name = f"{label}.{smoothing}.{'weighted' if weighted else 'plain'}.{reduction}"
                    key = f"{'.smooth' if smoothing else ''}.{reduction}/{label}{'.weighted' if weighted else ''}"
                    make = lambda x: [x.real(*sizes), target] + ([x.real(classes, low=0, high=2)] if weighted else [])
                    run = lambda x, t, w=None: F.cross_entropy(
                        x, t, None if w is None else w.detach(), label_smoothing=smoothing, reduction=reduction
                    )
                    case(f"cross_entropy.{name}", run, make, f"cross_entropy{key}")
                    if weighted or label in ("batch", "image"):
                        soft = lambda x: [x.real(*sizes), x.real(*sizes, low=0, high=1)] + (
                            [x.real(classes, low=0, high=2)] if weighted else []
                        )
                        case(f"cross_entropy.soft.{name}", run, soft, f"cross_entropy.soft{key}")
            for weighted in (False, True):
                if label in ("row", "volume") and reduction != "mean":
                    continue
                name = f"nll_loss.{label}.{'weighted' if weighted else 'plain'}.{reduction}"
                make = lambda x: [x.real(*sizes), target] + ([x.real(classes, low=0, high=2)] if weighted else [])
                key = f"nll_loss.{reduction}/{label}{'.weighted' if weighted else ''}"
                run = lambda x, t, w=None: F.nll_loss(x, t, None if w is None else w.detach(), reduction=reduction)
                case(name, run, make, key)

    # Ignored: a class, and a number that is none.
    for reduction in ("none", "mean", "sum"):
        for ignored, target in [(2, index(0, 2, 4, 2)), (-7, index(0, -7, 4, 2))]:
            name, o = f"batch.ignore{ignored}.weighted.{reduction}", {"ignore_index": ignored, "reduction": reduction}
            key = f"ignore_{'class' if ignored > 0 else 'number'}.{reduction}"
            make = lambda x: [x.real(4, 5), target, x.real(5, low=0, high=2)]
            smooth = lambda x, t, w: F.cross_entropy(x, t, w.detach(), label_smoothing=0.1, **o)
            case(f"cross_entropy.{name}", smooth, make, f"cross_entropy.{key}")
            case(f"nll_loss.{name}", lambda x, t, w: F.nll_loss(x, t, w.detach(), **o), make, f"nll_loss.{key}")
