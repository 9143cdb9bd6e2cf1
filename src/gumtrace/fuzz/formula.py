"""The one formula by explicit sets, in float64: every decision with its winner and all its members written out.

    log P(T) = Σ_b log λ[T_b] - log Λ_b = -Σ_b log Σ_{k ∈ M_b} e^(x_k - x[T_b])

Log-rates x are (items, keys); winners and members are those of `oracles.Outcome`. Differences to the winner are taken
first, so nothing cancels.
"""

from collections.abc import Iterator

import numpy as np

from gumtrace.fuzz.oracles import Outcome

CHUNK = 1_000_000  # numbers (items, decisions, keys) at a time


def log_prob(x: np.ndarray, outcome: Outcome) -> np.ndarray:
    """log P(T), (items,)."""
    out = np.zeros(len(x))
    for i in _chunks(outcome):
        out[i] = -_ahead(x[i], outcome.at(i)).sum(-1)
    return out


def log_totals(x: np.ndarray, outcome: Outcome) -> np.ndarray:
    """log Λ, (items, decisions); 0 where there was no decision."""
    out = np.zeros(outcome.winners.shape)
    for i in _chunks(outcome):
        top, weights = _weights(x[i], outcome.at(i))
        out[i] = np.where(outcome.winners[i] >= 0, top + np.log(np.maximum(weights.sum(-1), 1.0)), 0.0)
    return out


def gradient(x: np.ndarray, outcome: Outcome, weight: np.ndarray, added: bool = False) -> np.ndarray:
    """d/dx of Σ weight · log P(T) by item, (items, keys); or its two terms added, as a measure of their size."""
    out = np.zeros(x.shape)
    for i in _chunks(outcome):
        won, lost = _won(outcome.at(i)), chances(x[i], outcome.at(i)).sum(1)
        out[i] = weight[i, None] * (won + lost if added else won - lost)
    return out


def curvature(x: np.ndarray, outcome: Outcome, along: np.ndarray) -> np.ndarray:
    """The second derivative of log P(T) by item, times a vector `along` (items, keys)."""
    out = np.zeros(x.shape)
    for i in _chunks(outcome):
        p = chances(x[i], outcome.at(i))  # (items, decisions, keys)
        mean = np.einsum("ibk,ik->ib", p, along[i])
        out[i] = np.einsum("ibk,ib->ik", p, mean) - p.sum(1) * along[i]
    return out


def chances(x: np.ndarray, outcome: Outcome) -> np.ndarray:
    """λ_k / Λ_b of every member, (items, decisions, keys): how likely it was to win."""
    _, weights = _weights(x, outcome)
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1.0)


def conditional_gradient(x: np.ndarray, outcome: Outcome, noise: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """d/dx of Σ weight · G by item, for G given T as it is drawn: E_k = Σ_{b ∋ k} m_b + [no winner] fresh_k, where m_b
    Λ_b and fresh_k λ_k stay what they are. The minima follow from the noise of the winners."""
    out = np.zeros(x.shape)
    for i in _chunks(outcome):
        part, racing = outcome.at(i), np.isfinite(x[i])
        e = np.exp(-np.where(racing, noise[i], 0.0))  # (items, keys)
        minima = solve_minima(e, part)  # (items, decisions)
        shared = np.einsum("ibk,ib->ik", part.members, minima)
        fresh = np.where(_won(part) > 0, 0.0, e - shared)
        pull = np.where(racing, weight[i] / e, 0.0)  # dG = -dE / E
        by_decision = np.einsum("ibk,ik->ib", part.members, pull) * minima
        out[i] = pull * fresh + np.einsum("ibk,ib->ik", chances(x[i], part), by_decision)
    return out


def solve_minima(e: np.ndarray, outcome: Outcome) -> np.ndarray:
    """m_b of every decision, (items, decisions), from E (items, keys) of the winners: E[T_b] is the sum of the minima
    of all decisions in which T_b raced."""
    if outcome.members.size == 0:
        return np.zeros(outcome.winners.shape)
    there = outcome.winners >= 0
    winner = np.maximum(outcome.winners, 0)
    raced = outcome.members.transpose(0, 2, 1)[np.arange(len(winner))[:, None], winner]  # (items, winner, decision)
    system = np.where(there[:, :, None], raced, np.eye(winner.shape[1]))
    right = np.where(there, np.take_along_axis(e, winner, 1), 0.0)
    return np.linalg.solve(system, right[:, :, None])[:, :, 0]


def _weights(x: np.ndarray, outcome: Outcome) -> tuple[np.ndarray, np.ndarray]:
    """The largest log-rate of each decision, (items, decisions), and all rates over that one, (items, decisions,
    keys)."""
    with np.errstate(over="ignore", invalid="ignore"):
        exponents = np.where(outcome.members, x[:, None, :], -np.inf)
        top = np.where(outcome.members.any(-1), exponents.max(-1, initial=-np.inf), 0.0)
        return top, np.exp(exponents - top[:, :, None])


def _ahead(x: np.ndarray, outcome: Outcome) -> np.ndarray:
    """-log of the probability of each decision, (items, decisions)."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        apart = np.where(outcome.members, x[:, None, :] - _of_winners(x, outcome)[:, :, None], -np.inf)
        top = np.maximum(apart.max(-1, initial=-np.inf), 0.0)  # the winner is at 0
        above = np.where(np.isfinite(top), np.log(np.exp(apart - top[:, :, None]).sum(-1)), 0.0)
        return np.where(outcome.winners >= 0, top + above, 0.0)


def _of_winners(x: np.ndarray, outcome: Outcome) -> np.ndarray:
    return np.take_along_axis(x, np.maximum(outcome.winners, 0), 1) if x.shape[1] else np.zeros(outcome.winners.shape)


def _won(outcome: Outcome) -> np.ndarray:
    """How many decisions each key won, (items, keys)."""
    items, keys = len(outcome.winners), outcome.members.shape[2]
    count = np.zeros((items, keys + 1))
    np.add.at(count, (np.arange(items)[:, None], np.where(outcome.winners < 0, keys, outcome.winners)), 1)
    return count[:, :keys]


def _chunks(outcome: Outcome) -> Iterator[slice]:
    items, decisions, keys = outcome.members.shape
    size = max(1, CHUNK // max(1, decisions * keys))
    return (slice(start, start + size) for start in range(0, items, size))
