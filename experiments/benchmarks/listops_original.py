"""Trained ListOps models on original files:
python experiments/benchmarks/listops_original.py RUN ... --files test.tsv ...

Expressions with operators that the models have not seen, and those longer than theirs, are left out. Writes
experiments/benchmarks/results/listops-original.json, where other runs on the same files stay; seconds per run and file
on one core.
"""

import argparse
import json
from pathlib import Path

import torch
from listops_depths import CHUNK, HEADS, counts, others  # beside this file

from gumtrace.benchmark import machine
from gumtrace_experiments.listops.data import Split, read
from gumtrace_experiments.listops.experiment import ListOpsConfig
from gumtrace_experiments.listops.heuristics import shares
from gumtrace_experiments.listops.sampling import SAMPLED
from gumtrace_experiments.loop.evaluation import evaluate, restore
from gumtrace_experiments.store.folder import BEST, CONFIG, load, read_json

RESULTS = Path(__file__).parent / "results" / "listops-original.json"
LONGEST = ListOpsConfig().longest  # that models are trained on


def name(file: Path) -> str:
    """`test.tsv` of test.tsv.xz."""
    return file.name.removesuffix(".xz")


@torch.no_grad()
def heads(folder: Path, file: Path, data: Path) -> dict[str, float]:
    """Of all arguments, the shares that hang from their function, and from another that makes no difference."""
    model = restore(folder, data=data).eval()
    generator = torch.Generator().manual_seed(0)
    kept = read(file, SAMPLED, LONGEST)
    several = kept.lengths > 1  # a digit on its own has no heads
    chunks = zip(*(x[several].long().split(CHUNK) for x in kept), strict=True)
    total = torch.as_tensor(sum(counts(model, Split(*chunk), generator, LONGEST) for chunk in chunks)).sum(0)
    right, good = (total[:2] / total[len(HEADS)]).tolist()
    return {"right": right, "as_good": good}


def measure(folder: Path, files: list[Path], data: Path) -> dict:
    found = {name(file): evaluate(folder, data=data, file=file) | heads(folder, file, data) for file in files}
    about, best = read_json(folder / CONFIG), load(folder / BEST)
    return {"config": about["config"], "iteration": best["iteration"], "files": found}


def describe(file: Path) -> dict:
    """How many of its expressions are left, and how many of them can be answered without a parse."""
    kept = read(file, SAMPLED, LONGEST)
    return {"expressions": len(kept.tokens), "of": len(read(file).tokens), **shares(kept)}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("runs", nargs="+", type=Path)
    arguments.add_argument("--files", nargs="+", type=Path, required=True)
    arguments.add_argument("--data", type=Path, default=Path("data"), help="folder of the runs' own data")
    given = arguments.parse_args()
    names = {name(file) for file in given.files}
    if RESULTS.exists() and names != (known := set(json.loads(RESULTS.read_text())["files"])):
        arguments.error(f"the recorded runs are on {', '.join(sorted(known))}: give these, or remove {RESULTS}")
    runs = [measure(folder, given.files, given.data) for folder in given.runs]
    files = {name(file): describe(file) for file in given.files}
    found = {"machine": machine(torch.device("cpu")), "files": files, "runs": others(RESULTS, runs) + runs}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
