"""Recipes: each runs with data of other sizes than its own, and has its page. The build of the site runs their own."""

import ast
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"
FILES = sorted(RECIPES.glob("*.py"))


def table(rows=90, columns=7):
    x = torch.randn(rows, columns)
    return x, x[:, 0] + x[:, 1], [f"column {i}" for i in range(columns)]


def tokens():
    return torch.randn(600, 5), torch.randn(600, 3)


def texts():  # of three classes, some shorter than what is kept, and half of the words in one text only
    return [([f"word {i}", "a", "bc", "d", "e", "f", "g"][: 1 + i % 7], i % 3) for i in range(80)]


def candidates():  # the last list has no relevant document, and padding is nan
    grades, lengths = torch.randint(0, 3, (50, 12)).float(), torch.randint(6, 13, (50,))
    grades[-1] = 0
    padding = torch.arange(12) >= lengths[:, None]
    features = torch.randn(50, 12, 4).masked_fill(padding[..., None], torch.nan)
    return features, grades.masked_fill(padding, torch.nan), lengths


def images(mnist=None):
    def draw(count, generator):
        values = torch.rand(count, 3, generator=generator)
        return values[..., None, None] + torch.rand(count, 3, 9, 11, generator=generator), values

    return dict.fromkeys(("train", "valid", "test"), draw)


def rankings():  # of one to five answers, of which one to all were ranked; answers have one to three tokens
    counts = torch.randint(1, 6, (60, 1))
    answers = torch.randint(7, (60, 5, 3)).masked_fill(torch.arange(3) > torch.randint(3, (60, 5, 1)), -1)
    order = torch.rand(60, 5).masked_fill(torch.arange(5) >= counts, 2.0).argsort(-1)
    ranked = (torch.rand(60, 1) * counts).long() + 1
    return (
        torch.randn(60, 2),
        answers.masked_fill((torch.arange(5) >= counts)[..., None], -1),
        order.masked_fill(torch.arange(5) >= ranked, -1)[:, :4],
        None,
    )


def nodes():  # two signals, and no places
    return torch.randn(12, 9, 3), torch.randn(12, 9, 2), torch.randn(12, 9), None


OTHER_DATA = {
    "feature_selection": (table, ["--k", "3", "--runs", "2"]),
    "learned_graph": (nodes, ["--k", "2"]),
    "listwise_preferences": (rankings, []),
    "moe_router": (tokens, ["--experts", "4", "--k", "1"]),
    "reranker": (candidates, ["--top", "6"]),
    "sort_numbers": (images, []),
    "token_pruner": (texts, []),
    "two_processes": (lambda: table()[:2], ["--processes", "1"]),
}


def imported(path):
    spec = spec_from_file_location(path.stem, path)
    recipe = module_from_spec(spec)
    spec.loader.exec_module(recipe)
    return recipe


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.usefixtures("one_thread")
@pytest.mark.slow
def test_with_other_data(path, tmp_path, monkeypatch, capsys):
    recipe = imported(path)
    load, options = OTHER_DATA[path.stem]
    monkeypatch.setattr(recipe, "load_data", load)
    recipe.main([*options, "--steps", "2", "--out", str(tmp_path / "out.png")])
    assert capsys.readouterr().out
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_page_shows_the_file_and_what_it_made(path):
    page = path.with_suffix(".md").read_text(encoding="utf-8")
    assert page.startswith("# ")
    caption = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).partition("\n")[0]
    assert caption.endswith(".")
    shown = re.findall(r"^```\{(?:figure|literalinclude)\} (\S+)$", page, re.MULTILINE)
    made = [f"/_generated/recipes/{path.stem}.{suffix}" for suffix in ("png", "txt")]
    assert shown == [*made, path.name]
    assert f"{{download}}`{path.name} <{path.name}>`" in page


def test_r_squared_of_a_column_that_is_there_twice():
    recipe = imported(RECIPES / "feature_selection.py")
    torch.manual_seed(0)
    x = torch.randn(200, 3)
    table = x, x[:, 0] - 2 * x[:, 1] + 0.1 * x[:, 2]
    once, twice = (recipe.r_squared(table, table, torch.tensor(columns)) for columns in ([0, 1], [1, 0, 0, 1]))
    assert abs(once - twice) < 1e-6
    assert once > 0.99


@pytest.mark.parametrize(("text", "error"), [("a bc", TypeError), ([], ValueError)])
def test_a_text_that_is_no_list_of_words_is_named(text, error):
    recipe = imported(RECIPES / "token_pruner.py")
    with pytest.raises(error, match="text 1 "):
        recipe.encode([(["a"], 0), (text, 1)])


def test_credit_of_neighbours_is_exact():
    """Summed over all graphs of four nodes that each listen to one other: the gradient of the mean loss."""
    recipe = imported(RECIPES / "learned_graph.py")
    torch.manual_seed(0)
    network, x, y = recipe.Network(1).double(), torch.randn(4, 1).double(), torch.randn(4).double()
    logits = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    log_probs = logits.masked_fill(torch.eye(4, dtype=torch.bool), -torch.inf).log_softmax(-1)
    others = [[j for j in range(4) if j != i] for i in range(4)]
    neighbours = torch.cartesian_prod(*map(torch.tensor, others))[..., None]  # (81, 4, 1)
    chosen = log_probs.expand(81, 4, 4).gather(-1, neighbours).squeeze(-1)  # (81, 4)
    loss = (network(x, neighbours) - y).square().detach()
    chance = chosen.sum(-1).exp()
    (exact,) = torch.autograd.grad((chance * loss.mean(-1)).sum(), logits, retain_graph=True)
    estimate = chance.detach()[:, None] * recipe.credit(loss, neighbours) * chosen / 4
    torch.testing.assert_close(torch.autograd.grad(estimate.sum(), logits)[0], exact)
    assert exact.abs().max() > 1e-4
