"""The data of the experiments with parentheses, against plain Python: stacks, recursions and lists of all sequences."""

from collections import Counter
from itertools import product
from math import exp

import numpy as np
import pytest
import torch

from gumtrace import BinaryTree, Permutation
from gumtrace_experiments.parentheses.brackets import (
    KINDS,
    balance,
    left_to_right_tree,
    matching,
    smart_permutation,
    smart_tree,
)
from gumtrace_experiments.parentheses.data import (
    Split,
    best_perplexity,
    can_make,
    count_balanced,
    count_made,
    generate,
    load,
    log_prob,
)


def split_of(rows, longest=None):
    longest = longest or max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=torch.int64)
    return Split(tokens, torch.tensor([len(row) for row in rows]))


def rows_of(split):
    return [tuple(row[:length]) for row, length in zip(split.tokens.tolist(), split.lengths.tolist(), strict=True)]


def made(types, length):
    """All that the paper's recursion can return, with their probabilities."""
    if length == 0:
        return {(): 1.0}
    found = Counter()
    for kind, (sub, chance) in product(range(types), made(types, length - 2).items()):
        pair = (2 * kind, 2 * kind + 1)
        found[(pair[0], *sub, pair[1])] += chance / types / 2
        found[(*pair, *sub)] += chance / types / 2
    return found


def error(row):
    stack = []
    for token in row:
        if token % 2 == 0:
            stack.append(token)
        elif not stack:
            return "unopened"
        elif stack.pop() != token - 1:
            return "mismatched"
    return "unclosed" if stack else "balanced" if row else "empty"


def partners(row):
    stack, found = [], [-1] * len(row)
    for place, token in enumerate(row):
        if token % 2 == 0:
            stack.append(place)
        else:
            found[place] = stack.pop()
            found[found[place]] = place
    return found


def smart(row, first, last, parent, partner, parents):
    """The paper's words: a pair, what is between it at the left of the closing one, what is behind at its right."""
    if first > last:
        return
    closing = partner[first]
    parents[first], parents[closing] = parent, first
    smart(row, first + 1, closing - 1, closing, partner, parents)
    smart(row, closing + 1, last, closing, partner, parents)


def every(types, length):
    return [row for n in range(length + 1) for row in product(range(2 * types), repeat=n)]


def balanced(types, length):
    return [row for row in every(types, length) if error(row) == "balanced"]


def test_codes_are_those_of_a_stack():
    rows = every(2, 6)
    codes = balance(*split_of(rows, 8)).tolist()
    assert [KINDS[code] for code in codes] == [error(row) for row in rows]
    assert set(map(error, rows)) == set(KINDS) - {"unfinished"}


def test_padding_is_not_read():
    rows = every(2, 4)
    split = split_of(rows, 7)
    for fill in (1, 2, 3):
        other = Split(torch.where(split.racing, split.tokens, fill), split.lengths)
        assert balance(*other).equal(balance(*split))
        good = balance(*split) == 0
        for order in (matching, smart_tree, smart_permutation, left_to_right_tree):
            assert order(*(x[good] for x in other)).equal(order(*(x[good] for x in split)))


def test_a_negative_length_is_unfinished():
    assert KINDS[balance(torch.tensor([[0, 1]]), torch.tensor([-1])).item()] == "unfinished"


@pytest.fixture(scope="module")
def some():
    """All balanced sequences of a few tokens, and long ones."""
    few = split_of(balanced(2, 6), 20)
    long = generate(300, 3, np.random.default_rng(5))
    return Split(torch.cat([few.tokens, long.tokens]), torch.cat([few.lengths, long.lengths]))


def test_pairs_are_those_of_a_stack(some):
    found = matching(*some).tolist()
    for row, pairs in zip(rows_of(some), found, strict=True):
        assert pairs == partners(row) + [-1] * (20 - len(row))


def test_smart_trees_are_those_of_the_recursion(some):
    found = smart_tree(*some)
    for row, parents in zip(rows_of(some), found.tolist(), strict=True):
        expected = [-2] * 20
        smart(row, 0, len(row) - 1, -1, partners(row), expected)
        assert parents == expected


def test_orders_are_values_of_their_structures(some):
    logits = torch.zeros(some.tokens.shape)
    trees = BinaryTree(logits, lengths=some.lengths).support
    assert trees.check(smart_tree(*some)).all()
    assert trees.check(left_to_right_tree(*some)).all()
    assert Permutation(logits, lengths=some.lengths).support.check(smart_permutation(*some)).all()


def test_smart_permutations_alternate(some):
    for row, order in zip(rows_of(some), smart_permutation(*some).tolist(), strict=True):
        openings, pairs = [i for i, token in enumerate(row) if token % 2 == 0], partners(row)
        assert order[: len(row)] == [place for i in openings for place in (i, pairs[i])]
        assert order[len(row) :] == list(range(len(row), 20))


@pytest.mark.parametrize(("types", "length"), [(1, 8), (2, 6), (3, 4)])
def test_counts_are_those_of_enumeration(types, length):
    """All that are made are equally likely, and the rest of the balanced ones are those that cannot be made."""
    expected = made(types, length)
    assert count_made(types, length) == len(expected)
    split = split_of([row for row in balanced(types, length) if len(row) == length])
    assert count_balanced(types, length) == len(split.lengths)
    assert set(rows_of(Split(*(x[can_make(*split)] for x in split)))) == set(expected)
    chance = log_prob(torch.tensor([length]), types, longest=8).exp().item() * 4  # given the length
    assert list(expected.values()) == pytest.approx([chance] * len(expected))


def test_best_perplexity_is_that_of_the_probabilities():
    every_one = [(row, chance / 3) for length in (2, 4, 6) for row, chance in made(2, length).items()]
    assert sum(chance for _, chance in every_one) == pytest.approx(1)
    entropy = -sum(chance * np.log(chance) for _, chance in every_one)
    tokens = sum(chance * len(row) for row, chance in every_one)
    assert best_perplexity(2, longest=6) == pytest.approx(exp(entropy / tokens))


def test_the_generator_follows_its_probabilities():
    """Chi-square over all sequences, by seed; it would fail by chance once in 10 000."""
    from scipy.stats import chi2

    split = generate(20_000, 2, np.random.default_rng(1), longest=6)
    expected = {row: 20_000 * chance / 3 for length in (2, 4, 6) for row, chance in made(2, length).items()}
    counts = Counter(rows_of(split))
    assert counts.keys() <= expected.keys()
    statistic = sum((counts[row] - mean) ** 2 / mean for row, mean in expected.items())
    assert statistic < chi2.isf(1e-4, len(expected) - 1)


def test_load_makes_and_keeps(tmp_path):
    first = load(tmp_path, 10, 30, 20, 10)
    (path,) = tmp_path.iterdir()
    when = path.stat().st_mtime_ns
    second = load(tmp_path, 10, 30, 20, 10)
    assert path.stat().st_mtime_ns == when
    for name, size in (("train", 30), ("valid", 20), ("test", 10)):
        ours, theirs = getattr(first, name), getattr(second, name)
        assert ours.tokens.shape == (size, 20)
        assert ours.tokens.dtype == ours.lengths.dtype == torch.int64
        assert ours.tokens.equal(theirs.tokens)
        assert ours.lengths.equal(theirs.lengths)
    assert not load(tmp_path, 10, 30, 20, 10, seed=1).train.tokens.equal(first.train.tokens)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_damaged_cache_is_refused(tmp_path):
    load(tmp_path, 3, 30, 20, 10)
    (path,) = tmp_path.iterdir()
    content = torch.load(path)
    content["valid"]["tokens"][4, 1] += 1
    torch.save(content, path)
    with pytest.raises(ValueError, match="invalid sequences; delete it"):
        load(tmp_path, 3, 30, 20, 10)


@pytest.mark.parametrize("change", [{"types": 0}, {"test_size": 0}, {"longest": 7}, {"longest": 0}])
def test_impossible_arguments(tmp_path, change):
    with pytest.raises(ValueError, match="must be"):
        load(tmp_path, **{"types": 3, "train_size": 3, "valid_size": 3, "test_size": 3, **change})


def test_batches_are_rows():
    split = generate(5, 3, np.random.default_rng(0))
    batch = split.batch(torch.tensor([3, 1]))
    assert rows_of(batch) == [rows_of(split)[3], rows_of(split)[1]]
