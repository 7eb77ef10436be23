"""Rounds of fetching from one leader: the base of all fetchers.

Owns `Fetcher` (rounds, pauses, errors) and `FetchTarget`, what it needs of the place that fetched
records go to.

    one round, from the request to the disk:
    Fetcher.do_work -> FetcherState.update_requested -> LeaderEndPoint.fetch
        -> FetcherState.outcome_of_fetch -> FetchTarget.process_partition_data -> Partition -> Log

1. One round at a time, one request in flight: first truncate what is to be truncated, then fetch
   what is ready. A round costs what changed.
2. With nothing to request it waits for the backoff, for the end of a delay, or until something is
   added.
3. An error of one partition delays or fails that partition; a lost connection delays all partitions
   of this fetcher, and of no other.
4. Where epochs are known, the leader tells where an epoch ends, until the logs agree; where none
   are, a log is truncated to where fetching begins, the high watermark.
5. A log that may have missed the end marker of an open transaction is truncated to where that
   transaction begins, and fetched again from there (`log.missed_markers`).
6. A log with records of a newer leader epoch than its leader's is neither truncated nor appended
   to: the metadata is older than the log.

Source: RL 6.2-6.5, 7.1; Kafka's `AbstractFetcherThread`. Not here: what an answer means
(`fetcher_state`), what is done with it (`replica_fetcher`), which fetcher a partition belongs to
(`fetcher_manager`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.log.append_info import LogAppendInfo
from twisted_broker.log.errors import LogFailure, OutOfDescriptors
from twisted_broker.log.missed_markers import MarkersMissed, ProducersUnknown
from twisted_broker.log.write_ahead import LONG_BYTES, portions
from twisted_broker.replication.fetcher.fetch_session_handler import (
    RequestedPartition,
    RequestedPartitions,
)
from twisted_broker.replication.fetcher.fetcher_state import (
    FetchedPartition,
    FetcherState,
    FetchOutcome,
    InitialFetchState,
    PartitionFetchState,
    RequestFor,
)
from twisted_broker.replication.fetcher.leader_endpoint import EARLIEST, LATEST, LeaderEndPoint
from twisted_broker.replication.fetcher.truncation_decision import (
    EpochEnd,
    LeaderEpochRequest,
    OffsetReset,
    OffsetTruncationState,
)
from twisted_broker.replication.long_appends import write_ahead
from twisted_broker.replication.partition.partition_history import older_metadata
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import CorruptRecordError

if TYPE_CHECKING:
    from twisted_broker.log.log import Log

_logger = Logger()
_EXPECTED = frozenset(  # what a change of leadership looks like from here, for a moment
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


# Each is appended in some 15 to 30 us.
ANSWERS_PER_TURN = 200
FENCED = "the leader has a newer leader epoch; fetching starts again with the next metadata"


class FetchTarget(Protocol):
    """Where fetched records go: the logs of followed replicas (`replica_fetcher`); a move to
    another directory and a consumer's queues are others (RL 7.1).

    What a method raises concerns its partition only: `BrokerError` where it says so is tried again
    after the backoff, everything else fails the partition.
    """

    def latest_epoch(self, topic_partition: TopicPartition) -> int:
        """The epoch of the last entry held, -1 when epochs are not known. Raises `BrokerError`."""
        ...

    def log_start_offset(self, topic_partition: TopicPartition) -> int:
        """For the leader to know; -1 where there is no log. Raises `BrokerError`."""
        ...

    def added(self, topic_partition: TopicPartition) -> None:
        """The partition is fetched from now on. What an earlier fetcher left unsynced is waited for
        in `wait_for_syncs`. Raises `BrokerError`.
        """
        ...

    def process_partition_data(
        self,
        topic_partition: TopicPartition,
        requested: RequestedPartition,
        fetched: FetchedPartition,
    ) -> LogAppendInfo | None:
        """What was appended of an answer without error, None for nothing.

        `CorruptRecordError`, `OutOfDescriptors`, `ProducersUnknown`: it is fetched again.
        `MarkersMissed`: it is truncated, and goes on from there (`reset_offset`).
        """
        ...

    def log_at(self, topic_partition: TopicPartition, offset: int) -> Log | None:
        """The log that what was fetched at `offset` goes into, in portions if it is long; None
        where it does not, or goes in whole.
        """
        ...

    def truncate(
        self, topic_partition: TopicPartition, fetch_offset: int, leader_end: EpochEnd | None
    ) -> OffsetTruncationState:
        """Drops what the leader does not have. `leader_end`: the end of an epoch at the leader;
        None where no epochs are known: truncates to `fetch_offset`. `OutOfDescriptors`: later.
        """
        ...

    def offset_reset_for(
        self, topic_partition: TopicPartition, leader_end: int, leader_start: int | None
    ) -> OffsetReset | None:
        """Where to go on when the leader does not have the offset requested; None: only
        `leader_start` can tell, and it is not known yet. Raises `BrokerError`.
        """
        ...

    def reset_offset(self, topic_partition: TopicPartition, reset: OffsetReset) -> None:
        """Does what `reset` says; the fetcher goes on at its offset."""
        ...

    def partition_failed(
        self, topic_partition: TopicPartition, reason: BaseException | str
    ) -> None:
        """It is not fetched any more until it is added again."""
        ...

    def answers_processed(self) -> None:
        """An answer, or a part of a long one, is processed: the effects may run."""
        ...

    async def wait_for_syncs(self) -> None:
        """Waits until the next request may be sent: its offset confirms what was appended, and its
        answer is appended behind what was truncated, so either may need a sync first.
        """
        ...


class Fetcher:
    """`target`: where the records go; `failed` may be shared by all fetchers of a manager."""

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        leader: LeaderEndPoint,
        target: FetchTarget,
        backoff_ms: int,
        partition_max_bytes: int,
        failed: set[TopicPartition] | None = None,
    ) -> None:
        self.name = name
        self.leader = leader
        self.state = FetcherState(failed)
        self.requests = self.bytes_fetched = 0
        self._runtime = runtime
        self._target = target
        self._backoff_ms = backoff_ms
        self._partition_max_bytes = partition_max_bytes
        self._stopped = False
        self._running: Deferred[None] | None = None
        self._pause: Deferred[None] | None = None
        self._unreachable = False
        self._fenced: list[TopicPartition] = []  # in this round
        # By partition: where its last reset without a truncation went.
        self._last_resets: dict[TopicPartition, int] = {}

    # which partitions
    def wake(self) -> None:
        """Something changed that `LeaderEndPoint.has_request` looks at; a round begins later."""
        self._runtime.clock.callLater(0, self._wake)

    def add(self, partitions: Mapping[TopicPartition, InitialFetchState]) -> None:
        """RL 6.1: a partition already here at the same epoch keeps its state; a waiting fetcher
        wakes.
        """
        for topic_partition, initial in partitions.items():
            self._last_resets.pop(topic_partition, None)
            try:
                latest_epoch = self._target.latest_epoch(topic_partition)
                self.state.add(
                    topic_partition, initial, latest_epoch, self.leader.truncates_on_fetch
                )
                self._target.added(topic_partition)
                # Following would truncate records that a newer leader may have committed.
                if latest_epoch > initial.leader_epoch:
                    reason = f"its leader leads at epoch {initial.leader_epoch}"
                    directory = f"its directory {topic_partition}"
                    text = older_metadata(latest_epoch, reason, directory)
                    self.partition_failed(topic_partition, text)
            except BrokerError as error:
                _logger.error(
                    "{fetcher} cannot fetch {partition}: {error}",
                    fetcher=self.name,
                    partition=topic_partition,
                    error=error,
                )
                self.state.failed.add(topic_partition)
        # Later: whoever adds is in the middle of a change of roles.
        self.wake()

    def remove(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, PartitionFetchState]:
        """Those that were here, with their states. Their answers in flight will not count."""
        return {
            name: state
            for name in topic_partitions
            if (state := self.state.remove(name)) is not None
        }

    @property
    def reaches_leader(self) -> bool:
        """Whether the last request reached it."""
        return not self._unreachable

    @property
    def is_idle(self) -> bool:
        return not self.state.partitions

    # rounds
    def start(self) -> None:
        self._running = ensureDeferred(self._run())

    def shutdown(self) -> None:
        """Sends nothing and processes no answer any more."""
        self._stopped = True
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
        self.leader.close()

    async def _run(self) -> None:
        while not self._stopped:
            try:
                worked = await self.do_work()
            except CancelledError:
                return
            except Exception:
                _logger.failure("a round of {fetcher} failed", fetcher=self.name)
                self.partitions_with_errors(self.state.partitions)
                worked = False
            if not worked and not self._stopped:
                await self._wait()

    async def _wait(self) -> None:
        pause = self._pause = Deferred()
        now_ms = self._runtime.now_ms()
        due = self.state.next_due_ms(now_ms)
        # Whoever adds a partition wakes it; the backoff is for what changed without a call (the own
        # log start).
        wait_ms = self._backoff_ms if due is None else min(self._backoff_ms, due - now_ms)
        timer = self._runtime.clock.callLater(wait_ms / 1000, self._wake)
        try:
            await pause
        except CancelledError:
            self._stopped = True
        finally:
            self._pause = None
            if timer.active():
                timer.cancel()

    def _wake(self) -> None:
        pause, self._pause = self._pause, None
        if pause is not None and not pause.called:
            pause.callback(None)

    async def do_work(self) -> bool:
        """RL 6.2: one round. False when there was nothing to request."""
        truncated = await self._maybe_truncate()
        # Also for what was left by the fetcher of an earlier leader.
        await self._target.wait_for_syncs()
        self._log_fenced()
        if self._stopped:
            return truncated
        now_ms = self._runtime.now_ms()
        self.partitions_with_errors(self.state.update_requested(now_ms, self._requests(now_ms)))
        requested = self.state.requested
        if not self.leader.has_request(requested):
            return truncated
        answers = await self._fetch(requested)
        if answers is None or self._stopped:
            return True
        await self._process_answers(requested.current, answers)
        self._log_fenced()
        await self._target.wait_for_syncs()
        return True

    def _requests(self, now_ms: int) -> RequestFor:
        """The function that makes the requests of this round. A subclass that returns another one
        marks the partitions for which that makes a difference (`FetcherState.mark_changed`).
        """
        return self._request_for

    def _request_for(
        self, topic_partition: TopicPartition, state: PartitionFetchState
    ) -> RequestedPartition | None:
        """Called again only after its state changed or was marked: see `fetcher_state`. A subclass
        returns None for a partition that is paused.
        """
        return RequestedPartition(
            state.topic_id,
            state.fetch_offset,
            state.leader_epoch,
            state.last_fetched_epoch,
            self._target.log_start_offset(topic_partition),
            self._partition_max_bytes,
        )

    async def _fetch(
        self, requested: RequestedPartitions
    ) -> dict[TopicPartition, FetchedPartition] | None:
        self.requests += 1
        try:
            answers = await self.leader.fetch(requested)
        except CancelledError:
            raise
        except Exception as error:
            self._connection_failed(error)
            return None
        if self._unreachable:
            self._unreachable = False
            _logger.info(
                "{fetcher} reaches {leader} again", fetcher=self.name, leader=self.leader.endpoint
            )
        return answers

    # answers
    async def _process_answers(
        self,
        requests: Mapping[TopicPartition, RequestedPartition],
        answers: Mapping[TopicPartition, FetchedPartition],
    ) -> None:
        """RL 6.4: what an answer means for each partition. A long answer is processed over several
        turns of the reactor: what it says of a partition whose request changed meanwhile is stale.
        """
        errors: list[TopicPartition] = []
        out_of_range: list[TopicPartition] = []
        for number, (topic_partition, fetched) in enumerate(answers.items()):
            if number and number % ANSWERS_PER_TURN == 0:
                self.partitions_with_errors(errors)
                errors.clear()
                self._target.answers_processed()
                await self._next_turn()
                if self._stopped:
                    return
            requested = requests.get(topic_partition)
            if requested is None:
                continue
            if len(fetched.records) >= LONG_BYTES:
                log = self._target.log_at(topic_partition, requested.fetch_offset)
                if log is not None:
                    self.partitions_with_errors(errors)
                    errors.clear()
                    await self._append_portions(topic_partition, requested, fetched, log, errors)
                    if self._stopped:
                        return
                    continue
            outcome = self.state.outcome_of_fetch(
                topic_partition, requested, fetched, self._runtime.now_ms()
            )
            if outcome is FetchOutcome.APPEND:
                if not self._append(topic_partition, requested, fetched):
                    errors.append(topic_partition)
            elif outcome is FetchOutcome.TRUNCATE:
                assert fetched.diverging_epoch is not None
                self._truncate(topic_partition, EpochEnd(ErrorCode.NONE, *fetched.diverging_epoch))
            elif outcome is FetchOutcome.OUT_OF_RANGE:
                out_of_range.append(topic_partition)
            else:
                self._refused(topic_partition, outcome, fetched.error, errors)
        self.partitions_with_errors(errors)
        self._target.answers_processed()
        # Last: these send requests of their own, and records are valid until the next request only.
        for topic_partition in out_of_range:
            await self._handle_out_of_range(topic_partition, requests[topic_partition])

    async def _append_portions(
        self,
        topic_partition: TopicPartition,
        requested: RequestedPartition,
        fetched: FetchedPartition,
        log: Log,
        errors: list[TopicPartition],
    ) -> None:
        """A long answer, as if its parts had come one after the other: others are served between
        two. What becomes stale meanwhile is fetched again.
        """
        truncations = log.truncations
        for records in portions(fetched.records):
            self._target.answers_processed()
            await self._next_turn()
            ahead = None
            if not self._stopped and len(records) >= LONG_BYTES:
                wall_ms = self._runtime.wall_ms()
                ahead = await write_ahead(log, records, wall_ms, self._next_turn)
            try:
                if self._stopped:
                    return
                part = FetchedPartition(
                    fetched.error, fetched.high_watermark, fetched.log_start_offset, records
                )
                outcome = self.state.outcome_of_fetch(
                    topic_partition, requested, part, self._runtime.now_ms()
                )
                if outcome is not FetchOutcome.APPEND:
                    self._refused(topic_partition, outcome, part.error, errors)
                    return
                if not self._append(topic_partition, requested, part):
                    errors.append(topic_partition)
                    return
            finally:
                if ahead is not None:
                    log.end_ahead(ahead)  # it was not appended
            state = self.state.partitions.get(topic_partition)
            if (
                state is None
                or log.truncations != truncations
                or state.fetch_offset != log.log_end_offset
            ):
                return
            requested = requested._replace(fetch_offset=state.fetch_offset)

    async def _next_turn(self) -> None:
        await deferLater(self._runtime.clock, 0, lambda: None)  # type: ignore[arg-type]

    def _append(
        self,
        topic_partition: TopicPartition,
        requested: RequestedPartition,
        fetched: FetchedPartition,
    ) -> bool:
        """False: try again later.

        Corrupt bytes may be the wire's fault; anything else that is wrong fails the partition.
        """
        try:
            info = self._target.process_partition_data(topic_partition, requested, fetched)
        except CorruptRecordError as error:
            _logger.error(
                "{fetcher}: records of {partition} from {offset} on are corrupt, fetching again: "
                "{error}",
                fetcher=self.name,
                partition=topic_partition,
                offset=requested.fetch_offset,
                error=error,
            )
            return False
        except (OutOfDescriptors, ProducersUnknown):
            return False
        except MarkersMissed as missed:
            offset, fully = missed.offset, missed.fully
            lag = max(0, fetched.high_watermark - offset)
            reset = OffsetReset(offset, not fully, fully, lag, str(missed))
            self._reset_offset(topic_partition, reset)
            return True
        except Exception as error:
            if not isinstance(error, BrokerError):
                _logger.failure("appending to {partition} failed", partition=topic_partition)
            self.partition_failed(topic_partition, error)
            return True
        if info is None:
            self.state.appended(topic_partition, -1, -1, fetched.high_watermark)
        else:
            self.bytes_fetched += info.bytes
            self.state.appended(
                topic_partition, info.last_offset, info.last_leader_epoch, fetched.high_watermark
            )
        return True

    # truncation
    async def _maybe_truncate(self) -> bool:
        """RL 6.3: all that are truncating and not delayed. True when anything was sent or done."""
        epochs: dict[TopicPartition, LeaderEpochRequest] = {}
        done = False
        for name, state in self.state.truncating(self._runtime.now_ms()):
            try:
                epoch = self._target.latest_epoch(name)
            except BrokerError:
                self.partitions_with_errors([name])
                continue
            if epoch >= 0:
                epochs[name] = LeaderEpochRequest(state.leader_epoch, epoch)
            else:
                done = self._truncate(name, None) or done
        if epochs:
            done = await self._truncate_to_epoch_ends(epochs) or done
        if done:
            self._target.answers_processed()
        return done

    async def _truncate_to_epoch_ends(
        self, epochs: Mapping[TopicPartition, LeaderEpochRequest]
    ) -> bool:
        try:
            answers = await self.leader.fetch_epoch_ends(epochs)
        except CancelledError:
            raise
        except Exception as error:
            self._connection_failed(error)
            return False
        errors: list[TopicPartition] = [name for name in epochs if name not in answers]
        for name, answer in answers.items():
            requested = epochs.get(name)
            if requested is None or self._stopped:
                continue
            outcome = self.state.outcome_of_epoch_end(name, requested, answer)
            if outcome is FetchOutcome.TRUNCATE:
                self._truncate(name, answer)
            else:
                self._refused(name, outcome, answer.error, errors)
        self.partitions_with_errors(errors)
        return True

    def _truncate(self, topic_partition: TopicPartition, leader_end: EpochEnd | None) -> bool:
        """RL 6.3: where the logs diverge."""
        fetch_offset = self.state.partitions[topic_partition].fetch_offset
        try:
            truncation = self._target.truncate(topic_partition, fetch_offset, leader_end)
            latest_epoch = self._target.latest_epoch(topic_partition)
        except OutOfDescriptors:
            self.partitions_with_errors([topic_partition])
            return False
        except Exception as error:
            self.partition_failed(topic_partition, error)
            return False
        self.state.truncated(
            topic_partition, truncation, latest_epoch, self.leader.truncates_on_fetch
        )
        return True

    # out of range
    async def _handle_out_of_range(
        self, topic_partition: TopicPartition, requested: RequestedPartition
    ) -> None:
        """RL 6.5: finds another place to go on from, and goes there."""
        try:
            reset = await self._find_offset_reset(topic_partition, requested)
        except CancelledError:
            raise
        except BrokerError as error:
            if isinstance(error, LogFailure):
                self.partition_failed(topic_partition, error)
            else:
                outcome = self.state.outcome_of_error(
                    topic_partition, requested.leader_epoch, error.code
                )
                errors: list[TopicPartition] = []
                self._refused(topic_partition, outcome, error.code, errors)
                self.partitions_with_errors(errors)
        except Exception as error:
            self._connection_failed(error)
        else:
            if reset is None:
                pass
            elif self._is_reset_in_vain(topic_partition, reset):
                self.partitions_with_errors([topic_partition])
            else:
                self._reset_offset(topic_partition, reset)
        self._target.answers_processed()

    async def _find_offset_reset(
        self, topic_partition: TopicPartition, requested: RequestedPartition
    ) -> OffsetReset | None:
        """None: it is not fetched here any more as it was when it was requested."""
        epoch = requested.leader_epoch
        leader_end = await self.leader.fetch_offset(topic_partition, epoch, LATEST)
        if not self._is_fetched_as(topic_partition, requested):
            return None
        reset = self._target.offset_reset_for(topic_partition, leader_end, None)
        if reset is not None:
            return reset
        leader_start = await self.leader.fetch_offset(topic_partition, epoch, EARLIEST)
        if not self._is_fetched_as(topic_partition, requested):
            return None
        return self._target.offset_reset_for(topic_partition, leader_end, leader_start)

    def _is_fetched_as(
        self, topic_partition: TopicPartition, requested: RequestedPartition
    ) -> bool:
        state = self.state.partitions.get(topic_partition)
        return not self._stopped and state is not None and state.is_as_requested(requested)

    def _is_reset_in_vain(self, topic_partition: TopicPartition, reset: OffsetReset) -> bool:
        """Whether the leader has refused a fetch at that offset already: only a delay can help."""
        if reset.truncate or reset.truncate_fully:
            return False
        before = self._last_resets.get(topic_partition)
        self._last_resets[topic_partition] = reset.offset
        return before == reset.offset

    def _reset_offset(self, topic_partition: TopicPartition, reset: OffsetReset) -> None:
        try:
            self._target.reset_offset(topic_partition, reset)
            latest_epoch = self._target.latest_epoch(topic_partition)
        except Exception as error:
            self.partition_failed(topic_partition, error)
            return
        self.state.offset_reset(topic_partition, reset, latest_epoch)

    # errors
    def partitions_with_errors(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They are tried again after the backoff."""
        now_ms = self._runtime.now_ms()
        self.state.delay(topic_partitions, now_ms + self._backoff_ms, now_ms)

    def partition_failed(
        self, topic_partition: TopicPartition, reason: BaseException | str
    ) -> None:
        """It is not fetched any more until it is added again."""
        _logger.error(
            "{fetcher} stops fetching {partition}: {reason}",
            fetcher=self.name,
            partition=topic_partition,
            reason=reason,
        )
        self._fail(topic_partition, reason)

    def _fail(self, topic_partition: TopicPartition, reason: BaseException | str) -> None:
        self.state.fail(topic_partition)
        self._target.partition_failed(topic_partition, reason)

    def _log_fenced(self) -> None:
        """One line a round: after a restart it is every partition of the leader."""
        if self._fenced:
            _logger.info(
                "{fetcher} stops fetching {count} partitions, the first {partition}: {reason}",
                fetcher=self.name,
                count=len(self._fenced),
                partition=self._fenced[0],
                reason=FENCED,
            )
            self._fenced.clear()

    def _refused(
        self,
        topic_partition: TopicPartition,
        outcome: FetchOutcome,
        error: ErrorCode,
        errors: list[TopicPartition],
    ) -> None:
        """FENCED fails the partition until the metadata changes; RETRY goes into `errors`; STALE
        changes nothing.
        """
        if outcome is FetchOutcome.FENCED:
            self._fenced.append(topic_partition)
            self._fail(topic_partition, FENCED)
        elif outcome is FetchOutcome.RETRY:
            if error not in _EXPECTED:
                _logger.error(
                    "{fetcher} cannot fetch {partition}, retrying: {error}",
                    fetcher=self.name,
                    partition=topic_partition,
                    error=error.name,
                )
            errors.append(topic_partition)

    def _connection_failed(self, error: Exception) -> None:
        """RL 6.5: a lost connection delays the partitions of this fetcher only; logged once until
        it works again.
        """
        if self._stopped:
            return
        if not self._unreachable:
            self._unreachable = True
            _logger.warn(
                "{fetcher} cannot reach {leader}, retrying: {error}",
                fetcher=self.name,
                leader=self.leader.endpoint,
                error=error,
            )
        self.partitions_with_errors(self.state.partitions)
