"""Train the second stage of a search on the metric that it is judged by, NDCG of the first five places.

    python reranker.py --out ndcg.png

For your own lists replace `load_data`; for another metric, `gains` and `discount`. Beside it is the usual loss, the
error of each document's predicted grade.
"""

import argparse

import torch
from torch import Tensor, nn

import gumtrace as gt

Lists = tuple[Tensor, Tensor, Tensor]  # features (lists, n, f), grades (lists, n), numbers of documents (lists,)


def load_data(lists: int = 1200, longest: int = 40) -> Lists:
    """Candidates of a first stage, best first by its score, feature 0; lists have 15 to 40 documents.

    Seven features are the query's: they say how well it is served on the whole, which does not matter for the order.
    Of the document's eight, one matters for every query, and two for one kind of query each.
    """
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    query, document = normal(lists, 1, 7).expand(-1, longest, -1), normal(lists, longest, 8)
    fit = document[..., 0] + torch.where(query[..., 0] > 0, document[..., 1], -document[..., 2])
    served = 1.5 * query[..., 1:4].sin().sum(-1) + query[..., 4] * query[..., 5]
    grades = (1.5 + served + fit + 0.5 * normal(lists, longest)).round().clamp(0, 4)
    first_stage = fit + 2 * normal(lists, longest)
    order = first_stage.argsort(-1, descending=True)
    features = torch.cat([first_stage[..., None], query, document], -1)
    lengths = torch.randint(15, longest + 1, (lists,), generator=generator)
    return features.gather(1, order[..., None].expand_as(features)), grades.gather(1, order), lengths


def gains(grades: Tensor, lengths: Tensor) -> Tensor:
    """What a document is worth in the first place: 2^grade - 1, and 0 behind the end of the list."""
    return (2**grades - 1).masked_fill(torch.arange(grades.shape[1]) >= lengths[:, None], 0.0)


def discount(top: int) -> Tensor:
    """Weights of the places."""
    return 1 / torch.arange(2.0, top + 2).log2()


def shares(grades: Tensor, lengths: Tensor, top: int) -> Tensor:
    """Gains over the best sum that the list allows, (lists, n); NDCG adds them up, weighted by place."""
    gain = gains(grades, lengths)
    best = (gain.topk(top).values * discount(top)).sum(-1, keepdim=True)
    return gain / best.clamp(min=1e-9)  # a list of nothing but zeros has no order to learn


def metric_loss(scores: Tensor, grades: Tensor, lengths: Tensor, top: int) -> Tensor:
    """Minus NDCG of random rankings: the first `top` places are drawn by score, without replacement."""
    loss = gt.estimators.DecisionGains(-shares(grades, lengths, top), discount(top))
    return gt.estimators.DecisionREINFORCE(samples=8)(gt.Subset(scores, top, lengths=lengths), loss, on="trace")


def squared_error(scores: Tensor, grades: Tensor, lengths: Tensor, top: int) -> Tensor:
    there = torch.arange(grades.shape[1]) < lengths[:, None]
    return ((scores - grades).square() * there).sum(-1) / lengths


def places(scores: Tensor, lengths: Tensor, top: int) -> Tensor:
    """Documents in the first places, (lists, top)."""
    return scores.masked_fill(torch.arange(scores.shape[1]) >= lengths[:, None], -torch.inf).topk(top).indices


def ndcg(scores: Tensor, grades: Tensor, lengths: Tensor, top: int) -> float:
    found = shares(grades, lengths, top).gather(-1, places(scores, lengths, top))
    judged = gains(grades, lengths).sum(-1) > 0
    return (found * discount(top)).sum(-1)[judged].mean().item()


def fit(loss, train: Lists, test: Lists, top: int, steps: int, seed: int) -> tuple[list[tuple[int, float]], Tensor]:
    """NDCG of the test lists after some steps, and their scores in the end."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(train[0].shape[-1], 32), nn.ReLU(), nn.Linear(32, 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    curve = []
    for step in range(steps + 1):
        if step > 0 and (step % -(-steps // 12) == 0 or step == steps):
            with torch.no_grad():
                scores = model(test[0]).squeeze(-1)
            curve.append((step, ndcg(scores, *test[1:], top)))
        rows = torch.randint(len(train[0]), (32,))
        x, grades, lengths = (part[rows] for part in train)
        optimiser.zero_grad()
        loss(model(x).squeeze(-1), grades, lengths, top).mean().backward()
        optimiser.step()
    return curve, scores


def draw(curves: dict[str, list], graded: dict[str, Tensor], path: str) -> None:
    """NDCG over the steps, and the mean grade of the document in each place."""
    from matplotlib.figure import Figure

    from gumtrace.plotting.style import ACCENT, CHOSEN, INK, SOFT

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    colours = dict(zip(graded, (SOFT, ACCENT, CHOSEN), strict=True))
    for name, color in colours.items():
        if name in curves:
            left.plot(*zip(*curves[name], strict=True), "-", color=color, linewidth=2)
        right.plot(range(1, len(graded[name]) + 1), graded[name], "o-", color=color, linewidth=2, label=name)
    left.set_title("NDCG of the first places, test lists", fontsize=10, color=INK)
    left.set_xlabel("step", color=SOFT)
    right.set_title("mean grade of the document in each place", fontsize=10, color=INK)
    right.set_xlabel("place", color=SOFT)
    right.legend(frameon=False, fontsize=9, labelcolor=INK)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=SOFT)
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--top", type=int, default=5, help="places that count")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="file for the picture")
    args = parser.parse_args(argv)
    features, grades, lengths = load_data()
    if lengths.min() < args.top:
        raise ValueError(f"list {int(lengths.argmin())} has {int(lengths.min())} documents: --top is at most that")
    there = torch.arange(grades.shape[1]) < lengths[:, None]  # padding may be anything, also nan
    data = features.float().where(there[..., None], 0.0), grades.float().where(there, 0.0), lengths
    if data[1].min() < 0:
        raise ValueError(f"list {int(data[1].amin(-1).argmin())} has a negative grade: 0 is for what is not relevant")
    half = len(data[0]) // 2
    train, test = tuple(part[:half] for part in data), tuple(part[half:] for part in data)
    _, grades, lengths = test
    scores, curves = {"first stage": -torch.arange(grades.shape[1]).expand(grades.shape).float()}, {}
    for name, loss in (("error of grades", squared_error), (f"NDCG@{args.top}", metric_loss)):
        curves[name], scores[name] = fit(loss, train, test, args.top, args.steps, args.seed)
    for name, score in scores.items():
        print(f"{name:16} NDCG@{args.top} of test lists {ndcg(score, grades, lengths, args.top):.3f}")
    if args.out:
        graded = {name: grades.gather(-1, places(score, lengths, args.top)).mean(0) for name, score in scores.items()}
        draw(curves, graded, args.out)


if __name__ == "__main__":
    main()
