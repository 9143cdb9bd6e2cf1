"""Gradient estimators: pick one, swap one, nothing else changes."""

from gumtrace.estimators.base import Estimator
from gumtrace.estimators.control import REBAR, RELAX
from gumtrace.estimators.critics import MatrixCritic, VectorCritic
from gumtrace.estimators.decision import DecisionREINFORCE
from gumtrace.estimators.graph_surrogate import GraphSurrogate
from gumtrace.estimators.hard import IMLE, MarginalStraightThrough
from gumtrace.estimators.mlp_surrogate import MLPSurrogate
from gumtrace.estimators.relaxed import GumbelRao, StochasticSoftmax, StraightThrough
from gumtrace.estimators.score import NoiseREINFORCE, StructureREINFORCE, TraceREINFORCE
from gumtrace.estimators.surrogate import SurrogateREINFORCE
from gumtrace.estimators.surrogates import LinearSurrogate, PairwiseSurrogate
from gumtrace.estimators.terms import DecisionGains, DecisionTerms
from gumtrace.estimators.unordered import UnorderedREINFORCE

ESTIMATORS: dict[str, type[Estimator]] = {
    cls.__name__: cls
    for cls in (
        NoiseREINFORCE,
        TraceREINFORCE,
        StructureREINFORCE,
        UnorderedREINFORCE,
        DecisionREINFORCE,
        SurrogateREINFORCE,
        RELAX,
        REBAR,
        StochasticSoftmax,
        StraightThrough,
        GumbelRao,
        IMLE,
        MarginalStraightThrough,
    )
}
"""Every estimator by name, in the order of tables. All other lists of estimators are made from it."""

__all__ = [
    "ESTIMATORS",
    "IMLE",
    "REBAR",
    "RELAX",
    "DecisionGains",
    "DecisionREINFORCE",
    "DecisionTerms",
    "Estimator",
    "GraphSurrogate",
    "GumbelRao",
    "LinearSurrogate",
    "MLPSurrogate",
    "MarginalStraightThrough",
    "MatrixCritic",
    "NoiseREINFORCE",
    "PairwiseSurrogate",
    "StochasticSoftmax",
    "StraightThrough",
    "StructureREINFORCE",
    "SurrogateREINFORCE",
    "TraceREINFORCE",
    "UnorderedREINFORCE",
    "VectorCritic",
]
