"""Connections of the status port: bodies, deadlines, room for one more, refusals. In memory."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.protocol import ClientFactory

from tests.memory_broker import MemoryBroker
from tests.status.looking import Asking, Looking
from tests.test_broker import create

HOST = b"Host: localhost\r\n"
PROBE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Raw:
    """A connection that says what it is told to, byte for byte."""

    def __init__(self, looking: Looking, said: bytes = b"") -> None:
        self.broker, self.ended = looking.broker, Deferred[bytes]()
        self.asking = Asking(said, self.ended)
        factory: Any = ClientFactory()
        factory.noisy = False
        factory.buildProtocol = lambda _: self.asking
        self.broker.run(self.broker.network.connect("127.0.0.1", 8080, factory, 10))

    def say(self, said: bytes) -> None:
        if not self.ended.called:
            self.asking.transport.write(said)
        self.broker.pass_time(0.1)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """What came until the end of the connection."""
        return parsed(self.broker.run(self.ended))


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return (
        int(first.split()[1]),
        {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)},
        body,
    )


@pytest.fixture
def looking() -> Looking:
    found = Looking(MemoryBroker().start())
    assert found.get("/healthz")[0] == 200  # loaded
    return found


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 300000000\r\n", 405),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n", 405),
        (b"PUT / HTTP/1.1\r\n" + HOST, 405),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST, 405),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 300000000\r\n", 413),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n", 413),
        (b"GET / HTTP/1.0\r\nContent-Length: 300000000\r\n", 413),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n", 413),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: identity\r\n", 413),
        (
            b"GET / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 9\r\n",
            413,
        ),
    ],
)
def test_no_body_is_read(
    looking: Looking, monkeypatch: pytest.MonkeyPatch, head: bytes, status: int
) -> None:
    """`twisted.web` stores bodies on disk, in the reactor: the answer comes after the headers."""
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: pytest.fail("a body is stored"))
    raw = Raw(looking, head + b"\r\n" + b"5\r\nabcde\r\n" * 1000)
    found, headers, body = raw.answer()
    assert found == status and headers["connection"] == "close"
    assert ("allow" in headers) == (status == 405)
    assert body.count(b"\n") == 1


def test_an_empty_body_is_none(looking: Looking) -> None:
    request = PROBE.replace(HOST, HOST + b"Content-Length: 0\r\n")
    assert Raw(looking, request).answer()[0] == 200


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),  # has none to send
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET /healthz HTTP/2.0\r\nHost: localhost\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"no colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: %s\r\n\r\n" % (b"9" * 5000), 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: %s\r\nA: b\r\n\r\n" % (b"9" * 5000), 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"a" * 20_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"a" * 40_000, 431),
        (b"GET / HTTP/1.1\r\n" + HOST + (b"A: " + b"a" * 100 + b"\r\n") * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: a\r\n" * 600 + b"\r\n", 431),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 431),
    ],
)
def test_what_is_no_request_is_told_so(looking: Looking, request_: bytes, status: int) -> None:
    found, headers, body = Raw(looking, request_).answer()
    assert found == status
    if status != 200:
        assert headers["connection"] == "close" and body.count(b"\n") == 1


def test_every_answer_forbids_guesses_and_scripts(looking: Looking) -> None:
    create(looking.broker, "t")
    asked = [
        Raw(looking, b"GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n" % (path, host))
        for path in (b"/", b"/metrics", b"/healthz", b"/readyz", b"/icon.svg", b"/none")
        for host in (HOST, b"Host: example.org\r\n", b"")
    ]
    asked += [Raw(looking, said) for said in (b"POST / HTTP/1.1\r\n" + HOST + b"\r\n", b"x\r\n")]
    statuses = set()
    for each in asked:
        status, headers, _ = each.answer()
        statuses.add(status)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith("default-src 'none'")
    assert statuses == {200, 400, 404, 405, 421}


def test_dripping_connections_keep_no_probe_out(looking: Looking) -> None:
    """Sixteen that say a byte each eight seconds; `/healthz` is answered all the time."""
    hogs = [Raw(looking) for _ in range(16)]
    for _ in range(30):
        for hog in hogs:
            hog.say(b"G")
        looking.broker.pass_time(8 - 1.6)
        assert Raw(looking, PROBE).answer()[0] == 200
    assert all(each.ended.called for each in hogs), "no byte moves a deadline"


def test_the_oldest_makes_room(looking: Looking) -> None:
    """Of those that have not asked; one that is being answered goes last."""
    waiting = [Raw(looking, b"GET ") for _ in range(16)]
    waiting.append(Raw(looking))
    looking.broker.pass_time(0.1)
    assert [each.ended.called for each in waiting] == [True] + [False] * 16


def test_readers_that_stop_keep_no_probe_out(looking: Looking) -> None:
    """An answer that nobody takes ends, too."""
    create(looking.broker, "t", 50)
    stopped = [Raw(looking) for _ in range(16)]
    for each in stopped:
        each.asking.transport.pauseProducing()
        each.say(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
    assert Raw(looking, PROBE).answer()[0] == 200
    looking.broker.pass_time(130)
    site: Any = looking.port._factory._site
    assert not site.reading and not site.answering


def test_requests_in_one_piece_are_answered_in_their_order(looking: Looking) -> None:
    one = PROBE.replace(b"Connection: close\r\n", b"")
    answers = looking.broker.run(Raw(looking, one * 3 + PROBE + one).ended)
    assert answers.count(b"HTTP/1.1 200 OK") == 4, "nothing after the one that closes"


def test_a_refusal_in_a_row_of_requests_is_the_last(looking: Looking) -> None:
    """What follows a body could be part of it."""
    one = PROBE.replace(b"Connection: close\r\n", b"")
    post = b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\n"
    answers = looking.broker.run(Raw(looking, one + post + one * 3).ended)
    assert answers.count(b"HTTP/1.1 ") == 2 and b"HTTP/1.1 413 " in answers
