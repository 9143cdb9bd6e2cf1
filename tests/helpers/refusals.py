"""What the tests of refusals share: how every structure is made, a batch in which one item is wrong, and what a message
must say."""

import re

import pytest
import reference_algorithms as reference
import torch
from cases import EDGES, RAGGED

import gumtrace as gt

NAN, INF = torch.nan, torch.inf
BATCH, ITEM = (2, 3), (1, 2)  # of batches, the item that is wrong
HERE = r"\D1, 2\D"  # and how a message names it
CONSTRUCTORS = {  # by class: how many dimensions the keys have, and how one is made
    type(build(torch.zeros([3] * dims))).__name__: (dims, build)
    for dims, build in (
        *reversed(RAGGED.values()),  # of two for a class, the first
        (1, lambda x, **more: gt.Custom(x, reference.Subset(3, 1), event_dim=1, **more)),
    )
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
