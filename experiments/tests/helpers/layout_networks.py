"""Small networks of graph layout, and their inputs, in float64 unless told otherwise."""

import torch
from common import seeded

import gumtrace as gt
from gumtrace_experiments.graph_layout.encoder import Encoder

HIDDEN, ITEMS, FRAMES, SAMPLES = 12, 3, 4, 2


def make(network, n, dtype=torch.float64):
    """With what initialisation leaves alike made different: biases, and the scales and statistics of batch norm."""
    torch.manual_seed(0)
    model = Encoder(FRAMES, n, HIDDEN) if network is Encoder else network(n, HIDDEN)
    with torch.no_grad():
        for name, x in [*model.named_parameters(), *model.named_buffers()]:
            if x.dim() == 1:
                x.copy_(torch.rand_like(x) + 0.5 if "norm" in name else x + 0.3 * torch.randn_like(x))
    return model.to(dtype)


def frames(n, *batch, dtype=torch.float64):
    return torch.rand(*batch, n, 2, dtype=dtype, generator=seeded(1)) * 2 - 1


def trees(n, *batch, dtype=torch.float64):
    return gt.SpanningTree(torch.zeros(n, n, dtype=dtype)).sample(batch, generator=seeded(2))


def soft(n, *batch):
    """Any numbers, nor need they be symmetric: X[i, j] weighs the message from i to j."""
    return torch.rand(*batch, n, n, dtype=torch.float64, generator=seeded(3))
