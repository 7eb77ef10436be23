"""OffsetCommit, OffsetFetch, OffsetDelete and the expiry of offsets, on one shard. Ring 1.

Owns what these do to a group's offsets; who may do it is decided by the group's state.

1. A commit is accepted for an empty group from anybody without a generation, else only from a
   member of this generation.
2. Places of one commit succeed or fail together, but for those refused before anything is written.
3. A fetch never waits; with `require_stable` it names places that are on their way.
4. Walks (expiry, topics that are gone) go in steps of `LOOKED_AT_PER_STEP` offsets or one write,
   with `WRITES_AT_ONCE` writes under way at most; a group goes with its last offset when it is
   empty and nothing of it is undecided.

Source: Apache Kafka 4.3.1 `OffsetMetadataManager`, `ClassicGroup.validateOffset*` (KIP-211, 447,
496). Leaves out look-up of the shard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.coordinator.coordinator_shard import (
    TOMBSTONES_PER_BATCH,
    CoordinatorShard,
    CoordinatorState,
    GroupEntry,
    append_error,
    in_chunks,
)
from twisted_broker.coordinator.group_records import NO_EXPIRY, CommittedOffset
from twisted_broker.coordinator.group_state import (
    COMPLETING,
    CONSUMER_PROTOCOL_TYPE,
    DEAD,
    EMPTY,
    Group,
)
from twisted_broker.coordinator.offsets import TopicPartition
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.primitives import NULL_UUID

LOOKED_AT_PER_STEP = 500
WRITES_AT_ONCE = 100
_log = Logger()


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """`commit_timestamp_ms` is what the oldest clients may give (OffsetCommit v1), -1 for now."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: bytes = NULL_UUID
    commit_timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """`retention_ms` is what old clients may ask for (OffsetCommit v2-4), -1 for the broker's
    setting.
    """

    group_id: str
    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1
    retention_ms: int = -1
    offsets: tuple[OffsetToCommit, ...] = ()
    unknown_group_error: ErrorCode = ErrorCode.ILLEGAL_GENERATION


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    topic: str
    partition: int
    error: ErrorCode
    committed: CommittedOffset | None


CommitAnswer = dict[TopicPartition, ErrorCode]


# commit
def check_commit(group: Group, request: CommitRequest) -> None:
    """Raises what keeps this committer from committing."""
    if group.state is DEAD:
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if request.generation < 0 and group.state is EMPTY:
        return
    if request.generation < 0 and not request.member_id and request.instance_id is None:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
    group.check_member(request.member_id, request.instance_id)
    if request.generation != group.generation:
        raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
    if group.state is COMPLETING:
        raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)


def commit(
    shard: CoordinatorShard, entry: GroupEntry, request: CommitRequest
) -> Deferred[CommitAnswer]:
    """Stores the offsets; fires with an error per place.

    Raises BrokerError when the committer is refused.
    """
    check_commit(entry.group, request)
    shard.carry_out(entry, entry.core.commits_offsets(request.member_id))
    answer: CommitAnswer = {}
    changes: dict[TopicPartition, CommittedOffset | None] = {}
    for wanted in request.offsets:
        place = (wanted.topic, wanted.partition)
        if len(wanted.metadata) > shard.parts.settings.offset_metadata_max_bytes:
            answer[place] = ErrorCode.OFFSET_METADATA_TOO_LARGE
        else:
            answer[place] = ErrorCode.NONE
            changes[place] = _committed(wanted, shard.parts.wall_ms(), request.retention_ms)
    if not changes:
        return succeed(answer)
    return shard.write_offsets(entry, list(changes.items())).addCallbacks(
        lambda _: answer, _commit_failed, errbackArgs=(answer, changes)
    )


def _committed(wanted: OffsetToCommit, now_ms: int, retention_ms: int) -> CommittedOffset:
    expire_ms = NO_EXPIRY if retention_ms < 0 else now_ms + retention_ms
    commit_ms = now_ms if wanted.commit_timestamp_ms < 0 else wanted.commit_timestamp_ms
    return CommittedOffset(
        wanted.offset, wanted.leader_epoch, wanted.metadata, commit_ms, expire_ms, wanted.topic_id
    )


_TOO_LARGE = (
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_FETCH_SIZE,
)


def _commit_failed(
    failure: Failure, answer: CommitAnswer, changes: dict[TopicPartition, CommittedOffset | None]
) -> CommitAnswer:
    is_too_large = isinstance(failure.value, BrokerError) and failure.value.code in _TOO_LARGE
    error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if is_too_large else append_error(failure)
    return answer | dict.fromkeys(changes, error)


# fetch
def fetch(
    entry: GroupEntry | None, places: Sequence[tuple[str, int, bytes]] | None, require_stable: bool
) -> list[FetchedOffset]:
    """The offsets of (topic, partition, topic id or NULL_UUID) each, in order; of all that is
    committed for None.
    """
    if entry is None or entry.group.state is DEAD:
        return [
            FetchedOffset(topic, partition, ErrorCode.NONE, None)
            for topic, partition, _ in places or ()
        ]
    if places is None:
        places = [
            (topic, partition, NULL_UUID) for topic, partition in sorted(entry.offsets.committed)
        ]
    fetched = []
    for topic, partition, topic_id in places:
        place = (topic, partition)
        if require_stable and entry.offsets.is_unstable(place):
            fetched.append(FetchedOffset(topic, partition, ErrorCode.UNSTABLE_OFFSET_COMMIT, None))
        else:
            fetched.append(
                FetchedOffset(topic, partition, ErrorCode.NONE, entry.offsets.get(place, topic_id))
            )
    return fetched


# delete
def check_delete_offsets(entry: GroupEntry | None) -> GroupEntry:
    """The entry, if offsets may be deleted from it; raises GROUP_ID_NOT_FOUND or
    NON_EMPTY_GROUP.
    """
    if entry is None or entry.group.state is DEAD:
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND)
    if entry.group.state is not EMPTY and entry.group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
    return entry


def check_delete_group(entry: GroupEntry | None) -> GroupEntry:
    if entry is None or entry.group.state is DEAD:
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND)
    if entry.group.state is not EMPTY:
        raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
    return entry


def delete_offsets(
    shard: CoordinatorShard, entry: GroupEntry, places: Sequence[TopicPartition]
) -> Deferred[dict[TopicPartition, ErrorCode]]:
    """Deletes what nobody in the group is subscribed to; fires with an error per place, fails
    with BrokerError when storage refuses.
    """
    group, offsets = entry.group, entry.offsets
    answer = {
        p: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(p[0]) else ErrorCode.NONE
        for p in places
    }
    present = [
        p
        for p, error in answer.items()
        if not error and (p in offsets.committed or offsets.is_unstable(p))
    ]
    if not present:
        return succeed(answer)
    return shard.delete_offsets(entry, present).addCallbacks(lambda _: answer, _refuse)


def _refuse(failure: Failure) -> Failure:
    return Failure(BrokerError(append_error(failure)))


# long walks
class Pace:
    """When a walk lets others run, and how many of its writes may be under way."""

    __slots__ = ("_left", "_writes")

    def __init__(self) -> None:
        self._left = LOOKED_AT_PER_STEP
        self._writes: deque[Deferred[None]] = deque()

    def looked_at(self, count: int) -> Iterator[None]:
        self._left -= count
        if self._left <= 0:
            self._left = LOOKED_AT_PER_STEP
            yield

    def wrote(self, write: Deferred[None]) -> Iterator[Deferred[None] | None]:
        """A write is a step of its own; beyond `WRITES_AT_ONCE` the first of them is waited for."""
        if not write.called:
            self._writes.append(write)
        while self._writes and self._writes[0].called:
            self._writes.popleft()
        yield self._writes.popleft() if len(self._writes) >= WRITES_AT_ONCE else None


Walk = Iterator["Deferred[None] | None"]


def _entries(shard: CoordinatorShard) -> Iterator[GroupEntry]:
    """Those that are there when their turn comes, while the shard is served."""
    for group_id in list(shard.groups):
        entry = shard.groups.get(group_id)
        if shard.state is not CoordinatorState.ACTIVE:
            return
        if entry is not None and not entry.is_being_deleted:
            yield entry


def _is_there(shard: CoordinatorShard, entry: GroupEntry) -> bool:
    return (
        shard.state is CoordinatorState.ACTIVE
        and shard.groups.get(entry.group.group_id) is entry
        and not entry.is_being_deleted
    )


def expiry_steps(shard: CoordinatorShard, pace: Pace) -> Walk:
    """Removes what has expired from one shard, and with its last offset an empty group."""
    for entry in _entries(shard):
        places = in_chunks(list(entry.offsets.committed))
        for chunk in places if len(places) > 1 else ():
            yield from _expire_some(shard, entry, chunk, pace)
            if not _is_there(shard, entry):
                break
        else:
            yield from _expire(shard, entry, pace)


def _expire(shard: CoordinatorShard, entry: GroupEntry, pace: Pace) -> Walk:
    """A group of few offsets, or what is left of many: in one decision."""
    group, offsets = entry.group, entry.offsets
    if len(offsets.committed) <= TOMBSTONES_PER_BATCH:
        places = list(
            offsets.expired(group, shard.parts.wall_ms(), shard.parts.settings.offsets_retention_ms)
        )
        is_last = len(places) == len(offsets.committed) and not offsets.has_unsettled()
        if is_last and group.state is EMPTY and not group.pending_joins:
            yield from pace.wrote(shard.delete_group(entry).addErrback(_note_failure, shard.index))
        elif places:
            yield from pace.wrote(
                shard.delete_offsets(entry, places).addErrback(_note_failure, shard.index)
            )
    yield from pace.looked_at(1 + len(offsets.committed))


def _expire_some(
    shard: CoordinatorShard, entry: GroupEntry, places: Sequence[TopicPartition], pace: Pace
) -> Walk:
    """Some of many offsets: what has expired is decided and written in one step, so that a
    commit between two steps counts.
    """
    expired = list(
        entry.offsets.expired(
            entry.group, shard.parts.wall_ms(), shard.parts.settings.offsets_retention_ms, places
        )
    )
    if expired:
        yield from pace.wrote(
            shard.delete_offsets(entry, expired).addErrback(_note_failure, shard.index)
        )
    yield from pace.looked_at(len(places))


def forget_topics_steps(shard: CoordinatorShard, topics: dict[str, set[bytes]], pace: Pace) -> Walk:
    """Removes what was committed for deleted topics (ids by name), but not what was committed
    for a later topic of the same name.
    """
    for entry in _entries(shard):
        committed = entry.offsets.committed
        yield from pace.looked_at(1)
        for chunk in in_chunks(list(committed)):
            if not _is_there(shard, entry):
                break
            gone = [
                p
                for p in chunk
                if p[0] in topics
                and p in committed
                and _was_for(committed[p].topic_id, topics[p[0]])
            ]
            if gone:
                yield from pace.wrote(
                    shard.delete_offsets(entry, gone).addErrback(_note_failure, shard.index)
                )
            yield from pace.looked_at(len(chunk))


def _was_for(topic_id: bytes, deleted: set[bytes]) -> bool:
    return topic_id == NULL_UUID or topic_id in deleted


def _note_failure(failure: Failure, index: int) -> None:
    """The next round tries again."""
    _log.warn(
        "offsets of __consumer_offsets-{index} that are to go stay for now: {error}",
        index=index,
        error=failure.value,
    )
