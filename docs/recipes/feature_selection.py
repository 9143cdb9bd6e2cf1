"""Choose k columns of a table that say different things, where ten sensors measure everything five times.

    python feature_selection.py --k 10 --out chosen.png

For your own table replace `load_data`. Beside k-subsets are k independent Gumbel-softmax selectors, each of which
chooses one column without knowing of the others.
"""

import argparse

import torch
from torch import Tensor, nn

import gumtrace as gt

COPY = 0.9  # columns that correlate more than this say the same


def load_data(rows: int = 2000) -> tuple[Tensor, Tensor, list[str]]:
    """Columns (rows, d), target (rows,) and names of columns: ten signals, five noisy copies of each, 30 of noise."""
    generator = torch.Generator().manual_seed(0)
    signals = torch.randn(rows, 10, generator=generator)
    copies = signals[:, :, None] + 0.25 * torch.randn(rows, 10, 5, generator=generator)
    x = torch.cat([copies.flatten(1), torch.randn(rows, 30, generator=generator)], 1)
    y = signals @ torch.logspace(0.2, -0.2, 10) + 0.3 * torch.randn(rows, generator=generator)
    names = [f"{signal}{copy}" for signal in "ABCDEFGHIJ" for copy in range(1, 6)]
    return x, y, names + [f"noise{i}" for i in range(1, 31)]


def fit(parameters: list[dict], loss, rows: int, steps: int, batch: int = 64) -> None:
    optimiser = torch.optim.Adam(parameters)
    for step in range(steps):
        optimiser.zero_grad()
        loss(torch.randint(rows, (batch,)), step / steps).backward()
        optimiser.step()


def choose_subset(x: Tensor, y: Tensor, k: int, steps: int) -> Tensor:
    """The k columns of the largest logits, after training these together with a linear model of masked inputs."""
    logits, model = torch.zeros(x.shape[1], requires_grad=True), nn.Linear(x.shape[1], 1)
    estimator = gt.estimators.MarginalStraightThrough(samples=1)

    def loss(batch: Tensor, _: float) -> Tensor:
        def squared_error(mask: Tensor) -> Tensor:  # (samples, batch, d), 0/1 -> (samples, batch)
            return (model(mask * x[batch]).squeeze(-1) - y[batch]) ** 2

        return estimator(gt.Subset(logits.expand(len(batch), -1), k), squared_error).mean()

    fit([{"params": [logits], "lr": 0.1}, {"params": model.parameters(), "lr": 0.02}], loss, len(x), steps)
    return logits.topk(k).indices


def choose_independently(x: Tensor, y: Tensor, k: int, steps: int) -> Tensor:
    """k softmaxes over the columns, annealed from temperature 5 to 0.1; the largest logit of each."""
    logits, model = (0.01 * torch.randn(k, x.shape[1])).requires_grad_(), nn.Linear(k, 1)

    def loss(batch: Tensor, progress: float) -> Tensor:
        temperature = 5 * 0.02**progress
        soft = nn.functional.gumbel_softmax(logits.expand(len(batch), -1, -1), tau=temperature)
        return ((model((soft * x[batch, None]).sum(-1)).squeeze(-1) - y[batch]) ** 2).mean()

    fit([{"params": [logits], "lr": 0.1}, {"params": model.parameters(), "lr": 0.02}], loss, len(x), steps)
    return logits.argmax(-1)


def r_squared(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], columns: Tensor) -> float:
    """Of least squares on these columns alone, on rows that nobody has seen."""
    (x, y), (x_test, y_test) = train, test
    inputs, new = (nn.functional.pad(part[:, columns].double(), (0, 1), value=1.0) for part in (x, x_test))
    weights = torch.linalg.pinv(inputs) @ y.double()  # also where a column is there twice
    left = y_test - new @ weights
    return 1 - (left.square().mean() / y_test.var()).item()


def repeats(x: Tensor, columns: Tensor) -> int:
    """Chosen columns that an earlier one of the chosen says already: the same column, or a copy of it."""
    same = torch.corrcoef(x[:, columns].T).abs() > COPY
    return int(same.tril(-1).any(1).sum())


def draw(x: Tensor, found: dict[str, list[Tensor]], path: str) -> None:
    """Correlations among the chosen columns, a row for each method and a panel for each run."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    from gumtrace.plotting.style import ACCENT, CHOSEN, FAINT, INK, mix

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    rows = figure.subplots(len(found), max(map(len, found.values())), squeeze=False)
    for axes, (title, runs) in zip(rows, found.items(), strict=True):
        for ax, columns in zip(axes, runs, strict=True):
            correlation = torch.corrcoef(x[:, columns.sort().values].T).abs().tolist()
            for i, line in enumerate(correlation):
                for j, value in enumerate(line):
                    color = mix(ACCENT if i != j and value > COPY else CHOSEN, value)
                    ax.add_patch(Rectangle((i + 0.05, j + 0.05), 0.9, 0.9, color=color, linewidth=0))
            ax.set(xlim=(0, len(columns)), ylim=(len(columns), 0), aspect="equal", xticks=[], yticks=[])
            ax.set_title(f"{len(columns) - repeats(x, columns)} different", fontsize=9, color=INK)
            ax.spines[:].set_color(FAINT)
        axes[0].set_ylabel(title, fontsize=10, color=INK)
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k", type=int, default=10, help="columns to choose")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--runs", type=int, default=4, help="seeds to try")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--out", help="file for the picture")
    args = parser.parse_args(argv)
    x, y, names = load_data()
    rows, half = torch.randperm(len(x), generator=torch.Generator().manual_seed(args.seed)), len(x) // 2
    x, y = x[rows].float(), y[rows].float()
    if gaps := [name for name, column in zip(names, x.T, strict=True) if not column.isfinite().all()]:
        raise ValueError(f"missing or infinite values in {', '.join(gaps)}: fill them, or leave these columns out")
    scale = torch.where((x[:half] == x[0]).all(0), 1.0, x[:half].std(0))  # a constant column stays 0
    x = (x - x[:half].mean(0)) / scale
    y = (y - y[:half].mean()) / y[:half].std()
    train, test = (x[:half], y[:half]), (x[half:], y[half:])
    found: dict[str, list[Tensor]] = {"a k-subset": [], "k softmaxes": []}
    for (title, runs), choose in zip(found.items(), (choose_subset, choose_independently), strict=True):
        for run in range(args.runs):
            torch.manual_seed(args.seed + run)
            columns = choose(*train, args.k, args.steps)
            runs.append(columns)
            print(f"{title:13} R² {r_squared(train, test, columns):.3f}   repeats {repeats(x, columns)}   ", end="")
            print(" ".join(names[c] for c in columns.sort().values))
    if args.out:
        draw(x, found, args.out)


if __name__ == "__main__":
    main()
