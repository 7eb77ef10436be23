"""What is said to systemd, and which of its sockets are taken: with a socket in a directory of the
test's, and descriptors of its own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from twisted_broker.start_checks import StartError
from twisted_broker.systemd import InheritedSockets, ServiceManager


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The service manager's end, at `notify`."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        there.bind(str(tmp_path / "notify"))
        there.setblocking(False)
        yield there


def heard(manager: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(manager.recv(4096))
        except BlockingIOError:
            return found


def test_start_readiness_watchdog_and_stop(manager: socket.socket, tmp_path: Path) -> None:
    clock = Clock()
    said = ServiceManager(
        {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "3000000",
            "WATCHDOG_PID": str(os.getpid()),
        }
    )
    said.starting()
    assert heard(manager) == [b"STATUS=starting"] and not clock.getDelayedCalls()
    said.ready("node 1", clock)
    assert heard(manager) == [b"READY=1\nSTATUS=node 1 ready"]
    for _ in range(3):
        clock.advance(1.4)
        assert heard(manager) == []
        clock.advance(0.1)
        assert heard(manager) == [b"WATCHDOG=1"]
    said.stopping()
    assert heard(manager) == [b"STOPPING=1\nSTATUS=stopping"]


@pytest.mark.parametrize(
    "watchdog",
    [
        {},
        {"WATCHDOG_USEC": "x"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"},
    ],
)
def test_no_watchdog(manager: socket.socket, tmp_path: Path, watchdog: dict[str, str]) -> None:
    clock = Clock()
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")} | watchdog).ready("node 1", clock)
    assert heard(manager) == [b"READY=1\nSTATUS=node 1 ready"] and not clock.getDelayedCalls()


def test_an_abstract_address(manager: socket.socket) -> None:
    name = f"replog-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        try:
            there.bind(f"\0{name}")
        except (OSError, ValueError):
            pytest.skip("abstract addresses are Linux's")
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).stopping()
        assert there.recv(4096, socket.MSG_DONTWAIT).startswith(b"STOPPING=1")


@pytest.mark.parametrize("address", ["", "vsock:2:1", "relative", "/nowhere/at/all", "/"])
def test_nobody_listens(address: str) -> None:
    """Nothing is raised, nothing waits."""
    clock = Clock()
    said = ServiceManager({"NOTIFY_SOCKET": address} if address else {})
    said.starting()
    said.ready("node 1", clock)
    said.stopping()


def test_a_manager_that_does_not_read_holds_nobody_up(
    manager: socket.socket, tmp_path: Path
) -> None:
    said = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    for _ in range(5000):
        said.starting()
    assert heard(manager)


# sockets


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def inherited(*sockets: socket.socket) -> InheritedSockets:
    """Descriptors of their own, as a process inherits them."""
    return InheritedSockets(os.dup(each.fileno()) for each in sockets)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_socket_is_its_listeners_port(listening: socket.socket, host: str) -> None:
    port = listening.getsockname()[1]
    found = inherited(listening)
    assert found.has(host, port) and not found.has(host, port + 1) and not found.has("", port)
    found.check([("127.0.0.1", 1), (host, port)])
    taken = found.take(host, port)
    assert taken is not None and taken.getsockname() == listening.getsockname()
    assert not taken.getblocking() and not taken.get_inheritable()
    assert found.take(host, port) is None
    taken.close()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])  # noqa: S104
def test_every_address_is_one_address(host: str) -> None:
    with socket.create_server(("0.0.0.0", 0)) as every:  # noqa: S104
        taken = inherited(every).take(host, every.getsockname()[1])
        assert taken is not None
        taken.close()


def test_a_socket_that_no_listener_has(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    with pytest.raises(StartError, match=rf"on 127\.0\.0\.1:{port}, where no listener is: change"):
        inherited(listening).check([("127.0.0.1", port + 1), ("", port)])


def test_two_sockets_for_one_listener(listening: socket.socket) -> None:
    with pytest.raises(StartError, match="two sockets on"):
        inherited(listening, listening)


@pytest.mark.parametrize("kind", ["datagram", "unix", "connected", "closed"])
def test_what_is_no_port(kind: str, listening: socket.socket, tmp_path: Path) -> None:
    family, of_type = {
        "datagram": (socket.AF_INET, socket.SOCK_DGRAM),
        "unix": (socket.AF_UNIX, socket.SOCK_STREAM),
    }.get(kind, (socket.AF_INET, socket.SOCK_STREAM))
    with socket.socket(family, of_type) as made:
        if kind == "unix":
            made.bind(str(tmp_path / "s"))
            made.listen()
        if kind == "connected":
            made.connect(listening.getsockname())
        descriptor = os.dup(made.fileno())
    if kind == "closed":
        os.close(descriptor)
    with pytest.raises(StartError, match="systemd passed a socket") as refused:
        InheritedSockets([descriptor])
    assert "\n" not in str(refused.value)


def test_the_variables_are_taken_once_and_by_their_process_only() -> None:
    other = {"LISTEN_FDS": "1", "LISTEN_PID": "1", "PATH": "/"}
    assert not InheritedSockets.of(other).has("127.0.0.1", 1) and other == {"PATH": "/"}
    none = {"LISTEN_FDS": "many", "LISTEN_PID": str(os.getpid())}
    InheritedSockets.of(none).check([])
    assert none == {}
