"""The relays that faults are made with: what is open passes, what is cut waits, what is dropped
breaks.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.faults.relay import BEHIND, CLIENTS, FRONT, Relays, caller

PATIENCE_SECONDS = 60.0
SOON_SECONDS = 0.2


def request(client_id: bytes) -> bytes:
    """What a client sends first, as far as the relay looks."""
    body = b"\0\x12\0\0\0\0\0\1" + len(client_id).to_bytes(2, "big") + client_id
    return len(body).to_bytes(4, "big") + body


@pytest.fixture
def relays() -> Iterator[Relays]:
    with Relays() as made:
        yield made


class Node:
    """Node 2: listens behind its front; `call` gives both ends of a connection and what was said
    first.
    """

    def __init__(self, relays: Relays) -> None:
        self.port = relays.front("2")
        self.listening = socket.create_server((BEHIND, self.port))
        self.listening.settimeout(PATIENCE_SECONDS)

    def call(self, client_id: bytes) -> tuple[socket.socket, socket.socket]:
        near = socket.create_connection((FRONT, self.port), PATIENCE_SECONDS)
        near.sendall(request(client_id))
        far, _ = self.listening.accept()
        far.settimeout(PATIENCE_SECONDS)
        assert exactly(far, len(request(client_id))) == request(client_id)
        return near, far


@pytest.fixture
def node(relays: Relays) -> Iterator[Node]:
    made = Node(relays)
    yield made
    made.listening.close()


def exactly(from_: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = from_.recv(size - len(data))
        assert more, "closed"
        data += more
    return data


def is_silent(from_: socket.socket) -> bool:
    """Nothing comes, not even an end. A short wait can only err towards saying so."""
    from_.settimeout(SOON_SECONDS)
    try:
        from_.recv(1)
    except TimeoutError:
        return True
    finally:
        from_.settimeout(PATIENCE_SECONDS)
    return False


@pytest.mark.parametrize(
    ("client_id", "name"),
    [
        (b"broker-3-fetcher-0", "3"),
        (b"raft-client-12", "12"),
        (b"broker-1-lifecycle", "1"),
        (b"producer-1", CLIENTS),
        (b"", CLIENTS),
    ],
)
def test_the_caller_is_read_from_the_first_request(client_id: bytes, name: str) -> None:
    begin = request(client_id)
    assert caller(begin) == caller(begin + b"more") == name
    assert all(caller(begin[:size]) == "" for size in range(len(begin)))


def test_a_null_client_id_is_a_clients() -> None:
    assert caller(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff") == CLIENTS


def test_what_is_open_passes_both_ways_and_ends(node: Node) -> None:
    near, far = node.call(b"c")
    near.sendall(b"there")
    assert exactly(far, 5) == b"there"
    far.sendall(b"back")
    assert exactly(near, 4) == b"back"
    far.close()
    assert near.recv(1) == b""
    near.close()


def test_a_cut_way_holds_bytes_until_it_heals(relays: Relays, node: Node) -> None:
    """One way only: the other still carries."""
    near, far = node.call(b"broker-1-fetcher-0")
    relays.cut(("1", "2"))
    near.sendall(b"held")
    far.sendall(b"passes")
    assert exactly(near, 6) == b"passes"
    assert is_silent(far)
    relays.heal()
    assert exactly(far, 4) == b"held"
    near.close(), far.close()


def test_others_do_not_feel_a_cut(relays: Relays, node: Node) -> None:
    """Callers of one front are told apart."""
    cut, far_of_cut = node.call(b"broker-1-fetcher-0")
    free, far_of_free = node.call(b"broker-3-fetcher-0")
    relays.cut(("1", "2"), ("2", "1"))
    free.sendall(b"free")
    assert exactly(far_of_free, 4) == b"free"
    far_of_cut.sendall(b"x")
    assert is_silent(cut)
    for each in (cut, far_of_cut, free, far_of_free):
        each.close()


def test_that_an_end_closed_is_not_heard_over_a_cut_way(relays: Relays, node: Node) -> None:
    near, far = node.call(b"c")
    relays.cut(("2", CLIENTS))
    far.sendall(b"last words")
    far.close()
    assert is_silent(near)
    relays.heal()
    assert exactly(near, 10) == b"last words" and near.recv(1) == b""
    near.close()


def test_a_connection_over_a_cut_way_waits(relays: Relays, node: Node) -> None:
    relays.cut((CLIENTS, "2"))
    near = socket.create_connection((FRONT, node.port), PATIENCE_SECONDS)
    near.sendall(request(b"c"))
    assert is_silent(near)
    relays.heal()
    far, _ = node.listening.accept()
    near.close(), far.close()


def test_a_slow_way_delivers_in_order(relays: Relays, node: Node) -> None:
    near, far = node.call(b"c")
    relays.slow(0.2, (CLIENTS, "2"))
    began = time.monotonic()
    near.sendall(b"1")
    near.sendall(b"2")
    assert exactly(far, 2) == b"12"
    assert time.monotonic() - began >= 0.2
    near.close(), far.close()


def test_dropped_connections_break_at_both_ends(relays: Relays, node: Node) -> None:
    near, far = node.call(b"broker-1-fetcher-0")
    assert relays.drop("3") == 0
    assert relays.drop("1") == 2
    for end in (near, far):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
        end.close()


def test_a_node_that_is_not_there_is_a_connection_lost(node: Node) -> None:
    node.listening.close()
    near = socket.create_connection((FRONT, node.port), PATIENCE_SECONDS)
    near.sendall(request(b"c"))
    with pytest.raises(ConnectionResetError):
        near.recv(1)
    near.close()


def test_a_caller_with_tls_is_known_by_its_process(relays: Relays, node: Node) -> None:
    """Its first request cannot be read: a node's process is that node, any other is a client."""
    hello = b"\x16\x03\x01\x00\x05hello"
    child = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import socket, sys; sys.stdin.readline()\n"
            f"made = socket.create_connection(({FRONT!r}, {node.port}))\n"
            f"made.sendall({hello!r})\n"
            "sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
    )
    relays.pids = lambda: {"1": 2**22 + 1, "3": child.pid}  # a process that is no more, too
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()
    try:
        first, _ = node.listening.accept()
        assert exactly(first, len(hello)) == hello
        assert {("3", "2"), ("2", "3")} <= relays.used()
        with socket.create_connection((FRONT, node.port), PATIENCE_SECONDS) as own:
            own.sendall(hello)
            second, _ = node.listening.accept()
            assert exactly(second, len(hello)) == hello
            assert (CLIENTS, "2") in relays.used()
            second.close()
        first.close()
    finally:
        child.communicate(b"")
