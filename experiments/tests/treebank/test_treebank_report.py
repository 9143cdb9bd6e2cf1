"""How the treebank experiment is reported: tables, pictures of parses, and the commands that make them."""

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure

import gumtrace as gt
from gumtrace_experiments import find, train
from gumtrace_experiments.commands import main
from gumtrace_experiments.report.records import collect
from gumtrace_experiments.report.tables import build
from gumtrace_experiments.treebank import pictures

matplotlib.use("Agg")
pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
Treebank = find("treebank")
TINY = Treebank.config_type(
    treebank="synthetic", synthetic_size=60, longest=8, hidden=8, calls=8, iterations=2, evaluate_every=2
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return Treebank.load(TINY, tmp_path_factory.mktemp("data"), CPU)


# --- tables and pictures ---


def test_the_random_field_is_a_row_of_the_table(tmp_path):
    for estimator in ("MatrixTreeCRF", "TraceLikelihood", "TraceREINFORCE"):
        train(Treebank, TINY.replace(estimator=estimator), tmp_path / estimator, progress=False)
    tables, _ = build(collect([tmp_path]), find("treebank").report(), "uas")
    table = tables[0]
    assert table.title.startswith("made-up sentences, no real language, longest = 8, calls = 8")
    assert table.head[2:4] == ("UAS, %", "best")
    names = [row[0].text for row in table.rows]
    assert names == ["T-REINFORCE+ (K = 4) †", "Trace likelihood †", "Matrix-tree CRF †"]
    assert find("treebank").report().block(Treebank.config_type().to_dict()).title == "treebank en_ewt"


def test_pictures(data, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kwargs: (self.canvas.draw(), kept.append(self)))
    model = Treebank.build(TINY, data, CPU)
    modes = []

    def distribution(items):
        """All heads right but that of the last word."""
        modes.append(model.training)
        last = torch.arange(items.heads.shape[-1]) == items.lengths[:, None] - 1
        wanted = torch.where(last, (items.heads == 1).long(), items.heads)
        logits = 9.0 * (wanted[:, None, :] == torch.arange(items.heads.shape[-1])[:, None])
        return gt.Arborescence(logits, lengths=items.lengths)

    monkeypatch.setattr(model, "distribution", distribution)
    pictures.draw(model, tmp_path / "found.png", count=3)
    assert modes == [False]
    assert model.training
    (figure,) = kept
    shown = [sentence for sentence in data.sentences["test"] if len(sentence.forms) >= 5]
    for ax, (forms, _, heads) in zip(figure.axes, shown, strict=False):
        n = len(forms)
        assert [text.get_text() for text in ax.texts[: n + 1]] == [pictures.ROOT, *forms]
        at = {round(text.get_position()[0], 6): place for place, text in enumerate(ax.texts[: n + 1])}
        arcs = [line for line in ax.lines if len(line.get_xdata()) > 1]
        ends = [tuple(at[round(float(line.get_xdata()[end]), 6)] for end in (0, -1)) for line in arcs]
        assert ends[:n] == [(head, word) for word, head in enumerate(heads, 1)]
        assert ends[n:-1] == ends[: n - 1]
        assert ends[-1] != ends[n - 1]
        assert [line.get_color() for line in arcs[n:]] == [pictures.RIGHT] * (n - 1) + [pictures.WRONG]
        assert ax.get_title("left") == f"{n - 1} of {n} heads right"
    assert len(figure.axes) == 3


# --- the command ---


def conllu(sentences):
    return "".join(
        "".join(
            f"{place}\t{form}\t_\t{tag}\t_\t_\t{head}\t_\t_\t_\n"
            for place, (form, tag, head) in enumerate(zip(*sentence, strict=True), 1)
        )
        + "\n"
        for sentence in sentences
    )


def test_commands(tmp_path, data, capsys, monkeypatch):
    """One command each; a run on files, and one on the same sentences without them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files").mkdir()
    for part, name in (("train", "train"), ("valid", "dev"), ("test", "test")):
        (tmp_path / "files" / f"a_b-ud-{name}.conllu").write_text(conllu(data.sentences[part]))
    sizes = ["--synthetic-size", "60", "--longest", "8", "--calls", "8", "--iterations", "4", "--evaluate-every", "2"]
    assert main(["train", "treebank", "--smoke", *sizes]) == 0
    made_up = capsys.readouterr()
    assert "made-up sentences to train with, and no real language" in made_up.err
    assert main(["train", "treebank", "--smoke", *sizes, "--treebank", "a_b", "--data", "files"]) == 0
    real = capsys.readouterr()
    assert real.err == ""
    lines, others = ([line.partition(";")[0] for line in found.out.splitlines()] for found in (real, made_up))
    assert lines[:-1] == others[:-1]  # all but how fast it was, and where it is

    assert main(["table", "treebank"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "made-up sentences, no real language" in shown
    assert "treebank a_b" in shown
    (seed,) = tmp_path.glob("runs/treebank/*treebank=a_b*/seed-0")
    plot = ["plot", "treebank", "--run", str(seed), "--count", "1"]
    assert main(plot) == 2
    assert "a_b-ud-train.conllu (or .conllu.xz) not found in data" in capsys.readouterr().err
    assert main([*plot, "--data", "files"]) == 0
    assert (tmp_path / "plots" / "treebank" / "found.png").read_bytes().startswith(b"\x89PNG")
    assert main(["train", "treebank"]) == 2
    assert "en_ewt-ud-train.conllu (or .conllu.xz) not found in data" in capsys.readouterr().err
