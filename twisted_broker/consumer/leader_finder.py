"""Who leads the partitions that no fetcher fetches.

Owns `LeaderFinder`: the set of partitions without a leader, and the loop that finds one for each.

1. It sleeps while the set is empty; what failed in a fetcher comes back into it.
2. A pass: the metadata of one broker (in shuffled order), then all that have a leader go to
   fetchers, at their fetched offsets; what has none stays. After each pass idle fetchers end, and
   it pauses `refresh.leader.backoff.ms`.
3. Metadata with an older leader epoch than one that was seen is older metadata: it changes nothing.
   Under another topic id epochs begin anew.
4. What goes wrong with a whole pass is logged once until one succeeds; nothing ends the loop but
   `stop`.

Source: RL 7.2; Kafka 0.8's `LeaderFinderThread`. Not here: brokers and their metadata
(`cluster_client`), fetching (`consumer_fetcher_manager`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.logger import Logger

from twisted_broker.consumer.cluster_client import ClusterClient, TopicMetadata
from twisted_broker.consumer.errors import TopicRecreated
from twisted_broker.consumer.partition_topic_info import (
    INVALID_OFFSET,
    NO_TOPIC_ID,
    PartitionTopicInfo,
)
from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.fetcher.fetcher_manager import FollowedPartition
from twisted_broker.replication.fetcher.fetcher_state import InitialFetchState
from twisted_broker.wire.errors import BrokerError, ErrorCode

_logger = Logger()
_REFUSALS = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION})


class LeaderFinder:
    """`partitions`: all that are consumed; `found(them)` gives them to fetchers; `failed(partition,
    error)` ends one. `resets`: `auto.offset.reset` names a place.
    """

    def __init__(
        self,
        client: ClusterClient,
        backoff_ms: int,
        resets: bool,
        partitions: Mapping[TopicPartition, PartitionTopicInfo],
        found: Callable[[Mapping[TopicPartition, FollowedPartition]], None],
        failed: Callable[[TopicPartition, Exception], None],
    ) -> None:
        self.passes = 0
        self._client = client
        self._backoff_ms = backoff_ms
        self._resets = resets
        self._partitions = partitions
        self._found = found
        self._failed = failed
        self._no_leader: dict[TopicPartition, None] = {}
        self._running: Deferred[None] | None = None
        self._sleep: Deferred[None] | None = None
        self._stopped = False
        self._is_failing = False
        self._unknown: set[str] = set()  # topics that are logged as missing

    def __len__(self) -> int:
        return len(self._no_leader)

    def add(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They have no leader: one is looked for from the next turn on."""
        self._no_leader.update(dict.fromkeys(topic_partitions))
        if not self._no_leader or self._stopped:
            return
        if self._running is None:
            self._running = ensureDeferred(self._run())
        elif self._sleep is not None and not self._sleep.called:
            self._sleep.callback(None)

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in topic_partitions:
            self._no_leader.pop(topic_partition, None)

    def stop(self) -> None:
        self._stopped = True
        self._no_leader.clear()
        running, self._running = self._running, None
        if running is not None:
            running.cancel()

    async def _run(self) -> None:
        while not self._stopped:
            try:
                # Later: whoever adds may be in the middle of an answer.
                await self._client.pause(0)
                if not self._no_leader:
                    self._sleep = Deferred()
                    await self._sleep
                    continue
                await self._find()
                await self._client.pause(self._backoff_ms)
            except CancelledError:
                return

    async def _find(self) -> None:
        """One pass."""
        self.passes += 1
        try:
            topics = sorted({each.topic for each in self._no_leader})
            metadata = await self._client.metadata(topics)
            if self._is_failing:
                self._is_failing = False
                _logger.info("the metadata of {topics} is there again", topics=", ".join(topics))
            self._found(self._leaders(metadata.topics))
        except CancelledError:
            raise
        except Exception as error:
            if not self._is_failing:
                _logger.warn("no leader can be found, retrying: {error}", error=error)
            self._is_failing = True

    def _leaders(
        self, topics: Mapping[str, TopicMetadata]
    ) -> dict[TopicPartition, FollowedPartition]:
        found: dict[TopicPartition, FollowedPartition] = {}
        for name in list(self._no_leader):
            topic, info = topics.get(name.topic), self._partitions[name]
            if topic is None:
                continue
            if topic.error in _REFUSALS:
                self._failed(name, BrokerError(topic.error))
                continue
            self._log_unknown(name.topic, topic.error)
            if not self._is_same_topic(info, topic):
                continue
            partition = topic.partitions.get(name.partition)
            if (
                partition is None
                or partition.leader is None
                or partition.leader_epoch < info.leader_epoch
                or 0 <= partition.leader_epoch < info.last_epoch
            ):
                continue
            info.leader_epoch = partition.leader_epoch
            if info.leader_epoch < 0:
                info.last_epoch = -1  # the cluster does not say epochs
            del self._no_leader[name]
            initial = InitialFetchState(info.topic_id, info.leader_epoch, info.fetched_offset)
            found[name] = FollowedPartition(partition.leader, initial)
        return found

    def _log_unknown(self, topic: str, error: ErrorCode) -> None:
        if error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._unknown.discard(topic)
        elif topic not in self._unknown:
            self._unknown.add(topic)
            _logger.warn("there is no topic {topic}; waiting until it is there", topic=topic)

    def _is_same_topic(self, info: PartitionTopicInfo, topic: TopicMetadata) -> bool:
        """False: its partition failed. A topic that was created again begins anew."""
        if topic.topic_id in (info.topic_id, NO_TOPIC_ID):
            return True
        known, info.topic_id = info.topic_id, topic.topic_id
        if known == NO_TOPIC_ID:
            return True
        name = info.topic_partition
        if not self._resets:
            self._failed(name, TopicRecreated(name))
            return False
        _logger.warn(
            "{partition}: its topic was deleted and created again, fetching by auto.offset.reset",
            partition=name,
        )
        info.leader_epoch = -1
        info.reset(INVALID_OFFSET)
        return True
