"""Makes the archives of a release in dist/, and tests them as users get them:

    python tests/helpers/distributions.py                # both, with the oldest and the newest of what they require
    python tests/helpers/distributions.py newest         # both, with the newest
    python tests/helpers/distributions.py oldest gumtrace-experiments

Both sdists are built, the wheels from these, and `archives.py` checks what is in them. Each distribution is tested in
environments of its own, fresh and outside of the repository: the oldest versions that pyproject.toml allows on the
oldest Python, or the newest of the index on the newest Python found, with torch as in constraints.txt. The fast tests
run there in the unpacked sdist, of which the sources were removed: what they import is what was installed. TORCH_INDEX
is as in `versions.py`.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

import archives
import versions

ROOT = versions.ROOT
DIST = ROOT / "dist"
FOLDERS = {"gumtrace": ROOT, "gumtrace-experiments": ROOT / "experiments"}
FUZZER = "the fuzzer is not in the wheel"
SOURCES = "it reads the sources"
LEFT_OUT = {  # test -> why it cannot run with what is installed
    "tests/fuzz": FUZZER,
    "tests/helpers/fuzz_workers.py": FUZZER,
    "tests/structures/test_descriptions.py": FUZZER,
    "tests/test_wheel.py": SOURCES,
    "tests/docs/test_docs.py::test_files_that_are_named_exist[CONTRIBUTING.md]": SOURCES,
    "tests/docs/test_docs.py::test_the_lists_of_contributing_match_the_code": SOURCES,
    "tests/docs/test_docs.py::test_contributing_names_every_layer": SOURCES,
}


def environments(named: list[str]) -> dict[tuple[str, str], tuple[str, list[str]]]:
    """Distribution and oldest or newest -> interpreter and pinned versions. Of those that are named, or of all."""
    found = {version: path for version in versions.pythons() if (path := versions.interpreter(version))}
    first = versions.pythons()[0]
    if first not in found:
        raise SystemExit(f"there is no python{first} on the path, the oldest that is supported: install it")
    python = {"oldest": found[first], "newest": list(found.values())[-1]}
    if unknown := set(named) - {*FOLDERS, *python}:
        raise SystemExit(f"{', '.join(sorted(unknown))}: there are {', '.join([*python, *FOLDERS])}")
    distributions = [name for name in FOLDERS if name in named] or FOLDERS
    ages = [age for age in python if age in named] or python
    return {
        (name, age): (python[age], versions.oldest_versions(FOLDERS[name]) if age == "oldest" else [torch()])
        for age in ages
        for name in distributions
    }


def torch() -> str:
    """The newest that a release is tested with."""
    (pinned,) = re.findall(r"^torch==\S+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    return pinned


def version() -> str:
    text = (ROOT / "src" / "gumtrace" / "__init__.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]


def tell(what: str) -> None:
    print(f"== {time.strftime('%H:%M:%S')} {what}", flush=True)


def build(place: Path) -> None:
    """The archives, into dist/: sdists from the repository, wheels from the sdists."""
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    own, pip = place / "bin" / "python", ["-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([own, *pip, "install", "-c", ROOT / "constraints.txt", "hatchling"], check=True)
    for name, folder in FOLDERS.items():
        subprocess.run([own, "-m", "hatchling", "build", "-t", "sdist", "-d", DIST], cwd=folder, check=True)
        source = DIST / archives.sdist(name, version())
        subprocess.run([own, *pip, "wheel", "--no-deps", "-w", DIST, source], cwd=place, check=True)


def unpack(place: Path) -> Path:
    """The sdist of gumtrace without the sources of either distribution."""
    with tarfile.open(DIST / archives.sdist("gumtrace", version())) as archive:
        archive.extractall(place, filter="data")
    (folder,) = place.iterdir()
    for sources in ("src", "experiments/src"):
        shutil.rmtree(folder / sources)
    return folder


def install(own: Path, name: str, pinned: list[str]) -> None:
    """The wheel of a distribution; with that of the experiments, also the library's, which it requires."""
    library = f"{DIST / archives.wheel('gumtrace', version())}[{','.join(versions.EXTRAS)}]"
    others = [f"{DIST / archives.wheel(name, version())}"] if name != "gumtrace" else []
    versions.add(own, pinned, [library, *others])


def installed(own: Path, name: str) -> str:
    """What the environment has; an error unless it has the wheel itself."""
    code = f"""if True:
        import sys, {archives.PACKAGES[name]} as tested
        from importlib.metadata import version
        assert tested.__file__.startswith(sys.prefix), tested.__file__
        found = [name + " " + version(name) for name in ("torch", "numba", "numpy")]
        print("Python " + sys.version.split()[0], *found, sep=", ")"""
    command = [own, "-P", "-c", code]
    return subprocess.run(
        command, cwd="/", env=environment(), capture_output=True, text=True, check=True
    ).stdout.strip()


def environment() -> dict[str, str]:
    """Variables for the tests, by which nothing of the repository is found."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run_tests(own: Path, name: str, folder: Path) -> dict[str, int]:
    """The fast tests and the doctests of one distribution; counts of outcomes."""
    report = folder.parent / "report.xml"
    report.unlink(missing_ok=True)
    options = ["-q", "-n", "2", "-m", "not slow", "-c", "pyproject.toml", "--rootdir", ".", f"--junitxml={report}"]
    left_out = [f"--{'deselect' if '::' in each else 'ignore'}={each}" for each in LEFT_OUT]
    place = (FOLDERS[name] / "tests").relative_to(ROOT)
    tests = [place, "--pyargs", archives.PACKAGES[name]]
    start = time.monotonic()
    command = [own, "-m", "pytest", *options, *left_out, *tests]
    status = subprocess.run(command, cwd=folder, env=environment(), check=False).returncode
    seconds = {"seconds": round(time.monotonic() - start)}
    if not report.is_file():
        return {"passed": 0, "failed": 1, "skipped": 0} | seconds
    (suite,) = ElementTree.parse(report).getroot()
    tests, failures, errors, skipped = (int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped"))
    failed = max(failures + errors, int(status != 0))  # a run that was cut short reports only what passed until then
    return {"passed": tests - failures - errors - skipped, "failed": failed, "skipped": skipped} | seconds


def main(named: list[str]) -> int:
    chosen = environments(named)
    rows = []
    with tempfile.TemporaryDirectory(prefix="gumtrace-dist-") as temporary:
        place = Path(temporary)
        tell("building the archives")
        build(place / "tools")
        wrong = archives.problems(DIST, version(), archives.repository_files(ROOT))
        if wrong:
            print(*wrong, sep="\n", file=sys.stderr)
            return 1
        for test, why in LEFT_OUT.items():
            print(f"left out: {test}: {why}")
        for (name, age), (python, pinned) in chosen.items():
            tell(f"{name}, {age}: installing it with {', '.join(pinned)}")
            own = versions.create(place / age, python)
            install(own, name, pinned)
            found = installed(own, name)
            tell(f"{name}, {age}: testing it with {found}")
            counts = run_tests(own, name, unpack(place / f"{name}-{age}"))
            tell(f"{name}, {age}: {', '.join(f'{number} {what}' for what, number in counts.items())}")
            rows.append((name, age, found, counts))
            shutil.rmtree(place / age)  # gigabytes
    print(table(rows))
    return int(any(counts["failed"] or not counts["passed"] for *_, counts in rows))


def table(rows: list[tuple[str, str, str, dict[str, int]]]) -> str:
    files = [path for name in archives.PACKAGES for path in sorted(DIST.glob(f"{archives.PACKAGES[name]}-[0-9]*"))]
    lines = [f"{'file':45} {'kB':>7}", *(f"{path.name:45} {path.stat().st_size / 1000:7.0f}" for path in files), ""]
    lines.append(
        f"{'distribution':21} {'environment':12} {'passed':>6} {'failed':>6} {'skipped':>7} {'seconds':>7}  with"
    )
    for distribution, name, found, counts in rows:
        numbers = "{passed:6} {failed:6} {skipped:7} {seconds:7}".format(**counts)
        lines.append(f"{distribution:21} {name:12} {numbers}  {found}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
