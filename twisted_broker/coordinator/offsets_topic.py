"""Where a coordinator is, and the creation of its topic when the first one is looked for: of
`__consumer_offsets` for a group, of `__transaction_state` for a transactional id. Ring 1.

Owns `CoordinatorTopic`, and `OffsetsTopic`, the one of groups.

1. One creation is under way at a time; requests that come meanwhile may wait until the leaders are
   known, but no longer than `WAIT_MS`: clients send them again, though some of them only after a
   second.
2. The topic is compacted, as large and replicated as the settings say. With fewer brokers the
   controller refuses it, as Kafka's does: a topic made with fewer replicas would keep them, and
   groups would be lost with one broker. Clients get COORDINATOR_NOT_AVAILABLE, and retry.
3. A creation that fails is tried again for the next request; one line a minute says so.
4. This broker is named as a coordinator only when it has taken over the partition: its roles follow
   the image by some turns, and until then it would answer NOT_COORDINATOR.

Source: Apache Kafka 4.3.1 `AutoTopicCreationManager`,
`GroupCoordinatorService.groupMetadataTopicConfigs`. Not here: who may look for
it (`api/find_coordinator.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.interfaces import IClock
from twisted_broker.topic_names import OFFSETS_TOPIC
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from twisted_broker.image.entries import Endpoint, TopicImage
    from twisted_broker.replication.live_brokers import ImageSource

CREATION_TIMEOUT_MS = 30_000
# A FindCoordinator waits that long for the topic; then the client retries.
WAIT_MS = 1_000
_WARN_AGAIN_SECONDS = 60.0
_NOT_ERRORS = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
_logger = Logger()

CreateTopics = Callable[[CreateTopicsRequest], "Deferred[CreateTopicsResponse]"]
"""Sends a request to the controller on this broker's own behalf."""


def _leaders(topic: TopicImage) -> Iterator[tuple[int, int]]:
    return ((index, partition.leader) for index, partition in topic.partitions.items())


class CoordinatorTopic:
    """A coordinator's topic as the metadata image shows it. A subclass names it, with its
    settings.
    """

    __slots__ = (
        "_clock",
        "_config",
        "_create",
        "_image_source",
        "_led",
        "_waiting",
        "_warned",
        "is_being_created",
    )

    name: str
    # The settings of the broker that its creation obeys, and what is missing without the topic.
    partitions_setting: str
    replication_setting: str
    loss: str

    def __init__(
        self, image_source: ImageSource, config: BrokerConfig, create: CreateTopics, clock: IClock
    ) -> None:
        self._image_source, self._config, self._create, self._clock = (
            image_source,
            config,
            create,
            clock,
        )
        self._led: set[int] = set()
        self._waiting: list[Deferred[None]] = []
        self._warned: tuple[str, float] | None = None
        self.is_being_created = False

    def topic_settings(self) -> dict[str, str]:
        """The settings that the topic is created with."""
        raise NotImplementedError

    def coordinator(self, key: str, listener: str) -> tuple[int, Endpoint] | None:
        """(node id, where it is reached) of the broker that serves the group or transactional id
        `key`; None while there is none. A topic that does not exist is created.
        """
        image = self._image_source.image
        topic = image.topics_by_name.get(self.name)
        if topic is None:
            self.create()
            return None
        index = partition_for(key, len(topic.partitions))
        partition = topic.partitions.get(index)
        if partition is None or self._is_awaited(index, partition.leader):
            return None
        broker = image.brokers.get(partition.leader)
        if broker is None or broker.fenced or listener not in broker.listeners:
            return None
        return broker.id, broker.listeners[listener]

    def create(self) -> None:
        """Sends CreateTopics to the controller unless one is under way."""
        if self.is_being_created:
            return
        self.is_being_created = True
        try:
            answer = self._create(self.request())
        except BaseException:
            self.is_being_created = False
            raise
        answer.addCallbacks(self._created, self._failed)

    def wait_until_created(self) -> Deferred[None]:
        """Fires when the topic has leaders, this broker where it is one, when its creation failed,
        or `WAIT_MS` have passed; at once when there is nothing to wait for.
        """
        waiting: Deferred[None] = Deferred()
        topic = self._image_source.image.topics_by_name.get(self.name)
        if not self.is_being_created and (topic is None or self._is_taken_over(topic)):
            waiting.callback(None)
            return waiting
        self._waiting.append(waiting)
        timer = self._clock.callLater(WAIT_MS / 1000, self._end_wait, waiting)
        return waiting.addCallback(lambda _: timer.cancel() if timer.active() else None)

    def _end_wait(self, waiting: Deferred[None]) -> None:
        self._waiting.remove(waiting)
        waiting.callback(None)

    def image_changed(self) -> None:
        """The metadata image is a new one; this broker's roles in it may be taken over later."""
        topic = self._image_source.image.topics_by_name.get(self.name)
        if self._waiting and topic is not None and self._has_leaders(topic):
            self._end_waits()

    def leadership_gained(self, index: int) -> None:
        """This broker serves partition `index` from now on, or reads it."""
        self._led.add(index)
        self.image_changed()

    def leadership_lost(self, index: int) -> None:
        """This broker serves partition `index` no more."""
        self._led.discard(index)

    def _is_awaited(self, index: int, leader: int) -> bool:
        return leader == self._config.node_id and index not in self._led

    def _is_taken_over(self, topic: TopicImage) -> bool:
        return not any(self._is_awaited(*each) for each in _leaders(topic))

    def _has_leaders(self, topic: TopicImage) -> bool:
        return all(leader >= 0 for _, leader in _leaders(topic)) and self._is_taken_over(topic)

    def _end_waits(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(None)

    def request(self) -> CreateTopicsRequest:
        config = self._config
        return CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=self.name,
                    num_partitions=config.integer(self.partitions_setting),
                    replication_factor=config.integer(self.replication_setting),
                    configs=[
                        CreatableTopicConfig(name=name, value=value)
                        for name, value in self.topic_settings().items()
                    ],
                )
            ],
            timeout_ms=CREATION_TIMEOUT_MS,
        )

    def _created(self, response: CreateTopicsResponse) -> None:
        self.is_being_created = False
        for topic in response.topics:
            if topic.error_code not in _NOT_ERRORS:
                self._refused(error_of(topic.error_code), topic.error_message or "")
                self._end_waits()
        self.image_changed()

    def _failed(self, failure: Failure) -> None:
        self.is_being_created = False
        self._warn(str(failure.value))
        self._end_waits()

    def _refused(self, error: ErrorCode, message: str) -> None:
        if error is ErrorCode.INVALID_REPLICATION_FACTOR:
            remedy = "start more brokers, or set {} (now {}) to their number"
            name = self.replication_setting
            message += "; " + remedy.format(name, self._config.integer(name))
        self._warn(f"{error.name}: {message}" if message else error.name)

    def _warn(self, reason: str) -> None:
        """Clients come back all the time: not a line for each."""
        now = self._clock.seconds()
        known = self._warned
        if known is None or known[0] != reason or now - known[1] >= _WARN_AGAIN_SECONDS:
            self._warned = reason, now
            _logger.warn(
                "{topic} is not created, {loss}: {reason}",
                topic=self.name,
                loss=self.loss,
                reason=reason,
            )


class OffsetsTopic(CoordinatorTopic):
    """`__consumer_offsets`."""

    __slots__ = ()

    name = OFFSETS_TOPIC
    partitions_setting = "offsets.topic.num.partitions"
    replication_setting = "offsets.topic.replication.factor"
    loss = "no group is served"

    def topic_settings(self) -> dict[str, str]:
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self._config["offsets.topic.segment.bytes"]),
        }
