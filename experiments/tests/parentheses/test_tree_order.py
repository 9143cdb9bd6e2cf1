"""Trees as the decoder generates them, against literal recursions."""

from collections import deque

import pytest
import torch

from gumtrace import BinaryTree
from gumtrace_experiments.parentheses.tree_order import depths, ended, from_level_order, level_order, shape_code

EOS = 99


def every_tree(first, last, parent=-1):
    """Parents of all binary trees over the tokens first, ..., last - 1, as dictionaries."""
    if first == last:
        return [{}]
    return [
        {root: parent, **left, **right}
        for root in range(first, last)
        for left in every_tree(first, root, root)
        for right in every_tree(root + 1, last, root)
    ]


def walk(parents):
    """What a decoder generates for a tree, by a queue of subtrees."""
    root = next((i for i, p in enumerate(parents) if p == -1), None)
    queue, found = deque([root]), []
    while queue:
        at = queue.popleft()
        found.append(EOS if at is None else at)
        if at is not None:
            children = [i for i, p in enumerate(parents) if p == at]
            queue.append(next((i for i in children if i < at), None))
            queue.append(next((i for i in children if i > at), None))
    return found


def read(symbols):
    """The tokens in order and their parents, by recursion, from symbols that are a whole tree."""
    children, names = {}, list(symbols)
    waiting = deque([0])
    following = iter(range(1, len(names)))
    while waiting:
        at = waiting.popleft()
        if names[at] != EOS:
            children[at] = (next(following), next(following))
            waiting.extend(children[at])

    def in_order(at):
        if names[at] == EOS:
            return []
        left, right = children[at]
        return [*in_order(left), at, *in_order(right)]

    order = in_order(0)
    place = {node: i for i, node in enumerate(order)}
    above = {child: node for node, pair in children.items() for child in pair}
    return [names[node] for node in order], [place[above[node]] if node else -1 for node in order]


@pytest.fixture(scope="module")
def trees():
    """All trees of up to six tokens, and random ones of more: parents (B, 9), and lengths."""
    few = [[tree[i] for i in range(n)] for n in range(1, 7) for tree in every_tree(0, n)]
    few = torch.tensor([[*row, *[-2] * (9 - len(row))] for row in few])
    lengths = torch.randint(7, 10, (300,), generator=torch.Generator().manual_seed(0))
    many = BinaryTree(torch.zeros(300, 9), lengths=lengths).sample(generator=torch.Generator().manual_seed(1))
    return torch.cat([few, many]), torch.cat([(few != -2).sum(-1), lengths])


def names(parents):
    """Tokens that tell their places."""
    return torch.arange(parents.shape[1]).expand(parents.shape).contiguous()


def test_all_trees_are_there(trees):
    assert len(trees[0]) == 1 + 2 + 5 + 14 + 42 + 132 + 300


def test_depths_are_steps_to_the_root(trees):
    for parents, found in zip(trees[0].tolist(), depths(trees[0]).tolist(), strict=True):
        for token, depth in enumerate(found):
            steps = 0
            while parents[token] >= 0:
                token, steps = parents[token], steps + 1
            assert depth == steps


def test_level_order_is_that_of_a_queue(trees):
    parents, lengths = trees
    found = level_order(names(parents), lengths, parents, EOS)
    assert found.shape == (len(parents), 19)
    for row, own in zip(found.tolist(), parents.tolist(), strict=True):
        expected = walk(own)
        assert row == expected + [EOS] * (19 - len(expected))


def test_there_and_back(trees):
    parents, lengths = trees
    symbols = level_order(names(parents), lengths, parents, EOS)
    tokens, found_lengths, found = from_level_order(symbols, EOS)
    assert found_lengths.equal(lengths)
    assert found.equal(parents)
    inside = torch.arange(9) < lengths[:, None]
    assert tokens.equal(torch.where(inside, names(parents), 0))


def test_what_is_generated_is_read_by_recursion():
    """Of any symbols: those that make a tree, whatever stands behind it, and those that do not."""
    generator = torch.Generator().manual_seed(2)
    symbols = torch.randint(0, 5, (2000, 15), generator=generator)
    symbols = torch.where(torch.rand(2000, 15, generator=generator) < 0.55, EOS, symbols)
    tokens, lengths, parents = from_level_order(symbols, EOS)
    assert {-1, 0, 1, 3, 7} <= set(lengths.tolist())
    for row, found, length, own in zip(
        symbols.tolist(), tokens.tolist(), lengths.tolist(), parents.tolist(), strict=True
    ):
        wanted, end = 1, 0
        while wanted and end < 15:
            wanted += -1 if row[end] == EOS else 1
            end += 1
        if wanted:
            raw = [token for token in row if token != EOS][:7]
            assert length == -1
            assert found == raw + [0] * (7 - len(raw))
            assert own == [-2] * 7
        else:
            expected, above = read(row[:end])
            assert length == len(expected)
            assert found == expected + [0] * (7 - length)
            assert own == above + [-2] * (7 - length)


def test_ends(trees):
    parents, lengths = trees
    symbols = level_order(names(parents), lengths, parents, EOS)
    assert ended(symbols, EOS).equal(torch.arange(19) > 2 * lengths[:, None])


def test_codes_tell_shapes_apart(trees):
    parents, lengths = trees
    symbols = level_order(torch.zeros_like(parents), lengths, parents, EOS)
    codes = shape_code(symbols, EOS).tolist()
    known = {}
    for code, row in zip(codes, parents.tolist(), strict=True):
        assert known.setdefault(code, row) == row
    assert len(known) == len({tuple(row) for row in parents.tolist()})


def test_several_trees_of_a_sequence():
    dist = BinaryTree(torch.zeros(4, 6), lengths=torch.tensor([6, 4, 2, 6]))
    parents = dist.sample((3,), generator=torch.Generator().manual_seed(0))
    tokens = torch.arange(24).view(4, 6)
    together = level_order(tokens, torch.tensor([6, 4, 2, 6]), parents, EOS)
    for own, symbols in zip(parents, together, strict=True):
        assert symbols.equal(level_order(tokens, torch.tensor([6, 4, 2, 6]), own, EOS))
