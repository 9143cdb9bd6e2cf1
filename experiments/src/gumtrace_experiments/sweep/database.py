"""The database of a study, which may go away for a while: what fails for want of a connection is done again.

Optuna's storage is wrapped, so that all that a study does passes through here. Most operations may be repeated as they
are. Two may not, as a connection can break when the database has done its part and before it says so: a new trial would
be there twice, and a trial that has ended cannot end again."""

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from threading import Lock
from typing import Any, TypeVar

import optuna
from optuna.storages import BaseStorage
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection

from gumtrace_experiments.sweep.errors import SweepError, reason

LIMIT = 3600.0  # seconds after which a database is given up
PAUSES = 0.5, 5.0  # seconds between attempts: the first pause, which doubles, and the longest
CREATED = "created"  # system attribute of a trial: a name that it was created by

T = TypeVar("T")


def unconnected(error: BaseException | None) -> BaseException | None:
    """The cause of the error, if it is that there is no connection (or, of SQLite, that others are writing). Optuna
    and SQLAlchemy raise errors of their own from it."""
    while error is not None:
        if isinstance(error, OperationalError | InterfaceError | NoConnection):
            return error
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            return error
        error = error.__cause__ or error.__context__
    return None


class Connection:
    """Whether the database is there. One for all threads, so that an outage is reported once."""

    def __init__(self, say: Callable[[str], object]):
        self._say, self._lock = say, Lock()
        self._away: float | None = None  # since when
        self._back = time.monotonic()  # since when it is there

    def there_for(self) -> float:
        """Seconds for which the database is known to have been there."""
        return 0.0 if self._away is not None else time.monotonic() - self._back

    def insist(self, operation: Callable[[], T]) -> T:
        """Until the database answers, or is given up. From then on operations are tried once."""
        pause, longest = PAUSES
        while True:
            try:
                found = operation()
            except Exception as error:
                cause = unconnected(error)
                if cause is None:
                    raise
                self._failed(cause)
            else:
                self._succeeded()
                return found
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _failed(self, cause: BaseException) -> None:
        why = reason(getattr(cause, "orig", None) or cause)  # of the driver: SQLAlchemy adds the statement
        with self._lock:
            if self._away is None:
                self._away = time.monotonic()
                self._say(f"the database does not answer ({why}): trying again, for {LIMIT / 60:g} minutes at most")
            if time.monotonic() - self._away >= LIMIT:
                raise SweepError(f"the database has not answered for {LIMIT / 60:g} minutes: {why}") from cause

    def _succeeded(self) -> None:
        with self._lock:
            if self._away is not None:
                self._back = time.monotonic()
                self._say(f"the database is back after {self._back - self._away:.0f} seconds")
                self._away = None


def _insistent(name: str) -> Callable[..., Any]:
    def call(self: "Patient", *args: Any, **options: Any) -> Any:
        return self.connection.insist(lambda: getattr(self.storage, name)(*args, **options))

    return call


_OPERATIONS = BaseStorage.__abstractmethods__ | BaseHeartbeat.__abstractmethods__
_Insistent = type(
    "_Insistent", (BaseStorage, BaseHeartbeat), {name: _insistent(name) for name in (*_OPERATIONS, "remove_session")}
)


class Patient(_Insistent):
    """A storage of Optuna's whose operations wait for the database. While it was away, no heartbeat was recorded: for
    `settling` seconds after it is back no trial counts as stale."""

    def __init__(self, storage: Any, connection: Connection, settling: float):
        self.storage, self.connection, self._settling = storage, connection, settling

    @property
    def settled(self) -> bool:
        return self.connection.there_for() >= self._settling

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        return super()._get_stale_trial_ids(study_id) if self.settled else []  # type: ignore[misc]

    def record_heartbeat(self, trial_id: int) -> None:
        """In a thread of Optuna's: that a database is given up is reported by what the trial itself stores."""
        with suppress(SweepError):
            super().record_heartbeat(trial_id)  # type: ignore[misc]

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """The trial has a name, by which one that is there already is found. Optuna itself repeats this operation, too,
        so there may be several: the others fail."""
        name = uuid.uuid4().hex
        trial = deepcopy(template_trial) or optuna.create_trial(state=TrialState.RUNNING)
        trial.system_attrs = {**trial.system_attrs, CREATED: name}

        def created() -> list[FrozenTrial]:
            trials = self.storage.get_all_trials(study_id, deepcopy=False)
            return [trial for trial in trials if trial.system_attrs.get(CREATED) == name]

        def create() -> None:
            if not created():
                self.storage.create_new_trial(study_id, trial)

        self.connection.insist(create)
        first, *others = self.connection.insist(created)
        for other in others:
            self.set_trial_user_attr(other._trial_id, "reason", f"the same as trial {first.number}")
            self.set_trial_state_values(other._trial_id, TrialState.FAIL)
        return first._trial_id

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """A trial that has ended as it should has ended at the attempt before."""
        attempts = 0

        def store() -> bool:
            nonlocal attempts
            attempts += 1
            if attempts > 1 and state.is_finished() and self.storage.get_trial(trial_id).state == state:
                return True
            return self.storage.set_trial_state_values(trial_id, state, values)

        return self.connection.insist(store)


def settled(study: Study) -> bool:
    """Whether workers have had the time to tell that they live, if the study's storage is one that goes away."""
    return study._storage.settled if isinstance(study._storage, Patient) else True
