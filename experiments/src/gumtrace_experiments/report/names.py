"""The names of estimators in tables and figures."""

from typing import Any

from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments.registry import known

_BIASED_FIRST = sorted(ESTIMATORS, key=lambda name: ESTIMATORS[name].unbiased)  # as in the paper's tables
_LIKELIHOODS = {"TraceLikelihood": "Trace likelihood", "MatrixTreeCRF": "Matrix-tree CRF"}  # in place of an estimator
_BASELINES = {"RandomSubset": "Random subset", "FirstTokens": "First tokens", "FullText": "Full text"}  # likewise
_LABELS = {name: ESTIMATORS[name].label for name in _BIASED_FIRST} | _LIKELIHOODS | _BASELINES
UNBIASED = "†"  # the mark


def family(estimator: str, experiment: str = "") -> str:
    """The name of an estimator, whatever its settings. One that only this experiment has may have a `label` of its own.

    >>> family("TraceREINFORCE"), family("StochasticSoftmax")
    ('T-REINFORCE+', 'SST')
    """
    if estimator in _LABELS or (found := known(experiment)) is None:
        return _LABELS.get(estimator, estimator)
    own = found.config_type.estimators.get(estimator)
    return vars(own).get("label", estimator) if own else estimator  # an inherited label is another one's


def title(config: dict[str, Any], experiment: str = "") -> str:
    """The name of an estimator with the number of its samples.

    >>> title({"estimator": "TraceREINFORCE", "samples": 8}), title({"estimator": "RELAX", "samples": 1})
    ('T-REINFORCE+ (K = 8) †', 'RELAX †')
    >>> title({"estimator": "TraceREINFORCE", "samples": 1}), title({"estimator": "StochasticSoftmax", "samples": 1})
    ('T-REINFORCE †', 'SST')
    >>> title({"estimator": "StochasticSoftmax", "samples": 1, "kind": "binary"})
    'SST, binary'
    """
    samples = config.get("samples", 1)
    name = family(config["estimator"], experiment)
    name = f"{name} (K = {samples})" if samples > 1 else name.removesuffix("+")
    return marked(config["estimator"], ", ".join([name, *kind(config)]))


def kind(config: dict[str, Any]) -> tuple[str, ...]:
    """The relaxation, where an experiment has several of them to choose from: each has a row of its own."""
    known = ESTIMATORS.get(config["estimator"])
    return (str(config["kind"]),) if known is not None and "kind" in config and "kind" in known.settings() else ()


def marked(estimator: str, name: str) -> str:
    """The name, with a mark if the estimator is known to be unbiased: records do not say it of others."""
    unbiased = ESTIMATORS[estimator].unbiased if estimator in ESTIMATORS else estimator in _LIKELIHOODS
    return f"{name} {UNBIASED}" if unbiased else name


def batch(setting: dict[str, Any]) -> tuple[int, int]:
    """How many items an update has, and how many structures of each.

    >>> batch({"calls": 128, "samples": 8, "estimator": "TraceREINFORCE"})
    (16, 8)
    """
    known, samples = ESTIMATORS.get(setting["estimator"]), setting["samples"]
    return setting["calls"] // (samples * (known.calls_per_sample if known else 1)), samples


def place(estimator: str) -> tuple[int, str]:
    """To sort by: those the paper knows come first."""
    return (list(_LABELS).index(estimator) if estimator in _LABELS else len(_LABELS)), estimator
