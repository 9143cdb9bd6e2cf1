"""Checks that tests and users both run: exact distributions by enumeration, samples against them, G | T, gradients."""

from gumtrace.diagnostics.conditional import ConditionalReport, check_conditional
from gumtrace.diagnostics.enumeration import Law, TooManyTraces, enumerate_traces, enumerate_values
from gumtrace.diagnostics.fit import FitReport, goodness_of_fit
from gumtrace.diagnostics.gradients import BiasReport, check_unbiased, exact_gradient, gradients
from gumtrace.diagnostics.statistics import GradientStatistics, GradientTable, gradient_statistics
from gumtrace.diagnostics.variance import ExactVariance, exact_variance

__all__ = [
    "BiasReport",
    "ConditionalReport",
    "ExactVariance",
    "FitReport",
    "GradientStatistics",
    "GradientTable",
    "Law",
    "TooManyTraces",
    "check_conditional",
    "check_unbiased",
    "enumerate_traces",
    "enumerate_values",
    "exact_gradient",
    "exact_variance",
    "goodness_of_fit",
    "gradient_statistics",
    "gradients",
]
