"""The language of ListOps: a few expressions by hand, many against evaluation by rewriting, errors with positions."""

import networkx as nx
import numpy as np
import pytest
from listops_oracle import random_texts, rewritten

from gumtrace_experiments.listops.expressions import (
    CLOSE,
    OPERATORS,
    PADDING,
    VOCABULARY,
    answers,
    depths,
    evaluate,
    heads,
    parse,
    unparse,
)

BY_HAND = [  # text, head of each token, depth, value
    ("7", [-1], 0, 7),
    ("[MAX 1 7 2 ]", [-1, 0, 0, 0, 0], 1, 7),
    ("[MIN 4 ]", [-1, 0, 0], 1, 4),
    ("[MED 3 5 4 ]", [-1, 0, 0, 0, 0], 1, 4),
    ("[MED 1 4 ]", [-1, 0, 0, 0], 1, 2),  # 2.5
    ("[MED 9 0 3 3 ]", [-1, 0, 0, 0, 0, 0], 1, 3),
    ("[MED 9 0 8 3 ]", [-1, 0, 0, 0, 0, 0], 1, 5),  # 5.5
    ("[SM 9 8 7 ]", [-1, 0, 0, 0, 0], 1, 4),
    ("[PM 9 8 7 ]", [-1, 0, 0, 0, 0], 1, 4),
    ("[FIRST 3 8 ]", [-1, 0, 0, 0], 1, 3),
    ("[LAST 3 8 ]", [-1, 0, 0, 0], 1, 8),
    ("[MIN 3 [MED 3 5 4 ] 2 ]", [-1, 0, 0, 2, 2, 2, 2, 0, 0], 2, 2),
    ("[MAX [MIN 6 7 ] [MIN 8 9 ] ]", [-1, 0, 1, 1, 1, 0, 5, 5, 5, 0], 2, 8),
    ("[MIN [MAX [MED 5 ] 2 ] 9 [MAX 7 ] ]", [-1, 0, 1, 2, 2, 1, 1, 0, 0, 8, 8, 0], 3, 5),
    ("[LAST [FIRST [LAST [FIRST [SM 6 7 ] ] ] ] ]", [-1, 0, 1, 2, 3, 4, 4, 4, 3, 2, 1, 0], 5, 3),
]


def stacked(texts):
    """(B, n), padded to two more than the longest."""
    rows = [parse(text).tokens for text in texts]
    padded = np.zeros((len(rows), max(map(len, rows)) + 2), np.uint8)
    for row, tokens in zip(padded, rows, strict=True):
        row[: len(tokens)] = tokens
    return padded


def test_numbers_of_tokens():
    """Checkpoints depend on them. The paper's operators come first, so that they need no larger vocabulary."""
    assert VOCABULARY[:15] == ("", *"0123456789", "]", "[MIN", "[MAX", "[MED")
    assert VOCABULARY[15:] == ("[SM", "[PM", "[FIRST", "[LAST")
    assert PADDING == 0
    assert CLOSE == 11
    assert VOCABULARY[CLOSE + 1 :] == OPERATORS


@pytest.mark.parametrize(("text", "head", "depth", "value"), BY_HAND)
def test_by_hand(text, head, depth, value):
    tokens, found, deep = parse(text)
    assert [VOCABULARY[token] for token in tokens] == text.split()
    assert (tokens.dtype, found.dtype) == (np.uint8, np.int16)
    assert found.tolist() == head
    assert deep == depth
    assert evaluate(tokens) == rewritten(text) == value
    assert unparse(tokens) == text


def test_by_hand_all_at_once():
    tokens = stacked([text for text, *_ in BY_HAND])
    assert depths(tokens).tolist() == [depth for *_, depth, _ in BY_HAND]
    assert answers(tokens).tolist() == [value for *_, value in BY_HAND]
    for row, (_, head, _, _) in zip(heads(tokens).tolist(), BY_HAND, strict=True):
        assert row == head + [-2] * (len(row) - len(head))


def test_round_brackets_are_no_tokens():
    binarised = "( ( ( ( [MAX 1 ) ( ( ( [MIN 7 ) 3 ) ] ) ) 2 ) ] )"
    for one, other in zip(parse(binarised), parse("[MAX 1 [MIN 7 3 ] 2 ]"), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(("depth", "widest"), [(1, 60), (3, 8), (6, 4)])
def test_many_at_once(depth, widest):
    """All operators, lists short and long, digits on their own among them."""
    texts = random_texts(400, depth, widest)
    parsed, tokens = [parse(text) for text in texts], stacked(texts)
    assert answers(tokens).tolist() == [evaluate(p.tokens) for p in parsed] == [rewritten(text) for text in texts]
    assert depths(tokens).tolist() == [p.depth for p in parsed]
    found = heads(tokens)
    assert found.dtype == np.int16
    for row, p in zip(found, parsed, strict=True):
        assert row[: len(p.heads)].tolist() == p.heads.tolist()
        assert (row[len(p.heads) :] == -2).all()
    assert {0, depth} <= {p.depth for p in parsed}


def test_products_larger_than_any_integer():
    texts = [f"[PM {f'{digit} ' * count}]" for digit in range(10) for count in range(1, 80)]
    assert answers(stacked(texts)).tolist() == [rewritten(text) for text in texts]


def test_lists_in_thousands_of_lists():
    """Deeper than Python's own stack."""
    text = "[MAX 1 " * 3000 + "7" + " ]" * 3000
    expression = parse(text)
    assert expression.depth == 3000
    assert evaluate(expression.tokens) == answers(expression.tokens[None])[0] == 7


def test_heads_make_an_arborescence():
    for text in random_texts(50, 5, 4):
        head = parse(text).heads.tolist()
        tree = nx.DiGraph([(h, place) for place, h in enumerate(head) if place])
        tree.add_node(0)
        assert nx.is_arborescence(tree)
        assert tree.in_degree(0) == 0
        assert nx.dag_longest_path_length(tree) == parse(text).depth


def test_padding_and_batch_do_not_matter():
    tokens = stacked(random_texts(30, 4))
    wide = np.pad(tokens, ((0, 0), (0, 5)))
    assert np.array_equal(answers(tokens), answers(wide))
    assert np.array_equal(np.pad(heads(tokens), ((0, 0), (0, 5)), constant_values=-2), heads(wide))
    assert answers(tokens).tolist() == [answers(row[None])[0] for row in tokens]
    assert evaluate(wide[0]) == answers(tokens)[0]


def test_no_expressions():
    nothing = np.zeros((0, 5), np.uint8)
    assert answers(nothing).shape == depths(nothing).shape == (0,)
    assert heads(nothing).shape == (0, 5)


def test_arguments_are_left_alone():
    tokens = stacked(random_texts(30, 4))
    kept = tokens.copy()
    answers(tokens), heads(tokens), depths(tokens)
    assert np.array_equal(tokens, kept)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the line has no expression"),
        ("  ( ) ", "the line has no expression"),
        ("[MIN 3 x ]", "column 8, token 3 of 4, 'x': unknown"),
        ("[MIN 3 10 ]", "column 8, token 3 of 4, '10': unknown"),
        ("( [MIN ( 3 -1 ) ) ]", "column 12, token 3 of 4, '-1': unknown"),
        ("[AVG 3 ]", "column 1, token 1 of 3, '[AVG': unknown"),
        ("  [min 3 ]", "column 3, token 1 of 3, '[min': unknown"),
        ("[MIN 3", "column 1, token 1 of 2, '[MIN': it is never closed"),
        ("[MIN [MAX 3 ]", "column 1, token 1 of 4, '[MIN': it is never closed"),
        ("[MIN 1 [MAX 3 [MED", "column 15, token 5 of 5, '[MED': it is never closed"),
        ("[MIN ]", "column 6, token 2 of 2, ']': the operator before it has no arguments"),
        ("[MIN 1 [MAX ] ]", "column 13, token 4 of 5, ']': the operator before it has no arguments"),
        ("]", "column 1, token 1 of 1, ']': no operator is open"),
        ("[MIN 3 ] ]", "column 10, token 4 of 4, ']': the expression ends before it"),
        ("[MIN 3 ] 4", "column 10, token 4 of 4, '4': the expression ends before it"),
        ("[MIN 3 ] [MAX 4 ]", "column 10, token 4 of 6, '[MAX': the expression ends before it"),
        ("3 4", "column 3, token 2 of 2, '4': the expression ends before it"),
        ("( [MIN 3 ) ] )", "column 14, ')': no round bracket is open"),
        (") ( [MIN 3 ]", "column 1, ')': no round bracket is open"),
        ("( ( [MIN 3 ) ]", "column 1, '(': it is never closed"),
        ("( [MIN 3 ) ( ]", "column 12, '(': it is never closed"),
    ],
)
def test_malformed(text, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        parse(text)
    assert str(error.value) == message
    with pytest.raises(ValueError) as error:  # noqa: PT011
        parse(text, "a.tsv, line 3")
    assert str(error.value) == f"a.tsv, line 3: {message}"
