"""What the fuzzer does in turn: every structure, in-place edits, laws, estimators, requests. Case i of a seed is a
function of both alone, and so is all that is drawn for it."""

import re
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from gumtrace.fuzz import checks, drawing, edits, estimators, laws, long, noise, numbers, requests, shapes, values
from gumtrace.fuzz.cases import Case
from gumtrace.fuzz.shrink import SECONDS, shrunk
from gumtrace.fuzz.structures import STRUCTURES
from gumtrace.fuzz.subject import Subject, Wrong

LONGEST = 8000  # characters of a script
REQUESTS = 20  # in a case
OTHERS = ("long", "edits", "laws", "estimators", "requests")
ROUND = (*STRUCTURES, *OTHERS)  # one case of each, and again
CHECKS = (  # of items
    checks.racing,
    checks.traces,
    checks.support,
    checks.log_prob,
    checks.curvature,
    noise.sampling,
    noise.density,
    noise.given_any_trace,
    shapes.unchecked,
    shapes.indexing,
    shapes.mode,
    values.log_prob_of_value,
    values.relaxed,
)


@dataclass(frozen=True)
class Failure:
    """What went wrong in a case, and a script that shows it."""

    index: int
    job: str
    check: str
    message: str
    script: str

    @property
    def name(self) -> str:
        return f"{self.job}: {self.check}"


@dataclass
class Report:
    """What came of one case."""

    index: int
    job: str
    items: int = 0
    tally: Counter = field(default_factory=Counter)  # check -> how many items went through it
    failures: list[Failure] = field(default_factory=list)
    last: bool = False  # the worker can do no more: its device is in an error


class Job(NamedTuple):
    name: str
    subject: Any  # a case, or requests
    find: Callable[[Any, Counter], list[Wrong]]  # all that is wrong with it


def job(seed: int, index: int, device: str = "cpu") -> Job:
    """Case `index` of a seed."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, index]))
    turn, place = divmod(index, len(ROUND))
    name = ROUND[place]
    structure = list(STRUCTURES)[turn % len(STRUCTURES)]
    dtype = numbers.some_dtype(rng, turn)
    wide = torch.float64 if dtype == torch.float64 else torch.float32  # in which a half type is computed
    if name == "requests":
        count = 0 if turn < numbers.SINGLE else REQUESTS  # the explorer computes in float64
        return Job(name, [requests.drawn(rng) for _ in range(count)], _found(_requests))
    if name == "edits":
        small = drawing.Sizes(0.9, 4000, 12, 400)
        return Job(name, drawing.draw(structure, rng, small, dtype, device), _found(edits.edited))
    if name == "long":
        return Job(name, long.draw(long.STRUCTURES[turn % len(long.STRUCTURES)], rng, wide, device), _found(long.long))
    if name == "laws":
        return Job(name, drawing.draw_small(structure, rng, wide, device), _found(laws.laws))
    if name == "estimators":
        return _estimators(rng, turn, wide, device)
    return Job(name, drawing.draw(name, rng, drawing.Sizes.at(turn, device), dtype, device), _item_failures)


def _estimators(rng: np.random.Generator, turn: int, dtype: torch.dtype, device: str) -> Job:
    """Every estimator in turn, each time on another structure; now and then on nothing at all."""
    structures, names = list(STRUCTURES), estimators.NAMES
    if turn % 5 == 4:
        structure = structures[turn // 5 % len(structures)]
        return Job("estimators", drawing.draw_nothing(structure, rng, dtype, device), _found(estimators.empty))
    turn -= turn // 5
    name = names[turn % len(names)]
    first = turn // len(names) + turn
    order = [structures[(first + shift) % len(structures)] for shift in range(len(structures))]
    cases = (drawing.draw_small(structure, rng, dtype, device).change(extra=name) for structure in order)
    case = next(case for case in cases if estimators.serves(name, case))
    return Job("estimators", case, _found(estimators.estimates))


def _requests(asked: list[Any], tally: Counter) -> None:
    for one in asked:
        requests.answered(one, tally)


def _found(check: Callable[[Any, Counter], None]) -> Callable[[Any, Counter], list[Wrong]]:
    def find(subject: Any, tally: Counter) -> list[Wrong]:
        try:
            check(subject, tally)
        except Exception as error:
            return [as_wrong(error, check.__name__)]
        return []

    return find


def _item_failures(case: Case, tally: Counter, which: Collection[Callable] = CHECKS) -> list[Wrong]:
    """All checks of items; those after one that failed are made too."""
    found: list[Wrong] = []
    try:
        if checks.refused(case, tally):
            return found
        s = Subject(case, tally)
    except Exception as error:
        return [as_wrong(error, "construction")]
    for check in which:
        try:
            check(s)
        except Exception as error:
            found.append(as_wrong(error, check.__name__))
            found[-1].found_by = check
    return found


def run(seed: int, index: int, device: str = "cpu", known: Collection[str] = (), seconds: float = SECONDS) -> Report:
    """Run a case, and shrink what fails for as long as this in all, unless such failures are known already."""
    work = job(seed, index, device)
    report = Report(index, work.name)
    if work.name in (*STRUCTURES, "long"):
        report.items = work.subject.items
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = work.find(work.subject, report.tally)
        for wrong in found:
            failure = Failure(index, work.name, wrong.check, wrong.message, "\n".join(wrong.show))
            if failure.name not in known and isinstance(work.subject, Case):
                small, wrong = _shrunk(work, wrong, seconds / len(found))
                failure = Failure(index, work.name, wrong.check, wrong.message, script(small, wrong))
            report.failures.append(failure)
    return report


def as_wrong(error: Exception, where: str) -> Wrong:
    """An exception that nobody expected is a failure of the check that met it."""
    if isinstance(error, Wrong):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    last = f"{frames[-1].filename.rpartition('gumtrace/')[2]}, line {frames[-1].lineno}"
    ours = [frame.line for frame in frames if "gumtrace/fuzz" in frame.filename and frame.line]
    show = tuple(f"# at: {line}" for line in ours[-1:])
    return Wrong(f"{where} ({type(error).__name__})", f"{type(error).__name__}: {error} ({last})", None, show)


def _shrunk(work: Job, wrong: Wrong, seconds: float) -> tuple[Case, Wrong]:
    """The smallest case with the same failure, and what it says there."""
    reported = wrong
    find = work.find if wrong.found_by is None else partial(_item_failures, which=(wrong.found_by,))

    def fails(case: Case) -> bool:
        nonlocal reported
        try:
            same = [other for other in find(case, Counter()) if other.check == wrong.check]
        except Exception:  # a case that makes no sense
            return False
        reported = same[0] if same else reported
        return bool(same)

    return shrunk(work.subject, fails, wrong.item, seconds), reported


def script(case: Case, wrong: Wrong) -> str:
    """A few lines that show the failure."""
    lines = [*(wrong.case or case).script(), *wrong.show]
    if any("grad" in line for line in wrong.show):
        start = next(i for i, line in enumerate(lines) if line.startswith("d = "))
        lines.insert(start, "logits = logits.detach().requires_grad_()")
    if any(re.search(r"\b(inf|nan)\b", line) for line in lines):
        lines.insert(0, "from math import inf, nan")
    text = "\n".join([*lines, *(f"# {line}" for line in f"{wrong.check}: {wrong.message}".splitlines())])
    return text if len(text) < LONGEST else "# too long to print: replay the case"
