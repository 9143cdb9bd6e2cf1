"""Damage: files with bytes that changed, and requests that no browser sends. `hostile_states` has more.

Everything takes a `random.Random`, and the checks raise an AssertionError that says what was done. GUMTRACE_DAMAGE=100
makes a hundred times as many mutations in every test that uses them: for a night.
"""

import io
import json
import os
import random
import signal
import socket
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gumtrace.experiments.errors import RunFolderError

CHECKPOINTS = ("state.pt", "best.pt")
MORE = int(os.environ.get("GUMTRACE_DAMAGE", "1"))  # times as many mutations in every test: for a night
PATIENCE = 20.0  # seconds for an answer


# Bytes ----------------------------------------------------------------------------------------------


def mutated(data: bytes, rng: random.Random) -> bytes:
    """With a few bits turned over, a part cut out or cut off, bytes that are new, or a part that is there twice."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        place, size = rng.randrange(len(changed) + 1), rng.choice((1, 1, 2, 8, 64))
        match rng.randrange(6):
            case 0 | 1 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 2:
                changed[place:place] = rng.randbytes(size)
            case 3:
                changed[place : place + size] = rng.randbytes(len(changed[place : place + size]))
            case 4:
                del changed[place : place + size]
            case 5 if rng.random() < 0.5:
                del changed[place:]
            case _:
                changed[place:place] = changed[place : place + size]
    return bytes(changed)


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
        said = str(error)
    except Exception as error:
        raise AssertionError(f"{about}: {type(error).__name__}: {error}") from error
    else:
        return True
    assert len(said.splitlines()) == 1, f"{about}: {said}"
    assert str(named) in said, f"{about}: {said}"
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
    path, told = folder / rng.choice(CHECKPOINTS), rng.random() < 0.7
    path.write_bytes((mutated if told else repacked)(path.read_bytes(), rng))
    return f"{path.name} {'mutated' if told else 'mutated, with the right checksums'}", told


def check_resumed(folder: Path, resume: Callable[[], Any], result: Any, about: str, exact: bool = True) -> bool:
    """That a run resumes to this result (or, if not `exact`, to any), or is refused and left as it was. Returns whether
    it went on."""
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
            said = {"returned": check()}
        except BaseException as error:
            said = {"raised": f"{type(error).__name__}: {error}"}
        os.write(write, json.dumps(said).encode()[:60_000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the process was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    answer = json.loads(said)
    assert "raised" not in answer, answer["raised"]
    return answer["returned"]


# Requests -------------------------------------------------------------------------------------------

_BODY = b'{"structure": "subset"}'
_RUN = b'{"structure": "matching", "options": {"rows": 2, "columns": 2}, "logits": [0, 1e0, -2, 3], "redraw": 1}'
_LENGTHS = (b"0", b"5", b"23", b"-1", b"+5", b"5, 5", b"0x5", b"5 5", b"", b"99999999999999999999", b"\xb2", b"1e1")
_ENCODINGS = (b"chunked", b"identity", b"gzip, chunked", b"", b"Chunked")
_JUNK = (
    b"X: y",
    b"Content-Length : 5",
    b": nothing",
    b"no colon",
    b" folded",
    b"\0: \0",
    b"From me",
    b"X: " + b"y" * 70_000,
)
_METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"get", b"", b"G\xffT")
_PATHS = (b"/", b"/api/structures", b"/api/run", b"/nothing", b"//[", b"*", b"http://a/", b"/\xff", b"/?" + b"x" * 5000)
_VERSIONS = (b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/x", b"", b"HTTP/1.1 more")


def hostile_requests(rng: random.Random, port: int) -> Iterator[bytes]:
    """Without end: several at a time, of parts that do not go together, half of them mutated."""
    while True:
        raw = b"".join(_request(rng, port) for _ in range(rng.choice((1, 1, 2, 3))))
        yield mutated(raw, rng) if rng.random() < 0.5 else raw


def _request(rng: random.Random, port: int) -> bytes:
    if rng.random() < 0.3:
        return _run(rng, port)
    lines = [b" ".join((rng.choice(_METHODS), rng.choice(_PATHS), rng.choice(_VERSIONS)))]
    headers = [b"Host: 127.0.0.1:%d" % port] if rng.random() < 0.9 else []
    headers += [b"Content-Length: " + rng.choice(_LENGTHS) for _ in range(rng.choice((0, 1, 1, 2)))]
    headers += [b"Transfer-Encoding: " + rng.choice(_ENCODINGS)] if rng.random() < 0.2 else []
    headers += [b"Content-Type: application/json"] if rng.random() < 0.7 else []
    headers += [rng.choice(_JUNK)] if rng.random() < 0.2 else []
    headers += [b"Connection: " + rng.choice((b"close", b"keep-alive"))] if rng.random() < 0.3 else []
    rng.shuffle(headers)
    body = rng.choice((b"", _BODY, b"5\r\nhello\r\n0\r\n\r\n", b"GET /smuggled HTTP/1.1\r\n\r\n", rng.randbytes(30)))
    return b"\r\n".join([*lines, *headers, b"", body])


def _run(rng: random.Random, port: int) -> bytes:
    """Whose form is right, and not what it asks for."""
    body = mutated(_RUN, rng)
    head = b"POST /api/run HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n" % port
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def exchanged(address: tuple[str, int], raw: bytes) -> bytes:
    """What a server says to some bytes, until it ends the connection. AssertionError: it does not."""
    said = b""
    with socket.create_connection(address, timeout=PATIENCE) as connection:
        try:
            with suppress(ConnectionError):  # it may go away before all is sent
                connection.sendall(raw)
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65_536):
                said += part
        except TimeoutError:
            raise AssertionError(f"no end of the answer to {raw[:300]!r}") from None
        except ConnectionError:  # it had not read all when it went away
            pass
    return said


def check_request(address: tuple[str, int], raw: bytes) -> None:
    """That the server answers some bytes or ends the connection, and then answers a good request."""
    exchanged(address, raw)
    good = b"GET /api/structures HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % address[1]
    assert exchanged(address, good).startswith(b"HTTP/1.1 200 "), f"no good answer after {raw[:300]!r}"
