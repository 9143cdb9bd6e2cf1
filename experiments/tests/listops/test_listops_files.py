"""The original files of ListOps, and files made up in their format."""

import lzma
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from listops_oracle import rewritten

from gumtrace_experiments.listops.data import read, read_folder
from gumtrace_experiments.listops.expressions import OPERATORS, answers, evaluate, heads, parse, unparse
from gumtrace_experiments.listops.sampling import SAMPLED

CONTENT = """7\t( ( ( ( [MAX 1 ) 7 ) 2 ) ] )
4\t( ( ( [SM 9 ) 5 ) ] )
2\t( ( ( [MIN 3 ) ( ( ( [FIRST 2 ) 8 ) ] ) ) ] )
3\t( ( ( ( [MED 3 ) 5 ) ( ( ( [MIN 2 ) 3 ) ] ) ) ] )
"""
# The original test sets: rows, rows without summod, and rows with the paper's operators only.
ORIGINAL = {"test": (500, 500, 93), "test_d5c": (10_000, 6_481, 1_745), "test_d8": (10_000, 10_000, 1_476)}
FOLDER = os.environ.get("GUMTRACE_LISTOPS")


def texts(split):
    return [unparse(tokens) for tokens in split.tokens]


def written(folder, content=CONTENT, name="small.tsv"):
    path = folder / name
    path.write_bytes(lzma.compress(content.encode()) if name.endswith(".xz") else content.encode())
    return path


@pytest.mark.parametrize("name", ["small.tsv", "small.tsv.xz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_line(tmp_path, name, end):
    split = read(str(written(tmp_path, CONTENT.replace("\n", end), name)))
    assert texts(split) == [
        "[MAX 1 7 2 ]",
        "[SM 9 5 ]",
        "[MIN 3 [FIRST 2 8 ] ]",
        "[MED 3 5 [MIN 2 3 ] ]",
    ]
    assert split.tokens.shape == (4, 8)
    assert split.lengths.tolist() == [5, 4, 7, 8]
    assert split.answers.tolist() == [7, 4, 2, 3]
    assert split.heads[2].tolist() == [-1, 0, 0, 2, 2, 2, 0, -2]
    assert [tensor.dtype for tensor in split] == [torch.uint8, torch.int64, torch.int64, torch.int16]


@pytest.mark.parametrize("name", ["small.tsv", "small.tsv.xz"])
def test_a_mark_before_and_empty_lines_after(tmp_path, name):
    plain = read(written(tmp_path, CONTENT, name))
    for content in ("\ufeff" + CONTENT, CONTENT + "\n", CONTENT + "\r\n\n", CONTENT.rstrip("\n")):
        for ours, theirs in zip(read(written(tmp_path, content, name)), plain, strict=True):
            assert torch.equal(ours, theirs)


def test_what_is_left_out_is_said(tmp_path, capsys):
    path = written(tmp_path)
    read(path)
    assert capsys.readouterr().err == ""
    read(path, SAMPLED, max_length=7)
    message = f"{path}: 3 of 4 expressions are left out; the others have only [MIN [MAX [MED and at most 7 tokens\n"
    assert capsys.readouterr().err == message


# --- a folder of them ---


def lines(*texts):
    return "".join(f"{rewritten(text)}\t{text}\n" for text in texts)


def test_a_folder(tmp_path):
    several = [f"[MIN {a} {b} ]" for a in range(5) for b in range(5)]
    twice = [several[0], *several, "[SM 1 2 ]", "[MAX [MIN 1 2 ] [MIN 1 2 ] 3 ]", several[7]]
    written(tmp_path, lines(*twice), "train_d20s.tsv")
    written(tmp_path, lines("[MAX 9 ]", several[3], "[MAX 9 ]"), "test_d20s.tsv.xz")
    found = read_folder(tmp_path, longest=10)
    rest = several[:3] + several[4:]
    assert texts(found.valid) == rest[::10]
    assert texts(found.train) == [text for i, text in enumerate(rest) if i % 10]
    assert texts(found.test) == ["[MAX 9 ]", several[3], "[MAX 9 ]"]
    assert {split.tokens.shape[1] for split in (found.train, found.valid, found.test)} == {10}
    assert found.train.answers.tolist() == [rewritten(text) for text in texts(found.train)]


def test_a_folder_without_them(tmp_path):
    with pytest.raises(ValueError, match=r"has no train\*.tsv \(or .tsv.xz\): .*--data.*leave out --original"):
        read_folder(tmp_path, 10)
    for name in ("train.tsv", "test.tsv", "test_d8.tsv.xz"):
        written(tmp_path, lines("[MAX 9 ]"), name)
    with pytest.raises(ValueError, match=r"several files test\*.tsv: .*test.tsv, .*test_d8.tsv.xz; keep one"):
        read_folder(tmp_path, 10)
    (tmp_path / "test_d8.tsv.xz").unlink()
    with pytest.raises(ValueError, match=r"train.tsv: of its expressions only 0 can be trained and validated with"):
        read_folder(tmp_path, 10)


def test_some_operators(tmp_path):
    path = written(tmp_path)
    assert texts(read(path, SAMPLED)) == ["[MAX 1 7 2 ]", "[MED 3 5 [MIN 2 3 ] ]"]
    assert len(read(path, set(OPERATORS) - {"[SM"}).answers) == 3
    with pytest.raises(ValueError, match=r"unknown operator 'MIN': choose from \[MIN "):
        read(path, ["MIN"])


def test_some_lengths(tmp_path):
    path = written(tmp_path)
    assert read(path, max_length=12).tokens.shape == (4, 12)
    assert read(path, max_length=7).tokens.shape == (3, 7)
    assert texts(read(path, max_length=5)) == ["[MAX 1 7 2 ]", "[SM 9 5 ]"]
    for nothing in ({"max_length": 3}, {"operators": ["[PM"]}):
        with pytest.raises(ValueError, match=r"small\.tsv: none of 4 expressions is left"):
            read(path, **nothing)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "expected a digit, a tab and an expression, got ''"),
        ("7 [MAX 1 7 ]", "expected a digit, a tab and an expression"),
        ("12\t[MAX 1 7 ]", "expected a digit, a tab and an expression"),
        ("x\t[MAX 1 7 ]", "expected a digit, a tab and an expression"),
        ("\t[MAX 1 7 ]", "expected a digit, a tab and an expression"),
        ("7\t", "the line has no expression"),
        ("7\t( [MAX 1 ) 7 [AVG 2 ] ]", r"column 16, token 4 of 7, '\[AVG': unknown"),
        ("7\t[MAX 1 7", r"column 3, token 1 of 3, '\[MAX': it is never closed"),
        ("7\t[MAX 1 7 ]\t3", "column 14, token 5 of 5, '3': the expression ends before it"),
        ("7\t( ( [MAX 1 ) 7 ]", r"column 3, '\(': it is never closed"),
        ("1\t[MAX 1 7 ]", "the value of the expression is 7, not 1"),
    ],
)
@pytest.mark.parametrize("name", ["small.tsv", "small.tsv.xz"])
def test_a_line_that_is_wrong(tmp_path, name, line, message):
    path = written(tmp_path, CONTENT + line + "\n" + CONTENT, name)
    with pytest.raises(ValueError, match=rf"{name}, line 5: {message}"):
        read(path, SAMPLED)  # lines with other operators are read all the same


def test_a_file_that_is_damaged(tmp_path):
    path = written(tmp_path, CONTENT, "small.tsv.xz")
    content = path.read_bytes()
    for other in (content[:-20], b"xz" + content, CONTENT.encode()):
        path.write_bytes(other)
        with pytest.raises(ValueError, match=r"small\.tsv\.xz is damaged after line \d"):
            read(path)
    path = written(tmp_path)
    path.write_bytes(CONTENT.encode() + b"7\t\xff\n")
    with pytest.raises(ValueError, match=r"small\.tsv is damaged after line \d"):
        read(path)
    path.write_text("")
    with pytest.raises(ValueError, match="none of 0 expressions is left"):
        read(path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "other.tsv")


@pytest.mark.skipif(not FOLDER, reason="GUMTRACE_LISTOPS does not name a folder with the original test sets")
@pytest.mark.parametrize("name", ORIGINAL)
def test_the_original_files(name):
    """Every recorded value, by all three evaluators; every head, by both ways to find them."""
    (path,) = Path(FOLDER or "").glob(f"{name}.tsv*")
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt") as file:
        recorded, lines = zip(*(line.rstrip("\n").split("\t") for line in file), strict=True)
    split = read(path)
    tokens = split.tokens.numpy()
    assert split.answers.tolist() == answers(tokens).tolist() == [int(answer) for answer in recorded]
    for row, head, answer, line in zip(tokens, heads(tokens), recorded, lines, strict=True):
        assert unparse(row) == " ".join(word for word in line.split() if word not in "()")
        assert evaluate(row) == rewritten(unparse(row)) == int(answer)
        assert np.trim_zeros(head + 2).tolist() == (parse(line).heads + 2).tolist()
    without_summod = [operator for operator in OPERATORS if operator != "[SM"]
    assert tuple(len(read(path, some).answers) for some in (OPERATORS, without_summod, SAMPLED)) == ORIGINAL[name]
