"""Files of reviews, made up in the formats of the originals: what is read from them, and what damage is reported."""

import gzip
import hashlib
import json
import random
from functools import partial

import numpy as np
import pytest
import review_files
from damage import check_read
from mutations import MORE, mutated
from review_files import CORPUS, LONGEST, beer_folder, one_line, refused, write_gz

from gumtrace_experiments.l2x import beer, vectors

TRAIN, HELDOUT, ANNOTATIONS, VECTORS = beer.files("aroma")


def without_spans(reviews):
    return [review._replace(spans=None) for review in reviews]


# --- beer reviews ---


@pytest.mark.parametrize("aspect", beer.ASPECTS)
def test_beer_reviews_come_back(tmp_path, aspect):
    """Ratings and spans are those of the aspect, and of no other one."""
    found = beer.load(beer_folder(tmp_path, aspect=aspect), aspect, LONGEST, original=False)
    assert found.train == without_spans(CORPUS.train)
    assert found.valid == without_spans(CORPUS.valid)
    assert found.test == without_spans(CORPUS.test)
    assert found.annotated == CORPUS.annotated
    assert found.vectors.keys() == CORPUS.words() & CORPUS.vectors.keys()
    for word, vector in found.vectors.items():
        assert np.array_equal(vector, CORPUS.vectors[word])


def test_every_aspect_has_its_files():
    names = [beer.files(aspect)[0] for aspect in beer.ASPECTS]
    assert names == [*(f"reviews.aspect{i}.train.txt.gz" for i in range(3)), "reviews.260k.train.txt.gz"]


def test_files_may_lie_in_a_folder_inside(tmp_path):
    (tmp_path / "beer").mkdir()
    beer_folder(tmp_path / "beer")
    assert beer.load(tmp_path, "aroma", LONGEST, original=False).annotated == CORPUS.annotated
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / TRAIN).touch()
    with pytest.raises(ValueError, match=f"found several files {TRAIN}") as error:
        beer.load(tmp_path, "aroma", LONGEST, original=False)
    one_line(error, "keep one of them")


def test_long_reviews_are_cut_off_with_their_spans(tmp_path):
    found = beer.load(beer_folder(tmp_path), "aroma", 7, original=False)
    assert {len(review.tokens) for review in found.train} == {7}
    for review, whole in zip(found.annotated, CORPUS.annotated, strict=True):
        assert review.tokens == whole.tokens[:7]
        assert review.spans == tuple((a, min(b, 7)) for a, b in whole.spans if a < 7)


@pytest.mark.parametrize("missing", beer.files("aroma"))
def test_a_beer_file_that_is_missing(tmp_path, missing):
    (beer_folder(tmp_path) / missing).unlink()
    with pytest.raises(ValueError, match=r"withdrawn by their owner") as error:
        beer.load(tmp_path, "aroma", LONGEST)
    text = one_line(error, str(tmp_path), "--data", "--reviews eraser")
    assert text.startswith(f"l2x: {missing} not found in")


def test_all_missing_files_are_named_at_once(tmp_path):
    with pytest.raises(ValueError, match="not found") as error:
        beer.load(tmp_path, "palate", LONGEST)
    one_line(error, *beer.files("palate"))


def test_annotations_that_are_not_the_original(tmp_path, monkeypatch):
    """They are refused, unless one asks for them; the original, by size and checksum, is taken as it is."""
    content = (beer_folder(tmp_path) / ANNOTATIONS).read_bytes()
    with pytest.raises(ValueError, match="is not the original") as error:
        beer.load(tmp_path, "aroma", LONGEST)
    one_line(error, ANNOTATIONS, f"{len(content):,} bytes", "2,314,369", "bb7bc1746bd133ce", "--no-original")
    digest = hashlib.sha256(content).hexdigest()[:16]
    monkeypatch.setattr(beer, "ORIGINAL", (len(content), digest))
    assert beer.load(tmp_path, "aroma", LONGEST).annotated == CORPUS.annotated
    for other in ((len(content) + 1, digest), (len(content), "0" * 16)):
        monkeypatch.setattr(beer, "ORIGINAL", other)
        with pytest.raises(ValueError, match="is not the original"):
            beer.load(tmp_path, "aroma", LONGEST)


def damaged_lines(good):
    """A line of reviews, and what is wrong with it."""
    head, _, text = good.partition("\t")
    return [
        (good.replace("\t", " "), "expected 5 ratings, a tab and the tokens, got no tab"),
        ("", "expected 5 ratings, a tab and the tokens, got no tab: ''"),
        (f"{head} 0.5\t{text}", "expected 5 ratings, got 6"),
        (f"0.5 0.5 0.5 0.5\t{text}", "expected 5 ratings, got 4"),
        (f"\t{text}", "expected 5 ratings, got 0"),
        (f"0.5 high 0.5 0.5 0.5\t{text}", "the rating 'high' is not a number"),
        (f"0.5 0.5 0.5 0.5 nan\t{text}", "the rating nan is not between 0 and 1"),
        (f"0.5 1.5 0.5 0.5 0.5\t{text}", "the rating 1.5 is not between 0 and 1"),
        (f"-0.1 0.5 0.5 0.5 0.5\t{text}", "the rating -0.1 is not between 0 and 1"),
    ]


GOOD = review_files.beer_line(CORPUS.train[0], 1)


@pytest.mark.parametrize("name", [TRAIN, HELDOUT])
@pytest.mark.parametrize(("line", "message"), damaged_lines(GOOD), ids=lambda x: x[:30])
def test_a_damaged_line_of_reviews(tmp_path, name, line, message):
    write_gz(beer_folder(tmp_path) / name, [GOOD, GOOD, line, GOOD])
    with refused(f"{name}, line 3: {message}"):
        beer.load(tmp_path, "aroma", LONGEST, original=False)


@pytest.mark.parametrize("name", [TRAIN, HELDOUT, VECTORS])
def test_a_gzip_file_that_is_damaged(tmp_path, name):
    path = beer_folder(tmp_path) / name
    content = path.read_bytes()
    for other in (content[:-9], content[:-200], gzip.decompress(content)):
        path.write_bytes(other)
        with pytest.raises(ValueError, match=r"is damaged after line \d+") as error:
            beer.load(tmp_path, "aroma", LONGEST, original=False)
        one_line(error, name)
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(ValueError, match=f"{name.replace('+', '.')} has (no review|a vector for none)"):
        beer.load(tmp_path, "aroma", LONGEST, original=False)


ROW = review_files.annotation(CORPUS.annotated[0], 1)
LENGTH = len(CORPUS.annotated[0].tokens)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "not JSON: '{'"),
        ("", "not JSON: ''"),
        ("[" * 100_000, "not JSON: '[[["),
        ("[]", "expected an object with x (tokens), y (ratings) and spans as '1'"),
        ({key: ROW[key] for key in ("x", "y", "0")}, "expected an object with x (tokens), y (ratings) and spans"),
        ({**ROW, "x": "a b"}, "x is not a list of tokens"),
        ({**ROW, "x": [1, 2]}, "x is not a list of tokens"),
        ({**ROW, "y": [0.5] * 4}, "expected 5 ratings, got 4"),
        ({**ROW, "y": None}, "expected 5 ratings, got 0"),
        ({**ROW, "y": [0.5, None, 0.5, 0.5, 0.5]}, "the rating 'None' is not a number"),
        ({**ROW, "y": [0.5, 0.5, 0.5, 0.5, 2]}, "the rating 2 is not between 0 and 1"),
        ({**ROW, "1": [[0, LENGTH + 1]]}, f"the span [0, {LENGTH + 1}) is not inside of the review, which"),
        ({**ROW, "1": [[-1, 2]]}, "the span [-1, 2) is not inside"),
        ({**ROW, "1": [[4, 2]]}, "the span [4, 2) is not inside"),
        ({**ROW, "1": [[1, 2, 3]]}, "spans are a list of [start, end], got [[1, 2, 3]]"),
        ({**ROW, "1": [[0.5, 2]]}, "spans are a list of [start, end]"),
        ({**ROW, "1": [[True, 2]]}, "spans are a list of [start, end]"),
        ({**ROW, "1": 5}, "spans are a list of [start, end], got 5"),
    ],
    ids=lambda x: str(x)[:30],
)
def test_a_damaged_line_of_annotations(tmp_path, row, message):
    path = beer_folder(tmp_path) / ANNOTATIONS
    lines = path.read_text().splitlines()
    lines[1] = row if isinstance(row, str) else json.dumps(row)
    path.write_text("\n".join(lines) + "\n")
    with refused(f"{ANNOTATIONS}, line 2: {message}"):
        beer.load(tmp_path, "aroma", LONGEST, original=False)


# --- vectors ---


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("word 0.5 0.5", "expected a word and 16 numbers, got 2"),
        ("word", "expected a word and 16 numbers, got 0"),
        (" ".join([CORPUS.train[0].tokens[0], *["x"] * 16]), "could not convert"),
        (" ".join([CORPUS.train[0].tokens[0], *["nan"] * 16]), "is not finite"),
    ],
)
def test_a_damaged_line_of_vectors(tmp_path, line, message):
    path = beer_folder(tmp_path) / VECTORS
    good = gzip.decompress(path.read_bytes()).decode().splitlines()
    write_gz(path, [*good[:3], line, *good[3:]])
    with refused(f"{VECTORS}, line 4: ", message):
        beer.load(tmp_path, "aroma", LONGEST, original=False)


def test_vectors_of_words_that_occur(tmp_path):
    path = tmp_path / "glove.6B.100d.txt"
    path.write_text("a 1 2\nb 3 4\n")
    assert {word: x.tolist() for word, x in vectors.read(path, {"b", "c"}).items()} == {"b": [3, 4]}
    with pytest.raises(ValueError, match="has a vector for none of the 1 words of the reviews"):
        vectors.read(path, {"c"})


@pytest.mark.parametrize("damage", ["cut", "text", "names", "lengths", "nan", "numbers"])
def test_a_damaged_npz(tmp_path, damage):
    path = tmp_path / "glove.npz"
    words, found = np.array(["a", "b"]), np.ones((2, 3), np.float16)
    if damage == "nan":
        found[0, 0] = np.nan
    if damage == "lengths":
        found = found[:1]
    if damage == "numbers":
        words = np.arange(2)
    np.savez(path, **({"w": words, "v": found} if damage == "names" else {"words": words, "vectors": found}))
    if damage in ("cut", "text"):
        path.write_bytes(path.read_bytes()[:-100] if damage == "cut" else b"a 1 2 3\n")
    with refused(str(path)):
        vectors.read(path, {"a"})


# --- any damage ---


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", [TRAIN, ANNOTATIONS, VECTORS])
def test_mutated_beer_files_are_read_or_refused(name, compressed, tmp_path):
    """The file as it is, or the text before it was compressed."""
    path, rng = beer_folder(tmp_path) / name, random.Random(0)
    good = path.read_bytes()
    inside = path.suffix == ".gz" and not compressed
    good = gzip.decompress(good) if inside else good
    found = 0
    for number in range(60 * MORE):
        changed = mutated(good, rng)
        path.write_bytes(gzip.compress(changed) if inside else changed)
        found += check_read(partial(beer.load, tmp_path, "aroma", LONGEST, False), ValueError, path, f"number {number}")
    assert found < 60 * MORE
