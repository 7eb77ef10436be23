"""The operations that can wait, and when each need not wait any longer.

Owns the conditions of a delayed produce, a delayed fetch and a delayed DeleteRecords, and the
outcomes they complete.

1. A condition is tested any number of times. A partition of a produce or DeleteRecords that is
   satisfied is not tested again; a fetch tests all of its partitions each time.
2. A long request appends to its partitions one after another. The test sees changes of a partition
   that came before the request's end: each outcome holds its `Partition`, and that of an append
   the `leadership_generation` at the append.
3. Time-out is an answer too: what is not satisfied gets REQUEST_TIMED_OUT; a fetch is simply read
   again.

What wakes them: an event of a partition -> an effect in `Effects.event_table` ->
`Purgatory.check_and_complete(partition)` -> `is_complete` here. A metadata delta wakes
DeleteRecords, too (`check_all`). A fetch is also woken through its session, by the first
event of an idle partition (`idle_partitions`).

Source: RL 1.7, 1.9, 2.8; Kafka's `DelayedProduce`, `DelayedFetch`, `DelayedDeleteRecords`. Not
here: waiting (`purgatory`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.append_info import RecordError
from twisted_broker.log.offset_metadata import LogOffsetMetadata
from twisted_broker.replication.fetch_session import SESSIONLESS, FetchContext
from twisted_broker.replication.partition.fetch_data import (
    LOG_END,
    FetchParams,
    FetchPartitionRequest,
    FetchPartitionResult,
)
from twisted_broker.replication.partition.partition import Partition, is_registered
from twisted_broker.wire.errors import BrokerError, ErrorCode

PartitionOf = Callable[[TopicPartition], Partition]
"""Finds a partition held here; raises `BrokerError` (unknown, not here, offline)."""
Throttles = Callable[[Partition, FetchParams], bool]
"""Whether a follower gets no records of a partition now."""


def _nobody(partition: Partition, params: FetchParams) -> bool:
    return False


class Outcome(Protocol):
    """What a request's outcome for one partition has in common."""

    topic_partition: TopicPartition
    error: ErrorCode
    partition: Partition | None


OutcomeT = TypeVar("OutcomeT", bound=Outcome)


class AppendOutcome:
    """What became of one partition's records.

    Offsets and times are -1 where nothing was appended; `error` may change while it waits.
    `partition`: to which it was appended; None: the one that the first test finds.
    """

    __slots__ = (
        "base_offset",
        "error",
        "error_message",
        "last_offset",
        "leadership_generation",
        "log_append_time_ms",
        "log_start_offset",
        "partition",
        "record_errors",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        error: ErrorCode,
        base_offset: int = -1,
        last_offset: int = -1,
        log_append_time_ms: int = -1,
        log_start_offset: int = -1,
        error_message: str | None = None,
        record_errors: Sequence[RecordError] = (),
        partition: Partition | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.error = error
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.error_message = error_message
        self.record_errors = record_errors
        self.partition = partition
        self.leadership_generation = 0 if partition is None else partition.leadership_generation

    def again(self) -> AppendOutcome:
        """To wait for the same records once more."""
        made = AppendOutcome(
            self.topic_partition,
            ErrorCode.NONE,
            self.base_offset,
            self.last_offset,
            partition=self.partition,
        )
        made.leadership_generation = self.leadership_generation  # as of the append
        return made

    def __repr__(self) -> str:
        return f"<{self.topic_partition} {self.error.name} {self.base_offset}..{self.last_offset}>"


class DelayedOutcomes(Generic[OutcomeT]):
    """Waits for every partition of a request: an outcome leaves when it is satisfied; one with an
    error is not waited for.
    """

    __slots__ = ("_first", "_partition_of", "_waiting")

    def __init__(self, outcomes: Sequence[OutcomeT], partition_of: PartitionOf) -> None:
        self._partition_of = partition_of
        self._first: dict[TopicPartition, Partition] = {}
        self._waiting = [outcome for outcome in outcomes if outcome.error == ErrorCode.NONE]

    @property
    def keys(self) -> list[TopicPartition]:
        return [outcome.topic_partition for outcome in self._waiting]

    @property
    def unsatisfied(self) -> Sequence[OutcomeT]:
        """What it waited for when it was last tried."""
        return self._waiting

    def is_complete(self, changed: Hashable = None) -> bool:
        self._waiting = [outcome for outcome in self._waiting if not self._satisfied(outcome)]
        return not self._waiting

    def _same(self, outcome: OutcomeT) -> Partition:
        """The outcome's partition, or the one that was there at the first test. Raises BrokerError
        when it is gone, or another one of that name is there.
        """
        name = outcome.topic_partition
        found = self._partition_of(name)
        if (outcome.partition or self._first.setdefault(name, found)) is not found:
            # Its topic was deleted and made again: the other log's offsets say nothing of it.
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{name} was made anew")
        return found

    def _satisfied(self, outcome: OutcomeT) -> bool:
        """Whether its partition need not be waited for any longer; then the outcome says what
        became of it.
        """
        raise NotImplementedError


class DelayedProduce(DelayedOutcomes[AppendOutcome]):
    """RL 1.7: waits until the high watermark passed what was appended to each partition; with
    acks=1 until the leader synced it, where `flush.messages` requires that.
    """

    __slots__ = ("acks",)

    def __init__(
        self, outcomes: Sequence[AppendOutcome], partition_of: PartitionOf, acks: int = -1
    ) -> None:
        super().__init__(outcomes, partition_of)
        self.acks = acks

    def expire(self) -> None:
        for outcome in self._waiting:
            outcome.error = ErrorCode.REQUEST_TIMED_OUT

    def _satisfied(self, outcome: AppendOutcome) -> bool:
        try:
            partition, required = self._same(outcome), outcome.last_offset + 1
            if (
                outcome.partition is not None
                and partition.leadership_generation != outcome.leadership_generation
            ):
                # Others led meanwhile, or a mirror's source lost records: what was appended here
                # may be truncated.
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            error = (
                partition.enough_replicas_reached(required)
                if self.acks == -1
                else partition.leader_synced(required)
            )
        except BrokerError as refusal:
            error = refusal.code
        if error is None:
            return False
        outcome.error = error
        return True


class DelayedFetch:
    """RL 1.9: waits until there is enough to answer with, or an error or a diverging epoch.

    `unchanged`: a follower's first read, when time is up and reading again would say the same:
    mostly so with partitions that nobody writes to. `throttled_topics`: those of the leader's
    throttle, as they are at each look; while there are none `is_throttled` is not called.
    """

    __slots__ = (
        "_first_read",
        "_is_throttled",
        "_partition_of",
        "_session",
        "_throttled_topics",
        "_waiting",
        "params",
        "unchanged",
    )

    def __init__(
        self,
        params: FetchParams,
        first_read: Sequence[FetchPartitionResult],
        partition_of: PartitionOf,
        session: FetchContext = SESSIONLESS,
        throttled_topics: Collection[str] = (),
        is_throttled: Throttles = _nobody,
    ) -> None:
        self.params = params
        self._partition_of = partition_of
        self._session = session
        self._throttled_topics = throttled_topics if params.replica_id >= 0 else ()
        self._is_throttled = is_throttled
        self._waiting = tuple([(result.request, result.fetch_offset) for result in first_read])
        self._first_read = (
            first_read if params.replica_id >= 0 else None
        )  # many consumers may wait: theirs are not kept
        self.unchanged: Sequence[FetchPartitionResult] | None = None

    @property
    def keys(self) -> list[Hashable]:
        """Its partitions, and its session, which may add some of its own while this waits, or has
        while it was read.
        """
        keys: list[Hashable] = [request.topic_partition for request, _ in self._reads()]
        return [*keys, *self._session.watch_keys]

    def requests_again(self) -> list[FetchPartitionRequest]:
        """What is read when it is complete: what was read before, then what its session added."""
        return [*(request for request, _ in self._waiting), *self._session.take_woken()]

    def offset_in(self, topic_partition: TopicPartition) -> int:
        """Where it reads one of its partitions; -1 for one that a later request of its session
        took over.
        """
        requests = [request for request, _ in self._reads()]
        requests += self._session.idle_requests
        return next(
            (
                request.fetch_offset
                for request in requests
                if request.topic_partition == topic_partition
            ),
            -1,
        )

    def readable_bytes(self) -> int:
        """What it could read now, over all its partitions; those that it cannot read count
        nothing.
        """
        total = 0
        for request, fetch_offset in self._reads():
            try:
                total += max(0, self._readable(request, fetch_offset))
            except BrokerError:
                continue
        return total

    def is_complete(self, changed: Hashable = None) -> bool:
        if changed is not None and self._reads_several and not self._may_be_completed_by(changed):
            return False
        readable = 0
        for request, fetch_offset in self._reads():
            try:
                found = self._readable(request, fetch_offset)
            except BrokerError:  # cases A to E, and H where the epoch's end is not known
                return True
            if found < 0:
                return True
            readable += found
        return readable >= self.params.min_bytes  # case G

    @property
    def _reads_several(self) -> bool:
        return len(self._waiting) + len(self._session.woken) > 1

    def _may_be_completed_by(self, changed: Hashable) -> bool:
        """Whether a change of that partition may complete it. Most often only a high watermark
        moved, for which followers do not wait.
        """
        try:
            return any(
                self._readable(request, offset)
                for request, offset in self._reads()
                if request.topic_partition == changed
            )
        except BrokerError:
            # The second read says what is wrong there.
            return True

    def _reads(self) -> Iterator[tuple[FetchPartitionRequest, LogOffsetMetadata]]:
        """What it reads, and where; what its session has idle has nothing to read."""
        yield from self._waiting
        yield from self._session.woken

    def expire(self) -> None:
        """The waiting request reads again, unless it would find what the first read found."""
        self._session.wake_unregistered()  # what is idle is not in the first read
        first_read, woken = self._first_read, self._session.woken
        if first_read is not None and not woken and all(map(self._would_read_the_same, first_read)):
            self.unchanged = self._first_read

    def _would_read_the_same(self, result: FetchPartitionResult) -> bool:
        """Whether the follower is at the end of the same log, knows its watermarks, and may still
        fetch: it may have registered again while it waited.
        """
        request = result.request
        try:
            partition = self._partition_of(request.topic_partition)
            log = partition.log_for(request.current_leader_epoch, self.params.only_leader)
        except BrokerError:
            # Its role or its log changed: only a second read can tell.
            return False
        return (
            log.log_end_offset == request.fetch_offset
            and log.high_watermark == result.high_watermark
            and log.log_start_offset == result.log_start_offset
            and request.topic_id in (None, partition.topic_id)
            and log.failed is None
            and is_registered(self.params.replica_id, self.params.replica_epoch, partition.brokers)
        )

    def _readable(self, request: FetchPartitionRequest, fetch_offset: LogOffsetMetadata) -> int:
        """Bytes that wait in one partition, -1 when it should be answered now.

        Raises `BrokerError` likewise.
        """
        partition = self._partition_of(request.topic_partition)
        log = partition.log_for(request.current_leader_epoch, self.params.only_leader)
        if request.topic_id is not None and request.topic_id != partition.topic_id:
            return -1
        isolation = self.params.isolation
        found = 0
        if isolation != LOG_END or log.log_end_offset != fetch_offset.offset:
            end = partition.end_for(isolation)
            found = self._readable_to(end, fetch_offset, log.log_end_offset, request.max_bytes)
            if (
                self._throttled_topics
                and (found > 0 or fetch_offset.on_older_segment(end))
                and self._is_throttled(partition, self.params)
            ):
                found = 0  # it would be read, and not sent
            if found < 0:
                return -1
        if request.last_fetched_epoch >= 0 and partition.divergence(request) is not None:
            return -1  # case H
        return found

    @staticmethod
    def _readable_to(
        end: LogOffsetMetadata, fetch_offset: LogOffsetMetadata, log_end_offset: int, max_bytes: int
    ) -> int:
        """Bytes between a reader and the end it may see, -1 for case F and where only reading
        can tell.
        """
        found = 0
        if end.offset != fetch_offset.offset:
            if (
                end.on_older_segment(fetch_offset)
                or fetch_offset.on_older_segment(end)
                or fetch_offset.offset > log_end_offset
            ):
                return -1
            if end.offset > fetch_offset.offset:
                if not end.on_same_segment(fetch_offset):
                    return -1
                found = min(end.position_difference(fetch_offset), max_bytes)
        return found


class DeleteOutcome:
    """What became of one partition of DeleteRecords; `low_watermark` is -1 with an error."""

    __slots__ = (
        "error",
        "error_message",
        "low_watermark",
        "partition",
        "required_offset",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        error: ErrorCode,
        low_watermark: int = -1,
        required_offset: int = -1,
        error_message: str | None = None,
        partition: Partition | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.error = error
        self.low_watermark = low_watermark
        self.required_offset = required_offset
        self.error_message = error_message
        self.partition = partition


class DelayedDeleteRecords(DelayedOutcomes[DeleteOutcome]):
    """RL 2.8: waits until the low watermark of each partition reached its required offset."""

    __slots__ = ()

    def expire(self) -> None:
        for outcome in self._waiting:
            outcome.error, outcome.low_watermark = ErrorCode.REQUEST_TIMED_OUT, -1

    def _satisfied(self, outcome: DeleteOutcome) -> bool:
        try:
            partition = self._same(outcome)
            if not partition.is_leader:
                raise partition.refusal()
        except BrokerError as refusal:
            outcome.error, outcome.low_watermark = refusal.code, -1
            return True
        outcome.low_watermark = partition.low_watermark()
        return outcome.low_watermark >= outcome.required_offset
