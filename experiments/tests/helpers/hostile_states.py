"""States that nobody would write, of plain tensors and values: changes to the state of a run that was stopped at
iteration 4 of 12, of an experiment whose score is called elbo."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

State = dict[str, Any]
Change = Callable[[State], Any]


def _moment(state: State) -> tuple[dict[str, Any], torch.Tensor]:
    """The entry of the largest parameter in the optimiser's state, and its first moment."""
    entries = state["optimiser"]["state"].values()
    entry = max(entries, key=lambda entry: entry["exp_avg"].numel())
    return entry, entry["exp_avg"]


def _moments(change: Callable[[torch.Tensor], Any]) -> Change:
    """Both of them."""

    def apply(state: State) -> None:
        entry, _ = _moment(state)
        for name in ("exp_avg", "exp_avg_sq"):
            entry[name] = change(entry[name])

    return apply


def _step(value: Any) -> Change:
    return lambda state: _moment(state)[0].update(step=value)


def _field(**fields: Any) -> Change:
    return lambda state: state.update(fields)


def _weight(change: Callable[[torch.Tensor], Any]) -> Change:
    def apply(state: State) -> None:
        name = max(state["model"], key=lambda name: state["model"][name].numel())
        state["model"][name] = change(state["model"][name])

    return apply


def _stretched(x: torch.Tensor) -> torch.Tensor:
    """Many numbers over the memory of one."""
    return torch.zeros(()).expand(x.shape)


def _shadowed(state: State) -> None:
    state["model"].keys = state["model"]._metadata = "not what torch puts there"


_TENSORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "empty": lambda x: x.new_zeros(0),
    "shorter": lambda x: x[:1].clone(),
    "longer": lambda x: torch.cat([x, x]),
    "of another number of dimensions": lambda x: x.flatten(),
    "transposed": lambda x: x.new_zeros(x.shape[::-1]),
    "float64": lambda x: x.double(),
    "bfloat16": lambda x: x.bfloat16(),
    "integers": lambda x: x.long(),
    "complex": lambda x: x.to(torch.complex64),
    "sparse": lambda x: x.to_sparse(),
    "on no device": lambda x: x.to("meta"),
    "stretched": _stretched,
    "a parameter": lambda x: nn.Parameter(x),
    "a list": lambda x: x.tolist(),
    "none": lambda x: None,
}

REFUSED: dict[str, Change] = {
    **{f"moments: {name}": _moments(change) for name, change in _TENSORS.items()},
    **{f"a weight: {name}": _weight(change) for name, change in _TENSORS.items()},
    "a step that is text": _step("4"),
    "a step that is a number": _step(4),
    "a step of many": _step(torch.ones(10_000)),
    "a step in brackets": _step(torch.ones(1)),
    "a step that is nan": _step(torch.tensor(torch.nan)),
    "a step that is infinite": _step(torch.tensor(torch.inf)),
    "a negative step": _step(torch.tensor(-1.0)),
    "a step to come": _step(torch.tensor(5.0)),
    "a parameter without moments": lambda s: s["optimiser"]["state"].pop(0),
    "moments of one parameter more": lambda s: s["optimiser"]["state"].update({999: _moment(s)[0]}),
    "one moment": lambda s: _moment(s)[0].pop("exp_avg_sq"),
    "three moments": lambda s: _moment(s)[0].update(max_exp_avg_sq=_moment(s)[1]),
    "moments in a list": lambda s: s["optimiser"]["state"].update({0: [1, 2]}),
    "an optimiser that is a list": _field(optimiser=[]),
    "an optimiser without groups": lambda s: s["optimiser"].pop("param_groups"),
    "groups in a dictionary": lambda s: s["optimiser"].update(param_groups={}),
    "no groups": lambda s: s["optimiser"].update(param_groups=[]),
    "groups of nothing": lambda s: s["optimiser"].update(param_groups=[None] * len(s["optimiser"]["param_groups"])),
    "states in a list": lambda s: s["optimiser"].update(state=[]),
    **{
        f"{name} {value!r}": _field(**{name: value})
        for name in ("iteration", "rows")
        for value in ("4", 4.0, float("nan"), -1, 10**9, 2**2000, True, None, [4], torch.tensor(4))
    },
    **{f"seconds {x!r}": _field(seconds=x) for x in ("1", float("nan"), float("inf"), -1.0, None, torch.ones(()))},
    **{f"best {x!r}": _field(best=x) for x in ([], {}, 4, {"iteration": 4}, {"iteration": 4, "valid": {}})},
    "a best score that is nan": lambda s: s["best"]["valid"].update(elbo=float("nan")),
    "a best score that is text": lambda s: s["best"]["valid"].update(elbo="-1"),
    "a best model to come": lambda s: s["best"].update(iteration=8),
    "another best model": lambda s: s["best"].update(iteration=2),
    "a format that is text": _field(format="1"),
    "a format of tensors": _field(format=torch.ones(2)),
    "a field more": _field(generator=torch.zeros(5056, dtype=torch.uint8)),
    "weights in a list": _field(model=[]),
    "weights without names": lambda s: s["model"].update({0: torch.zeros(())}),
    "a weight more": lambda s: s["model"].update(more=torch.zeros(())),
    "starts in a list": _field(starts=[]),
    "starts that the run does not have": _field(starts={"scores": [1.0], "best": None}),
    "scores of starts that are none": _field(starts={"scores": ["1"], "best": None}),
}
EXACT: dict[str, Change] = {  # these are unusual, and hold the same numbers
    "moments in another order of memory": _moments(lambda x: x.mT.contiguous().mT if x.ndim > 1 else x),
    "moments in a part of other memory": _moments(lambda x: torch.stack([x, x])[1]),
    "moments that have gradients": _moments(lambda x: x.clone().requires_grad_()),
    "weights whose dictionary has attributes": _shadowed,
}


def rewrite(path: Path, change: Change) -> None:
    """A checkpoint, with a change to what it holds."""
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)
