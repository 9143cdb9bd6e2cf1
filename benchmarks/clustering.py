"""Clustering with a tenth of the links known: python benchmarks/clustering.py --data FOLDER (which holds mnist.npz)

Sets of fifty points, of whose pairs a tenth are known to be in one cluster or in two. A small network learns from some
sets and their links by the Fenchel-Young loss of forests; new sets are then clustered, beside k-means and single
linkage of the data as they are. Writes benchmarks/results/clustering.json. Ten minutes on one core.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import gumtrace as gt
from gumtrace.benchmark import machine

RESULTS = Path(__file__).parent / "results" / "clustering.json"


@dataclass(frozen=True)
class Settings:
    """What a run depends on, apart from the machine."""

    points: int = 50  # in a set
    train: int = 40  # sets to learn from
    test: int = 40  # new ones to cluster
    known: float = 0.1  # of the pairs of each set
    steps: int = 300
    batch: int = 8  # sets a step
    samples: int = 8
    rate: float = 1e-3  # of Adam
    seeds: int = 10


@dataclass(frozen=True)
class Record:
    """The adjusted Rand index of one method, the mean over new sets."""

    data: str
    method: str
    seed: int
    ari: float


# Data ----------------------------------------------------------------------------------------------


def blobs(number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Five round clusters in two of ten features; the others are noise of the same spread."""
    clusters = torch.randint(5, (number,), generator=generator)
    angle = torch.arange(5) * (2 * torch.pi / 5)
    centres = 4 * torch.stack([angle.cos(), angle.sin()], -1)
    telling = centres[clusters] + torch.randn(number, 2, generator=generator)
    return torch.cat([telling, 3 * torch.randn(number, 8, generator=generator)], -1), clusters


def images(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the training set and of the test set of MNIST: pixels (n, 28, 28) in 0..1, and digits (n,)."""
    with np.load(folder / "mnist.npz") as file:
        parts = [
            torch.from_numpy(file[name]) for name in ("train_images", "train_labels", "test_images", "test_labels")
        ]
    return parts[0].float() / 255, parts[1].long(), parts[2].float() / 255, parts[3].long()


def encoder(pixels: Tensor, steps: int) -> Callable[[Tensor], Tensor]:
    """Sixteen numbers for an image, from an autoencoder: no digit is read."""
    torch.manual_seed(0)
    down = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 16))
    up = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 784))
    optimiser = torch.optim.Adam([*down.parameters(), *up.parameters()], lr=1e-3)
    for _ in range(steps):
        batch = pixels[torch.randint(len(pixels), (128,))]
        loss = (up(down(batch)) - batch.flatten(1)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return down.requires_grad_(False)


Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]  # so many points, with their clusters


def data_sets(folder: Path, steps: int = 2000) -> Iterator[tuple[str, int, Draw]]:
    """Name, number of clusters, and what draws points. `steps` is how long the autoencoder is trained."""
    yield "blobs", 5, blobs
    train, _, pixels, digits = images(folder)
    small = nn.functional.avg_pool2d(pixels, 4).flatten(1)  # 7 x 7
    embedded = encoder(train, steps)(pixels)
    for name, x in (("digits", small / small.std()), ("MNIST embeddings", embedded / embedded.std())):

        def draw(number: int, generator: torch.Generator, x: Tensor = x) -> tuple[Tensor, Tensor]:
            chosen = torch.randperm(len(x), generator=generator)[:number]
            return x[chosen], digits[chosen]

        yield name, 10, draw


# Clusterings ---------------------------------------------------------------------------------------


def adjusted_rand(a: Tensor, b: Tensor) -> float:
    """Agreement of two clusterings (n,), 1 if they are equal and 0 on average by chance."""
    table = torch.zeros(int(a.max()) + 1, int(b.max()) + 1, dtype=torch.float64)
    table.index_put_((a, b), torch.ones(len(a), dtype=torch.float64), accumulate=True)
    pairs = lambda x: (x * (x - 1) / 2).sum().item()  # noqa: E731
    both, rows, columns = pairs(table), pairs(table.sum(1)), pairs(table.sum(0))
    chance, most = rows * columns / pairs(torch.tensor(float(len(a)))), (rows + columns) / 2
    return (both - chance) / (most - chance)


def k_means(x: Tensor, clusters: int, generator: torch.Generator, starts: int = 10) -> Tensor:
    """The best of ten runs of Lloyd's algorithm from k-means++ centres."""
    found = []
    for _ in range(starts):
        centres = x[torch.randint(len(x), (1,), generator=generator)]
        while len(centres) < clusters:
            far = torch.cdist(x, centres).min(-1).values.square()
            centres = torch.cat([centres, x[torch.multinomial(far, 1, generator=generator)]])
        for _ in range(100):
            member = nn.functional.one_hot(torch.cdist(x, centres).argmin(-1), clusters).to(x.dtype)
            moved = member.mT @ x / member.sum(0)[:, None].clamp(min=1)
            moved = torch.where(member.sum(0)[:, None] > 0, moved, centres)
            if torch.equal(moved, centres):
                break
            centres = moved
        distance, labels = torch.cdist(x, centres).min(-1)
        found.append((distance.square().sum().item(), labels))
    return min(found, key=lambda run: run[0])[1]


def linked_k_means(x: Tensor, must: Tensor, cannot: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """k-means that keeps links where it can (COP-k-means): must-linked groups, the largest first, go to the nearest
    centre that has none they cannot be with; to the nearest of all, if each has. Links (n, n) with what follows."""
    labels = k_means(x, clusters, generator)
    group = (must | torch.eye(len(x), dtype=torch.bool)).int().argmax(-1)
    order = sorted(group.unique().tolist(), key=lambda g: -int((group == g).sum()))
    for _ in range(20):
        member = nn.functional.one_hot(labels, clusters).to(x.dtype)
        centres = member.mT @ x / member.sum(0)[:, None].clamp(min=1)
        labels = torch.full_like(labels, -1)
        for g in order:
            own = group == g
            taken = labels[cannot[own].any(0)].unique()
            distance = torch.cdist(x[own], centres).square().sum(0)
            free = distance.index_fill(0, taken[taken >= 0], torch.inf)
            labels[own] = (free if free.isfinite().any() else distance).argmin()
    return labels


def forest(x: Tensor, clusters: int) -> gt.SpanningTree:
    """Near points (*B, n, d) are joined early. Squares are written out: the derivative of a root is infinite at 0."""
    return gt.SpanningTree(-(x[..., :, None, :] - x[..., None, :, :]).square().sum(-1), components=clusters)


def mode_labels(d: gt.SpanningTree) -> Tensor:
    """Of the noiseless run, which without links is single linkage."""
    return d.trace(d.log_rates.detach()).labels()


def groups(must: Tensor) -> Tensor:
    """What must-links (sets, n, n) say and nothing else, as a clustering."""
    linked = forest(torch.zeros(*must.shape[:-1], 1), 1).constrained(must).must_link
    return (linked | torch.eye(must.shape[-1], dtype=torch.bool)).int().argmax(-1)


# Learning ------------------------------------------------------------------------------------------


def known_links(labels: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Must-links and cannot-links (sets, n, n), of so many of the pairs of each set."""
    sets, n = labels.shape
    u, v = torch.triu_indices(n, n, 1)
    chosen = torch.rand(sets, len(u), generator=generator).argsort(-1)[:, : round(share * len(u))]
    known = torch.zeros(sets, n, n, dtype=torch.bool)
    known[torch.arange(sets)[:, None], u[chosen], v[chosen]] = True
    same = labels[:, :, None] == labels[:, None, :]
    return known & same, known & ~same


def learn(x: Tensor, must: Tensor, cannot: Tensor, clusters: int, s: Settings, generator: torch.Generator) -> nn.Module:
    """A network whose values cluster as the links of sets x (sets, n, d) say."""
    net = nn.Sequential(nn.Linear(x.shape[-1], 128), nn.ReLU(), nn.Linear(128, 16))
    optimiser = torch.optim.Adam(net.parameters(), lr=s.rate)
    criterion = gt.losses.FenchelYoung(samples=s.samples)
    for _ in range(s.steps):
        chosen = torch.randperm(len(x), generator=generator)[: s.batch]
        d = forest(net(x[chosen]), clusters)
        loss = criterion(d, d.constrained(must[chosen], cannot[chosen]), generator=generator).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net


def measure(name: str, clusters: int, draw: Draw, seed: int, s: Settings) -> Iterator[Record]:
    torch.manual_seed(seed)  # of the network
    generator = torch.Generator().manual_seed(seed)
    x, labels = draw((s.train + s.test) * s.points, generator)
    x, labels = (each.unflatten(0, (-1, s.points)) for each in (x, labels))
    must, cannot = known_links(labels, s.known, generator)
    net = learn(x[: s.train], must[: s.train], cannot[: s.train], clusters, s, generator)
    x, labels, must, cannot = (each[s.train :] for each in (x, labels, must, cannot))
    with torch.no_grad():
        learned = net(x)
    found = {"links alone": groups(must)}
    for space, points in (("", x), (", learned", learned)):
        d = forest(points, clusters)
        under = d.constrained(must, cannot)
        found[f"k-means{space}"] = torch.stack([k_means(each, clusters, generator) for each in points])
        sets = zip(points, under.must_link, under.cannot_link, strict=True)
        found[f"k-means with links{space}"] = torch.stack([linked_k_means(*each, clusters, generator) for each in sets])
        found[f"single linkage{space}"] = mode_labels(d)
        found[f"forest with links{space}"] = mode_labels(under)
    for method, made in found.items():
        ari = [adjusted_rand(*pair) for pair in zip(made, labels, strict=True)]
        yield Record(name, method, seed, sum(ari) / len(ari))


# The table -----------------------------------------------------------------------------------------


def means(records: list[dict]) -> dict[tuple[str, str], tuple[float, float]]:
    """(method, data set) -> mean over seeds and its standard error."""
    found: dict[tuple[str, str], list[float]] = {}
    for r in records:
        found.setdefault((r["method"], r["data"]), []).append(r["ari"])
    return {key: (float(np.mean(x)), float(np.std(x, ddof=1)) / len(x) ** 0.5) for key, x in found.items()}


def table(results: dict) -> str:
    """One row for each method, one column for each data set; the best is bold."""
    found, s = means(results["records"]), results["settings"]
    methods, data = (list(dict.fromkeys(part)) for part in zip(*found, strict=True))
    best = {name: max(found[method, name][0] for method in methods) for name in data}
    lines = [f"| | {' | '.join(data)} |", "|---|" + "---:|" * len(data)]
    for method in methods:
        cells = []
        for name in data:
            mean, error = found[method, name]
            shown = f"{mean:.3f} ± {error:.3f}"
            cells.append(f"**{shown}**" if mean == best[name] else shown)
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return (
        f"Adjusted Rand index of {s['test']} new sets of {s['points']} points, mean and standard error over "
        f"{s['seeds']} seeds. *With links*: {s['known']:.0%} of the pairs of each set are known, and kept. *Learned*: "
        f"in the space of a network that was trained on {s['train']} other sets with as many links. Blobs: five round "
        "clusters in two of ten features. Digits: images of MNIST in 7 x 7 pixels. MNIST embeddings: 16 numbers from "
        f"an autoencoder trained without labels. By `benchmarks/clustering.py`, {results['machine']['date']}."
        "\n\n" + "\n".join(lines) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of mnist.npz")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    s, records = Settings(), []
    for name, clusters, draw in data_sets(args.data):
        for seed in range(s.seeds):
            records += measure(name, clusters, draw, seed, s)
            for r in records[-9:]:
                print(r, flush=True)
    results = {"machine": machine(), "settings": asdict(s), "records": [asdict(r) for r in records]}
    args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
