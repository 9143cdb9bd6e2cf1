"""The site: every block of Python on a page is executed, here or when the site is built, and pages name what exists."""

import doctest
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

import gumtrace as gt

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts and "_generated" not in path.parts)
NOTES = sorted((ROOT / "experiments" / "results").glob("*/NOTES.md"))
FENCE = re.compile(r"^(`{3,}|:{3,})[ \t]*(\{[\w:-]+\}|[\w-]*)([^\n]*)\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
EXECUTED_HERE = {"python", "pycon"}
NOT_PYTHON = {"bash", "bibtex", "console", "html", "text"}
CODE_CELL = "{code-cell}"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(text: str, first: int = 1) -> list[tuple[str, str, int]]:
    """Label, content and first line of every fenced block, those inside of containers included."""
    found = []
    for m in FENCE.finditer(text):
        line = first + text[: m.start()].count("\n") + 1
        found += blocks(m[4], line) if m[2] == "{container}" else [(m[2], m[4], line)]
    return found


def load(path: Path):
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_blocks_inside_of_containers_are_found():
    page = "Title\n:::{container} x\n```text\ntheirs()\n```\n\n```python\nours()\n```\n:::\n```python\nlast()\n```\n"
    assert blocks(page) == [("text", "theirs()\n", 4), ("python", "ours()\n", 8), ("python", "last()\n", 12)]


@pytest.fixture
def fresh_interpreter(tmp_path, monkeypatch):
    """A seed of its own for each page, whatever ran before, and nothing of it left behind."""
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    yield
    torch.set_printoptions(profile="default")


@pytest.mark.parametrize("page", [*PAGES, *NOTES, ROOT / "README.md"], ids=name_of)
def test_nothing_looks_like_code_without_being_executed(page):
    text = page.read_text(encoding="utf-8")
    for label, _, line in blocks(text):
        directive = label.startswith("{") and label not in ("{code}", "{code-block}", "{sourcecode}")
        assert directive or label in EXECUTED_HERE | NOT_PYTHON, (
            f"{name_of(page)}:{line}: a block labelled {label!r} is executed by nobody; code is python, pycon or "
            f"{CODE_CELL}, anything else is one of {', '.join(sorted(NOT_PYTHON))}"
        )
    if any(label == CODE_CELL for label, _, _ in blocks(text)):
        assert re.match(r"---\nfile_format: mystnb\n", text), f"{name_of(page)} is not executed: say so in its head"


WITH_EXAMPLES = [p for p in PAGES if any(label in EXECUTED_HERE for label, _, _ in blocks(p.read_text("utf-8")))]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name_of)
@pytest.mark.usefixtures("fresh_interpreter", "one_thread")
@pytest.mark.slow
def test_examples_of_a_page(page):
    """In order, in one namespace: with prompts they print what the page says, without they run."""
    names: dict = {}
    for label, code, line in blocks(page.read_text(encoding="utf-8")):
        if label not in EXECUTED_HERE:
            continue
        if ">>>" not in code:
            exec(compile("\n" * (line - 1) + code, name_of(page), "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(code, names, name_of(page), name_of(page), line - 1)
        report: list[str] = []
        doctest.DocTestRunner().run(test, out=report.append, clear_globs=False)
        names = test.globs
        assert not report, "".join(report)


@pytest.mark.parametrize("name", ["start.md", "custom.md"])
def test_a_reader_sees_all_that_is_run(name):
    text = (DOCS / name).read_text(encoding="utf-8")
    assert ":tags:" not in text
    assert not [line for label, _, line in blocks(text) if label in EXECUTED_HERE]


def test_everything_public_is_in_the_reference():
    reference = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    assert re.search(r"\.\. automodule:: gumtrace\n   :imported-members:\n", reference)  # which has all structures
    assert "_generated/tables/reference-estimators.md" in reference  # which has all estimators
    covered = {*gt.structures.__all__, *gt.estimators.ESTIMATORS, "backends"}
    for module in (gt, gt.estimators, gt.diagnostics):
        for name in set(module.__all__) - covered:
            assert re.search(rf"\.\. auto(class|data|function|module):: (gumtrace\.)?{name}\b", reference) or (
                f"automodule:: gumtrace.{name}" in reference or (DOCS / "api" / f"{name}.md").exists()
            ), f"{module.__name__}.{name} is on no page of docs/api"


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=name_of)
def test_no_line_is_taken_for_a_comment(page):
    """Of a line that begins with % nothing is shown."""
    assert not re.search(r"^\s*%(?!%)", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_measurement_has_its_page():
    """Each table is shown once, on a page of its own subject."""
    shown = {"variance": "variance", "bench": "benchmarks", "bench-cuda": "benchmarks", "updates": "benchmarks"}
    shown |= {"experiments": "results", "clustering": "supervision", "training-variance": "variance"}
    shown |= {"scale": "benchmarks", "scale-permutations": "benchmarks", "scale-cpu": "benchmarks"}
    shown |= {"host": "performance"}
    shown |= {"training-surrogates": "estimators/surrogate-reinforce"}
    for table, name in shown.items():
        pages = [page for page in PAGES if f"```{{recorded}} {table}\n" in page.read_text(encoding="utf-8")]
        assert pages == [DOCS / f"{name}.md"]


def test_the_glossary_has_each_term_once_with_one_line():
    page = (DOCS / "glossary.md").read_text(encoding="utf-8")
    for section in page.split("\n## ")[1:]:
        terms = re.findall(r"^([^:\n].*)\n: .+$", section, re.MULTILINE)
        assert len(terms) > 3
    terms = re.findall(r"^([^:\n].*)\n: .+$", page, re.MULTILINE)
    assert len(terms) == len(set(terms)) == len(re.findall(r"^: ", page, re.MULTILINE)) > 40


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_files_that_are_named_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    tops = "src|tests|docs|benchmarks|experiments"
    named = set(re.findall(rf"`((?:{tops})/[\w./-]*)`", text)) | set(re.findall(r"\]\(([\w./-]+)\)", text))
    assert named
    for name in named:
        assert (ROOT / name).exists(), f"{page} names {name}"


def test_the_lists_of_contributing_match_the_code():
    """`name` and `other` in `file`: the file has them."""
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    claims = re.findall(r"((?:`\w+`(?:, | and ))*`\w+`) (?:in|of) `([\w./]+\.(?:py|js))`", text)
    assert len(claims) >= 15
    for names, file in claims:
        whole = file.startswith(("src/", "tests/", "docs/", "experiments/"))
        path = ROOT / file if whole else ROOT / "src/gumtrace/kernels" / file
        source = path.read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^(def |class |const )?{name}\b", source, re.MULTILINE), f"{file} has no {name}"


def test_contributing_names_every_layer():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`gumtrace\.(\w+)`", text.partition("## House rules")[0]))
    modules = {path.stem for path in (ROOT / "src" / "gumtrace").iterdir() if path.suffix in ("", ".py")}
    assert modules - named <= {"__init__", "__main__", "__pycache__", "extras"}


@pytest.mark.parametrize(
    ("formula", "shown"),
    [
        (r"\log P(T)", r"\log\, P(T)"),
        (r"O(d \log k)", r"O(d \, \log\, k)"),
        (r"-\log \lambda_k", r"-\log\, \lambda_k"),
        (r"\log\, n", r"\log\, n"),
        (r"\min(r, c) \log \Bigl( x", r"\min(r, c) \, \log \Bigl( x"),
        (r"\max_{x} f", r"\max_{x} f"),
    ],
)
def test_names_of_functions_stand_apart(formula, shown):
    pytest.importorskip("sphinx")
    assert load(DOCS / "_ext" / "mathml.py").spaced(formula) == shown


CHECK = load(DOCS / "check.py")
CELL = (
    '<div class="cell docutils"><div class="cell_input docutils"><div class="highlight"><pre>{code}</pre></div></div>'
    '<div class="cell_output docutils"><div class="output stream highlight"><pre>{output}</pre></div></div></div>'
)


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ('<a href="other.html">', None),
        ('<a href="other.html#there">', None),
        ('<a href="https://example.org/nowhere">', None),
        ('<img src="data:image/png;base64,aaaa">', None),
        ('<a href="missing.html">', "leads to no file"),
        ('<a href="other.html#not-there">', "leads to no anchor"),
        ('<a href="#nor-here">', "leads to no anchor"),
        ('<img src="missing.png">', "which is not there"),
        ('<script src="https://example.org/x.js"></script>', "from elsewhere"),
    ],
)
def test_links_are_checked(tmp_path, page, problem):
    (tmp_path / "index.html").write_text(page)
    (tmp_path / "other.html").write_text('<h1 id="there">There</h1>')
    found = list(CHECK.broken_links(tmp_path))
    assert len(found) == (problem is not None)
    assert problem is None or problem in found[0]


@pytest.mark.parametrize(("output", "right"), [("3 &lt; 4\n", True), ("3\n", False), ("", False)])
def test_a_page_must_show_what_its_blocks_print(tmp_path, output, right):
    path = tmp_path / "page.html"
    path.write_text(CELL.format(code="x = 3", output="") + CELL.format(code='print(x, "&lt;", 4)', output=output))
    found = list(CHECK.misread(path, 60.0))
    assert (found == []) == right
    path.write_text("<p>nothing to run</p>")
    assert "no executed blocks" in next(CHECK.misread(path, 60.0))


def test_a_page_must_not_take_too_long(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(CELL.format(code="x = 3", output=""))
    assert "more than 0" in next(CHECK.misread(path, 0.0))
