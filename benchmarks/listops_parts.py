"""What the parts of the ListOps model can do when they are told the parses: python benchmarks/listops_parts.py

Neither part has to wait for the other then: the encoder is trained on true heads, by the likelihood of their trace, and
the classifier on true trees. What the whole model does not reach though its parts do is what the search for structures
costs. Writes benchmarks/results/listops-parts.json; about ten minutes on one core.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from gumtrace.benchmark import machine
from gumtrace.experiments.listops.data import Split
from gumtrace.experiments.listops.experiment import (
    ListOpsConfig,
    ListOpsExperiment,
    cross_entropy,
    metrics,
    true_trees,
)
from gumtrace.experiments.treebank.likelihoods import trace_log_likelihood

RESULTS = Path(__file__).parent / "results" / "listops-parts.json"
ITEMS = 25  # in a batch, as many as with four structures for each
EVALUATED = 2000  # items of the validation set


def train(part: nn.Module, loss: Callable[[Split], Tensor], data: Split, lr: float) -> Iterator[None]:
    """An update at each step."""
    optimiser = torch.optim.AdamW(part.parameters(), lr, weight_decay=ListOpsConfig.weight_decay)
    generator = torch.Generator().manual_seed(1)
    while True:
        index = torch.randint(len(data.tokens), (ITEMS,), generator=generator)
        optimiser.zero_grad()
        loss(taken(data, index)).mean().backward()
        optimiser.step()
        yield


def taken(data: Split, index: Tensor) -> Split:
    return Split(*(x.index_select(0, index).long() for x in data))


@torch.no_grad()
def measure(model: ListOpsExperiment, seed: int) -> dict[str, float]:
    """Of one sample an expression the share of right edges, and of true trees the share of right answers."""
    batch = taken(model.data.valid, torch.arange(EVALUATED))
    model.eval()
    sampled = model.posterior(batch).sample((1,), generator=torch.Generator().manual_seed(seed))
    found = metrics(batch, sampled, model.answer(batch, sampled))
    told = metrics(batch, (given := true_trees(batch)[None]), model.answer(batch, given))
    model.train()
    return {"recall": found["recall"].mean().item(), "accuracy": told["accuracy"].mean().item()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--data", type=Path, default=Path("data"))
    arguments.add_argument("--lr", type=float, default=1e-3)
    arguments.add_argument("--iterations", type=int, default=1000, help="between evaluations, of which there are four")
    given = arguments.parse_args()
    config = ListOpsConfig(lr=given.lr)
    device = torch.device("cpu")
    data = ListOpsExperiment.load(config, given.data, device)
    model = ListOpsExperiment.build(config, data, device)
    generator = torch.Generator().manual_seed(config.seed)

    def of_heads(batch: Split) -> Tensor:
        return -trace_log_likelihood(model.posterior(batch, generator), true_trees(batch))

    def of_answers(batch: Split) -> Tensor:
        masks = model.classifier.masks(batch.tokens, generator)
        return cross_entropy(model.answer(batch, true_trees(batch)[None], masks), batch.answers)

    parts = {model.encoder: of_heads, model.classifier: of_answers}
    updates = zip(*(train(part, loss, data.train, given.lr) for part, loss in parts.items()), strict=True)
    rows = []
    for step in range(1, 5):
        for _ in islice(updates, given.iterations):
            pass
        rows.append({"iterations": step * given.iterations, **measure(model, config.seed)})
        print(rows[-1], flush=True)
    RESULTS.write_text(json.dumps({"machine": machine(device), "lr": given.lr, "items": ITEMS, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
