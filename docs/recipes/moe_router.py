"""Send each token to two of sixteen experts, and learn the router from what the experts make of it.

    python moe_router.py --out load.png

For your own data replace `load_data`. Beside routers that sample experts are the usual ones, which take the largest
probabilities and have a gradient through the gates alone. Without gates the outputs of the chosen experts are averaged.
"""

import argparse
import time

import torch
from torch import Tensor, nn

import gumtrace as gt

BALANCE = 0.05  # weight of the loss that keeps experts equally busy


def load_data(tokens: int = 6000, kinds: int = 16, width: int = 16) -> tuple[Tensor, Tensor]:
    """Inputs and targets, (tokens, width) each: tokens of several kinds, each to be multiplied by its kind's matrix."""
    generator = torch.Generator().manual_seed(0)
    kind = torch.randint(kinds, (tokens,), generator=generator)
    x = torch.randn(tokens, width, generator=generator) + 2 * torch.randn(kinds, width, generator=generator)[kind]
    maps = torch.randn(kinds, width, width, generator=generator) / width**0.5
    return x, torch.einsum("td,tde->te", x, maps[kind])


class Mixture(nn.Module):
    """A router and its experts, each of which is called once, with the tokens that were sent to it."""

    def __init__(self, experts: int, width: int, out: int):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, out) for _ in range(experts))

    def forward(self, x: Tensor, chosen: Tensor, gates: Tensor) -> Tensor:
        """Tokens (t, width), experts (*shape, t, k) and their weights -> (*shape, t, out)"""
        token = torch.arange(len(x))[:, None].expand(chosen.shape)
        sent = [(chosen == e).flatten() for e in range(len(self.experts))]
        outputs = [expert(x[token.flatten()[here]]) for expert, here in zip(self.experts, sent, strict=True)]
        order = torch.cat([here.nonzero().squeeze(-1) for here in sent]).argsort()
        return (gates[..., None] * torch.cat(outputs)[order].view(*chosen.shape, -1)).sum(-2)


def gates_of(logits: Tensor, chosen: Tensor) -> Tensor:
    """Weights of the chosen experts: their softmax, or with one expert its probability among all."""
    scores = logits if chosen.shape[-1] > 1 else logits.log_softmax(-1)
    scores = scores.expand(*chosen.shape[:-1], -1).gather(-1, chosen)
    return scores.softmax(-1) if chosen.shape[-1] > 1 else scores.exp()


class Largest:
    """The usual router: the choice has no gradient, only the gates have."""

    def __init__(self, gated: bool):
        self.gated = gated

    def weights(self, logits: Tensor, chosen: Tensor) -> Tensor:
        return gates_of(logits, chosen) if self.gated else torch.full(chosen.shape, 1 / chosen.shape[-1])

    def loss(self, logits: Tensor, k: int, task) -> Tensor:  # (tokens, experts) -> (tokens,)
        chosen = logits.topk(k).indices
        return task(chosen, self.weights(logits, chosen))


class Sampled(Largest):
    """k experts at random in training, with an unbiased gradient of the expected loss."""

    def __init__(self, gated: bool, samples: int):
        super().__init__(gated)
        self.estimator = gt.estimators.TraceREINFORCE(samples=samples)

    def loss(self, logits: Tensor, k: int, task) -> Tensor:
        def objective(trace) -> Tensor:  # winners (samples, tokens, k) -> (samples, tokens)
            chosen = trace.winners.long()
            return task(chosen, self.weights(logits, chosen))

        return self.estimator(gt.Subset(logits, k), objective, on="trace")


def imbalance(logits: Tensor) -> Tensor:
    """1 if all experts are equally probable on average, and their number if one has it all."""
    return logits.shape[-1] * logits.softmax(-1).mean(0).square().sum()


def fit(router: Largest, x: Tensor, y: Tensor, experts: int, k: int, steps: int, seed: int) -> tuple[Mixture, float]:
    """The trained mixture, and milliseconds of CPU time for a step with 256 tokens."""
    torch.manual_seed(seed)
    model = Mixture(experts, x.shape[1], y.shape[1])
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    start = time.process_time()
    for step in range(steps):
        if step == 1:
            start = time.process_time()  # the first one may compile
        rows = torch.randint(len(x), (256,))

        def task(chosen: Tensor, gates: Tensor, rows: Tensor = rows) -> Tensor:
            return (model(x[rows], chosen, gates) - y[rows]).square().mean(-1)

        logits = model.router(x[rows])
        optimiser.zero_grad()
        (router.loss(logits, k, task).mean() + BALANCE * imbalance(logits)).backward()
        optimiser.step()
    return model, 1e3 * (time.process_time() - start) / max(1, steps - 1)


def microseconds(router: Largest, experts: int, k: int, tokens: int = 4096, rounds: int = 15) -> float:
    """CPU time of routing a token, forward and back; the task is a table with a loss for each expert."""
    logits, table = torch.randn(tokens, experts, requires_grad=True), torch.rand(tokens, experts)
    spent = []
    for _ in range(rounds):
        start = time.process_time()
        loss = router.loss(logits, k, lambda chosen, gates: (gates * gates_of(table, chosen)).sum(-1))
        (loss.mean() + imbalance(logits)).backward()
        spent.append(1e6 * (time.process_time() - start) / tokens)
    return sorted(spent)[rounds // 2]


def draw(rows: list[tuple[str, float, Tensor]], path: str) -> None:
    """For each router a dot per expert, its share of the tokens, beside the error."""
    from matplotlib.figure import Figure

    from gumtrace.plotting.style import CHOSEN, FAINT, INK, SOFT

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1, 1.5])
    for place, (name, error, load) in enumerate(rows):
        color = SOFT if name.startswith("largest") else CHOSEN
        left.barh(place, error, 0.55, color=color)
        left.text(error, place, f" {error:.2f}", va="center", fontsize=9, color=INK)
        right.plot(100 * load, len(load) * [place], "o", color=color, alpha=0.55, markersize=7)
    left.set_yticks(range(len(rows)), [name for name, _, _ in rows], color=INK)
    left.invert_yaxis()
    left.set(xlim=(0, 1.15 * max(error for _, error, _ in rows)), xticks=[])
    right.axvline(100 / len(rows[0][2]), color=FAINT, linewidth=5, zorder=0)
    for ax, title in ((left, "test error"), (right, "% of the load, a dot for each expert")):
        ax.set_title(title, fontsize=10, color=INK)
        ax.spines[["top", "right", "left", "bottom"]].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.tick_params(axis="x", colors=SOFT)
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--k", type=int, default=2, help="experts of a token")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--samples", type=int, default=2, help="choices that the sampled routers try for each token")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="file for the picture")
    args = parser.parse_args(argv)
    if args.k > args.experts:
        parser.error(f"--k {args.k} is more than --experts {args.experts}")
    x, y = (part.float() for part in load_data())
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(args.seed))
    x, y = x[order], y[order]
    half, rows = len(x) // 2, []
    print(f"{'':20}test error   busiest   idle   step, ms   routing, µs/token")
    for router in (Largest(True), Sampled(True, args.samples), Largest(False), Sampled(False, args.samples)):
        name = f"{type(router).__name__.lower()}, {'gates' if router.gated else 'no gates'}"
        model, step = fit(router, x[:half], y[:half], args.experts, args.k, args.steps, args.seed)
        with torch.no_grad():  # at test time all take the largest
            logits = model.router(x[half:])
            chosen = logits.topk(args.k).indices
            left = model(x[half:], chosen, router.weights(logits, chosen)) - y[half:]
        error = (left.square().mean() / y[half:].var(0).mean()).item()
        load = torch.bincount(chosen.flatten(), minlength=args.experts) / chosen.numel()
        rows.append((name, error, load))
        print(f"{name:20}{error:10.3f}{load.max():10.0%}{int((load == 0).sum()):7}{step:11.1f}", end="")
        print(f"{microseconds(router, args.experts, args.k):19.2f}")
    if args.out:
        draw(rows, args.out)


if __name__ == "__main__":
    main()
