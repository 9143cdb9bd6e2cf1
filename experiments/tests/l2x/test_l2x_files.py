"""Files of reviews, made up in the formats of the originals: what is read from them, and what damage is reported."""

import gzip
import hashlib
import json
import lzma
import os
import random
import re
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import review_files
import torch
from damage import check_read
from mutations import MORE, mutated
from review_files import CORPUS, LONGEST, beer_folder, eraser_folder, write_gz

from gumtrace_experiments.l2x import beer, eraser, vectors
from gumtrace_experiments.l2x.data import NO_VECTOR, load
from gumtrace_experiments.l2x.reviews import Review
from gumtrace_experiments.l2x.synthetic import BLAME, PRAISE, generate

FOLDER = os.environ.get("GUMTRACE_REVIEWS")
TRAIN, HELDOUT, ANNOTATIONS, VECTORS = beer.files("aroma")


def one_line(error, *parts):
    """The message, which names the file and is no longer than a line or two."""
    text = str(error.value)
    assert len(text.splitlines()) == 1
    assert len(text) < 600
    for part in parts:
        assert part in text
    return text


@contextmanager
def refused(*parts):
    with pytest.raises(ValueError, match=re.escape(parts[0])) as error:
        yield
    one_line(error, *parts)


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


# --- movie reviews ---


def test_movie_reviews_come_back(tmp_path):
    found = eraser.load(eraser_folder(tmp_path), LONGEST)
    for split in ("train", "valid", "test", "annotated"):
        wanted = [review._replace(rating=float(review.rating > 0.5)) for review in getattr(CORPUS, split)]
        assert getattr(found, split) == wanted
    for word, vector in found.vectors.items():
        assert np.array_equal(vector, CORPUS.vectors[word].astype(np.float16).astype(np.float32))
    cut = eraser.load(tmp_path, 7)
    for review, whole in zip(cut.test, CORPUS.test, strict=True):
        assert (review.tokens, review.spans) == (
            whole.tokens[:7],
            tuple((a, min(b, 7)) for a, b in whole.spans if a < 7),
        )


def test_glove_as_text(tmp_path):
    (eraser_folder(tmp_path) / "glove_small.npz").unlink()
    with pytest.raises(ValueError, match="no word vectors") as error:
        eraser.load(tmp_path, LONGEST)
    one_line(error, "glove*.npz or glove*100d.txt", str(tmp_path))
    rows = [review_files.vector_line(word, vector) for word, vector in CORPUS.vectors.items()]
    (tmp_path / "glove.6B.100d.txt").write_text("\n".join(rows) + "\n")
    found = eraser.load(tmp_path, LONGEST)
    for word, vector in found.vectors.items():
        assert np.array_equal(vector, CORPUS.vectors[word])


def test_an_archive_that_is_missing_or_damaged(tmp_path):
    with pytest.raises(ValueError, match=f"l2x: {eraser.ARCHIVE} not found in") as error:
        eraser.load(tmp_path, LONGEST)
    one_line(error, "--data", "--reviews synthetic")
    path = eraser_folder(tmp_path) / eraser.ARCHIVE
    content = path.read_bytes()
    for other in (content[:-40], content[: len(content) // 2], b"no archive", b""):
        path.write_bytes(other)
        with pytest.raises(ValueError, match=f"{eraser.ARCHIVE} is damaged: "):
            eraser.load(tmp_path, LONGEST)


def test_a_split_that_is_missing(tmp_path):
    eraser_folder(tmp_path, change=lambda name, content: None if name == "dev.jsonl" else content)
    with pytest.raises(ValueError, match=r"has no dev\.jsonl"):
        eraser.load(tmp_path, LONGEST)


MOVIE = review_files.eraser_row("test_001.txt", CORPUS.test[1])
SPAN = {"docid": "test_001.txt", "start_token": 0, "end_token": 1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "not a review of ERASER: JSONDecodeError"),
        ("[]", "not a review of ERASER: TypeError"),
        ({**MOVIE, "annotation_id": "other.txt"}, "there is no document 'other.txt'"),
        ({**MOVIE, "annotation_id": ["a"]}, "there is no document ['a']"),
        ({**MOVIE, "classification": "GOOD"}, "the label is NEG or POS, not 'GOOD'"),
        ({**MOVIE, "classification": None}, "the label is NEG or POS, not None"),
        ({"annotation_id": "test_001.txt"}, "not a review of ERASER: KeyError: 'classification'"),
        ({**MOVIE, "evidences": [[{"docid": "test_001.txt"}]]}, "not a review of ERASER: KeyError: 'start_token'"),
        ({**MOVIE, "evidences": 3}, "not a review of ERASER: TypeError"),
        ({**MOVIE, "evidences": [[{**SPAN, "end_token": 999}]]}, "the span [0, 999) is not inside of the review"),
        ({**MOVIE, "evidences": [[{**SPAN, "end_token": "1"}]]}, "a span of evidence is not two numbers of tokens"),
    ],
    ids=lambda x: str(x)[-30:],
)
def test_a_damaged_row_of_movie_reviews(tmp_path, row, message):
    def change(name, content):
        lines = content.splitlines()
        if name == "test.jsonl":
            lines[1] = row if isinstance(row, str) else json.dumps(row)
        return "\n".join(lines) + "\n"

    eraser_folder(tmp_path, change=change)
    with refused(f"{eraser.ARCHIVE}, test.jsonl, line 2: {message}"):
        eraser.load(tmp_path, LONGEST)


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


def test_mutated_archives_are_read_or_refused(tmp_path):
    path, rng = eraser_folder(tmp_path) / eraser.ARCHIVE, random.Random(0)
    packed = path.read_bytes()
    plain = lzma.decompress(packed)
    for number in range(60 * MORE):
        path.write_bytes(mutated(packed, rng) if number % 2 else lzma.compress(mutated(plain, rng), preset=0))
        check_read(partial(eraser.load, tmp_path, LONGEST), ValueError, path, f"number {number}")


# --- reviews as integers ---


def read(folder, source="eraser", **changes):
    settings = {"aspect": "aroma", "original": False, "longest": LONGEST, "chosen": 3, "synthetic_size": 8, **changes}
    return load(folder, source, **settings)


def test_reviews_become_integers(tmp_path, capsys):
    found = read(eraser_folder(tmp_path))
    for split in ("train", "valid", "test", "annotated"):
        data, reviews = getattr(found, split), found.texts[split]
        assert data.words.shape == data.marked.shape == (len(reviews), LONGEST)
        assert data.lengths.tolist() == [len(review.tokens) for review in reviews]
        assert data.ratings.tolist() == [review.rating for review in reviews]
        assert data.racing.sum(-1).equal(data.lengths)
        for i, review in enumerate(reviews):
            n = len(review.tokens)
            rows = np.stack([CORPUS.vectors[token] for token in review.tokens]).astype(np.float16)
            assert np.array_equal(found.vectors[data.words[i, :n].long()], rows)
            inside = {place for start, end in review.spans for place in range(start, end)}
            assert set(data.marked[i].nonzero().flatten().tolist()) == inside
            assert (data.words[i, n:] == NO_VECTOR).all()
    assert found.are_marked == {"train", "valid", "test", "annotated"}
    assert not found.vectors[NO_VECTOR].any()
    batch = found.test.batch(torch.tensor([2, 0]))
    assert batch.lengths.tolist() == found.test.lengths[[2, 0]].tolist()
    assert all(x.device.type == "meta" for x in (*found.to("meta").test, found.to("meta").vectors))
    assert capsys.readouterr().err == ""
    of_beers = read(beer_folder(tmp_path), "beer")
    assert of_beers.are_marked == {"annotated"}


def test_words_without_a_vector_are_zero(tmp_path):
    few = {word: vector for word, vector in CORPUS.vectors.items() if word in PRAISE}
    found = read(eraser_folder(tmp_path, CORPUS.__class__(**{**vars(CORPUS), "vectors": few})))
    for i, review in enumerate(found.texts["test"]):
        known = [token in PRAISE for token in review.tokens]
        assert (found.test.words[i, : len(known)] != NO_VECTOR).tolist() == known


def test_short_reviews_are_left_out(tmp_path, capsys):
    found = read(eraser_folder(tmp_path), chosen=12)
    short = sum(len(review.tokens) < 12 for review in CORPUS.train)
    assert short > 0
    assert len(found.train.words) == len(CORPUS.train) - short
    assert min(found.train.lengths) >= 12
    assert f"reviews of fewer than 12 tokens are left out: {short} of train, " in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"no review of train or .* has 21 tokens or more: lower --chosen"):
        read(tmp_path, chosen=21)


def test_made_up_reviews(tmp_path, capsys):
    found = read(tmp_path, "synthetic")
    assert (len(found.train.words), len(found.valid.words), len(found.test.words)) == (8, 2, 2)
    assert "8 made-up reviews to train with, and no real language" in capsys.readouterr().err
    corpus = generate(400, 30)
    assert corpus.train == generate(400, 30).train
    for tokens, rating, spans in corpus.train:
        words = [tokens[start] for start, _ in spans]
        assert rating == sum(word in PRAISE for word in words) / len(words)
        inside = {place for start, end in spans for place in range(start, end)}
        assert inside == {place for place, token in enumerate(tokens) if token in PRAISE + BLAME}
    assert isinstance(corpus.test[0], Review)


# --- real files ---


@pytest.mark.skipif(FOLDER is None, reason="needs the archive of ERASER's movie reviews: GUMTRACE_REVIEWS=FOLDER")
def test_the_archive_of_eraser():
    found = eraser.load(Path(FOLDER or ""), 350)
    assert (len(found.train), len(found.valid), len(found.test)) == (1600, 200, 200)
    assert sum(review.rating for review in found.test) == 100
    marked = [sum(end - start for start, end in _merged(r.spans)) / len(r.tokens) for r in found.test]
    assert sum(marked) / len(marked) == pytest.approx(0.263, abs=0.001)


def _merged(spans):
    places = sorted({place for start, end in spans for place in range(start, end)})
    return [(place, place + 1) for place in places]
