"""Encoder and decoder of Neural Relational Inference (Kipf et al., 2018), the MLP versions.

A linear layer on [sender, receiver] is the sum of one on the sender and one on the receiver. Both are applied at the
nodes, and a 0/1 matrix adds them up at the pairs: nothing is gathered or scattered, so that the backward pass, too, is
made of matrix products. Pairs are ordered, i != j, and sorted by receiver. Under autocast the wide layers run in half
precision, and what reads coordinates or writes results does not. CUDA devices have another way: messages.py.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumtrace_experiments.graph_layout import messages as fused
from gumtrace_experiments.graph_layout.layers import Layer, Repeated


class Encoder(nn.Module):
    """Frames of moving nodes to logits of their edges.

    >>> Encoder(frames=4, nodes=3, hidden=8)(torch.randn(2, 4, 3, 2)).shape
    torch.Size([2, 3, 3])
    """

    ends: Tensor

    def __init__(self, frames: int, nodes: int = 10, hidden: int = 256):
        super().__init__()
        self.nodes = nodes
        self.mlp1, self.mlp3 = _MLP(2 * frames, hidden), _MLP(hidden, hidden)  # of nodes
        self.mlp2, self.mlp4 = _MLP(2 * hidden, hidden), _MLP(3 * hidden, hidden)  # of pairs
        self.out = nn.Linear(hidden, 1)
        self.register_buffer("ends", _ends(nodes), persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight)
                nn.init.constant_(module.bias, 0.1)

    def forward(self, positions: Tensor) -> Tensor:
        """Positions (B, frames, n, 2) to symmetric logits (B, n, n), zero on the diagonal."""
        with torch.autocast(positions.device.type, enabled=False):
            read = self.mlp1.fc1(positions.transpose(1, 2).flatten(2))
        nodes = self.mlp1(read)  # (B, n, hidden)
        first = self.mlp2.fc1
        pairs = self.mlp2(self._to_pairs(nodes, first.weight, first.bias))  # (B, n(n-1), hidden)
        incoming = pairs.unflatten(1, (self.nodes, -1)).sum(2) / self.nodes  # by n, though there are n - 1: as in NRI
        nodes = self.mlp3(self.mlp3.fc1(incoming))
        first = self.mlp4.fc1
        ends, skip = first.weight.split([2 * nodes.shape[-1], pairs.shape[-1]], 1)
        pairs = self.mlp4(self._to_pairs(nodes, ends, first.bias) + F.linear(pairs, skip))
        with torch.autocast(positions.device.type, enabled=False):
            logits = _with_diagonal(self.out(pairs.to(read.dtype)).squeeze(-1), self.nodes)
        return (logits + logits.mT) / 2

    def _to_pairs(self, nodes: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self.ends @ _halves(nodes, *_at_nodes(weight, bias))


class Decoder(nn.Module):
    """The next frame, given this one and a graph: one network makes the messages along edges, one those of other pairs.

    `hard` says that a structure is a tree, 0/1 and symmetric. Each pair then goes through the network of its own type
    alone, which halves the work; no gradient reaches the structure. Otherwise any numbers in [0, 1] will do, and weigh
    the two messages of a pair. Then the messages do not depend on the structure, and samples with the same positions
    share them: from three samples on that is less work, for trees as well.

    `twice` says that what comes out will be differentiated twice, for which our own kernels and repeated layers have no
    code.

    >>> positions, structure = torch.randn(2, 9, 3, 2), torch.rand(4, 2, 3, 3)
    >>> decoder = Decoder(nodes=3, hidden=8)
    >>> decoder(positions, structure, hard=False).shape
    torch.Size([4, 2, 9, 3, 2])
    >>> decoder.unroll(positions[:, 0], structure, steps=5, hard=False).shape
    torch.Size([4, 2, 5, 3, 2])
    """

    ends: Tensor
    receivers: Tensor

    def __init__(self, nodes: int = 10, hidden: int = 256):
        super().__init__()
        self.nodes, self.compiled = nodes, False
        self.message1 = nn.ModuleList(nn.Linear(4, hidden) for _ in range(2))  # of type 0, no edge, and type 1
        self.message2 = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.out1 = nn.Linear(2 + hidden, hidden)
        self.out2 = nn.Linear(hidden, hidden)
        self.out3 = nn.Linear(hidden, 2)
        ends = _ends(nodes)
        self.register_buffer("ends", ends, persistent=False)
        self.register_buffer("receivers", ends[:, 1::2].contiguous(), persistent=False)  # (n(n-1), n)

    def forward(self, positions: Tensor, structure: Tensor, *, hard: bool, twice: bool = False) -> Tensor:
        """Each of the frames (*B, F, n, 2) moved by one step: (*S, *B, F, n, 2) for structures (*S, *B, n, n)."""
        *batch, frames, n, _ = positions.shape
        samples = structure.shape[: structure.dim() - 2 - len(batch)]
        x = positions.reshape(-1, frames, n, 2).transpose(1, 2).contiguous()  # (I, n, F, 2)
        structure = structure.reshape(samples.numel(), len(x), n, n).transpose(0, 1)  # (I, K, n, n)
        moved = self._step(x, self._prepare(structure.to(x.dtype), hard, twice))  # (I, K, n, F, 2)
        return moved.permute(1, 0, 3, 2, 4).reshape(*samples, *positions.shape)

    def unroll(self, first: Tensor, structure: Tensor, steps: int, *, hard: bool, twice: bool = False) -> Tensor:
        """Frames (*S, *B, steps, n, 2) that follow the first, (*B, n, 2), for structures (*S, *B, n, n)."""
        n = self.nodes
        x = first.expand(*structure.shape[:-1], 2).reshape(-1, n, 1, 2)  # (I, n, 1, 2): each sample goes its own way
        once = not (twice or self.compiled or torch.compiler.is_compiling())
        wiring = self._prepare(structure.reshape(-1, 1, n, n).to(x.dtype), hard, twice, steps if once else None)
        frames = []
        for _ in range(steps):
            x = self._step(x, wiring).squeeze(1)
            frames.append(x.squeeze(2))
        return torch.stack(frames, 1).view(*structure.shape[:-2], steps, n, 2)

    def compile(self, *args, **kwargs) -> None:
        """The step alone: the rest is little work, and sorting is slow to compile."""
        self._step, self.compiled = torch.compile(self._step, *args, **kwargs), True

    def _prepare(
        self, structure: Tensor, hard: bool, twice: bool = False, steps: int | None = None
    ) -> "_Wiring | _Fused":
        """All that does not change from step to step, for structures (I, K, n, n). If there are to be so many `steps`,
        weights get their gradients from all of them at once."""
        present = _off_diagonal(structure.mT)  # (I, K, n(n-1)), sorted by receiver
        layers = self._layers()
        if steps is not None:
            layers = [Repeated(layer, steps, structure[..., 0].numel()) for layer in layers]
        second = torch.stack([layer.weight for layer in self.message2])  # type: ignore[arg-type]
        second_bias = torch.stack([layer.bias for layer in self.message2])  # type: ignore[arg-type]
        order = present.argsort(dim=-1, descending=True, stable=True) if hard else None  # edges first
        if not twice and fused.serves(structure, hidden=second.shape[-1]):
            wiring = present if order is None else order.to(torch.int32)
            sums = fused.prepare(second, second_bias, wiring)
            return _Fused(_Layers(*layers), sums if steps is None else fused.repeated(sums, steps))
        pairs = self._all_pairs(present) if order is None else self._sorted_pairs(order)
        return _Wiring(_Layers(*layers), second.mT, second_bias[:, None], *pairs)

    def _layers(self) -> Sequence[Layer]:
        first = [_at_nodes(layer.weight, layer.bias) for layer in self.message1]  # type: ignore[arg-type]
        weight, bias = (torch.cat(x) for x in zip(*first, strict=True))
        own, received = self.out1.weight.split([2, self.out2.in_features], 1)
        dtype = fused.product_dtype(received)
        return [
            Layer(bias, (weight,)),
            Layer(self.out1.bias, (own, received.to(dtype))),
            Layer(self.out2.bias.to(dtype), (self.out2.weight.to(dtype),)),
            Layer(self.out3.bias, (self.out3.weight,)),
        ]

    def _sorted_pairs(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Of each type its own. A tree has n - 1 edges, so that shapes are known without a look at it.

        Edges are fewer than other pairs: pairs that nobody sums up make both types one batch of matrix products.
        """
        n = self.nodes
        edges, others = order.split([2 * (n - 1), (n - 1) * (n - 2)], -1)  # (I, K, pairs)
        rows = max(edges.shape[-1], others.shape[-1])
        nobody = len(self.ends)  # a row of zeros, below
        order = torch.stack([F.pad(p, (0, rows - p.shape[-1]), value=nobody) for p in (others, edges)])
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
        # In place, on a view, the backward pass would copy.
        hidden = torch.relu(wiring.layers.out1(x[:, None], messages))
        hidden = torch.relu(wiring.layers.out2(hidden))
        return x[:, None] + wiring.layers.out3(hidden)


class _MLP(nn.Module):
    """Linear, ELU, linear, ELU, batch norm over items and nodes or pairs. The first layer is left to the caller."""

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.norm = _BatchNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.fc2(F.elu(x)))
        return self.norm(x.flatten(0, 1)).view_as(x)


class _BatchNorm(nn.BatchNorm1d):
    """With running variances that are not less than a small part of their mean.

    A channel may be constant in batch after batch and yet differ for one graph in thousands. Its running variance is
    next to nothing then, and that graph would have logits of -1e5, and a KL divergence of e^1e5.
    """

    LEAST = 1e-5

    def forward(self, input: Tensor) -> Tensor:
        if self.training or self.running_var is None:
            return super().forward(input)
        variance = self.running_var.clamp_min(self.LEAST * self.running_var.mean())
        return F.batch_norm(input, self.running_mean, variance, self.weight, self.bias, eps=self.eps)


class _Layers(NamedTuple):
    """Those at the nodes."""

    first: Layer | Repeated  # of messages, to 4 hidden: both halves of type 0, both of type 1
    out1: Layer | Repeated  # of nodes and the messages they receive
    out2: Layer | Repeated
    out3: Layer | Repeated


class _Wiring(NamedTuple):
    """What a step needs of both types of pairs: of those that are no edges, and of edges."""

    layers: _Layers
    second_weight: Tensor  # (2, hidden, hidden)
    second_bias: Tensor  # (2, 1, hidden)
    ends: Tensor  # (pairs, 2n), or (2, I, K pairs, 2n) where samples have their own
    sums: Tensor  # (2, I, K n, pairs), or (2, I K, n, pairs): which messages reach a receiver, and their weights


class _Fused(NamedTuple):
    """The same for kernels of our own."""

    layers: _Layers
    second: fused.Second | fused.Repeated


def _messages(x: Tensor, wiring: _Wiring | _Fused) -> Tensor:
    """Those that nodes (I, n, F, 2) receive, summed: (I, K, n, F, hidden), with some of these dimensions flattened."""
    items, n, frames, _ = x.shape
    halves = wiring.layers.first(x).view(items, n, frames, 2, 2, -1)
    if isinstance(wiring, _Fused):
        return wiring.second(halves)
    halves = halves.permute(3, 0, 1, 4, 2, 5).reshape(2, items, 2 * n, -1)  # (2, I, 2n, F hidden)
    hidden = wiring.second_weight.shape[-1]
    at_pairs = torch.relu(wiring.ends @ halves)  # (2, I, pairs or K pairs, F hidden)
    messages = torch.baddbmm(wiring.second_bias, at_pairs.view(2, -1, hidden), wiring.second_weight).relu_()
    return (wiring.sums @ messages.view(2, wiring.sums.shape[1], -1, frames * hidden)).sum(0)


def _ends(n: int) -> Tensor:
    """Whose halves make a pair: (n(n-1), 2n), 1 at 2i for sender i and at 2j + 1 for receiver j."""
    receivers, senders = (1 - torch.eye(n)).nonzero(as_tuple=True)
    return (F.one_hot(2 * senders, 2 * n) + F.one_hot(2 * receivers + 1, 2 * n)).float()


def _at_nodes(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """A layer on [sender, receiver] as one on nodes, with both halves as outputs; the receiver's has the bias."""
    return torch.cat(weight.chunk(2, 1)), F.pad(bias, (len(bias), 0))


def _halves(nodes: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(*, n, inputs) to (*, 2n, hidden): each node as a sender, then as a receiver."""
    return F.linear(nodes, weight, bias).unflatten(-1, (2, -1)).flatten(-3, -2)


def _off_diagonal(x: Tensor) -> Tensor:
    """(*, n, n) to (*, n(n-1)): behind the first entry, every (n+1)-th is on the diagonal."""
    n = x.shape[-1]
    return x.flatten(-2)[..., 1:].unflatten(-1, (n - 1, n + 1))[..., :-1].flatten(-2)


def _with_diagonal(pairs: Tensor, n: int) -> Tensor:
    """The inverse, with zeros: (*, n(n-1)) to (*, n, n)."""
    rows = F.pad(pairs.unflatten(-1, (n - 1, n)), (0, 1)).flatten(-2)
    return F.pad(rows, (1, 0)).unflatten(-1, (n, n))
