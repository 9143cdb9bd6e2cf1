"""Word vectors from files: text, one word with its numbers a line, or an .npz of words and vectors."""

import gzip
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

Vectors = dict[str, np.ndarray]  # (size,) float32


def read(path: Path, wanted: Collection[str]) -> Vectors:
    """Vectors of the words that are wanted, as far as the file has them."""
    found = _read_npz(path, wanted) if path.suffix == ".npz" else _read_text(path, wanted)
    if not found:
        raise ValueError(f"{path} has a vector for none of the {len(wanted):,} words of the reviews")
    return found


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file, compressed by gzip if it is called so, with their numbers."""
    opener = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8", errors="replace", newline="\n") as file:
            for number, line in enumerate(file, 1):
                yield number, str(line).rstrip("\r\n")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged after line {number}: {error}") from error


def _read_text(path: Path, wanted: Collection[str]) -> Vectors:
    found: Vectors = {}
    size = None
    for number, line in lines(path):
        word, *numbers = line.rstrip(" ").split(" ")
        size = size or len(numbers)
        if not numbers or len(numbers) != size:
            raise ValueError(f"{path}, line {number}: expected a word and {size or 'its'} numbers, got {len(numbers)}")
        if word in wanted:
            try:
                vector = np.array(numbers, dtype=np.float32)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            if not np.isfinite(vector).all():
                raise ValueError(f"{path}, line {number}: a number of {word!r} is not finite")
            found[word] = vector
    return found


def _read_npz(path: Path, wanted: Collection[str]) -> Vectors:
    try:
        with path.open("rb") as content, np.load(content) as file:  # np.load leaves open what it cannot read
            names, vectors = file["words"], file["vectors"]
    except (KeyError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read as an .npz of `words` and `vectors`: {error}") from error
    if names.ndim != 1 or vectors.ndim != 2 or len(names) != len(vectors) or names.dtype.kind != "U":
        raise ValueError(f"{path}: words {names.shape} and vectors {vectors.shape} do not fit each other")
    kept = [i for i, word in enumerate(names.tolist()) if word in wanted]
    vectors = vectors[kept].astype(np.float32)
    if not np.isfinite(vectors).all():
        raise ValueError(f"{path}: a vector is not finite")
    return dict(zip(names[kept].tolist(), vectors, strict=True))
