"""A Kafka cluster for tests of asyncio programs: `AsyncCluster`, with the names of `Cluster`.

Its brokers are in a process of their own: a test that holds its loop holds no broker.

Source: our own. Not here: what a cluster is (`cluster.py`), what is awaited of it (`awaited.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Mapping
from typing import Any

from twisted_broker.testing.awaited import AwaitedCluster
from twisted_broker.testing.cluster import start_arguments
from twisted_broker.testing.handles import Call, Snapshot
from twisted_broker.testing.template_client import LENGTH, Connection, template


class _Calls:
    """One call at a time over the connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._calling = asyncio.Lock()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._length: int | None = None

    async def call(self, name: str, /, **arguments: Any) -> Any:
        """Raises ClusterError, ClusterTimeout."""
        async with self._calling:
            if self._reader is None:
                self._reader, self._writer = await asyncio.open_connection(
                    sock=self.connection.socket
                )
            assert self._writer is not None
            self._writer.write(self.connection.request(name, arguments))
            try:
                # Those before it are of calls that were cancelled.
                while (found := await self._next_answer(self._reader))["id"] != (
                    self.connection.number
                ):
                    pass
            except (asyncio.IncompleteReadError, ConnectionError):
                raise self.connection.died() from None
            return self.connection.result(found)

    async def _next_answer(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        """One that is cancelled goes on at the next call."""
        if self._length is None:
            (self._length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        answer = await reader.readexactly(self._length)
        self._length = None
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self.connection.close()


class AsyncCluster(AwaitedCluster):
    """As `Cluster`; `async with` starts and ends it, as `start` and `close` do."""

    def __init__(
        self,
        brokers: int = 1,
        settings: Mapping[str, object] | None = None,
        *,
        topics: Mapping[str, int] | None = None,
        data: str | os.PathLike[str] | None = None,
    ) -> None:
        self._arguments = start_arguments(brokers, settings, topics, data)
        self._calls: _Calls | None = None
        self.bootstrap = ""
        """HOST:PORT of each broker, with commas, once it is started"""
        self.brokers: list[int] = []
        """their ids"""
        self.pid = 0
        """of the process that they are in"""

    def __str__(self) -> str:
        return self.bootstrap

    async def start(self) -> AsyncCluster:
        """Ends when clients are served. Raises ClusterError."""
        self._calls = _Calls(template().fork())
        try:
            started = await self._calls.call("start", **self._arguments)
        except BaseException:
            self._calls.close()
            raise
        self.bootstrap, self.brokers = started["bootstrap"], started["brokers"]
        self.pid = started["pid"]
        return self

    async def snapshot(self) -> Snapshot[Awaitable[None]]:
        """As `Cluster.snapshot`."""
        return Snapshot(self.call, await self.call("snapshot"))

    async def restore(self, snapshot: Snapshot[Awaitable[None]]) -> None:
        """As `Cluster.restore`."""
        self.pid = (await self.call("restore", number=snapshot.number))["pid"]

    async def close(self) -> None:
        """As `Cluster.close`."""
        calls, self._calls = self._calls, None
        if calls is None:
            return
        try:
            if self._arguments["data"] is not None:
                await calls.call("stop")
        finally:
            calls.close()

    async def __aenter__(self) -> AsyncCluster:
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _running(self) -> _Calls:
        if self._calls is None:
            raise RuntimeError("the cluster does not run: use `async with`, or await start()")
        return self._calls

    @property
    def call(self) -> Call[Any]:
        return self._running().call

    @property
    def ids(self) -> list[int]:
        return self.brokers

    @property
    def log(self) -> str:
        """What the brokers logged."""
        return self._running().connection.log(0)
