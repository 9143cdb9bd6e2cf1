"""The explorer's server: the page's files, and two addresses that answer in JSON. It listens on this machine only.

Pages of other sites must not be able to use it: a request whose Host is not this machine's is refused (a name that was
made to point here), and so is one that another site's page sends (its Origin).
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from gumtrace.explore.answers import answer, catalogue
from gumtrace.explore.requests import STORIES, BadRequest, read

ADDRESS = "127.0.0.1"
LONGEST_BODY = 16_384  # bytes; the longest list of logits takes one
PATIENCE = 20  # seconds that a connection may be silent
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
HEADERS = {
    "Cache-Control": "no-store",  # a new version of the page is seen at once
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Refused(Exception):
    """A request that gets a 4xx and a reason."""

    def __init__(self, status: HTTPStatus, reason: str):
        super().__init__(reason)
        self.status = status


class Server(ThreadingHTTPServer):
    """Serves on `port`, or on any free one if that is 0. Raises OSError if the port is taken."""

    daemon_threads = True

    def __init__(self, port: int):
        super().__init__((ADDRESS, port), _Handler)
        self.files = page_files()
        self.one_at_a_time = threading.Lock()  # runs take milliseconds; two at once would only slow each other down

    @property
    def hosts(self) -> set[str]:
        return {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request, client_address) -> None:
        """A browser that goes away in the middle of an answer is no error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def page_files() -> dict[str, bytes]:
    """The page: name -> contents."""
    folder = resources.files("gumtrace.explore") / "page"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in TYPES}


def warm_up() -> Iterator[str]:
    """Runs every structure once, so that kernels are compiled before the first request; yields each title."""
    for name, story in STORIES.items():
        yield story.title
        answer(read({"structure": name, "redraw": 1}))


class _Handler(BaseHTTPRequestHandler):
    server: Server  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "gumtrace", ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        self._answer(self._get)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, respond: Callable[[str, bytes | None], tuple[str, bytes]]) -> None:
        try:
            self._check_headers()
            self._check_sender()
            kind, body = respond(self.path.partition("?")[0], self._body())
        except Refused as refusal:
            self.send_error(refusal.status, str(refusal))
        except Exception:
            self.server.handle_error(self.request, self.client_address)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "this run failed; see the terminal")
        else:
            self._send(HTTPStatus.OK, kind, body)

    def _get(self, path: str, ignored: bytes | None) -> tuple[str, bytes]:
        if path == "/api/structures":
            return "application/json", _json(catalogue())
        if path == "/api/run":
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "/api/run takes POST")
        name = path.removeprefix("/") or "index.html"
        if name not in self.server.files:
            raise Refused(HTTPStatus.NOT_FOUND, f"{path[:100]} not found: the page is at /")
        return TYPES[name.rpartition(".")[2]], self.server.files[name]

    def _post(self, path: str, body: bytes | None) -> tuple[str, bytes]:
        if body is None:
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "a request needs a Content-Length")
        if path != "/api/run":
            raise Refused(HTTPStatus.NOT_FOUND, f"nothing takes POST at {path[:100]}; runs are at /api/run")
        if self.headers.get_content_type() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a request is sent as application/json")
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused(HTTPStatus.BAD_REQUEST, "the request is not JSON") from None
        try:
            with self.server.one_at_a_time:
                return "application/json", _json(answer(read(asked)))
        except BadRequest as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from None

    def _check_headers(self) -> None:
        """That it is clear where this request ends and what its headers are: the next one comes right behind it."""
        if self.headers.defects or self.headers.get_payload():  # a line that is no header, which hides those after it
            raise Refused(HTTPStatus.BAD_REQUEST, "a line of the request is not a header")
        if "Transfer-Encoding" in self.headers:
            raise Refused(HTTPStatus.BAD_REQUEST, "a request has a Content-Length, and no Transfer-Encoding")
        for name in ("Host", "Origin", "Content-Length", "Content-Type"):
            if len(self.headers.get_all(name, [])) > 1:
                raise Refused(HTTPStatus.BAD_REQUEST, f"a request has one {name} at most")

    def _check_sender(self) -> None:
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host not in self.server.hosts:
            raise Refused(HTTPStatus.FORBIDDEN, f"this server answers at {self.server.url} only")
        if origin is not None and origin.removeprefix("http://") not in self.server.hosts:
            raise Refused(HTTPStatus.FORBIDDEN, "pages of other sites cannot use this server")

    def _body(self) -> bytes | None:
        """Of any request, wanted or not: what is left unread would be taken for the next one. None: it has none."""
        length = self.headers.get("Content-Length")
        if length is None:
            return None
        if not length.isascii() or not length.isdigit():
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "a Content-Length is a number")
        if len(length) > 9 or int(length) > LONGEST_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {LONGEST_BODY} bytes")
        try:
            body = self.rfile.read(int(length))
        except TimeoutError:
            raise Refused(HTTPStatus.REQUEST_TIMEOUT, "the rest of the request did not come") from None
        if len(body) < int(length):
            raise Refused(HTTPStatus.BAD_REQUEST, "the request is shorter than its Content-Length")
        return body

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Errors are JSON too, those of the protocol included. After one the connection ends: there may be a rest of
        the request that nobody read."""
        if code == HTTPStatus.NOT_IMPLEMENTED:  # what http.server says of methods it has no do_ for
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "this server takes GET and POST"
        self.close_connection = True
        self._send(code, "application/json", _json({"error": message or HTTPStatus(code).phrase}))

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD, POST")
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is for the address and for what went wrong."""


def _json(content: Any) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
