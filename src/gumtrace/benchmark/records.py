"""Results, and the file they are kept in: {"machine": {...}, "records": [{...}, ...]}."""

import json
import os
import platform
import subprocess
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import torch

import gumtrace
from gumtrace.benchmark.device import bytes_per_second


@dataclass(frozen=True)
class Record:
    """One step of one case. Times: one call on the whole batch; `copy_ms` is a copy of the logits (on CUDA, of the
    device alone).

    `peak_bytes` is how far memory rises during the step (see `peak_bytes`). None: it cannot be measured.
    """

    structure: str
    size: dict[str, int]
    batch: int
    device: str
    dtype: str
    step: str
    ms: float  # median
    min_ms: float
    copy_ms: float | None  # median
    peak_bytes: int | None
    trace_bytes: int
    logits_bytes: int
    device_ms: float | None = None  # CUDA: of the device alone, eager calls
    graph_ms: float | None = None  # CUDA: a replay of t_step as a graph

    @property
    def own_ms(self) -> float | None:
        """What the step takes, on CUDA of the device alone."""
        return self.device_ms if torch.device(self.device).type == "cuda" else self.ms

    @property
    def copies(self) -> float | None:
        """The step in copies of the logits."""
        return None if self.own_ms is None or self.copy_ms is None else self.own_ms / self.copy_ms

    @property
    def best_ms(self) -> float:
        """What the step takes by the best measure there is: a graph's replay, events, or wall-clock time."""
        return next(ms for ms in (self.graph_ms, self.device_ms, self.ms) if ms is not None)

    @property
    def best_copies(self) -> float | None:
        """That in copies of the logits."""
        return None if self.copy_ms is None else self.best_ms / self.copy_ms

    @property
    def extra_memory(self) -> float | None:
        """Peak memory beyond the gradient, which a step returns, in multiples of the logits."""
        return None if self.peak_bytes is None else max(self.peak_bytes / self.logits_bytes - 1, 0.0)


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """What the numbers depend on. Says nothing of who ran it or where."""
    device = torch.device(device)
    return {
        "python": platform.python_version(),
        "gumtrace": gumtrace.__version__,
        "commit": commit(Path(gumtrace.__file__).parent),
        "torch": torch.__version__,
        "numba": _version("numba"),
        "triton": _version("triton"),
        "cuda": torch.version.cuda,
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "bytes_per_second": bytes_per_second(device) if device.type == "cuda" else None,
        "date": datetime.now(UTC).date().isoformat(),
    }


def save(path: str | Path, records: list[Record], machine: dict[str, Any]) -> None:
    body = {"machine": machine, "records": [asdict(record) for record in records]}
    Path(path).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def load(path: str | Path) -> tuple[dict[str, Any], list[Record]]:
    """The machine and the records of a saved run. A file that holds anything else is a ValueError."""
    try:
        body = json.loads(Path(path).read_bytes().decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, or not JSON: {error}") from None
    kinds = {"machine": dict, "records": list}
    if not isinstance(body, dict) or not all(isinstance(body.get(name), kind) for name, kind in kinds.items()):
        raise ValueError(f"{path}: not a file of records: expected the fields machine and records")
    return body["machine"], [_record(record, f"{path}, record {i}") for i, record in enumerate(body["records"])]


def _record(body: Any, where: str) -> Record:
    known = {field.name: field for field in fields(Record)}
    needed = {name for name, field in known.items() if field.default is MISSING}
    if not isinstance(body, dict) or not needed <= body.keys() <= known.keys():
        raise ValueError(f"{where}: not a record: expected the fields {', '.join(known)}")
    if wrong := [name for name, value in body.items() if not _is(value, known[name].type)]:
        raise ValueError(f"{where}: invalid {', '.join(wrong)}")
    return Record(**body)


def _is(value: Any, kind: Any) -> bool:
    """Whether it is of the type that a field has."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (get_origin(kind) or kind,)
    return type(value) in kinds or (type(value) is int and float in kinds)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit(folder: Path) -> str | None:
    """Of a checkout that the folder's files belong to, with a + if they were changed since. None of any other."""
    try:
        git = partial(subprocess.run, cwd=folder, capture_output=True, text=True, timeout=10, check=True)
        git(["git", "ls-files", "--error-unmatch", "__init__.py"])  # it may lie in somebody else's repository
        found = git(["git", "rev-parse", "HEAD"]).stdout.strip()
        return found + "+" * bool(git(["git", "status", "--porcelain", "--", "."]).stdout)
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
