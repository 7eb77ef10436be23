"""ZooKeeper over the network, by kazoo (the extra `zookeeper`).

Owns `KazooZooKeeper`, an `IZooKeeper`.

1. kazoo works in threads of its own; nothing of it is called where it could wait, and every result
   comes back through `callFromThread`.
2. After `stop` nothing is called back.
3. What kazoo says comes as lines of this broker's log. Its own lines about the connection are left
   out: `membership.py` has them.

Ring 2. Source: kazoo's `KazooClient`. Not here: what the nodes mean.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError as KazooBadVersion,
)
from kazoo.exceptions import (
    NodeExistsError as KazooNodeExists,
)
from kazoo.exceptions import (
    NoNodeError as KazooNoNode,
)
from kazoo.retry import KazooRetry
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool

from twisted_broker.zookeeper.port import (
    BadVersionError,
    ConnectionLossError,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    SessionEvent,
    ZooKeeperError,
)

_EVENTS = {
    KazooState.CONNECTED: SessionEvent.CONNECTED,
    KazooState.SUSPENDED: SessionEvent.SUSPENDED,
    KazooState.LOST: SessionEvent.EXPIRED,
}
_ERRORS: tuple[tuple[type[Exception], type[ZooKeeperError]], ...] = (
    (KazooNoNode, NoNodeError),
    (KazooNodeExists, NodeExistsError),
    (KazooBadVersion, BadVersionError),
)
_LONGEST_PAUSE_SECONDS = 1.0
_logger = Logger(namespace="kazoo")


class _Lines(logging.Handler):
    """Without a handler Python writes them to the standard error, which becomes an error here."""

    def emit(self, record: logging.LogRecord) -> None:
        write = _logger.warn if record.levelno >= logging.WARNING else _logger.debug
        write("{line}", line=record.getMessage())


def _own_lines() -> logging.Logger:
    found = logging.getLogger("twisted_broker.kazoo")
    if not found.handlers:
        found.addHandler(_Lines())
        found.propagate = False
        found.setLevel(logging.WARNING)
    return found


class KazooZooKeeper:
    """`connect`: Kafka's `zookeeper.connect`, with its path; `reactor`: whose thread calls."""

    def __init__(self, reactor: Any, connect: str, session_timeout_ms: int) -> None:
        self._reactor = reactor
        self._listener: Callable[[SessionEvent], None] = lambda event: None
        self._stopped = False
        self._client: Any = KazooClient(
            hosts=connect,
            logger=_own_lines(),
            timeout=session_timeout_ms / 1000,
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.1, max_delay=_LONGEST_PAUSE_SECONDS, ignore_expire=True
            ),
        )

    @property
    def session_id(self) -> int:
        found = self._client.client_id
        return 0 if found is None else int(found[0])

    def start(self, listener: Callable[[SessionEvent], None]) -> None:
        self._listener = listener
        self._client.add_listener(self._state_changed)
        self._client.start_async()

    def _state_changed(self, state: Any) -> None:
        """In kazoo's thread."""
        self._in_reactor(self._notify, _EVENTS[state])

    def _notify(self, event: SessionEvent) -> None:
        if not self._stopped:
            self._listener(event)

    def _in_reactor(self, call: Callable[..., Any], *args: Any) -> None:
        if not self._stopped:
            self._reactor.callFromThread(call, *args)

    def stop(self) -> Deferred[None]:
        self._stopped = True
        pool = ThreadPool(0, 1, "zookeeper-stop")
        pool.start()
        done: Deferred[Any] = deferToThreadPool(self._reactor, pool, self._end)

        def ended(result: Any) -> None:
            self._reactor.callInThread(pool.stop)

        return done.addBoth(ended)

    def _end(self) -> None:
        self._client.stop()
        self._client.close()

    def _call(self, begin: Callable[[], Any], result: Callable[[Any], Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()

        def finish(value: Any, error: BaseException | None) -> None:
            if error is None:
                done.callback(result(value))
            else:
                done.errback(_translated(error))

        def answered(asynchronous: Any) -> None:
            """In kazoo's thread."""
            error = asynchronous.exception
            value = asynchronous.value if error is None else None
            self._in_reactor(finish, value, error)

        try:
            begin().rawlink(answered)
        except Exception as error:
            done.errback(_translated(error))
        return done

    def get(self, path: str) -> Deferred[tuple[bytes, NodeStat]]:
        return self._call(
            lambda: self._client.get_async(path), lambda found: (found[0] or b"", _stat(found[1]))
        )

    def set(self, path: str, data: bytes, version: int) -> Deferred[int]:
        return self._call(
            lambda: self._client.set_async(path, data, version), lambda stat: int(stat.version)
        )

    def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False
    ) -> Deferred[tuple[str, NodeStat]]:
        return self._call(
            lambda: self._client.create_async(
                path, data, ephemeral=ephemeral, sequence=sequence, makepath=True, include_data=True
            ),
            lambda found: (found[0], _stat(found[1])),
        )

    def delete(self, path: str) -> Deferred[None]:
        return self._call(lambda: self._client.delete_async(path), lambda found: None)

    def children(self, path: str, changed: Callable[[], None] | None = None) -> Deferred[list[str]]:
        watch = None if changed is None else lambda event: self._in_reactor(changed)
        return self._call(lambda: self._client.get_children_async(path, watch=watch), sorted)


def _stat(stat: Any) -> NodeStat:
    return NodeStat(stat.version, stat.czxid, stat.ephemeralOwner)


def _translated(error: BaseException) -> ZooKeeperError:
    for theirs, ours in _ERRORS:
        if isinstance(error, theirs):
            return ours(str(error))
    return ConnectionLossError(f"{type(error).__name__}: {error}")
