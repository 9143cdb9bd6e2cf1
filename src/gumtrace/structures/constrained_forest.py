"""Spanning forests under constraints: Kruskal's algorithm that keeps must-links and cannot-links.

stop:  `components` parts are left, or no edge    split:  one race, of the edges inside of must-linked groups as long
map:   the winner joins two parts, edges inside           as there are any, then of all others
       them and to parts they may not join leave  combine:  the set of winners
"""

import torch
from torch import Tensor

from gumtrace.kernels import geometry
from gumtrace.structures import checks
from gumtrace.structures.edges import component_labels
from gumtrace.structures.replay import Choose
from gumtrace.structures.spanning_tree import SpanningTree, SpanningTreeWords
from gumtrace.structures.support import Support, binary, closure, count, part_count
from gumtrace.traces.trace import Layout, indicator


class ConstrainedForest(SpanningTree):
    """A spanning forest that keeps links: which nodes must be in one tree, and which cannot be. Also made by
    `SpanningTree.constrained`.

    Kruskal's algorithm in two parts. First the edges inside of must-linked groups race, until each group is one part;
    then all others do, without those that would join two parts of which a node of one cannot be with a node of the
    other. It stops when `components` trees are left, or earlier if no edge may join two of them: constraints come
    first, so that there may be more.

    Args:
        logits: (*B, n, n), of which the upper triangle u < v is read.
        components: how many trees, at least.
        must_link: bool (..., n, n), broadcast to the batch: pairs in one tree. Either triangle will do. What follows
            from them is added: a friend's friend is a friend.
        cannot_link: the same for pairs in different trees.
        mask, lengths, validate_args: as of all structures, see `gumtrace.structures.Structure`.

    Links in the padding and of a node with itself are ignored. A ValueError names the item where links contradict each
    other, where must-links leave fewer than `components` trees, and where edges are missing.

    The value is symmetric 0/1, (*B, n, n). With must-links alone it has the largest sum of G among forests of which
    each group is connected by edges of its own; with cannot-links it is what greedy choices give, which need not have
    the largest sum. Links are read on the CPU, and there is no CUDA kernel. A sample costs O(n² log n), its
    log-probability O(n²).

    >>> must, cannot = torch.zeros(2, 4, 4, dtype=torch.bool)
    >>> must[0, 1] = cannot[1, 2] = True
    >>> d = ConstrainedForest(torch.zeros(4, 4), components=2, must_link=must, cannot_link=cannot)
    >>> labels = d.sample_trace((100,)).labels()
    >>> bool((labels[:, 0] == labels[:, 1]).all()), bool((labels[:, 0] == labels[:, 2]).any())
    (True, False)
    """

    has_log_prob = False
    maximises_sum = False
    relaxations = ()
    story = None

    def __init__(
        self,
        logits: Tensor,
        components: int = 1,
        *,
        must_link: Tensor | None = None,
        cannot_link: Tensor | None = None,
        mask: Tensor | None = None,
        lengths: checks.Lengths = None,
        validate_args: bool | None = None,
    ):
        self._given = must_link, cannot_link
        super().__init__(logits, components, mask=mask, lengths=lengths, validate_args=validate_args)
        del self._given

    @property
    def must_link(self) -> Tensor:
        """(*B, n, n) bool: pairs of different nodes that must be in one tree, with what follows from the given ones."""
        group = self._rules[..., -1 - self._num_nodes : -1]
        same = group[..., :, None] == group[..., None, :]
        return same & ~torch.eye(self._num_nodes, dtype=torch.bool, device=same.device)

    @property
    def cannot_link(self) -> Tensor:
        """(*B, n, n) bool: pairs that cannot be in one tree, with what follows from the given ones."""
        n = self._num_nodes
        return self._rules[..., : n * n].unflatten(-1, (n, n)) > 0

    @property
    def _rules(self) -> Tensor:
        """The row of constraints of each item, on the device of the logits."""
        constraints = self._layout.geometry.constraints.to(self.logits.device)
        return constraints[self._number.long()].expand(*self.batch_shape, constraints.shape[-1])

    @property
    def _number(self) -> Tensor:
        """Of the constraints of each item."""
        assert self._sizes is not None
        return self._sizes

    @property
    def unconstrained(self) -> SpanningTree:
        """The forests without links."""
        return SpanningTree(self.log_rates, self.components, lengths=self._lengths, validate_args=False)

    def constrained(self, must_link=None, cannot_link=None):
        raise NotImplementedError("ConstrainedForest: it has its links; constrain the SpanningTree with all of them")

    @property
    def support(self):  # type: ignore[override]
        return ConstrainedForestSupport(self)

    @classmethod
    def words(cls, trace, names=None):
        return ConstrainedForestWords(trace, names)

    @classmethod
    def labels_of(cls, trace):
        sizes = trace.layout.geometry
        labels = component_labels(trace.edges(), sizes.nodes)
        nodes = sizes.constraints[:, -1].to(labels.device)[trace.links[..., :1].long().clamp(min=0)]
        return torch.where(torch.arange(sizes.nodes, device=labels.device) < nodes, labels, -1)

    def _trace_layout(self, key_shape):
        n = super()._trace_layout(key_shape)[0].geometry.nodes  # an error if it is not square
        links = [checked_links(name, x, key_shape) for name, x in zip(LINKS, self._given, strict=True)]
        shape = torch.broadcast_shapes(*(x.shape[:-2] for x in links))
        shape = shape if self._lengths is None else self.batch_shape
        if not checks.broadcasts(shape, self.batch_shape):
            raise ValueError(f"ConstrainedForest: links of batch {tuple(shape)} do not fit {tuple(self.batch_shape)}")
        shape = self.batch_shape if shape else shape  # one row where all items have the same
        nodes = self.node_counts.cpu().expand(shape)
        constraints = _constraints([x.expand(*shape, n, n) for x in links], nodes)
        self._check_constraints(constraints.flatten(0, -2) if shape else constraints[None], n)
        rows = constraints.reshape(shape.numel(), constraints.shape[-1]).contiguous()
        sizes = geometry.constrained_forest(n, self.components, rows)
        number = torch.arange(shape.numel(), device=self.logits.device).reshape(shape)
        return Layout(type(self), sizes, key_shape, self.logits.dtype, indicator), number

    def _check_constraints(self, rows: Tensor, n: int) -> None:
        """No contradictions, and not fewer groups than trees, in constraints (items, n n + n + 1)."""
        apart, group, nodes = rows[:, : n * n].unflatten(-1, (n, n)), rows[:, n * n : -1], rows[:, -1]
        for item, u in apart.diagonal(dim1=-2, dim2=-1).nonzero().tolist()[:1]:
            other = int((group[item] == group[item, u]).nonzero()[-1])
            where = checks.item_name(item, self.batch_shape)
            raise ValueError(
                f"ConstrainedForest: links of {where} contradict each other: a cannot-link joins two nodes of the "
                f"must-linked group of nodes {u} and {other}"
            )
        first = torch.arange(n, device="cpu")
        groups = ((group == first) & (first < nodes[:, None])).sum(-1)
        for item in (groups < self.components).nonzero().flatten().tolist()[:1]:
            raise ValueError(
                f"ConstrainedForest: {checks.item_name(item, self.batch_shape)} cannot be split into "
                f"{self.components} trees: its must-links leave {int(groups[item])} parts of {int(nodes[item])} nodes"
            )

    def _decision_counts(self):
        return None  # constraints may leave more trees than `components`

    @property
    def _may_be_infeasible(self) -> bool:
        return False  # constraints were checked, and all edges are there

    def _infeasible_message(self) -> str:
        return (
            f"lacks edges: a must-linked group is not connected by racing edges of its own, or there are more than "
            f"{self.components} parts without a path of racing edges between them"
        )

    def _valid_links(self, trace):
        """The number of the constraints."""
        return bool((trace.links[..., 0] == self._number).all())

    def mismatch(self, other):
        if isinstance(other, ConstrainedForest) and not checks.agree(self._rules, other._rules):
            return f"{self} and {other} do not have the same links"
        return super().mismatch(other)

    def _run_with(self, choose: Choose):
        n, count = self.key_shape[0], int(self.node_counts)
        group, apart = self._rules[-1 - n : -1].tolist(), self.cannot_link.tolist()
        racing = self.racing.flatten().nonzero().flatten().tolist()
        part = {v: {v} for v in range(count)}
        winners: list[int] = []

        def may_join(key: int) -> bool:
            u, v = (part[node] for node in self._ends(key))
            return u is not v and not any(apart[a][b] for a in u for b in v)

        for inside in (True, False):
            keys = [key for key in racing if inside == (group[key // n] == group[key % n])]
            while len(winners) < count - self.components and (keys := [key for key in keys if may_join(key)]):
                winners.append(choose(keys))
                u, v = (part[node] for node in self._ends(winners[-1]))
                part.update(dict.fromkeys(u | v, u | v))
        return winners, [int(self._number)]

    def _run_a_value(self):
        return None  # not every order of a forest's edges is a run

    def _count_values(self):
        return None

    def _check_relaxable(self):
        raise NotImplementedError("relax: constrained forests have no relaxation; take an estimator without one")


LINKS = "must_link", "cannot_link"


def checked_links(name: str, links: Tensor | None, key_shape: torch.Size) -> Tensor:
    """(..., n, n) bool, symmetric, on the CPU, without links of a node with itself."""
    if links is None:
        return torch.zeros(key_shape, dtype=torch.bool, device="cpu")
    if not torch.is_tensor(links) or links.dtype != torch.bool:
        got = f"a {links.dtype} tensor" if torch.is_tensor(links) else type(links).__name__
        raise TypeError(f"ConstrainedForest: {name} must be a bool tensor (..., n, n), got {got}")
    checks.ends_in("ConstrainedForest", name, links.shape, key_shape)
    links = links.cpu()
    return (links | links.mT) & ~torch.eye(links.shape[-1], dtype=torch.bool, device="cpu")


def _constraints(links: list[Tensor], nodes: Tensor) -> Tensor:
    """(*B, n n + n + 1) int32 from must-links and cannot-links (*B, n, n) and numbers of nodes (*B,): who may not be
    joined, the first node of the must-linked group of each node, and the number of nodes. A 1 on the diagonal of the
    first is a contradiction."""
    n = links[0].shape[-1]
    there = torch.arange(n, device="cpu") < nodes[..., None]
    must, cannot = (x & there[..., None, :] & there[..., :, None] for x in links)
    same = closure(must.float())
    group = same.long().argmax(-1) if n else torch.zeros_like(there, dtype=torch.long)
    joined = same.float()
    apart = (joined @ cannot.float() @ joined > 0.5).flatten(-2).int()
    return torch.cat([apart, group.int(), nodes[..., None].int()], -1)


class ConstrainedForestWords(SpanningTreeWords):
    @property
    def nodes(self):
        return int(self.trace.layout.geometry.constraints[int(self.trace.links), -1])

    def race(self, decision, keys):
        return f"edges between {self.nodes - decision} parts"


class ConstrainedForestSupport(Support):
    """Symmetric 0/1 matrices of forests that keep links: with as many trees as asked for, or with more that cannot be
    joined."""

    def __init__(self, dist: ConstrainedForest):
        self.dist = dist
        super().__init__(2)

    def check(self, value: Tensor) -> Tensor:
        dist, racing = self.dist, self.dist.racing | self.dist.racing.mT
        symmetric = (value == value.mT).flatten(-2).all(-1) & (value.diagonal(dim1=-2, dim2=-1) == 0).all(-1)
        reach = closure(value)
        must, cannot = dist.must_link, dist.cannot_link
        kept = ~(must & ~closure(value * must)).flatten(-2).any(-1) & ~(cannot & reach).flatten(-2).any(-1)
        trees = part_count(value) - (value.shape[-1] - dist.node_counts)  # padding counts as parts of its own
        joined = reach.float()
        apart = joined @ cannot.float() @ joined > 0.5
        stuck = ~(racing & ~reach & ~apart).flatten(-2).any(-1)
        return (
            binary(value, racing).flatten(-2).all(-1)
            & symmetric
            & (count(value.flatten(-2)) == 2 * (dist.node_counts - trees))
            & kept
            & ((trees == dist.components) | (trees > dist.components) & stuck)
        )
