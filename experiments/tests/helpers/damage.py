"""Damage to the files of runs: bytes that changed, and checkpoints. `hostile_states` has more.

Everything takes a `random.Random`, and the checks raise an AssertionError that says what was done.
"""

import io
import json
import os
import random
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mutations import mutated

from gumtrace_experiments.store.errors import RunFolderError

CHECKPOINTS = ("state.pt", "best.pt")


# Bytes ----------------------------------------------------------------------------------------------


def repacked(data: bytes, rng: random.Random) -> bytes:
    """A zip file in which one part was mutated before it was packed: the checksums are right."""

    def change(parts: dict[str, bytes]) -> None:
        name = rng.choice(list(parts))
        parts[name] = mutated(parts[name], rng)

    return with_parts(data, change)


def with_parts(data: bytes, change: Callable[[dict[str, bytes]], Any]) -> bytes:
    """A zip file whose parts were changed, in place, and packed again."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    change(parts)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return out.getvalue()


def check_read(read: Callable[[], Any], refusal: type[Exception], named: Path, about: str) -> bool:
    """That something is read, or refused in one line that names the file or its folder. Returns whether it was read."""
    try:
        read()
    except refusal as error:
        output = str(error)
    except Exception as error:
        raise AssertionError(f"{about}: {type(error).__name__}: {error}") from error
    else:
        return True
    assert len(output.splitlines()) == 1, f"{about}: {output}"
    assert str(named) in output, f"{about}: {output}"
    return False


# Checkpoints ----------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a run, but for TensorBoard's and the lock."""
    names = [p.name for p in folder.iterdir() if not p.name.startswith(("events", ".lock"))]
    return {name: (folder / name).read_bytes() for name in names}


def put_back(folder: Path, before: dict[str, bytes]) -> None:
    for name in contents(folder).keys() - before.keys():
        (folder / name).unlink()
    for name, content in before.items():
        (folder / name).write_bytes(content)


def damage_checkpoint(folder: Path, rng: random.Random) -> tuple[str, bool]:
    """Changes one of a run's checkpoints. Returns what was done, and whether the file's checksums tell: then it must be
    refused, or hold what it held."""
    path, detectable = folder / rng.choice(CHECKPOINTS), rng.random() < 0.7
    path.write_bytes((mutated if detectable else repacked)(path.read_bytes(), rng))
    return f"{path.name} {'mutated' if detectable else 'mutated, with the right checksums'}", detectable


def check_resumed(folder: Path, resume: Callable[[], Any], result: Any, about: str, exact: bool = True) -> bool:
    """That a run resumes to this result (or, if not `exact`, to any), or is refused and left as it was. Returns whether
    it resumed."""
    before, found = contents(folder), []
    resumed = check_read(lambda: found.append(resume()), RunFolderError, folder, about)
    if resumed:
        assert not exact or found == [result], f"{about}: {found[0]} in place of {result}"
    else:
        assert contents(folder) == before, f"{about}: refused, and files are not as they were"
    return resumed


def in_child(check: Callable[[], Any]) -> Any:
    """What a check returns in a process of its own: one that corrupts its memory is an AssertionError here."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            output = {"returned": check()}
        except BaseException as error:
            output = {"raised": f"{type(error).__name__}: {error}"}
        os.write(write, json.dumps(output).encode()[:60_000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        output = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the process was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    answer = json.loads(output)
    assert "raised" not in answer, answer["raised"]
    return answer["returned"]
