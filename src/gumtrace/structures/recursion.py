"""The paper's general algorithm (its Alg. 2), literally: slow, obviously right, and what fast paths are held against.

    until stop(K, R):
        P_1 .. P_m = split(K, R)
        T_i = argmin of E over P_i,  and E_j -= E[T_i] for j in P_i
        K, R = map(K, R, T)
    X = combine(X, K, R, T), from the last call back to the first

It is written as a loop, so that depth is no limit, and refuses an algorithm that breaks the invariant on which the
probabilities rest.
"""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

Frame = tuple[frozenset[int], Any, list[int | None]]  # K, R and the winners of one call


class Algorithm(Protocol):
    """What `Custom` asks of an algorithm. Keys are indices into the flattened event; a set of keys may be any
    iterable of them.

    It may also have `combine(X, K, R, winners) -> X`, which builds the value from the inside out: X is None at the
    bottom. Without it the value is 0/1 over the keys, 1 = winner.
    """

    def start(self) -> tuple[Iterable[int], Any]:
        """The keys K that race, and the auxiliary value R."""
        ...

    def stop(self, K: frozenset[int], R: Any) -> bool:
        """Whether nothing is left to decide."""
        ...

    def split(self, K: frozenset[int], R: Any) -> Sequence[Iterable[int]]:
        """A partition of K; each part is one race."""
        ...

    def map(self, K: frozenset[int], R: Any, winners: list[int | None]) -> tuple[Iterable[int], Any]:
        """The keys that stay, fewer than K, and the new R. winners[i] won part i, None if that was empty."""
        ...


@dataclass
class Run:
    """One run: its decisions, and the forest of groups of keys that were in the same ones."""

    group: dict[int, int]  # of every key that raced: -1 while it was in no decision
    winners: list[int] = field(default_factory=list)  # of the decisions, in order
    parents: list[int] = field(default_factory=list)  # group -> group it extends
    decisions: list[int] = field(default_factory=list)  # group -> decision it adds
    frames: list[Frame] = field(default_factory=list)  # the calls, outermost first
    answers: list[tuple[str, Any]] = field(default_factory=list)  # what each hook returned, but for R
    end: tuple[frozenset[int], Any] = (frozenset(), None)  # K and R when it stopped
    number: int = 0  # of the algorithm, where there are several

    def decide(self, members: frozenset[int], winner: int) -> None:
        extended: dict[int, int] = {}
        for key in sorted(members):
            old = self.group[key]
            if old not in extended:
                extended[old] = len(self.parents)
                self.parents.append(old)
                self.decisions.append(len(self.winners))
            self.group[key] = extended[old]
        self.winners.append(winner)

    def noted(self, hook: str, answer: Any) -> Any:
        self.answers.append((hook, answer))
        return answer

    def value(self, algorithm: Any) -> Tensor:
        """What combine builds; a run that stopped at once is combined from nothing."""
        value = algorithm.combine(None, *self.end, []) if not self.frames else None
        for K, R, winners in reversed(self.frames):
            value = algorithm.combine(value, K, R, winners)
        if value is None:
            raise TypeError("Custom: combine returned None; it must return a tensor or numbers")
        return torch.as_tensor(value).detach().clone()  # the algorithm may write into it again


def execute(algorithm: Algorithm, racing: set[int], choose: Callable[[frozenset[int]], int], copy: bool = False) -> Run:
    """Run the algorithm on the keys that race, with `choose` for the argmin of a part. `copy`: whether `combine` is to
    see each R as it was after its step, though a later one writes into it."""
    K, R = started(algorithm)
    K = key_set(K, "start() returned") & racing
    run = Run(dict.fromkeys(sorted(K), -1), answers=[("start", K)])
    won: set[int] = set()
    step = 0
    while not run.noted("stop", bool(algorithm.stop(K, R))):
        if not K:
            raise ValueError(f"step {step}: stop returned False, though no key is left")
        parts = algorithm.split(K, R)
        if not isinstance(parts, Iterable):
            raise TypeError(f"step {step}: split returned {parts!r}, which is not a list of sets of keys")
        parts = [key_set(part, f"step {step}: split returned") for part in parts]
        _check_partition(run.noted("split", parts), K, step)
        winners: list[int | None] = []
        for part in parts:
            settled = part & won  # a key that won before is at zero already: no decision
            if not part:
                winners.append(None)
            elif settled:
                winners.append(min(settled))
            else:
                winner = choose(part)
                run.decide(part, winner)
                won.add(winner)
                winners.append(winner)
        smaller, following = _pair(algorithm.map(K, R, list(winners)), f"step {step}: map")
        run.frames.append((K, _copied(R) if copy else R, winners))  # with what the hooks of this step wrote into R
        R = following
        smaller = key_set(smaller, f"step {step}: map returned")
        if not smaller <= K:
            raise ValueError(f"step {step}: map returned key {min(smaller - K)}, which was not among the keys before")
        if smaller == K:
            raise ValueError(f"step {step}: map must drop at least one key, but all {len(K)} stayed, key {min(K)}")
        K = run.noted("map", smaller)
        step += 1
    run.end = (K, R)
    return run


def _copied(R: Any, depth: int = 3) -> Any:
    """R as it is now, as far as it is of plain containers and arrays; not of objects, whose identity may count."""
    if isinstance(R, Tensor):
        return R.clone()
    if isinstance(R, np.ndarray | set | bytearray):
        return R.copy()
    if depth == 0 or type(R) not in (list, tuple, dict):
        return R
    if type(R) is dict:
        return {key: _copied(value, depth - 1) for key, value in R.items()}
    return type(R)(_copied(value, depth - 1) for value in R)


def execute_along(algorithm: Algorithm, racing: set[int], winners: Iterable[int], copy: bool = False) -> Run:
    """Run along recorded winners; where the algorithm goes another way, the first key of a part wins."""
    replay = iter(winners)

    def choose(part: frozenset[int]) -> int:
        winner = next(replay, -1)
        return winner if winner in part else min(part)

    return execute(algorithm, racing, choose, copy)


def check_repeatable(algorithm: Algorithm, racing: set[int], run: Run, copy: bool = True) -> None:
    """Run again along the winners of a run. Probabilities rest on hooks that depend on their arguments alone, and such
    hooks answer as before. `copy`: whether to notice hooks that write into an R which combine is given."""
    again = execute_along(algorithm, racing, run.winners, copy=copy and combines(algorithm))
    for step, (before, now) in enumerate(zip(run.answers, again.answers, strict=False)):
        if before != now:
            raise ValueError(unrepeatable(f"{before[0]} (step {max(step - 1, 0) // 3})"))
    if combines(algorithm):
        before = run.value(algorithm)
        try:
            now = again.value(algorithm)
        except Exception as error:  # the user's, who misses what a later step had written into R
            raise ValueError(unrepeatable("combine")) from error
        if before.shape != now.shape or not torch.allclose(before, now, rtol=0, atol=0, equal_nan=True):
            raise ValueError(unrepeatable("combine"))


def unrepeatable(hook: str) -> str:
    return (
        f"Custom: {hook} answered otherwise than before, though the winners were the same; hooks must depend on their "
        "arguments alone, not on chance, the noise, or earlier calls, and must not write into R: map returns another"
    )


def argmin_of(noise: np.ndarray) -> Callable[[frozenset[int]], int]:
    """The argmin of E = e^-G over a part, which is then subtracted from it. Ties go to the larger G, then to the
    smaller key."""
    e, subtract = exponentials(noise)

    def choose(part: frozenset[int]) -> int:
        winner = min(part, key=lambda k: (e[k], -noise[k], k))
        least = e[winner]
        for key in part:
            e[key] = subtract(e[key], least)
        return winner

    return choose


def exponentials(noise: np.ndarray) -> tuple[list[float], Callable[[float, float], float]]:
    """E up to a common factor, or log E where float64 has not the range, and how two of them are subtracted."""
    racing = noise[noise > -np.inf].astype(float)
    low, high = (racing.min(), racing.max()) if racing.size > 0 else (0.0, 0.0)
    if high - low > 1300.0:
        return (-noise.astype(float)).tolist(), _subtract_logarithms
    with np.errstate(over="ignore"):  # infinite for keys that do not race
        return np.exp(0.5 * low + 0.5 * high - noise.astype(float)).tolist(), operator.sub


def _subtract_logarithms(e: float, least: float) -> float:
    """log(e^e - e^least), for e >= least."""
    below = least - e
    if not below < 0:
        return -math.inf
    return e + (math.log(-math.expm1(below)) if below > -0.5 else math.log1p(-math.exp(below)))


def checked_algorithms(algorithms: Sequence[Algorithm]) -> tuple[Algorithm, ...]:
    for algorithm in algorithms:
        if isinstance(algorithm, type):
            raise TypeError(f"Custom: the algorithm must be an object, not a class: {algorithm.__name__}()")
        for hook in ("start", "stop", "split", "map"):
            if not callable(getattr(algorithm, hook, None)):
                raise TypeError(f"Custom: the algorithm {type(algorithm).__name__} has no method {hook}")
    without = [i for i, algorithm in enumerate(algorithms) if not combines(algorithm)]
    if 0 < len(without) < len(algorithms):
        raise TypeError(f"Custom: algorithm {without[0]} has no method combine, and others have; all must, or none")
    return tuple(algorithms)


def same_algorithms(ours: Sequence[Algorithm], theirs: Sequence[Algorithm]) -> bool:
    """Whether they are the same objects: others may have been made of other arguments."""
    return all(a is b for a, b in zip(ours, theirs, strict=True))


def combines(algorithm: Algorithm) -> bool:
    return callable(getattr(algorithm, "combine", None))


def starting_keys(algorithms: Sequence[Algorithm], logits: Tensor, event_dim: int) -> Tensor:
    """Bool (algorithms, *event): the keys that `start` of each names; the others do not race."""
    shape = logits.shape[logits.dim() - event_dim :]
    racing = torch.zeros(len(algorithms), shape.numel(), dtype=torch.bool, device=logits.device)
    for row, algorithm in zip(racing, algorithms, strict=True):
        start = key_set(started(algorithm)[0], "start() returned")
        if strange := start - set(range(shape.numel())):
            raise ValueError(f"Custom: start() names key {min(strange)}, but the event has {shape.numel()} keys")
        row[sorted(start)] = True
    return racing.reshape(len(algorithms), *shape)


def started(algorithm: Algorithm) -> tuple[Iterable[int], Any]:
    return _pair(algorithm.start(), "start()")


def _pair(returned: Any, hook: str) -> tuple[Iterable[int], Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(f"{hook} must return a pair (keys, R), not {returned!r}")
    return returned


def key_set(keys: Iterable[int], what: str) -> frozenset[int]:
    try:
        return frozenset(operator.index(key) for key in keys)
    except TypeError:
        raise TypeError(f"{what} {keys!r}, which is not a set of integer keys") from None


def _check_partition(parts: list[frozenset[int]], K: frozenset[int], step: int) -> None:
    seen: set[int] = set()
    for part in parts:
        if overlap := part & seen:
            raise ValueError(f"step {step}: split put key {min(overlap)} into two parts")
        seen |= part
    if strange := seen - K:
        raise ValueError(f"step {step}: split returned key {min(strange)}, which is not among the keys left")
    if lost := K - seen:
        raise ValueError(
            f"step {step}: split left out key {min(lost)}; keys whose race is to come cannot wait: let them race now, "
            "in a part for each race"
        )
