"""A cluster's calls as awaitables, for `AsyncCluster` and `trial.Cluster` alike.

Owns `AwaitedCluster`, `AsyncTopic` and `AsyncGroup`, with the names of `Cluster`, `Topic` and
`Group`. asyncio and Twisted await the same coroutines.

Source: our own. Not here: how a call reaches the brokers (`async_cluster.py`, `trial.py`), what a
cluster is (`cluster.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from twisted_broker.testing.cluster import (
    Member,
    Position,
    Record,
    Written,
    members,
    read,
    settings_text,
    wait_arguments,
    written,
)
from twisted_broker.testing.conditions import Condition
from twisted_broker.testing.handles import (
    Apis,
    Call,
    ClusterBroker,
    ClusterTrace,
    ClusterVerbs,
    Exchange,
    Fault,
    RequestFaults,
    exchanges,
    in_seconds,
    refuse,
)

AsyncFault = Fault[Awaitable[None], Awaitable[int]]


class AwaitedCluster(
    RequestFaults[Awaitable[AsyncFault]], ClusterVerbs[Awaitable[None], Awaitable[list[str]]]
):
    """`call(name, ..)` is awaited."""

    async def topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replicas: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> AsyncTopic:
        """As `Cluster.topic`."""
        await self._call(
            "make_topic",
            name=name,
            partitions=partitions,
            replicas=replicas,
            settings=settings_text(settings),
        )
        return AsyncTopic(self._call, name)

    def group(self, name: str) -> AsyncGroup:
        """As `Cluster.group`."""
        return AsyncGroup(self._call, name)

    async def leader(self, topic: str, partition: int) -> ClusterBroker[Awaitable[None]]:
        """As `Cluster.leader`."""
        return self.broker(await self._call("leader", topic=topic, partition=partition))

    async def _strike(self, action: str, api: Apis, how: dict[str, Any]) -> AsyncFault:
        return Fault(self._call, await self._call("strike_requests", action=action, api=api, **how))

    @property
    def trace(self) -> ClusterTrace[Awaitable[list[Exchange]], Awaitable[None]]:
        """As `Cluster.trace`."""
        return ClusterTrace(self._call, _exchanges)

    async def _check(self, kind: str, topic: str) -> None:
        refuse(await self._call("anomalies", kind=kind, topic=topic))

    async def wait_until(self, condition: Condition, within: str | float = 30.0) -> None:
        """As `Cluster.wait_until`."""
        await self._call("wait_until", **wait_arguments(condition, within))


class AsyncTopic:
    """A topic of a cluster."""

    def __init__(self, call: Call[Awaitable[Any]], name: str) -> None:
        self._call, self.name = call, name

    async def produce(
        self,
        records: Iterable[Written],
        within: str | float = 30.0,
        *,
        transaction: str | None = None,
    ) -> list[tuple[int, int]]:
        """As `Topic.produce`."""
        found = await self._call(
            "produce",
            topic=self.name,
            records=[written(record) for record in records],
            within=in_seconds(within),
            transaction=transaction,
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
        found = await self._call(
            "records",
            topic=self.name,
            at_least=at_least,
            isolation=isolation,
            within=in_seconds(within),
        )
        return read(self.name, found)


class AsyncGroup:
    """A consumer group of a cluster; `Group`, with methods for its properties."""

    def __init__(self, call: Call[Awaitable[Any]], name: str) -> None:
        self._call, self.name = call, name

    async def _found(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._call("group", name=self.name)
        return found

    async def state(self) -> str:
        return str((await self._found())["state"])

    async def members(self) -> list[Member]:
        return members(await self._found())

    async def offsets(self) -> dict[Position, int]:
        return {(topic, number): at for topic, number, at in (await self._found())["offsets"]}

    async def lag(self) -> int:
        return int((await self._found())["lag"])

    async def set_offsets(self, offsets: Mapping[Position, int]) -> None:
        """Commits them; the group must have no members."""
        wanted = [(topic, number, at) for (topic, number), at in offsets.items()]
        await self._call("set_offsets", name=self.name, positions=wanted)


async def _exchanges(found: Awaitable[list[dict[str, Any]]]) -> list[Exchange]:
    return exchanges(await found)
