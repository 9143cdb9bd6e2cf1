"""Sequences of parentheses as tensors: are they balanced, and which parentheses belong together?

The opening parenthesis of type t is the token 2t, the closing one 2t + 1. Tokens are (B, n), with lengths (B,); what is
behind the length of a sequence is never read.
"""

import torch
from torch import Tensor

BALANCED, EMPTY, UNFINISHED, UNOPENED, MISMATCHED, UNCLOSED = range(6)
KINDS = ("balanced", "empty", "unfinished", "unopened", "mismatched", "unclosed")
"""Names of the codes that `balance` gives."""


def racing(tokens: Tensor, lengths: Tensor) -> Tensor:
    """(B, n) bool: tokens, and no padding."""
    return torch.arange(tokens.shape[-1], device=tokens.device) < lengths[..., None]


def balance(tokens: Tensor, lengths: Tensor) -> Tensor:
    """(B,) int64, a code for each sequence: balanced, or the error that a reader meets first, from left to right.

    empty: there is no token. unfinished: whoever made the sequence did not come to its end, and gave a negative length.
    unopened: a closing parenthesis while none is open. mismatched: one that does not close the last that was opened.
    unclosed: the sequence ends, and a parenthesis is still open.

    >>> balance(torch.tensor([[0, 1, 4, 5], [0, 3, 0, 0], [0, 0, 1, 0]]), torch.tensor([4, 2, 3]))
    tensor([0, 4, 5])
    """
    stack = tokens.new_zeros(len(tokens), tokens.shape[1] + 1)  # types that are open, from the outside to the inside
    depth = torch.zeros_like(lengths)
    code = torch.where(lengths == 0, EMPTY, BALANCED).masked_fill_(lengths < 0, UNFINISHED)
    for place, token in enumerate(tokens.unbind(1)):
        reading = (code == BALANCED) & (place < lengths)
        opening, kind = token % 2 == 0, token // 2
        last = stack.gather(1, (depth - 1).clamp(min=0)[:, None])[:, 0]
        wrong = torch.where(depth == 0, UNOPENED, torch.where(last == kind, BALANCED, MISMATCHED))
        code = torch.where(reading & ~opening, wrong, code)
        stack.scatter_(1, depth[:, None], kind[:, None])  # above those that are open: no harm if it is not one of them
        depth = depth + torch.where(reading, torch.where(opening, 1, -1), 0)
        depth = depth.clamp(min=0)
    return torch.where((code == BALANCED) & (depth > 0), UNCLOSED, code)


def matching(tokens: Tensor, lengths: Tensor) -> Tensor:
    """(B, n) int64: for each parenthesis of balanced sequences the place of the one that it belongs to; -1 for padding.

    >>> matching(torch.tensor([[0, 2, 3, 1, 0]]), torch.tensor([4]))
    tensor([[ 3,  2,  1,  0, -1]])
    """
    n, inside = tokens.shape[-1], racing(tokens, lengths)
    if not n:  # argmax refuses to look at nothing
        return torch.zeros_like(tokens)
    opening = (tokens % 2 == 0) & inside
    depth = torch.where(opening, 1, -1).masked_fill(~inside, 0).cumsum(-1)
    level = depth - opening.long()  # around each parenthesis, the same for the two of a pair
    place = torch.arange(n, device=tokens.device)
    closes = inside & ~opening
    # Of the closing ones behind an opening one, the first on its level.
    partners = (level[..., :, None] == level[..., None, :]) & (place[:, None] < place) & closes[..., None, :]
    partners &= opening[..., :, None]
    closing_of = partners.byte().argmax(-1)  # the first of equal ones; nothing, where there is none
    pairs = (closing_of[..., None] == place) & opening[..., :, None]
    opening_of = pairs.byte().argmax(-2)
    return torch.where(opening, closing_of, opening_of).masked_fill(~inside, -1)


def smart_tree(tokens: Tensor, lengths: Tensor) -> Tensor:
    """(B, n) int64: the paper's smart order as a value of `BinaryTree`, the parent of each token; -1 for the root, -2
    for padding. Sequences must be balanced.

    An opening parenthesis has no left child, and its right child closes it. A closing one has what stands between the
    two as its left subtree, and what stands behind it, on the same level, as its right one.

    >>> smart_tree(torch.tensor([[0, 2, 3, 1, 0]]), torch.tensor([4]))
    tensor([[-1,  3,  1,  0, -2]])
    """
    partner = matching(tokens, lengths)
    place = torch.arange(tokens.shape[-1], device=tokens.device)
    before, their_partner = tokens.roll(1, -1), partner.roll(1, -1)  # of the token before; the first is mended below
    above = torch.where(before % 2 == 0, their_partner, place - 1)
    parent = torch.where(tokens % 2 == 0, above, partner)
    return parent.masked_fill(place == 0, -1).masked_fill(~racing(tokens, lengths), -2)


def left_to_right_tree(tokens: Tensor, lengths: Tensor) -> Tensor:
    """(B, n) int64: the tree in which each token is the right child of the one before it.

    >>> left_to_right_tree(torch.tensor([[0, 2, 3, 1, 0]]), torch.tensor([4]))
    tensor([[-1,  0,  1,  2, -2]])
    """
    place = torch.arange(tokens.shape[-1], device=tokens.device)
    return (place - 1).expand(tokens.shape).masked_fill(~racing(tokens, lengths), -2)


def smart_permutation(tokens: Tensor, lengths: Tensor) -> Tensor:
    """(B, n) int64: the paper's smart order as a value of `Permutation`, places in the order in which they are filled:
    an opening parenthesis, the one that closes it, the next opening one, and so on. Padding stays at its own place.

    >>> smart_permutation(torch.tensor([[0, 2, 3, 1, 0]]), torch.tensor([4]))
    tensor([[0, 3, 1, 2, 4]])
    """
    inside, partner = racing(tokens, lengths), matching(tokens, lengths)
    opening = (tokens % 2 == 0) & inside
    time = 2 * (opening.long().cumsum(-1) - 1)  # of an opening one
    time = torch.where(opening, time, time.gather(-1, partner.clamp(min=0)) + 1)
    place = torch.arange(tokens.shape[-1], device=tokens.device)
    return torch.where(inside, time, place).argsort(-1)
