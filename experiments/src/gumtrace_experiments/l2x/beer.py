"""The original files of the beer reviews (Lei et al. 2016; BeerAdvocate, withdrawn by its owner), read as they are.

    reviews.aspect1.train.txt.gz      a review a line: five ratings in [0, 1], a tab, the tokens, spaces between
    reviews.aspect1.heldout.txt.gz    the same
    annotations.json                  a review a line: tokens "x", ratings "y", and spans of each aspect, "0" to "4"
    review+wiki.filtered.200.txt.gz   a word a line, with 200 numbers

The order of ratings and spans is appearance, aroma, palate, taste, overall. Reviews of the first three aspects are
decorrelated sets, one for each. There is none for taste, which is learned from reviews.260k, the set of all aspects.
"""

import hashlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from gumtrace_experiments.l2x import vectors
from gumtrace_experiments.l2x.reviews import Corpus, Review, Spans, check_spans, find, words

Aspect = Literal["appearance", "aroma", "palate", "taste"]
ASPECTS: tuple[str, ...] = get_args(Aspect)
RATINGS = 5  # of a review: the aspects, and overall
ANNOTATIONS = "annotations.json"
VECTORS = "review+wiki.filtered.200.txt.gz"
_ALL_ASPECTS = "260k"  # in the name of the set that is not decorrelated
# Size in bytes, and how sha256 begins; of the other files we know neither.
ORIGINAL = (2_314_369, "bb7bc1746bd133ce")


def files(aspect: str) -> tuple[str, str, str, str]:
    """Names of what an aspect needs: training, held out, annotations, vectors.

    >>> files("aroma")[0], files("taste")[0]
    ('reviews.aspect1.train.txt.gz', 'reviews.260k.train.txt.gz')
    """
    place = ASPECTS.index(aspect)
    part = _ALL_ASPECTS if aspect == "taste" else f"aspect{place}"
    return f"reviews.{part}.train.txt.gz", f"reviews.{part}.heldout.txt.gz", ANNOTATIONS, VECTORS


def load(folder: Path, aspect: str, longest: int, original: bool = True) -> Corpus:
    """The reviews of an aspect. Of those held out every other one validates, the rest tests; subset precision is
    counted on the annotations, which are no part of either.

    Args:
        longest: tokens of a review; the rest is cut off.
        original: refuse annotations that are not the original ones.
    """
    found = {name: find(folder, name) for name in files(aspect)}
    paths = [path for path in found.values() if path is not None]
    if len(paths) < len(found):
        missing = ", ".join(name for name, path in found.items() if path is None)
        raise ValueError(
            f"l2x: {missing} not found in {folder} or a folder inside it. The beer reviews were withdrawn by their "
            "owner and cannot be downloaded: if you have the original files of Lei et al. (2016), give their folder as "
            "--data; or train on movie reviews with --reviews eraser"
        )
    train, heldout, annotations, embedding = paths
    if original:
        _check_original(annotations)
    place = ASPECTS.index(aspect)
    splits = [list(read_reviews(path, place, longest)) for path in (train, heldout)]
    annotated = list(read_annotations(annotations, place, longest))
    for path, split in zip((train, heldout, annotations), (*splits, annotated), strict=True):
        if not split:
            raise ValueError(f"{path} has no review")
    of_words = vectors.read(embedding, words((*splits, annotated)))
    return Corpus(splits[0], splits[1][::2], splits[1][1::2], annotated, of_words)


def _check_original(path: Path) -> None:
    content, (size, digest) = path.read_bytes(), ORIGINAL
    found = hashlib.sha256(content).hexdigest()[: len(digest)]
    if (len(content), found) != ORIGINAL:
        raise ValueError(
            f"{path} is not the original: it has {len(content):,} bytes and sha256 {found}..., the original has "
            f"{size:,} and {digest}... Numbers would not be comparable with those of others; --no-original uses it "
            "all the same, in a table of its own"
        )


def read_reviews(path: Path, place: int, longest: int) -> Iterator[Review]:
    """The reviews of a file with the rating of one aspect."""
    for number, line in vectors.lines(path):
        where = f"{path}, line {number}"
        head, tab, text = line.partition("\t")
        if not tab:
            raise ValueError(f"{where}: expected {RATINGS} ratings, a tab and the tokens, got no tab: {line[:40]!r}")
        ratings = _ratings(head.split(), where)
        yield Review(tuple(map(sys.intern, text.split()[:longest])), ratings[place])


def read_annotations(path: Path, place: int, longest: int) -> Iterator[Review]:
    """The annotated reviews, with the spans of one aspect. Spans behind the end of a review that is cut off go, too."""
    for number, line in vectors.lines(path):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError(f"{where}: not JSON: {line[:40]!r}") from None
        if not isinstance(row, dict) or not {"x", "y", str(place)} <= row.keys():
            raise ValueError(f"{where}: expected an object with x (tokens), y (ratings) and spans as {str(place)!r}")
        tokens = row["x"]
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise ValueError(f"{where}: x is not a list of tokens")
        rating = _ratings(row["y"] if isinstance(row["y"], list) else [], where)[place]
        spans = _spans(row[str(place)], len(tokens), where)
        kept = tuple((start, min(end, longest)) for start, end in spans if start < longest)
        yield Review(tuple(map(sys.intern, tokens[:longest])), rating, kept)


def _ratings(values: list[Any], where: str) -> list[float]:
    if len(values) != RATINGS:
        raise ValueError(f"{where}: expected {RATINGS} ratings, got {len(values)}")
    found = []
    for value in values:
        try:
            rating = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{where}: the rating {str(value)[:40]!r} is not a number") from None
        if not (math.isfinite(rating) and 0 <= rating <= 1):
            raise ValueError(f"{where}: the rating {value} is not between 0 and 1")
        found.append(rating)
    return found


def _spans(value: Any, length: int, where: str) -> Spans:
    pairs = isinstance(value, list) and all(
        isinstance(span, list) and len(span) == 2 and all(type(end) is int for end in span) for span in value
    )
    if not pairs:
        raise ValueError(f"{where}: spans are a list of [start, end], got {str(value)[:40]}")
    return check_spans(value, length, where)
