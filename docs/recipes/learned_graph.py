"""Learn the graph of a graph neural network: each node draws the k nodes it listens to, and what helps is kept.

    python learned_graph.py --out graph.png

For your own data replace `load_data`. The layer is GraphSAGE's, from PyTorch Geometric if that is installed. The
gradient of the network is autograd's, that of the graph an unbiased estimate: no soft edges, and no message along an
edge that was not drawn.
"""

import argparse

import torch
from torch import Tensor, nn

import gumtrace as gt

try:
    from torch_geometric.nn import SAGEConv  # pyright: ignore[reportMissingImports]
except ImportError:

    class SAGEConv(nn.Module):
        """W1 (mean of what arrives) + b + W2 x."""

        def __init__(self, size: int, out: int):
            super().__init__()
            self.lin_l, self.lin_r = nn.Linear(size, out), nn.Linear(size, out, bias=False)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:  # (N, size), (2, E) from -> to
            source, target = edges
            arrived = torch.zeros_like(x).index_add(0, target, x[source])
            count = torch.bincount(target, minlength=len(x)).clamp(min=1)
            return self.lin_l(arrived / count[:, None]) + self.lin_r(x)


def load_data(sets: int = 120, nodes: int = 48, clutter: int = 6):
    """Features (sets, n, f) that say who is near; signals (sets, n, c) to send; targets (sets, n); and places
    (sets, n, 2) for the picture, or None. Here sensors measure a smooth field with much noise, and their places are
    hidden among other features."""
    generator = torch.Generator().manual_seed(0)
    place = torch.rand(sets, nodes, 2, generator=generator)
    waves, phase = 3 * torch.randn(sets, 2, 2, generator=generator), 6.3 * torch.rand(sets, 1, 2, generator=generator)
    field = (place @ waves.mT + phase).sin().sum(-1)
    signal = field + torch.randn(sets, nodes, generator=generator)
    features = torch.cat([place, torch.rand(sets, nodes, clutter, generator=generator)], -1)
    rotation = torch.linalg.qr(torch.randn(2 + clutter, 2 + clutter, generator=generator)).Q
    return features @ rotation, signal[..., None], field, place


class Network(nn.Module):
    """Two rounds of messages."""

    def __init__(self, channels: int, width: int = 32):
        super().__init__()
        self.first, self.second, self.out = SAGEConv(channels, width), SAGEConv(width, width), nn.Linear(width, 1)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:  # (*S, n, c), (*S, n, k) -> (*S, n)
        edges, h = edge_index(neighbours), x.expand(*neighbours.shape[:-1], -1).flatten(0, -2)
        h = self.second(self.first(h, edges).relu(), edges).relu()
        return self.out(h).view(neighbours.shape[:-1])


def edge_index(neighbours: Tensor) -> Tensor:
    """(*S, n, k) -> (2, E), all graphs side by side as one: from each neighbour to the node that listens to it."""
    n, k = neighbours.shape[-2:]
    graphs = neighbours.reshape(-1, n, k).long()
    source = graphs + n * torch.arange(len(graphs))[:, None, None]
    return torch.stack([source.flatten(), torch.arange(len(graphs) * n).repeat_interleave(k)])


def neighbourhoods(z: Tensor, k: int) -> gt.Subset:
    """For each node, k of the others, near ones more often: a batch (sets, n) of subsets of n."""
    n = z.shape[-2]
    return gt.Subset(-torch.cdist(z, z).square(), k, mask=~torch.eye(n, dtype=torch.bool))


def nearest(z: Tensor, k: int) -> Tensor:
    """The same without noise: (sets, n, k)."""
    d = neighbourhoods(z, k)
    return d.trace(d.logits).winners


def credit(loss: Tensor, neighbours: Tensor) -> Tensor:
    """(*S, n): to each node its own loss, and those of the nodes that listen to it, for which it chose as well. After
    two rounds no other loss depends on its choice, so nothing is left out. Only its own has a derivative."""
    to_others = loss.detach().repeat_interleave(neighbours.shape[-1], -1)
    return loss.scatter_add(-1, neighbours.flatten(-2).long(), to_others)


def train(data: tuple[Tensor, ...], k: int, steps: int, learn: bool, batch: int = 16) -> tuple[Network, nn.Module]:
    features, signal, target = data
    network, where = Network(signal.shape[-1]), nn.Linear(features.shape[-1], 2, bias=False) if learn else nn.Identity()
    groups = [{"params": [*network.parameters()], "lr": 0.01}, {"params": [*where.parameters()], "lr": 0.05}]
    optimiser = torch.optim.Adam(groups)
    estimator = gt.estimators.TraceREINFORCE(samples=4)
    for _ in range(steps):
        some = torch.randint(len(features), (batch,))
        z, x, y = where(features[some]), signal[some], target[some]

        def error(neighbours: Tensor, x=x, y=y) -> Tensor:  # of each node
            return (network(x, neighbours) - y).square()

        if learn:
            d = neighbourhoods(z, k)
            loss = estimator(d, lambda trace, f=error: credit(f(trace.winners), trace.winners), on="trace")
        else:
            loss = error(nearest(z, k))
        optimiser.zero_grad()
        loss.mean().backward()
        optimiser.step()
    return network, where


def draw(graphs: dict[str, Tensor], place: Tensor, target: Tensor, path: str) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    from gumtrace.plotting.style import INK, SOFT

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    for ax, (title, neighbours) in zip(figure.subplots(1, 2), graphs.items(), strict=True):
        source, node = edge_index(neighbours)
        ax.add_collection(LineCollection(place[torch.stack([source, node], 1)].tolist(), colors=SOFT, linewidths=0.5))
        ax.scatter(*place.T.tolist(), c=target.tolist(), cmap="RdYlBu", s=45, edgecolors=INK, linewidths=0.5, zorder=2)
        ax.set_title(title, fontsize=10, color=INK)
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k", type=int, default=5, help="nodes that each node listens to")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="file for the picture")
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)
    features, signal, target, place = load_data()
    features, signal, target = features.float(), signal.float(), target.float()
    cut = 2 * len(features) // 3
    if cut == 0:
        raise ValueError("there is one set: at least two are needed, as the last third is held out")
    features = (features - features[:cut].mean((0, 1))) / features[:cut].std((0, 1)).clamp(min=1e-6)
    data, test = [[t[part] for t in (features, signal, target)] for part in (slice(0, cut), slice(cut, None))]
    layers = "PyG" if SAGEConv.__module__.startswith("torch_geometric") else "this file"
    print(f"layers of {layers}; variance of the target {test[2].var():.2f}")
    graphs, where = {}, nn.Identity()
    for name, learn in {"nearest in the features": False, "learned": True}.items():
        network, where = train(tuple(data), args.k, args.steps, learn)
        with torch.no_grad():
            found = nearest(where(test[0]), args.k)
            error = (network(test[1], found) - test[2]).square().mean()
        graphs[f"{name}: error {error:.2f}"] = found[0]
        print(f"{name:24} mean squared error of new sets {error:.3f}")
    if args.out:
        spots = place[cut] if place is not None else where(test[0][0]).detach()  # where the learned graph puts them
        draw(graphs, spots, test[2][0], args.out)


if __name__ == "__main__":
    main()
