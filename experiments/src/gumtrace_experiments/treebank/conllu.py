"""CoNLL-U, the format of Universal Dependencies: one word a line in ten columns, an empty line after each sentence."""

import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# fmt: off
TAGS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM",
    "PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X",
)
# fmt: on
PUNCTUATION = "PUNCT"
_COLUMNS = 10
_ID, _FORM, _TAG, _HEAD = 0, 1, 3, 6  # columns
_DIGITS = 9  # of a number, at most: Python refuses to read those of thousands


class Sentence(NamedTuple):
    """Words, their universal tags, and the place of each word's head: 1 is the first word, 0 says it is the root."""

    forms: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...]


class _Row(NamedTuple):
    form: str
    tag: str
    head: int
    line: int


def read(path: str | Path) -> list[Sentence]:
    """All sentences of a file, `.conllu` or `.conllu.xz`. Every tree is checked; errors name the line.

    Ranges of words that are written as one (`3-4`) and empty nodes (`8.1`) are left out: they have no head.
    """
    path = Path(path)
    found = [_sentence(rows, path) for rows in _blocks(path)]
    if not found:
        raise ValueError(f"{path} has no sentence")
    return found


def check(heads: tuple[int, ...]) -> tuple[int, str] | None:
    """What keeps heads from being a tree with one root, after the place of a word that shows it; None if they are one.

    >>> check((2, 0, 2)), check((2, 1))
    (None, (1, 'no word is the root, with head 0'))
    >>> check((0, 3, 2))
    (2, 'words 2 and 3 go around in a circle')
    """
    for place, head in enumerate(heads, 1):
        if not 0 <= head <= len(heads):
            return place, f"head {head} is not one of the {len(heads)} words"
    roots = [place for place, head in enumerate(heads, 1) if head == 0]
    if not roots:
        return 1, "no word is the root, with head 0"
    if len(roots) > 1:
        return roots[1], f"words {_listed(roots)} are all roots, with head 0; a sentence has one"
    good = {0}
    for place in range(1, len(heads) + 1):
        path = []
        while place not in good and place not in path:
            path.append(place)
            place = heads[place - 1]
        if place not in good:
            circle = sorted(path[path.index(place) :])
            if len(circle) == 1:
                return place, f"word {place} is its own head"
            return circle[0], f"words {_listed(circle)} go around in a circle"
        good.update(path)
    return None


def _listed(places: list[int]) -> str:
    return f"{', '.join(map(str, places[:-1]))} and {places[-1]}"


def _blocks(path: Path) -> Iterator[list[_Row]]:
    """The words of each sentence."""
    rows: list[_Row] = []
    for number, line in _lines(path):
        if line and not line.startswith("#"):
            row = _row(line, len(rows) + 1, number, path)
            rows += [row] if row is not None else []
        elif not line and rows:
            yield rows
            rows = []
    if rows:  # the last empty line may be missing
        yield rows


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    opener = lzma.open if path.suffix == ".xz" else open
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8-sig") as file:  # with a byte order mark or without
            for number, line in enumerate(file, 1):
                yield number, str(line).rstrip("\r\n")
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged after line {number}: {error}") from error


def _row(line: str, place: int, number: int, path: Path) -> _Row | None:
    """The word in a line, which should be this one of its sentence; None for a range or an empty node."""
    where = f"{path}, line {number}"
    columns = line.split("\t")
    if len(columns) != _COLUMNS:
        raise ValueError(f"{where}: a word has {_COLUMNS} columns with tabs between, not {len(columns)}: {line[:40]!r}")
    name, tag, head = columns[_ID], columns[_TAG], columns[_HEAD]
    if not name.isdecimal():
        if all(part.isdecimal() for part in name.split("-", 1)) or all(part.isdecimal() for part in name.split(".", 1)):
            return None
        raise ValueError(f"{where}: words are numbered 1, 2, ..., ranges are 3-4 and empty nodes 8.1, not {name!r}")
    if not _is_number(name) or int(name) != place:
        raise ValueError(f"{where}: expected word {place} of the sentence, got word {name[:40]}")
    if not columns[_FORM]:
        raise ValueError(f"{where}: word {name} is empty")
    if tag not in TAGS:
        raise ValueError(f"{where}: unknown tag {tag!r}: universal tags are {' '.join(TAGS)}")
    if not _is_number(head):
        raise ValueError(f"{where}: the head of a word is the number of another one, or 0, not {head[:40]!r}")
    return _Row(columns[_FORM], tag, int(head), number)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _DIGITS


def _sentence(rows: list[_Row], path: Path) -> Sentence:
    forms, tags, heads, lines = zip(*rows, strict=True)
    if wrong := check(heads):
        place, problem = wrong
        raise ValueError(f"{path}, line {lines[place - 1]}: {problem}")
    return Sentence(forms, tags, heads)
