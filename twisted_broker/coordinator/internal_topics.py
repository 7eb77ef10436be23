"""The internal topics that streams groups need: created in the name of a client whose heartbeat
found them missing. Ring 1.

Owns `InternalTopics`, one for a broker.

1. A topic that is being created, or whose creation failed a short time ago, is not asked for again.
2. Memory: a topic in flight, and `MOST_ERRORS` failures, each for two heartbeats of its group; the
   one that ends first goes first.

Source: Apache Kafka 4.3.1 `DefaultAutoTopicCreationManager.createStreamsInternalTopics`,
`ExpiringErrorCache`. Not here: who may create them (`api/streams_groups.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.coordinator.streams.configure import InternalTopic
from twisted_broker.interfaces import IClock
from twisted_broker.wire.errors import BrokerError, ErrorCode, error_of
from twisted_broker.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

CREATION_TIMEOUT_MS = 30_000
MOST_ERRORS = 1_000
DEFAULT = -1
_logger = Logger()


class InternalTopics:
    """Creations under way, and those that failed."""

    __slots__ = ("_clock", "_creating", "_errors")

    def __init__(self, clock: IClock) -> None:
        self._clock = clock
        self._creating: set[str] = set()
        # By topic: until when it counts, and why it failed.
        self._errors: dict[str, tuple[float, str]] = {}

    def create(
        self,
        topics: Sequence[InternalTopic],
        error_seconds: float,
        send: Callable[[CreateTopicsRequest], Deferred[CreateTopicsResponse]],
    ) -> None:
        """Has those created that are not yet asked for. Nobody waits."""
        known = self.errors(each.name for each in topics)
        fresh = [
            each for each in topics if each.name not in known and each.name not in self._creating
        ]
        if not fresh:
            return
        names = [each.name for each in fresh]
        self._creating.update(names)
        request = CreateTopicsRequest(
            topics=[_creatable(each) for each in fresh], timeout_ms=CREATION_TIMEOUT_MS
        )
        send(request).addBoth(self._created, names, error_seconds)

    def errors(self, names: Iterable[str]) -> Mapping[str, str]:
        """Why the creation of these topics failed, by topic."""
        now = self._clock.seconds()
        found = {name: self._errors[name] for name in names if name in self._errors}
        return {name: why for name, (until, why) in found.items() if now < until}

    def _created(
        self, outcome: CreateTopicsResponse | Failure, names: Sequence[str], error_seconds: float
    ) -> None:
        self._creating.difference_update(names)
        if isinstance(outcome, Failure):
            error = outcome.value
            why = error.message if isinstance(error, BrokerError) else str(error)
            failed = dict.fromkeys(names, why or "the controller did not answer")
        else:
            failed = {
                each.name or "": each.error_message or error_of(each.error_code).sentence
                for each in outcome.topics
                if each.error_code != ErrorCode.NONE
            }
        if not failed:
            return
        _logger.warn("creating internal topics failed: {failed}", failed=failed)
        until = self._clock.seconds() + error_seconds
        self._errors.update((name, (until, why)) for name, why in failed.items())
        self._forget()

    def _forget(self) -> None:
        now = self._clock.seconds()
        by_end = sorted(self._errors.items(), key=lambda each: each[1][0])
        self._errors = {name: error for name, error in by_end[-MOST_ERRORS:] if now < error[0]}


def _creatable(topic: InternalTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor or DEFAULT,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in topic.configs],
    )
