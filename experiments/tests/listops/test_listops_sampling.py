"""Random expressions of ListOps: their law, and that nothing but the tree gives the value away."""

import numpy as np
import pytest
from scipy.stats import chisquare

from gumtrace_experiments.listops.expressions import CLOSE, answers, depths, unparse
from gumtrace_experiments.listops.sampling import SAMPLED, distinct, draw, propose


class Counted:
    """In place of a bar."""

    n = 0

    def update(self, count):
        self.n += count


def drawn(count, depth, lengths=(10, 50)):
    bar = Counted()
    tokens = draw(count, depth, lengths, np.random.default_rng(0), bar)
    assert bar.n == len(tokens) == count
    return tokens


def shapes(tokens):
    """The expressions without their operators and digits: [d[dd]]."""
    names = np.array([" ", *"d" * 10, "]", *"[" * len(SAMPLED)])
    return np.array(["".join(row).strip() for row in names[tokens]])


def likely(observed, expected):
    """Counts, and probabilities up to a factor. False alarm: one in 100 000."""
    observed, expected = np.array(observed), np.array(expected)
    assert chisquare(observed, expected / expected.sum() * observed.sum()).pvalue > 1e-5


def test_law_of_shapes():
    """Of at most depth 2 and seven tokens there are four lists of digits, and two with a list in them."""
    found, counts = np.unique(shapes(propose(50_000, 2, 7, np.random.default_rng(0))), return_counts=True)
    widest = np.arange(2, 6)  # all alike; numbers of arguments up to it are alike, too
    expected = {f"[{'d' * m}]": np.where(m <= widest, 0.75**m / (widest - 1), 0).mean() for m in widest}
    expected |= {text: (0.75 * 0.25 / (widest - 1) ** 2).mean() for text in ("[d[dd]]", "[[dd]d]")}
    assert set(found) == set(expected)
    likely(counts, [expected[text] for text in found])


def digit_pairs():
    """(10, 10): the law of two digits of one list. Both lie between two more, of which all pairs are alike."""
    law = np.zeros((10, 10))
    for low in range(10):
        for high in range(low + 1, 10):
            law[low : high + 1, low : high + 1] += 1 / 45 / (high - low + 1) ** 2
    return law


def test_law_of_operators_and_digits():
    """Every list of two digits, of which there are 300."""
    tokens = propose(100_000, 1, 4, np.random.default_rng(0)).astype(int)
    assert len(tokens) == 100_000
    found = 100 * (tokens[:, 0] - CLOSE - 1) + 10 * (tokens[:, 1] - 1) + tokens[:, 2] - 1
    likely(np.bincount(found, minlength=300), np.tile(digit_pairs().ravel(), 3))


def test_a_list_in_a_list_has_operators_and_digits_of_its_own():
    tokens = propose(200_000, 2, 7, np.random.default_rng(0))
    nested = tokens[shapes(tokens) == "[d[dd]]"].astype(int)
    likely(np.bincount(3 * (nested[:, 0] - 12) + nested[:, 2] - 12, minlength=9), np.ones(9))
    one = digit_pairs().sum(1)
    likely(np.bincount(10 * (nested[:, 1] - 1) + nested[:, 3] - 1, minlength=100), np.outer(one, one).ravel())


def test_every_expression_can_come():
    """Of length 4 there are 300, and they are found; a 301st is not."""
    texts = {unparse(row) for row in drawn(300, 1, (4, 4))}
    assert texts == {f"{operator} {a} {b} ]" for operator in SAMPLED for a in range(10) for b in range(10)}
    with pytest.raises(ValueError, match="only 300 different expressions of depth 1 with 4 to 4 tokens, not 301"):
        drawn(301, 1, (4, 4))


def test_first_of_equal_rows():
    rows = np.random.default_rng(0).integers(0, 3, (200, 3)).astype(np.uint8)
    assert distinct(rows).tolist() == [list(row) for row in dict.fromkeys(map(tuple, rows.tolist()))]


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5])
def test_depth_and_lengths(depth):
    """Every depth has short and long expressions, nearly up to both ends, and no two alike."""
    tokens = drawn(2000, depth)
    assert (depths(tokens) == depth).all()
    lengths = np.count_nonzero(tokens, axis=1)
    shortest = max(10, 3 * depth + 1)
    assert shortest <= lengths.min() < shortest + 5
    assert 45 < lengths.max() <= 50
    assert np.quantile(lengths, 0.75) - np.quantile(lengths, 0.25) > 10
    assert len(np.unique(tokens, axis=0)) == 2000


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5])
def test_the_value_cannot_be_guessed(depth):
    """The most frequent one is right in about 12 per cent of all cases, the most frequent one below a root in 20. With
    digits drawn uniformly it was 28 and 65 at depth 1. The limits are more than five standard errors away."""
    tokens = drawn(2000, depth)
    counts = [np.bincount(answers(tokens[tokens[:, 0] == root]), minlength=10) for root in (12, 13, 14)]
    assert np.sum(counts, axis=0).max() / 2000 < 0.18
    assert np.max(counts, axis=1).sum() / 2000 < 0.27
    assert np.sum(counts, axis=0).min() / 2000 > 0.02
