"""How lines look: an estimator has one colour in all figures of all experiments, whichever others are shown."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gumtrace.plotting.style import INK, SERIES, SOFT
from gumtrace_experiments.report.groups import Choice
from gumtrace_experiments.report.names import place

Look = dict[str, Any]  # keywords of matplotlib

BLUE, VERMILION, GREEN, PINK, ORANGE, SKY = SERIES[:6]  # Okabe and Ito's, for those that most figures show
_HUES = {
    "StochasticSoftmax": BLUE,
    "NoiseREINFORCE": VERMILION,
    "TraceREINFORCE": GREEN,
    "RELAX": PINK,
    "REBAR": ORANGE,
    "GumbelRao": SKY,
    "StraightThrough": "#4b0092",
    "IMLE": "#8b0000",
    "MarginalStraightThrough": "#00545c",
    "StructureREINFORCE": "#ddcc77",
    "SurrogateREINFORCE": "#aa4499",
    "UnorderedREINFORCE": "#00366b",
    "DecisionREINFORCE": "#882255",
}
_OTHERS = (INK, SOFT, SERIES[8])  # likelihoods, baselines, fixed orders, and estimators that have no hue
_DASHES = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (8, 2, 1, 1, 1, 2)))


def looks(shown: Sequence[Choice]) -> dict[str, Look]:
    """Of each name, in the order of tables. Names of one colour, such as the relaxations of one estimator, differ in
    their dashes."""
    found: dict[str, Look] = {}
    count: Counter[str] = Counter()
    for choice in sorted(shown, key=lambda c: (c.place, c.name)):
        if choice.name not in found:
            colour = _colour(choice)
            found[choice.name] = {"color": colour, "linestyle": _DASHES[count[colour] % len(_DASHES)]}
            count[colour] += 1
    return found


def _colour(choice: Choice) -> str:
    if choice.is_of_estimator and choice.estimator in _HUES:
        return _HUES[choice.estimator]
    number = place(choice.estimator)[0] if choice.row is None else choice.row[0]
    return _OTHERS[number % len(_OTHERS)]
