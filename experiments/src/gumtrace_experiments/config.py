"""What a run is: its config, what that means for torch, the estimator that it names and the seeds that follow from its
own. Two runs with equal configs, on equal machines and versions, give equal metrics."""

import dataclasses
import hashlib
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

import torch
from torch import nn

from gumtrace.estimators import ESTIMATORS, Estimator
from gumtrace.estimators.control import ControlVariate
from gumtrace_experiments.curriculum import Curriculum

if TYPE_CHECKING:
    EstimatorName = str
else:
    EstimatorName = Literal[tuple(ESTIMATORS)]  # the choices of the command line
T = TypeVar("T")
C = TypeVar("C", bound="Config")
Make = Callable[[], nn.Module]
_MATMUL = {"float32": "highest", "tf32": "high", "bfloat16": "high"}  # torch's words for our precisions


def with_settings_of(estimators: Mapping[str, type[Estimator]], config: type[T]) -> type[T]:
    """The class, to be made a dataclass, with a field for each number and each flag that one of the estimators takes
    and the class does not declare. Its default is the estimator's; its help, from the Args of the estimator's
    docstring, is put where tyro looks for it."""
    described = []
    for name, cls in estimators.items():
        for setting, default in cls.settings().items():
            if isinstance(default, bool | int | float) and setting not in config.__annotations__:
                config.__annotations__[setting] = type(default)
                setattr(config, setting, default)
                words = re.search(rf"^    {setting}: (.+(?:\n     +.+)*)", inspect.getdoc(cls) or "", re.MULTILINE)
                described.append(
                    f"    {setting}: {name}: {' '.join(words[1].split()) if words else 'see its reference'}"
                )
    if described:
        config.__doc__ = "\n".join([inspect.getdoc(config) or "", "", "Attributes:", *described])
    return config


@dataclass(frozen=True)
@partial(with_settings_of, ESTIMATORS)
class Config:
    """What every experiment has; each adds its own. A number or a flag that only one estimator takes need not be
    declared here: it is a field of that name."""

    estimators: ClassVar[Mapping[str, type[Estimator]]] = ESTIMATORS  # that `estimator` may name

    seed: int = 0
    """Random seed: initial weights, data order, all noise."""
    estimator: EstimatorName = "TraceREINFORCE"
    calls: int = 128
    """Objective calls per iteration, N: the same for every estimator, up to rounding to whole items."""
    samples: int = 0
    """Structures per item, K. Where each of them is a call, a batch has N / K items; with REBAR, which makes three
    calls per structure, N / 3K. 0: 4 for score estimators, 1 for the others, as papers have them."""
    temperature: float = 1.0
    """Temperature of relaxed structures; for REBAR, the initial one unless it is fixed."""
    learn_temperature: bool = True
    """REBAR learns its temperature unless this flag is given. A fixed one needs only first derivatives of the
    objective, and less time."""
    draws: int = 4
    """GumbelRao: conditional draws for each structure."""
    step: float = 1.0
    """IMLE: size of the step against the slope of the objective; with --adaptive its relative size at the beginning."""
    adaptive: bool = False
    """IMLE: adapt the step until one key differs between the two structures of a sample, as AIMLE does."""
    extra: int = 64
    """SurrogateREINFORCE: structures for each item on which only the surrogate is evaluated."""
    iterations: int = 50_000
    evaluate_every: int = 500
    """Iterations between evaluations; checkpoints are written then."""
    starts: int = 1
    """Initial models to try; training continues with the one best on validation after --start-iterations."""
    start_iterations: int = 1500
    """With several --starts: iterations that each of them is trained for before one is chosen."""
    lr: float = 5e-4
    """Learning rate of the model."""
    estimator_lr: float = 1e-3
    """Learning rate of the estimator's own parameters: RELAX's critic, REBAR's temperature and scale."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Schedule of the learning rates; cosine decays them to zero at the last iteration."""
    clip: float = 0.0
    """Norm to clip gradients to, separately for the model and the estimator's own parameters; 0: no clipping."""
    weight_decay: float = 0.0
    precision: Literal["float32", "tf32", "bfloat16"] = "tf32"
    """Precision of matrix products on CUDA. On a CPU, tf32 means float32."""
    curriculum: str = ""
    """START:EVERY, easy items first: batches have items up to the difficulty START, and up to one more every EVERY
    iterations. For listops, whose difficulty is the number of tokens, 12:500: all items from iteration 19,000 on.
    Without: no curriculum."""
    shards: int = 1
    """Parts of a batch, each with its own noise and batch statistics; with several processes they are distributed."""

    def __init_subclass__(cls, **more: Any):
        """Refuses fields that would take the place of what the harness asks of a config. Where a subclass has
        `estimators` of its own, their names are the choices of the command line, and the first of them is the default
        if the inherited one is not among them."""
        super().__init_subclass__(**more)
        others = [base for base in cls.__mro__ if base not in Config.__mro__]  # mixins of a field are among them
        for name in {name: None for base in others for name in inspect.get_annotations(base)}:
            taken = vars(Config).get(name)
            if isinstance(taken, property) or inspect.isfunction(taken):
                what = "property" if isinstance(taken, property) else "method"
                means = (inspect.getdoc(taken) or "").partition(".")[0]
                means = means[:1].lower() + means[1:]
                raise TypeError(f"{cls.__name__}: {name} is a {what} of Config ({means}); give the field another name")
        own = vars(cls).get("estimators")
        if isinstance(own, Mapping) and "estimator" not in inspect.get_annotations(cls):
            cls.__annotations__["estimator"] = Literal[tuple(own)]
            cls.estimator = cls.estimator if cls.estimator in own else next(iter(own))

    def __post_init__(self):
        if self.estimator not in self.estimators:
            raise ValueError(f"unknown estimator {self.estimator!r}: choose from {', '.join(self.estimators)}")
        if self.samples < 0:
            raise ValueError(f"samples must be at least 1, or 0 for the estimator's own, got {self.samples}")
        for name in ("calls", "draws", "extra", "iterations", "evaluate_every", "starts", "start_iterations", "shards"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.learn_temperature and "learn_temperature" not in self.estimator_type.settings():
            raise ValueError(f"learn_temperature: {self.estimator} does not learn a temperature, REBAR does")
        if self.adaptive and "adaptive" not in self.estimator_type.settings():
            raise ValueError(f"adaptive: {self.estimator} has no step that adapts, IMLE does")
        for name in ("temperature", "step", "lr", "estimator_lr"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("clip", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.curriculum:
            Curriculum.parse(self.curriculum)
        whole = self.start_iterations % self.evaluate_every == 0
        if self.starts > 1 and not (whole and self.start_iterations < self.iterations):
            raise ValueError(
                f"start_iterations must be a multiple of evaluate_every, {self.evaluate_every}, and less than "
                f"iterations, {self.iterations}; got {self.start_iterations}"
            )
        if not self.items:
            raise ValueError(
                f"{self.estimator} with {self.k} samples makes {self.calls_per_item} calls for one item, more "
                f"than the {self.calls} of an iteration: raise calls, or lower samples"
            )
        if self.items % self.shards:
            raise ValueError(f"{self.items} items cannot be divided evenly among {self.shards} shards")

    @property
    def estimator_type(self) -> type[Estimator]:
        """The class of the estimator."""
        return self.estimators[self.estimator]

    @property
    def learns_temperature(self) -> bool:
        """Whether the temperature is a parameter of the estimator, and the one given here its initial value."""
        return self.learn_temperature and "learn_temperature" in self.estimator_type.settings()

    @property
    def k(self) -> int:
        """Structures for each item."""
        alone = issubclass(self.estimator_type, ControlVariate)  # its control variate is all the baseline it has
        return self.samples or (1 if alone else self.estimator_type.settings()["samples"])

    @property
    def calls_per_item(self) -> int:
        """Objective calls for each item."""
        return self.k * self.estimator_type.calls_per_sample

    @property
    def items(self) -> int:
        """Items in a batch."""
        return self.calls // self.calls_per_item

    def rate_factor(self, iteration: int) -> float:
        """What learning rates are multiplied by at an iteration."""
        if self.schedule == "cosine":
            return 0.5 + 0.5 * math.cos(math.pi * iteration / self.iterations)
        return 1.0

    @contextmanager
    def set_precision(self) -> Iterator[None]:
        """Set that of matrix products and of cuDNN, whose LSTMs have a switch of their own, for the whole process."""
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision(_MATMUL[self.precision])
        torch.backends.cudnn.allow_tf32 = self.precision != "float32"
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]

    def autocast(self, device: torch.device) -> AbstractContextManager:
        """With bfloat16 where that is the precision."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bfloat16")

    def replace(self, **changes: Any) -> Self:
        """The config with other values of some fields."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The fields, with the number of samples that is meant by 0."""
        return {**dataclasses.asdict(self), "samples": self.k}


def build_estimator(config: Config, critic: Make | None = None, surrogate: Make | None = None) -> Estimator:
    """The one the config names. `critic` and `surrogate` make the experiment's own, for those that need one.

    >>> build_estimator(Config(estimator="GumbelRao", draws=2))
    GumbelRao(samples=1, temperature=1.0, kind=None, draws=2)
    """
    cls = config.estimator_type
    if critic is None and "critic" in cls.settings():
        raise ValueError(
            f"{config.estimator} needs a critic, which this experiment does not provide: choose another estimator, or "
            "give it one by build_estimator(config, critic=...)"
        )
    modules = {name: make for name, make in (("critic", critic), ("surrogate", surrogate)) if make is not None}
    settings = {**vars(config), "samples": config.k, "leave_one_out": config.k > 1}  # one sample is the config's choice
    return cls.from_settings(settings, **modules)


def suggest_estimator(
    config: C,
    trial: Any,
    *,
    samples: Sequence[int] = (2, 4, 8, 16),
    estimator_lr: tuple[float, float] = (1e-5, 1e-3),
) -> C:
    """The config with the setting that matters most to its estimator asked from `trial`: the learning rate of a critic,
    the temperature of a relaxation, the step of a difference, the number of samples of the others."""
    settings = config.estimator_type.settings()
    if "critic" in settings:
        return config.replace(estimator_lr=trial.suggest_float("estimator_lr", *estimator_lr, log=True))
    if "temperature" in settings:
        return config.replace(temperature=trial.suggest_float("temperature", 0.1, 10.0, log=True))
    if "step" in settings:
        return config.replace(step=trial.suggest_float("step", 0.01, 10.0, log=True))
    return config.replace(samples=trial.suggest_categorical("samples", list(samples)))


def derive_seed(*parts: int | str) -> int:
    """A seed from several: the same on every machine, in every process.

    >>> derive_seed(0, "order", 1) == derive_seed(0, "order", 1) != derive_seed(0, "order", 2)
    True
    """
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1
