"""What the parts of the ListOps model can do when they are told the parses:
python experiments/benchmarks/listops_parts.py

Neither part has to wait for the other then: the encoder is trained on true heads, by the likelihood of their trace, and
the classifier on true trees. What the whole model does not reach though its parts do is what the search for structures
costs. Learning rates follow a cosine, as in the full runs. Writes
experiments/benchmarks/results/listops-parts.json; an hour on one core, a minute or two on a GPU.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from gumtrace.benchmark import machine
from gumtrace.extras import require
from gumtrace_experiments.listops.data import Split
from gumtrace_experiments.listops.experiment import (
    ListOpsConfig,
    ListOpsExperiment,
    cross_entropy,
    edge_metrics,
    metrics,
    true_trees,
)
from gumtrace_experiments.treebank.likelihoods import trace_log_likelihood

RESULTS = Path(__file__).parent / "results" / "listops-parts.json"
ITEMS = 25  # in a batch, as many as with four structures for each
CHUNK = 1000  # items evaluated at once
EVALUATIONS = 4


def train(part: nn.Module, loss: Callable[[Split], Tensor], data: Split, lr: float, iterations: int) -> Iterator[None]:
    """An update at each step."""
    optimiser = torch.optim.AdamW(part.parameters(), lr, weight_decay=ListOpsConfig.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, iterations)
    generator = torch.Generator().manual_seed(1)
    for _ in range(iterations):
        index = torch.randint(len(data.tokens), (ITEMS,), generator=generator).to(data.tokens.device)
        optimiser.zero_grad()
        loss(taken(data, index)).mean().backward()
        optimiser.step()
        schedule.step()
        yield


def taken(data: Split, index: Tensor) -> Split:
    return Split(*(x.index_select(0, index).long() for x in data))


@torch.no_grad()
def measure(model: ListOpsExperiment, seed: int) -> dict[str, float]:
    """On validation: of one sample per expression the share of right edges, of true trees that of right answers."""
    generator = torch.Generator(model.data.valid.tokens.device).manual_seed(seed)
    recall, right = [], []
    model.eval()
    for chunk in zip(*(x.split(CHUNK) for x in model.data.valid), strict=True):
        batch = Split(*(x.long() for x in chunk))
        sampled, given = model.posterior(batch).sample((1,), generator=generator), true_trees(batch)[None]
        recall.append(edge_metrics(batch, sampled)["recall"][0])
        right.append(metrics(batch, given, model.answer(batch, given))["accuracy"][0])
    model.train()
    return {"recall": torch.cat(recall).mean().item(), "accuracy": torch.cat(right).mean().item()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--data", type=Path, default=Path("data"))
    arguments.add_argument("--lr", type=float, default=1e-3)
    arguments.add_argument("--iterations", type=int, default=ListOpsConfig.iterations)
    arguments.add_argument("--device", default="cpu")
    given = arguments.parse_args()
    config = ListOpsConfig(lr=given.lr, iterations=given.iterations, schedule="cosine")
    device = torch.device(given.device)
    data = ListOpsExperiment.load(config, given.data, device)
    model = ListOpsExperiment.build(config, data, device)
    generator = torch.Generator(device).manual_seed(config.seed)

    def of_heads(batch: Split) -> Tensor:
        return -trace_log_likelihood(model.posterior(batch, generator), true_trees(batch))

    def of_answers(batch: Split) -> Tensor:
        masks = model.classifier.masks(batch.tokens, generator)
        return cross_entropy(model.answer(batch, true_trees(batch)[None], masks), batch.answers)

    parts = {model.encoder: of_heads, model.classifier: of_answers}
    updates = zip(
        *(train(part, loss, data.train, given.lr, given.iterations) for part, loss in parts.items()), strict=True
    )
    rows, each = [], given.iterations // EVALUATIONS
    bar = require("tqdm", "cli").tqdm(updates, total=given.iterations, desc="parts", unit="it", disable=None)
    for number, _ in enumerate(bar, 1):
        if number % each == 0:
            rows.append({"iterations": number, **measure(model, config.seed)})
            print(rows[-1], flush=True)
    found = {"machine": machine(device), "config": config.to_dict(), "items": ITEMS, "rows": rows}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
