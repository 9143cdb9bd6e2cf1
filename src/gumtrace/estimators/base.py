"""What all estimators share: their description, one call, `loss = estimator(dist, objective)`, and its gradient."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.distributions import Distribution

from gumtrace.estimators.objectives import Objective, losses, objective_on
from gumtrace.relaxations import has_relaxation
from gumtrace.relaxations.transforms import refuse_transforms
from gumtrace.structures import checks
from gumtrace.structures.base import Structure
from gumtrace.structures.joint import as_structure
from gumtrace.traces.trace import Trace


def _with_keywords(init: Callable[..., None]) -> Callable[..., None]:
    """The constructor, which names its settings in the error if one is passed by position or has another name."""
    names = list(inspect.signature(init).parameters.values())[1:]
    positional = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in names)
    known = {p.name for p in names}
    keywords = ", ".join(f"{p.name}=" for p in names if p.kind is p.KEYWORD_ONLY)

    @functools.wraps(init)
    def checked(self: "Estimator", *args: Any, **settings: Any) -> None:
        if len(args) > positional:
            wrong = f"got {args[positional]!r} by position"
            raise TypeError(f"{type(self).__name__}: settings are keywords ({keywords}), {wrong}")
        if unknown := [name for name in settings if name not in known]:
            raise TypeError(f"{type(self).__name__}: settings are keywords ({keywords}), got {unknown[0]}=")
        init(self, *args, **settings)

    return checked


class Estimator(nn.Module):
    """Estimates the expected objective, and its gradient.

    `loss = estimator(dist, objective)` has the batch shape and the value of the objective averaged over the samples;
    `loss.mean().backward()` gives the gradient to the logits (the estimator's), to whatever the objective uses (plain
    backpropagation) and to the estimator's own parameters (that of its variance). Under `torch.no_grad` it is the value
    alone, for one call of the objective a sample.

    The objective may write into the values it gets. A loss that is nan or infinite is a `ValueError` that names the
    sample and the item. If the distribution was made with `validate_args=False` losses are not checked: the value and
    the gradient of that item are then not finite, those of the other items are unaffected, and neither surrogates nor
    the estimator's own parameters learn from it.

    All settings are keywords, with one name and one meaning in every estimator. A subclass describes itself by the
    class attributes below, implements `surrogate_loss` (or `estimate`), and joins the others in
    `gumtrace.estimators.ESTIMATORS`. `forward` says what the call takes.

    >>> import gumtrace as gt
    >>> logits, table = torch.zeros(32, 100, requires_grad=True), torch.randn(100, 8)
    >>> loss = gt.estimators.TraceREINFORCE()(
    ...     gt.Subset(logits, 3), lambda trace: table[trace.winners].sum((-2, -1)), on="trace"
    ... )
    >>> loss.shape
    torch.Size([32])
    """

    label: ClassVar[str]
    """Its name in tables and figures, the paper's if it has one. A final "+" stands for the leave-one-out baseline."""
    unbiased: ClassVar[bool] = True
    """Whether the mean of the estimates is the gradient of the expected objective."""
    differentiates: ClassVar[bool] = False
    """Whether it differentiates the objective, at relaxed or at hard structures, which not every objective allows."""
    calls_per_sample: ClassVar[int] = 1
    """How often the objective is evaluated for each sample."""

    weighted: ClassVar[bool] = False
    """Whether its samples have weights: the loss is then not their plain mean."""
    most_samples: ClassVar[int | None] = None
    """The largest `samples`, where there is one."""
    for_shards: ClassVar[bool] = False
    """Whether it takes a structure whose keys are on several ranks."""
    on_host: ClassVar[bool] = False
    """Whether it computes something on the host, so that a CUDA graph cannot record it."""
    for_terms: ClassVar[bool] = False
    """Whether it is for objectives that are sums over decisions, and for any other what its base class is."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _with_keywords(cls.__init__)

    @_with_keywords
    def __init__(self, *, samples: int = 1):
        super().__init__()
        self.samples = checked_count(type(self).__name__, "samples", samples, most=self.most_samples)

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """The settings it takes, with their defaults (`inspect.Parameter.empty` if one has to be given).

        >>> Estimator.settings()
        {'samples': 1}
        """
        _, *parameters = inspect.signature(cls.__init__).parameters.values()
        return {p.name: p.default for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], **modules: Callable[[], nn.Module]) -> Self:
        """An estimator with those of the settings that it takes; the others are ignored, so that one dictionary serves
        every estimator.

        Args:
            modules: functions that make a critic or a surrogate. They are called only if the estimator takes one, since
                initial weights are random.

        >>> import gumtrace as gt
        >>> settings = {"samples": 2, "temperature": 0.5, "extra": 64}
        >>> for name in ("TraceREINFORCE", "StraightThrough"):
        ...     gt.estimators.ESTIMATORS[name].from_settings(settings, critic=gt.estimators.MatrixCritic)
        TraceREINFORCE(samples=2, leave_one_out=True)
        StraightThrough(samples=2, temperature=0.5, kind=None)
        """
        known = cls.settings()
        taken = {name: value for name, value in settings.items() if name in known}
        return cls(**taken, **{name: make() for name, make in modules.items() if name in known})

    @classmethod
    def supports(cls, dist: Distribution) -> bool:
        """Whether it can estimate gradients for this structure."""
        return has_relaxation(dist) if cls.differentiates else True

    def forward(
        self,
        dist: Distribution,
        objective: Objective,
        context: Tensor | None = None,
        *,
        on: Literal["value", "trace"] = "value",
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The loss, (*batch,): what calling the estimator does, `estimator(dist, objective)`.

        Args:
            dist: a structure; or `torch.distributions.Independent` of one, where an item has several structures and
                one loss: their scores are added.
            objective: gets values of shape samples + batch + event, returns losses of shape samples + batch, of any
                real dtype.
            context: features (*batch, c) for critics and surrogates that use them.
            on: "trace" hands the objective a `Trace` of shape samples + batch in place of the values: for code that
                needs indices. Not for estimators that differentiate the objective.
            generator: where the randomness comes from.
        """
        dist = as_structure(type(self).__name__, dist)
        if dist.is_sharded and not self.for_shards:
            raise NotImplementedError(
                f"{type(self).__name__}: it needs all keys, and those of a {type(dist).__name__} are on several ranks; "
                "take TraceREINFORCE"
            )
        if on == "trace" and self.differentiates:
            raise ValueError(
                f"{type(self).__name__}: it differentiates the objective, and a trace has no derivative; take an "
                'estimator that does not, such as TraceREINFORCE or RELAX, or leave out on="trace"'
            )
        objective = objective_on(on, objective)
        if torch.is_grad_enabled():
            return self.estimate(dist, objective, context, generator)
        return self.evaluate(dist, objective, self.drawn(dist, generator)).mean(0)

    if TYPE_CHECKING:  # torch declares the call of a module as one of anything

        def __call__(
            self,
            dist: Distribution,
            objective: Objective,
            context: Tensor | None = None,
            *,
            on: Literal["value", "trace"] = "value",
            generator: torch.Generator | None = None,
        ) -> Tensor: ...

    def estimate(
        self, dist: Structure, objective: Objective, context: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        """The loss, with a gradient."""
        name, pair = type(self).__name__, self.surrogate_loss(dist, objective, context, generator)
        pairs = (tuple, list)  # no union: torch.compile of torch 2.5 knows none
        if not isinstance(pair, pairs) or len(pair) != 2 or not all(map(torch.is_tensor, pair)):
            raise TypeError(f"{name}: surrogate_loss must return two tensors, losses and their surrogate")
        loss, surrogate = pair
        batch = dist.batch_shape
        if loss.dim() == 0 or loss.shape[1:] != batch or surrogate.shape != batch:
            raise ValueError(
                f"{name}: surrogate_loss must return losses {(self.samples, *batch)} and a surrogate {tuple(batch)}, a "
                f"mean over the samples; got {tuple(loss.shape)} and {tuple(surrogate.shape)}"
            )
        return joined(loss, surrogate)

    def drawn(self, dist: Structure, generator: torch.Generator | None) -> Trace | Tensor:
        """What the objective is evaluated at if no gradient is needed: traces, or relaxed structures."""
        return dist.sample_trace((self.samples,), generator=generator)

    def surrogate_loss(
        self, dist: Structure, objective: Objective, context: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Losses (samples, *batch), and a number (*batch,) whose gradient is the estimate for the logits."""
        raise NotImplementedError(f"{type(self).__name__} has no surrogate_loss, which says what its gradient is")

    def refuse_transforms(self) -> None:
        """Raise inside a function that torch.func transforms. For estimators that differentiate through relaxations,
        or inside the call."""
        refuse_transforms(type(self).__name__, ", or take TraceREINFORCE, which it can transform")

    def evaluate(self, dist: Structure, objective: Objective, drawn: Trace | Tensor) -> Tensor:
        """The objective at traces, or at relaxed structures, with its losses checked."""
        return losses(type(self).__name__, dist, objective, drawn)

    def evaluate_differentiably(self, dist: Structure, objective: Objective, value: Tensor) -> Tensor:
        """`evaluate`, for an estimator whose gradient goes through the value: an error if the loss does not depend on
        it."""
        if torch.compiler.is_compiling():  # there is no graph to search yet
            return self.evaluate(dist, objective, value)
        node = value.grad_fn  # an objective that writes into the value gives it another one
        loss = self.evaluate(dist, objective, value)
        if node is not None and not _reaches(loss.grad_fn, node):
            raise ValueError(
                f"{type(self).__name__}: the objective must be differentiable in the structure, and no gradient of its "
                "losses reaches it; TraceREINFORCE and RELAX take any objective"
            )
        return loss

    def extra_repr(self) -> str:
        """All settings as they are now; torch itself adds modules."""
        values = {name: getattr(self, name) for name in self.settings() if hasattr(self, name)}
        shown = {name: value for name, value in values.items() if not isinstance(value, nn.Module)}
        return ", ".join(f"{name}={_short(value)}" for name, value in shown.items())


def _short(value: Any) -> str:
    return f"{value.item():.4g}" if torch.is_tensor(value) else repr(value)


def _reaches(start: Node | None, node: Node) -> bool:
    """Whether backpropagation from `start` reaches the node."""
    if start is None or start is node:
        return start is node
    seen, ahead = {start}, [start]
    while ahead:
        for before, _ in ahead.pop().next_functions:
            if before is node:
                return True
            if before is not None and before not in seen:
                seen.add(before)
                ahead.append(before)
    return False


def checked_count(name: str, what: str, count: int, least: int = 1, most: int | None = None) -> int:
    if checks.integer(name, what, count) < least:
        raise ValueError(f"{name}: {what} must be at least {least}, got {count}")
    if most is not None and count > most:
        raise ValueError(f"{name}: {what} must be at most {most}, got {count}")
    return int(count)


def joined(loss: Tensor, surrogate: Tensor) -> Tensor:
    """What `surrogate_loss` gives: the value of the losses, with the gradients of both."""
    return loss.mean(0) + (surrogate - surrogate.detach())


def advantage(loss: Tensor, leave_one_out: bool) -> Tensor:
    """Losses (samples, *batch) minus the mean loss of the other samples."""
    if not leave_one_out:
        return loss
    samples = loss.shape[0]
    return (loss - loss.mean(0)) * (samples / (samples - 1))


def checked_leave_one_out(name: str, samples: int, leave_one_out: bool | None) -> bool:
    """By default whenever there is more than one sample."""
    if leave_one_out and samples < 2:
        raise ValueError(
            f"{name}: leave_one_out=True compares a sample with the others: it needs samples >= 2, got {samples}"
        )
    return samples > 1 if leave_one_out is None else leave_one_out
