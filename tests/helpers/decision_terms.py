"""Objectives that are sums over decisions, for every structure: neither linear nor centred, with terms that depend on
all that they may depend on."""

import torch
from common import seeded

from gumtrace.estimators import DecisionGains, DecisionTerms
from gumtrace.structures import Arborescence, BinaryTree


def weights_of(size, seed):
    return torch.randn(size, generator=seeded(seed), dtype=torch.float64)


def before(trace, x):
    """Numbers of decisions, added up over each decision and those before it, (*S, decisions)."""
    structure = trace.layout.structure
    if structure is BinaryTree:  # of the ancestors
        total, up = x, trace.links.long()
        for _ in range(x.shape[-1]):
            total = total + torch.where(up >= 0, x.gather(-1, up.clamp(min=0)), 0.0)
            up = torch.where(up >= 0, trace.links.long().gather(-1, up.clamp(min=0)), up)
        return total
    if structure is Arborescence:  # of the supernodes inside: members come before the cycles they are in
        total, around = x.clone(), trace.links.long()
        for slot in range(x.shape[-1]):
            at = around[..., slot : slot + 1]
            total.scatter_add_(-1, at.clamp(min=0), torch.where(at >= 0, total[..., slot : slot + 1], 0.0))
        return total
    return x.cumsum(-1)


def terms(trace):
    """(Σ weights of the winners so far)², more for some slots than for others."""
    keys = trace.layout.geometry.keys
    won = trace.winners
    own = torch.where(won >= 0, weights_of(max(keys, 1), 3)[won.clamp(min=0)], 0.0)
    return before(trace, own).square() * (1 + 0.3 * torch.arange(won.shape[-1]) % 2) + 1.0


def gain_weights(trace):
    """Of what was decided before: 1 and the square of the winners' weights, the decision's own left out."""
    own = torch.where(trace.winners >= 0, weights_of(trace.layout.geometry.keys, 4)[trace.winners.clamp(min=0)], 0.0)
    return 1.0 + (before(trace, own) - own).square()


def by_terms(dist):
    return DecisionTerms(terms)


def by_gains(dist):
    gains = weights_of(dist.key_shape.numel(), 5).reshape(dist.key_shape) + 1.0
    return DecisionGains(gains, gain_weights)


OBJECTIVES = {"terms": by_terms, "gains": by_gains}
