"""A fetcher's state of its partitions, and the outcome of a leader's answer for each.

Owns the state of every partition of one fetcher, their order, what the leader is requested to send
for them, and the decisions: who may be fetched, whether an answer still counts, what it means.

    added, with epochs, from a leader that truncates on fetch --> FETCHING
    added otherwise ------------------------------------------> TRUNCATING
    TRUNCATING --truncated, complete or on fetch--> FETCHING
    FETCHING --truncated, not complete, not on fetch--> TRUNCATING
    FETCHING --appended, truncated, offset reset--> FETCHING, at another offset
    both --error--> delayed (the same phase, later)
    both --failed--> removed, in `failed`, until added again

1. A fetch answer counts only while its partition is here, fetching, not delayed, and at the
   offset, leader epoch and topic id requested; an answer about an epoch's end only while the
   partition is truncating under the leader epoch requested.
2. Partitions take turns in their order: one that got records, was truncated, was reset or was
   delayed goes to the end.
3. A partition added again under the same leader epoch keeps its state.
4. A round looks only at partitions whose request may have changed: all that are truncating,
   delayed or paused, gone, new, answered, or marked so. After it `requested` has the requests of
   all that are ready and not paused.

Source: RL 6.2-6.5; Kafka's `AbstractFetcherThread`; KIP-320, KIP-595. Pure: times are monotonic
milliseconds. Not here: rounds (`fetcher`), where to truncate and where to go on
(`truncation_decision`), doing so, and throttling (`replica_fetcher`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from twisted_broker.interfaces import Buffer, TopicPartition
from twisted_broker.replication.fetcher.fetch_session_handler import (
    RequestedPartition,
    RequestedPartitions,
)
from twisted_broker.replication.fetcher.truncation_decision import (
    EpochEnd,
    LeaderEpochRequest,
    OffsetReset,
    OffsetTruncationState,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode

NO_EPOCH = -1


class FetchPhase(Enum):
    """What a partition is at."""

    TRUNCATING = "truncating"
    FETCHING = "fetching"


class FetchOutcome(Enum):
    """What an answer means for one partition."""

    STALE = "stale"
    APPEND = "append"
    TRUNCATE = "truncate"
    OUT_OF_RANGE = "out of range"
    FENCED = "fenced"
    RETRY = "retry"


class InitialFetchState(NamedTuple):
    """Where fetching begins, and under which leader epoch."""

    topic_id: bytes
    leader_epoch: int
    offset: int


class FetchedPartition:
    """What the leader answered for one partition.

    `records` are valid until the next request is sent.
    """

    __slots__ = ("diverging_epoch", "error", "high_watermark", "log_start_offset", "records")

    def __init__(
        self,
        error: ErrorCode,
        high_watermark: int = -1,
        log_start_offset: int = -1,
        records: Buffer = b"",
        diverging_epoch: tuple[int, int] | None = None,
    ) -> None:
        self.error = error
        self.high_watermark = high_watermark
        self.log_start_offset = log_start_offset
        self.records = records
        self.diverging_epoch = diverging_epoch


class PartitionFetchState:
    """One partition. `lag` is None before the first answer; `delayed_until_ms` -1: not delayed."""

    __slots__ = (
        "delayed_until_ms",
        "fetch_offset",
        "lag",
        "last_fetched_epoch",
        "leader_epoch",
        "phase",
        "topic_id",
    )

    def __init__(
        self,
        topic_id: bytes,
        fetch_offset: int,
        leader_epoch: int,
        last_fetched_epoch: int,
        phase: FetchPhase,
    ) -> None:
        self.topic_id = topic_id
        self.fetch_offset = fetch_offset
        self.leader_epoch = leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.phase = phase
        self.lag: int | None = None
        self.delayed_until_ms = -1

    def is_delayed(self, now_ms: int) -> bool:
        return self.delayed_until_ms > now_ms

    def is_ready(self, now_ms: int) -> bool:
        """Whether it is to be fetched."""
        return self.phase is FetchPhase.FETCHING and self.delayed_until_ms <= now_ms

    @property
    def is_in_sync(self) -> bool:
        """Whether it has all that the leader has committed, as of the last answer."""
        return self.lag == 0

    def is_as_requested(self, requested: RequestedPartition) -> bool:
        """Whether an answer to `requested` still counts."""
        return (
            self.fetch_offset == requested.fetch_offset
            and self.leader_epoch == requested.leader_epoch
            # Its topic may have been deleted and created again, and be fetched at the same offset.
            and self.topic_id == requested.topic_id
        )

    @property
    def initial(self) -> InitialFetchState:
        """Where another fetcher goes on with it."""
        return InitialFetchState(self.topic_id, self.leader_epoch, self.fetch_offset)


RequestFor = Callable[[TopicPartition, PartitionFetchState], RequestedPartition | None]
"""Makes the request of a partition that is ready; None: not in this round."""


class FetcherState:
    """The partitions of one fetcher, in the order of their turns.

    `failed` may be shared by all fetchers of a manager.
    """

    __slots__ = ("_may_have_changed", "failed", "partitions", "requested")

    def __init__(self, failed: set[TopicPartition] | None = None) -> None:
        self.partitions: dict[TopicPartition, PartitionFetchState] = {}
        self.failed: set[TopicPartition] = set() if failed is None else failed
        self.requested = RequestedPartitions(self.partitions)
        self._may_have_changed: dict[TopicPartition, None] = {}

    # who is here
    def add(
        self,
        topic_partition: TopicPartition,
        initial: InitialFetchState,
        latest_epoch: int,
        truncates_on_fetch: bool,
    ) -> None:
        """RL 6.1.

        `latest_epoch`: of the own log's last entry, -1 when it knows no epochs;
        `truncates_on_fetch`: fetch answers say where to truncate.
        """
        self.failed.discard(topic_partition)
        known = self.partitions.get(topic_partition)
        # The offset reached counts, not the one to begin at: that is as of the change of roles.
        if known is not None and known.leader_epoch == initial.leader_epoch:
            known.topic_id = initial.topic_id
            self.mark_changed(topic_partition)
            return
        phase = (
            FetchPhase.FETCHING
            if truncates_on_fetch and latest_epoch >= 0
            else FetchPhase.TRUNCATING
        )
        last = latest_epoch if phase is FetchPhase.FETCHING else NO_EPOCH
        self.partitions[topic_partition] = PartitionFetchState(
            initial.topic_id, initial.offset, initial.leader_epoch, last, phase
        )
        self._to_the_end(topic_partition)

    def remove(self, topic_partition: TopicPartition) -> PartitionFetchState | None:
        """Also out of the failed ones."""
        self.failed.discard(topic_partition)
        return self._take_out(topic_partition)

    def fail(self, topic_partition: TopicPartition) -> None:
        """RL 6.5: not fetched any more until somebody adds it again."""
        if self._take_out(topic_partition) is not None:
            self.failed.add(topic_partition)

    def _take_out(self, topic_partition: TopicPartition) -> PartitionFetchState | None:
        self.mark_changed(topic_partition)
        return self.partitions.pop(topic_partition, None)

    # whose turn it is
    def mark_changed(self, topic_partition: TopicPartition) -> None:
        """Its request may be another one: the own log start may have moved."""
        if topic_partition in self.partitions:
            self._may_have_changed.setdefault(topic_partition)

    def update_requested(
        self,
        now_ms: int,
        request_for: RequestFor,
    ) -> list[TopicPartition]:
        """Begins a round: `requested` gets the requests of all partitions that are ready, made by
        `request_for`. Returns those for which it raises `BrokerError`; those for which it returns
        None are not requested in this round.
        """
        refused: list[TopicPartition] = []
        later: dict[TopicPartition, None] = {}  # a new one: a dict that was large once stays so
        for name in self._may_have_changed:
            state = self.partitions.get(name)
            request = None
            try:
                if state is not None and state.is_ready(now_ms):
                    request = request_for(name, state)
            except BrokerError:
                refused.append(name)
            if request is None:
                self.requested.remove(name)
            else:
                self.requested.put(name, request)
            # Truncating, delayed or paused: looked at again next round.
            if request is None and state is not None:
                later[name] = None
        self._may_have_changed = later
        return refused

    def truncating(self, now_ms: int) -> list[tuple[TopicPartition, PartitionFetchState]]:
        """Those to truncate now, in the order of their turns."""
        return [
            (name, state)
            for name, state in self._waiting()
            if state.phase is FetchPhase.TRUNCATING and not state.is_delayed(now_ms)
        ]

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the first delay ends; None when nobody is delayed."""
        return min(
            (state.delayed_until_ms for _, state in self._waiting() if state.is_delayed(now_ms)),
            default=None,
        )

    def _waiting(self) -> list[tuple[TopicPartition, PartitionFetchState]]:
        """Those here whose request may have changed; all that are truncating or delayed are."""
        return [
            (name, state)
            for name in self._may_have_changed
            if (state := self.partitions.get(name)) is not None
        ]

    def delay(self, topic_partitions: Iterable[TopicPartition], until_ms: int, now_ms: int) -> None:
        """RL 6.5. One that is delayed already keeps its time."""
        for topic_partition in list(topic_partitions):
            state = self.partitions.get(topic_partition)
            if state is not None and not state.is_delayed(now_ms):
                state.delayed_until_ms = until_ms
                self._to_the_end(topic_partition)

    def _to_the_end(self, topic_partition: TopicPartition) -> None:
        """It had its turn, or begins."""
        self.partitions[topic_partition] = self.partitions.pop(topic_partition)
        self._may_have_changed.pop(topic_partition, None)
        self._may_have_changed[topic_partition] = None

    # what answers mean
    def outcome_of_fetch(
        self,
        topic_partition: TopicPartition,
        requested: RequestedPartition,
        fetched: FetchedPartition,
        now_ms: int,
    ) -> FetchOutcome:
        """RL 6.4, 6.5: what a fetch answer means."""
        state = self.partitions.get(topic_partition)
        if state is None or state.phase is not FetchPhase.FETCHING or state.is_delayed(now_ms):
            return FetchOutcome.STALE
        # A change of roles came in between: the records are of another history.
        if not state.is_as_requested(requested):
            return FetchOutcome.STALE
        if fetched.error == ErrorCode.NONE:
            return FetchOutcome.APPEND if fetched.diverging_epoch is None else FetchOutcome.TRUNCATE
        if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            return FetchOutcome.OUT_OF_RANGE
        return self.outcome_of_error(topic_partition, requested.leader_epoch, fetched.error)

    def outcome_of_epoch_end(
        self, topic_partition: TopicPartition, requested: LeaderEpochRequest, answer: EpochEnd
    ) -> FetchOutcome:
        """RL 6.3: what an answer about an epoch's end means; TRUNCATE: at that end."""
        state = self.partitions.get(topic_partition)
        if (
            state is None
            or state.phase is not FetchPhase.TRUNCATING
            or state.leader_epoch != requested.leader_epoch
        ):
            return FetchOutcome.STALE
        return (
            FetchOutcome.TRUNCATE
            if answer.error == ErrorCode.NONE
            else self.outcome_of_error(topic_partition, requested.leader_epoch, answer.error)
        )

    def outcome_of_error(
        self, topic_partition: TopicPartition, requested_epoch: int, error: ErrorCode
    ) -> FetchOutcome:
        """RL 6.5: FENCED when the leader has a newer leader epoch than the newest known here."""
        state = self.partitions.get(topic_partition)
        if state is None:
            return FetchOutcome.STALE
        # Under an older epoch the refusal is outdated: a retry with the new one may work.
        fenced = error == ErrorCode.FENCED_LEADER_EPOCH and requested_epoch == state.leader_epoch
        return FetchOutcome.FENCED if fenced else FetchOutcome.RETRY

    # what was done
    def appended(
        self,
        topic_partition: TopicPartition,
        last_offset: int,
        last_epoch: int,
        leader_high_watermark: int,
    ) -> None:
        """RL 6.4.

        `last_offset` -1: the answer held no records. `last_epoch`: of the last batch appended.
        """
        state = self.partitions.get(topic_partition)
        if state is None:
            return
        self.mark_changed(topic_partition)  # its log start may have followed the leader's
        if last_offset >= 0:
            state.fetch_offset = last_offset + 1
            # Batches of old formats carry no epoch.
            state.last_fetched_epoch = last_epoch if last_epoch >= 0 else state.last_fetched_epoch
            self._to_the_end(topic_partition)
        state.lag = max(0, leader_high_watermark - state.fetch_offset)
        state.delayed_until_ms = -1

    def truncated(
        self,
        topic_partition: TopicPartition,
        truncation: OffsetTruncationState,
        latest_epoch: int,
        truncates_on_fetch: bool,
    ) -> None:
        """RL 6.3.

        When fetch answers say where to truncate, a truncation that is not complete goes on with the
        next fetch.
        """
        state = self.partitions[topic_partition]
        state.fetch_offset = truncation.offset
        state.last_fetched_epoch = latest_epoch
        state.phase = (
            FetchPhase.FETCHING
            if truncates_on_fetch or truncation.complete
            else FetchPhase.TRUNCATING
        )
        self._to_the_end(topic_partition)

    def offset_reset(
        self, topic_partition: TopicPartition, reset: OffsetReset, latest_epoch: int
    ) -> None:
        """RL 6.5: it goes on elsewhere."""
        state = self.partitions[topic_partition]
        state.fetch_offset, state.lag = reset.offset, reset.lag
        state.last_fetched_epoch = latest_epoch
        state.phase = FetchPhase.FETCHING
        state.delayed_until_ms = -1
        self._to_the_end(topic_partition)

    @property
    def max_lag(self) -> int:
        """The largest lag known, 0 without any."""
        return max(
            (state.lag for state in self.partitions.values() if state.lag is not None), default=0
        )
