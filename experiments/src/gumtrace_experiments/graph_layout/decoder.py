"""The decoder of Neural Relational Inference (Kipf et al., 2018), the MLP version, as it is written down.

`fused_decoder` computes the same with less work, and is what the experiment trains.
"""

import torch
from torch import Tensor, nn


class Decoder(nn.Module):
    """The next frame, given this one and a graph: one network makes the messages along edges, one those of other pairs.

    Structures are numbers in [0, 1], which weigh the two messages of a pair.

    >>> positions, structure = torch.randn(2, 9, 3, 2), torch.rand(4, 2, 3, 3)
    >>> decoder = Decoder(nodes=3, hidden=8)
    >>> decoder(positions, structure).shape
    torch.Size([4, 2, 9, 3, 2])
    >>> decoder.unroll(positions[:, 0], structure, steps=5).shape
    torch.Size([4, 2, 5, 3, 2])
    """

    def __init__(self, nodes: int = 10, hidden: int = 256):
        super().__init__()
        self.nodes = nodes
        self.message1 = nn.ModuleList(nn.Linear(4, hidden) for _ in range(2))  # of type 0, no edge, and type 1
        self.message2 = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.out1 = nn.Linear(2 + hidden, hidden)
        self.out2 = nn.Linear(hidden, hidden)
        self.out3 = nn.Linear(hidden, 2)

    def forward(self, positions: Tensor, structure: Tensor) -> Tensor:
        """Each of the frames (*B, F, n, 2) moved by one step: (*S, *B, F, n, 2) for structures (*S, *B, n, n)."""
        return self.move(positions, structure.unsqueeze(-3))

    def unroll(self, first: Tensor, structure: Tensor, steps: int) -> Tensor:
        """Frames (*S, *B, steps, n, 2) that follow the first, (*B, n, 2), for structures (*S, *B, n, n)."""
        x, frames = first, []
        for _ in range(steps):
            x = self.move(x, structure)
            frames.append(x)
        return torch.stack(frames, -3)

    def move(self, x: Tensor, structure: Tensor) -> Tensor:
        """One step of nodes (*B, n, 2) and structures (*B, n, n), which are broadcast."""
        n = x.shape[-2]
        senders, receivers = x[..., :, None, :].expand(*x.shape[:-1], n, 2), x[..., None, :, :]
        pairs = torch.cat([senders, receivers.expand_as(senders)], -1)  # (*B, n, n, 4): i sends to j
        weights = (1 - structure, structure)
        messages = [
            weight[..., None] * torch.relu(second(torch.relu(first(pairs))))
            for weight, first, second in zip(weights, self.message1, self.message2, strict=True)
        ]
        others = 1 - torch.eye(n, dtype=x.dtype, device=x.device)  # no node sends to itself
        received = ((messages[0] + messages[1]) * others[..., None]).sum(-3)  # (*B, n, hidden)
        hidden = torch.cat([x.expand(*received.shape[:-1], 2), received], -1)
        return x + self.out3(torch.relu(self.out2(torch.relu(self.out1(hidden)))))
