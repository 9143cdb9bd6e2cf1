"""Permutations and insertions: both ways, against plain Python, for all permutations of six and some of twenty."""

from itertools import permutations, product

import pytest
import torch
from common import seeded

from gumtrace_experiments.parentheses import insertion_order as io

SMALL = torch.tensor(list(permutations(range(6))))


def large(count=200, n=20):
    """Orders of all lengths up to n, padded as those of `gumtrace.Permutation`."""
    generator = seeded()
    rows = []
    for i in range(count):
        length = i % (n + 1)
        rows.append(torch.cat([torch.randperm(length, generator=generator), torch.arange(length, n)]))
    return torch.stack(rows)


def inserted(order):
    """The steps of one order, literally: slots, neighbours as elements, and the relations in the end."""
    row, slots, lefts, rights = [(-1, io.BEGIN), (len(order), io.END)], [], [], []  # (final place, element)
    for t, place in enumerate(order):
        at = next(i for i, (other, _) in enumerate(row) if other > place)
        slots.append(at - 1)
        lefts.append(row[at - 1][1])
        rights.append(row[at][1])
        row.insert(at, (place, t + io.FIRST))
    index = {element: i for i, (_, element) in enumerate(row)}
    count = range(len(order) + 2)
    matrix = [[(index[i] > index[j]) - (index[i] < index[j]) for j in count] for i in count]
    return slots, lefts, rights, matrix


@pytest.mark.parametrize("orders", [SMALL, large(), SMALL[:, :0]], ids=["all of 6", "of 20, padded", "empty"])
def test_all_forms_are_those_of_literal_insertions(orders):
    slots, lefts, rights, matrices = zip(*map(inserted, orders.tolist()), strict=True)
    assert io.slots(orders).equal(torch.tensor(slots).long())
    left, right = io.neighbours(orders)
    assert left.equal(torch.tensor(lefts).long())
    assert right.equal(torch.tensor(rights).long())
    assert io.relations(orders).equal(torch.tensor(matrices))


@pytest.mark.parametrize("orders", [SMALL, large()], ids=["all of 6", "of 20, padded"])
def test_orders_come_back(orders):
    assert io.order_of_slots(io.slots(orders)).equal(orders)
    assert io.order_of_relations(io.relations(orders)).equal(orders)


def test_every_sequence_of_slots_is_that_of_one_order():
    every = torch.tensor(list(product(*(range(t + 1) for t in range(6)))))
    orders = io.order_of_slots(every)
    assert io.slots(orders).equal(every)
    assert sorted(orders.tolist()) == SMALL.tolist()


def test_relations_among_elements_never_change():
    """Those of the first t tokens alone are the corner of the whole."""
    for t in range(6):
        first = SMALL[:, :t].argsort(-1).argsort(-1)
        assert io.relations(first).equal(io.relations(SMALL)[:, : t + 2, : t + 2])


def test_batches_have_any_shape():
    orders = large().view(2, 5, 20, 20)
    assert io.order_of_slots(io.slots(orders)).equal(orders)
    assert io.neighbours(orders)[0].equal(io.neighbours(orders.view(-1, 20))[0].view(2, 5, 20, 20))
