"""What the harness asks of an experiment: a model, a loss, and numbers to judge it by."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from textwrap import shorten
from threading import Lock
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from gumtrace.estimators import Estimator
from gumtrace_experiments.columns import Block, Column, Report
from gumtrace_experiments.config import Config, derive_seed, suggest_estimator
from gumtrace_experiments.store.archives import is_plain
from gumtrace_experiments.store.errors import OtherWeights

_SEEDING = Lock()  # torch's own generator is the whole process's


class _Eager:
    """torch.compile is off while any thread is inside: how it is set is the whole process's, too."""

    def __init__(self):
        self._inside, self._lock, self._stance = 0, Lock(), ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._stance.enter_context(torch.compiler.set_stance("force_eager"))

    def __exit__(self, *_) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._stance.close()


_EAGER = _Eager()


class Experiment(nn.Module, ABC):
    """One model to be trained, with its estimator. Subclasses set `estimator` and whatever else has parameters.

    A subclass has a `name` and a `selection_metric`, and defines `load`, `items`, `loss` and `evaluate`. All else has
    defaults.
    """

    name: ClassVar[str]
    """The name, also of its folders: letters, digits, `.`, `_` and `-`."""
    selection_metric: ClassVar[str]
    """The metric, larger is better, that decides which checkpoint is kept."""
    config_type: ClassVar[type[Config]] = Config
    final_splits: ClassVar[tuple[str, ...]] = ("test",)
    """On which the best checkpoint is evaluated in the end."""
    data_fields: ClassVar[tuple[str, ...] | None] = None
    """The settings that `load` reads: runs in which they are equal share their data. None: it may read any."""
    estimator: Estimator
    scratch: Path | None = None
    """The folder of the run, for what a long evaluation has done so far; None: nothing is kept."""

    def __init__(self, config: Config, data: Any):
        super().__init__()
        self.config, self.data, self.compiled = config, data, False

    @classmethod
    def build(cls, config: Config, data: Any, device: torch.device, start: int = 0) -> Self:
        """The model of a seed, and others that it might start as: made on the CPU, so the same on every device."""
        with _SEEDING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(config.seed, "start", start))
            return cls(config, data).to(device)

    @classmethod
    def load_data(cls, config: Config, folder: Path, device: torch.device) -> Any:
        """`load`, given the settings that the class declares and no others: to read one more is an error at once, and
        not a run that shares the data of another setting."""
        names = cls.data_fields
        given = config if names is None else SimpleNamespace(**{name: getattr(config, name) for name in names})
        try:
            return cls.load(given, folder, device)
        except AttributeError as error:
            if error.obj is given and hasattr(config, error.name or ""):
                raise ValueError(f"{error.name} is not among the data_fields of {cls.__name__}: add it") from error
            raise

    # What an experiment defines -----------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def load(config: Any, folder: Path, device: torch.device) -> Any:
        """The data on the device, made or read in `folder`. Runs of equal settings share them: of the config, `load`
        gets the `data_fields` alone, where the class names them."""

    @property
    @abstractmethod
    def items(self) -> int:
        """Number of items in the training set."""

    @abstractmethod
    def loss(self, index: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """A scalar to differentiate, and metrics (scalar tensors), for these items of the training set. It must not
        synchronise, and draws from the generator alone."""

    @abstractmethod
    def evaluate(self, split: str, generator: torch.Generator) -> dict[str, float]:
        """Metrics on a whole split ("train", "valid" or "test"), numbers or scalar tensors; on "valid" the selection
        metric is one of them. Called in eval mode and without gradients."""

    # What it may define -------------------------------------------------------------------------------

    @staticmethod
    def smoke(config: Any) -> Any:
        """The same, small enough for a minute on two cores."""
        return config.replace(iterations=60, evaluate_every=20, start_iterations=20)

    @staticmethod
    def difficulty(data: Any) -> Tensor | None:
        """How difficult each item of the training set is, (items,) in any units, for `--curriculum`. Without it there
        is no curriculum."""
        return None

    @staticmethod
    def search(config: Any, trial: Any) -> Any:
        """The config with what is tuned asked from `trial`, an Optuna trial."""
        found = config.replace(lr=trial.suggest_float("lr", 1e-5, 1e-2, log=True))
        return suggest_estimator(found, trial)

    def gradient_std(self, index: Tensor, generator: torch.Generator) -> float | None:
        """Standard deviation of the estimator's gradient to the logits of these items, on average over the entries.
        None: it is not measured."""
        return None

    def read_test(self, file: Path) -> None:
        """Take what is in a file for the test set: the data have a format of their own."""
        raise NotImplementedError(f"{self.name} cannot read a file in place of its test set")

    @classmethod
    def reads_files(cls) -> bool:
        return cls.read_test is not Experiment.read_test

    @classmethod
    def report(cls) -> Report:
        """The columns of its tables and curves, which runs stand in one table, and what a paper found."""
        column = Column(cls.selection_metric, cls.selection_metric, digits=4, axis="linear")
        return Report((column,), lambda config: Block(key=(), title=cls.name))

    def draw(self, path: Path, count: int, split: str) -> Path:
        """Saves a picture of what the model finds in the first `count` items of a split, or so; returns its path."""
        raise NotImplementedError(f"{self.name} draws no pictures")

    # What the harness does with it --------------------------------------------------------------------

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False):
        """Weights that do not fit are refused in one line; torch lists all of them, and would convert some."""
        self.check_weights(state_dict)
        try:  # of the names and tensors alone: a dictionary from a file may have attributes, which torch would believe
            return super().load_state_dict({name: state_dict[name] for name in state_dict}, strict, assign)
        except RuntimeError as error:
            if "state_dict" not in str(error):  # a device that is full, say
                raise
            reason = " ".join(str(error).splitlines()[1:]) or str(error)  # the first line is a heading
            raise OtherWeights(shorten(reason, 200, placeholder=" ...").rstrip(".")) from error

    def check_weights(self, state_dict: Mapping[str, Any]) -> None:
        """Check that there is a tensor for each of the model's, of its kind and dtype. Sizes are left to torch: those
        of what an estimator has learnt may differ."""
        own = self.state_dict()
        if missing := [f'"{name}"' for name in own if name not in state_dict]:
            raise OtherWeights(shorten(f"Missing key(s) in state_dict: {', '.join(missing)}", 200, placeholder=" ..."))
        for name, value in own.items():
            if not is_plain(state_dict[name], value):
                raise OtherWeights(f"{name} is not a {value.dtype} tensor")
            if state_dict[name].ndim != value.ndim:  # of several numbers some versions of torch would take the first
                raise OtherWeights(
                    f"size mismatch for {name}: expected {value.ndim} dimensions, got {state_dict[name].ndim}"
                )

    def compile_parts(self) -> None:
        """By torch.compile, all but the estimator: it calls the objective, and may take gradients."""
        for part in self.children():
            if part is not self.estimator:
                part.compile(dynamic=False)
        self.compiled = True

    def eager(self) -> AbstractContextManager:
        """As if it were not compiled."""
        return _EAGER if self.compiled else nullcontext()

    def parameter_groups(self) -> list[dict[str, Any]]:
        """For the optimiser: the estimator's own parameters learn at a rate of their own."""
        own = [p for p in self.estimator.parameters() if p.requires_grad]
        mine = {id(p) for p in own}
        model = [p for p in self.parameters() if id(p) not in mine and p.requires_grad]
        groups = [{"params": model, "lr": self.config.lr, "weight_decay": self.config.weight_decay}]
        return groups + ([{"params": own, "lr": self.config.estimator_lr, "weight_decay": 0.0}] if own else [])

    def with_own_rate(self, part: nn.Module, lr: float) -> list[dict[str, Any]]:
        """The same, with a group for a part of the model that learns at the rate `lr`; 0: at that of the rest."""
        model, *own = Experiment.parameter_groups(self)
        inside = {id(p) for p in part.parameters()}
        parts = [[p for p in model["params"] if (id(p) in inside) == chosen] for chosen in (False, True)]
        rates = (model["lr"], lr or model["lr"])
        return [{**model, "params": p, "lr": rate} for p, rate in zip(parts, rates, strict=True)] + own
