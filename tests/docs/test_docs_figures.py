"""Pages on structures and estimators: one template, every picture drawn, every number that of a recorded run."""

import re
import sys
from pathlib import Path

import matplotlib as mpl
import pytest
import torch

import gumtrace as gt

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))  # as docs/conf.py does

import figures  # noqa: E402
import page_tables  # noqa: E402
import recordings  # noqa: E402  benchmarks/

mpl.use("Agg")

STRUCTURE = """What it is/The recursion/Shapes/Cost/Example/Step by step/Exact log-probability/Relaxations/Pitfalls
/See also""".replace("\n", "").split("/")
ESTIMATOR = """In one sentence/The formula/What it needs/Bias/Variance/Cost/Example/When to use, when not
/Under torch.compile and CUDA graphs""".replace("\n", "").split("/")


def pages(folder):
    return sorted(page for page in (DOCS / folder).glob("*.md") if page.stem != "index")


EVERY = [*pages("structures"), *pages("estimators")]
every_page = pytest.mark.parametrize("page", EVERY, ids=lambda page: page.stem)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All pictures and tables, made once."""
    out = tmp_path_factory.mktemp("generated")
    figures.draw(out / "figures")
    figures.tables(out / "tables")
    return out


def text(page):
    return page.read_text(encoding="utf-8")


def results(name):
    return recordings.load(f"{name}.json")


# --- pages ---


@every_page
def test_one_template(page):
    headings = re.findall(r"^## (.+)$", text(page), re.MULTILINE)
    assert headings == (STRUCTURE if page.parent.name == "structures" else ESTIMATOR)


def test_everything_has_a_page():
    def titles(folder):
        return {text(page).partition("\n")[0].removeprefix("# ") for page in pages(folder)}

    assert titles("structures") == {structure.__name__ for structure in gt.structures.ALL}
    assert titles("estimators") == set(gt.estimators.ESTIMATORS)


@pytest.mark.parametrize("folder", ["structures", "estimators"])
@pytest.mark.slow
def test_the_index_lists_every_page(made, folder):
    index = text(DOCS / folder / "index.md") + text(made / "tables" / f"{folder}.md")
    for page in pages(folder):
        assert f"({page.name})" in index
        assert re.search(rf"^{page.stem}$", index, re.MULTILINE)


def test_what_is_shown_is_made_and_what_is_made_is_shown(made):
    site = "".join(text(page) for page in DOCS.rglob("*.md") if "_build" not in page.parts)
    for folder in ("figures", "tables"):
        shown = set(re.findall(rf"_generated/{folder}/([\w.-]+)", site))
        assert shown == {path.name for path in (made / folder).iterdir()}


# --- pictures ---


def test_pictures(made):
    for path in (made / "figures").iterdir():
        picture = path.read_text(encoding="utf-8")
        assert "<svg" in picture
        assert 5_000 < len(picture) < 400_000, path.name


def test_a_picture_is_the_same_file_every_time(made, tmp_path):
    page = DOCS / "structures" / "subset.md"
    with mpl.rc_context(figures.STYLE):
        figures._save(figures.steps_of(page), tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == (made / "figures" / "steps-subset.svg").read_bytes()


@pytest.mark.parametrize("page", pages("structures"), ids=lambda page: page.stem)
@pytest.mark.slow
def test_a_picture_shows_the_run_of_its_page(page):
    written = re.findall(r"wins, P = (\d\.\d\d)$", text(page), re.MULTILINE)
    drawn = [ax.texts[-1].get_text() for ax in figures.steps_of(page).axes if ax.texts]
    assert [caption.rpartition("P = ")[2] for caption in drawn[:-1]] == written
    assert len(written) > 1


# --- tables ---


def rows(made, name):
    """First cell -> the others, of the tables of a file."""
    lines = [line for line in text(made / "tables" / f"{name}.md").splitlines() if line.startswith("|")]
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {line[0]: line[1:] for line in split}


@pytest.mark.parametrize(("page", "name"), page_tables.PAGES.items())
def test_times_are_the_recorded_ones(made, page, name):
    table = text(made / "tables" / f"cost-{page}.md")
    ours = [r for r in results("cpu-2core")["records"] if r["structure"].split(".")[0] == name]
    steps = [r for r in ours if r["step"] == "t_step"]
    assert steps
    for r in steps:
        size = " ".join(f"{k}={v:,}" for k, v in r["size"].items())
        (line,) = [
            line for line in table.partition("Milliseconds of the device")[0].splitlines() if f"{size} |" in line
        ]
        assert f" {r['ms']:,.0f} " in line or f" {r['ms']:.1f} " in line
    others = [other for other in page_tables.PAGES.values() if other != name]
    assert not [line for line in table.splitlines() if line.startswith(tuple(f"| {other}" for other in others))]


@pytest.mark.parametrize(("page", "names"), page_tables.ROWS.items())
def test_deviations_are_the_recorded_ones(made, page, names):
    lines = rows(made, f"variance-{page}")
    records = [r for r in results("variance")["records"] if r["estimator"] in names]
    assert records
    for r in records:
        words = page_tables.recorded.STRUCTURES[r["structure"]]
        cells = lines[f"{r['estimator']}, {words}" if len(names) > 1 else words]
        there = cells[:3] if r["objective"] == "smooth" else cells[3:]
        bias, chance = (100 * r[field] / r["gradient"] for field in ("bias", "bias_error"))
        expected = [f"{r['std'] / r['gradient']:.1f}", f"{r['ratio']:.2f}", f"{bias:.0f} ({chance:.0f})"]
        assert there == expected


def test_every_estimator_is_timed(made):
    lines = rows(made, "times")
    trees = page_tables.problem("spanning-tree").dist  # where it does not take them, its page has the time for subsets
    names = {name for names in page_tables.ROWS.values() for name in names if figures.described(name).supports(trees)}
    assert names == {name for name in lines if name[:1].isalpha()}
    for name in names:
        milliseconds, share = (float(cell.replace(",", "")) for cell in lines[name])
        assert 0 < milliseconds < 10_000
        assert share > 0
    assert lines["T-REINFORCE+"][1] == "1.0"


def test_updates_are_the_recorded_ones(made):
    lines = rows(made, "updates")
    for device, places in (("cpu-2core", (0, 1)), ("cuda-h200", (2, 3))):
        for r in results(device)["records"]:
            if r["step"] in ("trace_reinforce", "sst_step"):
                size = " ".join(f"{k}={v:,}" for k, v in r["size"].items())
                cell = lines[f"`{r['structure']}` {size}"][places[r["step"] == "sst_step"]]
                assert float(cell.replace(",", "")) == pytest.approx(r["ms"], rel=0.01, abs=0.5)


# --- what the pages say of torch.compile ---

COMPILED = {
    "noise": lambda: gt.estimators.NoiseREINFORCE(samples=2),
    "surrogate": lambda: gt.estimators.SurrogateREINFORCE(samples=2, extra=4).eval(),
    "softmax": lambda: gt.estimators.StochasticSoftmax(temperature=0.5, samples=2),
    "straight": lambda: gt.estimators.StraightThrough(temperature=0.5, samples=2),
    "gumbel-rao": lambda: gt.estimators.GumbelRao(temperature=0.5, samples=2, draws=2),
}


@pytest.mark.parametrize("make", [gt.SpanningTree, gt.Arborescence])
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, in its compiler
@pytest.mark.slow
def test_compiled_as_one_graph(name, make):
    torch._dynamo.reset()
    estimator = COMPILED[name]()
    x = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def loss(x):
        return estimator(make(x, validate_args=False), lambda value: value.flatten(2).square().sum(-1)).mean()

    torch.compile(loss, fullgraph=True, backend="aot_eager")(x).backward()
    assert x.grad.isfinite().all()
