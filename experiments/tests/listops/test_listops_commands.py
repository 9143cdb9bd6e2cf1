"""The commands of ListOps, on original files and beside the paper's tables; heuristics that parse nothing."""

import json
from pathlib import Path

import matplotlib
import pytest
import torch
from listops_oracle import random_texts, rewritten

from gumtrace_experiments import evaluate, find
from gumtrace_experiments.commands import main
from gumtrace_experiments.listops.data import _split, generate, read
from gumtrace_experiments.listops.expressions import parse
from gumtrace_experiments.listops.heuristics import shares
from gumtrace_experiments.listops.sampling import SAMPLED

matplotlib.use("Agg")
pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = ["--iterations", "2", "--evaluate-every", "1"]
SIZES = ["--hidden", "8", "--rounds", "2", "--calls", "24", "--longest", "20", *SHORT]
RESULTS = Path(__file__).parents[2] / "results"


def write(path, count, seed):
    """Expressions of all operators, some of them a digit, some too long; a third has only the paper's."""
    texts = [text for text in random_texts(count, 2, 4, seed) if not {"[SM", "[PM"} & {*text.split()}]
    texts = [text.replace("[FIRST", "[MIN") if i % 2 else text for i, text in enumerate(texts)]
    path.write_text("".join(f"{rewritten(text)}\t{text}\n" for text in texts))
    return path


def test_original_files(tmp_path, capsys, monkeypatch):
    """Trained on, evaluated on and drawn."""
    monkeypatch.chdir(tmp_path)
    Path("files").mkdir()
    write(Path("files/train_d20s.tsv"), 600, seed=0)
    write(Path("files/test_d20s.tsv"), 200, seed=1)
    assert main(["train", "listops", "--smoke", "--original", "--data", "files", *SIZES]) == 0
    assert "expressions are left out; the others have only [MIN [MAX [MED and at most 20" in capsys.readouterr().err
    (seed,) = Path("runs").glob("listops/*original=True*/seed-0")
    result = json.loads((seed / "result.json").read_text())
    file = "files/test_d20s.tsv"

    assert main(["evaluate", "listops", "--data", "files", "--file", file]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out == {"run": str(seed), "file": file, **result["test"]}
    other = write(Path("other.tsv"), 100, seed=2)
    assert main(["evaluate", "listops", "--data", "files", "--file", str(other)]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out == {"run": str(seed), "file": "other.tsv", **evaluate(seed, data=Path("files"), file=other)}
    assert out["accuracy"] != result["test"]["accuracy"]
    assert all(0 <= out[name] <= 1 for name in ("accuracy", "precision", "recall", "attachment"))

    plot = ["plot", "listops", "--data", "files", "--run", str(seed), "--count", "2", "--file"]
    assert main([*plot, str(other)]) == 0
    assert Path("plots/listops/found-other.png").read_bytes().startswith(b"\x89PNG")
    assert main(["table", "listops", "--format", "markdown"]) == 0
    page = capsys.readouterr().out
    assert "### Original expressions of up to 20 tokens, calls = 24, iterations = 2, hidden = 8, rounds = 2\n" in page
    assert "<summary>On the training set, original expressions of up to 20 tokens, calls = 24" in page

    for words in (["evaluate", "listops", "--data", "files", "--file"], plot):
        assert main([*words, "nowhere.tsv"]) == 2
        assert "No such file or directory: 'nowhere.tsv'" in capsys.readouterr().err
        Path("wrong.tsv").write_text("3\t[MAX 1 7 ]\n")
        assert main([*words, "wrong.tsv"]) == 2
        assert "wrong.tsv, line 1: the value of the expression is 7, not 3" in capsys.readouterr().err
    assert main(["plot", "listops", "runs", "--file", file]) == 2
    assert "of one run, which --run names" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*plot, file, "--split", "valid"])


def test_an_estimator_that_cannot_serve(tmp_path, capsys, monkeypatch):
    """It needs the probability of an arborescence, which is intractable."""
    monkeypatch.chdir(tmp_path)
    assert main(["train", "listops", "--smoke", "--estimator", "StructureREINFORCE", *SIZES]) == 2
    err = capsys.readouterr().err
    assert "gumtrace train: StructureREINFORCE needs log_prob of the structure; take TraceREINFORCE instead." in err
    assert "Traceback" not in err
    assert not [path for path in tmp_path.rglob("runs/**/*") if path.is_file() and path.name != ".lock"]


def test_others_read_no_files(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = ["--synthetic-size", "20", "--longest", "8", "--calls", "8", *SHORT]
    assert main(["train", "treebank", "--smoke", *few]) == 0
    (seed,) = tmp_path.glob("runs/treebank/*/seed-0")
    monkeypatch.setattr(find("treebank"), "load", None)  # said before data are looked for
    for words in (["evaluate", str(seed)], ["plot", "treebank", "--run", str(seed)]):
        capsys.readouterr()
        assert main([*words, "--file", "a.tsv"]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"gumtrace {words[0]}: ")
        assert "treebank cannot read a file in place of its test set" in error


def test_the_file_takes_the_place_of_the_test_set_alone(tmp_path):
    """Padded as the expressions of training are; the data that others share are left alone."""
    ListOps = find("listops")
    config = ListOps.config_type(longest=12, depth=2, hidden=8, train_size=30, test_size=20)
    data = ListOps.load(config, tmp_path, torch.device("cpu"))
    kept = data.test
    model = ListOps.build(config, data, torch.device("cpu"))
    file = write(tmp_path / "a.tsv", 50, seed=0)
    model.read_test(file)
    assert model.data.train is data.train
    assert data.test is kept
    for ours, theirs in zip(model.data.test, read(file, SAMPLED, 12), strict=True):
        assert torch.equal(ours, theirs)
    assert model.data.test.tokens.shape[1] == 12


# --- heuristics ---


def test_heuristics_by_hand():
    texts = {
        "[MIN 3 [MED 1 5 ] 4 ]": (3, 1),  # the value is 3
        "[MAX [MIN 2 9 ] [MIN 4 9 ] ]": (9, 9),  # no digits of its own; 4
        "[MED 1 2 3 ]": (2, 2),  # 2
        "[MAX 5 [MIN 2 3 ] ]": (5, 5),  # 5
        "8": (8, 8),
    }
    width = max(len(parse(text).tokens) for text in texts)
    tokens = torch.stack(
        [torch.nn.functional.pad(t := torch.tensor(parse(x).tokens), (0, width - len(t))) for x in texts]
    )
    found = shares(_split(tokens.numpy()))
    right = [[guess == rewritten(text) for guess in guesses] for text, guesses in texts.items()]
    assert [list(column) for column in zip(*right, strict=True)] == [
        [True, False, True, True, True],
        [False, False, True, True, True],
    ]
    assert found == {"own": 4 / 5, "every": 3 / 5}


@pytest.mark.slow
def test_the_notes_have_their_shares():
    """On the test set of the experiment, which takes a few seconds to make."""
    found = shares(generate(progress=False).test)
    notes = " ".join((RESULTS / "listops" / "NOTES.md").read_text(encoding="utf-8").split())
    own, every = (f"{100 * found[name]:.1f} %" for name in ("own", "every"))
    sentence = f"own digits, the first operator is right for {own} of the test set; applied to all digits, for {every}."
    assert sentence in notes
