"""The folder of a run: its config, metrics as JSON lines and TensorBoard events, the best checkpoint, and the state to
go on from. Whenever the process is killed, what is on disk is whole: files are written beside and renamed."""

import io
import json
import math
import os
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch

from gumtrace.experiments.errors import RunFolderError
from gumtrace.experiments.locks import give_back, take
from gumtrace.experiments.registry import completed

CONFIG, METRICS, BEST, STATE, RESULT = "config.json", "metrics.jsonl", "best.pt", "state.pt", "result.json"
NEXT = "next-best.pt"  # until the state knows of it
FORMAT = 1  # of checkpoints; those that do not say are of the first
_BEST = {"iteration", "valid", "model"}
_HELD = {STATE: {"iteration", "rows", "seconds", "best", "model", "optimiser"}, BEST: _BEST, NEXT: _BEST}


class RunFolder:
    """Opened by one process at a time. A folder of another config is refused. One in which no run began is no run's."""

    def __init__(self, path: Path, experiment: str, config: dict[str, Any], machine: dict[str, Any]):
        self.path, self.rows, self._events = path, 0, None
        self._unused = False  # claimed just now, and nothing is known of the run yet
        path.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(path)
        try:
            self._claim(experiment, config, machine)
        except BaseException:
            self.close()
            raise

    def _claim(self, experiment: str, config: dict[str, Any], machine: dict[str, Any]) -> None:
        known = read_json(self.path / CONFIG)
        if known is not None and not (isinstance(known.get("config"), dict) and "experiment" in known):
            raise _damaged(self.path / CONFIG, "there is no experiment or no config in it")
        if known is None:
            if strange := [p.name for p in self.path.iterdir() if p.name in (METRICS, BEST, STATE, RESULT)]:
                raise RunFolderError(f"{self.path} holds {', '.join(strange)} but no {CONFIG}: not a run to go on with")
            self.write(CONFIG, {"experiment": experiment, "config": config, "machine": machine})
            self._unused = True
            return
        theirs = completed(known["experiment"], known["config"])
        if known["experiment"] != experiment or theirs != config:
            names = sorted(config.keys() | theirs.keys())
            unlike = [f"{n} {theirs.get(n)!r}" for n in names if theirs.get(n) != config.get(n)]
            raise RunFolderError(
                f"{self.path} holds another run ({known['experiment']}; {', '.join(unlike)}): choose another --out, or "
                "delete it"
            )

    def log(self, row: dict[str, Any]) -> None:
        """`row` has an iteration, a split, and numbers."""
        self._unused = False
        with (self.path / METRICS).open("a") as file:
            file.write(json.dumps({name: _written(value) for name, value in row.items()}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows += 1
        for name, value in row.items():
            if name != "iteration" and not isinstance(value, str):
                self._writer(row["iteration"]).add_scalar(f"{row['split']}/{name}", value, row["iteration"])

    def offer_best(self, state: dict[str, Any]) -> None:
        """A model that is the best as soon as the next state is saved."""
        save(self.path / NEXT, {"format": FORMAT, **state})

    def save_state(self, state: dict[str, Any]) -> None:
        save(self.path / STATE, {"format": FORMAT, **state})
        self._settle(state)
        if self._events is not None:
            self._events.flush()

    def go_on_from(self, state: dict[str, Any] | None) -> None:
        """Forget what came after a state: it comes again, and on some devices not quite the same."""
        self._settle(state)
        if state and state["best"] and not (self.path / BEST).exists():
            raise RunFolderError(
                f"{self.path / BEST} is gone, and the run cannot end without it: bring it back, or delete its folder"
            )
        kept = read_metrics(self.path / METRICS)[: state["rows"] if state else 0]
        if (self.path / METRICS).exists():
            write(self.path / METRICS, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self.rows = len(kept)

    def _settle(self, state: dict[str, Any] | None) -> None:
        offered = load(self.path / NEXT)
        if offered is None:
            return
        if state and state["best"] and state["best"]["iteration"] == offered["iteration"]:
            (self.path / NEXT).replace(self.path / BEST)
        else:
            (self.path / NEXT).unlink()

    def best(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        return load(self.path / BEST, device)

    def write(self, name: str, content: dict[str, Any]) -> None:
        self._unused = False
        write_json(self.path / name, content)

    @property
    def result(self) -> dict[str, Any] | None:
        return read_json(self.path / RESULT)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
        if self._unused:  # the run was refused: nobody should count it as unfinished
            (self.path / CONFIG).unlink(missing_ok=True)
        give_back(self._lock)

    def _writer(self, iteration: int):
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self.path), purge_step=iteration)
        return self._events


def _locked(path: Path) -> int:
    try:
        return take(path / ".lock", wait=False)
    except BlockingIOError:
        raise RunFolderError(f"{path} is in use by another process") from None


def write(path: Path, content: bytes) -> None:
    """All of it or nothing."""
    beside = path.with_name(f".{path.name}.part")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def save(path: Path, state: dict[str, Any]) -> None:
    content = io.BytesIO()
    torch.save(state, content)
    write(path, content.getvalue())


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """A checkpoint, None if there is none. Nothing in the file is run; one of another version is refused."""
    if not path.exists():
        return None
    try:
        with ZipFile(path) as parts:  # as torch writes them, with checksums
            harmed, names = parts.testzip(), parts.namelist()
    except BadZipFile:
        raise _damaged(path, "cut off, or not a checkpoint") from None
    if harmed is not None:
        raise _damaged(path, f"a wrong checksum, of {harmed}")
    if not any(name.endswith("data.pkl") for name in names):
        raise other_version(path, "it is no file of torch.save")
    try:
        found = torch.load(path, map_location=device, weights_only=True)
    except UnpicklingError:  # it advises to read the file all the same, which may run anything
        raise other_version(path, "it holds more than tensors and plain values") from None
    return _checked(path, found)


def _checked(path: Path, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise other_version(path, f"it holds a {type(found).__name__}")
    if (written := found.get("format", FORMAT)) != FORMAT:
        raise other_version(path, f"its format is {written!r}, and here it is {FORMAT}")
    if missing := sorted(_HELD.get(path.name, set()) - found.keys()):
        raise other_version(path, f"there is no {', no '.join(missing)} in it")
    return found


def write_json(path: Path, content: dict[str, Any]) -> None:
    write(path, json.dumps(content, indent=1).encode())


def _written(value: Any) -> Any:
    """JSON knows neither nan nor infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text()) if path.exists() else None
    except ValueError as error:
        raise _damaged(path, str(error)) from None
    if found is not None and not isinstance(found, dict):
        raise _damaged(path, "it is no JSON object")
    return found


def _damaged(path: Path, reason: str) -> RunFolderError:
    return RunFolderError(f"{path} cannot be read ({reason}): delete its folder, and the run begins anew")


def other_version(path: Path, reason: str) -> RunFolderError:
    return RunFolderError(
        f"{path} is of another version of gumtrace, or not of gumtrace ({reason}): use the version that wrote it, or "
        "delete its folder and train anew"
    )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Rows in order; a last line that was cut off while being written is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
