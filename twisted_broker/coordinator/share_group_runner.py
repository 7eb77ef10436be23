"""The share groups of one shard at work, and their requests to the share coordinator. Ring 1.

Owns `ShareGroupRunner`, a `GroupRunner` (`group_runner.py`).

1. The share coordinator is asked when the decision is committed; its answers are decisions of
   their own. A heartbeat does not wait for them, an administrator does.
2. `ASKED_PER_STEP` share partitions are asked for in one turn.
3. Without an answer nothing is known of a partition: the request is sent again, by a later
   heartbeat or by the next administrator.
4. Memory: an asking exists until the persister has answered for each of its partitions, which it
   does in bounded time.

Source: Apache Kafka 4.3.1 `GroupCoordinatorService.persisterInitialize`,
`performShareGroupsDeletion`. Not here: what is decided (`coordinator/share`), how the share
coordinator is reached (`IPersister`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.coordinator.consumer.metadata_hash import TopicHashes
from twisted_broker.coordinator.consumer.partitions import TopicIdPartition
from twisted_broker.coordinator.consumer.requests import HeartbeatAnswer
from twisted_broker.coordinator.coordinator_context import CoordinatorContext, append_error
from twisted_broker.coordinator.group_decision import Decision
from twisted_broker.coordinator.group_runner import GroupKeeper, GroupRunner, Job
from twisted_broker.coordinator.share import states
from twisted_broker.coordinator.share.decision import (
    ShareEnvironment,
    ShareGroupDecision,
    ShareGroupSettings,
)
from twisted_broker.coordinator.share.describe import DescribedShareGroup, describe
from twisted_broker.coordinator.share.group import ShareGroup
from twisted_broker.coordinator.share.heartbeat import heartbeat, leave, remove_members
from twisted_broker.coordinator.share.member import ShareGroupMember
from twisted_broker.coordinator.share.requests import ShareHeartbeatRequest
from twisted_broker.coordinator.share.states import TopicAnswer
from twisted_broker.coordinator.share_state.persister import IPersister
from twisted_broker.coordinator.share_state.values import SharePartitionKey
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.turns import Steps
from twisted_broker.wire.errors import BrokerError, ErrorCode

# Each may be an append of its own.
ASKED_PER_STEP = 20
Errors = dict[TopicIdPartition, ErrorCode]
_logger = Logger()


def _at_once(decide: Callable[[], Decision]) -> Callable[[], Generator[None, None, Decision]]:
    """A decision without steps, as a job wants it."""

    def steps() -> Generator[None, None, Decision]:
        yield from ()
        return decide()

    return steps


class ShareGroupRunner(GroupRunner[ShareGroup]):
    """`append` is the shard's, `image` gives the present metadata, `settings` those of a group by
    its id, at the moment of a decision; `persister` the way to the share coordinator, None where
    there is none.
    """

    __slots__ = ("_hashes", "_image", "_persister", "_settings")

    def __init__(
        self,
        context: CoordinatorContext,
        append: Callable[[bytes], Deferred[int]],
        image: Callable[[], MetadataImage],
        settings: Callable[[str], ShareGroupSettings],
        persister: Callable[[], IPersister | None],
        keeper: GroupKeeper,
    ) -> None:
        super().__init__(context, append, keeper)
        self._image, self._settings, self._persister = image, settings, persister
        self._hashes = TopicHashes()

    # members
    def heartbeat(
        self, group: ShareGroup, request: ShareHeartbeatRequest
    ) -> Deferred[HeartbeatAnswer]:
        """Fires with the answer, or fails with BrokerError. The request has passed
        `check_request`.
        """
        if group.lacks_target:
            # Perhaps for ever: its topic went while nobody coordinated, or the record was refused.
            self.topics_gone(group)
        answer: Deferred[HeartbeatAnswer] = Deferred()
        decide = leave if request.member_epoch < 0 else heartbeat
        self._ask(
            group,
            Job(
                lambda: decide(group, request, self._environment(group)),
                answer,
                carried_out=lambda decision: self._follow(group, decision, answer=None),
            ),
        )
        return answer

    def describe(self, group: ShareGroup) -> Deferred[DescribedShareGroup]:
        """Fires with the group once that is committed, or fails with BrokerError."""
        answer: Deferred[DescribedShareGroup] = Deferred()
        self._ask(group, Job(lambda: describe(group, self._image()), answer))
        return answer

    def _session_ms(self, group: ShareGroup, member: ShareGroupMember) -> int:
        return self._settings(group.group_id).session_timeout_ms

    def _remove(
        self, group: ShareGroup, member_ids: Sequence[str]
    ) -> Generator[None, None, Decision]:
        return remove_members(group, member_ids, self._environment(group))

    def _environment(self, group: ShareGroup) -> ShareEnvironment:
        return ShareEnvironment(
            self._image(), self._hashes, self._context.wall_ms(), self._settings(group.group_id)
        )

    # topics and their states
    def topics_gone(self, group: ShareGroup) -> None:
        """Forgets the topics that there are no more."""
        if states.topics_gone(group, self._image()).records:
            self._ask(group, Job(_at_once(lambda: states.topics_gone(group, self._image()))))

    def alter(
        self, group: ShareGroup, starts: Mapping[str, Mapping[int, int]]
    ) -> Deferred[list[TopicAnswer]]:
        """The states of an empty group begin anew at these offsets. Fires when the share
        coordinator has answered, or fails with BrokerError.
        """
        return self._administer(
            group, lambda: states.alter(group, starts, self._environment(group))
        )

    def delete_topics(self, group: ShareGroup, names: Sequence[str]) -> Deferred[list[TopicAnswer]]:
        """The states of these topics of an empty group go; as `alter`."""
        return self._administer(
            group, lambda: states.begin_deleting_topics(group, names, self._image())
        )

    def delete_states(self, group: ShareGroup) -> Deferred[None]:
        """All states of an empty group go. Fires when they are gone, or fails with BrokerError."""

        def check(errors: Errors) -> None:
            for error in errors.values():
                raise BrokerError(error)

        asked: Deferred[Errors] = Deferred()
        self._administered(group, lambda: states.begin_deleting(group, self._image()), asked)
        return asked.addCallback(check)

    def _administer(
        self, group: ShareGroup, decide: Callable[[], ShareGroupDecision]
    ) -> Deferred[list[TopicAnswer]]:
        made: list[ShareGroupDecision] = []
        asked: Deferred[Errors] = Deferred()

        def note() -> ShareGroupDecision:
            made.append(decide())
            return made[-1]

        self._administered(group, note, asked)
        return asked.addCallback(
            lambda errors: [_with_errors(each, errors) for each in made[-1].answer]
        )

    def _administered(
        self, group: ShareGroup, decide: Callable[[], ShareGroupDecision], asked: Deferred[Errors]
    ) -> None:
        refused: Deferred[Any] = Deferred()
        # The decision's own steps answer; only a refusal comes this way.
        refused.addErrback(asked.errback)

        def carried_out(decision: Decision) -> None:
            self._follow(group, decision, asked)

        self._ask(
            group, Job(_at_once(lambda: _unanswered(decide())), refused, carried_out=carried_out)
        )

    def _follow(
        self, group: ShareGroup, decision: Decision, answer: Deferred[Errors] | None
    ) -> None:
        """When the decision is committed, the share coordinator gets the requests that follow."""
        assert isinstance(decision, Decision)
        is_asking = isinstance(decision, ShareGroupDecision) and (
            decision.initialize or decision.delete
        )
        if not is_asking and answer is None:
            return
        committed: Deferred[None] = Deferred()
        self._commits.answer(group, committed, None)

        def ask(_: None) -> None:
            assert isinstance(decision, ShareGroupDecision)
            self._context.turns.start(self._ask_steps(group, decision, answer))

        def not_committed(failure: Failure) -> None:
            if answer is not None:
                answer.errback(failure)

        committed.addCallbacks(ask, not_committed)

    def _ask_steps(
        self, group: ShareGroup, decision: ShareGroupDecision, answer: Deferred[Errors] | None
    ) -> Steps:
        errors: Errors = {}
        left = len(decision.initialize) + len(decision.delete)
        all_answered: Deferred[None] = Deferred()

        def answered(failure: Any, partition: TopicIdPartition) -> None:
            nonlocal left
            if isinstance(failure, Failure):
                errors[partition] = append_error(failure)
            left -= 1
            if not left:
                all_answered.callback(None)

        number = 0
        for partition, start in decision.initialize.items():
            self._initialize(group, partition, decision.state_epoch, start).addBoth(
                answered, partition
            )
            number += 1
            if number % ASKED_PER_STEP == 0:
                yield None
        for partition in sorted(decision.delete):
            self._delete(group, partition).addBoth(answered, partition)
            number += 1
            if number % ASKED_PER_STEP == 0:
                yield None
        if number:
            # Not for this generator to wait: another's turn would wait behind it.
            all_answered.addCallback(lambda _: self._answered(group, decision, errors, answer))
        elif answer is not None:
            answer.callback(errors)

    def _initialize(
        self, group: ShareGroup, partition: TopicIdPartition, state_epoch: int, start: int
    ) -> Deferred[None]:
        persister = self._persister()
        if persister is None:
            return fail(BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return persister.initialize(_key(group, partition), state_epoch, start)

    def _delete(self, group: ShareGroup, partition: TopicIdPartition) -> Deferred[None]:
        persister = self._persister()
        if persister is None:
            return fail(BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return persister.delete(_key(group, partition))

    def _answered(
        self,
        group: ShareGroup,
        decision: ShareGroupDecision,
        errors: Errors,
        answer: Deferred[Errors] | None,
    ) -> None:
        for error, count in _counted(errors):
            _logger.warn(
                "share group {group}: the share coordinator refused {count} partitions: {error}",
                group=group.group_id,
                count=count,
                error=error.name,
            )

        def decide() -> Decision:
            if decision.initialize:
                done = [each for each in decision.initialize if each not in errors]
                return states.initialized(group, done, list(errors), self._image())
            undone = {topic_id for topic_id, _ in errors}
            gone = {topic_id for topic_id, _ in decision.delete} - undone
            return states.deleted(group, gone)

        if answer is None:
            self._ask(group, Job(_at_once(decide)))
            return
        stored: Deferred[Any] = Deferred()
        stored.addCallback(lambda _: errors)
        stored.chainDeferred(answer)

        def decide_and_answer() -> Decision:
            made = decide()
            made.answer = made
            return made

        self._ask(group, Job(_at_once(decide_and_answer), stored))


def _key(group: ShareGroup, partition: TopicIdPartition) -> SharePartitionKey:
    return SharePartitionKey(group.group_id, *partition)


def _unanswered(decision: ShareGroupDecision) -> ShareGroupDecision:
    return replace(decision, answer=None)


def _counted(errors: Errors) -> Iterable[tuple[ErrorCode, int]]:
    counts: dict[ErrorCode, int] = {}
    for error in errors.values():
        counts[error] = counts.get(error, 0) + 1
    return counts.items()


def _with_errors(answer: TopicAnswer, errors: Errors) -> TopicAnswer:
    """The share coordinator's error."""
    topic_id = answer.topic_id
    if topic_id is None or not errors:
        return answer
    if answer.partitions is not None:
        return replace(
            answer,
            partitions={
                number: errors.get((topic_id, number), error)
                for number, error in answer.partitions.items()
            },
        )
    found = [error for (each, _), error in errors.items() if each == topic_id]
    return replace(answer, error=found[0]) if found else answer
