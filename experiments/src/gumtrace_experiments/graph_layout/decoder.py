"""The decoder of Neural Relational Inference (Kipf et al., 2018), the MLP version: as it is written down, and with less
work, which is what the experiment trains.

Less work: layers at the nodes instead of at the pairs, gradients to weights made once for all steps (layers.py), and on
CUDA devices kernels of our own (messages.py). Under autocast the wide layers run in half precision, and what reads
coordinates or writes results does not.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumtrace_experiments.graph_layout import messages as fused
from gumtrace_experiments.graph_layout.layers import Layer, Repeated, at_nodes, ends, off_diagonal
from gumtrace_experiments.graph_layout.node_update import NodeUpdate, PlainUpdate
from gumtrace_experiments.graph_layout.repeated_messages import RepeatedMessages, repeated

SHARED = 3  # samples from which on it is less work if they share both kinds of messages


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


class FusedDecoder(Decoder):
    """The same with less work.

    `hard` says that a structure is a tree, 0/1 and symmetric. Each pair then goes through the network of its own type
    alone, which halves the work; no gradient reaches the structure. Otherwise any numbers in [0, 1] will do, and weigh
    the two messages of a pair. Then the messages do not depend on the structure, and samples with the same positions
    share them: from three samples on that is less work, for trees as well.

    What K structures of an item share, by construction, and what not: nodes that are where they are in the data send
    the same messages whatever the structure, and a structure decides which are summed up. So teacher-forced, and in the
    first step of an unrolled loop, the 2 n(n - 1) rows of messages that a frame has are made once. Sums are linear, and
    so is the layer that reads them, but behind its relu every structure has its own n rows of two layers. From the
    second step of a loop on nodes are elsewhere for every structure, and nothing is shared. A product of a row with a
    hidden x hidden matrix is the unit of work, and the backward pass takes two more of each: with n = 10 and K = 8, 180
    and 160 of them teacher-forced, and unrolled 180 in the first of the steps, K 90 in the others, and 160 in each.

    `twice` says that what comes out will be differentiated twice, for which our own kernels and repeated layers have no
    code.
    """

    ends: Tensor
    receivers: Tensor

    def __init__(self, nodes: int = 10, hidden: int = 256):
        super().__init__(nodes, hidden)
        self.compiled = False
        pairs = ends(nodes)
        self.register_buffer("ends", pairs, persistent=False)
        self.register_buffer("receivers", pairs[:, 1::2].contiguous(), persistent=False)  # (n(n-1), n)

    def forward(self, positions: Tensor, structure: Tensor, *, hard: bool = False, twice: bool = False) -> Tensor:
        *batch, frames, n, _ = positions.shape
        samples = structure.shape[: structure.dim() - 2 - len(batch)]
        x = positions.reshape(-1, frames, n, 2).transpose(1, 2).contiguous()  # (I, n, F, 2)
        structure = structure.reshape(samples.numel(), len(x), n, n).transpose(0, 1)  # (I, K, n, n)
        moved = self._step(x, self._prepare(structure.to(x.dtype), hard, twice))  # (I, K, n, F, 2)
        return moved.permute(1, 0, 3, 2, 4).reshape(*samples, *positions.shape)

    def unroll(
        self, first: Tensor, structure: Tensor, steps: int, *, hard: bool = False, twice: bool = False
    ) -> Tensor:
        n, shape = self.nodes, structure.shape[:-2]
        x = first.reshape(-1, n, 1, 2)  # (I, n, 1, 2)
        structure = structure.reshape(-1, len(x), n, n).transpose(0, 1).to(x.dtype)  # (I, K, n, n)
        own = structure.reshape(-1, 1, n, n)  # (I K, 1, n, n): after a step, each sample has its own places
        frames = []
        if hard and structure.shape[1] >= SHARED and not self._plain(twice):
            weights = self._weights(structure, twice, steps)
            x = self._step(x, self._wire(structure, weights, False)).reshape(-1, n, 1, 2)
            frames.append(x.squeeze(2))
            wiring = self._wire(own, weights, hard, steps=steps - 1)
        else:
            x = x[:, None].expand(*structure.shape[:-1], 1, 2).reshape(-1, n, 1, 2)
            wiring = self._prepare(own, hard, twice, None if self._plain(twice) else steps)
        for _ in range(steps - len(frames)):
            x = self._step(x, wiring).squeeze(1)
            frames.append(x.squeeze(2))
        moved = torch.stack(frames, 1).view(*structure.shape[:2], steps, n, 2)
        return moved.transpose(0, 1).reshape(*shape, steps, n, 2)

    def compile(self, *args, **kwargs) -> None:
        """The step alone: the rest is little work, and sorting is slow to compile."""
        self._step, self.compiled = torch.compile(self._step, *args, **kwargs), True

    def _plain(self, twice: bool) -> bool:
        """Whether torch has to see every operation: to differentiate twice, or to compile."""
        return twice or self.compiled or torch.compiler.is_compiling()

    def _prepare(
        self, structure: Tensor, hard: bool, twice: bool = False, steps: int | None = None
    ) -> "_Wiring | _Fused":
        """All that does not change from step to step, for structures (I, K, n, n). If there are to be so many `steps`,
        weights get their gradients from all of them at once."""
        return self._wire(structure, self._weights(structure, twice, steps or 1), hard, steps)

    def _weights(self, structure: Tensor, twice: bool, steps: int) -> "_Weights":
        """Of all layers, for so many steps."""
        kernels = fused.serves(structure, self.out2.in_features)
        first = self._first() if kernels and not twice else self._first_at_nodes()
        second = torch.stack([layer.weight for layer in self.message2])  # type: ignore[arg-type]
        second_bias = torch.stack([layer.bias for layer in self.message2])  # type: ignore[arg-type]
        own, received = self.out1.weight.split([2, self.out2.in_features], 1)
        dtype = fused.product_dtype(received)
        out = (
            Layer(self.out1.bias, (own, received.to(dtype))),
            Layer(self.out2.bias.to(dtype), (self.out2.weight.to(dtype),)),
            Layer(self.out3.bias, (self.out3.weight,)),
        )
        update = PlainUpdate(*out) if self._plain(twice) else NodeUpdate(*out, times=steps, kernels=kernels)
        return _Weights(first, second, second_bias, update)

    def _first(self) -> Tensor:
        """The first layer of messages, as kernels take it, (2, 5, hidden)."""
        return torch.stack([torch.cat([layer.weight.T, layer.bias[None]]) for layer in self.message1])  # type: ignore[index]

    def _first_at_nodes(self) -> Layer:
        """The same at the nodes, to 4 hidden: both halves of type 0, both of type 1."""
        halves = [at_nodes(layer.weight, layer.bias) for layer in self.message1]  # type: ignore[arg-type]
        weight, bias = (torch.cat(x) for x in zip(*halves, strict=True))
        return Layer(bias, (weight,))

    def _wire(self, structure: Tensor, weights: "_Weights", hard: bool, steps: int | None = None) -> "_Wiring | _Fused":
        """The weights, and whose they are."""
        first, second, second_bias, update = weights
        present = off_diagonal(structure.mT)  # (I, K, n(n-1)), sorted by receiver
        order = present.argsort(dim=-1, descending=True, stable=True) if hard else None  # edges first
        if isinstance(first, Tensor):
            messages = fused.prepare(first, second, second_bias, present if order is None else order)
            return _Fused(update, messages if steps is None else repeated(messages, steps))
        if steps is not None:
            first = Repeated(first, steps, structure[..., 0].numel())
        pairs = self._all_pairs(present) if order is None else self._sorted_pairs(order)
        return _Wiring(first, update, second.mT, second_bias[:, None], *pairs)

    def _sorted_pairs(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """The pairs of each type separately. A tree has n - 1 edges, so that shapes are known without synchronising.

        Edges are fewer than other pairs: padding makes both types one batch of matrix products.
        """
        n = self.nodes
        edges, others = order.split([2 * (n - 1), (n - 1) * (n - 2)], -1)  # (I, K, pairs)
        rows = max(edges.shape[-1], others.shape[-1])
        padding = len(self.ends)  # a row of zeros, below
        order = torch.stack([F.pad(p, (0, rows - p.shape[-1]), value=padding) for p in (others, edges)])
        dtype = fused.product_dtype(self.ends)
        ends, receivers = (F.pad(x.to(dtype), (0, 0, 0, 1))[order] for x in (self.ends, self.receivers))
        return ends.flatten(2, 3), receivers.mT.flatten(1, 2)

    def _all_pairs(self, present: Tensor) -> tuple[Tensor, Tensor]:
        """The same for both types, weighted in the sums."""
        weights = torch.stack([1 - present, present])  # (2, I, K, pairs)
        return self.ends, (weights[:, :, :, None] * self.receivers.T).flatten(2, 3)

    def _step(self, x: Tensor, wiring: "_Wiring | _Fused") -> Tensor:
        """(I, n, F, 2) to (I, K, n, F, 2)."""
        items, n, frames, _ = x.shape
        messages = _messages(x, wiring).reshape(items, -1, n, frames, self.out2.in_features)
        return wiring.update(x, messages)


class _Weights(NamedTuple):
    first: Layer | Tensor  # of messages
    second: Tensor  # (2, hidden, hidden)
    second_bias: Tensor  # (2, hidden)
    update: NodeUpdate | PlainUpdate


class _Wiring(NamedTuple):
    """What a step needs of both types of pairs: of those that are no edges, and of edges."""

    first: Layer | Repeated
    update: NodeUpdate | PlainUpdate
    second_weight: Tensor  # (2, hidden, hidden)
    second_bias: Tensor  # (2, 1, hidden)
    ends: Tensor  # (pairs, 2n), or (2, I, K pairs, 2n) where samples have their own
    sums: Tensor  # (2, I, K n, pairs), or (2, I K, n, pairs): which messages reach a receiver, and their weights


class _Fused(NamedTuple):
    """The same for kernels of our own."""

    update: NodeUpdate | PlainUpdate
    messages: fused.Messages | RepeatedMessages


def _messages(x: Tensor, wiring: _Wiring | _Fused) -> Tensor:
    """Those that nodes (I, n, F, 2) receive, summed: (I, K, n, F, hidden), with some of these dimensions flattened."""
    if isinstance(wiring, _Fused):
        return wiring.messages(x)
    items, n, frames, _ = x.shape
    halves = wiring.first(x).view(items, n, frames, 2, 2, -1)
    halves = halves.permute(3, 0, 1, 4, 2, 5).reshape(2, items, 2 * n, -1)  # (2, I, 2n, F hidden)
    hidden = wiring.second_weight.shape[-1]
    at_pairs = torch.relu(wiring.ends @ halves)  # (2, I, pairs or K pairs, F hidden)
    messages = torch.baddbmm(wiring.second_bias, at_pairs.view(2, -1, hidden), wiring.second_weight).relu_()
    return (wiring.sums @ messages.view(2, wiring.sums.shape[1], -1, frames * hidden)).sum(0)
