"""Samples against the exact distribution: a chi-square test over all traces."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from gumtrace.diagnostics.enumeration import enumerate_traces
from gumtrace.structures.joint import as_structure
from gumtrace.traces.trace import Trace

RARE = 5.0  # outcomes expected less often are put into one bin, so that the statistic has a chi-square distribution


@dataclass(frozen=True)
class FitReport:
    """A right sampler gives a p_value uniform on (0, 1); below 1e-6 is one false alarm in a million."""

    samples: int
    bins: int
    chi_square: float
    p_value: float
    impossible: int  # samples that are no outcome of the enumeration at all


def goodness_of_fit(
    dist: Distribution, samples: int = 1_000_000, *, generator: torch.Generator | None = None
) -> FitReport:
    """Draws traces of an unbatched distribution and compares their frequencies with `trace_log_prob`.

    >>> import gumtrace as gt
    >>> d = gt.Subset(torch.tensor([0.0, 1.0, 2.0]), k=2)
    >>> report = goodness_of_fit(d, 10_000, generator=torch.Generator().manual_seed(0))
    >>> report.impossible, report.p_value > 1e-6
    (0, True)
    """
    dist = as_structure("goodness_of_fit", dist)
    law = enumerate_traces(dist)
    assert isinstance(law.outcomes, Trace)
    known, order = _fingerprints(law.outcomes).sort()
    seen = _fingerprints(dist.sample_trace((samples,), generator=generator))
    place = torch.searchsorted(known, seen).clamp(max=len(known) - 1)
    found = known[place] == seen
    counts = torch.bincount(order[place[found]], minlength=len(known)).double()
    expected = law.log_prob.detach().double().exp() * samples
    counts, expected = _merge_rare(counts, expected)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    freedom, half = torch.tensor([(len(counts) - 1) / 2, chi_square / 2], dtype=torch.float64, device="cpu")
    p_value = float(torch.special.gammaincc(freedom, half)) if freedom else 1.0
    impossible = samples - int(found.sum())
    return FitReport(samples, len(counts), chi_square, p_value if impossible == 0 else 0.0, impossible)


def _merge_rare(counts: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    rare = expected < RARE
    if not rare.any():
        return counts, expected
    if expected[rare].sum() < RARE:  # not even together are they often enough: take the rarest of the others along
        rare = rare | (expected == expected[~rare].min()) if (~rare).any() else rare
    counts = torch.cat([counts[~rare], counts[rare].sum(0, keepdim=True)])
    return counts, torch.cat([expected[~rare], expected[rare].sum(0, keepdim=True)])


def _fingerprints(trace: Trace) -> Tensor:
    """A 64-bit number for each trace: equal for equal traces, and only for them but for one pair in 10^19."""
    rows = (trace.choices if trace.choices.shape[-1] > 0 else trace.links).flatten(1).long().cpu()
    weights = torch.randint(-(2**62), 2**62, (10_000,), generator=torch.Generator().manual_seed(0), device="cpu")
    return ((rows + 1) * weights[: rows.shape[-1]]).sum(-1)  # -1, where a decision was not taken, counts nothing
