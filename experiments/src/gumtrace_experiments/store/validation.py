"""What the fields of a file may be. Files come from elsewhere: whatever is read is checked before it is used."""

import math
from typing import Any


def is_count(x: Any) -> bool:
    """
    >>> is_count(0), is_count(-1), is_count(True), is_count(1.0)
    (True, False, False, False)
    """
    return type(x) is int and x >= 0


def is_number(x: Any) -> bool:
    """Nan and the infinities are numbers, and truth values are none."""
    return type(x) in (int, float)


def is_number_or_none(x: Any) -> bool:
    return x is None or is_number(x)


def is_duration(x: Any) -> bool:
    return is_number(x) and 0 <= x < math.inf


def has(body: Any, *names: str) -> bool:
    """Whether it is a dict with these keys, no subclass: a file may give those attributes that hide their methods."""
    return type(body) is dict and all(name in body for name in names)


def are_metrics(x: Any) -> bool:
    """Names with numbers."""
    return has(x) and all(isinstance(name, str) and is_number(value) for name, value in x.items())


def result_problem(result: Any) -> str | None:
    """What is wrong with the content of a `result.json`; None if nothing is."""
    if not has(result, "valid", "test"):
        return "the result lacks valid or test"
    if not all(are_metrics(result.get(split, {})) for split in ("train", "valid", "test")):
        return "the result has metrics that are not numbers"
    stds, starts = result.get("gradient_std", {}), result.get("starts", [])
    wrong = {
        "iteration": not (result.get("iteration") is None or is_count(result["iteration"])),
        "seconds": not is_duration(result.get("seconds", 0)),
        "gradient_std": not (has(stds) and all(map(is_number_or_none, stds.values()))),
        "starts": not (isinstance(starts, list) and all(map(is_number_or_none, starts))),
        "diverged": not isinstance(result.get("diverged", ""), str),
    }
    names = [name for name, found in wrong.items() if found]
    return f"the result has an invalid {', '.join(names)}" if names else None
