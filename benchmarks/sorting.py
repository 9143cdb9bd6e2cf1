"""Four-digit MNIST numbers sorted by a learned score: python benchmarks/sorting.py mnist.npz

The protocol of NeuralSort and those after it: lists of 5 numbers, digits of the first 55,000 training images to learn
from, 10,000 lists of test digits to judge by. The code is that of docs/recipes/sort_numbers.py, whose network is smaller
than theirs. Runs on one core; writes benchmarks/results/sorting.json.
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
sys.path.insert(0, str(HERE.parent / "docs" / "recipes"))

from sort_numbers import accuracy, fit, load_data  # noqa: E402


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
    data = load_data(mnist, s.n, s.digits)
    start = time.process_time()
    scorer = fit(data, s.steps, s.batch, s.lr, s.seed)
    seconds = time.process_time() - start
    lists, numbers = accuracy(scorer, data["test"], s.test_lists, s.seed)
    parameters = sum(p.numel() for p in scorer.parameters())
    return {"lists": lists, "numbers": numbers, "cpu_seconds": seconds, "parameters": parameters}


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
