"""Checkpoints of a run: its state, and its best model. All of a file is checked for what it is before any is used: an
optimiser with moments of another size than its parameters would write past their end."""

import io
import math
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from gumtrace_experiments.store.archives import Foreign, Unreadable, is_like, unpacked
from gumtrace_experiments.store.errors import damaged, other_version
from gumtrace_experiments.store.files import write
from gumtrace_experiments.store.validation import are_metrics, has, is_count, is_duration, is_number

BEST, STATE = "best.pt", "state.pt"
NEXT = "next-best.pt"  # until the state knows of it
FORMAT = 1  # of checkpoints; those that do not say are of the first


def _is_best(x: Any) -> bool:
    """Where the best model was found, and how good it is."""
    return has(x, "iteration", "valid") and is_count(x["iteration"]) and are_metrics(x["valid"])


def _is_model(x: Any) -> bool:
    """Something of each name; what, the model checks. Torch has dictionaries of its own for them."""
    return type(x) in (dict, OrderedDict) and all(isinstance(name, str) for name in x)


def _is_optimiser(x: Any) -> bool:
    return has(x, "state", "param_groups") and has(x["state"]) and isinstance(x["param_groups"], list)


def _is_starts(x: Any) -> bool:
    """The scores of the starts so far, and the state of the best of them."""
    if not (has(x, "scores", "best") and isinstance(x["scores"], list) and (x["best"] is None or has(x["best"]))):
        return False
    return all(is_number(score) and not math.isnan(score) for score in x["scores"])


_BEST = {"iteration": is_count, "valid": are_metrics, "model": _is_model}
_STATE = {
    "iteration": is_count,
    "rows": is_count,
    "seconds": is_duration,
    "best": lambda x: x is None or _is_best(x),
    "model": _is_model,
    "optimiser": _is_optimiser,
}
_FIELDS = {STATE: _STATE, BEST: _BEST, NEXT: _BEST}
_MORE = {"format": lambda x: type(x) is int, "starts": lambda x: x is None or _is_starts(x)}  # not in all of them


def save(path: Path, state: dict[str, Any]) -> None:
    content = io.BytesIO()
    torch.save({"format": FORMAT, **state}, content)
    write(path, content.getvalue())


def load(path: Path) -> dict[str, Any] | None:
    """A checkpoint, its tensors on the CPU; None if there is none. Nothing in the file is run, and its fields are what
    they should be; whether they are those of a run, `state_problem` says. One of another version is refused."""
    if not path.exists():
        return None
    try:
        found = unpacked(path.read_bytes())
    except Foreign as error:
        raise other_version(path, str(error)) from None
    except Unreadable as error:
        raise damaged(path, str(error)) from None
    if not has(found):
        raise other_version(path, f"it holds a {type(found).__name__}")
    if type(written := found.get("format", FORMAT)) is int and written != FORMAT:
        raise other_version(path, f"it has format {written!r}, but this version reads format {FORMAT}")
    fields = _FIELDS[path.name]
    if missing := sorted(fields.keys() - found.keys()):
        raise other_version(path, f"it lacks {', '.join(missing)}")
    if problem := _fields_problem(found, {**fields, **_MORE}):
        raise damaged(path, problem)
    return found


def _fields_problem(found: dict[Any, Any], fields: dict[str, Any]) -> str | None:
    if found.keys() - fields.keys():
        return f"there is more in it than {', '.join(fields)}"
    wrong = [name for name, value in found.items() if not fields[name](value)]
    return f"invalid {', '.join(wrong)}" if wrong else None


def state_problem(
    state: dict[str, Any], *, iterations: int, starts: int, metric: str, optimiser: torch.optim.Optimizer
) -> str | None:
    """Why a run cannot resume from a state that was loaded, None if it can. The weights are the model's to check.

    Args:
        iterations, starts: of the run.
        metric: that decides which model is best.
    """
    return next(_state_problems(state, iterations, starts, metric, optimiser), None)


def _state_problems(
    state: dict[str, Any], iterations: int, count: int, metric: str, optimiser: torch.optim.Optimizer
) -> Iterator[str]:
    best, starts = state["best"], state.get("starts")
    if state["iteration"] > iterations:
        yield "an iteration that the run does not have"
    if best and best["iteration"] > state["iteration"]:
        yield "a best model that is still to come"
    if best and not math.isfinite(best["valid"].get(metric, math.nan)):
        yield f"a best model without {metric}"
    if not _fits(state["optimiser"], optimiser, state["iteration"]):
        yield "the optimiser's state is of other parameters"
    if starts is None:
        return
    if not 0 < len(starts["scores"]) < count:
        yield "other starts than the run has"
    if (chosen := starts["best"]) is not None:
        if chosen.keys() != _STATE.keys() or _fields_problem(chosen, _STATE):
            yield "an invalid state of the best start"
        else:
            yield from _state_problems(chosen, iterations, count, metric, optimiser)


def _fits(found: dict[str, Any], own: torch.optim.Optimizer, iteration: int) -> bool:
    """Whether a state is of the parameters that an optimiser has, and of no more updates than there were."""
    groups = own.state_dict()["param_groups"]
    if [group["params"] for group in groups] != [has(g, "params") and g["params"] for g in found["param_groups"]]:
        return False
    parameters = [p for group in own.param_groups for p in group["params"]]
    if found["state"].keys() != set(range(len(parameters))):
        return False
    for i, p in enumerate(parameters):
        theirs, mine = found["state"][i], own.state[p]
        if not has(theirs) or theirs.keys() != mine.keys():
            return False
        if not all(is_like(theirs[name], value) for name, value in mine.items()):
            return False
        if not 0 <= theirs["step"].item() <= iteration:  # nor nan
            return False
    return True
