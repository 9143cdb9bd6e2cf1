"""What the tests of gradient estimators share: an objective, critics, surrogates, and runs of the small cases."""

import torch
from cases import DISTS, FAST, LITERAL
from common import FALSE_ALARM, seeded

from gumtrace import estimators as E
from gumtrace.diagnostics import check_unbiased
from gumtrace.estimators.control import ControlVariate

RUNS = 12_000  # of an algorithm in one test; a third where it is written in Python
LOG_PROB = [name for name, build in FAST.items() if build().has_log_prob]
ANY = [name for name, cls in E.ESTIMATORS.items() if not cls.differentiates]  # take any objective
SMOOTH = [name for name, cls in E.ESTIMATORS.items() if cls.differentiates]
CONTROL = [name for name, cls in E.ESTIMATORS.items() if issubclass(cls, ControlVariate)]  # train on their variance


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
    critic = FlatCritic(keys, hidden=16) if len(dist.key_shape) == 2 else E.VectorCritic(keys, hidden=16)
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.mul_(3.0)
    return critic.double()


def make(name, dist, **settings):
    """The estimator of that name, with a critic for this structure, in double precision; a step that is large whatever
    the objective is."""
    settings = {"samples": 3, "extra": 4, "draws": 2, "adaptive": True, **settings}
    settings.setdefault("leave_one_out", settings["samples"] > 1)  # one sample on purpose
    return E.ESTIMATORS[name].from_settings(settings, critic=lambda: critic_for(dist)).double()


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

    spied = E.SurrogateREINFORCE(surrogate=Spy(), samples=1, extra=2).eval()
    spied(dist, lambda x: batched_objective(x, len(dist.event_shape)))
    return seen[0]


def fitted(kind, name, samples):
    """A SurrogateREINFORCE that has learned a c and is frozen: its estimates are independent of each other."""
    dist, f = case(name)
    estimator = E.SurrogateREINFORCE(surrogate=surrogate_for(kind, dist), samples=samples, extra=4)
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
    """Twice as many runs where some are not evaluated."""
    extra = getattr(estimator, "extra", 0)
    replicates = replicates_of(name, estimator.samples + extra, 2 * runs if extra else runs)
    return p_value(estimator, name, replicates) > FALSE_ALARM
