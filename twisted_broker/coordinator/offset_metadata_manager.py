"""The offsets of one shard's groups: OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete, and
their records. Ring 1.

Owns `OffsetMetadataManager`, and who may commit or delete in which state of a group.

1. A commit to an empty group is accepted from anybody without a generation, else only from a member
   of this generation. A commit of a transaction is accepted in any state from a producer that names
   no member, and from a member while its group is CompletingRebalance, too (KIP-447: a member of an
   older generation is fenced).
2. Partitions of one commit succeed or fail together, but for those refused before anything is
   written: they are one batch.
3. Offsets enter `GroupOffsets.committed` when their record is stored, in log order, also when that
   is after their commit was refused because it took too long: until it is decided they count as in
   flight.
4. A fetch of offsets never waits; with `require_stable`, partitions in flight or in an open
   transaction get UNSTABLE_OFFSET_COMMIT.
5. A commit or deletion of very many partitions goes in steps of `OFFSETS_PER_STEP`. Whether the
   client may commit is checked again right before its batch is appended: the group may have changed
   meanwhile.
6. A stored commit of very many enters memory in such steps, too; those that have not entered yet
   count as in flight. What is stored for the same group meanwhile enters after it, so that no
   tombstone overtakes it.
7. Offsets of a transaction are pending in the same way, from their append until their marker is
   stored: `open_transactions` names the groups of each producer that has any. The log refuses
   those that come behind the marker (`log/producer_append.py` 4).

Source: Apache Kafka 4.3.1 `OffsetMetadataManager`, `ClassicGroup.validateOffset*` (KIP-211, 447,
496). Not here: finding the shard; expiry (`offset_cleanup.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred, succeed
from twisted.python.failure import Failure

from twisted_broker.coordinator.classic_group import (
    COMPLETING,
    CONSUMER_PROTOCOL_TYPE,
    EMPTY,
)
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.offsets import check_commit
from twisted_broker.coordinator.coordinator_context import (
    AppendUndecided,
    CoordinatorContext,
    append_error,
)
from twisted_broker.coordinator.group_entry import Group, GroupEntry
from twisted_broker.coordinator.group_offsets import (
    OFFSETS_PER_STEP,
    GroupOffsets,
    TopicPartition,
)
from twisted_broker.coordinator.group_records import (
    NO_EXPIRY,
    NOT_TRANSACTIONAL,
    CommittedOffset,
    KeyValue,
    ProducerIdAndEpoch,
    batch_in_steps,
    batch_of,
    offset_record,
)
from twisted_broker.coordinator.modern_group import ModernGroup
from twisted_broker.coordinator.share.group import ShareGroup
from twisted_broker.coordinator.streams.group import StreamsGroup
from twisted_broker.coordinator.streams.offsets import check_commit as check_streams_commit
from twisted_broker.log.append_info import EndMarker
from twisted_broker.log.verification import Guard
from twisted_broker.settings import LONG_MAX
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.primitives import NULL_UUID

# One batch of tombstones is built in about a millisecond.
TOMBSTONES_PER_BATCH = 500
GROUPS_PER_STEP = 50
RECORDS_PER_STEP = 200  # encoding one costs about as much as two offsets otherwise
Changes = Sequence[tuple[TopicPartition, CommittedOffset | None]]
"""What becomes of each partition's offset: None removes it."""


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """`commit_timestamp_ms` is what the oldest clients may give (OffsetCommit v1); -1: the time at
    which it is written.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: bytes = NULL_UUID
    commit_timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """`retention_ms` is what old clients may send (OffsetCommit v2-4), -1 for the broker's setting.
    `producer`: the one whose transaction it belongs to. `generation` is a member's epoch in a
    consumer group; `knows_member_epochs`: the request's version does.
    """

    group_id: str
    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1
    retention_ms: int = -1
    offsets: tuple[OffsetToCommit, ...] = ()
    unknown_group_error: ErrorCode = ErrorCode.ILLEGAL_GENERATION
    producer: ProducerIdAndEpoch = NOT_TRANSACTIONAL
    knows_member_epochs: bool = False

    @property
    def is_transactional(self) -> bool:
        return self.producer is not NOT_TRANSACTIONAL


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """`committed` None: there is none, or `error` says why it is not shown."""

    topic: str
    partition: int
    error: ErrorCode
    committed: CommittedOffset | None


CommitAnswer = dict[TopicPartition, ErrorCode]


def validate_commit(group: Group, request: CommitRequest) -> None:
    """Raises what keeps this committer from committing."""
    if group.is_dead:
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if isinstance(group, ShareGroup):
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND)
    if isinstance(group, ModernGroup):
        _validate_commit(group, request)
        return
    if request.generation < 0 and group.state is EMPTY:
        return
    if request.generation < 0 and not request.member_id and request.instance_id is None:
        if request.is_transactional:
            return
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
    group.validate_member(request.member_id, request.instance_id)
    if request.generation != group.generation:
        raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
    if group.state is COMPLETING and not request.is_transactional:
        raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)


def _validate_commit(group: ModernGroup, request: CommitRequest) -> None:
    names_nobody = request.generation < 0 and not request.member_id and request.instance_id is None
    if request.is_transactional and names_nobody:
        return
    knows_member_epochs = request.knows_member_epochs or request.is_transactional
    member = request.member_id, request.generation
    try:
        if isinstance(group, ConsumerGroup):
            partitions = ((each.topic_id, each.partition) for each in request.offsets)
            check_commit(group, *member, partitions, knows_member_epochs)
        elif isinstance(group, StreamsGroup):
            named = ((each.topic, each.partition) for each in request.offsets)
            check_streams_commit(group, *member, named, knows_member_epochs)
    except BrokerError as refusal:
        if request.is_transactional and refusal.code is ErrorCode.STALE_MEMBER_EPOCH:
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION) from None
        raise


class OffsetMetadataManager:
    """The offsets of one shard's groups. `append` and `append_end_marker` append to the shard's
    partition. `commits_in_steps`: how many commits of very many offsets are accepted and not in
    flight yet.
    """

    __slots__ = (
        "_append",
        "_append_end_marker",
        "_context",
        "_entering",
        "commits_in_steps",
        "open_transactions",
    )

    def __init__(
        self,
        context: CoordinatorContext,
        append: Callable[[bytes, Guard], Deferred[int]],
        append_end_marker: Callable[[EndMarker], Deferred[int]],
    ) -> None:
        self._context, self._append = context, append
        self._append_end_marker = append_end_marker
        self.commits_in_steps = 0
        self.open_transactions: dict[int, set[str]] = {}
        self._entering: dict[GroupOffsets, deque[tuple[Iterator[None], Deferred[None]]]] = {}

    # commit
    def commit(
        self, entry: GroupEntry, request: CommitRequest, guard: Guard = None
    ) -> Deferred[CommitAnswer]:
        """Stores the offsets of a committer that `validate_commit` has let through; fires with an
        error per partition, fails with BrokerError. `guard`: what verified its transaction.
        """
        answer: CommitAnswer = {}
        changes: dict[TopicPartition, CommittedOffset | None] = {}
        if len(request.offsets) > OFFSETS_PER_STEP:
            done: Deferred[CommitAnswer] = Deferred()
            self._context.turns.start(
                self._commit_steps(entry, request, guard, answer, changes, done)
            )
            return done
        self._sort_out(request, request.offsets, answer, changes)
        if not changes:
            return succeed(answer)
        written = self.write(
            entry.group.group_id,
            entry.offsets,
            list(changes.items()),
            producer=request.producer,
            guard=guard,
        )
        return written.addCallbacks(lambda _: answer, _commit_failed, errbackArgs=(answer, changes))

    def _sort_out(
        self,
        request: CommitRequest,
        offsets: Sequence[OffsetToCommit],
        answer: CommitAnswer,
        changes: dict[TopicPartition, CommittedOffset | None],
    ) -> None:
        """Puts refusals into `answer`, and what is to be written into `changes`."""
        wall_ms = self._context.wall_ms()
        longest = self._context.settings.offset_metadata_max_bytes
        for wanted in offsets:
            topic_partition = (wanted.topic, wanted.partition)
            if len(wanted.metadata) > longest:
                answer[topic_partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                answer[topic_partition] = ErrorCode.NONE
                changes[topic_partition] = _committed(wanted, wall_ms, request.retention_ms)

    def _commit_steps(
        self,
        entry: GroupEntry,
        request: CommitRequest,
        guard: Guard,
        answer: CommitAnswer,
        changes: dict[TopicPartition, CommittedOffset | None],
        done: Deferred[CommitAnswer],
    ) -> Iterator[None]:
        self.commits_in_steps += 1
        try:
            for start in range(0, len(request.offsets), OFFSETS_PER_STEP):
                some = request.offsets[start : start + OFFSETS_PER_STEP]
                self._sort_out(request, some, answer, changes)
                yield
            rows = list(changes.items())
            records = (
                offset_record(entry.group.group_id, *topic_partition, new)
                for topic_partition, new in rows
            )
            batch = yield from batch_in_steps(
                records, self._context.wall_ms(), RECORDS_PER_STEP, request.producer
            )
            validate_commit(entry.group, request)
            if entry.is_being_deleted:
                raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        except Exception:
            done.errback()
            return
        finally:
            self.commits_in_steps -= 1
        if not rows:
            done.callback(answer)
            return
        written = self._write_batch(
            entry.group.group_id,
            entry.offsets,
            rows,
            lambda: batch,
            _ignore,
            request.producer,
            guard,
        )
        written.addCallbacks(
            lambda _: answer, _commit_failed, errbackArgs=(answer, changes)
        ).addCallback(done.callback)

    # delete
    def delete(
        self, entry: GroupEntry, partitions: Sequence[TopicPartition]
    ) -> Deferred[dict[TopicPartition, ErrorCode]]:
        """Deletes the offsets of topics that no member is subscribed to; fires with an error per
        partition, fails with BrokerError when storage refuses.
        """
        answer: dict[TopicPartition, ErrorCode] = {}
        done: Deferred[dict[TopicPartition, ErrorCode]] = Deferred()
        self._context.turns.start(self._delete_steps(entry, partitions, answer, done))
        return done

    def _delete_steps(
        self,
        entry: GroupEntry,
        partitions: Sequence[TopicPartition],
        answer: dict[TopicPartition, ErrorCode],
        done: Deferred[dict[TopicPartition, ErrorCode]],
    ) -> Iterator[None]:
        """Each step decides about some and appends their tombstones; none is waited for before
        all are appended.
        """
        group, offsets = entry.group, entry.offsets
        failures: list[Failure] = []
        writes: list[Deferred[None]] = []
        for number, some in enumerate(in_batches(partitions)):
            if number:
                yield
                if entry.is_being_deleted or group.is_dead:
                    done.errback(BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                    return
            for each in some:
                answer[each] = (
                    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                    if group.is_subscribed_to(each[0])
                    else ErrorCode.NONE
                )
            present = [
                each
                for each in some
                if not answer[each] and (each in offsets.committed or offsets.is_unstable(each))
            ]
            if present:
                writes.append(self.write_tombstones(entry, present).addErrback(failures.append))
        DeferredList(writes).addCallback(
            lambda _: (
                done.errback(BrokerError(append_error(failures[0])))
                if failures
                else done.callback(answer)
            )
        )

    # records
    def write_tombstones(
        self, entry: GroupEntry, partitions: Sequence[TopicPartition]
    ) -> Deferred[None]:
        """Of `TOMBSTONES_PER_BATCH` partitions at most, in one batch; fails with BrokerError."""
        return self.write(
            entry.group.group_id, entry.offsets, [(each, None) for each in partitions]
        )

    def write(
        self,
        group_id: str,
        offsets: GroupOffsets,
        changes: Changes,
        tail: Sequence[KeyValue] = (),
        on_decided: Callable[[bool], None] | None = None,
        producer: ProducerIdAndEpoch = NOT_TRANSACTIONAL,
        guard: Guard = None,
    ) -> Deferred[None]:
        """Appends the changes and then `tail` in one batch; `offsets` follow when it is stored.
        Fails with BrokerError.

        `on_decided(is_stored)` is called once, at the latest when the partition is led elsewhere;
        that may be long after the result.
        """
        return self._write_batch(
            group_id,
            offsets,
            changes,
            lambda: batch_of(
                [
                    offset_record(group_id, *topic_partition, committed)
                    for topic_partition, committed in changes
                ]
                + list(tail),
                self._context.wall_ms(),
                producer,
            ),
            on_decided or _ignore,
            producer,
            guard,
        )

    def _decided(self, group_id: str, offsets: GroupOffsets, producer_id: int) -> None:
        """Forgets the group for this producer when none of its offsets waits for a marker: they
        were refused, or have entered after the marker that ended them.
        """
        names = self.open_transactions.get(producer_id)
        if names is not None and not offsets.is_in_transaction(producer_id):
            names.discard(group_id)
            if not names:
                del self.open_transactions[producer_id]

    def _write_batch(
        self,
        group_id: str,
        offsets: GroupOffsets,
        changes: Changes,
        make_batch: Callable[[], bytes],
        on_decided: Callable[[bool], None],
        producer: ProducerIdAndEpoch = NOT_TRANSACTIONAL,
        guard: Guard = None,
    ) -> Deferred[None]:
        if producer is not NOT_TRANSACTIONAL:
            # Before the append: its marker may be stored before the append is decided.
            self.open_transactions.setdefault(producer.id, set()).add(group_id)
        for topic_partition, _ in changes:
            offsets.start_write(topic_partition, producer.id)
        written = maybeDeferred(lambda: self._append(make_batch(), guard))

        def decide(result: int | Failure) -> Deferred[None] | None:
            if not isinstance(result, Failure):
                return self._enter(group_id, offsets, changes, result, on_decided, producer.id)
            for topic_partition, _ in changes:
                offsets.end_write(topic_partition, producer.id)
            self._decided(group_id, offsets, producer.id)
            on_decided(False)
            return None

        def settle(result: int | Failure) -> Any:
            if isinstance(result, Failure):
                if isinstance(result.value, AppendUndecided):
                    # The answer is an error now, but the record may still be replicated: memory
                    # follows the log, so it waits for what becomes of it.
                    result.value.outcome().addBoth(decide)
                else:
                    decide(result)
                return result
            return decide(result)

        entered: Deferred[None] = written.addBoth(settle)
        return entered

    def _enter(
        self,
        group_id: str,
        offsets: GroupOffsets,
        changes: Changes,
        base_offset: int,
        on_decided: Callable[[bool], None],
        producer_id: int,
    ) -> Deferred[None] | None:
        """Takes a stored batch over; at once unless it, or one before it, is large."""
        steps = _enter_steps(offsets, changes, base_offset, producer_id)
        waiting = self._entering.get(offsets)

        def over(_: object = None) -> None:
            self._decided(group_id, offsets, producer_id)
            on_decided(True)

        if waiting is None and len(changes) <= OFFSETS_PER_STEP:
            for _ in steps:
                pass
            over()
            return None
        entered: Deferred[None] = Deferred()
        entered.addCallback(over)
        if waiting is not None:
            waiting.append((steps, entered))
        else:
            self._entering[offsets] = deque([(steps, entered)])
            self._context.turns.start(self._enter_in_turn(offsets))
        return entered

    def _enter_in_turn(self, offsets: GroupOffsets) -> Iterator[None]:
        waiting = self._entering[offsets]
        while waiting:
            steps, entered = waiting[0]
            yield from steps
            waiting.popleft()
            entered.callback(None)
            yield
        del self._entering[offsets]

    # the end of a transaction
    def complete_transaction(
        self, groups: Mapping[str, GroupEntry], marker: EndMarker
    ) -> Deferred[None]:
        """Appends the producer's marker; when it is stored, offsets that lie before it are
        committed, or gone. Fires then; fails with BrokerError.
        """

        def ended(marker_offset: int) -> Deferred[None]:
            done: Deferred[None] = Deferred()
            self._context.turns.start(self._end_transaction(groups, marker, marker_offset, done))
            return done

        def undecided(failure: Failure) -> Failure:
            # The answer is an error, and the marker comes again; memory follows the log.
            if isinstance(failure.value, AppendUndecided):
                failure.value.outcome().addCallbacks(ended, lambda _: None)
            return failure

        return maybeDeferred(self._append_end_marker, marker).addCallbacks(ended, undecided)

    def _end_transaction(
        self,
        groups: Mapping[str, GroupEntry],
        marker: EndMarker,
        marker_offset: int,
        done: Deferred[None],
    ) -> Iterator[None]:
        producer_id = marker.producer_id
        names = self.open_transactions.get(producer_id, set())
        for number, group_id in enumerate(list(names), 1):
            entry = groups.get(group_id)
            if entry is not None:
                yield from entry.offsets.end_transaction_in_steps(
                    producer_id, marker.is_commit, marker_offset
                )
            if entry is None or not entry.offsets.is_in_transaction(producer_id):
                names.discard(group_id)
            if number % GROUPS_PER_STEP == 0:
                yield
        if not names and self.open_transactions.get(producer_id) is names:
            del self.open_transactions[producer_id]
        done.callback(None)


def _enter_steps(
    offsets: GroupOffsets, changes: Changes, base_offset: int, producer_id: int
) -> Iterator[None]:
    for start in range(0, len(changes), OFFSETS_PER_STEP):
        if start:
            yield
        some = changes[start : start + OFFSETS_PER_STEP]
        for record_offset, (topic_partition, committed) in enumerate(some, base_offset + start):
            # First: with its last write in flight the markers that are kept for it go.
            offsets.replay(topic_partition, committed, record_offset, producer_id)
            offsets.end_write(topic_partition, producer_id)


def _ignore(is_stored: bool) -> None:
    """For writes whose caller does not wait for the decision."""


def _committed(wanted: OffsetToCommit, wall_ms: int, retention_ms: int) -> CommittedOffset:
    # At most what a record holds: 2^63-1 is how a client says "never".
    expire_ms = NO_EXPIRY if retention_ms < 0 else min(wall_ms + retention_ms, LONG_MAX)
    commit_ms = wall_ms if wanted.commit_timestamp_ms < 0 else wanted.commit_timestamp_ms
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


def fetch_offsets(
    entry: GroupEntry | None,
    partitions: Sequence[tuple[str, int, bytes]],
    require_stable: bool,
) -> list[FetchedOffset]:
    """The offsets of (topic, partition, topic id or NULL_UUID) each, in order."""
    if entry is None or entry.group.is_dead:
        return [
            FetchedOffset(topic, partition, ErrorCode.NONE, None)
            for topic, partition, _ in partitions
        ]
    fetched = []
    for topic, partition, topic_id in partitions:
        topic_partition = (topic, partition)
        if require_stable and entry.offsets.is_unstable(topic_partition):
            fetched.append(FetchedOffset(topic, partition, ErrorCode.UNSTABLE_OFFSET_COMMIT, None))
        else:
            fetched.append(
                FetchedOffset(
                    topic, partition, ErrorCode.NONE, entry.offsets.get(topic_partition, topic_id)
                )
            )
    return fetched


def check_delete_offsets(entry: GroupEntry | None) -> GroupEntry:
    """The entry, if offsets may be deleted from it; raises GROUP_ID_NOT_FOUND or
    NON_EMPTY_GROUP.
    """
    if entry is None or entry.group.is_dead or isinstance(entry.group, ShareGroup):
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND)
    group = entry.group
    is_of_members = not isinstance(group, ModernGroup) and not group.is_empty
    if is_of_members and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
    return entry


def check_delete_group(entry: GroupEntry | None) -> GroupEntry:
    """The group, which may be deleted. Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
    if entry is None or entry.group.is_dead:
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND)
    if not entry.group.is_empty:
        raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
    return entry


def in_batches(partitions: Sequence[TopicPartition]) -> list[Sequence[TopicPartition]]:
    """Parts of `TOMBSTONES_PER_BATCH` partitions at most."""
    return [
        partitions[start : start + TOMBSTONES_PER_BATCH]
        for start in range(0, len(partitions), TOMBSTONES_PER_BATCH)
    ]
