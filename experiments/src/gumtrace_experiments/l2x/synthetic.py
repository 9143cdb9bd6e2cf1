"""Made-up reviews, for tests and for trying things out: a few praising or blaming phrases among words that say nothing.

The rating is the share of praise among the phrases, and the phrases are what is annotated.
"""

import random

import numpy as np

from gumtrace_experiments.l2x.reviews import Corpus, Review

SIZE = 16  # of a vector
_STARTS, _VOWELS, _ENDS = "bdfgklmnprstvz", "aeiou", ("n", "r", "sh", "t")
_STEMS = [start + vowel + end for end in _ENDS for vowel in _VOWELS for start in _STARTS]  # 280
PRAISE, BLAME, REST = _STEMS[:20], _STEMS[20:40], _STEMS[40:]
_PHRASES = (2, 5)  # of a review
_SEED = 0


def generate(size: int, longest: int) -> Corpus:
    """So many reviews to train with, a quarter as many to validate and to test; always the same.

    >>> corpus = generate(4, longest=30)
    >>> review = corpus.test[0]
    >>> len(corpus.train), len(corpus.test), all(token in REST for token in review.tokens[: review.spans[0][0]])
    (4, 1, True)
    """
    rng, few = random.Random(f"l2x {_SEED}"), -(-size // 4)
    reviews = [_review(rng, longest) for _ in range(size + 2 * few)]
    train, valid, test = reviews[:size], reviews[size:-few], reviews[-few:]
    return Corpus(train, valid, test, test, _vectors())


def _review(rng: random.Random, longest: int) -> Review:
    length = rng.randint(max(longest // 2, 1), longest)
    count = min(rng.randint(*_PHRASES), length // 4)
    places = sorted(rng.sample(range(length // 2), count))  # of pairs of tokens: phrases have two, and do not overlap
    tokens = [rng.choice(REST) for _ in range(length)]
    praised = [rng.random() < 0.5 for _ in places]
    for place, praise in zip(places, praised, strict=True):
        tokens[2 * place : 2 * place + 2] = rng.choices(PRAISE if praise else BLAME, k=2)
    rating = sum(praised) / count if count else 0.5
    return Review(tuple(tokens), rating, tuple((2 * place, 2 * place + 2) for place in places))


def _vectors() -> dict[str, np.ndarray]:
    """Random, but for one direction, along which praise and blame are apart."""
    rng = np.random.default_rng(_SEED)
    found = {word: rng.normal(size=SIZE).astype(np.float32) / 2 for word in _STEMS}
    for group, side in ((PRAISE, 1.5), (BLAME, -1.5), (REST, 0.0)):
        for word in group:
            found[word][0] = side
    return found
