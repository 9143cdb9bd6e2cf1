"""Checks that tests and users both run: exact laws by enumeration, samples against them, and the law of G | T."""

from gumtrace.diagnostics.conditional import ConditionalReport, check_conditional
from gumtrace.diagnostics.enumeration import Law, enumerate_traces, enumerate_values
from gumtrace.diagnostics.fit import FitReport, goodness_of_fit
from gumtrace.diagnostics.gradients import (
    BiasReport,
    GradientStatistics,
    check_unbiased,
    exact_gradient,
    gradient_statistics,
    gradients,
)

__all__ = [
    "BiasReport",
    "ConditionalReport",
    "FitReport",
    "GradientStatistics",
    "Law",
    "check_conditional",
    "check_unbiased",
    "enumerate_traces",
    "enumerate_values",
    "exact_gradient",
    "goodness_of_fit",
    "gradient_statistics",
    "gradients",
]
