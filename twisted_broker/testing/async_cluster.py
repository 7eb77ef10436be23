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
from twisted_broker.testing.in_force import with_line
from twisted_broker.testing.template_client import LENGTH, Connection, template


class _Calls:
    """Several at a time over the connection; an answer belongs to its call by its number."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._opening = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None

    async def call(self, name: str, /, **arguments: Any) -> Any:
        """Raises ClusterError, ClusterTimeout."""
        async with self._opening:
            if self._writer is None:
                reader, self._writer = await asyncio.open_connection(sock=self.connection.socket)
                self._reading = asyncio.create_task(self._read(reader))
        if self._reading is None or self._reading.done():
            raise self.connection.died()
        request = self.connection.request(name, with_line(name, arguments))
        number = self.connection.number
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(request)
        try:
            found = await answer
        finally:
            self._waiting.pop(number, None)
        if name == "restore" and "result" in found:
            self._end_those_before(number)
        return self.connection.result(found)

    def _end_those_before(self, number: int) -> None:
        """They were asked of the process that a restore ended."""
        for each in [each for each in self._waiting if each < number]:
            lost = {"error": "the cluster was restored meanwhile", "kind": "CallFailed"}
            self._waiting.pop(each).set_result(lost)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                found = json.loads(await reader.readexactly(length))
                # Nobody waits for one whose call was cancelled.
                answer = self._waiting.pop(found["id"], None)
                if answer is not None and not answer.done():
                    answer.set_result(found)
        except (asyncio.IncompleteReadError, ConnectionError):
            waiting, self._waiting = self._waiting, {}
            for each in waiting.values():
                if not each.done():
                    each.set_exception(self.connection.died())

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
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
        seed: int | None = None,
    ) -> None:
        self._arguments = start_arguments(brokers, settings, topics, data, seed)
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
        return Snapshot(self._call, await self._call("snapshot"))

    async def restore(self, snapshot: Snapshot[Awaitable[None]]) -> None:
        """As `Cluster.restore`."""
        self.pid = (await self._call("restore", number=snapshot.number))["pid"]

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
    def _call(self) -> Call[Any]:
        return self._running().call

    @property
    def _ids(self) -> list[int]:
        return self.brokers

    @property
    def log(self) -> str:
        """What the brokers logged."""
        return self._running().connection.log(0)
