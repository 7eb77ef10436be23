"""A Kafka cluster in the reactor of a test: for Twisted's trial, and for pytest-twisted.

Owns `Cluster`, with the names of `twisted_broker.testing.Cluster`; what those return is awaited
here. No process is started: a test that holds the reactor holds the brokers.

Ring 2. Source: our own. Not here: what a cluster is (`cluster.py`).
"""

from __future__ import annotations

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
from twisted_broker.testing.running_cluster import RunningCluster

AsyncFault = Fault[Awaitable[None], Awaitable[int]]


class Cluster(RequestFaults[Awaitable[AsyncFault]], ClusterVerbs[Awaitable[None]]):
    """`await cluster.start()` in a test's set-up, `cluster.stop` as its clean-up; or `async with`.
    After the stop no port, timer or thread is left: trial finds a clean reactor.
    """

    def __init__(
        self,
        brokers: int = 1,
        settings: Mapping[str, object] | None = None,
        *,
        topics: Mapping[str, int] | None = None,
        data: str | os.PathLike[str] | None = None,
    ) -> None:
        self._running = RunningCluster(**start_arguments(brokers, settings, topics, data))

    def __str__(self) -> str:
        return self.bootstrap

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of each broker, with commas."""
        return self._running.calls.bootstrap

    @property
    def brokers(self) -> list[int]:
        """Their ids."""
        return self._running.ids

    async def start(self) -> Cluster:
        """Ends when clients are served. Raises StartError."""
        try:
            await self._running.start()
        except BaseException:
            await self._running.stop()
            raise
        return self

    async def stop(self) -> None:
        """Ends when nothing of it is left."""
        await self._running.stop()

    async def __aenter__(self) -> Cluster:
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replicas: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Topic:
        """As `twisted_broker.testing.Cluster.topic`."""
        calls = self._running.calls
        await calls.make_topic(name, partitions, replicas, settings_text(settings))
        return Topic(self._running, name)

    def group(self, name: str) -> Group:
        """A consumer group, which need not be there yet."""
        return Group(self._running, name)

    def broker(self, node: int) -> ClusterBroker[Awaitable[None]]:
        """As `twisted_broker.testing.Cluster.broker`."""
        check_broker(node, self.brokers)
        return ClusterBroker(self._call, node)

    async def leader(self, topic: str, partition: int) -> ClusterBroker[Awaitable[None]]:
        """As `twisted_broker.testing.Cluster.leader`."""
        return self.broker(await self._call("leader", topic=topic, partition=partition))

    @property
    def controller(self) -> ClusterBroker[Awaitable[None]]:
        """As `twisted_broker.testing.Cluster.controller`."""
        return ClusterBroker(self._call, controller_of(self.brokers))

    def link(self, one: int | str, other: int | str) -> Link[Awaitable[None]]:
        """As `twisted_broker.testing.Cluster.link`."""
        return Link(self._call, one, other)

    def disk(self, node: int) -> Disk[Awaitable[None]]:
        """As `twisted_broker.testing.Cluster.disk`."""
        return Disk(self._call, node)

    async def strike(self, action: str, api: Apis, how: dict[str, Any]) -> AsyncFault:
        number = await self._call("strike_requests", action=action, api=api, **how)
        return Fault(self._call, number)

    @property
    def trace(self) -> ClusterTrace[Awaitable[list[Exchange]], Awaitable[None]]:
        """As `Cluster.trace`."""
        return ClusterTrace(self._call, _exchanges)

    async def ask(self, name: str, **arguments: Any) -> None:
        await self._call(name, **arguments)

    async def check(self, kind: str, topic: str) -> None:
        refuse(await self._call("anomalies", kind=kind, topic=topic))

    @property
    def clock(self) -> ClusterClock[Awaitable[list[str]]]:
        """As `twisted_broker.testing.Cluster.clock`."""
        return ClusterClock(self._call)

    async def _call(self, name: str, /, **arguments: Any) -> Any:
        return await self._running.call(name, arguments)

    async def wait_until(self, condition: Condition, within: str | float = 30.0) -> None:
        """As `twisted_broker.testing.Cluster.wait_until`; raises TimeoutError."""
        await self._running.calls.wait_until(**wait_arguments(condition, within))


class Topic:
    """A topic of a cluster."""

    def __init__(self, running: RunningCluster, name: str) -> None:
        self._running, self.name = running, name

    async def produce(
        self, records: Iterable[Written], within: str | float = 30.0
    ) -> list[tuple[int, int]]:
        """As `twisted_broker.testing.Topic.produce`."""
        found = [written(record) for record in records]
        return await self._running.calls.produce(self.name, found, in_seconds(within))

    async def records(
        self,
        at_least: int = 0,
        *,
        isolation: str = "read_uncommitted",
        within: str | float = 10.0,
    ) -> list[Record]:
        """As `twisted_broker.testing.Topic.records`."""
        calls = self._running.calls
        found = await calls.records(self.name, at_least, isolation, in_seconds(within))
        return read(self.name, found)


class Group:
    """A consumer group of a cluster."""

    def __init__(self, running: RunningCluster, name: str) -> None:
        self._running, self.name = running, name

    async def _found(self) -> dict[str, Any]:
        return await self._running.calls.group(self.name)

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
        await self._running.calls.set_offsets(self.name, wanted)


async def _exchanges(found: Awaitable[list[dict[str, Any]]]) -> list[Exchange]:
    return exchanges(await found)
