"""Requests that no browser sends. The checks raise an AssertionError that says what was sent."""

import random
import socket
from collections.abc import Iterator
from contextlib import suppress

from mutations import mutated

PATIENCE = 20.0  # seconds for an answer

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
    received = b""
    with socket.create_connection(address, timeout=PATIENCE) as connection:
        try:
            with suppress(ConnectionError):  # it may go away before all is sent
                connection.sendall(raw)
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65_536):
                received += part
        except TimeoutError:
            raise AssertionError(f"no end of the answer to {raw[:300]!r}") from None
        except ConnectionError:  # it had not read all when it went away
            pass
    return received


def check_request(address: tuple[str, int], raw: bytes) -> None:
    """That the server answers some bytes or ends the connection, and then answers a good request."""
    exchanged(address, raw)
    good = b"GET /api/structures HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % address[1]
    assert exchanged(address, good).startswith(b"HTTP/1.1 200 "), f"no good answer after {raw[:300]!r}"
