"""The group coordinator of one broker, request by request: each finds its shard and its group, or
its error. Ring 1.

Owns `GroupCoordinator`, whose methods the APIs of groups and offsets call. It holds the partitions
(`runtime`), the removal of offsets that no client requests (`cleanup`), and the topic itself
(`offsets_topic`).

1. A call that raises or fails does so with BrokerError, and leaves nothing behind.
2. Every text that ends up in a record fits the record's 16-bit length; a member id begins with at
   most 255 characters of the client id, or of the instance id.
3. A classic heartbeat while the group's partition is read is NONE: the member may well be alive,
   and is known only when all is read.
4. A group without members becomes one of the protocol of the next who joins; its offsets stay. With
   members it changes as `consumer/migration.py` says.

Source: Apache Kafka 4.3.1 `GroupCoordinatorService`. Not here: permission and the wire
(`api/groups.py`, `api/consumer_groups.py`, `api/streams_groups.py`,
`api/offsets.py`), the state of transactions.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from heapq import merge
from uuid import UUID

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from twisted_broker.coordinator.classic_group import STABLE, ClassicGroup
from twisted_broker.coordinator.consumer.describe import DescribedGroup
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.member import JOIN_EPOCH
from twisted_broker.coordinator.consumer.migration import NotUpgraded, check_upgrade
from twisted_broker.coordinator.consumer.requests import (
    HeartbeatAnswer,
    HeartbeatRequest,
)
from twisted_broker.coordinator.coordinator_context import (
    CoordinatorContext,
    CoordinatorSettings,
    append_error,
)
from twisted_broker.coordinator.coordinator_runtime import CoordinatorRuntime
from twisted_broker.coordinator.coordinator_shard import CoordinatorShard, CoordinatorState
from twisted_broker.coordinator.group_deletion import GroupDeletion
from twisted_broker.coordinator.group_entry import Group, GroupEntry
from twisted_broker.coordinator.group_offsets import TopicPartition
from twisted_broker.coordinator.group_records import fits_record
from twisted_broker.coordinator.group_requests import (
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    SyncAnswer,
    SyncRequest,
)
from twisted_broker.coordinator.internal_topics import InternalTopics
from twisted_broker.coordinator.member_epochs import check_fetch
from twisted_broker.coordinator.modern_group import ModernGroup
from twisted_broker.coordinator.offset_cleanup import OffsetCleanup
from twisted_broker.coordinator.offset_metadata_manager import (
    CommitAnswer,
    CommitRequest,
    FetchedOffset,
    OffsetToCommit,
    check_delete_group,
    check_delete_offsets,
    fetch_offsets,
    validate_commit,
)
from twisted_broker.coordinator.offsets_topic import OffsetsTopic
from twisted_broker.coordinator.share.describe import DescribedShareGroup
from twisted_broker.coordinator.share.group import ShareGroup
from twisted_broker.coordinator.share.records import ShareStates
from twisted_broker.coordinator.share.requests import ShareHeartbeatRequest
from twisted_broker.coordinator.share.states import TopicAnswer
from twisted_broker.coordinator.streams.describe import DescribedGroup as DescribedStreamsGroup
from twisted_broker.coordinator.streams.group import StreamsGroup
from twisted_broker.coordinator.streams.requests import (
    HeartbeatAnswer as StreamsAnswer,
)
from twisted_broker.coordinator.streams.requests import (
    HeartbeatRequest as StreamsHeartbeatRequest,
)
from twisted_broker.log.append_info import EndMarker
from twisted_broker.log.verification import Guard
from twisted_broker.wire.errors import BrokerError, ErrorCode

# A member id begins with the client id or the instance id, and is kept and written for every
# member.
CLIENT_ID_CHARACTERS = 255
# About a millisecond of one turn.
LISTED_PER_STEP, SORTED_PER_STEP = 500, 2000


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A row of ListGroups."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = ClassicGroup.group_type


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """`members` is (member id, instance id, client id, client host, metadata, assignment). Metadata
    is empty unless Stable; the assignment is the last one that the member got, during a rebalance
    too.
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[tuple[str, str | None, str, str, bytes, bytes], ...]


def _drained(partitions: list[TopicPartition]) -> Iterator[TopicPartition]:
    """The partitions from the end of the list, which shrinks."""
    while partitions:
        yield partitions.pop()


def _not_verified(failure: Failure) -> Failure:
    """As Kafka: clients know these errors of a group's coordinator, and try again."""
    code = append_error(failure)
    raise BrokerError(
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if code is ErrorCode.NETWORK_EXCEPTION else code
    )


def _marker_error(failure: Failure) -> ErrorCode:
    """NOT_COORDINATOR becomes the code at which the transaction coordinator looks for the leader
    again.
    """
    error = failure.value
    if not isinstance(error, BrokerError):
        return append_error(failure)
    return (
        ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code is ErrorCode.NOT_COORDINATOR else error.code
    )


class GroupCoordinator:
    """All groups whose partition of `__consumer_offsets` this broker leads. `start` and `stop` are
    the broker's.
    """

    def __init__(
        self, context: CoordinatorContext, offsets_topic: OffsetsTopic | None = None
    ) -> None:
        self.context, self.offsets_topic = context, offsets_topic
        self.runtime = CoordinatorRuntime(context, self._shard_loaded)
        self.cleanup = OffsetCleanup(context, self.runtime.shards)
        self.internal_topics = InternalTopics(context.clock)

    def _shard_loaded(self, shard: CoordinatorShard) -> None:
        self.cleanup.shard_loaded(shard)

    def start(self) -> None:
        self.cleanup.start()

    def stop(self) -> None:
        """Ends all that runs; waiting requests are answered NOT_COORDINATOR."""
        self.cleanup.stop()
        self.context.turns.stop_background()
        self.context.lines.stop()
        self.runtime.unload_all()

    def update_settings(self, settings: CoordinatorSettings) -> None:
        before, self.context.settings = self.context.settings, settings
        if settings.retention_check_interval_ms != before.retention_check_interval_ms:
            self.cleanup.restart()

    # membership
    def join(self, group_id: str, request: JoinRequest) -> Deferred[JoinAnswer]:
        """Fires when the rebalance is complete, or with an error; `request.new_member_id` is filled
        in here.
        """
        answer: Deferred[JoinAnswer] = Deferred()
        try:
            self._join(group_id, request, answer)
        except BrokerError as refusal:
            answer.callback(JoinAnswer(refusal.code, request.member_id))
        return answer

    def _join(self, group_id: str, request: JoinRequest, answer: Deferred[JoinAnswer]) -> None:
        shard = self.runtime.shard_of(group_id)
        settings = self.context.settings
        if (
            not settings.min_session_timeout_ms
            <= request.session_timeout_ms
            <= settings.max_session_timeout_ms
        ):
            raise BrokerError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if request.rebalance_timeout_ms < 0 or not fits_record(
            request.instance_id, request.client_id, request.protocol_type, *request.protocols
        ):
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        entry = shard.entry_to_change(group_id)
        if entry is None:
            if request.member_id:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
            entry = self.runtime.create_group(shard, group_id)
            group, is_new = entry.group, True
        else:
            group, is_new = entry.group, isinstance(entry.group, ModernGroup)
        if isinstance(group, ConsumerGroup) and (
            not group.is_empty or shard.is_being_changed(group)
        ):
            new_member_id = self._new_member_id()
            joined = shard.consumers.classic_join(
                group, replace(request, new_member_id=new_member_id)
            )
            joined.addErrback(lambda failure: JoinAnswer(_code_of(failure)))
            joined.addCallback(answer.callback)
            return
        if isinstance(group, ModernGroup):
            group = _replaced(shard, entry, group, request)
        prefix = request.client_id if request.instance_id is None else request.instance_id
        unique = UUID(int=self.context.random.getrandbits(128), version=4)
        member_id = f"{prefix[:CLIENT_ID_CHARACTERS]}-{unique}"
        shard.manager.membership.join(
            group,
            replace(request, new_member_id=member_id),
            answer,
            self.context.wall_ms(),
        )
        if is_new and not group.members and not group.pending_joins:
            shard.refused_to_join(entry)  # a group without members leaves no trace
        elif is_new:
            shard.manager.write_first_record(group)
        shard.run_effects()

    def sync(self, group_id: str, request: SyncRequest) -> Deferred[SyncAnswer]:
        """Fires when the leader's assignment is stored, or with an error."""
        answer: Deferred[SyncAnswer] = Deferred()
        try:
            shard = self.runtime.shard_of(group_id)
            entry = shard.entry_to_change(group_id)
            if entry is not None and isinstance(entry.group, ConsumerGroup):
                synced = shard.consumers.classic_sync(entry.group, request)
                return synced.addErrback(lambda failure: SyncAnswer(_code_of(failure)))
            if entry is None or isinstance(entry.group, ModernGroup):
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        except BrokerError as refusal:
            answer.callback(SyncAnswer(refusal.code))
            return answer
        shard.manager.assignment.sync(entry.group, request, answer)
        shard.run_effects()
        return answer

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Of a member of the classic protocol. In a consumer group it stands in line."""
        try:
            shard = self.runtime.shard_of(group_id)
            entry = shard.entry_to_change(group_id)
        except BrokerError as refusal:
            return (
                ErrorCode.NONE
                if refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                else refusal.code
            )
        if entry is not None and isinstance(entry.group, ConsumerGroup):
            lives = shard.consumers.classic_heartbeat(
                entry.group, member_id, instance_id, generation
            )
            return lives.addErrback(_code_of)
        if entry is None or isinstance(entry.group, ModernGroup):
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = shard.manager.membership.heartbeat(entry.group, member_id, instance_id, generation)
        shard.run_effects()
        return error

    def leave(
        self, group_id: str, leavers: list[tuple[str, str | None]]
    ) -> Deferred[list[LeaveAnswer]]:
        """(member id, instance id) each; raises or fails with BrokerError."""
        shard = self.runtime.shard_of(group_id)
        entry = shard.entry_to_change(group_id)
        if entry is not None and isinstance(entry.group, ConsumerGroup):
            return shard.consumers.leave_several(entry.group, leavers)
        if entry is None or isinstance(entry.group, ModernGroup):
            return succeed(
                [
                    LeaveAnswer(member_id, instance_id, ErrorCode.UNKNOWN_MEMBER_ID)
                    for member_id, instance_id in leavers
                ]
            )
        answers = shard.manager.membership.leave(entry.group, leavers, self.context.wall_ms())
        shard.run_effects()
        return succeed(answers)

    # consumer groups
    def consumer_heartbeat(
        self, request: HeartbeatRequest, may_describe: Callable[[str], bool]
    ) -> Deferred[HeartbeatAnswer]:
        """A heartbeat that has passed `check_request`. `may_describe`: whether the one who sent it
        may see a topic. Fires when what it decides is stored; raises or fails with BrokerError.
        """
        group_id = request.group_id
        shard = self.runtime.shard_of(group_id)
        entry = shard.entry_to_change(group_id)
        if not request.member_id:
            request = replace(request, member_id=self._new_member_id())
        group = None if entry is None else entry.group
        if not isinstance(group, ConsumerGroup):
            if request.member_epoch != JOIN_EPOCH or isinstance(group, ModernGroup):
                raise _not_found(group_id, group, ConsumerGroup.group_type)
            if group is not None and not group.is_empty:
                try:
                    check_upgrade(group, self.context.consumer_settings(group_id))
                except NotUpgraded as error:
                    self._say_not_upgraded(group, request, error)
                    raise
            if group is not None and shard.is_being_changed(group):
                raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if entry is None:
                self.runtime.make_room()
            elif group is not None and not group.is_empty:
                classic = group

                def refused(failure: Failure) -> Failure:
                    if isinstance(failure.value, NotUpgraded):
                        self._say_not_upgraded(classic, request, failure.value)
                    return failure

                return shard.upgraded(entry, group, request, may_describe).addErrback(refused)
            group = ConsumerGroup(group_id)
            shard.begin_modern_group(group, entry)
        return shard.consumers.heartbeat(group, request, may_describe)

    def _say_not_upgraded(
        self, group: ClassicGroup, request: HeartbeatRequest, error: NotUpgraded
    ) -> None:
        self.context.lines.warn(
            "group not upgraded",
            group=group.group_id,
            members=len(group.members),
            joining=request.client_id,
            reason=error.for_operators,
        )

    def consumer_lives(self, group_id: str, member_id: str) -> None:
        """A member of a consumer group, if it is one, has another whole session from now on."""
        shard = self.runtime.shard_of(group_id)
        entry = shard.groups.get(group_id)
        if entry is not None and isinstance(entry.group, ConsumerGroup):
            shard.consumers.lives(entry.group, member_id)

    # streams groups
    def streams_heartbeat(self, request: StreamsHeartbeatRequest) -> Deferred[StreamsAnswer]:
        """A heartbeat that has passed `check_request`. Fires when what it decides is stored; raises
        or fails with BrokerError.
        """
        group_id = request.group_id
        shard = self.runtime.shard_of(group_id)
        entry = shard.entry_to_change(group_id)
        group = None if entry is None else entry.group
        if not isinstance(group, StreamsGroup):
            group = StreamsGroup(group_id)
            self._begin(shard, entry, group, request.member_epoch)
        return shard.streams.heartbeat(group, request)

    def describe_streams_group(self, group_id: str) -> Deferred[DescribedStreamsGroup]:
        """Fires when what it shows is committed; raises or fails with BrokerError."""
        shard = self.runtime.shard_of(group_id, reads=True)
        if group_id in shard.undecided_groups:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        entry = shard.groups.get(group_id)
        group = None if entry is None else entry.group
        if not isinstance(group, StreamsGroup) or group.is_unwritten:
            raise _not_found(group_id, group, StreamsGroup.group_type)
        return shard.streams.describe(group)

    def _begin(
        self,
        shard: CoordinatorShard,
        entry: GroupEntry | None,
        group: ModernGroup,
        member_epoch: int,
    ) -> None:
        """`group` is to be the one of its id, for a member that joins. Raises BrokerError where
        there is another, which is not an empty classic one.
        """
        before = None if entry is None else entry.group
        is_free = before is None or (isinstance(before, ClassicGroup) and before.is_empty)
        if member_epoch != JOIN_EPOCH or not is_free:
            raise _not_found(group.group_id, before, group.group_type)
        if before is not None and shard.is_being_changed(before):
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if entry is None:
            self.runtime.make_room()
        shard.begin_modern_group(group, entry)

    def _new_member_id(self) -> str:
        """For clients of ConsumerGroupHeartbeat 0: a Uuid as Kafka prints it."""
        drawn = self.context.random.getrandbits(128).to_bytes(16, "big")
        return urlsafe_b64encode(drawn).rstrip(b"=").decode()

    def topics_changed(self, names: Set[str], has_new: bool) -> None:
        """Topics were created, changed or deleted. `has_new`: some are new."""
        for shard in self.runtime.shards.values():
            if has_new:
                shard.consumers.topics_created_version = self.context.image().offset
            if shard.modern_groups:
                self.context.turns.start(shard.topics_changed_steps(names))

    def describe_consumer_group(self, group_id: str) -> Deferred[DescribedGroup]:
        """Fires when what it shows is committed; raises or fails with BrokerError."""
        shard = self.runtime.shard_of(group_id, reads=True)
        if group_id in shard.undecided_groups:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        entry = shard.groups.get(group_id)
        group = None if entry is None else entry.group
        if not isinstance(group, ConsumerGroup) or not shard.consumers.is_begun(group):
            raise _not_found(group_id, group, ConsumerGroup.group_type)
        return shard.consumers.describe(group)

    # share groups
    def share_heartbeat(self, request: ShareHeartbeatRequest) -> Deferred[HeartbeatAnswer]:
        """A heartbeat that has passed `check_request`. Fires when what it decides is stored; raises
        or fails with BrokerError.
        """
        is_joining = request.member_epoch == JOIN_EPOCH
        shard, group = self._share_group(request.group_id, made_if_missing=is_joining)
        return shard.shares.heartbeat(group, request)

    def describe_share_group(self, group_id: str) -> Deferred[DescribedShareGroup]:
        """Fires when what it shows is committed; raises or fails with BrokerError."""
        shard = self.runtime.shard_of(group_id, reads=True)
        if group_id in shard.undecided_groups:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        entry = shard.groups.get(group_id)
        group = None if entry is None else entry.group
        if not isinstance(group, ShareGroup) or group.is_unwritten:
            raise _not_found(group_id, group, ShareGroup.group_type)
        return shard.shares.describe(group)

    def share_states(self, group_id: str) -> ShareStates:
        """Which partitions have a state; none if it is no share group. Raises BrokerError."""
        shard = self.runtime.shard_of(group_id, empty_allowed=True, reads=True)
        entry = shard.groups.get(group_id)
        group = None if entry is None else entry.group
        return group.known_states if isinstance(group, ShareGroup) else ShareStates()

    def alter_share_offsets(
        self, group_id: str, starts: Mapping[str, Mapping[int, int]]
    ) -> Deferred[list[TopicAnswer]]:
        """Sets the start offsets of share partitions, by topic and partition. Fires when they are
        set; raises or fails with BrokerError.
        """
        shard, group = self._share_group(group_id, made_if_missing=True)
        return shard.shares.alter(group, starts)

    def delete_share_offsets(
        self, group_id: str, topics: Sequence[str]
    ) -> Deferred[list[TopicAnswer]]:
        """Deletes the states of these topics; as `alter_share_offsets`."""
        shard, group = self._share_group(group_id, made_if_missing=False)
        return shard.shares.delete_topics(group, topics)

    def _share_group(
        self, group_id: str, made_if_missing: bool
    ) -> tuple[CoordinatorShard, ShareGroup]:
        shard = self.runtime.shard_of(group_id)
        entry = shard.entry_to_change(group_id)
        group = None if entry is None else entry.group
        if isinstance(group, ShareGroup):
            return shard, group
        if group is not None or not made_if_missing:
            raise _not_found(group_id, group, ShareGroup.group_type)
        self.runtime.make_room()
        made = ShareGroup(group_id)
        shard.begin_modern_group(made, None)
        return shard, made

    # offsets
    def commit(self, request: CommitRequest) -> Deferred[CommitAnswer]:
        """Fires with an error per partition when the offsets are stored; raises or fails with
        BrokerError.
        """
        return self._commit(request, None)

    def commit_transactional(
        self,
        request: CommitRequest,
        verify: Callable[[int], Deferred[Guard]],
        left: Callable[[], tuple[OffsetToCommit, ...]] | None = None,
    ) -> Deferred[CommitAnswer]:
        """As `commit`, as a part of the transaction of `request.producer`. `verify(index)` makes
        sure that the group's partition belongs to that transaction; it fires with the guard of the
        append, or fails with BrokerError. `left()`: the offsets that are still to be committed
        then; None: all. Raises or fails with BrokerError.
        """

        def verified(guard: Guard) -> Deferred[CommitAnswer]:
            # The group may have changed meanwhile, or its partition be led elsewhere.
            asked = request if left is None else replace(request, offsets=left())
            return self._commit(asked, guard)

        index = self.runtime.shard_of(request.group_id).index
        return verify(index).addCallbacks(verified, _not_verified)

    def _commit(self, request: CommitRequest, guard: Guard) -> Deferred[CommitAnswer]:
        shard = self.runtime.shard_of(request.group_id, empty_allowed=not request.is_transactional)
        entry = shard.entry_to_change(request.group_id)
        if entry is None:
            if request.generation >= 0:
                raise BrokerError(request.unknown_group_error)
            if not request.offsets:
                return succeed({})
            entry = self.runtime.create_group(shard, request.group_id)
        validate_commit(shard.standing(entry), request)
        if isinstance(entry.group, ClassicGroup) and not request.is_transactional:
            shard.manager.membership.offsets_committed(entry.group, request.member_id)
            shard.run_effects()
        return shard.offsets.commit(entry, request, guard)

    def complete_transaction(
        self,
        index: int,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        committed: bool,
        transaction_version: int = 0,
    ) -> Deferred[ErrorCode]:
        """Appends the end marker of a transaction to partition `index` of `__consumer_offsets`;
        fires with NONE when it is stored and its offsets are committed or gone, else with the
        error.
        """
        shard = self.runtime.shards.get(index)
        if shard is None or shard.state is not CoordinatorState.ACTIVE:
            return succeed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        marker = EndMarker(
            producer_id, producer_epoch, coordinator_epoch, committed, transaction_version
        )
        return shard.offsets.complete_transaction(shard.groups, marker).addCallbacks(
            lambda _: ErrorCode.NONE, _marker_error
        )

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Whether this member, or one who names none, may fetch the group's offsets. Raises
        BrokerError.
        """
        shard = self.runtime.shard_of(group_id, empty_allowed=True, reads=True)
        entry = shard.groups.get(group_id)
        group = None if entry is None else entry.group
        if isinstance(group, ModernGroup) and not isinstance(group, ShareGroup):
            check_fetch(group, member_id, member_epoch)

    def fetch_offsets(
        self,
        group_id: str,
        partitions: Sequence[tuple[str, int, bytes]],
        require_stable: bool = False,
    ) -> list[FetchedOffset]:
        """(topic, partition, topic id or NULL_UUID) each. Raises BrokerError."""
        shard = self.runtime.shard_of(group_id, empty_allowed=True, reads=True)
        entry = shard.groups.get(group_id)
        if (
            entry is not None
            and not require_stable
            and shard.state is CoordinatorState.READABLE
            and any(entry.offsets.is_unstable(each[:2]) for each in partitions)
        ):
            # Records that the leader before acknowledged may lie above this one's high watermark:
            # an older value would be an acknowledged commit taken back. Kafka answers with it.
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return fetch_offsets(entry, partitions, require_stable)

    def committed_partitions(
        self, group_id: str
    ) -> Generator[None, None, Iterator[TopicPartition]]:
        """The partitions that the group has committed offsets for, as an iterator in order; the
        steps sort them. Raises BrokerError.
        """
        shard = self.runtime.shard_of(group_id, empty_allowed=True, reads=True)
        groups = shard.groups
        entry = groups.get(group_id)
        parts: list[list[TopicPartition]] = []
        for found in [] if entry is None else entry.offsets.parts():
            while found:
                # Lists of very many partitions are freed piece by piece as well.
                parts.append(sorted(found[-SORTED_PER_STEP:], reverse=True))
                del found[-SORTED_PER_STEP:]
                yield
                # Unloaded meanwhile, and perhaps loaded again: this shard has a part only.
                if shard.state is CoordinatorState.CLOSED:
                    raise BrokerError(ErrorCode.NOT_COORDINATOR)
                if shard.groups is not groups:
                    raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return merge(*map(_drained, parts))

    def check_delete_offsets(self, group_id: str) -> None:
        """Raises the error that an OffsetDelete of this group gets as a whole."""
        check_delete_offsets(self.runtime.shard_of(group_id).entry_to_change(group_id))

    def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> Deferred[dict[TopicPartition, ErrorCode]]:
        """Fires with an error per partition; raises or fails with BrokerError."""
        shard = self.runtime.shard_of(group_id)
        entry = check_delete_offsets(shard.entry_to_change(group_id))
        return shard.offsets.delete(entry, partitions)

    # administration
    def listings(self) -> Iterator[list[GroupListing]]:
        """All groups served here, `LISTED_PER_STEP` at a time; groups may come and go between
        two of them.
        """
        found: list[GroupListing] = []
        for shard in list(self.runtime.shards.values()):
            if shard.state not in (CoordinatorState.ACTIVE, CoordinatorState.READABLE):
                continue
            for part in shard.groups.parts():
                for name in part:
                    entry = shard.groups.get(name)
                    if entry is not None:
                        group = entry.group
                        found.append(
                            GroupListing(
                                name,
                                group.protocol_type or "",
                                group.state.value,
                                group.group_type,
                            )
                        )
                    if len(found) == LISTED_PER_STEP:
                        yield found
                        found = []
        yield found

    def describe(self, group_id: str) -> GroupDescription | None:
        """None where there is no classic group of that name; raises BrokerError."""
        shard = self.runtime.shard_of(group_id, empty_allowed=True, reads=True)
        if group_id in shard.undecided_groups:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        entry = shard.groups.get(group_id)
        group = None if entry is None else entry.group
        if not isinstance(group, ClassicGroup):
            return None
        is_stable = group.state is STABLE
        members = tuple(
            (
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                m.protocols[group.protocol_name]
                if is_stable and group.protocol_name in m.protocols
                else b"",
                m.assignment,
            )
            for m in group.members.values()
        )
        return GroupDescription(
            group_id,
            group.state.value,
            group.protocol_type or "",
            (group.protocol_name or "") if is_stable else "",
            members,
        )

    def why_not_classic(self, group_id: str) -> str:
        """Of a group for which `describe` has nothing."""
        shard = self.runtime.shard_of(group_id, empty_allowed=True, reads=True)
        what = "is not a classic group" if group_id in shard.groups else "not found"
        return f"Group {group_id} {what}."

    def delete_group(self, group_id: str) -> Deferred[ErrorCode]:
        """Fires when the group's tombstones are stored, or with why not. Raises BrokerError."""
        shard = self.runtime.shard_of(group_id, empty_allowed=True)
        entry = check_delete_group(shard.entry_to_change(group_id))
        if isinstance(entry.group, ShareGroup):
            return self._delete_share_group(shard, entry, entry.group)
        deleted = GroupDeletion(shard, entry).start()
        return deleted.addCallbacks(lambda _: ErrorCode.NONE, append_error)

    def _delete_share_group(
        self, shard: CoordinatorShard, entry: GroupEntry, group: ShareGroup
    ) -> Deferred[ErrorCode]:
        """Its states go before it does: nothing would tell of them then."""
        deleting = shard.shares.delete_states(group)
        # Nobody may come and have states made meanwhile. The decision goes on.
        entry.is_being_deleted = True

        def refused(failure: Failure) -> Failure:
            entry.is_being_deleted = False
            return failure

        return (
            deleting.addErrback(refused)
            .addCallback(lambda _: GroupDeletion(shard, entry).start())
            .addCallbacks(lambda _: ErrorCode.NONE, append_error)
        )


def _code_of(failure: Failure) -> ErrorCode:
    error = failure.value
    return error.code if isinstance(error, BrokerError) else append_error(failure)


def _not_found(group_id: str, group: Group | None, kind: str) -> BrokerError:
    """For a request that is of this kind of groups."""
    is_another = group is not None and group.group_type != kind
    return BrokerError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {group_id} is not a {kind} group."
        if is_another
        else f"Group {group_id} not found.",
    )


def _replaced(
    shard: CoordinatorShard, entry: GroupEntry, group: ModernGroup, request: JoinRequest
) -> ClassicGroup:
    """The classic group that a JoinGroup makes of a newer group without members. Raises
    BrokerError.
    """
    if not group.is_empty or isinstance(group, ShareGroup):
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if shard.is_being_changed(group):
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if request.member_id:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
    return shard.begin_classic_group(entry)
