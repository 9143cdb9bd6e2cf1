"""benchmarks/listops_parts.py measures what it says it measures."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

import gumtrace as gt
from gumtrace_experiments.listops.data import ListOps, read

pytestmark = pytest.mark.usefixtures("one_thread")
spec = spec_from_file_location("parts", Path(__file__).parents[2] / "benchmarks" / "listops_parts.py")
parts = module_from_spec(spec)
spec.loader.exec_module(parts)


class Star(torch.nn.Module):
    """Hangs all tokens from the first, and answers how many do."""

    def __init__(self, data):
        super().__init__()
        self.data = data

    def posterior(self, items):
        logits = torch.zeros(*items.tokens.shape, items.tokens.shape[1])
        logits[:, 0] = 200.0
        return gt.Arborescence(logits, lengths=items.lengths)

    def answer(self, items, structure):
        return torch.nn.functional.one_hot(structure[..., 0, :].sum(-1).long(), 10).float()


def test_edges_of_samples_and_answers_of_true_trees_on_validation(tmp_path):
    """Three of five arguments are MIN's own. Of true trees, four tokens hang from MIN, and three from MAX."""
    right, wrong = "3\t[MAX 3 1 ]\n", "7\t[MIN 8 [MAX 1 9 ] 7 ]\n"
    files = {"train": right, "valid": right + wrong, "test": wrong}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    model = Star(ListOps(*(read(tmp_path / name) for name in files)))
    assert parts.measure(model, seed=0) == pytest.approx({"recall": (2 / 2 + 3 / 5) / 2, "accuracy": 1 / 2})
