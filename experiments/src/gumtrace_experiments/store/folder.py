"""The folder of a run: its config, metrics as JSON lines and TensorBoard events, the best checkpoint, and the state to
resume from. Whenever the process is killed, what is on disk is whole: files are written beside and renamed."""

import json
import math
import os
from pathlib import Path
from typing import Any

from gumtrace_experiments.store.checkpoints import BEST, NEXT, STATE, load, save
from gumtrace_experiments.store.errors import RunFolderError, damaged
from gumtrace_experiments.store.files import Damaged, parsed, read_rows, write
from gumtrace_experiments.store.locks import give_back, take
from gumtrace_experiments.store.settings import completed, differences
from gumtrace_experiments.store.validation import has, result_problem

CONFIG, METRICS, RESULT = "config.json", "metrics.jsonl", "result.json"
LOCK = ".lock"
PRUNED = "pruned.json"  # in the folder of a run that a search gave up: there were better ones, or it diverged


class RunFolder:
    """Opened by one process at a time. A folder of another config is refused; one whose run never started can be used.

    Args:
        about: the content of `config.json`: `experiment`, its name, `config`, and anything else.
        defaults: of the config's fields, for folders of a version that did not have all of them.
    """

    def __init__(self, path: Path, about: dict[str, Any], defaults: dict[str, Any]):
        self.path, self.rows, self._events = path, 0, None
        self.is_new = False  # claimed just now, and nothing is known of the run yet
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path)
        except OSError as error:
            raise RunFolderError(f"cannot write into {path}: {error.strerror}; choose another --out") from None
        try:
            self._claim(about, defaults)
        except BaseException:
            self.close()
            raise

    def _claim(self, about: dict[str, Any], defaults: dict[str, Any]) -> None:
        known = read_json(self.path / CONFIG)
        if known is not None and not (has(known.get("config")) and isinstance(known.get("experiment"), str)):
            raise damaged(self.path / CONFIG, "it lacks an experiment or a config")
        if known is None:
            if strange := [p.name for p in self.path.iterdir() if p.name in (METRICS, BEST, STATE, RESULT)]:
                raise RunFolderError(f"{self.path} holds {', '.join(strange)} but no {CONFIG}: not a run to resume")
            self.write(CONFIG, about)
            self.is_new = True
            return
        same = known["experiment"] == about["experiment"]
        theirs = completed(defaults, known["config"]) if same else known["config"]
        if not same or theirs != about["config"]:
            unlike = ", ".join(differences(theirs, about["config"]))
            raise RunFolderError(
                f"{self.path} holds another run ({known['experiment']}; {unlike}): choose another --out"
            )

    def log(self, row: dict[str, Any]) -> None:
        """`row` has an iteration, a split, and numbers."""
        self.is_new = False
        with (self.path / METRICS).open("a") as file:
            file.write(json.dumps({name: _written(value) for name, value in row.items()}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows += 1
        for name, value in row.items():
            if name != "iteration" and not isinstance(value, str):
                self._writer(row["iteration"]).add_scalar(f"{row['split']}/{name}", value, row["iteration"])

    def stage_best(self, state: dict[str, Any]) -> None:
        """A model that is the best as soon as the next state is saved."""
        save(self.path / NEXT, state)

    def save_state(self, state: dict[str, Any]) -> None:
        save(self.path / STATE, state)
        self._settle(state)
        if self._events is not None:
            self._events.flush()

    def best_of(self, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """The best model that a state knows of. A run cannot end without it: to find out only then would cost hours."""
        if not state or not state["best"]:
            return None
        found = [best for name in (NEXT, BEST) if (best := load(self.path / name)) is not None]
        if not found:
            raise RunFolderError(
                f"{self.path / BEST} is gone, and the run cannot end without it: restore it, or choose another --out"
            )
        for best in found:
            if best["iteration"] == state["best"]["iteration"]:
                return best
        raise damaged(self.path / BEST, f"it is not the best model recorded in {STATE}")

    def resume_from(self, state: dict[str, Any] | None) -> None:
        """Forget what came after a state: it comes again, and on some devices not quite the same."""
        rows, known = read_metrics(self.path / METRICS), state["rows"] if state else 0
        if len(rows) < known:
            raise damaged(self.path / METRICS, f"it has {len(rows)} rows, but had {known} when {STATE} was written")
        self._settle(state)
        if (self.path / METRICS).exists():
            write(self.path / METRICS, "".join(json.dumps(row) + "\n" for row in rows[:known]).encode())
        self.rows = known

    def _settle(self, state: dict[str, Any] | None) -> None:
        offered = load(self.path / NEXT)
        if offered is None:
            return
        if state and state["best"] and state["best"]["iteration"] == offered["iteration"]:
            (self.path / NEXT).replace(self.path / BEST)
        else:
            (self.path / NEXT).unlink()

    def best(self) -> dict[str, Any] | None:
        return load(self.path / BEST)

    def write(self, name: str, content: dict[str, Any]) -> None:
        self.is_new = False
        write_json(self.path / name, content)

    @property
    def result(self) -> dict[str, Any] | None:
        return read_json(self.path / RESULT)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
        if self.is_new:  # the run was refused, and should not count as unfinished
            (self.path / CONFIG).unlink(missing_ok=True)
        give_back(self._lock)

    def _writer(self, iteration: int):
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self.path), purge_step=iteration)
        return self._events


def _locked(path: Path) -> int:
    try:
        return take(path / LOCK, wait=False)
    except BlockingIOError:
        raise RunFolderError(f"{path} is in use by another process") from None


def write_json(path: Path, content: dict[str, Any]) -> None:
    write(path, json.dumps(content, indent=1).encode())


def _written(value: Any) -> Any:
    """JSON knows neither nan nor infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any] | None:
    """None if there is no such file."""
    try:
        return parsed(path.read_bytes(), path) if path.exists() else None
    except Damaged as error:
        raise damaged(path, error.reason) from None


def may_be_of(folder: Path, experiment: str) -> bool:
    """Whether what is in a folder is a run of the experiment, or cannot be told: its config is damaged or missing."""
    try:
        config = read_json(folder / CONFIG)
    except (RunFolderError, OSError):
        return True
    return config is None or config.get("experiment") == experiment


def read_result(path: Path) -> dict[str, Any] | None:
    """The result of a finished run; None if it is not finished."""
    result = read_json(path)
    if result is not None and (problem := result_problem(result)):
        raise damaged(path, problem)
    return result


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Rows in order; a last line that was cut off while being written is left out."""
    try:
        return read_rows(path)
    except Damaged as error:
        raise RunFolderError(
            f"{error.where} cannot be read ({error.reason}): correct the line, or train anew in another folder"
        ) from None
