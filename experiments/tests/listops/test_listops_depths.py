"""benchmarks/listops_depths.py counts edges that make no difference: does any of them? And its counts, by hand."""

import json
import random
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from common import seeded
from listops_oracle import FUNCTIONS

import gumtrace as gt
from gumtrace_experiments.listops.data import Split, generate, read
from gumtrace_experiments.listops.expressions import CLOSE, VOCABULARY

pytestmark = pytest.mark.usefixtures("one_thread")
spec = spec_from_file_location("depths", Path(__file__).parents[2] / "benchmarks" / "listops_depths.py")
depths = module_from_spec(spec)
spec.loader.exec_module(depths)


def value(tokens: list[int], heads: list[int], digits: list[int], at: int = 0):
    """Of the tree that the heads make, with other digits; None for a function that has no arguments left."""
    name = VOCABULARY[tokens[at]][1:]
    if name not in FUNCTIONS:
        return digits[at]
    below = [j for j in range(1, len(tokens)) if heads[j] == at and tokens[j] != CLOSE]
    known = [x for j in below if (x := value(tokens, heads, digits, j)) is not None]
    return FUNCTIONS[name](known) if known else None


@pytest.fixture(scope="module")
def batch():
    return Split(*(x.long() for x in generate(sizes=(5, 5, 60), seed=7, progress=False).test))


def test_depth(batch):
    depth, _ = depths.depths(batch)
    for heads, found, length in zip(batch.heads.tolist(), depth.tolist(), batch.lengths.tolist(), strict=True):
        for j in range(1, length):
            steps, at = 0, j
            while at:
                steps, at = steps + 1, heads[at]
            assert found[j] == steps


def test_what_is_as_good_changes_no_value(batch):
    """And nearly everything else that moves outwards does, for some digits."""
    rng, counted, others = random.Random(0), 0, []
    _, outermost = depths.depths(batch)
    for item, length in enumerate(batch.lengths.tolist()):
        tokens, heads = batch.tokens[item, :length].tolist(), batch.heads[item, :length].tolist()
        for j in (j for j in range(1, length) if tokens[j] != CLOSE and heads[j]):
            moved = [*heads[:j], heads[heads[j]], *heads[j + 1 :]]  # to the function around its own
            found = batch.heads[item : item + 1].clamp(min=0)
            found[0, j] = moved[j]
            one = Split(*(x[item : item + 1] for x in batch))
            good = depths.as_good(one, found, outermost[item : item + 1], 5)[0, j].item()
            drawn = [[rng.randrange(10) for _ in tokens] for _ in range(20)]
            same = all(value(tokens, heads, digits) == value(tokens, moved, digits) for digits in drawn)
            assert same or not good
            counted += good
            others += [] if good else [same]
    assert counted > 50
    assert sum(others) < 0.7 * len(others)


def test_a_token_that_hangs_from_its_function_is_not_as_good_but_right(batch):
    _, outermost = depths.depths(batch)
    assert not depths.as_good(batch, batch.heads.clamp(min=0), outermost, 5)[batch.heads > 0].any()


def test_nothing_is_as_good_as_a_median():
    """[MED [MED 1 2 ] 3 ], and the same with MIN."""
    for name, good in (("[MED", False), ("[MIN", True)):
        f = VOCABULARY.index(name)
        tokens = torch.tensor([[f, f, 2, 3, CLOSE, 4, CLOSE]])
        heads = torch.tensor([[-1, 0, 1, 1, 1, 0, 0]])
        batch = Split(tokens=tokens, lengths=torch.tensor([7]), answers=torch.tensor([0]), heads=heads)
        found = torch.tensor([[0, 0, 0, 1, 1, 0, 0]])
        assert (
            depths.as_good(batch, found, depths.depths(batch)[1], 5)[0].tolist() == [False, False, good] + [False] * 4
        )


def test_counts_by_hand(tmp_path):
    """Of a model that is sure of its heads, and answers how many tokens hang from the first."""
    #                 0    1 2    3 4 5 6    7 8 9 10 11 12 13
    expressions = "6\t[MIN 8 [MIN 7 9 ] [MAX 1 2 6 ] 7 9 ]\n2\t[MAX 2 1 ]\n"
    (tmp_path / "two.tsv").write_text(expressions)
    batch = Split(*(x.long() for x in read(tmp_path / "two.tsv")))
    found = torch.tensor([[-1, 0, 0, 0, 2, 2, 5, 6, 7, 0, 6, 10, 2, 12], [-1, 0, 0, 1] + [-2] * 10])
    logits = 200.0 * (found[:, None, :] == torch.arange(14)[:, None])
    model = SimpleNamespace(
        posterior=lambda batch: gt.Arborescence(logits, lengths=batch.lengths),
        answer=lambda batch, structure: torch.nn.functional.one_hot(structure[..., 0, :].sum(-1).long(), 10),
    )
    names = (*depths.HEADS, "arguments", *depths.ANSWERS, "expressions")
    rows = [dict(zip(names, row, strict=True)) for row in depths.counts(model, batch, seeded(), 2).tolist()]
    assert rows == [
        {
            "right": 4,  # 1 and 2, and both of the second expression
            "as good": 0,
            "function": 1,  # 12 hangs from 2
            "digit": 0,
            "bracket": 2,  # 6 and 11
            "arguments": 7,
            "accuracy": 1,  # two hang from the first one
            "told": 0,  # three do
            "expressions": 1,
        },
        {
            "right": 2,  # 4 and 7
            "as good": 1,  # 3, of MIN in MIN
            "function": 1,  # 9, of MAX in MIN
            "digit": 1,  # 8
            "bracket": 0,
            "arguments": 5,
            "accuracy": 0,  # four
            "told": 1,  # six
            "expressions": 1,
        },
    ]


def test_other_runs_stay_in_the_record(tmp_path):
    def run(seed: int, **more) -> dict:
        return {"config": {"estimator": "TraceREINFORCE", "calls": 100, "samples": 4, "seed": seed, **more}}

    file, measured = tmp_path / "depths.json", [run(2, relabel=0.0)]
    assert depths.others(file, measured) == []
    kept = [run(1), run(2, starts=4), run(2, relabel=0.3)]
    file.write_text(json.dumps({"runs": [run(2), *kept]}))
    assert depths.others(file, measured) == kept
