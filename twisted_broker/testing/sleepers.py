"""Copies of a cluster's process that sleep: its snapshots.

Owns `Sleepers`: a copy is a fork, which waits for a message; it wakes as a fork of its own, and
sleeps on.

1. One process of all serves at a time, over the same socket to the test and the same ports: the
   one that wakes another ends.
2. What clients are connected by is closed in a sleeper: a connection that is reset is reset.
3. Only the process that serves holds the other ends of the sleepers' sockets; it hands them on to
   the one that it wakes. When it ends, so do they, however it ended.
4. Bounded: `MOST` of them, each as large as what changed since.

Linux only: the poller of a fork is made anew. Source: our own. Not here: what a copy does when it
is awake (`running_cluster.py`), numbers that it must not give out again (`handed_out.py`).
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

from twisted_broker.net.epoll_group import HANG_UP_REPORTED, EpollGroup
from twisted_broker.testing.cluster_calls import CallFailed

MOST = 64
_LENGTH = struct.Struct(">I")
_MOST_DESCRIPTORS = 253


class Woken(NamedTuple):
    """What a sleeper was woken with. `call`: the number of the call that it has to answer;
    `sockets`: descriptors, by address.
    """

    call: int
    words: dict[str, Any]
    sockets: dict[str, int]


class Sleepers:
    """Of one cluster, as the process that serves knows them."""

    def __init__(self) -> None:
        self._ends: dict[int, socket.socket] = {}
        self._last = 0

    def check(self) -> None:
        """Raises CallFailed: there can be no other one."""
        if not hasattr(select, "epoll"):
            raise CallFailed("a snapshot needs Linux")
        if len(self._ends) >= MOST:
            raise CallFailed(f"a cluster has at most {MOST} snapshots: drop() one of them")
        if threading.active_count() > 1:
            names = ", ".join(each.name for each in threading.enumerate()[1:])
            raise CallFailed(f"a process with threads cannot be copied: {names}")

    def take(self, clients: Iterable[int]) -> tuple[int, Woken | None]:
        """The number of a new one; and what it was woken with, in that one. `clients`: descriptors
        of clients' connections. Not within the poll of the reactor.
        """
        self._last = number = self._last + 1
        ours, theirs = socket.socketpair()
        self._ends[number] = ours
        # What is there is left alone by collections: its pages stay shared.
        gc.collect()
        gc.freeze()
        # Nobody waits for a copy that ended.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        sys.stdout.flush()
        if os.fork():
            theirs.close()
            return number, None
        for each in self._ends.values():
            each.close()
        self._ends.clear()
        with socket.socket() as dead:
            for descriptor in clients:
                os.dup2(dead.fileno(), descriptor, inheritable=False)
        return number, self._sleep(theirs)

    def _sleep(self, end: socket.socket) -> Woken:
        """Returns in a fork of this process."""
        while True:
            head, descriptors, _, _ = socket.recv_fds(end, _LENGTH.size, _MOST_DESCRIPTORS)
            if not head:
                os._exit(0)
            content = b""
            while len(content) < _LENGTH.unpack(head)[0]:
                content += end.recv(1 << 20)
            if os.fork() == 0:
                break
            for each in descriptors:
                os.close(each)
        end.close()
        message = json.loads(content)
        names = message["names"]
        for name, descriptor in zip(names, descriptors, strict=False):
            self._ends[name] = socket.socket(fileno=descriptor)
        sockets = dict(zip(message["addresses"], descriptors[len(names) :], strict=True))
        self._last = message["last"]
        return Woken(message["call"], message["words"], sockets)

    def wake(
        self,
        number: int,
        call: int,
        words: Mapping[str, Any],
        sockets: Mapping[str, int],
        alone: bool,
    ) -> None:
        """This process has to end now. `alone`: the other sleepers, too. Raises CallFailed: there
        is no such one.
        """
        end = self._end(number)
        if alone:
            for other in self._ends.keys() - {number}:
                self.drop(other)
        message = {
            "call": call,
            "words": words,
            "names": list(self._ends),
            "addresses": list(sockets),
            "last": self._last,
        }
        content = json.dumps(message).encode()
        descriptors = [each.fileno() for each in self._ends.values()] + list(sockets.values())
        try:
            socket.send_fds(end, [_LENGTH.pack(len(content))], descriptors)
            end.sendall(content)
        except OSError:
            raise CallFailed(f"the process of snapshot {number} is gone") from None

    def drop(self, number: int) -> None:
        """It ends. Raises CallFailed."""
        self._end(number).close()
        del self._ends[number]

    def _end(self, number: int) -> socket.socket:
        if number not in self._ends:
            raise CallFailed("this snapshot was dropped, or is of another cluster")
        return self._ends[number]


def poll_anew(reactor: Any) -> None:
    """In a fork: the pollers that it has are its parent's, too."""
    groups = [each for each in reactor._selectables.values() if isinstance(each, EpollGroup)]
    for group in groups:
        _replace(group._epoll, group._masks)
    masks = {
        descriptor: (select.EPOLLIN if descriptor in reactor._reads else 0)
        | (select.EPOLLOUT if descriptor in reactor._writes else 0)
        for descriptor in reactor._selectables
    }
    _replace(reactor._poller, masks)


def _replace(poller: Any, masks: Mapping[int, int]) -> None:
    with select.epoll() as fresh:
        os.dup2(fresh.fileno(), poller.fileno(), inheritable=False)
    for descriptor, mask in masks.items():
        poller.register(descriptor, mask & ~HANG_UP_REPORTED)


def end() -> NoReturn:
    """Of this process, without a word to anybody."""
    os._exit(0)
