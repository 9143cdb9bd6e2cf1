"""How long exact inclusion probabilities of large subsets take: python benchmarks/subset_mean.py

`Subset.mean` of one item, and its gradient, with one thread and with all. Writes benchmarks/results/subset_mean.json.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import gumtrace as gt
from gumtrace.benchmark import machine

RESULTS = Path(__file__).parent / "results" / "subset_mean.json"
SIZES = ((1000, 10), (10_000, 100), (100_000, 100))
REPEATS = 5


def measure(d: int, k: int, dtype: torch.dtype) -> dict:
    logits = torch.randn(d, dtype=dtype, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def mean() -> None:
        with torch.no_grad():
            assert gt.Subset(logits, k).mean.isfinite().all()

    def gradient() -> None:
        torch.autograd.grad(gt.Subset(logits, k).mean.square().sum(), logits)

    about = {"d": d, "k": k, "dtype": str(dtype).removeprefix("torch."), "threads": torch.get_num_threads()}
    return {**about, "seconds": clocked(mean), "with_gradient": clocked(gradient)}


def clocked(run) -> float:
    run()  # compiles
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    records, most = [], torch.get_num_threads()
    for threads in sorted({1, most}):
        torch.set_num_threads(threads)
        records += [measure(d, k, dtype) for d, k in SIZES for dtype in (torch.float32, torch.float64)]
    args.out.write_text(json.dumps({"machine": machine(torch.device("cpu")), "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
