"""Updates of one model: batches, gradients, the optimiser. Everything random in an update is a function of the seed,
the shard and the iteration."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from gumtrace_experiments.config import derive_seed
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.loop.checks import checked_loss, own_draws
from gumtrace_experiments.loop.cuda_graph import Recording
from gumtrace_experiments.loop.easy_first import EasyFirst
from gumtrace_experiments.loop.workers import Workers

WARM_UP = 3  # updates before a graph is recorded: libraries start up, and kernels are compiled
_streams = threading.local()
FORWARD, BACKWARD, OPTIMISER = "forward", "backward", "optimiser"  # parts of an update, for the profiler


class Updater:
    """Updates a model on a CUDA stream of its own, as a recorded graph if `graph`."""

    def __init__(self, experiment: Experiment, workers: Workers, *, graph: bool = False):
        self.experiment, self.workers = experiment, workers
        self.config, self.device = experiment.config, workers.device
        _check(experiment)
        on_cuda = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if on_cuda else None
        groups = experiment.parameter_groups()
        self._rates = [(torch.tensor(group["lr"], device=self.device), group["lr"]) for group in groups]
        self._factor = 1.0  # of the rates as they are now
        groups = [{**group, "lr": now} for group, (now, _) in zip(groups, self._rates, strict=True)]
        self.optimiser = torch.optim.AdamW(groups, fused=True, capturable=on_cuda)
        with self.on_stream():
            for p in _parameters(self.optimiser):  # and not at a first gradient: every checkpoint holds all of them
                self.optimiser.state[p] = _moments(p)
        self._shards = workers.my_shards(self.config.shards)
        self._generators = [torch.Generator(self.device) for _ in self._shards]
        self.index = torch.zeros(self.config.items, dtype=torch.int64, device=self.device)  # the batch
        self._sums: dict[str, Tensor] = {}  # of the training metrics
        self.batches = Batches(experiment, self.device)
        self._watched = False
        self._recording = self._record() if graph else None

    @property
    def recorded(self) -> bool:
        """As a CUDA graph."""
        return self._recording is not None

    def update(self, iteration: int) -> None:
        with self.on_stream():
            self.prepare(iteration)
            self._update() if self._recording is None else self._recording.replay()

    def prepare(self, iteration: int) -> None:
        """The items, the randomness and the learning rates of an iteration."""
        self.index.copy_(self.batches.of(iteration))
        for shard, generator in zip(self._shards, self._generators, strict=True):
            generator.manual_seed(derive_seed(self.config.seed, "noise", shard, iteration))
        if (factor := self.config.rate_factor(iteration)) != self._factor:
            self._factor = factor
            for now, rate in self._rates:
                now.fill_(rate * factor)

    def _update(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        count = self.config.shards
        parts = self.index.chunk(count)
        for shard, generator in self._each_shard():
            with record_function(FORWARD), self.config.autocast(self.device), self._watch_once():
                found = self.experiment.loss(parts[shard], generator)
            loss, metrics = checked_loss(self.experiment, found)
            with record_function(BACKWARD):
                (loss / count).backward()
            for name, value in metrics.items():
                if name not in self._sums:
                    self._sums[name] = torch.zeros((), device=self.device)
                self._sums[name].add_(value.detach(), alpha=1 / count)
        self.workers.sum([p.grad for p in self.experiment.parameters() if p.grad is not None])
        with record_function(OPTIMISER):
            if self.config.clip:
                self._clip()
            self.optimiser.step()

    def _watch_once(self) -> AbstractContextManager:
        """For the draws of the first loss, which is not recorded: the others draw alike, and to look takes time."""
        watched, self._watched = self._watched, True
        return nullcontext() if watched else own_draws(self.experiment, self.device)

    def _clip(self) -> None:
        """The model's gradient, and that of the estimator's own parameters apart: it is of another size, and must not
        decide how far the model goes."""
        own = {id(p) for p in self.experiment.estimator.parameters()}
        for apart in (False, True):
            part = [p for p in _parameters(self.optimiser) if (id(p) in own) == apart]
            torch.nn.utils.clip_grad_norm_(part, self.config.clip)

    def _each_shard(self) -> Iterator[tuple[int, torch.Generator]]:
        """Every shard finds the buffers (running statistics) as they were; their mean over the shards is kept."""
        pairs = zip(self._shards, self._generators, strict=True)
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

    def totals(self) -> dict[str, float]:
        """Totals of the training metrics since the last call. This synchronises; an update does not, unless it is far
        ahead of the device (cuda_graph.py)."""
        totals = list(self._sums.values())
        self.workers.sum(totals)
        values = torch.stack(totals).tolist() if totals else []
        for total in totals:
            total.zero_()
        return dict(zip(self._sums, values, strict=True))

    def load_model(self, state: Mapping[str, Any]) -> None:
        with self.on_stream():
            self.experiment.load_state_dict(state)

    def load_moments(self, state: dict[str, Any]) -> None:
        """The optimiser's state, in place: a graph holds the addresses."""
        with self.on_stream(), torch.no_grad():
            for i, p in enumerate(_parameters(self.optimiser)):
                for name, own in self.optimiser.state[p].items():
                    own.copy_(state["state"][i][name])

    def reset_moments(self) -> None:
        for state in self.optimiser.state.values():
            for value in state.values():
                value.zero_()

    def _record(self) -> Recording:
        """The update as a graph. Those made on the way are undone."""
        if self._stream is None or self.workers.world > 1:
            raise ValueError("graph=True needs a CUDA device, and one process")
        model = {name: value.clone() for name, value in self.experiment.state_dict().items()}
        self.prepare(0)
        with self.on_stream():
            for _ in range(WARM_UP):
                self._update()
        recording = Recording(self._update, self._stream, self._generators)
        with self.on_stream():
            self.experiment.load_state_dict(model)
            self.reset_moments()
            self.totals()
        return recording

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """On the model's own stream, so that several share a device side by side; after what was queued before."""
        if self._stream is None or torch.cuda.current_stream(self.device) == self._stream:
            yield
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._stream):
                yield

    @contextmanager
    def on_shared_stream(self) -> Iterator[None]:
        """On one that all runs share which this thread evaluates, after what the model's own has queued; that waits for
        it. torch keeps the memory that was used on a stream for that stream: on their own, each run would hold as much
        as its largest evaluation took."""
        if self._stream is None:
            yield
            return
        shared = _shared_stream(self.device)
        shared.wait_stream(self._stream)
        try:
            with torch.cuda.stream(shared):
                yield
        finally:
            self._stream.wait_stream(shared)


class Batches:
    """Which items of the training set an iteration has: a function of the seed and the iteration, the same on every
    device and for every process. Nothing here synchronises.

    They go through the training set in epochs, each in an order of its own. While a curriculum leaves items out there
    are no epochs: items are drawn independently and uniformly from the others. From the iteration on that has all
    items, batches are those of a run without a curriculum.
    """

    def __init__(self, experiment: Experiment, device: torch.device):
        config = experiment.config
        if config.items > experiment.items:
            raise ValueError(f"a batch has {config.items} items, but the training set has only {experiment.items}")
        self.seed, self.items, self.size, self.device = config.seed, config.items, experiment.items, device
        self.easy_first = EasyFirst(experiment) if config.curriculum else None
        self._order, self._epoch = torch.empty(0), -1

    def of(self, iteration: int) -> Tensor:
        """(items,) int64."""
        if self.easy_first is not None and (drawn := self.easy_first.draw(iteration)) is not None:
            return self._to_device(drawn)
        epoch, place = divmod(iteration, self.size // self.items)  # the last few items of an epoch are left out
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, "order", epoch))
            self._order, self._epoch = self._to_device(torch.randperm(self.size, generator=generator)), epoch
        return self._order[place * self.items : (place + 1) * self.items]

    def _to_device(self, x: Tensor) -> Tensor:
        return x if self.device.type == "cpu" else x.pin_memory().to(self.device, non_blocking=True)


def _shared_stream(device: torch.device) -> torch.cuda.Stream:
    """Of this thread."""
    streams = _streams.__dict__.setdefault("by_device", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)
    return streams[device]


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
    if hasattr(experiment.estimator, "surrogate") and config.shards > 1:
        raise ValueError(f"{config.estimator} fits its surrogate to the losses of one process: shards must be 1")
