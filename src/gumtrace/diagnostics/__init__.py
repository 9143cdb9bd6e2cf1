"""Checks that tests and users both run: exact laws by enumeration, samples against them, and the law of G | T."""

from gumtrace.diagnostics.conditional import ConditionalReport, check_conditional
from gumtrace.diagnostics.enumeration import Law, enumerate_traces, enumerate_values
from gumtrace.diagnostics.fit import FitReport, goodness_of_fit

__all__ = [
    "ConditionalReport",
    "FitReport",
    "Law",
    "check_conditional",
    "enumerate_traces",
    "enumerate_values",
    "goodness_of_fit",
]
