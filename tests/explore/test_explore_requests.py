"""Requests that no browser sends: where one ends is never in doubt, and after a bad one the connection ends."""

import random
import re
from itertools import islice

import pytest
from hostile_requests import check_request, exchanged, hostile_requests
from mutations import MORE

from gumtrace.explore.server import LONGEST_BODY

pytestmark = pytest.mark.usefixtures("one_thread")
INSIDE = b"GET /api/structures HTTP/1.1\r\nHost: HOST\r\n\r\n"  # a request, if a body were read as one
RUN = b'{"structure": "subset"}'


@pytest.fixture
def statuses(served):
    """statuses(raw): of all answers on a connection on which these bytes are sent; HOST is the server's."""

    def call(raw):
        received = exchanged(served.server_address, raw.replace(b"HOST", b"127.0.0.1:%d" % served.server_port))
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) [A-Z]", received)]

    return call


def request(line, *headers, body=b""):
    return b"\r\n".join([line, b"Host: HOST", *headers, b"", body])


def length(body):
    """Of a body that has the server's name in it."""
    return b"Content-Length: %d" % len(body.replace(b"HOST", b"127.0.0.1:%d" % 10_000))


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1", b"HEAD / HTTP/1.1", b"GET /nothing HTTP/1.1"])
def test_a_body_is_not_the_next_request(line, statuses, served):
    """It is read, and nobody wants it."""
    inside = INSIDE.replace(b"HOST", b"127.0.0.1:%d" % served.server_port)
    first = 404 if b"nothing" in line else 200
    with_body = request(line, b"Content-Length: %d" % len(inside), body=inside)
    assert statuses(with_body) == [first]
    then = statuses(
        with_body + request(b"POST /api/run HTTP/1.1", b"Content-Type: application/json", length(RUN), body=RUN)
    )
    assert then == ([200, 200] if first == 200 else [404])


UNCLEAR = {
    "chunks": (400, [b"Transfer-Encoding: chunked"]),
    "chunks and a length": (400, [b"Transfer-Encoding: chunked", b"Content-Length: 5"]),
    "an encoding of nothing": (400, [b"Transfer-Encoding:"]),
    "two lengths": (400, [b"Content-Length: 0", b"Content-Length: 5"]),
    "a length twice": (400, [b"Content-Length: 5", b"content-length: 5"]),
    "a list of lengths": (411, [b"Content-Length: 0, 5"]),
    "a negative length": (411, [b"Content-Length: -5"]),
    "a length with a sign": (411, [b"Content-Length: +5"]),
    "a length of nothing": (411, [b"Content-Length:"]),
    "a length in other digits": (411, ["Content-Length: ²".encode("latin-1")]),
    "a length in base 16": (411, [b"Content-Length: 0x5"]),
    "a long body": (413, [b"Content-Length: %d" % (LONGEST_BODY + 1)]),
    "a very long body": (413, [b"Content-Length: " + b"9" * 5000]),
    "a space before the colon": (400, [b"Content-Length : 5"]),
    "a header behind something else": (400, [b"what is this", b"Content-Length: 5"]),
    "a first line that is continued": (400, [b" more of it"]),
    "two hosts": (400, [b"Host: HOST"]),
    "two origins": (400, [b"Origin: http://HOST", b"Origin: http://HOST"]),
    "two types": (400, [b"Content-Type: application/json", b"Content-Type: text/plain"]),
    "many headers": (431, [b"X-%d: y" % i for i in range(200)]),
    "a long header": (431, [b"X: " + b"y" * 70_000]),
}


@pytest.mark.parametrize("name", UNCLEAR)
@pytest.mark.parametrize("line", [b"GET / HTTP/1.1", b"POST /api/run HTTP/1.1", b"DELETE / HTTP/1.1"])
def test_requests_whose_end_is_not_clear(line, name, statuses):
    """Are refused, and nothing on the connection is read any more."""
    status, headers = UNCLEAR[name]
    if name == "a first line that is continued":
        raw = b"\r\n".join([line, *headers, b"Host: HOST", b"", INSIDE])
    else:
        raw = request(line, *headers, body=INSIDE)
    assert statuses(raw) == [405 if line.startswith(b"DELETE") and status != 431 else status]


@pytest.mark.parametrize("raw", [b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / / HTTP/1.1\r\n\r\n", b"\0\r\n\r\n"])
def test_a_bad_first_line_ends_the_connection(raw, served):
    received = exchanged(served.server_address, raw + INSIDE.replace(b"HOST", b"127.0.0.1:%d" % served.server_port))
    assert received.count(b'{"error":') == 1  # without a head, where no version was asked for
    assert b"structures" not in received


def test_a_body_that_ends_early_is_not_run(statuses):
    headers = (b"Content-Type: application/json", b"Content-Length: %d" % (len(RUN) + 9))
    assert statuses(request(b"POST /api/run HTTP/1.1", *headers, body=RUN)) == [400]


def test_good_requests_share_a_connection(statuses):
    post = request(b"POST /api/run HTTP/1.1", b"Content-Type: application/json", length(RUN), body=RUN)
    get = request(b"GET / HTTP/1.1", b"Content-Length: 0")
    assert statuses(post + get + post + get) == [200] * 4


def test_an_old_client_is_not_kept_waiting(statuses):
    """Without `Connection: keep-alive` it waits for the end of the connection."""
    headers = (b"Content-Type: application/json", length(RUN))
    assert statuses(request(b"POST /api/run HTTP/1.0", *headers, body=RUN + INSIDE)) == [200]


def test_hostile_requests(served, capfd):
    """Every one is answered or its connection ended, the next good one is answered, and nothing fails."""
    requests = hostile_requests(random.Random(0), served.server_port)
    for raw in islice(requests, 600 * MORE):
        check_request(served.server_address, raw)
    assert capfd.readouterr().err == ""
