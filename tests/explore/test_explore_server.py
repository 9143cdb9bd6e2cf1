"""The explorer's server: what it answers, to whom, and what it refuses; the command; the recorded runs."""

import json
import re
import socket
from http.client import HTTPConnection
from pathlib import Path

import pytest
from exploring import serving

from gumtrace.cli import explore as command
from gumtrace.cli import main
from gumtrace.explore import precompute
from gumtrace.explore import server as server_module
from gumtrace.explore.answers import answer, catalogue
from gumtrace.explore.requests import REDRAWS, SEEDS, STORIES, read
from gumtrace.explore.server import LONGEST_BODY, Server, page_files, warm_up
from gumtrace.explore.stories import LARGEST_LOGIT

pytestmark = pytest.mark.usefixtures("one_thread")

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def served():
    with serving(Server(0)) as server:
        yield server


@pytest.fixture
def ask(served):
    """ask(method, path, body, headers) -> status, headers, body; all on one connection."""
    connection = HTTPConnection("127.0.0.1", served.server_port, timeout=20)

    def send(method, path, body=None, headers=None):
        connection.request(method, path, body=body, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read()

    yield send
    connection.close()


def test_page_and_files(ask):
    for path, kind in (
        ("/", "text/html"),
        ("/explorer.css", "text/css"),
        ("/main.js?x", "text/javascript"),
        ("/icon.svg", "image/svg+xml"),
    ):
        status, headers, body = ask("GET", path)
        assert (status, headers.get_content_type()) == (200, kind)
        assert len(body) > 100
        assert "script-src 'self'" in headers["Content-Security-Policy"]
    status, headers, body = ask("HEAD", "/")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 100


def test_the_page_is_whole_and_asks_nobody_else():
    files = page_files()
    assert {"index.html", "main.js", "embed.js", "explorer.css"} <= set(files)
    for name, contents in files.items():
        text = contents.decode()
        for other in re.findall(r'(?:src|href)="([^"]+)"|from "\./([^"]+)"', text):
            assert "".join(other) in files, f"{name} needs {other}"
        assert set(re.findall(r"(?:https?:)?//\w[\w.]*", text)) <= {"http://www.w3.org"}  # what SVG is called


def test_runs(ask):
    status, headers, body = ask("GET", "/api/structures")
    assert (status, headers.get_content_type()) == (200, "application/json")
    assert json.loads(body) == catalogue()
    asked = {"structure": "matching", "seed": 4, "redraw": 2}
    status, _, body = ask("POST", "/api/run", json.dumps(asked), JSON)
    assert status == 200
    assert json.loads(body) == json.loads(json.dumps(answer(read(asked))))


GOOD = json.dumps({"structure": "subset"})
REFUSED = {
    "nothing there": (404, "GET", "/favicon.ico", None, {}),
    "not a file of the page": (404, "GET", "/../server.py", None, {}),
    "nor this": (404, "GET", "/%2e%2e/server.py", None, {}),
    "no address": (404, "GET", "//[", None, {}),
    "nowhere to post": (404, "POST", "/api/structures", GOOD, JSON),
    "runs are posted": (405, "GET", "/api/run", None, {}),
    "another method": (405, "DELETE", "/api/run", None, {}),
    "asked from elsewhere whether it may": (405, "OPTIONS", "/api/run", None, {"Origin": "http://example.org"}),
    "a name that was made to point here": (403, "GET", "/", None, {"Host": "example.org"}),
    "the same, posting": (403, "POST", "/api/run", GOOD, {**JSON, "Host": "example.org:80"}),
    "a page of another site": (403, "POST", "/api/run", GOOD, {**JSON, "Origin": "http://example.org"}),
    "a page that hides where it is from": (403, "POST", "/api/run", GOOD, {**JSON, "Origin": "null"}),
    "a form": (415, "POST", "/api/run", GOOD, {"Content-Type": "text/plain"}),
    "no type": (415, "POST", "/api/run", GOOD, {}),
    "too long": (413, "POST", "/api/run", "x" * (LONGEST_BODY + 1), JSON),
    "far too long": (413, "POST", "/api/run", b"", {**JSON, "Content-Length": "9" * 30}),
    "no length": (411, "POST", "/api/run", b"", {**JSON, "Content-Length": "-1"}),
    "no JSON": (400, "POST", "/api/run", "{", JSON),
    "no text": (400, "POST", "/api/run", b"\xff\xfe\xff", JSON),
    "deep": (400, "POST", "/api/run", "[" * LONGEST_BODY, JSON),
    "an integer of many digits": (400, "POST", "/api/run", "9" * 10_000, JSON),
    "not a number": (400, "POST", "/api/run", '{"structure": "subset", "logits": [NaN]}', JSON),
    "no such structure": (400, "POST", "/api/run", '{"structure": "?"}', JSON),
    "a long address": (414, "GET", "/" + "x" * 70_000, None, {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_have_a_reason(name, ask, served):
    expected, *request = REFUSED[name]
    status, headers, body = ask(*request)
    assert status == expected
    assert headers.get_content_type() == "application/json"
    assert len(json.loads(body)["error"]) > 10
    assert ask("POST", "/api/run", GOOD, JSON)[0] == 200  # it goes on


def test_a_request_that_stops_half_way(served, monkeypatch):
    monkeypatch.setattr(server_module._Handler, "timeout", 0.1)
    head = f"POST /api/run HTTP/1.1\r\nHost: 127.0.0.1:{served.server_port}\r\nContent-Length: 9\r\n\r\n"
    with socket.create_connection(served.server_address) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_run_that_fails_is_told_here_and_there(ask, monkeypatch, capfd):
    def fail(request):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(server_module, "answer", fail)
    status, _, body = ask("POST", "/api/run", GOOD, JSON)
    assert (status, json.loads(body)) == (500, {"error": "this run failed; see the terminal"})
    assert "ZeroDivisionError: on purpose" in capfd.readouterr().err


def test_warming_up_runs_everything():
    assert list(warm_up()) == [story["title"] for story in catalogue()["structures"]]


def test_its_own_page_may_ask_by_either_name(ask, served):
    for name in ("127.0.0.1", "localhost"):
        host = f"{name}:{served.server_port}"
        assert ask("POST", "/api/run", GOOD, {**JSON, "Host": host, "Origin": f"http://{host}"})[0] == 200


def test_listens_on_this_machine_only(served):
    assert served.server_address[0] == "127.0.0.1"


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C, as soon as it serves; the kernels need not be compiled for that."""

    def serve(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "serve_forever", serve)
    monkeypatch.setattr(command, "warm_up", lambda: ["Subset"])


def test_command_serves_until_interrupted(interrupted, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(command.webbrowser, "open", opened.append)
    assert main(["explore", "--port", "0"]) == 0
    out = capsys.readouterr().out
    url = re.search(r"http://127\.0\.0\.1:\d+/", out)[0]
    assert opened == [url]
    assert out.startswith("Compiling the kernels, the first time only: Subset ... done\n")
    assert out.endswith("\nStopped.\n")
    assert main(["explore", "--port", "0", "--no-browser"]) == 0
    assert opened == [url]


def test_command_takes_the_next_port_unless_told(interrupted, capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["explore", "--no-browser", "--port", str(port)]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"gumtrace explore: port {port} cannot be used: Address already in use\n")
        assert "give another --port" in err
        monkeypatch.setattr(command, "PORT", port)
        assert main(["explore", "--no-browser"]) == 0
        out, err = capsys.readouterr()
        assert f"port {port} cannot be used" in err
        assert re.search(r"explorer is at http://127\.0\.0\.1:(\d+)/", out)[1] != str(port)


@pytest.mark.parametrize("port", ["65536", "-1", "abc"])
def test_command_refuses_ports_that_are_none(port, capsys):
    with pytest.raises(SystemExit) as end:
        main(["explore", f"--port={port}"])
    assert end.value.code == 2
    assert f"--port: must be a whole number from 0 to 65535, got '{port}'\n" in capsys.readouterr().err


def test_the_site_says_what_is_so():
    text = (Path(__file__).parents[2] / "docs" / "explorer.md").read_text()
    assert f"from −{LARGEST_LOGIT:g} to {LARGEST_LOGIT:g}" in text
    assert f"127.0.0.1:{command.PORT}/api/run" in text
    assert f"0 to {SEEDS - 1}" in text
    assert f"1 to {REDRAWS - 1}" in text
    assert "python -m http.server -d docs/_build/html" in text
    assert "while the explorer has the focus" in text
    body = re.search(r"-d '(\{.*\})'", text)[1]
    assert answer(read(json.loads(body)))["structure"] == "subset"


def test_recorded_runs_are_answers(tmp_path):
    precompute.write(tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    assert json.loads((folder / "catalogue.json").read_text()) == catalogue()
    for name in STORIES:
        runs = json.loads((folder / f"{name}.json").read_text())["runs"]
        assert len(runs) == precompute.RUNS
        for recorded in runs:
            asked = {"structure": name, "seed": recorded["run"]["seed"]}
            assert recorded["run"] == json.loads(json.dumps(answer(read(asked))))
            assert all(noise["same_trace"] for noise in recorded["redraws"])
            assert len({json.dumps(noise) for noise in recorded["redraws"]}) == precompute.REDRAWS
    assert (folder / "embed.js").exists()
    assert not any((folder / name).exists() for name in ("index.html", "address.js"))
    assert sum(file.stat().st_size for file in folder.iterdir()) < 500_000
