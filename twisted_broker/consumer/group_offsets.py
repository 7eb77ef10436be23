"""A group's offsets, at its coordinator.

Owns `commit_offsets` and `committed_offsets`.

1. Topics go by name and one group to a request: OffsetCommit up to 9, OffsetFetch up to 7, which
   all brokers from 1.0 to 4.3.1 serve.
2. The first error of any partition is raised: some of a commit may have been stored.

Source: RL 7.5, 7.6. Not here: whose offsets (`streams`), tries (`group_membership`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from twisted_broker.consumer.cluster_client import ClientConnection
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import BrokerError, error_of
from twisted_broker.wire.messages import offsets

_COMMIT, _FETCH = 9, 7
_OFFSET_FETCH: Final = offsets.OffsetFetchRequest.api_key
Positions = Mapping[TopicPartition, tuple[int, int]]


async def commit_offsets(
    coordinator: ClientConnection,
    group_id: str,
    positions: Positions,
    generation: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
) -> None:
    """Commits (offset, leader epoch or -1); without a generation the group must have no members.
    Raises `BrokerError`.
    """
    topics: dict[str, offsets.OffsetCommitRequestTopic] = {}
    for name, (offset, epoch) in positions.items():
        topic = topics.setdefault(name.topic, offsets.OffsetCommitRequestTopic(name=name.topic))
        topic.partitions.append(
            offsets.OffsetCommitRequestPartition(
                partition_index=name.partition,
                committed_offset=offset,
                committed_leader_epoch=epoch,
                committed_metadata="",
            )
        )
    request = offsets.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=list(topics.values()),
    )
    answer = await coordinator.send(request, _COMMIT)
    for found in answer.topics:
        for each in found.partitions:
            if each.error_code:
                raise BrokerError(error_of(each.error_code))


async def committed_offsets(
    coordinator: ClientConnection,
    group_id: str,
    partitions: Iterable[TopicPartition],
    stable_only: bool = False,
) -> dict[TopicPartition, tuple[int, int]]:
    """(offset, leader epoch) that were committed, (-1, -1) where there are none. `stable_only`:
    refused while a transaction may change them. Raises `BrokerError`.
    """
    topics: dict[str, offsets.OffsetFetchRequestTopic] = {}
    for name in partitions:
        topic = topics.setdefault(name.topic, offsets.OffsetFetchRequestTopic(name=name.topic))
        topic.partition_indexes.append(name.partition)
    version = await coordinator.version(_OFFSET_FETCH, _FETCH)
    request = offsets.OffsetFetchRequest(
        group_id=group_id,
        topics=list(topics.values()),
        require_stable=stable_only and version >= _FETCH,
    )
    answer = await coordinator.raw.send(request, version)
    if answer.error_code:
        raise BrokerError(error_of(answer.error_code))
    found: dict[TopicPartition, tuple[int, int]] = {}
    for topic_answer in answer.topics:
        for each in topic_answer.partitions:
            if each.error_code:
                raise BrokerError(error_of(each.error_code))
            name = TopicPartition(topic_answer.name, each.partition_index)
            found[name] = each.committed_offset, each.committed_leader_epoch
    return found
