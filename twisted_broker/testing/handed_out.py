"""Numbers that clients of a test's cluster have seen: a restore takes data back, never these.

Owns `handed_out`, which notes them, and `Raised`, by which a cluster of before goes on beyond them.

1. Leader epochs: a client ignores metadata with an older one. Where leaders moved since, the epoch
   becomes one that nobody has seen. Where none did, it stays.
2. Producer ids: each broker asks for new ones, beyond all that were handed out.
3. What partitions know of producers is forgotten: whatever sequence comes next is the first.
4. A transactional id has the producer id and epoch that its producer has. A transaction that was
   open is aborted, and its producer fenced, as after its time-out: half of it is gone.
5. Members of groups leave: they join again, under generations and ids that are new.

Topic ids, member ids and the like are drawn at random, anew after each restore.

Ring 2. Source: our own. Not here: which process is restored (`sleepers.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from twisted_broker.coordinator.classic_group import ClassicGroup
from twisted_broker.coordinator.consumer.member import LEAVE_EPOCH
from twisted_broker.coordinator.coordinator_shard import CoordinatorState
from twisted_broker.coordinator.share.group import ShareGroup
from twisted_broker.coordinator.share.requests import ShareHeartbeatRequest
from twisted_broker.coordinator.transaction.transaction_metadata import (
    AT_REST,
    EMPTY,
    LAST_EPOCH,
    NO_PRODUCER_EPOCH,
    ONGOING,
    TransactionMetadata,
)
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.server.kafka_server import KafkaServer
from twisted_broker.testing.cluster_calls import ClusterCalls
from twisted_broker.testing.condition_values import unsettled
from twisted_broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.schema import Record

Numbers = dict[str, Any]
"""As JSON has it: `epochs` by topic and partition, `next_producer_id`, `transactions`: producer id,
epoch, last epoch, time-out in ms, and the client's transaction version, by id
"""
_AGAIN = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}


def nothing_handed_out() -> Numbers:
    """Nobody has seen any."""
    return {"epochs": {}, "next_producer_id": 0, "transactions": {}}


def handed_out(brokers: Iterable[KafkaServer], before: Numbers | None) -> Numbers:
    """By these, and by those that they went on from."""
    found = before or nothing_handed_out()
    for broker in brokers:
        for image in _images(broker):
            found["next_producer_id"] = max(found["next_producer_id"], image.next_producer_id)
            for topic in image.topics_by_name.values():
                epochs = found["epochs"].setdefault(topic.name, {})
                for number, partition in topic.partitions.items():
                    key = str(number)
                    epochs[key] = max(epochs.get(key, -1), partition.leader_epoch)
    # One that is in memory is newer than what was known of it.
    for shard in sorted(_shards(brokers), key=lambda each: each.leader_epoch):
        for metadata in (*shard.transactions.each_value(), *filter(None, shard.held.values())):
            if metadata.producer_epoch != NO_PRODUCER_EPOCH:
                found["transactions"][metadata.transactional_id] = _of_id(metadata)
    return found


def _of_id(metadata: TransactionMetadata) -> list[int]:
    epoch, last = metadata.producer_epoch, metadata.last_producer_epoch
    if metadata.state not in AT_REST:
        epoch, last = min(epoch + 1, LAST_EPOCH), NO_PRODUCER_EPOCH
    version = metadata.client_transaction_version
    return [metadata.producer_id, epoch, last, metadata.timeout_ms, version]


def _images(broker: KafkaServer) -> Iterator[MetadataImage]:
    if broker.broker_server is not None:
        yield broker.broker_server.observer.image
    if broker.parts.controller is not None:
        yield broker.parts.controller.decided


def _shards(brokers: Iterable[KafkaServer]) -> list[Any]:
    return [
        shard
        for broker in brokers
        if broker.broker_server is not None
        for shard in broker.broker_server.transactions.states.shards.values()
    ]


class Raised:
    """`running`: brokers that serve, `controller`: that which decides; `until(lacks)` waits until
    nothing is lacking; `calls`: the test's own. Raises TimeoutError, CallFailed.
    """

    def __init__(
        self,
        running: Sequence[KafkaServer],
        controller: KafkaServer,
        numbers: Numbers,
        until: Callable[[Callable[[], str]], Awaitable[None]],
        calls: ClusterCalls,
    ) -> None:
        self._running, self._numbers, self._until = running, numbers, until
        self._calls = calls
        assert controller.parts.controller is not None
        self._controller = controller.parts.controller
        self._servers = [each.broker_server for each in running if each.broker_server is not None]

    async def apply(self) -> None:
        """Ends when all of it holds."""
        await self._raise_metadata()
        await self._remove_members()
        await self._abort_open()
        for server in self._servers:
            for partition in server.replica_manager.partitions.values():
                if partition.log is not None:
                    partition.log.producers.producers.clear()
        for name, known in self._numbers["transactions"].items():
            if TRANSACTIONS_TOPIC not in self._controller.decided.topics_by_name:
                await self._calls.transaction_state(name)  # which makes it
            await self._set_producer(name, *known)

    # metadata

    async def _raise_metadata(self) -> None:
        found = [*self._records(self._controller.decided)]
        if found:
            await self._controller.write(found)
            offset = self._controller.log.end_offset
            await self._until(lambda: self._lacks_metadata(offset))
        least = self._numbers["next_producer_id"]
        for server in self._servers:
            ids = server.forwarding.producer_ids
            ids._next = ids._end = least

    def _records(self, image: MetadataImage) -> Iterator[Record]:
        for topic in image.topics_by_name.values():
            seen = self._numbers["epochs"].get(topic.name, {})
            for number, known in topic.partitions.items():
                if seen.get(str(number), -1) > known.leader_epoch:
                    raised = known._replace(
                        leader_epoch=seen[str(number)] + 1,
                        partition_epoch=known.partition_epoch + 1,
                    )
                    yield raised.record(topic.id, number)
        if self._numbers["next_producer_id"] > image.next_producer_id:
            yield records.ProducerIdsRecord(
                broker_id=-1,
                broker_epoch=-1,
                next_producer_id=self._numbers["next_producer_id"],
            )

    def _lacks_metadata(self, offset: int) -> str:
        for broker, server in zip(self._running, self._servers, strict=True):
            node = broker.config.node_id
            if server.observer.image.next_producer_id < self._numbers["next_producer_id"]:
                return f"broker {node} does not know what was restored"
            if server.groups.runtime.is_loading or server.transactions.states.is_loading:
                return f"broker {node} reads what it coordinates"
        return unsettled(self._running) or self._lacks_coordinators()

    def _lacks_coordinators(self) -> str:
        """Each partition of groups and transactional ids has a coordinator at its epoch."""
        for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            topic = self._controller.decided.topics_by_name.get(name)
            for number, known in () if topic is None else topic.partitions.items():
                for broker, server in zip(self._running, self._servers, strict=True):
                    if broker.config.node_id == known.leader:
                        of = (
                            server.groups.runtime
                            if name == OFFSETS_TOPIC
                            else server.transactions.states
                        )
                        shard = of.shards.get(number)
                        if shard is None or shard.leader_epoch != known.leader_epoch:
                            return f"{name}-{number} has no coordinator"
        return ""

    # groups

    async def _remove_members(self) -> None:
        for server in self._servers:
            for shard in [*server.groups.runtime.shards.values()]:
                for group in [each.group for each in shard.groups.each_value()]:
                    members = group.members.values()
                    if isinstance(group, ShareGroup):
                        for each in [*members]:
                            gone = ShareHeartbeatRequest(
                                group.group_id, each.member_id, LEAVE_EPOCH
                            )
                            await server.groups.share_heartbeat(gone)
                        continue
                    leavers = [(each.member_id, each.instance_id) for each in members]
                    if isinstance(group, ClassicGroup):
                        leavers += [(each, None) for each in group.pending_joins]
                    if leavers and shard.state is not CoordinatorState.CLOSED:
                        await server.groups.leave(group.group_id, leavers)

    # transactions

    async def _abort_open(self) -> None:
        for server in self._servers:
            for shard in [*server.transactions.states.shards.values()]:
                for metadata in [*shard.transactions.each_value()]:
                    if metadata.state is ONGOING:
                        await self._fence(server.transactions, metadata)
        await self._until(self._lacks_markers)

    async def _fence(self, coordinator: Any, metadata: TransactionMetadata) -> None:
        """Its producer, as the next one with the same id does it."""
        try:
            await coordinator.init_producer_id(metadata.transactional_id, metadata.timeout_ms)
        except BrokerError as error:
            if error.code not in _AGAIN:
                raise

    def _lacks_markers(self) -> str:
        for broker, server in zip(self._running, self._servers, strict=True):
            for shard in server.transactions.states.shards.values():
                for metadata in shard.transactions.each_value():
                    if metadata.state not in AT_REST or metadata.pending is not None:
                        return f"transactional id {metadata.transactional_id} is not at rest"
            for name, partition in server.replica_manager.partitions.items():
                if partition.log is not None and partition.log.producers.ongoing:
                    return f"broker {broker.config.node_id} has an open transaction in {name}"
        return ""

    async def _set_producer(
        self, name: str, producer_id: int, epoch: int, last: int, timeout_ms: int, version: int
    ) -> None:
        """The id has this producer from now on."""
        found: list[Any] = []

        def lacks() -> str:
            for server in self._servers:
                try:
                    found[:] = [server.transactions, server.transactions.states.shard_of(name)]
                except BrokerError:
                    continue
                return ""
            return f"transactional id {name} has no coordinator"

        await self._until(lacks)
        coordinator, shard = found
        metadata = shard.transactions.get(name)
        known = (producer_id, epoch, last)
        if metadata is None:
            metadata = TransactionMetadata(
                name,
                producer_id,
                timeout_ms=timeout_ms,
                last_update_ms=coordinator.context.wall_ms(),
            )
            coordinator.states.add(shard, metadata)
        elif known == (metadata.producer_id, metadata.producer_epoch, metadata.last_producer_epoch):
            return
        transit = replace(
            metadata.unchanged(),
            producer_id=producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last,
            timeout_ms=timeout_ms,
            client_transaction_version=version,
            state=EMPTY,
            partitions=frozenset(),
            last_update_ms=coordinator.context.wall_ms(),
        )
        metadata.pending = EMPTY
        error = await coordinator.states.append(shard, metadata, transit)
        if error:
            raise BrokerError(error)
