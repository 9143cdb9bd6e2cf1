"""Gradient estimators: pick one, swap one, nothing else changes."""

from gumtrace.estimators.base import Estimator
from gumtrace.estimators.control import REBAR, RELAX
from gumtrace.estimators.critics import MatrixCritic, VectorCritic
from gumtrace.estimators.relaxed import GumbelRao, StochasticSoftmax, StraightThrough
from gumtrace.estimators.score import NoiseREINFORCE, StructureREINFORCE, TraceREINFORCE
from gumtrace.estimators.surrogate import SurrogateREINFORCE
from gumtrace.estimators.surrogates import LinearSurrogate, MLPSurrogate, PairwiseSurrogate

__all__ = [
    "REBAR",
    "RELAX",
    "Estimator",
    "GumbelRao",
    "LinearSurrogate",
    "MLPSurrogate",
    "MatrixCritic",
    "NoiseREINFORCE",
    "PairwiseSurrogate",
    "StochasticSoftmax",
    "StraightThrough",
    "StructureREINFORCE",
    "SurrogateREINFORCE",
    "TraceREINFORCE",
    "VectorCritic",
]
