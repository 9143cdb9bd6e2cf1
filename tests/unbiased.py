"""What the tests of gradient estimators share: small structures of every kind, an objective, critics, surrogates."""

import torch
import twins
from common import FALSE_ALARM, seeded

import gumtrace as gt
from gumtrace import estimators as E
from gumtrace.diagnostics import check_unbiased
from gumtrace.recursions import CentreClustering, MaximalIndependentSet

EDGES = torch.tensor([[0, 1, 2, 3, 0, 1, 0], [1, 2, 3, 0, 2, 1, 1]])  # four nodes, one loop, one parallel edge
RUNS = 12_000  # of an algorithm in one test; a third where it is written in Python
PATH = torch.ones(4, 4).triu(1).tril(1)  # four nodes in a row


def randn(*shape):
    return torch.randn(*shape, generator=seeded(8), dtype=torch.float64)


def but(shape, *keys):
    mask = torch.ones(shape, dtype=torch.bool)
    mask.view(-1)[list(keys)] = False
    return mask


def lengths(*n):
    return torch.tensor(n)


FAST = {
    "subset": lambda: gt.Subset(randn(5), 2),
    "subset-ragged": lambda: gt.Subset(randn(2, 4), torch.tensor([1, 2]), lengths=lengths(3, 4)),
    "subset-masked": lambda: gt.Subset(randn(2, 5), 2, mask=but((2, 5), 1, 7)),
    "permutation": lambda: gt.Permutation(randn(3), matrix=True),
    "permutation-ragged": lambda: gt.Permutation(randn(2, 4), matrix=True, lengths=lengths(3, 4)),
    "permutation-masked": lambda: gt.Permutation(randn(4), matrix=True, mask=but(4, 1)),
    "matching": lambda: gt.Matching(randn(2, 3)),
    "matching-ragged": lambda: gt.Matching(randn(2, 3, 3), lengths=lengths(2, 3)),
    "matching-masked": lambda: gt.Matching(randn(3, 3), mask=torch.eye(3).bool() | torch.ones(3, 3).triu().bool()),
    "tree": lambda: gt.SpanningTree(randn(4, 4)),
    "tree-ragged": lambda: gt.SpanningTree(randn(2, 4, 4), lengths=lengths(3, 4)),
    "tree-masked": lambda: gt.SpanningTree(randn(4, 4), mask=but((4, 4), 2)),
    "forest": lambda: gt.SpanningTree(randn(4, 4), components=2),
    "sparse": lambda: gt.SpanningTree.from_edges(randn(7), EDGES, 4),
    "sparse-ragged": lambda: gt.SpanningTree.from_edges(randn(2, 7), EDGES, 4, lengths=lengths(3, 4)),
    "sparse-masked": lambda: gt.SpanningTree.from_edges(randn(7), EDGES, 4, components=2, mask=but(7, 3)),
    "arborescence": lambda: gt.Arborescence(randn(3, 3)),
    "arborescence-ragged": lambda: gt.Arborescence(randn(2, 4, 4), lengths=lengths(2, 4)),
    "arborescence-masked": lambda: gt.Arborescence(randn(4, 4), root=1, mask=but((4, 4), 2)),
    "binary": lambda: gt.BinaryTree(randn(4)),
    "binary-ragged": lambda: gt.BinaryTree(randn(2, 4), lengths=lengths(2, 4)),
    "binary-masked": lambda: gt.BinaryTree(randn(5), mask=but(5, 2)),
}
LITERAL = {  # written in Python
    "custom-set": lambda: gt.Custom(randn(4), MaximalIndependentSet(PATH)),
    "custom-set-ragged": lambda: gt.Custom(
        randn(2, 4), MaximalIndependentSet(PATH), event_dim=1, lengths=lengths(3, 4)
    ),
    "custom-clusters": lambda: gt.Custom(randn(4), CentreClustering(PATH)),
    "custom-tree-masked": lambda: gt.Custom(randn(4, 4), twins.Kruskal.dense(4), mask=but((4, 4), 2)),
}
DISTS = FAST | LITERAL
LOG_PROB = [name for name in FAST if not name.startswith(("arborescence", "sparse"))]
RELAXED = [name for name in FAST if not name.startswith(("binary", "sparse", "forest"))]


def case(name):
    dist = DISTS[name]()
    return dist, lambda value: batched_objective(value, len(dist.event_shape))


def batched_objective(value, event_dim):
    """Neither linear nor centred, with weights that tell all structures apart: a grid of them, linear in row and
    column, gives every permutation the same loss."""
    flat = value.double().flatten(-event_dim)
    weights = torch.randn(flat.shape[-1], generator=seeded(3), dtype=torch.float64)
    return (flat @ weights).square() + 1.0


class FlatCritic(E.VectorCritic):
    def forward(self, noise, context=None):
        return super().forward(noise.flatten(-2), context)


def critic_for(dist):
    """Far from constant, so that each of RELAX's terms is large enough to be missed."""
    torch.manual_seed(0)
    keys = dist.key_shape.numel()
    critic = FlatCritic(keys, 16) if len(dist.key_shape) == 2 else E.VectorCritic(keys, 16)
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.mul_(3.0)
    return critic.double()


def surrogate_for(kind, dist):
    if kind == "mlp":
        torch.manual_seed(0)
        return E.MLPSurrogate(entries_of(dist))
    return {"linear": E.LinearSurrogate, "pairwise": E.PairwiseSurrogate}[kind]()


def entries_of(dist):
    """How many numbers a surrogate gets to see of a structure."""
    seen = []

    class Spy(E.LinearSurrogate):
        def forward(self, x, context=None):
            seen.append(x.shape[-1])
            return super().forward(x, context)

    E.SurrogateREINFORCE(Spy(), 1, 2).eval()(dist, lambda x: batched_objective(x, len(dist.event_shape)))
    return seen[0]


def fitted(kind, name, samples):
    """A SurrogateREINFORCE that has learnt a c and is frozen: its estimates are independent of each other."""
    dist, f = case(name)
    estimator = E.SurrogateREINFORCE(surrogate_for(kind, dist), samples, extra=4)
    for step in range(20):
        estimator(dist, f, generator=seeded(10 + step))
    return estimator.eval()


def p_value(estimator, name, replicates, **kwargs):
    dist, f = case(name)
    return check_unbiased(estimator, dist, f, replicates, generator=seeded(9), **kwargs).p_value


def replicates_of(name, samples, runs=RUNS):
    """The same number of runs whatever K is: about the same accuracy, for the same time."""
    return (runs // 3 if name in LITERAL else runs) // samples


def unbiased(estimator, name, runs=RUNS):
    each = estimator.samples + getattr(estimator, "extra", 0)
    return p_value(estimator, name, replicates_of(name, each, runs)) > FALSE_ALARM
