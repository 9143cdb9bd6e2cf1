"""The metrics of ListOps: by hand, and in evaluations."""

import listops_runs
import pytest
import torch
from common import seeded

import gumtrace as gt
from gumtrace_experiments.listops import experiment as module
from gumtrace_experiments.listops.data import Split
from gumtrace_experiments.listops.expressions import parse

data, model = listops_runs.data, listops_runs.model
pytestmark = pytest.mark.usefixtures("one_thread")


def batch(*texts):
    """Of expressions, padded to twelve tokens."""
    found = [parse(text) for text in texts]
    tokens, heads = torch.zeros(len(texts), 12, dtype=torch.int64), torch.full((len(texts), 12), -2)
    for i, expression in enumerate(found):
        n = len(expression.tokens)
        tokens[i, :n], heads[i, :n] = torch.tensor(expression.tokens), torch.tensor(expression.heads)
    return Split(tokens, torch.tensor([len(e.tokens) for e in found]), torch.tensor([2, 7]), heads)


def arborescence(heads):
    """(12, 12), from the heads of all tokens but the first."""
    value = torch.zeros(12, 12)
    for place, head in enumerate(heads, 1):
        value[head, place] = 1
    return value


def test_metrics_by_hand():
    #              0   1 2   3 4 5 6 7          0   1 2 3
    items = batch("[MIN 3 [MED 3 5 ] 2 ]", "[MAX 7 1 ]")
    wrong = arborescence([0, 0, 2, 2, 3, 5, 6])  # 2 hangs from a bracket; both brackets from digits
    right = arborescence([0, 0, 0])
    logits = torch.zeros(1, 2, 10)
    logits[0, 0, 3] = logits[0, 1, 7] = 50.0
    found = module.metrics(items, torch.stack([wrong, right])[None], logits)
    expected = {
        "accuracy": [0, 1],
        "loss": [50, 0],
        "precision": [4 / 4, 2 / 2],  # 0→1, 0→2, 2→3, 2→4
        "recall": [4 / 5, 2 / 2],
        "attachment": [4 / 7, 3 / 3],
    }
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, torch.tensor([expected[name]], dtype=value.dtype), msg=name)


def test_edges_that_are_wrong_but_claimed():
    items = batch("[MIN 3 [MED 3 5 ] 2 ]", "[MAX 7 1 ]")
    chain = arborescence([0, 1, 2, 3, 4, 5, 6])
    brackets = arborescence([3, 3, 0])  # all arguments hang from the bracket: nothing is claimed
    found = module.edge_metrics(items, torch.stack([chain, brackets]))
    torch.testing.assert_close(found["precision"], torch.tensor([2 / 4, 0.0]))  # right: 0→1, 2→3; wrong: 1→2, 3→4
    torch.testing.assert_close(found["recall"], torch.tensor([2 / 5, 0.0]))
    torch.testing.assert_close(found["attachment"], torch.tensor([2 / 7, 1 / 3]))


def test_a_digit_on_its_own_has_no_edges():
    """It counts for accuracy, and neither as right nor as wrong for edges."""
    items = batch("2", "[MAX 7 1 ]")
    structure = torch.stack([torch.zeros(12, 12), arborescence([1, 1, 0])])[None]
    logits = torch.zeros(1, 2, 10)
    logits[0, :, 2] = 50.0
    found = {name: value.item() for name, value in module.means(module.totals(items, structure, logits)).items()}
    expected = {"accuracy": 1 / 2, "loss": 25, "precision": 0, "recall": 0, "attachment": 1 / 3}
    assert found == pytest.approx(expected)
    alone = Split(*(x[:1] for x in items))
    found = module.means(module.totals(alone, structure[:, :1], logits[:, :1]))
    assert {name: found[name].item() for name in module.EDGES} == {"precision": 0, "recall": 0, "attachment": 0}


def test_evaluation_is_of_samples_and_not_of_the_mode(model):
    model.eval()
    with torch.no_grad():
        first, again, other = (model.evaluate("test", seeded(seed)) for seed in (0, 0, 1))
    assert first == again
    assert first["attachment"] != other["attachment"]


def test_soft_edges_count_as_far_as_they_go():
    items = batch("[MIN 3 [MED 3 5 ] 2 ]", "[MAX 7 1 ]")
    truth = torch.stack([arborescence([0, 0, 2, 2, 2, 0, 0]), arborescence([0, 0, 0])])
    for value in module.edge_metrics(items, truth).values():
        torch.testing.assert_close(value, torch.ones(2))
    half = (truth + torch.stack([arborescence([3, 3, 3, 3, 3, 3, 3]), arborescence([1, 1, 1])])) / 2
    found = module.edge_metrics(items, half)
    torch.testing.assert_close(found["recall"], torch.tensor([0.5, 0.5]))


def test_evaluation_does_not_depend_on_chunks(model, monkeypatch):
    model.eval()
    sure = {}

    def posterior(items, generator=None):
        """Some edges right, and all of them sure: samples are all alike."""
        wanted = torch.where(items.tokens % 3 == 0, 0, items.heads)
        logits = 200.0 * (wanted[:, None, :] == torch.arange(12)[:, None])
        return gt.Arborescence(logits, lengths=items.lengths, validate_args=False)

    monkeypatch.setattr(model, "posterior", posterior)
    for chunk in (7, 1000):
        monkeypatch.setattr(module, "CHUNK", chunk)
        with torch.no_grad():
            sure[chunk] = model.evaluate("test", seeded())
    assert sure[7] == pytest.approx(sure[1000], rel=1e-5)
    assert sure[7]["precision"] == pytest.approx(sure[7]["recall"])
    assert 0.2 < sure[7]["precision"] < 0.98
    assert list(sure[7]) == ["accuracy", "loss", "precision", "recall", "attachment"]
