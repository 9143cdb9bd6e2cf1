"""Binary trees over a sequence: the first token to win is the root, and each side of it is a tree of its own.

stop:  no token is left                  split:  one race in each gap between the tokens placed so far
map:   the winners split their gaps      combine:  winners point to the winner whose gap they split
"""

from collections.abc import Sequence
from math import comb

import torch
from torch import Tensor
from torch.nn.functional import pad

from gumtrace.kernels import geometry
from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.structures.replay import Choose, every_run
from gumtrace.structures.support import Support
from gumtrace.structures.words import Words
from gumtrace.traces import formula
from gumtrace.traces.trace import Layout, Trace


class BinaryTree(Structure):
    """A binary tree whose in-order walk is the sequence of tokens.

    Args:
        logits: (*B, n); a higher one is nearer to the root.
        mask, lengths, validate_args: as of all structures, see `gumtrace.structures.Structure`.

    The value is long (*B, n): the parent of each token, -1 for the root, -2 for tokens that do not race. The trace is
    the value, so `log_prob` is exact. A sample costs O(n), its log-probability as much.

    >>> d = BinaryTree(torch.tensor([0.0, 9.0, -9.0, 5.0]))
    >>> d.mode
    tensor([ 1, -1,  3,  1])
    """

    has_log_prob = True
    has_distinct_kernel = True
    one_to_one = True
    is_indicator = False
    directed = True
    decisions_are_keys = True
    drawing = "gumtrace.plotting.graphs:binary_tree"
    panel = "gumtrace.plotting.panels:tokens"
    story = "gumtrace.explore.rows:BinaryTreeStory"

    def __init__(
        self,
        logits: Tensor,
        *,
        mask: Tensor | None = None,
        lengths: checks.Lengths = None,
        validate_args: bool | None = None,
    ):
        super().__init__(logits, 1, mask, lengths, validate_args)

    @property
    def support(self):  # type: ignore[override]
        return BinaryTreeSupport(self.racing)

    @classmethod
    def words(cls, trace, names=None):
        return BinaryTreeWords(trace, names)

    @classmethod
    def edges_of(cls, trace):
        parent = trace.links.long()  # (*S, n)
        child = (
            (parent < 0).byte().argsort(dim=-1, stable=True)[..., : max(parent.shape[-1] - 1, 0)]
        )  # the root comes last
        parent = parent.gather(-1, child)
        return torch.where(parent[..., None, :] >= 0, torch.stack([parent, child], -2), -1)

    def _trace_layout(self, key_shape):
        (n,) = key_shape
        return Layout(type(self), geometry.binary_tree(n), key_shape, torch.long, _parents), None

    def _value_log_prob(self, value: Tensor) -> Tensor:
        """log P(X), the log-probability of the one trace that gives X."""
        links = value.int()
        return self.trace_log_prob(Trace(self._layout, links[..., :0], links, self._owner))

    def _valid_links(self, trace: Trace) -> bool:
        """Parents, from each of which one comes to the root; behind the tokens it stands for "no parent"."""
        n = trace.links.shape[-1]
        if not checks.within(trace.links, -2, n):
            return False
        above = pad(trace.links.long(), (0, 1), value=-1)
        above = torch.where(above < 0, n, above)
        for _ in range(n.bit_length()):
            above = above.gather(-1, above)
        return bool((above == n).all())

    def loss_to_go(self, trace: Trace, terms: Tensor) -> Tensor:
        """Of each decision: the terms of its subtree, of the tokens that raced in it."""
        rows = terms.reshape(trace.shape.numel(), terms.shape[-1])
        return formula.sum_racing(trace, rows).reshape(terms.shape)

    def _decision_counts(self) -> Tensor:
        return self.racing.sum(-1)

    def _run_with(self, choose: Choose):
        parents = [-2] * self.key_shape[0]
        gaps = [(-1, self.racing.nonzero().flatten().tolist())]
        while gaps:
            parent, tokens = gaps.pop()
            if tokens:
                node = choose(tokens)
                parents[node] = parent
                at = tokens.index(node)
                gaps += [(node, tokens[at + 1 :]), (node, tokens[:at])]
        return [], parents

    def _run_a_value(self):
        return every_run(self._run_with)

    def _count_values(self):
        """A Catalan number."""
        n = int(self.racing.sum())
        return comb(2 * n, n) // (n + 1)


class BinaryTreeWords(Words):
    def graph_nodes(self):
        return self._called(super().order())

    def order(self):
        """Breadth first."""
        parents = self.trace.links.tolist()
        return sorted(super().order(), key=lambda node: (depth(node, parents), node))


class BinaryTreeSupport(Support):
    """Parents of the tokens that race: a binary tree whose in-order walk is the sequence."""

    def __init__(self, racing: Tensor):
        self.racing = racing
        super().__init__(1)

    def check(self, value: Tensor) -> Tensor:
        n = value.shape[-1]
        racing, value = torch.broadcast_tensors(self.racing, value)
        plausible = ((value == -2) == ~racing).all(-1) & ((value >= -2) & (value < n)).all(-1)
        flat = torch.where(plausible[..., None], value, -2).reshape(plausible.numel(), n)
        shaped = torch.tensor([_in_order(row) for row in flat.tolist()], dtype=torch.bool, device=value.device)
        return plausible & shaped.reshape(plausible.shape)


def depth(node: int, parents: Sequence[int]) -> int:
    """How far a node is from the root; the root's parent is -1."""
    steps_up = 0
    while parents[node] >= 0:
        node = parents[node]
        steps_up += 1
        if steps_up > len(parents):
            raise ValueError("the parents are not a tree: they contain a cycle")
    return steps_up


def _parents(trace: Trace) -> Tensor:
    return trace.links.long()


def _in_order(parents: list[int]) -> bool:
    """Whether every node's subtree is an interval of the tokens that race, split by the node."""
    tokens = [i for i, p in enumerate(parents) if p != -2]
    children: dict[int, list[int]] = {i: [] for i in [-1, *tokens]}
    for i in tokens:
        if parents[i] not in children:
            return False
        children[parents[i]].append(i)
    if len(children[-1]) != min(len(tokens), 1):
        return False
    stack, seen = [(node, -1, len(parents)) for node in children[-1]], 0
    while stack:
        node, low, high = stack.pop()
        left, right = [c for c in children[node] if c < node], [c for c in children[node] if c > node]
        if not low < node < high or len(left) > 1 or len(right) > 1:
            return False
        stack += [(c, low, node) for c in left] + [(c, node, high) for c in right]
        seen += 1
    return seen == len(tokens)
