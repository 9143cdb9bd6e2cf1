"""ERASER movie reviews (DeYoung et al. 2020, after Zaidan and Eisner), from their archive as it is published:

    complete-movies-data.tar.xz       */train.jsonl, dev.jsonl, test.jsonl: documents, labels, token spans of evidence
                                      */docs/NAME: one document, its tokens separated by white space

The label is the rating: 1 for positive, 0 for negative. Vectors are GloVe's, of 100 dimensions.
"""

import io
import json
import lzma
import sys
import tarfile
from pathlib import Path
from typing import Any

from gumtrace_experiments.l2x import vectors
from gumtrace_experiments.l2x.reviews import Corpus, Review, Spans, check_spans, find, words

ARCHIVE = "complete-movies-data.tar.xz"
GLOVE = ("glove*.npz", "glove*100d.txt", "glove*100d.txt.gz")
RATINGS = {"NEG": 0.0, "POS": 1.0}
_SPLITS = ("train", "dev", "test")


def load(folder: Path, longest: int) -> Corpus:
    """The three splits, reviews cut off after so many tokens. All are annotated: the test set thoroughly, the others in
    part."""
    archive = find(folder, ARCHIVE)
    glove = next((path for pattern in GLOVE if (path := find(folder, pattern)) is not None), None)
    if archive is None:
        raise ValueError(
            f"l2x: {ARCHIVE} not found in {folder} or a folder inside it: the movie reviews of the ERASER benchmark, "
            "eraserbenchmark.com. Give its folder as --data, or train on made-up reviews with --reviews synthetic"
        )
    if glove is None:
        raise ValueError(
            f"l2x: no word vectors {' or '.join(GLOVE)} in {folder} or a folder inside it: GloVe 6B of 100 dimensions, "
            "nlp.stanford.edu/projects/glove, as text or as an .npz of `words` and `vectors`"
        )
    rows, documents = _unpacked(archive)
    splits = [_reviews(rows[split], documents, longest, f"{archive}, {split}.jsonl") for split in _SPLITS]
    train, valid, test = splits
    return Corpus(train, valid, test, test, vectors.read(glove, words(splits)))


def _unpacked(path: Path) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Lines of the splits, and documents, by name."""
    rows: dict[str, list[str]] = {}
    documents: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(lzma.decompress(path.read_bytes())), mode="r:") as archive:
            for member in archive:
                if not (member.isfile() and (file := archive.extractfile(member))):
                    continue
                place = Path(member.name)
                if place.parent.name == "docs":
                    documents[place.name] = file.read().decode()
                elif place.suffix == ".jsonl":
                    rows[place.stem] = file.read().decode().splitlines()
    except (tarfile.TarError, lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if missing := [split for split in _SPLITS if not rows.get(split)]:
        raise ValueError(f"{path} has no {'.jsonl, no '.join(missing)}.jsonl, or nothing in it")
    return rows, documents


def _reviews(rows: list[str], documents: dict[str, str], longest: int, path: str) -> list[Review]:
    found = []
    for number, line in enumerate(rows, 1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
            name, label = row["annotation_id"], row["classification"]
            evidence = [part for group in row["evidences"] for part in group]
            spans = [(part["start_token"], part["end_token"]) for part in evidence if part["docid"] == name]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{where}: not a review of ERASER: {type(error).__name__}: {str(error)[:80]}") from None
        if not isinstance(name, str) or name not in documents:
            raise ValueError(f"{where}: there is no document {name!r}")
        if not isinstance(label, str) or label not in RATINGS:
            raise ValueError(f"{where}: the label is {' or '.join(RATINGS)}, not {label!r}")
        tokens = documents[name].split()
        found.append(
            Review(tuple(map(sys.intern, tokens[:longest])), RATINGS[label], _cut(spans, tokens, longest, where))
        )
    return found


def _cut(spans: list[tuple[Any, Any]], tokens: list[str], longest: int, where: str) -> Spans:
    if not all(type(end) is int for span in spans for end in span):
        raise ValueError(f"{where}: a span of evidence is not two numbers of tokens")
    inside = check_spans(spans, len(tokens), where)
    return tuple((start, min(end, longest)) for start, end in inside if start < longest)
