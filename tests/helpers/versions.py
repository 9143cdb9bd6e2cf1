"""Runs the fast tests with the oldest versions that pyproject.toml allows, and with the newest of the index:

    python tests/helpers/versions.py                     # oldest on the oldest Python, newest on every Python found
    python tests/helpers/versions.py oldest newest-3.13  # these alone
    python tests/helpers/versions.py -- -k subset        # other arguments for pytest than -m "not slow"

Every run has a fresh environment in build/versions. torch comes as the build for the CPU, from TORCH_INDEX (by default
PyTorch's own; empty for none: a plain install brings gigabytes of CUDA). `distributions.py` uses
these environments, too.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
CPU = "https://download.pytorch.org/whl/cpu"
EXTRAS = ("cli", "plot", "pyro")  # of the library, that the tests use


def project(folder: Path = ROOT) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def needed_by_tests(folder: Path = ROOT) -> list[str]:
    """Of the extra `test` of a distribution, without the library itself."""
    return [each for each in project(folder)["optional-dependencies"]["test"] if not each.startswith("gumtrace")]


def oldest_versions(folder: Path = ROOT) -> list[str]:
    """name==version for everything that has a lower bound, of the distribution in a folder and of its tests. What both
    distributions bound has the bound of the experiments there."""
    given = project()
    stated = [*given["dependencies"], *(each for name in EXTRAS for each in given["optional-dependencies"][name])]
    stated += needed_by_tests()
    if folder != ROOT:
        stated += [*project(folder)["dependencies"], *needed_by_tests(folder)]
    bounds = [re.match(r"([\w.-]+)>=([\w.]+)[^;]*(;.*)?", requirement) for requirement in stated]
    return list({bound[1]: f"{bound[1]}=={bound[2]}{bound[3] or ''}" for bound in bounds if bound is not None}.values())


def pythons() -> list[str]:
    """The versions of Python that are supported, oldest first."""
    low, high = map(int, re.findall(r"3\.(\d+)", project()["requires-python"]))
    return [f"3.{minor}" for minor in range(low, high)]


def interpreter(version: str) -> str | None:
    """One of this version, if it is installed. One that is only a name, as pyenv's may be, is none."""
    path = shutil.which(f"python{version}")
    works = path is not None and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0
    return path if works else None


def runs(named: list[str]) -> dict[str, tuple[str, list[str]]]:
    """Name -> version of Python and pinned versions."""
    first, *_ = pythons()
    known = {"oldest": (first, oldest_versions())} | {f"newest-{version}": (version, []) for version in pythons()}
    if unknown := set(named) - set(known):
        raise SystemExit(f"{', '.join(sorted(unknown))}: there are {', '.join(known)}")
    return {name: run for name, run in known.items() if name in named or not named}


def create(place: Path, python: str) -> Path:
    """An empty environment; returns its Python."""
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([python, "-m", "venv", place], check=True)
    return place / "bin" / "python"


def add(own: Path, pinned: Sequence[str], packages: list[str]) -> None:
    """Packages, and what the tests need, at these versions. A build of torch for CUDA requires a triton of its own, and
    that of torch 2.5 is too old for the tests, so triton comes last and by itself."""
    pinned_triton, others = split_triton(pinned)
    triton, rest = split_triton(needed_by_tests())
    file = own.parents[1] / "pinned.txt"
    file.write_text("\n".join(others), encoding="utf-8")
    index = os.environ.get("TORCH_INDEX", CPU)
    cpu = ["--extra-index-url", index] if index else []
    pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *cpu, "-c", file, *packages, *rest], check=True)
    subprocess.run([*pip, "--no-deps", *(pinned_triton or triton)], check=True)


def split_triton(requirements: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of triton, and the others."""
    triton = [each for each in requirements if each.startswith("triton")]
    return triton, [each for each in requirements if each not in triton]


def main(words: list[str]) -> int:
    end = words.index("--") if "--" in words else len(words)
    named, tests = words[:end], words[end + 1 :] or ["-m", "not slow"]
    outcome = {}
    for name, (version, pinned) in runs(named).items():
        path = interpreter(version)
        if path is None:
            outcome[name] = f"not run: there is no python{version} on the path"
            continue
        print(f"== {name}: Python {version}, {', '.join(pinned) or 'the newest of everything'}", flush=True)
        own = create(ROOT / "build" / "versions" / name, path)
        add(own, pinned, ["-e", f"{ROOT}[{','.join(EXTRAS)}]"])
        pytest = [own, "-m", "pytest", "-q", "-n", "2", "tests", "src/gumtrace", *tests]
        status = subprocess.run(pytest, cwd=ROOT, check=False).returncode
        outcome[name] = "passed" if status == 0 else f"failed with status {status}"
    for name, result in outcome.items():
        print(f"{name:12} {result}")
    return int(any(result.startswith("failed") for result in outcome.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
