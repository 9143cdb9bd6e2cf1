"""What the tests of refusals share: how every structure is made, a batch in which one item is wrong, and what a message
must say."""

import re

import pytest
import reference_algorithms as reference
import torch
from cases import EDGES

import gumtrace as gt

NAN, INF = torch.nan, torch.inf
BATCH, ITEM = (2, 3), (1, 2)  # of batches, the item that is wrong
HERE = r"\D1, 2\D"  # and how a message names it
CONSTRUCTORS = {
    "Subset": (1, lambda x, **more: gt.Subset(x, 1, **more)),
    "Permutation": (1, gt.Permutation),
    "Matching": (2, gt.Matching),
    "SpanningTree": (2, gt.SpanningTree),
    "Arborescence": (2, gt.Arborescence),
    "BinaryTree": (1, gt.BinaryTree),
    "Custom": (1, lambda x, **more: gt.Custom(x, reference.Subset(3, 1), event_dim=1, **more)),
}


def one_bad(shape, key, value, good=0.0):
    """Logits of a batch that are wrong at one key of one item."""
    x = torch.full((*BATCH, *shape), good)
    x[(*ITEM, *key)] = value
    return x


def sparse(x, nodes=5, **more):
    return gt.SpanningTree.from_edges(x, EDGES, nodes, **more)


def refuses(make, *words, error=ValueError):
    """`make` raises, and the message has the words in this order."""
    with pytest.raises(error, match=re.compile(".*".join(words), re.DOTALL)):
        make()
