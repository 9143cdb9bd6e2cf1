"""How long an update takes, alone on a machine: for tables and curves at equal time. Runs side by side, and evaluations
in between, say nothing of that, so it is clocked apart (experiments/benchmarks/equal_time.py)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gumtrace_experiments.report.records import RecordError
from gumtrace_experiments.store.files import Damaged, parsed
from gumtrace_experiments.store.validation import has, is_duration

TIMES = "times.json"  # beside recorded runs
# Settings that do not change what an update has to do.
IDLE = ("seed", "iterations", "evaluate_every", "starts", "start_iterations", "curriculum")
IDLE += ("lr", "estimator_lr", "weight_decay", "temperature", "schedule")


@dataclass(frozen=True)
class Time:
    """Of an update."""

    ms: float
    machine: dict[str, Any]
    setting: dict[str, Any]

    def seconds(self, iteration: int) -> float:
        """All updates up to an iteration, those of starts that were given up included."""
        return 1e-3 * self.ms * (iteration + self._lost)

    def iterations(self, seconds: float) -> int:
        """How many there are in so many seconds."""
        return max(math.floor(1e3 * seconds / self.ms * (1 + 1e-12)) - self._lost, 0)

    @property
    def _lost(self) -> int:
        return (self.setting.get("starts", 1) - 1) * self.setting.get("start_iterations", 0)


class Times:
    """Clocked updates, as files have them: {"updates": [{"experiment", "setting", "device", "ms", "machine"}]}."""

    def __init__(self, records: Iterable[dict[str, Any]] = ()):
        self.records = list(records)

    def of(self, experiment: str, setting: dict[str, Any], device: str) -> Time | None:
        """The newest; None if it was not clocked on that device."""
        for record in reversed(self.records):
            known = {name: value for name, value in record["setting"].items() if name not in IDLE}
            same = (record["experiment"], record["device"]) == (experiment, device)
            if same and all(name in setting and setting[name] == value for name, value in known.items()):
                return Time(record["ms"], record["machine"], setting)
        return None


def load(paths: Iterable[Path]) -> Times:
    """Those of some files, and of some folders that have a times.json."""
    files = [path / TIMES if path.is_dir() else path for path in paths]
    return Times(record for file in files if file.exists() and file.suffix == ".json" for record in _read(file))


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        body = parsed(file.read_bytes(), file)
    except Damaged as error:
        raise RecordError(str(error)) from None
    if not isinstance(body.get("updates"), list) or not all(map(_is_time, body["updates"])):
        raise RecordError(
            f"{file}: not a file of times: expected updates with experiment, setting, device, ms, machine"
        )
    return body["updates"]


def _is_time(record: Any) -> bool:
    if not (has(record, "experiment", "setting", "device", "ms", "machine") and has(record["setting"])):
        return False
    return has(record["machine"]) and is_duration(record["ms"]) and record["ms"] > 0
