"""Where the parses of trained ListOps models are right, by depth: python benchmarks/listops_depths.py RUN ...

Of the test set, one sample an expression, on average over the runs:

    right     share of arguments that hang from their function
    as good   share that hang from another one that makes no difference: from the outermost function down to theirs all
              are MIN, or all are MAX
    accuracy  of expressions of this depth, along the sampled trees
    told      the same along the true trees

Arguments of the first function have depth 1, and so have expressions without an inner one. Writes
benchmarks/results/listops-depths.json.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from gumtrace.benchmark import machine
from gumtrace.experiments.evaluation import restore
from gumtrace.experiments.listops.data import Split
from gumtrace.experiments.listops.experiment import ListOpsExperiment
from gumtrace.experiments.listops.expressions import CLOSE, PADDING, VOCABULARY

RESULTS = Path(__file__).parent / "results" / "listops-depths.json"
CHUNK = 1000


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
    """Whether a function that is not a token's own but as good is its head, (B, n)."""
    passed, at = torch.zeros_like(found, dtype=torch.bool), batch.heads.clamp(min=0)
    for _ in range(levels):
        inside = at != outermost
        at = torch.where(inside, batch.heads.clamp(min=0).gather(1, at), at)
        passed |= inside & (found == at)
    return passed


@torch.no_grad()
def measure(folder: Path, data: Path) -> dict[int, dict[str, float]]:
    model = restore(folder, data=data).eval()
    if not isinstance(model, ListOpsExperiment):
        raise SystemExit(f"{folder} is a run of {model.name}, not of listops")
    levels = range(1, model.config.depth + 1)
    sums: dict[int, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for chunk in zip(*(x.split(CHUNK) for x in model.data.test), strict=True):
        batch = Split(*(x.long() for x in chunk))
        sampled = model.posterior(batch).sample((1,), generator=generator)
        true = batch.heads[:, None, :] == torch.arange(batch.tokens.shape[1])[:, None]
        own, told = (model.answer(batch, trees)[0].argmax(-1) == batch.answers for trees in (sampled, true[None]))
        depth, outermost = depths(batch)
        found = sampled[0].argmax(-2)
        right, good = found == batch.heads, as_good(batch, found, outermost, len(levels))
        argument = (batch.tokens != CLOSE) & (batch.tokens != PADDING) & (batch.heads >= 0)
        for level in levels:
            here, items = argument & (depth == level), (depth * argument).amax(1) == level
            counts = [right & here, good & here, here, own & items, told & items, items]
            sums[level] = sums.get(level, 0) + torch.stack([x.sum() for x in counts]).double()
    names = ("right", "as good", "accuracy", "told")
    return {
        level: dict(zip(names, torch.stack([a, b, c, d]).div(torch.stack([n, n, m, m])).tolist(), strict=True))
        for level, (a, b, n, c, d, m) in sums.items()
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("runs", nargs="+", type=Path)
    arguments.add_argument("--data", type=Path, default=Path("data"))
    given = arguments.parse_args()
    found = [measure(run, given.data) for run in given.runs]
    rows = [
        {"depth": level, **{name: sum(run[level][name] for run in found) / len(found) for name in found[0][level]}}
        for level in found[0]
    ]
    for row in rows:
        print(row)
    RESULTS.write_text(
        json.dumps({"machine": machine(torch.device("cpu")), "runs": len(found), "rows": rows}, indent=1)
    )


if __name__ == "__main__":
    main()
