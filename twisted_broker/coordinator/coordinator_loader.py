"""Reading a partition of `__consumer_offsets` back into groups, in steps. Ring 1.

Owns `load_steps` and `view_steps`, generators: each step is a piece of work of a millisecond or
two, and others run between two of them; and, for the transaction log too, `read_partition` with
`LogReplay`.

1. The log is replayed up to the end that it had when the load began, batch after batch, last value
   per key winning. A read may end in the middle of a batch, which the next read begins with; a
   batch larger than a read comes whole.
2. Only the last value of a key is decoded: values wait as bytes, of about `PENDING_KEYS` keys at
   most. While a transaction is open, records are decoded one by one in the order of the log: an
   offset's tombstone also removes what open transactions wrote for its partition before it.
3. Offsets of a transaction stay apart until its marker; those of an aborted one never show.
4. Records that cannot be read are counted and skipped, and an older value of the same key counts:
   where there is such a record, the log is read once more, and every record is decoded in its turn.
   A batch that cannot be read ends the load with BrokerError.
5. The garbage collector does not walk over what a large load makes (`freeze_loaded`). When the
   partition is led elsewhere before the load ends, what it made is freed in steps (`forget_steps`).
6. What is read waits in dicts that grow in small steps (`bucket_dict.py`), and is taken out of them
   as groups are made. Groups that committed the same partition share its name.
7. Where no descriptor is free for a read it is tried again a second later: that passes, and a
   partition that is given up is not served until a restart.
8. Groups appear only when all is read; the runtime then starts the sessions of those with
   members.
9. Records of the newer kinds of groups change a group as they did when they were written; where a
   name has groups of two kinds, one line says so, and of the kinds in `KINDS` the first is served.
10. A view is the groups of what lies below the high watermark. Of what lies above it only the keys
   are taken: such an offset counts as in flight, as between append and replication; of such groups
   the names are kept. The offsets of a transaction whose marker lies above it stay open.

Source: Apache Kafka 4.3.1 `CoordinatorLoaderImpl`, `GroupMetadataManager.onLoaded`,
`OffsetMetadataManager.replay*`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from twisted_broker.coordinator.bucket_dict import BucketDict
from twisted_broker.coordinator.classic_group import ClassicGroup, group_from_metadata
from twisted_broker.coordinator.consumer.group import ConsumerGroup
from twisted_broker.coordinator.consumer.records import decode_record
from twisted_broker.coordinator.coordinator_context import IOffsetsStore
from twisted_broker.coordinator.coordinator_shard import CoordinatorShard
from twisted_broker.coordinator.group_entry import GroupEntry
from twisted_broker.coordinator.group_offsets import GroupOffsets, TopicPartition
from twisted_broker.coordinator.group_records import (
    CommittedOffset,
    GroupMetadata,
    GroupRecord,
    MalformedRecord,
    OffsetRecord,
    read_offset,
    read_record,
)
from twisted_broker.coordinator.group_replay import GroupReplay
from twisted_broker.coordinator.modern_group import ModernGroup
from twisted_broker.coordinator.record_codec import StoredRecord
from twisted_broker.coordinator.share.group import ShareGroup
from twisted_broker.coordinator.share.records import decode_record as decode_share_record
from twisted_broker.coordinator.streams.group import StreamsGroup
from twisted_broker.coordinator.streams.records import decode_record as decode_streams_record
from twisted_broker.garbage_collection import freeze_loaded
from twisted_broker.interfaces import IClock
from twisted_broker.log.errors import OutOfDescriptors
from twisted_broker.topic_names import OFFSETS_TOPIC
from twisted_broker.turns import Steps
from twisted_broker.wire.batch_fields import (
    ATTRIBUTES,
    BASE_OFFSET,
    LAST_OFFSET_DELTA,
    LENGTH,
    RECORDS_COUNT,
)
from twisted_broker.wire.control_batch import ABORT, COMMIT, control_record_type
from twisted_broker.wire.errors import BrokerError, ErrorCode, WireError
from twisted_broker.wire.message_set import MessageView
from twisted_broker.wire.records import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    MAX_OUTPUT_BYTES,
    TRANSACTIONAL_FLAG,
    BatchView,
    is_incomplete,
    read_batch_header,
    walk_key_values,
)

# One read, and the records of about one turn.
SLICE_BYTES = 128 * 1024
# Steps of about a millisecond each (`turns.py`, invariant 4).
RECORDS_PER_STEP = 256
VALUES_PER_STEP = 64
GROUPS_PER_STEP = 64
FORGOTTEN_PER_STEP = 500
# Only the last value of a key is decoded; so many undecoded ones bound the memory of a partition
# that was never compacted.
PENDING_KEYS = 20_000
FREEZE_EVERY = 1_000
# Descriptors come free when clients leave.
AGAIN_SECONDS = 1.0
OFFSET_MAX = 2**63 - 1
# Groups that commit the same partitions hold one name of each of so many.
SHARED_PARTITIONS = 20_000
_PARTITION_BYTES = 4  # at the end of an offset's key
Decode = Callable[[bytes | None, bytes | None], StoredRecord | None]
_UNUSUAL = CODEC_MASK | CONTROL_FLAG | TRANSACTIONAL_FLAG
# The kinds of groups that are not classic, and what reads their records.
KINDS: tuple[tuple[type[ModernGroup], Decode], ...] = (
    (ConsumerGroup, decode_record),
    (ShareGroup, decode_share_record),
    (StreamsGroup, decode_streams_record),
)
_logger = Logger()
R = TypeVar("R", bound="LogReplay")


class LogReplay:
    """What the records before offset `position` say; `_replay_record` applies one.

    `one_by_one`: every record is decoded in its turn.
    """

    __slots__ = ("_latest", "_one_by_one", "_until_step", "position", "skipped", "until")

    def __init__(self, position: int, one_by_one: bool = False) -> None:
        self.position = position
        self.until = OFFSET_MAX  # no batch that begins there or behind
        self.skipped = 0
        self._latest: dict[bytes | None, tuple[int, bytes | None]] = {}
        self._one_by_one = one_by_one
        self._until_step = RECORDS_PER_STEP

    def held(self) -> Sequence[BucketDict[str, Any]]:
        """What was read."""
        raise NotImplementedError

    def _is_at_once(self) -> bool:
        """Whether a record is decoded in its turn, instead of the last one of its key."""
        return self._one_by_one

    def _replay_record(
        self, key: bytes | None, value: bytes | None, record_offset: int, producer_id: int
    ) -> None:
        raise NotImplementedError

    def replay(self, data: bytes) -> Iterator[None]:
        """The whole batches in `data`, in steps."""
        position, end, latest = 0, len(data), self._latest
        while end - position >= HEADER_BYTES or not is_incomplete(data, position, end):
            if data[position + MAGIC_AT] < MAGIC:
                if is_incomplete(data, position, end):
                    break
                position = yield from self._replay_old(data, position)
                continue
            header = read_batch_header(data, position)
            batch_end = position + LOG_OVERHEAD + header[LENGTH]
            if batch_end > end or header[BASE_OFFSET] >= self.until:
                break
            if header[ATTRIBUTES] & _UNUSUAL:
                yield from self._replay_unusual(BatchView(data, position))
            else:
                base_offset, at_once = header[BASE_OFFSET], self._is_at_once()
                for delta, key, value in walk_key_values(
                    data, position + HEADER_BYTES, batch_end, header[RECORDS_COUNT]
                ):
                    if at_once:
                        self._replay_record(key, value, base_offset + delta, -1)
                    else:
                        latest[key] = (base_offset + delta, value)
                    self._until_step -= 1
                    if not self._until_step:
                        self._until_step = RECORDS_PER_STEP
                        yield
            if len(latest) >= PENDING_KEYS:
                yield from self.decode_latest()
            self.position = max(self.position, header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] + 1)
            position = batch_end

    def _replay_old(self, data: bytes, position: int) -> Generator[None, None, int]:
        """A message or wrapper that an old broker wrote; where the next one begins."""
        message = MessageView(data, position)
        for number, record in enumerate(message.records(MAX_OUTPUT_BYTES), 1):
            if self._is_at_once():
                self._replay_record(record.key, record.value, record.offset, -1)
            else:
                self._latest[record.key] = (record.offset, record.value)
            if number % RECORDS_PER_STEP == 0:
                yield
        if len(self._latest) >= PENDING_KEYS:
            yield from self.decode_latest()
        self.position = max(self.position, message.last_offset + 1)
        return position + message.size_in_bytes

    def _replay_unusual(self, batch: BatchView) -> Iterator[None]:
        """A control batch, one of a transaction, a compressed one."""
        # What was put off is older than this batch: it must be applied first.
        if batch.is_control or batch.is_transactional:
            yield from self.decode_latest()
        if batch.is_control:
            self._end_transaction(batch)
            return
        producer_id = batch.producer_id if batch.is_transactional else -1
        at_once = batch.is_transactional or self._is_at_once()
        for number, (delta, key, value) in enumerate(batch.key_values(), 1):
            if at_once:
                self._replay_record(key, value, batch.base_offset + delta, producer_id)
            else:
                self._latest[key] = (batch.base_offset + delta, value)
            if number % RECORDS_PER_STEP == 0:
                yield

    def _end_transaction(self, batch: BatchView) -> None:
        """A control batch: nothing, where no record belongs to a transaction."""

    def decode_latest(self) -> Iterator[None]:
        """Decodes the last value of each key."""
        for number, (key, (record_offset, value)) in enumerate(self._latest.items(), 1):
            self._replay_record(key, value, record_offset, -1)
            if number % FREEZE_EVERY == 0:
                freeze_loaded()
            if number % VALUES_PER_STEP == 0:
                yield
        self._latest.clear()


class _Replay(LogReplay):
    """Groups and their offsets."""

    __slots__ = (
        "_name",
        "_named",
        "_partitions",
        "group_metadata",
        "modern_groups",
        "offsets",
        "open_transactions",
    )

    def __init__(self, position: int, one_by_one: bool = False) -> None:
        super().__init__(position, one_by_one)
        self.group_metadata: BucketDict[str, GroupMetadata] = BucketDict()
        self.modern_groups = [GroupReplay(kind) for kind, _ in KINDS]
        self.offsets: BucketDict[str, GroupOffsets] = BucketDict()
        self.open_transactions: dict[int, set[str]] = {}
        self._partitions: dict[TopicPartition, TopicPartition] = {}
        # Group and topic of the last offset's key, as bytes, and what they name: a commit's records
        # follow each other. No group's offsets are replaced while a log is replayed.
        self._name = b""
        self._named = "", "", GroupOffsets()

    def held(self) -> Sequence[BucketDict[str, Any]]:
        return self.group_metadata, *(each.groups for each in self.modern_groups), self.offsets

    def _is_at_once(self) -> bool:
        return self._one_by_one or bool(self.open_transactions)

    def _replay_record(
        self, key: bytes | None, value: bytes | None, record_offset: int, producer_id: int
    ) -> None:
        try:
            if key is not None and key[:-_PARTITION_BYTES] == self._name != b"":
                group_id, topic, offsets = self._named
                number = int.from_bytes(key[-_PARTITION_BYTES:], "big", signed=True)
                committed = read_offset(value, record_offset)
                self._replay_offset(
                    offsets, group_id, (topic, number), committed, record_offset, producer_id
                )
                return
            read = read_record(key, value, record_offset)
        except (MalformedRecord, WireError):
            self.skipped += 1
            return
        if isinstance(read, GroupRecord):
            if read.value is None:
                self.group_metadata.pop(read.group_id, None)
            else:
                self.group_metadata[read.group_id] = read.value
        elif isinstance(read, OffsetRecord):
            found = self.offsets.get(read.group_id)
            if found is None:
                found = self.offsets[read.group_id] = GroupOffsets()
            if key is not None:
                self._name = key[:-_PARTITION_BYTES]
                self._named = read.group_id, read.topic, found
            partition = read.topic, read.partition
            self._replay_offset(
                found, read.group_id, partition, read.value, record_offset, producer_id
            )
        else:
            self._replay_modern_group(key, value)

    def _replay_modern_group(self, key: bytes | None, value: bytes | None) -> None:
        try:
            for (_, decode), replay in zip(KINDS, self.modern_groups, strict=True):
                record = decode(key, value)
                if record is not None:
                    replay.apply(record)
                    return
        except MalformedRecord:
            self.skipped += 1

    def _replay_offset(
        self,
        offsets: GroupOffsets,
        group_id: str,
        partition: TopicPartition,
        committed: CommittedOffset | None,
        record_offset: int,
        producer_id: int,
    ) -> None:
        partition = self._partitions.setdefault(partition, partition)
        if len(self._partitions) > SHARED_PARTITIONS:
            self._partitions.clear()
        if committed is None:
            offsets.remove(partition, record_offset)
        elif producer_id < 0:
            offsets.put(partition, committed)
        else:
            offsets.put_transactional(producer_id, partition, committed)
            self.open_transactions.setdefault(producer_id, set()).add(group_id)

    def _end_transaction(self, batch: BatchView) -> None:
        for record in batch.records():
            kind = control_record_type(record.key)
            if kind in (ABORT, COMMIT):
                for group_id in self.open_transactions.pop(batch.producer_id, ()):
                    self.offsets[group_id].end_transaction(batch.producer_id, kind == COMMIT)


def forget_steps(replays: Iterable[LogReplay]) -> Iterator[None]:
    """Frees what was read and not taken over in steps: a million groups would hold one turn too
    long.
    """
    for replay in replays:
        for held in replay.held():
            while held:
                for _ in range(min(FORGOTTEN_PER_STEP, len(held))):
                    _, value = held.popitem()
                    if isinstance(value, GroupOffsets):
                        yield from value.forget_steps()
                yield


def load_steps(shard: CoordinatorShard, replays: list[LogReplay]) -> Steps:
    """Fills `shard.groups` step by step; the caller makes the shard active at the end. `replays`:
    as in `read_partition`.

    Raises BrokerError.
    """
    context = shard.context
    replayed = yield from read_partition(
        context.store,
        shard.index,
        context.settings.load_buffer_bytes,
        _Replay,
        OFFSETS_TOPIC,
        replays,
        context.clock,
    )
    shard.offsets.open_transactions = replayed.open_transactions
    yield from _create_groups(shard, replayed)


class _Keys(LogReplay):
    """Which groups have records, and which offsets: tombstones count, too."""

    __slots__ = ("groups", "offsets")

    def __init__(self, position: int, one_by_one: bool = False) -> None:
        super().__init__(position, one_by_one)
        self.groups: set[str] = set()
        self.offsets: dict[tuple[str, TopicPartition], None] = {}

    def held(self) -> Sequence[BucketDict[str, Any]]:
        return ()

    def _replay_record(
        self, key: bytes | None, value: bytes | None, record_offset: int, producer_id: int
    ) -> None:
        try:
            read = read_record(key, value, record_offset)
        except (MalformedRecord, WireError):
            return  # it will not count then either
        if isinstance(read, GroupRecord):
            self.groups.add(read.group_id)
        elif isinstance(read, OffsetRecord):
            self.offsets[read.group_id, (read.topic, read.partition)] = None
        else:
            self._note_modern_group(key, value)

    def _note_modern_group(self, key: bytes | None, value: bytes | None) -> None:
        try:
            records: list[Any] = [decode(key, value) for _, decode in KINDS]
        except MalformedRecord:
            return
        self.groups.update(record[0].group_id for record in records if record is not None)


def view_steps(shard: CoordinatorShard, replays: list[LogReplay]) -> Steps:
    """Fills `shard.groups` with what is committed, and notes what is not yet. `replays`: as in
    `read_partition`.

    Raises BrokerError.
    """
    context = shard.context
    most_bytes = context.settings.load_buffer_bytes
    high_watermark = context.store.high_watermark(shard.index)
    replayed = yield from read_partition(
        context.store,
        shard.index,
        most_bytes,
        _Replay,
        OFFSETS_TOPIC,
        replays,
        context.clock,
        until=high_watermark,
    )
    yield from _create_groups(shard, replayed)
    undecided = yield from read_partition(
        context.store,
        shard.index,
        most_bytes,
        _Keys,
        OFFSETS_TOPIC,
        replays,
        context.clock,
        begin=high_watermark,
    )
    for number, (group_id, partition) in enumerate(undecided.offsets, 1):
        entry = shard.groups.get(group_id)
        if entry is None:
            entry = shard.create(group_id)
        entry.offsets.start_write(partition)
        if number % RECORDS_PER_STEP == 0:
            yield None
    shard.undecided_groups = undecided.groups


def read_partition(
    store: IOffsetsStore,
    index: int,
    most_bytes: int,
    replay: type[R],
    topic: str,
    replays: list[LogReplay],
    clock: IClock,
    begin: int = 0,
    until: int = OFFSET_MAX,
) -> Generator[Deferred[None] | None, None, R]:
    """Everything in the partition's log as a `replay`, or what lies between two offsets, read in
    slices of `most_bytes` at most. It is put into `replays` when it begins: a caller that gives up
    in between must empty it. A Deferred that this yields is to be waited for.

    Raises BrokerError.
    """
    start, end = store.bounds(index)
    start, end = max(start, begin), min(end, until)
    if start < end:
        # The caller is in the middle of a change of roles: reading comes in a turn of its own.
        yield None
    replayed = replay(start)
    replayed.until = until
    replays.append(replayed)
    yield from _read(store, index, topic, most_bytes, replayed, end, clock)
    if replayed.skipped:
        yield from forget_steps([replayed])
        replayed = replay(start, one_by_one=True)
        replayed.until = until
        replays.append(replayed)
        yield from _read(store, index, topic, most_bytes, replayed, end, clock)
        _logger.warn(
            "{topic}-{index}: {count} unreadable records skipped",
            topic=topic,
            index=index,
            count=replayed.skipped,
        )
    return replayed


def _read(
    store: IOffsetsStore,
    index: int,
    topic: str,
    most_bytes: int,
    replayed: LogReplay,
    end: int,
    clock: IClock,
) -> Iterator[Deferred[None] | None]:
    slice_bytes, is_said = min(SLICE_BYTES, most_bytes), False
    while replayed.position < end:
        before = replayed.position
        try:
            data = store.read(index, before, slice_bytes)
        except OutOfDescriptors as error:
            if not is_said:
                is_said = True
                _logger.warn(
                    "{topic}-{index} is not read for now, retrying: {error}",
                    topic=topic,
                    index=index,
                    error=error,
                )
            yield deferLater(clock, AGAIN_SECONDS)  # type: ignore[arg-type]
            continue
        except BrokerError as error:
            start = store.bounds(index)[0]
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE or start <= before:
                raise
            replayed.position = start  # retention moved the start meanwhile
            continue
        yield from replayed.replay(data)
        if replayed.position == before:
            break  # compaction took the tail
        yield None
    yield from replayed.decode_latest()


def _create_groups(shard: CoordinatorShard, replayed: _Replay) -> Iterator[None]:
    """Empties what was replayed: a million of them must not all go in one step at the end."""
    group_metadata, offsets = replayed.group_metadata, replayed.offsets
    number = 0
    for replay in replayed.modern_groups:
        replay.finish()
        groups = replay.groups
        for part in groups.parts():
            for name in part:
                group = groups.pop(name)
                if name in shard.groups or group_metadata.pop(name, None) is not None:
                    _logger.error(
                        "__consumer_offsets-{index} has groups of two kinds named {name}; the "
                        "{kind} group is served",
                        index=shard.index,
                        name=name,
                        kind=group.group_type if name not in shard.groups else "other",
                    )
                if name not in shard.groups:
                    shard.load_modern_group(group, offsets.pop(name, None))
                number += 1
                if number % GROUPS_PER_STEP == 0:
                    yield
    for part in group_metadata.parts():
        for name in part:
            metadata = group_metadata.pop(name)
            _create_group(shard, name, metadata, offsets.pop(name, None))
            number += 1
            if number % FREEZE_EVERY == 0:
                freeze_loaded()
            if number % GROUPS_PER_STEP == 0 or _is_large(metadata):
                yield
    for part in offsets.parts():
        for name in part:
            held = offsets.pop(name)
            if not held.is_empty():
                _create_group(shard, name, None, held)
            number += 1
            if number % FREEZE_EVERY == 0:
                freeze_loaded()
            if number % GROUPS_PER_STEP == 0:
                yield


def _is_large(metadata: GroupMetadata) -> bool:
    return len(metadata.members) > GROUPS_PER_STEP


def _create_group(
    shard: CoordinatorShard, name: str, metadata: GroupMetadata | None, offsets: GroupOffsets | None
) -> None:
    shard.groups[name] = GroupEntry(_group(shard, name, metadata), offsets)


def _group(shard: CoordinatorShard, group_id: str, metadata: GroupMetadata | None) -> ClassicGroup:
    wall_ms = shard.context.wall_ms()
    if metadata is None:
        return ClassicGroup(group_id, wall_ms)
    try:
        return group_from_metadata(metadata, wall_ms)
    except ValueError as error:
        _logger.warn(
            "__consumer_offsets-{index}: {error}; the group starts empty",
            index=shard.index,
            error=error,
        )
        return ClassicGroup(group_id, wall_ms)
