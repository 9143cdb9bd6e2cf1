"""Movie reviews, made up in the format of ERASER's archive and real: what is read, and what damage is reported. And
reviews of all sources as integers."""

import json
import lzma
import os
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import review_files
import torch
from damage import check_read
from mutations import MORE, mutated
from review_files import CORPUS, LONGEST, beer_folder, eraser_folder, one_line, refused

from gumtrace_experiments.l2x import eraser
from gumtrace_experiments.l2x.data import NO_VECTOR, load
from gumtrace_experiments.l2x.reviews import Review
from gumtrace_experiments.l2x.synthetic import BLAME, PRAISE, generate

FOLDER = os.environ.get("GUMTRACE_REVIEWS")


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
