"""A Kafka cluster for tests of asyncio programs: `AsyncCluster`, with the names of `Cluster`.

Its brokers are in a process of their own: a test that holds its loop holds no broker.

Source: our own. Not here: what a cluster is (`cluster.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from twisted_broker.testing.cluster import (
    Member,
    Position,
    Record,
    Written,
    check_broker,
    controller_of,
    read,
    settings_text,
    start_arguments,
    wait_arguments,
    written,
)
from twisted_broker.testing.conditions import Condition
from twisted_broker.testing.handles import (
    Apis,
    ClusterBroker,
    ClusterClock,
    ClusterTrace,
    ClusterVerbs,
    Disk,
    Exchange,
    Fault,
    Link,
    RequestFaults,
    exchanges,
    in_seconds,
    refuse,
)
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


AsyncFault = Fault[Awaitable[None], Awaitable[int]]


class AsyncCluster(RequestFaults[Awaitable[AsyncFault]], ClusterVerbs[Awaitable[None]]):
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

    async def topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replicas: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> AsyncTopic:
        """As `Cluster.topic`."""
        await self._running().call(
            "make_topic",
            name=name,
            partitions=partitions,
            replicas=replicas,
            settings=settings_text(settings),
        )
        return AsyncTopic(self._running(), name)

    def group(self, name: str) -> AsyncGroup:
        """As `Cluster.group`."""
        return AsyncGroup(self._running(), name)

    def broker(self, node: int) -> ClusterBroker[Awaitable[None]]:
        """As `Cluster.broker`."""
        check_broker(node, self.brokers)
        return ClusterBroker(self._running().call, node)

    async def leader(self, topic: str, partition: int) -> ClusterBroker[Awaitable[None]]:
        """As `Cluster.leader`."""
        return self.broker(await self._running().call("leader", topic=topic, partition=partition))

    @property
    def controller(self) -> ClusterBroker[Awaitable[None]]:
        """As `Cluster.controller`."""
        return ClusterBroker(self._running().call, controller_of(self.brokers))

    def link(self, one: int | str, other: int | str) -> Link[Awaitable[None]]:
        """As `Cluster.link`."""
        return Link(self._running().call, one, other)

    def disk(self, node: int) -> Disk[Awaitable[None]]:
        """As `Cluster.disk`."""
        return Disk(self._running().call, node)

    async def strike(self, action: str, api: Apis, how: dict[str, Any]) -> AsyncFault:
        call = self._running().call
        return Fault(call, await call("strike_requests", action=action, api=api, **how))

    @property
    def trace(self) -> ClusterTrace[Awaitable[list[Exchange]], Awaitable[None]]:
        """As `Cluster.trace`."""
        return ClusterTrace(self._running().call, _exchanges)

    async def ask(self, name: str, **arguments: Any) -> None:
        await self._running().call(name, **arguments)

    async def check(self, kind: str, topic: str) -> None:
        refuse(await self._running().call("anomalies", kind=kind, topic=topic))

    @property
    def clock(self) -> ClusterClock[Awaitable[list[str]]]:
        """As `Cluster.clock`."""
        return ClusterClock(self._running().call)

    async def wait_until(self, condition: Condition, within: str | float = 30.0) -> None:
        """As `Cluster.wait_until`."""
        await self._running().call("wait_until", **wait_arguments(condition, within))

    @property
    def log(self) -> str:
        """What the brokers logged."""
        return self._running().connection.log(0)


class AsyncTopic:
    """A topic of a cluster."""

    def __init__(self, calls: _Calls, name: str) -> None:
        self._calls, self.name = calls, name

    async def produce(
        self, records: Iterable[Written], within: str | float = 30.0
    ) -> list[tuple[int, int]]:
        """As `Topic.produce`."""
        found = await self._calls.call(
            "produce",
            topic=self.name,
            records=[written(record) for record in records],
            within=in_seconds(within),
        )
        return [(partition, offset) for partition, offset in found]

    async def records(
        self,
        at_least: int = 0,
        *,
        isolation: str = "read_uncommitted",
        within: str | float = 10.0,
    ) -> list[Record]:
        """As `Topic.records`."""
        found = await self._calls.call(
            "records",
            topic=self.name,
            at_least=at_least,
            isolation=isolation,
            within=in_seconds(within),
        )
        return read(self.name, found)


class AsyncGroup:
    """A consumer group of a cluster; `Group`, with methods for its properties."""

    def __init__(self, calls: _Calls, name: str) -> None:
        self._calls, self.name = calls, name

    async def _found(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._calls.call("group", name=self.name)
        return found

    async def state(self) -> str:
        return str((await self._found())["state"])

    async def members(self) -> list[Member]:
        return [Member(**each) for each in (await self._found())["members"]]

    async def offsets(self) -> dict[Position, int]:
        return {(topic, number): at for topic, number, at in (await self._found())["offsets"]}

    async def lag(self) -> int:
        return int((await self._found())["lag"])

    async def set_offsets(self, offsets: Mapping[Position, int]) -> None:
        """Commits them; the group must have no members."""
        wanted = [(topic, number, at) for (topic, number), at in offsets.items()]
        await self._calls.call("set_offsets", name=self.name, positions=wanted)


async def _exchanges(found: Awaitable[list[dict[str, Any]]]) -> list[Exchange]:
    return exchanges(await found)
