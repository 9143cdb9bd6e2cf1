"""Reading the page's requests. A wrong one is refused with a sentence that names what is allowed."""

from dataclasses import dataclass
from typing import Any

from gumtrace import structures
from gumtrace.explore.stories import LARGEST_LOGIT, Options, Story
from gumtrace.structures.description import load

_STORIES: list[Story] = [load(structure.story)() for structure in structures.ALL if structure.story is not None]
STORIES = {story.name: story for story in _STORIES}
SEEDS = 100_000  # 0, 1, .. below this
REDRAWS = 10_000  # 1, 2, .. below this: seed and redraw together make a seed below 2^32


class BadRequest(ValueError):
    """What is wrong with a request."""


@dataclass(frozen=True)
class Request:
    """A run, determined by logits and seed. With `redraw` its noise is drawn again, given the trace."""

    story: Story
    options: Options
    logits: list[float]  # of the keys that race, as `story.racing` orders them
    seed: int
    redraw: int | None = None


def read(asked: Any) -> Request:
    """A request from JSON: {"structure": .., "options": {..}, "logits": [..], "seed": .., "redraw": ..}. All but the
    first have defaults."""
    if not isinstance(asked, dict):
        raise BadRequest(f"a request is a JSON object, got {_kind(asked)}")
    known = {"structure", "options", "logits", "seed", "redraw"}
    if strange := sorted(set(asked) - known):
        raise BadRequest(f"unknown field {strange[0]!r}: choose from {', '.join(sorted(known))}")
    name = asked.get("structure")
    if not isinstance(name, str) or name not in STORIES:
        raise BadRequest(f"structure must be one of {', '.join(STORIES)}")
    story = STORIES[name]
    options = _options(story, asked.get("options"))
    logits = _logits(story, options, asked.get("logits"))
    seed = story.first if asked.get("seed") is None else _whole("seed", asked["seed"], 0, SEEDS - 1)
    redraw = None if asked.get("redraw") is None else _whole("redraw", asked["redraw"], 1, REDRAWS - 1)
    return Request(story, options, logits, seed, redraw)


def _options(story: Story, asked: Any) -> Options:
    asked = {} if asked is None else asked
    names = [option.name for option in story.options]
    if not isinstance(asked, dict):
        raise BadRequest(f"options must be a JSON object, got {_kind(asked)}")
    if strange := sorted(set(asked) - set(names)):
        raise BadRequest(f"unknown option {strange[0]!r}: {story.name} has {', '.join(names)}")
    options: Options = {}
    for option in story.options:
        if option.name in asked:
            options[option.name] = _whole(option.name, asked[option.name], *option.bounds(options))
        else:
            options[option.name] = option.within(options)
    return options


def _logits(story: Story, options: Options, asked: Any) -> list[float]:
    if asked is None:
        return story.logits(options)
    keys = len(story.racing(options))
    if not isinstance(asked, list) or len(asked) != keys:
        size = f" of {len(asked)}" if isinstance(asked, list) else ""
        raise BadRequest(
            f"logits must be a list of {keys} numbers, one for each key that races, got {_kind(asked)}{size}"
        )
    for x in asked:
        if isinstance(x, bool) or not isinstance(x, int | float):
            raise BadRequest(f"logits must be numbers, got {_kind(x)}")
        if not -LARGEST_LOGIT <= x <= LARGEST_LOGIT:  # nor is nan
            raise BadRequest(f"logits must be between {-LARGEST_LOGIT:g} and {LARGEST_LOGIT:g}, got {_shown(x)}")
    return [float(x) for x in asked]


def _whole(name: str, x: Any, low: int, high: int) -> int:
    if isinstance(x, bool) or not isinstance(x, int) or not low <= x <= high:
        raise BadRequest(f"{name} must be a whole number from {low} to {high}, got {_shown(x)}")
    return x


def _shown(x: Any) -> str:
    if isinstance(x, bool) or not isinstance(x, int | float):
        return _kind(x)
    return str(x) if isinstance(x, float) or abs(x) < 10**9 else "a large number"


def _kind(x: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return kinds.get(type(x), "a number")
