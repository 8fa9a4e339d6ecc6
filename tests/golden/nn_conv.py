"""Convolutions, in the order of tests/ops/table/conv_test.cpp."""

import torch.nn.functional as F

from nn_cases import case


def fill(file):
    def conv(name, f, *shapes, **options):
        case(file, name, lambda x, w, *b: f(x, w, *b, **options), *shapes)

    conv("conv1d", F.conv1d, (2, 3, 7), (4, 3, 3), (4,))
    conv("conv1d.options", F.conv1d, (4, 9), (6, 2, 2), (6,), stride=2, padding=3, dilation=2, groups=2)
    conv("conv2d", F.conv2d, (2, 3, 5, 4), (4, 3, 3, 2), (4,))
    conv("conv2d.options", F.conv2d, (2, 4, 6, 5), (6, 2, 3, 2), (6,), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)
    conv("conv2d.depthwise", F.conv2d, (2, 3, 5, 5), (6, 1, 3, 3), padding=1, groups=3)
    conv("conv2d.single", F.conv2d, (3, 4, 4), (2, 3, 1, 1), (2,), stride=3)
    conv("conv2d.wide", F.conv2d, (1, 20, 4, 4), (18, 20, 3, 3), (18,), padding=1)
    conv("conv3d", F.conv3d, (1, 2, 3, 4, 3), (3, 2, 2, 2, 2), (3,), padding=(1, 0, 1), stride=(1, 2, 1))
    conv("conv_transpose1d", F.conv_transpose1d, (2, 3, 4), (3, 2, 3), (2,), stride=2, padding=1, output_padding=1)
    conv("conv_transpose2d", F.conv_transpose2d, (2, 3, 3, 2), (3, 4, 2, 3), (4,))
    conv("conv_transpose2d.options", F.conv_transpose2d, (2, 4, 3, 3), (4, 2, 3, 2), (4,), stride=(3, 2), padding=(2, 0), output_padding=(2, 1), dilation=(1, 2), groups=2)
    conv("conv_transpose2d.dilated", F.conv_transpose2d, (3, 3, 3), (3, 2, 2, 2), (2,), padding=1, output_padding=2, dilation=3)
    conv("conv_transpose3d", F.conv_transpose3d, (1, 2, 2, 3, 2), (2, 2, 2, 2, 2), (2,), stride=(1, 2, 2), padding=(0, 1, 1), output_padding=(0, 1, 0))
