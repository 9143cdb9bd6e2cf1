"""What a release says of itself, in several files, is one and the same; and a wrong archive is found."""

import io
import re
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import archives
import distributions
import pytest
import versions

import gumtrace

ROOT = Path(__file__).parents[1]


def text(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def project(folder: str = ".") -> dict:
    return tomllib.loads(text(f"{folder}/pyproject.toml"))["project"]


def test_one_version():
    said = {
        "CITATION.cff": re.findall(r"^version: (\S+)$", text("CITATION.cff"), re.MULTILINE),
        "CHANGELOG.md": re.findall(r"^## (\d\S+)", text("CHANGELOG.md"), re.MULTILINE)[:1],
        "experiments": re.findall(r"gumtrace\[cli,plot\]==([\d.]+)", " ".join(project("experiments")["dependencies"])),
    }
    assert said == {file: [gumtrace.__version__] for file in said}


def test_both_distributions_have_one_version():
    experiments = pytest.importorskip("gumtrace_experiments", reason="gumtrace-experiments is not installed")
    assert experiments.__version__ == gumtrace.__version__


def test_one_date():
    (cited,) = re.findall(r"^date-released: (\d{4}-\d\d-\d\d)$", text("CITATION.cff"), re.MULTILINE)
    assert re.findall(r"^## \d\S+ \((.+)\)$", text("CHANGELOG.md"), re.MULTILINE)[0] == cited


def test_one_address():
    urls = project()["urls"]
    assert urls["Repository"].startswith("https://")
    assert all(url.startswith(urls["Repository"]) for url in urls.values())
    assert project("experiments")["urls"] == {"Repository": urls["Repository"]}


def test_the_paper_is_cited_as_in_the_readme():
    cited = text("CITATION.cff")
    (bibtex,) = re.findall(r"```bibtex\n(.+?)```", text("README.md"), re.DOTALL)
    field = dict(re.findall(r"(\w+) += \{(.+)\},", bibtex.replace("{Gumbel-Max}", "Gumbel-Max")))
    names = zip(*(re.findall(rf"{part}-names: (.+)", cited) for part in ("family", "given")), strict=True)
    assert " and ".join(map(", ".join, names)) == field["author"]
    for key, value in (("title", "title"), ("collection-title", "booktitle"), ("volume", "volume"), ("year", "year")):
        assert f"  {key}: {field[value]}\n" in cited


def test_the_page_of_supported_versions():
    page = text("docs/support.md")
    low, *_, high = versions.pythons()
    oldest, of_experiments = (
        dict(pin.split(";")[0].split("==") for pin in versions.oldest_versions(ROOT / folder))
        for folder in (".", "experiments")
    )
    newest = distributions.torch().removeprefix("torch==")
    numba = re.search(r"<0\.(\d+)", " ".join(project()["dependencies"]))
    tested = re.findall(r"Python :: (3\.\d+)", " ".join(project()["classifiers"]))
    for line in (
        f"| Python | {low} to {high} | {tested[0]} |",
        f"| | | {', '.join(tested[1:])} |",
        f"| torch | {oldest['torch']} or newer | {oldest['torch']}.0 and {newest} | every release;",
        f"| numba | {oldest['numba']} to 0.{int(numba[1]) - 1} |",
        f"| numpy | {oldest['numpy']} or newer |",
        f"| Triton, for CUDA only | {oldest['triton']} or newer,",
        f"pyro-ppl {oldest['pyro-ppl']} or newer",
        f"the same version as gumtrace, torch {of_experiments['torch']} or newer",
    ):
        assert line in page


@pytest.mark.parametrize("name", ["bug", "wrong_number"])
def test_templates_ask_for_versions_by_a_command_that_works(name, capsys):
    (code,) = re.findall(r'`python -c "(.+)"`', text(f".github/ISSUE_TEMPLATE/{name}.yml"))
    exec(code, {})
    assert gumtrace.__version__ in capsys.readouterr().out


# Archives ------------------------------------------------------------------------------------------

METADATA = """Metadata-Version: 2.4
Name: {name}
Version: 1.2
Summary: A
Author: B
License-Expression: Apache-2.0
License-File: LICENSE
Classifier: Typing :: Typed
Requires-Python: >=3.11
Requires-Dist: gumtrace[cli,plot]==1.2
Project-URL: Repository, https://example.org
Description-Content-Type: text/markdown

See [this](https://example.org/x.md).
"""


def contents(name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Files of a wheel and of its sdist, as they should be."""
    package, metadata = archives.PACKAGES[name], METADATA.format(name=name)
    code = {f"{package}/__init__.py": "", f"{package}/py.typed": ""}
    info = {"METADATA": metadata, "licenses/LICENSE": "x", "entry_points.txt": "gumtrace = x", "RECORD": ""}
    built = code | {f"{package}-1.2.dist-info/{file}": body for file, body in info.items()}
    source = {f"src/{file}": body for file, body in code.items()} | {
        "PKG-INFO": metadata,
        f"src/{package}/fuzz/x.py": "",
    }
    return built, source | dict.fromkeys(("pyproject.toml", "README.md", "LICENSE"), "")


def write(folder: Path, change=None) -> list[str]:
    """The archives of a release in which `change` alters the files of one; returns what is wrong with them."""
    for name in archives.PACKAGES:
        built, source = contents(name)
        if change is not None:
            change(name, built, source)
        with zipfile.ZipFile(folder / archives.wheel(name, "1.2"), "w") as archive:
            for file, body in built.items():
                archive.writestr(file, body)
        with tarfile.open(folder / archives.sdist(name, "1.2"), "w:gz") as archive:
            for file, body in source.items():
                member = tarfile.TarInfo(f"{archives.PACKAGES[name]}-1.2/{file}")
                member.size = len(body.encode())
                archive.addfile(member, io.BytesIO(body.encode()))
    return archives.problems(folder, "1.2", contents("gumtrace")[1].keys() - {"PKG-INFO"})


def test_right_archives(tmp_path):
    assert write(tmp_path) == []


def test_archives_that_are_missing(tmp_path):
    write(tmp_path)
    (tmp_path / archives.wheel("gumtrace", "1.2")).unlink()
    (problem,) = archives.problems(tmp_path, "1.2", None)
    assert "where it should hold gumtrace-1.2-py3-none-any.whl" in problem


INFO = "gumtrace-1.2.dist-info"
FAULTS = {
    "Version is 1.3, not 1.2": lambda built, _: replace(built, f"{INFO}/METADATA", "Version: 1.2", "Version: 1.3"),
    "link docs/x.md is not absolute": lambda built, _: replace(
        built, f"{INFO}/METADATA", "https://example.org/x.md", "docs/x.md"
    ),
    "Typing :: Typed is missing": lambda built, _: replace(built, f"{INFO}/METADATA", "Typing", "Tasting"),
    "address is missing": lambda built, _: replace(built, f"{INFO}/METADATA", "Repository, https", "Repository, ftp"),
    "the licence is missing": lambda built, _: built.pop(f"{INFO}/licenses/LICENSE"),
    "the entry points are missing": lambda built, _: built.pop(f"{INFO}/entry_points.txt"),
    "py.typed is missing": lambda built, _: built.pop("gumtrace/py.typed"),
    "gumtrace/fuzz/x.py does not belong there": lambda built, _: built.update({"gumtrace/fuzz/x.py": ""}),
    "tests/test_x.py does not belong there": lambda built, _: built.update({"tests/test_x.py": ""}),
    "gumtrace/y.py is missing": lambda _, source: source.update({"src/gumtrace/y.py": ""}),
    "README.md is missing": lambda _, source: source.pop("README.md"),
    "notes.txt is not in the repository": lambda _, source: source.update({"notes.txt": ""}),
}


def replace(files: dict[str, str], file: str, old: str, new: str) -> None:
    assert old in files[file]
    files[file] = files[file].replace(old, new)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_archives_are_found(tmp_path, fault):
    def change(name, built, source):
        if name == "gumtrace":
            FAULTS[fault](built, source)

    assert any(fault in problem for problem in write(tmp_path, change))


def test_experiments_that_require_another_version_are_found(tmp_path):
    def change(name, built, source):
        if name != "gumtrace":
            replace(source, "PKG-INFO", "gumtrace[cli,plot]==1.2", "gumtrace[cli,plot]>=1.2")

    assert write(tmp_path, change) == ["gumtrace_experiments-1.2.tar.gz: it does not require gumtrace==1.2"]


# The script ----------------------------------------------------------------------------------------


def test_environments(monkeypatch):
    monkeypatch.setattr(versions, "interpreter", lambda version: version if version in ("3.11", "3.13") else None)
    all_four = distributions.environments([])
    names = ["gumtrace", "gumtrace-experiments"]
    assert list(all_four) == [(name, age) for age in ("oldest", "newest") for name in names]
    assert all_four["gumtrace", "oldest"] == ("3.11", versions.oldest_versions())
    pins = [[pin for pin in all_four[name, "oldest"][1] if pin.startswith("torch==")] for name in names]
    assert pins == [["torch==2.5"], ["torch==2.7"]]  # the experiments need a newer one
    assert [all_four[name, "newest"] for name in names] == [("3.13", [distributions.torch()])] * 2
    assert list(distributions.environments(["newest"])) == [(name, "newest") for name in names]
    assert list(distributions.environments([names[1], "oldest"])) == [(names[1], "oldest")]
    with pytest.raises(SystemExit, match="latest: there are oldest, newest, gumtrace, gumtrace-experiments"):
        distributions.environments(["latest", "oldest"])


def test_tests_that_are_left_out_exist():
    assert all((ROOT / test.partition("::")[0]).exists() for test in distributions.LEFT_OUT)


@pytest.mark.parametrize(("status", "failed"), [(0, 0), (2, 1)])
def test_a_test_run_that_was_cut_short_has_failed(tmp_path, monkeypatch, status, failed):
    """Its report names the tests that passed until then, and no failure."""

    def run(command, **_):
        (report,) = [word.partition("=")[2] for word in command if str(word).startswith("--junitxml")]
        counts = 'tests="3" failures="0" errors="0" skipped="1"'
        Path(report).write_text(f"<testsuites><testsuite {counts}/></testsuites>", encoding="utf-8")
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(distributions.subprocess, "run", run)
    counts = distributions.run_tests(Path("python"), "gumtrace", tmp_path / "tests")
    assert counts == {"passed": 2, "failed": failed, "skipped": 1, "seconds": 0}
