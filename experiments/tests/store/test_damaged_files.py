"""Metrics and data that are damaged: one line that says where, and nothing is lost. Links: nothing is written through
them."""

import lzma
import os
import random
from functools import partial

import pytest
from damage import check_read, contents
from mutations import MORE, mutated
from quadratic import Quadratic, QuadraticConfig

from gumtrace_experiments import train
from gumtrace_experiments.listops import data as listops
from gumtrace_experiments.report.records import RecordError, read_run
from gumtrace_experiments.store.errors import RunFolderError
from gumtrace_experiments.store.files import write
from gumtrace_experiments.store.folder import read_metrics
from gumtrace_experiments.treebank import conllu

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = QuadraticConfig(iterations=10)


def trained(out):
    (result,) = train(Quadratic, CONFIG, out, progress=False)
    return {**result, "seconds": 0}


@pytest.fixture
def folder(tmp_path):
    """Of a run that is done but for its result."""
    trained(tmp_path)
    (tmp_path / "seed-0" / "result.json").unlink()
    return tmp_path / "seed-0"


NO_ROWS = [
    "5",
    "{}",
    "null",
    "[]",
    "",
    '{"iteration": 5',
    "\ufffd\ufffd",
    '{"iteration": "5", "split": "valid"}',
    '{"iteration": -5, "split": "valid"}',
    '{"iteration": true, "split": "valid"}',
    '{"iteration": 5.0, "split": "valid"}',
    '{"iteration": 5, "split": 5}',
    '{"iteration": 5, "split": "valid", "score": "high"}',
    '{"iteration": 5, "split": "valid", "score": [1]}',
    '{"iteration": 5, "split": "gradient", "std": 1.0}',
    '{"iteration": 5, "split": "gradient", "moment": "end"}',
    '{"iteration": 5, "split": "gradient", "moment": 3, "std": 1.0}',
    "[" * 100_000,
    "9" * 10_000,
]


@pytest.mark.parametrize("line", NO_ROWS, ids=lambda line: line[:30] or "empty")
@pytest.mark.parametrize("number", [1, 3, 7])
@pytest.mark.slow
def test_a_damaged_line_of_metrics(line, number, folder):
    """The first, one in the middle, the last: all whole lines that a run under way wrote."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    assert len(lines) == 7
    lines[number - 1] = line
    path.write_text("\n".join(lines) + "\n")
    before = contents(folder)
    with pytest.raises(
        RunFolderError, match=rf"metrics\.jsonl, line {number} cannot be read \(.*\): correct the line"
    ) as error:
        trained(folder.parent)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 500
    assert contents(folder) == before
    with pytest.raises(RecordError, match=rf"metrics\.jsonl, line {number}: (damaged, or not JSON|not a)"):
        read_run(folder)


def test_bytes_that_are_no_text(folder):
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"split"', b'"spl\xfft"', 1))
    with pytest.raises(RunFolderError, match=r"line 1 cannot be read \(damaged, or not JSON: 'utf-8' codec"):
        trained(folder.parent)


@pytest.mark.parametrize(
    "rest", ['{"iteration": 15, "spl', "{", '{"iteration": 15, "split": "valid", "score": -1.', "\0" * 9]
)
def test_a_last_line_that_was_cut_off_is_left_out(rest, folder):
    path = folder / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole + rest)
    assert len(read_metrics(path)) == 7
    assert len(read_run(folder).curve["iteration"]) == 2
    trained(folder.parent)
    assert path.read_text() == whole


def test_a_last_line_without_an_end_is_a_row_or_damage(folder):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().removesuffix("\n"))
    assert len(read_metrics(path)) == 7
    path.write_text(path.read_text() + "\n5")
    with pytest.raises(RunFolderError, match=r"line 8 cannot be read .not a JSON object"):
        read_metrics(path)


def test_a_row_of_starts_without_all_of_them(tmp_path):
    config = CONFIG.replace(starts=2, start_iterations=5)
    train(Quadratic, config, tmp_path, progress=False)
    folder = tmp_path / "seed-0"
    (folder / "result.json").unlink()
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"start 1"', '"start 7"'))
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl cannot be read \(its row of starts is incomplete\)"):
        train(Quadratic, config, tmp_path, progress=False)


# Data -----------------------------------------------------------------------------------------------

EXPRESSIONS = b"3\t[MIN 3 [MED 3 5 4 ] 5 ]\n9\t[MAX 3 9 ]\n4\t4\n"
WORDS = (("1", "a", "NOUN", "2"), ("2", "b", "VERB", "0"), ("3", "c", "X", "2"))
SENTENCES = "".join(f"{i}\t{word}\t_\t{tag}\t_\t_\t{head}\t_\t_\t_\n" for i, word, tag, head in WORDS).encode()


@pytest.mark.parametrize("suffix", ["", ".xz"])
@pytest.mark.parametrize(
    ("name", "good", "read"), [("a.tsv", EXPRESSIONS, listops.read), ("a.conllu", SENTENCES, conllu.read)]
)
def test_mutated_data_is_read_or_refused(name, good, read, suffix, tmp_path):
    path, rng = tmp_path / (name + suffix), random.Random(0)
    good = lzma.compress(good) if suffix else good
    found = 0
    for number in range(300 * MORE):
        path.write_bytes(mutated(good, rng))
        found += check_read(partial(read, path), ValueError, path, f"number {number}")
    assert 0 < found < 100 * MORE


# Links ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_a_link_in_place_of_an_unfinished_file(link, tmp_path):
    """What it leads to is not ours."""
    target, path = tmp_path / "precious", tmp_path / "state.pt"
    target.write_text("not to be lost")
    link(target, tmp_path / ".state.pt.part")
    write(path, b"state")
    assert path.read_bytes() == b"state"
    assert not path.is_symlink()
    assert target.read_text() == "not to be lost"
    assert {p.name for p in tmp_path.iterdir()} == {"precious", "state.pt"}


def test_a_run_writes_through_no_links(tmp_path):
    """Wherever a file of it is written beside, and in place of files."""
    target, folder = tmp_path / "precious", tmp_path / "run" / "seed-0"
    target.write_text("not to be lost")
    folder.mkdir(parents=True)
    for name in ("config.json", "metrics.jsonl", "state.pt", "best.pt", "next-best.pt", "result.json"):
        (folder / f".{name}.part").symlink_to(target)
    trained(tmp_path / "run")
    (folder / "result.json").unlink()
    for name in ("state.pt", "metrics.jsonl"):  # written again, in place of themselves
        (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)
    kept = {name: (tmp_path / name).read_bytes() for name in ("state.pt", "metrics.jsonl")}
    trained(tmp_path / "run")
    assert target.read_text() == "not to be lost"
    assert {name: (tmp_path / name).read_bytes() for name in kept} == kept


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path):
    (tmp_path / ".state.pt.part").write_bytes(b"half")
    write(tmp_path / "state.pt", b"whole")
    assert (tmp_path / "state.pt").read_bytes() == b"whole"
    assert [p.name for p in tmp_path.iterdir()] == ["state.pt"]
