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

from twisted_broker.coordinator.consumer.classic_members import (
    classic_heartbeat,
    classic_join,
    classic_sync,
)
from twisted_broker.coordinator.consumer.decision import (
    ConsumerGroupDecision,
    ConsumerGroupSettings,
    Environment,
)
from twisted_broker.coordinator.consumer.describe import DescribedGroup, describe
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.heartbeat import heartbeat
from twisted_broker.coordinator.consumer.leaving import leave, leave_several, remove_members
from twisted_broker.coordinator.consumer.member import ConsumerGroupMember
from twisted_broker.coordinator.consumer.metadata_hash import TopicHashes
from twisted_broker.coordinator.consumer.migration import Upgrade
from twisted_broker.coordinator.consumer.patterns import patterns_resolved, resolve_patterns
from twisted_broker.coordinator.consumer.requests import HeartbeatAnswer, HeartbeatRequest
from twisted_broker.coordinator.coordinator_context import CoordinatorContext
from twisted_broker.coordinator.group_decision import Decision
from twisted_broker.coordinator.group_requests import (
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    SyncAnswer,
    SyncRequest,
)
from twisted_broker.coordinator.group_runner import (
    RECORDS_PER_STEP,
    GroupKeeper,
    GroupRunner,
    Job,
    ignore,
)
from twisted_broker.coordinator.record_codec import encode_record
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.turns import Steps
from twisted_broker.wire.errors import ErrorCode

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
        keeper: GroupKeeper,
    ) -> None:
        super().__init__(context, append, keeper)
        self._image, self._settings = image, settings
        self._hashes = TopicHashes()
        # The offset of the last image in which topics were new.
        self.topics_created_version = -1

    # requests
    def heartbeat(
        self,
        group: ConsumerGroup,
        request: HeartbeatRequest,
        may_describe: Callable[[str], bool] = _sees_all,
    ) -> Deferred[HeartbeatAnswer]:
        """Fires with the answer, or fails with BrokerError. The request has passed
        `check_request`.
        """
        decide = leave if request.member_epoch < 0 else heartbeat
        return self._answer(
            group,
            lambda: decide(group, request, self._environment(group)),
            lambda decision: self._heartbeat_ended(group, decision, may_describe),
        )

    def upgrade(
        self,
        group: ConsumerGroup,
        upgrade: Upgrade,
        request: HeartbeatRequest,
        may_describe: Callable[[str], bool] = _sees_all,
    ) -> Deferred[HeartbeatAnswer]:
        """As `heartbeat`, to a group that was just begun in the place of a classic one."""

        def decide() -> Generator[None, None, Decision]:
            environment = self._environment(group)
            records = yield from upgrade.records(environment)
            leading = list(self._leading[group])
            for number, record in enumerate(records, 1):
                group.apply(record)
                leading.append(encode_record(record))
                if number % RECORDS_PER_STEP == 0:
                    yield
            self._leading[group] = leading
            decision = yield from heartbeat(group, request, environment)
            decision.timers[:0] = upgrade.timers()
            return decision

        return self._answer(
            group, decide, lambda decision: self._heartbeat_ended(group, decision, may_describe)
        )

    def leave_several(
        self, group: ConsumerGroup, leavers: Sequence[tuple[str, str | None]]
    ) -> Deferred[list[LeaveAnswer]]:
        """A LeaveGroup: (member id, instance id) each. Fires, or fails with BrokerError."""
        return self._answer(group, lambda: leave_several(group, leavers, self._environment(group)))

    def describe(self, group: ConsumerGroup) -> Deferred[DescribedGroup]:
        """Fires with the group once that is committed, or fails with BrokerError."""
        return self._answer(group, lambda: describe(group, self._environment(group)))

    def _answer(
        self,
        group: ConsumerGroup,
        decide: Callable[[], Generator[None, None, Decision]],
        carried_out: Callable[[Decision], None] = ignore,
    ) -> Deferred[Any]:
        answer: Deferred[Any] = Deferred()
        self._ask(group, Job(decide, answer, carried_out=carried_out))
        return answer

    # what members of the classic protocol ask; each fires, or fails with BrokerError
    def classic_join(self, group: ConsumerGroup, request: JoinRequest) -> Deferred[JoinAnswer]:
        return self._answer(group, lambda: classic_join(group, request, self._environment(group)))

    def classic_sync(self, group: ConsumerGroup, request: SyncRequest) -> Deferred[SyncAnswer]:
        return self._answer(group, lambda: classic_sync(group, request, self._environment(group)))

    def classic_heartbeat(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> Deferred[ErrorCode]:
        return self._answer(
            group,
            lambda: classic_heartbeat(
                group, member_id, instance_id, generation, self._environment(group)
            ),
        )

    # decisions of this kind of group
    def _session_ms(self, group: ConsumerGroup, member: ConsumerGroupMember) -> int:
        if member.classic is not None:
            return member.classic.session_timeout_ms
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
            _logger.failure(
                "resolving the patterns of group {group} failed; the topics found before stay",
                group=group.group_id,
            )
            return
        finally:
            group.pattern_refresh.is_running = False
        group.pattern_refresh.version = image.offset
        self._ask(group, Job(lambda: patterns_resolved(group, resolved, self._environment(group))))
