"""The state of a broker as its status port shows it.

Owns `BrokerView`: explanations gathered out of replica manager, purgatories, fetchers and metadata,
and the list of all partitions.

1. It only reads, and only when a request comes.
2. It describes a partition that the metadata knows or that this broker holds; `metadata` is the
   controller's metadata as far as this broker has followed it.

Not here: the reasons (`replication/explain`), HTTP (`status/http_resources.py`), metrics
(`status/metrics.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from twisted_broker.coordinator.group_explanation import explain_group
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.replication.explain.explanation import (
    Explanation,
    Fetching,
    explain,
    fetching_now,
)
from twisted_broker.replication.explain.reasons import Moment
from twisted_broker.replication.idle_partitions import idle_reads
from twisted_broker.replication.live_brokers import ImageSource
from twisted_broker.replication.partition.partition import Partition
from twisted_broker.share.share_explanation import explain_share_partitions
from twisted_broker.telemetry.instances import ClientInstances

_PURGATORIES = (
    "produce_purgatory",
    "fetch_purgatory",
    "delete_records_purgatory",
    "share_fetch_purgatory",
)


class NodeParts(Protocol):
    """The part of `api.context.BrokerParts` that is shown; the rest of it reaches Twisted."""

    @property
    def node_id(self) -> int: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def runtime(self) -> Runtime: ...

    @property
    def config(self) -> Any: ...

    @property
    def metadata(self) -> ImageSource | None: ...

    @property
    def replica_manager(self) -> Any: ...

    @property
    def groups(self) -> Any: ...

    @property
    def share_partitions(self) -> Any: ...

    @property
    def share_state(self) -> Any: ...

    @property
    def transactions(self) -> Any: ...

    @property
    def telemetry(self) -> ClientInstances | None: ...

    @property
    def add_partitions_to_txn(self) -> Any: ...

    @property
    def controller(self) -> Any: ...

    @property
    def lifecycle(self) -> Any: ...

    @property
    def control_requests(self) -> Any: ...

    @property
    def log_manager(self) -> Any: ...

    @property
    def listening(self) -> Sequence[Any]: ...

    @property
    def turns(self) -> Any: ...

    @property
    def quotas(self) -> Any: ...

    @property
    def controller_quotas(self) -> Any: ...


class BrokerView:
    """`parts()`: the node's, as of now; `bound_routes()`: the APIs of its listeners, for the counts
    of requests.
    """

    def __init__(
        self,
        parts: Callable[[], NodeParts],
        bound_routes: Callable[[], Iterable[Any]] = lambda: (),
    ) -> None:
        self._parts = parts
        self.bound_routes = bound_routes

    @property
    def parts(self) -> NodeParts:
        return self._parts()

    @property
    def replicas(self) -> Any:
        """The replica manager; None where there is no broker (a controller), or not yet."""
        return self.parts.replica_manager

    def now(self) -> Moment:
        runtime = self.parts.runtime
        return Moment(runtime.now_ms(), runtime.wall_ms())

    def explanation(self, partition: Partition, now: Moment, waiting: bool = True) -> Explanation:
        """Of a partition that is held here.

        `waiting` False leaves out what requests wait for: each looks at all of its partitions.
        """
        watching = self.watching(partition.topic_partition) if waiting else []
        replicas, name = self.replicas, partition.topic_partition
        return explain(
            partition,
            now,
            watching,
            None if partition.is_leader else self._fetching(partition, now),
            self.replicas.moves.moves.get(partition.topic_partition),
            self._cleaner_view(partition),
            replicas.leader_quota.reason_for(name, now.now_ms),
            replicas.moves.throttle.quota.reason(now.now_ms),
        )

    def _cleaner_view(self, partition: Partition) -> Any:
        manager = self.parts.log_manager
        if manager is None or partition.log is None or partition.offline:
            return None
        return manager.cleaner.view(partition.log)

    def watching(self, topic_partition: TopicPartition) -> list[tuple[Any, int]]:
        """What waits for a partition, and the ms left to each."""
        watching = [
            each
            for purgatory in _PURGATORIES
            for each in getattr(self.replicas, purgatory).watching(topic_partition)
        ]
        partition = self.replicas.partitions.get(topic_partition)
        if partition is not None:
            watching += [
                each
                for idle in idle_reads(partition)
                for each in self.replicas.fetch_purgatory.watching(idle.watch_key)
            ]
        return watching

    def _fetching(self, partition: Partition, now: Moment) -> Fetching:
        fetchers = self.replicas.fetchers
        for (leader_id, number), fetcher in {} if fetchers is None else fetchers.fetchers.items():
            state = fetcher.state.partitions.get(partition.topic_partition)
            if state is not None:
                leader = str(fetcher.leader.endpoint) + (
                    "" if fetcher.reaches_leader else ", which is not reached,"
                )
                throttled = self.replicas.follower_quota.reason_for(
                    partition.topic_partition, now.now_ms
                )
                named = fetcher_name(leader_id, number)
                return fetching_now(partition, named, leader, state, now, throttled)
        return fetching_now(partition, "", "", None, now)

    def partitions(self) -> Iterator[TopicPartition]:
        """All that the metadata knows, by topic and number."""
        image = self.image
        if image is None:
            return
        for name in sorted(image.topics_by_name):
            for number in sorted(image.topics_by_name[name].partitions):
                yield TopicPartition(name, number)

    def describe(self, topic_partition: TopicPartition) -> dict[str, Any] | None:
        """As JSON; None when neither the metadata nor this broker has it. `role` is none where this
        broker holds no replica.
        """
        held = None if self.replicas is None else self.replicas.partitions.get(topic_partition)
        metadata = self.metadata(topic_partition)
        if held is None and metadata is None:
            return None
        topic, number = topic_partition
        if held is None:
            found: dict[str, Any] = {
                "topic": topic,
                "partition": number,
                "broker": self.parts.node_id,
                "role": "none",
                "at_ms": self.now().wall_ms,
            }
        else:
            found = asdict(self.explanation(held, self.now()))
        return found | {"metadata": metadata}

    def describe_group(self, group_id: str, found: list[dict[str, Any]]) -> Iterator[None]:
        """Puts the group as JSON into `found`, in steps; nothing where this broker neither
        coordinates it nor has share partitions of it.
        """
        image, coordinator = self.image, self.parts.groups
        if image is None or coordinator is None:
            return
        told: dict[str, Any] = {}
        for shard in list(coordinator.runtime.shards.values()):
            entry = shard.groups.get(group_id)
            if entry is not None:
                told = yield from explain_group(entry.group, image)
                break
        shares = self.parts.share_partitions
        if shares is not None:
            limits = shares.settings(group_id).limits
            rows = yield from explain_share_partitions(group_id, shares.held, limits, self.now())
            if rows:
                told = {"group": group_id, "kind": "share"} | told | {"share_partitions": rows}
        if told:
            found.append({"broker": self.parts.node_id} | told)

    @property
    def image(self) -> MetadataImage | None:
        """The metadata as this broker has followed it."""
        source = self.parts.metadata
        return None if source is None else source.image

    def metadata(self, topic_partition: TopicPartition) -> dict[str, Any] | None:
        """The partition in the metadata, and the offset up to which that was followed."""
        image = self.image
        state = None if image is None else image.partition(*topic_partition)
        if image is None or state is None:
            return None
        fenced = sorted(
            broker
            for broker in state.replicas
            if broker not in image.brokers or image.brokers[broker].fenced
        )
        return {
            "offset": image.offset,
            "leader": state.leader,
            "leader_epoch": state.leader_epoch,
            "partition_epoch": state.partition_epoch,
            "replicas": list(state.replicas),
            "isr": list(state.isr),
            "eligible_leader_replicas": list(state.elr),
            "fenced": fenced,
        }


def mover_name(_: int, number: int) -> str:
    """The same of what fills future logs in other directories."""
    return f"ReplicaAlterLogDirsThread-{number}"


def fetcher_name(leader_id: int, number: int) -> str:
    """Kafka's name of a replica fetcher, as dashboards know it."""
    return f"ReplicaFetcherThread-{number}-{leader_id}"
