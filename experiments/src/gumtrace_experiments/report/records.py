"""Runs as they are reported: read from their folders, or from recorded files, which are small enough to be kept with
the code. A recorded file is JSON lines, one run per line, in an order that does not depend on how they were found."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from gumtrace_experiments.registry import known
from gumtrace_experiments.store.files import Damaged, parsed, read_rows, write
from gumtrace_experiments.store.folder import CONFIG, METRICS, PRUNED, RESULT, may_be_of
from gumtrace_experiments.store.settings import completed, setting_problem
from gumtrace_experiments.store.validation import has, is_count, is_number_or_none, result_problem

SUFFIX = ".jsonl"  # of recorded files
ITERATION = "iteration"  # of a curve: the one list that is no metric
_SHOWN = ("device", "cpu", "torch", "date")  # of the machine, in tables
_DIGITS = 5  # significant, of the numbers in a recorded curve


class RecordError(ValueError):
    """A file does not hold what it should; the message says which and why."""


@dataclass(frozen=True)
class Record:
    """One run. `result` is None until it is finished."""

    experiment: str
    config: dict[str, Any]
    machine: dict[str, Any]
    result: dict[str, Any] | None  # iteration of the best checkpoint, its metrics by split; seconds
    curve: dict[str, list]  # iteration, and each metric of the validation set, None where it was not measured
    pruned: bool = False  # by a sweep: there will be no result

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def setting(self) -> dict[str, Any]:
        """The config without the seed: runs of one setting are averaged."""
        return {name: value for name, value in self.config.items() if name != "seed"}

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes it this run and no other; records are sorted by it."""
        return self.experiment, canonical(self.setting), self.seed

    @property
    def progress(self) -> tuple[bool, int]:
        return self.result is not None, len(self.curve[ITERATION])


def canonical(config: dict[str, Any]) -> str:
    """The same text for equal configs.

    >>> canonical({"lr": 0.1, "calls": 8})
    '{"calls":8,"lr":0.1}'
    """
    return json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def collect(
    paths: Iterable[str | Path], left_out: list[Exception] | None = None, experiment: str | None = None
) -> list[Record]:
    """All runs, or those of one experiment, in some folders (and the folders inside) and recorded files, sorted.

    A run that is found several times, in its folder and in a file say, counts once: as it is where it got farthest,
    or where it was found first.

    Args:
        left_out: gets the errors of runs and files that are damaged, and these are left out. Without it, the first of
            them is raised.
        experiment: a damaged folder counts where it is, or may be, one of its runs.
    """
    found: dict[tuple, Record] = {}
    for source in (source for path in paths for source in _sources(Path(path))):
        try:
            records = [read_run(source)] if (source / CONFIG).exists() else load(source)
        except (RecordError, OSError) as error:
            if experiment is not None and not may_be_of(source, experiment):
                continue
            if left_out is None:
                raise
            left_out.append(error)
            continue
        for record in records:
            wanted = experiment in (None, record.experiment)
            if wanted and (record.key not in found or record.progress > found[record.key].progress):
                found[record.key] = record
    return [found[key] for key in sorted(found)]


def _sources(path: Path) -> list[Path]:
    """Folders of runs, and recorded files."""
    if not path.exists():
        raise RecordError(f"{path} does not exist")
    if path.is_file():
        return [path]
    files = [file for file in sorted(path.rglob(f"*{SUFFIX}")) if file.name != METRICS]
    return [*(config.parent for config in sorted(path.rglob(CONFIG))), *files]


def read_run(folder: str | Path) -> Record:
    """The run in a folder, however far it got."""
    folder = Path(folder)
    if not (folder / CONFIG).exists():
        raise RecordError(f"{folder} is not a run: it has no {CONFIG}")
    try:
        about = parsed((folder / CONFIG).read_bytes(), folder / CONFIG)
        result = parsed((folder / RESULT).read_bytes(), folder / RESULT) if (folder / RESULT).exists() else None
        rows = read_rows(folder / METRICS)
    except Damaged as error:
        raise RecordError(str(error)) from None
    body = {
        **{name: about.get(name) for name in ("experiment", "config", "machine")},
        "result": result,
        "curve": _curve(rows),
        # One that a search gave up may have been trained to its end later.
        "pruned": (folder / PRUNED).exists() and (result is None or "diverged" in result),
    }
    return _checked(body, str(folder))


def save(file: str | Path, records: Iterable[Record]) -> None:
    """Records as one file, all of it or nothing."""
    file = Path(file)
    if file.suffix != SUFFIX:
        raise RecordError(f"{file}: the name of a recorded file must end in {SUFFIX}")
    lines = []
    for record in sorted(records, key=lambda record: record.key):
        curve = {name: [_short(x) for x in values] for name, values in record.curve.items()}
        lines.append(canonical({**asdict(record), "curve": curve}) + "\n")
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, "".join(lines).encode())


def load(file: str | Path) -> list[Record]:
    """The records of a file that `save` wrote."""
    records = []
    lines = Path(file).read_bytes().removesuffix(b"\n").split(b"\n")
    for number, line in enumerate(lines if lines != [b""] else [], 1):
        where = f"{file}, line {number}"
        try:
            records.append(_checked(parsed(line, where), where))
        except Damaged as error:
            raise RecordError(str(error)) from None
    return records


def _curve(rows: list[dict[str, Any]]) -> dict[str, list]:
    """The validation rows of a metrics file, as columns."""
    valid = [row for row in rows if row["split"] == "valid"]
    names = dict.fromkeys(name for row in valid for name in row if name not in (ITERATION, "split"))
    return {name: [row.get(name) for row in valid] for name in (ITERATION, *names)}


def _checked(body: dict[str, Any], where: str) -> Record:
    """The record, if it is whole."""
    names = {field.name for field in fields(Record)}
    if {"pruned", *body} != names:  # files of before searches left marks do not have it
        raise RecordError(f"{where}: not a recorded run: expected the fields {', '.join(sorted(names))}")
    record = Record(**body)
    if wrong := list(_problems(record)):
        raise RecordError(f"{where}: {'; '.join(wrong)}")
    return replace(record, config=completed(_defaults(record.experiment), record.config))


def _defaults(name: str) -> dict[str, Any]:
    """Defaults of an experiment's settings; none if it is not known here: its runs are shown as they were written."""
    experiment = known(name)
    return {} if experiment is None else experiment.config_type().to_dict()


def _problems(record: Record) -> Iterator[str]:
    if not isinstance(record.experiment, str):
        yield "no experiment is named"
    if not has(record.config, "seed", "estimator"):
        yield "the config has no seed or no estimator"
    elif type(record.config["seed"]) is not int or not isinstance(record.config["estimator"], str):
        yield "the config's seed is not a number, or its estimator not a name"
    elif isinstance(record.experiment, str) and (
        problem := setting_problem(_defaults(record.experiment), record.config)
    ):
        yield problem
    if not has(record.machine) or not all(isinstance(record.machine.get(name, ""), str) for name in _SHOWN):
        yield "the machine is not described"
    if record.result is not None and (problem := result_problem(record.result)):
        yield problem
    if not _is_curve(record.curve):
        yield "the lists of the curve are not of one length, or hold more than numbers"
    if not isinstance(record.pruned, bool):
        yield "pruned is neither true nor false"


def _is_curve(curve: Any) -> bool:
    if not has(curve, ITERATION) or not all(isinstance(values, list) for values in curve.values()):
        return False
    numbers = all(is_number_or_none(x) for values in curve.values() for x in values)
    return numbers and all(map(is_count, curve[ITERATION])) and len({len(values) for values in curve.values()}) == 1


def _short(x: float | None) -> float | None:
    """
    >>> _short(-1582.71828), _short(50_500), _short(None)
    (-1582.7, 50500, None)
    """
    return float(f"{x:.{_DIGITS}g}") if isinstance(x, float) else x
