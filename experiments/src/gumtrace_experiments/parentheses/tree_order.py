"""Binary trees over sequences as the decoder reads and generates them: level by level, with a leaf EOS wherever a child
is missing. All in operations on whole batches.

A sequence of l tokens makes a full binary tree of 2l + 1 nodes. From left to right its leaves are the gaps before,
between and behind the tokens, so in order the nodes are leaf, token, leaf, ..., token, leaf. Level by level they are
the symbols that the decoder generates.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from gumtrace_experiments.parentheses.brackets import racing


def depths(parents: Tensor) -> Tensor:
    """(*B, n): how far tokens are from the root, for values (*B, n) of `BinaryTree`; 0 in the padding.

    Pointers are followed twice as far in each round.

    >>> depths(torch.tensor([[-1, 3, 1, 0, -2]]))
    tensor([[0, 2, 3, 1, 0]])
    """
    n = parents.shape[-1]
    above = torch.where(parents >= 0, parents, torch.arange(n, device=parents.device))  # the root points at itself
    depth = (parents >= 0).long()
    for _ in range((n - 1).bit_length()):
        depth, above = depth + depth.gather(-1, above), above.gather(-1, above)
    return depth


def level_order(tokens: Tensor, lengths: Tensor, parents: Tensor, eos: int) -> Tensor:
    """(*S, B, 2n + 1) int64: what the decoder generates for sequences (B, n) along trees (*S, B, n), level by level,
    EOS for leaves and behind the end.

    >>> level_order(torch.tensor([[0, 2, 3, 1]]), torch.tensor([4]), torch.tensor([[-1, 3, 1, 0]]), eos=9)
    tensor([[0, 9, 1, 2, 9, 9, 3, 9, 9]])
    """
    n = tokens.shape[-1]
    inside = racing(tokens, lengths)
    depth = torch.where(inside, depths(parents), -1)
    # A leaf hangs from the deeper one of its neighbours, which hangs from the other.
    edge = depth.new_full((*depth.shape[:-1], 1), -1)
    of_leaves = 1 + torch.maximum(torch.cat([edge, depth], -1), torch.cat([depth, edge], -1))  # (*S, B, n + 1)
    place = torch.arange(n + 1, device=tokens.device)
    of_leaves = torch.where(place <= lengths[..., None], of_leaves, n + 1)  # behind all that there are
    of_tokens = torch.where(inside, depth, n + 1)
    symbols = torch.where(inside, tokens, eos).expand(depth.shape)
    depth, symbols = _in_order(of_leaves, of_tokens), _in_order(torch.full_like(of_leaves, eos), symbols)
    return symbols.gather(-1, depth.argsort(dim=-1, stable=True))


def _in_order(leaves: Tensor, tokens: Tensor) -> Tensor:
    """(*S, 2n + 1): leaf, token, leaf, ..., leaf."""
    pairs = torch.stack([leaves[..., :-1], tokens], -1).flatten(-2)
    return torch.cat([pairs, leaves[..., -1:]], -1)


def from_level_order(symbols: Tensor, eos: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sequences (B, n), their lengths (B,) and their trees (B, n), values of `BinaryTree`, from what a decoder
    generated, (B, 2n + 1). Where it came to no end, length -1, the tokens in the order in which they came, and no tree.

    >>> tokens, lengths, parents = from_level_order(torch.tensor([[0, 9, 1, 2, 9, 9, 3, 9, 9]]), eos=9)
    >>> tokens, lengths, parents
    (tensor([[0, 2, 3, 1]]), tensor([4]), tensor([[-1,  3,  1,  0]]))
    """
    batch, nodes = symbols.shape
    n = nodes // 2
    is_token = (symbols != eos) & ~ended(symbols, eos)
    number = is_token.long().cumsum(-1) - 1  # of a token, among those generated
    finished = 2 * is_token.sum(-1) < nodes
    above = _above(is_token, number)
    size, node = F.pad(is_token.long(), (0, 1)), torch.arange(nodes + 1, device=symbols.device)
    for pointer in _ancestors(above):  # tokens of a subtree down to a depth, twice as far in each round
        size = size.scatter_add(1, pointer, size)
    size[:, nodes] = 0
    # Where a subtree begins: behind its parent and what is left of that, if it is a right one; else where that begins.
    begin = torch.where((node % 2 == 0) & (node > 0) & (node < nodes), size.roll(1, -1) + 1, 0)
    for pointer in _ancestors(above):
        begin = begin + begin.gather(1, pointer)
    left = torch.where(is_token, 2 * number + 1, nodes).clamp(max=nodes)
    place = begin[:, :nodes] + size.gather(1, left)
    parent = F.pad(place, (0, 1), value=-1).gather(1, above[:, :nodes])
    kept = is_token & finished[:, None]
    where = torch.where(kept, place, n)  # the rest goes behind the end, and is cut off
    parents = symbols.new_full((batch, n + 1), -2).scatter_(1, where, torch.where(kept, parent, -2))
    where = torch.where(is_token, torch.where(kept, place, number), n).clamp(max=n)
    tokens = symbols.new_zeros(batch, n + 1).scatter_(1, where, symbols)
    return tokens[:, :n], torch.where(finished, is_token.sum(-1), -1), parents[:, :n]


def _above(is_token: Tensor, number: Tensor) -> Tensor:
    """(B, nodes + 1): the parent of each node, whose children are the nodes 2k + 1 and 2k + 2 if it is the k-th token;
    `nodes`, a node that is its own parent, for the root and for what is behind the end."""
    batch, nodes = is_token.shape
    node = torch.arange(nodes, device=is_token.device).expand(batch, nodes)
    none = number.new_full((batch, nodes + 1), nodes)
    of_number = none.scatter(1, torch.where(is_token, number, nodes), torch.where(is_token, node, nodes))
    return none.index_copy(1, node[0, 1:], of_number.gather(1, (node[:, 1:] - 1) // 2))


def _ancestors(above: Tensor) -> Iterator[Tensor]:
    """Those at distance 1, 2, 4, ..., as far as there may be any."""
    for _ in range(above.shape[1].bit_length()):
        yield above
        above = above.gather(1, above)


def ended(symbols: Tensor, eos: int) -> Tensor:
    """(*B, m) bool: what stands behind the end, where every token has two children.

    >>> ended(torch.tensor([[0, 9, 9, 9, 9]]), eos=9)
    tensor([[False, False, False,  True,  True]])
    """
    wanted = 1 + torch.where(symbols != eos, 1, -1).cumsum(-1)  # nodes that were promised, and not generated yet
    last = (wanted <= 0).long()
    return last.cumsum(-1) > last  # after the first place where none is


def shape_code(symbols: Tensor, eos: int) -> Tensor:
    """(*B,) int64: a number for the shape of a tree, from what the decoder generates; other shapes, other numbers.

    Which nodes are tokens, level by level, says all of it: a bit for each, of at most 31 tokens.
    """
    bits = (symbols[..., :-2] != eos).long()  # the last two are leaves
    return (bits << torch.arange(bits.shape[-1], device=bits.device)).sum(-1)
