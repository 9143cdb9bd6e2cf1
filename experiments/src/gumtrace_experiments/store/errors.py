"""What is wrong with a run on disk, as errors of one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RunFolderError(Exception):
    """The folder cannot be used for this run; the message says why and what to do."""


class OtherWeights(RunFolderError):
    """A checkpoint's weights are not those of the model."""

    def __init__(self, reason: str):
        self.reason = reason
        super().__init__(
            f"the weights of a checkpoint are not of this version of gumtrace ({reason}): use the version that wrote "
            "it, or choose another --out"
        )


def damaged(path: Path, reason: str) -> RunFolderError:
    return RunFolderError(f"{path} cannot be read ({reason}): restore it, or delete the folder to train anew")


def other_version(path: Path, reason: str) -> RunFolderError:
    return RunFolderError(
        f"{path} is of another version of gumtrace, or not of gumtrace ({reason}): use the version that wrote it, or "
        "train anew in another folder"
    )


def unknown_experiment(path: Path, name: str, where: str | None) -> RunFolderError:
    """A run of an experiment that is not installed here. `where`: its class, as the run says."""
    about, named = (f" ({where})", where) if where else ("", "module:Class")
    return RunFolderError(
        f"{path} is a run of {name!r}{about}, which is not known here: install its package, or name its class, as in "
        f"gumtrace evaluate {named} {path}"
    )


@contextmanager
def weights_of(path: Path) -> Iterator[None]:
    """Weights that are not those of the model are this file's."""
    try:
        yield
    except OtherWeights as error:
        raise other_version(path, error.reason) from None
