"""What the page shows of a run, as JSON: its keys, its noise as times of arrival, its frames."""

from typing import Any

import torch
from torch import Tensor

from gumtrace.explore.requests import SEEDS, STORIES, Request
from gumtrace.explore.stories import LARGEST_LOGIT, Options, Run, Story
from gumtrace.steps import Step
from gumtrace.structures.base import Structure


def catalogue() -> dict[str, Any]:
    """The structures there are, and how far logits and seeds go."""
    structures = [{"name": s.name, "title": s.title, "rule": s.rule} for s in STORIES.values()]
    return {"structures": structures, "largest_logit": LARGEST_LOGIT, "seeds": SEEDS}


def answer(request: Request) -> dict[str, Any]:
    """The whole run. `noise` holds what changes when the noise is drawn again given the trace."""
    story, options = request.story, request.options
    shown = story.racing(options)
    dist = distribution(request)
    drawn = dist.perturb(generator=torch.Generator().manual_seed(request.seed))
    run = Run(story, options, dist, dist.trace(drawn))
    return {
        "structure": story.name,
        "title": story.title,
        "options": [_choices(story, options, place) for place in range(len(story.options))],
        "picture": {"drawn": story.drawn, **story.picture(options)},
        "keys": [
            {"key": key, "label": run.key(key), "group": story.group(key, options), "logit": logit}
            for key, logit in zip(shown, request.logits, strict=True)
        ],
        "seed": request.seed,
        "redraw": request.redraw,
        "noise": _noise(request, run, drawn, shown),
        "frames": story.frames(run),
        "value": run.trace.value.tolist(),
        "log_prob": dist.trace_log_prob(run.trace).item(),
        "structure_log_prob": _structure_log_prob(dist, run.trace.value),
    }


def distribution(request: Request) -> Structure:
    """In float64, with the logits where they belong."""
    shape = request.story.shape(request.options)
    logits = torch.zeros(torch.Size(shape).numel(), dtype=torch.float64)
    logits[request.story.racing(request.options)] = torch.tensor(request.logits, dtype=torch.float64)
    return request.story.build(logits.reshape(shape), request.options)


def _noise(request: Request, run: Run, drawn: Tensor, shown: list[int]) -> dict[str, Any]:
    """Perturbed logits G and times E = e^-G, in the order of the keys; what the keys of each decision had spent in
    earlier ones; after a redraw, whether the algorithm took the same way again."""
    same = None
    if request.redraw is not None:
        generator = torch.Generator().manual_seed(SEEDS * request.redraw + request.seed)  # no seed of `perturb`
        drawn = run.dist.conditional(run.trace, generator=generator)
        same = bool(run.dist.trace(drawn).equals(run.trace))
    g = drawn.detach().flatten()
    times = g.neg().exp().tolist()
    return {
        "perturbed": g[shown].tolist(),
        "times": [times[key] for key in shown],
        "spent": _spent(run.steps, times),
        "same_trace": same,
    }


def _spent(steps: list[Step], times: list[float]) -> list[list[float]]:
    """For each decision, how much of each member's time earlier decisions took: a race takes its winner's time off
    every key that raced."""
    taken = [0.0] * len(times)
    spent = []
    for step in steps:
        spent.append([taken[key] for key in step.racing])
        least = times[step.winner] - taken[step.winner]
        for key in step.racing:
            taken[key] += least
    return spent


def _structure_log_prob(dist: Structure, value: Tensor) -> float | None:
    try:
        return dist.log_prob(value).item()
    except NotImplementedError:
        return None


def _choices(story: Story, options: Options, place: int) -> dict[str, Any]:
    option = story.options[place]
    before = {o.name: options[o.name] for o in story.options[:place]}
    low, high = option.bounds(before)
    values = range(low, high + 1)
    labels = [str(story.names(options)[v]) if option.is_node else str(v) for v in values]
    return {
        "name": option.name,
        "value": options[option.name],
        "choices": list(zip(values, labels, strict=True)),
        "resizes": option.resizes,
    }
