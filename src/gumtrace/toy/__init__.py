"""The toy experiment: optimise E[objective] over the logits of a structure, with every estimator that applies."""

from gumtrace.toy.optimise import Curve, optimise
from gumtrace.toy.problems import SIZES, Problem, applicable, left_out, problem

__all__ = ["SIZES", "Curve", "Problem", "applicable", "left_out", "optimise", "problem"]
