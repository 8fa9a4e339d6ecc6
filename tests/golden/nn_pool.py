"""Pools, in the order of tests/ops/table/pool_test.cpp."""

import torch.nn.functional as F

from nn_cases import case


def fill(file):
    def maxima(name, f, shape, *arguments, **options):
        case(file, name, lambda x: f(x, *arguments, return_indices=True, **options), shape, distinct=True)

    def averages(name, f, shape, *arguments, **options):
        case(file, name, lambda x: f(x, *arguments, **options), shape)

    maxima("max_pool1d", F.max_pool1d, (2, 3, 7), 3, stride=2, padding=1)
    maxima("max_pool2d", F.max_pool2d, (2, 3, 6, 5), 2)
    maxima("max_pool2d.options", F.max_pool2d, (3, 7, 8), (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), ceil_mode=True)
    maxima("max_pool2d.ceil", F.max_pool2d, (1, 2, 5, 6), 3, stride=4, padding=1, ceil_mode=True)
    maxima("max_pool3d", F.max_pool3d, (1, 2, 4, 5, 3), (2, 3, 2), stride=(2, 1, 1), padding=(1, 1, 0))
    averages("avg_pool1d", F.avg_pool1d, (2, 3, 8), 3, stride=2, padding=1)
    averages("avg_pool2d", F.avg_pool2d, (2, 3, 6, 5), (3, 2))
    averages("avg_pool2d.ceil", F.avg_pool2d, (3, 7, 6), 3, stride=2, padding=1, ceil_mode=True)
    averages("avg_pool2d.exclude", F.avg_pool2d, (2, 2, 6, 7), (3, 2), stride=2, padding=(1, 1), ceil_mode=True, count_include_pad=False)
    averages("avg_pool2d.divisor", F.avg_pool2d, (2, 2, 5, 5), 2, stride=1, padding=1, divisor_override=3)
    averages("avg_pool3d", F.avg_pool3d, (1, 2, 4, 5, 3), (2, 3, 2), stride=(2, 1, 1), padding=(1, 1, 0))
    averages("adaptive_avg_pool1d", F.adaptive_avg_pool1d, (2, 3, 7), 3)
    averages("adaptive_avg_pool2d", F.adaptive_avg_pool2d, (2, 2, 5, 7), (3, 10))
    averages("adaptive_avg_pool3d", F.adaptive_avg_pool3d, (2, 3, 4, 5), (2, None, 1))
    maxima("adaptive_max_pool1d", F.adaptive_max_pool1d, (2, 3, 7), 3)
    maxima("adaptive_max_pool2d", F.adaptive_max_pool2d, (2, 2, 5, 7), (3, 4))
    maxima("adaptive_max_pool3d", F.adaptive_max_pool3d, (2, 3, 4, 5), (2, 4, 3))
