"""Orders of insertion: a permutation of a sentence's places, and the insertions that make the sentence in that order.

A sentence of L tokens is generated between two markers, *begin* and *end*, which are there from the beginning. An order
is a permutation as `gumtrace.Permutation` has it: `order[t]` is the final place, 0..L-1, of the token that is inserted
at step t. Beyond L it is t itself (padding). Three ways to say the same:

slots        At step t the row is begin, t tokens, end, with t + 1 gaps, numbered 0..t from the left. `slots[t]` is the
             gap that the token goes into: the number of tokens to its left at that time. Every sequence of numbers
             with 0 <= slots[t] <= t is the sequence of one order: there are L! of both.
neighbours   The same gap by the two elements of the row that it is between. Elements are numbered in the order in which
             they came: 0 is begin, 1 is end, and t + 2 the token of step t.
relations    For all elements i and j: -1 if i is left of j, 1 if it is right of j, 0 if they are the same. Insertions
             move elements apart, but never past one another. So relations between elements that are there do not
             change, and one matrix has those of all steps: its upper left corner of t + 2 elements is that of step t.

A pointer, an element and one of its sides, names a gap. There are two for every gap, "right of its left neighbour" and
"left of its right neighbour". The gap is what is modelled: its probability is the sum of the two, so that an order has
one sequence of insertions, and their probabilities sum to one over gaps (`insertion_model`). "Left of begin" and "right
of end" are no gaps, and have probability 0.

All functions take orders (*B, n), padded, of any lengths, and cost O(n²) at most. In the padding, tokens come in turn
between the last one and end: nothing there is wrong, and callers leave it out.
"""

import torch
from torch import Tensor

BEGIN, END = 0, 1  # elements
FIRST = 2  # the element that is inserted at step 0


def places(order: Tensor) -> Tensor:
    """Final places of all elements, (*B, n + 2): -1 for begin, n for end.

    >>> places(torch.tensor([2, 0, 1]))
    tensor([-1,  3,  2,  0,  1])
    """
    *batch, n = order.shape
    return torch.cat([order.new_full((*batch, 1), -1), order.new_full((*batch, 1), n), order], -1)


def relations(order: Tensor) -> Tensor:
    """(*B, n + 2, n + 2) of -1, 0 and 1: the sign of (place of the row's element - place of the column's).

    >>> relations(torch.tensor([1, 0]))
    tensor([[ 0, -1, -1, -1],
            [ 1,  0,  1,  1],
            [ 1, -1,  0,  1],
            [ 1, -1, -1,  0]])
    """
    place = places(order)
    return (place[..., :, None] - place[..., None, :]).sign()


def order_of_relations(relations: Tensor) -> Tensor:
    """The inverse: a token's place is the number of elements to its left, begin left out.

    >>> order_of_relations(relations(torch.tensor([2, 0, 1])))
    tensor([2, 0, 1])
    """
    return (relations > 0).sum(-1)[..., FIRST:] - 1


def slots(order: Tensor) -> Tensor:
    """The gap of each step, (*B, n).

    >>> slots(torch.tensor([2, 0, 1]))
    tensor([0, 0, 1])
    """
    right_of = order[..., :, None] > order[..., None, :]
    return (right_of & _earlier(order)).sum(-1)


def order_of_slots(slots: Tensor) -> Tensor:
    """The inverse: each insertion moves what is to its right by one place.

    >>> order_of_slots(torch.tensor([0, 0, 1]))
    tensor([2, 0, 1])
    """
    order = torch.zeros_like(slots)
    step = torch.arange(slots.shape[-1], device=slots.device)
    for t in range(slots.shape[-1]):
        gap = slots[..., t : t + 1]
        moved = torch.where((step < t) & (order >= gap), order + 1, order)
        order = torch.where(step == t, gap, moved)
    return order


def neighbours(order: Tensor) -> tuple[Tensor, Tensor]:
    """The elements to the left and to the right of each token when it is inserted, (*B, n) each.

    >>> neighbours(torch.tensor([2, 0, 1]))
    (tensor([0, 0, 3]), tensor([1, 2, 2]))
    """
    place = places(order)[..., None, :]  # of the elements that may be neighbours, (*B, 1, n + 2)
    own = order[..., :, None]
    n = order.shape[-1]
    step, element = torch.arange(n, device=order.device)[:, None], torch.arange(n + FIRST, device=order.device)
    there = element < step + FIRST
    left = torch.where(there & (place < own), place, -2).argmax(-1)
    right = torch.where(there & (place > own), place, n + 1).argmin(-1)
    return left, right


def _earlier(order: Tensor) -> Tensor:
    """(n, n), for steps t and s: whether s is before t."""
    step = torch.arange(order.shape[-1], device=order.device)
    return step < step[:, None]
