"""One model in training: a config, a seed, a folder. `advance` is one iteration; everything random in it is a function
of the seed, the shard and the iteration, so that a run that was cut off goes on exactly as it would have."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from gumtrace.diagnostics.gradients import frozen
from gumtrace.estimators import SurrogateREINFORCE
from gumtrace.structures.checks import NotFinite
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.loop.cuda_graph import Recording
from gumtrace_experiments.loop.starts import Starts
from gumtrace_experiments.loop.workers import Workers
from gumtrace_experiments.seeds import mixed
from gumtrace_experiments.store.folder import RunFolder

WARM_UP = 3  # updates before a graph is recorded: libraries start up, and kernels are compiled
FORWARD, BACKWARD, OPTIMISER = "forward", "backward", "optimiser"  # parts of an update, for the profiler


class Run:
    """`folder` is None for processes that only help."""

    def __init__(self, experiment: Experiment, folder: RunFolder | None, workers: Workers, *, graph: bool = False):
        self.experiment, self.folder, self.workers = experiment, folder, workers
        self.config, self.device = experiment.config, workers.device
        _check(experiment)
        on_cuda = self.device.type == "cuda"
        self.stream = torch.cuda.Stream(self.device) if on_cuda else None
        groups = experiment.parameter_groups()
        self.rates = [(torch.tensor(group["lr"], device=self.device), group["lr"]) for group in groups]
        groups = [{**group, "lr": now} for group, (now, _) in zip(groups, self.rates, strict=True)]
        self.optimiser = torch.optim.AdamW(groups, fused=True, capturable=on_cuda)
        with self._here():
            for p in _parameters(self.optimiser):  # and not at a first gradient: every checkpoint holds all of them
                self.optimiser.state[p] = _moments(p)
        self.shards = workers.mine(self.config.shards)
        self.generators = [torch.Generator(self.device) for _ in self.shards]
        self.index = torch.zeros(self.config.items, dtype=torch.int64, device=self.device)
        self.sums: dict[str, Tensor] = {}  # of the metrics since the last evaluation
        self.iteration, self.seconds, self._clock = 0, 0.0, time.perf_counter()
        self.best: dict[str, Any] | None = None
        self.valid: dict[str, float] = {}  # the latest
        self.diverged = ""  # why it did not go on, if so
        self._order, self._epoch = self.index, -1
        self.starts = Starts(self)
        self._recording = self._record() if graph else None

    @property
    def finished(self) -> bool:
        return bool(self.diverged) or self.iteration >= self.config.iterations

    @property
    def updates(self) -> int:
        """In all, with those of starts that are given up, from the one that it is at."""
        others = 0 if self.starts.done else self.config.starts - 1 - len(self.starts.scores)
        return self.config.iterations + others * self.config.start_iterations

    @property
    def left(self) -> int:
        """Updates to be made."""
        return 0 if self.finished else self.updates - self.iteration

    @property
    def recorded(self) -> bool:
        """As a CUDA graph."""
        return self._recording is not None

    @property
    def due(self) -> bool:
        """Whether an evaluation comes after the next update."""
        after = self.iteration + 1
        return self.starts.done and (after % self.config.evaluate_every == 0 or after >= self.config.iterations)

    @property
    def pausing(self) -> bool:
        """Whether the next `advance` is more than an update, so that the host has to wait for the device."""
        return self.due or self.iteration == 0 or self.iteration + 1 == self.config.start_iterations

    def advance(self) -> bool:
        """One update, and an evaluation with a checkpoint when it is time: says whether it was."""
        due = self.due
        with self._here():
            try:
                self._advance(due)
            except NotFinite as error:
                if self.workers.world > 1:  # where others wait for this one, all have to end
                    raise
                self._give_up(error)
                return False
        return due

    def _advance(self, due: bool) -> None:
        if self.iteration == 0 and not self.starts.scores:
            self._log_gradient("beginning")
        self.update()
        if due:
            self.check()
        self.starts.after_update()

    def _give_up(self, error: NotFinite) -> None:
        """This start if there are others, or the run: seeds beside it go on."""
        if self.starts.done:
            self.diverged = f"at iteration {self.iteration}: {error}"
        else:
            self.starts.give_up()

    def update(self) -> None:
        with self._here():
            self._prepare()
            self._update() if self._recording is None else self._recording.replay()
        self.iteration += 1

    def _prepare(self) -> None:
        """The items, the randomness and the learning rates of this iteration."""
        size, items = self.experiment.items, self.config.items
        epoch, place = divmod(self.iteration, size // items)  # the last few items of an epoch are left out
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(mixed(self.config.seed, "order", epoch))
            order = torch.randperm(size, generator=generator)
            self._order, self._epoch = self._sent(order), epoch
        self.index.copy_(self._order[place * items : (place + 1) * items])
        for shard, generator in zip(self.shards, self.generators, strict=True):
            generator.manual_seed(mixed(self.config.seed, "noise", shard, self.iteration))
        if self.config.schedule == "cosine":
            factor = 0.5 + 0.5 * math.cos(math.pi * self.iteration / self.config.iterations)
            for now, rate in self.rates:
                now.fill_(rate * factor)

    def _update(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        count = self.config.shards
        parts = self.index.chunk(count)
        for shard, generator in self._each_shard():
            with record_function(FORWARD), self.autocast():
                loss, metrics = self.experiment.loss(parts[shard], generator)
            with record_function(BACKWARD):
                (loss / count).backward()
            for name, value in metrics.items():
                self.sums.setdefault(name, torch.zeros((), device=self.device)).add_(value.detach(), alpha=1 / count)
        self.workers.sum([p.grad for p in self.experiment.parameters() if p.grad is not None])
        with record_function(OPTIMISER):
            if self.config.clip:
                self._clip()
            self.optimiser.step()

    def _clip(self) -> None:
        """The model's gradient, and that of the estimator's own parameters apart: it is of another size, and must not
        decide how far the model goes."""
        own = {id(p) for p in self.experiment.estimator.parameters()}
        for apart in (False, True):
            part = [p for p in _parameters(self.optimiser) if (id(p) in own) == apart]
            torch.nn.utils.clip_grad_norm_(part, self.config.clip)

    def _each_shard(self) -> Iterator[tuple[int, torch.Generator]]:
        """Every shard finds the buffers (running statistics) as they were; their mean over the shards is kept."""
        pairs = zip(self.shards, self.generators, strict=True)
        if self.config.shards == 1:
            yield from pairs
            return
        buffers = [b for b in self.experiment.buffers() if b.is_floating_point()]
        before = [b.clone() for b in buffers]
        total = [torch.zeros_like(b) for b in buffers]
        for shard, generator in pairs:
            for b, was in zip(buffers, before, strict=True):
                b.copy_(was)
            yield shard, generator
            for t, b in zip(total, buffers, strict=True):
                t.add_(b, alpha=1 / self.config.shards)
        self.workers.sum(total)
        for b, mean in zip(buffers, total, strict=True):
            b.copy_(mean)

    def check(self) -> None:
        """Evaluate, keep the best, write down where we are."""
        since = (self.iteration - 1) % self.config.evaluate_every + 1
        averages = {name: total / since for name, total in self.totals().items()}
        now = time.perf_counter()
        self.seconds, self._clock = self.seconds + now - self._clock, now
        if not torch.stack([p.isfinite().all() for p in self.experiment.parameters()]).all():
            raise NotFinite("a parameter is nan or infinite")  # in an update on a device nobody looks
        if self.folder is None:
            return
        self.valid = self.evaluate("valid")
        self.folder.log({"iteration": self.iteration, "split": "train", **averages})
        self.folder.log({"iteration": self.iteration, "split": "valid", **self.valid})
        if self.finished or 0 <= self.iteration - self.config.iterations // 2 < self.config.evaluate_every:
            self._log_gradient("end" if self.finished else "half-way")
        self._keep_if_best(self.folder)
        self.folder.save_state(self.state_dict())  # last: what came before is repeated if this is missing

    def _keep_if_best(self, folder: RunFolder) -> None:
        score = self.valid[self.experiment.better]
        if math.isfinite(score) and (self.best is None or score > self.best["valid"][self.experiment.better]):
            self.best = {"iteration": self.iteration, "valid": self.valid}
            folder.offer_best({**self.best, "model": self.experiment.state_dict()})

    def _log_gradient(self, moment: str) -> None:
        """How noisy the estimator is, on the batch that comes next. To look must not teach it."""
        if self.folder is None:
            return
        self._prepare()
        generator = torch.Generator(self.device).manual_seed(mixed(self.config.seed, "gradient", self.iteration))
        buffers = [(b, b.clone()) for b in self.experiment.buffers()]
        with frozen(self.experiment.estimator), self.autocast(), self.experiment.eager():
            std = self.experiment.gradient_std(self.index, generator)
        for b, before in buffers:  # running statistics
            b.copy_(before)
        self.folder.log({"iteration": self.iteration, "split": "gradient", "moment": moment, "std": std})

    def evaluate(self, split: str) -> dict[str, float]:
        generator = torch.Generator(self.device).manual_seed(mixed(self.config.seed, "evaluate", split))
        self.experiment.eval()
        try:
            # What was compiled was so for the sizes of training batches: to compile it once more would take longer
            with self._here(), torch.no_grad(), self.autocast(), self.experiment.eager():
                return self.experiment.evaluate(split, generator)
        finally:
            self.experiment.train()

    def totals(self) -> dict[str, float]:
        """Of the training metrics since the last call: here the host waits for the device, as it does in no update
        (but where it is far ahead: recording.py)."""
        totals = list(self.sums.values())
        self.workers.sum(totals)
        values = torch.stack(totals).tolist() if totals else []
        for total in totals:
            total.zero_()
        return dict(zip(self.sums, values, strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {
            "iteration": self.iteration,
            "rows": 0 if self.folder is None else self.folder.rows,
            "seconds": self.seconds,
            "best": self.best,
            "model": self.experiment.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iteration, self.seconds = state["iteration"], max(self.seconds, state["seconds"])
        self.best = state["best"]
        self.starts.go_on(state.get("starts"))
        self.load_model(state["model"])
        with self._here(), torch.no_grad():
            for i, p in enumerate(_parameters(self.optimiser)):
                for name, own in self.optimiser.state[p].items():  # in place: a graph knows where it is
                    own.copy_(state["optimiser"]["state"][i][name])

    def load_model(self, state: dict[str, Any]) -> None:
        with self._here():
            self.experiment.load_state_dict(state)

    def _record(self) -> Recording:
        """The update. Those made on the way are undone."""
        if self.stream is None or self.workers.world > 1:
            raise ValueError("graph=True needs a CUDA device, and one process")
        model = {name: value.clone() for name, value in self.experiment.state_dict().items()}
        self._prepare()
        with self._here():
            for _ in range(WARM_UP):
                self._update()
        recording = Recording(self._update, self.stream, self.generators)
        with self._here():
            self.experiment.load_state_dict(model)
            self._forget_moments()
            self.totals()
        return recording

    def restart(self, start: int) -> None:
        """As another initial model."""
        self.load_model(type(self.experiment).build(self.config, self.experiment.data, self.device, start).state_dict())
        self._forget_moments()
        self.iteration = 0

    def _forget_moments(self) -> None:
        for state in self.optimiser.state.values():
            for value in state.values():
                value.zero_()

    def autocast(self):
        half = self.config.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half)

    @contextmanager
    def _here(self) -> Iterator[None]:
        """On this run's own stream, so that several runs share a device side by side; after what was asked before."""
        if self.stream is None or torch.cuda.current_stream(self.device) == self.stream:
            yield
        else:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.stream):
                yield

    def _sent(self, x: Tensor) -> Tensor:
        """To the device, without waiting for it."""
        return x if self.stream is None else x.pin_memory().to(self.device, non_blocking=True)


def _parameters(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimiser.param_groups for p in group["params"]]


def _moments(p: Tensor) -> dict[str, Tensor]:
    """What AdamW remembers of a parameter, before its first update."""
    return {
        "step": torch.zeros((), dtype=torch.float32, device=p.device),
        "exp_avg": torch.zeros_like(p),
        "exp_avg_sq": torch.zeros_like(p),
    }


def _check(experiment: Experiment) -> None:
    config = experiment.config
    if config.items > experiment.items:
        raise ValueError(f"a batch has {config.items} items, and the training set only {experiment.items}")
    if isinstance(experiment.estimator, SurrogateREINFORCE) and config.shards > 1:
        raise ValueError("SurrogateREINFORCE learns from its losses as it goes: it takes no shards")
