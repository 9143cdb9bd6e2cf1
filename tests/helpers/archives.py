"""What is in the archives of a release, wheels and sdists, and what is wrong with it."""

import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

PACKAGES = {"gumtrace": "gumtrace", "gumtrace-experiments": "gumtrace_experiments"}  # distribution -> package
NOT_IN_WHEELS = re.compile(r"(^|/)(tests?|fuzz|benchmarks|results)(/|$)|__pycache__|\.(nbi|nbc|pyc)$")


def wheel(name: str, version: str) -> str:
    return f"{PACKAGES[name]}-{version}-py3-none-any.whl"


def sdist(name: str, version: str) -> str:
    return f"{PACKAGES[name]}-{version}.tar.gz"


def problems(folder: Path, version: str, tracked: set[str] | None) -> list[str]:
    """Of the four archives in a folder. `tracked` are the files of the repository, None where they are not known."""
    names = {make(name, version) for name in PACKAGES for make in (wheel, sdist)}
    found = {path.name for path in folder.iterdir()}
    if found != names:
        return [
            f"{folder} holds {', '.join(sorted(found)) or 'nothing'} where it should hold {', '.join(sorted(names))}"
        ]
    said = []
    for name in PACKAGES:
        built, source = files_of_wheel(folder / wheel(name, version)), files_of_sdist(folder / sdist(name, version))
        said += [f"{wheel(name, version)}: {each}" for each in wrong_in_wheel(name, version, built, source)]
        said += [f"{sdist(name, version)}: {each}" for each in wrong_in_sdist(name, version, source, tracked)]
    return said


def files_of_wheel(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def files_of_sdist(path: Path) -> dict[str, bytes]:
    """Without the folder that all of them are in."""
    with tarfile.open(path) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        return {member.name.partition("/")[2]: archive.extractfile(member).read() for member in members}


def repository_files(root: Path) -> set[str] | None:
    """The tracked files; None outside of a clone."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    return set(listed.stdout.split("\0")) - {""} if listed.returncode == 0 and listed.stdout else None


def wrong_in_wheel(name: str, version: str, files: dict[str, bytes], source: dict[str, bytes]) -> Iterator[str]:
    package, info = PACKAGES[name], f"{PACKAGES[name]}-{version}.dist-info"
    yield from wrong_in_metadata(name, version, message_from_bytes(files.get(f"{info}/METADATA", b"")))
    if not files.get(f"{info}/licenses/LICENSE"):
        yield "the licence is missing"
    if b"gumtrace" not in files.get(f"{info}/entry_points.txt", b""):
        yield "the entry points are missing"
    stray = sorted(file for file in files if NOT_IN_WHEELS.search(file) or file.split("/")[0] not in (package, info))
    yield from (f"{file} does not belong there" for file in stray)
    sources = {file.removeprefix("src/") for file in source if file.startswith(f"src/{package}/")}
    missing = sorted(file for file in sources - files.keys() if not NOT_IN_WHEELS.search(file))
    yield from (f"{file} is missing" for file in missing)
    if f"{package}/py.typed" not in files:
        yield "py.typed is missing"


def wrong_in_metadata(name: str, version: str, metadata: Message) -> Iterator[str]:
    expected = {
        "Name": name,
        "Version": version,
        "License-Expression": "Apache-2.0",
        "License-File": "LICENSE",
        "Description-Content-Type": "text/markdown",
    }
    yield from (f"{key} is {metadata[key]}, not {value}" for key, value in expected.items() if metadata[key] != value)
    yield from (f"{key} is missing" for key in ("Summary", "Requires-Python", "Author") if not metadata[key])
    if "Typing :: Typed" not in metadata.get_all("Classifier", []):
        yield "the classifier Typing :: Typed is missing"
    if not any(url.startswith("Repository, https://") for url in metadata.get_all("Project-URL", [])):
        yield "the repository's address is missing"
    requires = metadata.get_all("Requires-Dist", [])
    if name != "gumtrace" and f"gumtrace[cli,plot]=={version}" not in requires:
        yield f"it does not require gumtrace=={version}"
    text = str(metadata.get_payload())
    if not text.strip():
        yield "the readme is missing"
    yield from (f"the readme's link {link} is not absolute" for link in re.findall(r"\]\((?!https://)([^)]*)\)", text))


def wrong_in_sdist(name: str, version: str, files: dict[str, bytes], tracked: set[str] | None) -> Iterator[str]:
    yield from wrong_in_metadata(name, version, message_from_bytes(files.get("PKG-INFO", b"")))
    needed = ("pyproject.toml", "README.md", "LICENSE", f"src/{PACKAGES[name]}/__init__.py")
    yield from (f"{file} is missing" for file in needed if file not in files)
    if name == "gumtrace" and tracked is not None:  # the whole repository: to build both, and to test them
        yield from (f"{file} is missing" for file in sorted(tracked - files.keys()))
        yield from (f"{file} is not in the repository" for file in sorted(files.keys() - tracked - {"PKG-INFO"}))
