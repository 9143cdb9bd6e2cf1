"""Where the parses of trained ListOps models are right, by depth:
python experiments/benchmarks/listops_depths.py RUN ...

Of the test set, one sample per expression. Of the arguments at a depth, those of the first function being at 1, shares:

    right     hang from their function
    as good   hang from another that makes no difference: from that one down to theirs all are MIN, or all are MAX
    function, digit, bracket   hang from another function that does make one, from a digit, from a closing bracket

and of the expressions of a depth, those without an inner function having 1:

    accuracy  of the answers, along the sampled trees
    told      the same along the true trees

Writes experiments/benchmarks/results/listops-depths.json, where other runs stay; half a minute a run on one core.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from gumtrace.benchmark import machine
from gumtrace_experiments.listops.data import Split
from gumtrace_experiments.listops.experiment import ListOpsExperiment, true_trees
from gumtrace_experiments.listops.expressions import CLOSE, PADDING, VOCABULARY
from gumtrace_experiments.loop.evaluation import restore
from gumtrace_experiments.store.folder import BEST, load

RESULTS = Path(__file__).parent / "results" / "listops-depths.json"
CHUNK = 1000
HEADS = ("right", "as good", "function", "digit", "bracket")
ANSWERS = ("accuracy", "told")


def depths(batch: Split) -> tuple[Tensor, Tensor]:
    """(B, n): how deep each token is, and the outermost function around it that is as good as its own."""
    heads, tokens = batch.heads.clamp(min=0), batch.tokens
    flat = (tokens == VOCABULARY.index("[MIN")) | (tokens == VOCABULARY.index("[MAX"))
    depth, outermost = torch.zeros_like(heads), torch.zeros_like(heads)
    for j in range(1, heads.shape[1]):
        head = heads[:, j : j + 1]
        above = heads.gather(1, head)
        same = (head > 0) & flat.gather(1, head) & (tokens.gather(1, head) == tokens.gather(1, above))
        depth[:, j] = (depth.gather(1, head) + 1).squeeze(1)
        outermost[:, j] = torch.where(same, outermost.gather(1, head), head).squeeze(1)
    return depth, outermost


def as_good(batch: Split, found: Tensor, outermost: Tensor, levels: int) -> Tensor:
    """Whether the head that was found is another than a token's own, and as good, (B, n)."""
    heads = batch.heads.clamp(min=0)
    passed, at = torch.zeros_like(found, dtype=torch.bool), heads
    for _ in range(levels):
        inside = at != outermost
        at = torch.where(inside, heads.gather(1, at), at)
        passed |= inside & (found == at)
    return passed


def counts(model: ListOpsExperiment, batch: Split, generator: torch.Generator, levels: int) -> Tensor:
    """(levels, heads and arguments, answers and expressions); arguments deeper than that are not counted."""
    sampled = model.posterior(batch).sample((1,), generator=generator)
    answered = [model.answer(batch, x)[0].argmax(-1) == batch.answers for x in (sampled, true_trees(batch)[None])]
    depth, outermost = depths(batch)
    found = sampled[0].argmax(-2)
    right, good = found == batch.heads, as_good(batch, found, outermost, levels)
    kind = batch.tokens.gather(1, found)
    argument = (batch.tokens != CLOSE) & (batch.tokens != PADDING) & (batch.heads >= 0)
    wrong = argument & ~right & ~good
    heads = [right, good, wrong & (kind > CLOSE), wrong & (kind < CLOSE), wrong & (kind == CLOSE), argument]
    rows = []
    for level in range(1, levels + 1):
        here, whole = argument & (depth == level), (depth * argument).amax(1) == level
        row = [*((x & here).sum() for x in heads), *((x & whole).sum() for x in answered), whole.sum()]
        rows.append(torch.stack(row))
    return torch.stack(rows).double()


@torch.no_grad()
def measure(folder: Path, data: Path) -> dict:
    model = restore(folder, data=data).eval()
    if not isinstance(model, ListOpsExperiment):
        raise SystemExit(f"{folder} is a run of {model.name}, not of listops")
    generator = torch.Generator().manual_seed(0)
    chunks = zip(*(x.split(CHUNK) for x in model.data.test), strict=True)
    depth = model.config.depth
    total = sum(counts(model, Split(*(x.long() for x in chunk)), generator, depth) for chunk in chunks)
    rows = []
    for level, row in enumerate(torch.as_tensor(total).tolist(), 1):
        heads, arguments, answers, expressions = row[: len(HEADS)], row[len(HEADS)], row[-3:-1], row[-1]
        shares = [x / arguments for x in heads] + [x / expressions for x in answers]
        rows.append({"depth": level, **dict(zip(HEADS + ANSWERS, shares, strict=True))})
    return {"config": model.config.to_dict(), "iteration": load(folder / BEST)["iteration"], "rows": rows}


def others(file: Path, runs: list[dict]) -> list[dict]:
    """Recorded runs that are not among these."""
    recorded = json.loads(file.read_text())["runs"] if file.exists() else []
    measured = [_setting(run) for run in runs]
    return [run for run in recorded if _setting(run) not in measured]


def _setting(run: dict) -> dict:
    return {"relabel": 0.0, **run["config"]}  # records from before it have none


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("runs", nargs="+", type=Path)
    arguments.add_argument("--data", type=Path, default=Path("data"))
    given = arguments.parse_args()
    runs = []
    for folder in given.runs:
        runs.append(measure(folder, given.data))
        print(folder, *runs[-1]["rows"], sep="\n")
    found = {"machine": machine(torch.device("cpu")), "runs": others(RESULTS, runs) + runs}
    RESULTS.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
