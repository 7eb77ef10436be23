"""The messages between systemd and a service that it started.

Owns `ServiceManager` (Type=notify: readiness, stop, the watchdog) and `InheritedSockets` (socket
units).

1. Without systemd's variables in the environment nothing happens.
2. A message that cannot be sent is dropped: the service manager restarts a service that it does
   not hear from, and nothing here may wait for it.
3. The watchdog's messages come from the reactor, two in its period: a reactor that stands still is
   restarted.
4. An inherited socket is the port of the listener with the same address: `listeners` stays as
   Kafka has it. One that no listener has, or that no port can be, is refused in one line.
5. Closing an inherited socket ends no listening: clients wait in its backlog for the next start.

Ring 2. Source: sd_notify(3), sd_listen_fds(3), systemd.socket(5). Not here: what is ready when
(`broker_service.py`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any

from twisted_broker.java_numbers import is_digits
from twisted_broker.periodic import PeriodicTask
from twisted_broker.start_checks import StartError

_EVERY = ("", "0.0.0.0", "::")  # noqa: S104  compared, not bound
_FIRST = 3  # descriptor
Address = tuple[str, int]


class ServiceManager:
    """The service manager that `environment` (of the process) names; none: it does nothing."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # An abstract address; addresses of other kinds (vsock:) are of virtual machines.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        if not address.startswith(("/", "@")):
            self._address = ""
        self._watchdog_seconds = _watchdog_seconds(environment)

    def starting(self) -> None:
        self._send("STATUS=starting")

    def ready(self, who: str, clock: Any) -> None:
        """`who` serves; from now on the watchdog hears of `clock`, the reactor."""
        self._send("READY=1", f"STATUS={who} ready")
        if self._address and self._watchdog_seconds:
            watchdog = PeriodicTask(clock, partial(self._send, "WATCHDOG=1"), "watchdog")
            watchdog.start(self._watchdog_seconds / 2)

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=stopping")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """0: none, or another process's."""
    text = environment.get("WATCHDOG_USEC", "")
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    return int(text) / 1e6 if is_digits(text) else 0.0


class InheritedSockets:
    """The listening sockets that this process was started with, each for one listener."""

    def __init__(self, descriptors: Iterable[int] = ()) -> None:
        """Raises StartError."""
        self._sockets: dict[Address, socket.socket] = {}
        for descriptor in descriptors:
            inherited = _listening(descriptor)
            key = _key(*inherited.getsockname()[:2])
            if key in self._sockets:
                raise StartError(
                    f"systemd passed two sockets on {_text(*key)}: give one ListenStream for it"
                )
            self._sockets[key] = inherited

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> InheritedSockets:
        """Those of LISTEN_FDS, which is removed: they are taken once. Raises StartError."""
        # Not Twisted's ListenFDs: it takes none where LISTEN_FDNAMES is missing.
        count = environment.pop("LISTEN_FDS", "")
        if environment.pop("LISTEN_PID", "") != str(os.getpid()) or not is_digits(count):
            return cls()
        return cls(range(_FIRST, _FIRST + int(count)))

    def __len__(self) -> int:
        return len(self._sockets)

    def has(self, host: str, port: int) -> bool:
        return bool(self._sockets) and _key(host, port) in self._sockets

    def take(self, host: str, port: int) -> socket.socket | None:
        """The one at this address; None where there is none."""
        return self._sockets.pop(_key(host, port), None) if self._sockets else None

    def check(self, listeners: Iterable[Address]) -> None:
        """Raises StartError where one is at no address of `listeners`."""
        if not self._sockets:
            return
        left = self._sockets.keys() - {_key(host, port) for host, port in listeners}
        for key in sorted(left):
            raise StartError(
                f"systemd passed a socket on {_text(*key)}, where no listener is: change "
                "ListenStream of the socket unit, or listeners"
            )


def _listening(descriptor: int) -> socket.socket:
    try:
        found = socket.socket(fileno=descriptor)
        is_internet = found.family in (socket.AF_INET, socket.AF_INET6)
        if not is_internet or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise OSError("it is no TCP socket that listens")
        found.setblocking(False)
        found.set_inheritable(False)
    except OSError as error:
        raise StartError(
            f"systemd passed a socket (descriptor {descriptor}) that cannot be used ({error}): "
            "give ListenStream=HOST:PORT in the socket unit, with Accept=no"
        ) from None
    return found


def _key(host: str, port: int) -> Address:
    """One for all ways to say an address; a name is resolved as binding it would."""
    if host in _EVERY:
        return "", port
    if ":" not in host:
        with suppress(OSError):
            return socket.gethostbyname(host), port
    return host, port


def _text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"
