"""A sweep: an Optuna study over the search ranges of an experiment. Each trial is a run in a folder of its own."""

import hashlib
import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import TPESampler
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError
from tqdm import tqdm

from gumtrace_experiments.config import Config, derive_seed
from gumtrace_experiments.experiment import Experiment
from gumtrace_experiments.store.errors import RunFolderError, damaged
from gumtrace_experiments.store.files import write
from gumtrace_experiments.store.folder import read_json
from gumtrace_experiments.store.locks import exclusive
from gumtrace_experiments.store.settings import completed, differences
from gumtrace_experiments.store.validation import has
from gumtrace_experiments.sweep.database import Connection, Patient
from gumtrace_experiments.sweep.errors import SweepError, reason

SWEEP, JOURNAL = "sweep.json", "study.journal"
DONE = (TrialState.COMPLETE, TrialState.PRUNED)
HEARTBEAT, GRACE = 60, 180  # seconds: how often a trial says to a database that it runs, and when it is given up
RETRIES = 3  # of a trial whose workers end in it
RETRY_OF = "retry_of"  # attribute of a trial: the number of the one before


@dataclass(frozen=True)
class Sweep:
    """What is searched, and how a trial is run. The same for all workers."""

    experiment: type[Experiment]
    config: Config
    """What is not searched for; with the experiment, the identity of the study."""
    out: Path
    trials: int = 20
    """Completed or pruned ones, also those of earlier calls."""
    storage: str = ""
    """A journal file, or the URL of a database. By default a journal in `out`. Locks tell which workers of a journal
    live: on a file system that does not share them among its machines, use a database."""
    prune: bool = True
    seed: int | None = None
    """Random seed of the sampler."""
    device: str = "cpu"
    data: Path = Path("data")
    compile: bool = False
    graph: bool = False
    threads: int | None = None
    """Of the CPU, for each worker. By default workers of one machine share those that torch chooses."""

    def __post_init__(self):
        if self.trials < 1:
            raise ValueError(f"trials must be at least 1, got {self.trials}")

    @property
    def name(self) -> str:
        """The name of the study."""
        return f"{self.experiment.name}-{digest(self.config)}"

    @property
    def on_database(self) -> bool:
        return "://" in self.storage

    @property
    def journal(self) -> Path:
        return Path(self.storage or self.out / JOURNAL)

    @property
    def locks(self) -> Path:
        """Folder of the workers' locks: beside what they share."""
        return self.out / "workers" if self.on_database else self.journal.with_name(f"{self.journal.name}.workers")

    def folder(self, config: Config) -> Path:
        """A trial's: a function of its config, so that a trial that is tried again resumes from its checkpoint."""
        return self.out / f"trial-{digest(config)}"


def digest(config: Config) -> str:
    """A digest of the fields that differ from their defaults, so that new fields change no digest."""
    usual = type(config)().to_dict()
    text = json.dumps({name: x for name, x in config.to_dict().items() if x != usual[name]}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def claim(sweep: Sweep) -> None:
    """The folder for this study; one of another study is refused."""
    path, mine = sweep.out / SWEEP, {"experiment": sweep.experiment.name, "config": sweep.config.to_dict()}
    defaults = sweep.experiment.config_type().to_dict()
    with exclusive(sweep.out / ".lock"):
        known = read_json(path)
        if known is None:
            write(path, json.dumps(mine, indent=1).encode())
            return
        if not has(known.get("config")) or not isinstance(known.get("experiment"), str):
            raise damaged(path, "it lacks an experiment or a config")
        same = known["experiment"] == mine["experiment"]
        theirs = completed(defaults, known["config"]) if same else known["config"]
        if not same or theirs != mine["config"]:
            about = ", ".join([known["experiment"], *differences(theirs, mine["config"])])
            raise RunFolderError(f"{sweep.out} holds another sweep ({about}): choose another --out")


def say(text: str) -> None:
    """On stderr, above a progress bar if there is one."""
    tqdm.write(text, file=sys.stderr)


def open_study(sweep: Sweep, worker: int = 0, *, wait: bool = False) -> Study:
    """The study, made if there is none yet. Workers of different numbers ask their samplers for different values.

    Args:
        wait: for a database that does not answer. Otherwise it is an error, as its URL may be wrong.
    """
    warm_up = sweep.config.iterations // 5
    pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=warm_up)
    try:
        study = optuna.create_study(
            study_name=sweep.name,
            storage=_storage(sweep, wait),
            pruner=pruner if sweep.prune else optuna.pruners.NopPruner(),
            direction="maximize",
            load_if_exists=True,
        )
    except (ImportError, OSError, SQLAlchemyError) as error:
        where = "the database" if sweep.on_database else sweep.journal  # an URL may hold a password
        raise SweepError(f"cannot open the study in {where}: {reason(error)}") from error
    except Exception as error:  # of many kinds: Optuna believes what it finds in a journal
        if sweep.on_database:
            raise
        why = f"damaged, or no journal of Optuna: {type(error).__name__}: {reason(error)}"
        raise SweepError(f"cannot open the study in {sweep.journal}: {why}") from error
    # A sampler starts afresh in each process: from its seed alone it would repeat what is in the study already.
    seed = None if sweep.seed is None else derive_seed(sweep.seed, worker, count(study)) % 2**32
    study.sampler = TPESampler(seed=seed, constant_liar=True)
    return study


def _storage(sweep: Sweep, wait: bool) -> optuna.storages.BaseStorage:
    if not sweep.on_database:
        sweep.journal.parent.mkdir(parents=True, exist_ok=True)
        return optuna.storages.JournalStorage(JournalFileBackend(str(sweep.journal)))
    connection = Connection(lambda text: say(f"gumtrace sweep: {text}"))
    storage = connection.insist(lambda: _database(sweep)) if wait else _database(sweep)
    return Patient(optuna.storages.get_storage(storage), connection, HEARTBEAT)


def _database(sweep: Sweep) -> optuna.storages.RDBStorage:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*heartbeat_interval", ExperimentalWarning)
        return optuna.storages.RDBStorage(
            sweep.storage,
            {"pool_pre_ping": True},  # connections that broke meanwhile are replaced, not used
            heartbeat_interval=HEARTBEAT,
            grace_period=GRACE,
            heartbeat_stale_trial_callback=retry,
        )


def count(study: Study, states: Sequence[TrialState] | None = None) -> int:
    return len(study.get_trials(deepcopy=False, states=states))


def best(study: Study) -> list[FrozenTrial]:
    """Completed trials, best first."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return sorted(done, key=lambda trial: trial.value or 0.0, reverse=True)


def give_up(study: Study, number: int) -> None:
    """A trial whose worker ended in it has failed, and is tried again. It is queued first: whoever does this may be
    killed in between."""
    trial = study.get_trials(deepcopy=False)[number]
    if trial.state not in DONE:
        retry(study, trial)
        study.tell(number, state=TrialState.FAIL, skip_if_finished=True)


def retry(study: Study, trial: FrozenTrial) -> None:
    """Queue a failed trial once more, with the same parameters, unless somebody did. Two who do so at the same time, on
    machines that share no locks, may both queue it: whoever is given the second refuses it (`repeats`)."""
    retries = trial.user_attrs.get("retries", 0)
    if retries_of(study, trial.number) or retries >= RETRIES or not trial.params:
        return
    attributes: dict[str, Any] = {RETRY_OF: trial.number, "retries": retries + 1}
    study.add_trial(
        optuna.create_trial(
            state=TrialState.WAITING,
            params=trial.params,
            distributions=trial.distributions,
            intermediate_values=trial.intermediate_values,
            user_attrs=attributes,
        )
    )


def retries_of(study: Study, number: int) -> list[int]:
    """Numbers of the trials that a trial was queued again as. One is enough."""
    trials = study.get_trials(deepcopy=False)
    return [other.number for other in trials if other.user_attrs.get(RETRY_OF) == number]


def repeats(study: Study, trial: Trial) -> int | None:
    """The number of an earlier trial that retries the same one. Storages number trials one after the other, so that of
    two retries it is known to all which is the first."""
    tried = trial.user_attrs.get(RETRY_OF)
    first = trial.number if tried is None else min(retries_of(study, tried))
    return first if first < trial.number else None
