"""A leader as a consumer's fetcher sees it.

Owns `ConsumerEndPoint`: the replica fetchers' `RemoteLeaderEndPoint` with a consumer's request.

1. Replica id -1 and no broker epoch; versions are negotiated at each connection: topics by name up
   to Fetch 12, by id from 13 on, and by name where an id is not known.
2. Where logs diverge is known from Fetch 12 on; before, a truncation of the leader is noticed only
   when it is out of range.

Source: RL 7.3; KIP-98, KIP-320, KIP-516. Not here: sessions (`fetch_session_handler`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from twisted_broker.consumer.cluster_client import ClientConnection, list_offset
from twisted_broker.consumer.partition_topic_info import NO_TOPIC_ID
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetcher.fetch_session_handler import (
    RequestedPartition,
    RequestedPartitions,
    SessionRequest,
)
from twisted_broker.replication.fetcher.fetcher_state import FetchedPartition
from twisted_broker.replication.fetcher.leader_endpoint import FetchLimits, RemoteLeaderEndPoint
from twisted_broker.wire.errors import error_of
from twisted_broker.wire.messages import fetch as fetch_messages

CONSUMER_ID: Final = -1
_FETCH, _HIGHEST, _LAST_BY_NAME, _DIVERGING_FROM = 1, 18, 12, 12


class FetchedRecords(FetchedPartition):
    """With the aborted transactions that reach into the records: (producer id, first offset)."""

    __slots__ = ("aborted",)

    aborted: list[tuple[int, int]]


class ConsumerEndPoint(RemoteLeaderEndPoint):
    """`committed_only`: the isolation level read_committed."""

    def __init__(
        self, connection: ClientConnection, limits: FetchLimits, committed_only: bool
    ) -> None:
        super().__init__(
            connection.endpoint, connection.raw, CONSUMER_ID, lambda: -1, lambda: 0, limits
        )
        self._client = connection
        self._committed_only = committed_only
        self._version = _HIGHEST

    async def fetch(self, requested: RequestedPartitions) -> dict[TopicPartition, FetchedPartition]:
        self._version = await self._client.version(_FETCH, _HIGHEST)
        if any(each.topic_id == NO_TOPIC_ID for each in requested.current.values()):
            self._version = min(self._version, _LAST_BY_NAME)
        return await self._fetch(requested, self._version)

    def _fetch_request(self, session: SessionRequest, version: int) -> fetch_messages.FetchRequest:
        request = super()._fetch_request(session, version)
        request.isolation_level = int(self._committed_only)
        if version < _DIVERGING_FROM:
            for topic in request.topics:
                for partition in topic.partitions:
                    partition.last_fetched_epoch = -1
        return request

    def _fetched(
        self,
        response: fetch_messages.FetchResponse,
        current: Mapping[TopicPartition, RequestedPartition],
    ) -> dict[TopicPartition, FetchedPartition]:
        answers: dict[TopicPartition, FetchedPartition] = {}
        by_name = self._version <= _LAST_BY_NAME
        for topic in response.responses:
            topic_id = bytes(topic.topic_id)
            topic_name = topic.topic if by_name else self._names.get(topic_id)
            if topic_name is None:
                continue
            for data in topic.partitions:
                name = TopicPartition(topic_name, data.partition_index)
                if name in current and (by_name or current[name].topic_id == topic_id):
                    answers[name] = _fetched_records(data)
        return answers

    async def fetch_offset(
        self, topic_partition: TopicPartition, leader_epoch: int, timestamp: int
    ) -> int:
        offset, _ = await list_offset(
            self._client, topic_partition, timestamp, leader_epoch, self._committed_only
        )
        return offset


def _fetched_records(data: fetch_messages.PartitionData) -> FetchedRecords:
    diverging, records = data.diverging_epoch, data.records
    fetched = FetchedRecords(
        error_of(data.error_code),
        data.high_watermark,
        data.log_start_offset,
        b"" if records is None else records,
        (diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
    )
    fetched.aborted = [
        (each.producer_id, each.first_offset) for each in data.aborted_transactions or ()
    ]
    return fetched
