"""Small files of reviews in the formats of the originals: beer reviews, and the archive of ERASER's movie reviews."""

import gzip
import io
import json
import lzma
import re
import tarfile
from contextlib import contextmanager

import numpy as np
import pytest

from gumtrace_experiments.l2x import beer, eraser
from gumtrace_experiments.l2x.synthetic import generate

LONGEST = 20
CORPUS = generate(48, LONGEST)
SIZE = 16  # of a vector


def beer_folder(folder, corpus=CORPUS, aspect="aroma"):
    """All files that an aspect needs. Its rating is the review's, the others are 0.5; other aspects have no spans."""
    train, heldout, annotations, vectors = beer.files(aspect)
    place = beer.ASPECTS.index(aspect)
    pairs = [review for pair in zip(corpus.valid, corpus.test, strict=True) for review in pair]
    for name, reviews in ((train, corpus.train), (heldout, pairs)):
        write_gz(folder / name, [beer_line(review, place) for review in reviews])
    rows = [json.dumps(annotation(review, place)) for review in corpus.annotated]
    (folder / annotations).write_text("".join(f"{row}\n" for row in rows))
    write_gz(folder / vectors, [vector_line(word, vector) for word, vector in corpus.vectors.items()])
    return folder


def beer_line(review, place):
    ratings = [0.5] * beer.RATINGS
    ratings[place] = review.rating
    return f"{' '.join(map(repr, ratings))}\t{' '.join(review.tokens)}"


def annotation(review, place):
    ratings = [0.5] * beer.RATINGS
    ratings[place] = review.rating
    spans = {str(i): [] for i in range(beer.RATINGS)}
    return {"x": list(review.tokens), "y": ratings, **spans, str(place): [list(span) for span in review.spans]}


def vector_line(word, vector):
    return " ".join([word, *(repr(float(x)) for x in vector)])


def write_gz(path, lines):
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def eraser_folder(folder, corpus=CORPUS, change=lambda name, content: content):
    """The archive and vectors; `change` may replace the content of a member of the archive, or drop it by None."""
    members = {}
    for split, reviews in (("train", corpus.train), ("dev", corpus.valid), ("test", corpus.test)):
        rows = []
        for i, review in enumerate(reviews):
            name = f"{split}_{i:03}.txt"
            members[f"docs/{name}"] = "\n".join([" ".join(review.tokens[:5]), " ".join(review.tokens[5:]), ""])
            rows.append(json.dumps(eraser_row(name, review)))
        members[f"{split}.jsonl"] = "".join(f"{row}\n" for row in rows)
    changed = {name: change(name, content) for name, content in members.items()}
    content = {name: text.encode() for name, text in changed.items() if text is not None}
    (folder / eraser.ARCHIVE).write_bytes(lzma.compress(tar(content)))
    words = list(corpus.vectors)
    vectors = np.stack([corpus.vectors[word] for word in words]).astype(np.float16)
    np.savez(folder / "glove_small.npz", words=np.array(words), vectors=vectors)
    return folder


def eraser_row(name, review):
    label = "POS" if review.rating > 0.5 else "NEG"
    evidence = [[{"docid": name, "start_token": start, "end_token": end}] for start, end in review.spans]
    return {"annotation_id": name, "classification": label, "evidences": evidence, "query": "?", "query_type": None}


def tar(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"complete-movies-data/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


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
