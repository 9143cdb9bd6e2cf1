"""Four-digit MNIST numbers sorted by a learned score: python benchmarks/sorting.py mnist.npz

The task of NeuralSort: lists of 5 numbers, digits of the first 55,000 training images to learn from, 10,000 lists of
test digits to judge by. The code is that of docs/recipes/sort_numbers.py. Runs on one core; writes
benchmarks/results/sorting.json.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from gumtrace.benchmark import machine

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "sorting.json"
RECIPES = HERE.parent / "docs" / "recipes"
NEURALSORT_LISTS = 200 * (55_000 // 4)  # 200 epochs, each of as many lists as four digits go into the training set
PUBLISHED = {  # table 1 of Grover et al. (2019), n = 5: shares of lists and of numbers
    "a network that predicts the matrix": (0.093, 0.603),
    "Sinkhorn": (0.038, 0.293),
    "Gumbel-Sinkhorn": (0.033, 0.295),
    "NeuralSort, deterministic": (0.837, 0.927),
    "NeuralSort, stochastic": (0.835, 0.926),
}


@dataclass(frozen=True)
class Settings:
    """What a run depends on, apart from the machine."""

    n: int = 5
    digits: int = 4
    steps: int = 12_000
    batch: int = 20  # lists in a step
    lr: float = 2e-3
    test_lists: int = 10_000
    seed: int = 0


def record(mnist: str, s: Settings) -> dict:
    sys.path.insert(0, str(RECIPES))
    from sort_numbers import accuracy, fit, load_data

    data = load_data(mnist, s.n, s.digits)
    start = time.process_time()
    scorer = fit(data, s.steps, s.batch, s.lr, s.seed)
    seconds = time.process_time() - start
    lists, numbers = accuracy(scorer, data["test"], s.test_lists, s.seed)
    parameters = sum(p.numel() for p in scorer.parameters())
    return {"lists": lists, "numbers": numbers, "cpu_seconds": seconds, "parameters": parameters}


def table(results: dict) -> str:
    """One row for each method."""
    ours, s, machine = (results[part] for part in ("result", "settings", "machine"))
    lines = [
        f"Lists of {s['n']} four-digit MNIST numbers, {s['test_lists']:,} of test digits. Ours is one run with "
        f"{s['steps'] * s['batch']:,} lists, {ours['cpu_seconds'] / 60:.0f} minutes on one core of {machine['cpu']} "
        f"({machine['date']}), by a network of {ours['parameters']:,} parameters; equal numbers may stand in either "
        f"order. The others are from table 1 of the paper: wider convolutions, and by the defaults of its code "
        f"{NEURALSORT_LISTS:,} lists.",
        "",
        "| | lists sorted | numbers in place |",
        "|---|---:|---:|",
        *(f"| {name} | {lists:.1%} | {numbers:.1%} |" for name, (lists, numbers) in PUBLISHED.items()),
        f"| `Permutation.log_prob` | {ours['lists']:.1%} | {ours['numbers']:.1%} |",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", help="mnist.npz with train_images, train_labels, test_images and test_labels")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--lr", type=float, default=Settings.lr)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings = Settings(steps=args.steps, lr=args.lr)
    found = {"machine": machine("cpu"), "settings": asdict(settings), "result": record(args.mnist, settings)}
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"wrote {args.out}: {found['result']}")


if __name__ == "__main__":
    main()
