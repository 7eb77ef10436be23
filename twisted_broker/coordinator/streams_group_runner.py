"""The streams groups of one shard at work. Ring 1.

Owns `StreamsGroupRunner`, a `GroupRunner` (`group_runner.py`).

1. A group that has no member waits for more before its first target: one delay runs for a group at
   a time. At its end the target is computed by a decision that nobody asked for; where its records
   are refused, the next heartbeat computes.
2. The delay is not stored: after a load the next heartbeat computes.

Source: Apache Kafka 4.3.1 `GroupMetadataManager`. Not here: what is decided
(`coordinator/streams`), which groups there are and of which kind.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from twisted.internet.defer import Deferred

from twisted_broker.coordinator.consumer.metadata_hash import TopicHashes
from twisted_broker.coordinator.coordinator_context import CoordinatorContext
from twisted_broker.coordinator.group_decision import Decision
from twisted_broker.coordinator.group_runner import GroupKeeper, GroupRunner, Job
from twisted_broker.coordinator.streams.decision import (
    Environment,
    StreamsGroupDecision,
    StreamsGroupSettings,
)
from twisted_broker.coordinator.streams.describe import DescribedGroup, describe
from twisted_broker.coordinator.streams.group import StreamsGroup
from twisted_broker.coordinator.streams.heartbeat import delayed_target, heartbeat
from twisted_broker.coordinator.streams.leaving import leave, remove_members
from twisted_broker.coordinator.streams.member import StreamsGroupMember
from twisted_broker.coordinator.streams.requests import HeartbeatAnswer, HeartbeatRequest
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.interfaces import IDelayedCall


class StreamsGroupRunner(GroupRunner[StreamsGroup]):
    """`append` is the shard's, `image` gives the present metadata, `settings` those of a group by
    its id, at the moment of a decision.
    """

    __slots__ = ("_delays", "_hashes", "_image", "_settings")

    def __init__(
        self,
        context: CoordinatorContext,
        append: Callable[[bytes], Deferred[int]],
        image: Callable[[], MetadataImage],
        settings: Callable[[str], StreamsGroupSettings],
        keeper: GroupKeeper,
    ) -> None:
        super().__init__(context, append, keeper)
        self._image, self._settings = image, settings
        self._hashes = TopicHashes()
        self._delays: dict[StreamsGroup, IDelayedCall] = {}

    # requests
    def heartbeat(
        self, group: StreamsGroup, request: HeartbeatRequest
    ) -> Deferred[HeartbeatAnswer]:
        """Fires with the answer, or fails with BrokerError. The request has passed
        `check_request`.
        """
        answer: Deferred[HeartbeatAnswer] = Deferred()
        decide = leave if request.member_epoch < 0 else heartbeat
        self._ask(
            group,
            Job(
                lambda: decide(group, request, self._environment(group)),
                answer,
                carried_out=lambda decision: self._begin_delay(group, decision),
            ),
        )
        return answer

    def describe(self, group: StreamsGroup) -> Deferred[DescribedGroup]:
        """Fires with the group once that is committed, or fails with BrokerError."""
        answer: Deferred[DescribedGroup] = Deferred()
        self._ask(group, Job(lambda: describe(group), answer))
        return answer

    def close(self) -> None:
        super().close()
        for delay in self._delays.values():
            delay.cancel()
        self._delays.clear()

    # decisions of this kind of group
    def _session_ms(self, group: StreamsGroup, member: StreamsGroupMember) -> int:
        return self._settings(group.group_id).session_timeout_ms

    def _remove(
        self, group: StreamsGroup, member_ids: Sequence[str]
    ) -> Generator[None, None, Decision]:
        return (yield from remove_members(group, member_ids))

    def _environment(self, group: StreamsGroup) -> Environment:
        return Environment(
            self._image(),
            self._hashes,
            self._context.wall_ms(),
            self._settings(group.group_id),
            group in self._delays,
        )

    # the delay of the first target
    def _begin_delay(self, group: StreamsGroup, decision: Decision) -> None:
        delay_ms = decision.delay_ms if isinstance(decision, StreamsGroupDecision) else 0
        if delay_ms and group not in self._delays and not self._is_closed:
            self._delays[group] = self._context.clock.callLater(
                delay_ms / 1000, self._delay_over, group
            )

    def _delay_over(self, group: StreamsGroup) -> None:
        del self._delays[group]
        self._ask(group, Job(lambda: delayed_target(group, self._environment(group))))
