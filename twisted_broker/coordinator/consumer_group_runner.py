"""The consumer groups of one shard at work. Ring 1.

Owns `ConsumerGroupRunner`, a `GroupRunner` (`group_runner.py`).

1. When patterns were resolved is not stored: a load begins it anew.

Source: Apache Kafka 4.3.1 `GroupMetadataManager`. Not here: what is decided
(`coordinator/consumer`), which groups there are and of which kind.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from twisted_broker.coordinator.consumer.decision import (
    ConsumerGroupDecision,
    ConsumerGroupSettings,
    Environment,
)
from twisted_broker.coordinator.consumer.describe import DescribedGroup, describe
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.heartbeat import heartbeat
from twisted_broker.coordinator.consumer.leaving import leave, leave_several, remove_members
from twisted_broker.coordinator.consumer.metadata_hash import TopicHashes
from twisted_broker.coordinator.consumer.patterns import patterns_resolved, resolve_patterns
from twisted_broker.coordinator.consumer.requests import HeartbeatAnswer, HeartbeatRequest
from twisted_broker.coordinator.coordinator_context import CoordinatorContext
from twisted_broker.coordinator.group_decision import Decision
from twisted_broker.coordinator.group_requests import LeaveAnswer
from twisted_broker.coordinator.group_runner import GroupRunner, Job, ignore
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.turns import Steps

_logger = Logger()


def _sees_all(topic: str) -> bool:
    return True


class ConsumerGroupRunner(GroupRunner[ConsumerGroup]):
    """`append` is the shard's, `image` gives the present metadata, `settings` those of a group by
    its id, at the moment of a decision.
    """

    __slots__ = ("_hashes", "_image", "_settings", "topics_created_version")

    def __init__(
        self,
        context: CoordinatorContext,
        append: Callable[[bytes], Deferred[int]],
        image: Callable[[], MetadataImage],
        settings: Callable[[str], ConsumerGroupSettings],
        line_over: Callable[[Any], None] = ignore,
    ) -> None:
        super().__init__(context, append, line_over)
        self._image, self._settings = image, settings
        self._hashes = TopicHashes()
        # The offset of the last image in which topics were new.
        self.topics_created_version = -1

    # what is asked
    def heartbeat(
        self,
        group: ConsumerGroup,
        request: HeartbeatRequest,
        may_describe: Callable[[str], bool] = _sees_all,
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
                carried_out=lambda decision: self._heartbeat_ended(group, decision, may_describe),
            ),
        )
        return answer

    def leave_several(
        self, group: ConsumerGroup, leavers: Sequence[tuple[str, str | None]]
    ) -> Deferred[list[LeaveAnswer]]:
        """A LeaveGroup: (member id, instance id) each. Fires, or fails with BrokerError."""
        answer: Deferred[list[LeaveAnswer]] = Deferred()
        self._ask(
            group,
            Job(lambda: leave_several(group, leavers, self._environment(group)), answer),
        )
        return answer

    def describe(self, group: ConsumerGroup) -> Deferred[DescribedGroup]:
        """Fires with the group once that is committed, or fails with BrokerError."""
        answer: Deferred[DescribedGroup] = Deferred()
        self._ask(group, Job(lambda: describe(group, self._environment(group)), answer))
        return answer

    # what a group's kind decides
    def _session_ms(self, group: ConsumerGroup) -> int:
        return self._settings(group.group_id).session_timeout_ms

    def _remove(
        self, group: ConsumerGroup, member_ids: Sequence[str]
    ) -> Generator[None, None, Decision]:
        return remove_members(group, member_ids, self._environment(group))

    def _environment(self, group: ConsumerGroup) -> Environment:
        return Environment(
            self._image(),
            self._hashes,
            self._context.wall_ms(),
            self._settings(group.group_id),
            self.topics_created_version,
        )

    # patterns
    def _heartbeat_ended(
        self, group: ConsumerGroup, decision: Decision, may_describe: Callable[[str], bool]
    ) -> None:
        is_wanted = isinstance(decision, ConsumerGroupDecision) and decision.resolves_patterns
        if not is_wanted or self._is_closed:
            return
        group.pattern_refresh.is_running = True
        group.pattern_refresh.began_at_ms = self._context.wall_ms()
        self._context.turns.start(self._refresh_steps(group, may_describe))

    def _refresh_steps(self, group: ConsumerGroup, may_describe: Callable[[str], bool]) -> Steps:
        image = self._image()
        try:
            resolved = yield from resolve_patterns(
                tuple(group.subscriptions.patterns), image, may_describe, self._context.wall_ms()
            )
        except Exception:
            _logger.failure("the patterns of group {group} stay", group=group.group_id)
            return
        finally:
            group.pattern_refresh.is_running = False
        group.pattern_refresh.version = image.offset
        self._ask(group, Job(lambda: patterns_resolved(group, resolved, self._environment(group))))
