"""Rounds of fetching from one leader: the base of all fetchers.

Owns `Fetcher`: rounds, pauses, errors.

1. One round at a time, one request in flight: first truncate what is to be truncated, then fetch
   what is ready. A round costs what changed.
2. With nothing to ask it waits for the backoff, for the end of a delay, or until something is
   added.
3. What goes wrong with one partition delays or fails that one; a lost connection delays all of this
   fetcher, and nobody else's.

Source: RL 6.2-6.5, 7.1; Kafka's `AbstractFetcherThread`. Leaves out: what becomes of an answer
(`fetcher_state` judges it, `replica_fetcher` does it), which fetcher a partition belongs to
(`fetcher_manager`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.logger import Logger

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.log.append_info import LogAppendInfo
from twisted_broker.log.errors import LogDirFailure, OutOfDescriptors
from twisted_broker.replication.fetcher.fetcher_state import (
    FetchedPartition,
    FetcherState,
    InitialFetchState,
    PartitionFetchState,
    Verdict,
)
from twisted_broker.replication.fetcher.leader_endpoint import LeaderEndPoint
from twisted_broker.replication.fetcher.requested_partitions import (
    RequestedPartition,
    RequestedPartitions,
)
from twisted_broker.replication.fetcher.truncation import EpochEnd
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.records import CorruptRecordError

_log = Logger()
_EXPECTED = frozenset(  # what a change of leadership looks like from here, for a moment
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


class Fetcher:
    """The base. A subclass supplies `ask`, `process_partition_data`, `out_of_range`,
    `latest_epoch`, and may extend `truncate`, `partition_failed`, `partitions_with_errors` and
    `round_done`; fetching is the leader's.
    """

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        leader: LeaderEndPoint,
        backoff_ms: int,
        failed: set[TopicPartition] | None = None,
    ) -> None:
        self.name = name
        self.leader = leader
        self.state = FetcherState(failed)
        self.requests = self.bytes_fetched = 0
        self._runtime = runtime
        self._backoff_ms = backoff_ms
        self._stopped = False
        self._running: Deferred[None] | None = None
        self._pause: Deferred[None] | None = None
        self._unreachable = False

    # what a subclass supplies
    def ask(
        self, topic_partition: TopicPartition, state: PartitionFetchState
    ) -> RequestedPartition:
        """What to ask for one that is ready. Raises `BrokerError`: `partitions_with_errors`. Asked
        again only after its state changed or was marked: see `fetcher_state`.
        """
        raise NotImplementedError

    def process_partition_data(
        self, topic_partition: TopicPartition, asked: RequestedPartition, answer: FetchedPartition
    ) -> LogAppendInfo | None:
        """Takes an answer without error in.

        What was appended, None for nothing. `CorruptRecordError`: it is fetched again.
        """
        raise NotImplementedError

    async def out_of_range(
        self, topic_partition: TopicPartition, asked: RequestedPartition
    ) -> bool:
        """Finds another place to go on from; False: later."""
        raise NotImplementedError

    def latest_epoch(self, topic_partition: TopicPartition) -> int:
        """The epoch of the last entry held, -1 when epochs are not known."""
        raise NotImplementedError

    async def truncate(self) -> bool:
        """Truncates what must be before it is fetched.

        True when anybody was asked or anything was done.
        """
        return False

    def cut(self, topic_partition: TopicPartition, diverging: EpochEnd) -> None:
        """A fetch answer told where the logs part. Only replicas are told."""

    def partition_failed(
        self, topic_partition: TopicPartition, reason: BaseException | str
    ) -> None:
        """It is not fetched any more until it is added again."""
        _log.error(
            "{fetcher} gives {partition} up: {reason}",
            fetcher=self.name,
            partition=topic_partition,
            reason=reason,
        )
        self.state.fail(topic_partition)

    def partitions_with_errors(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They are tried again after the backoff."""
        now_ms = self._runtime.now_ms()
        self.state.delay(topic_partitions, now_ms + self._backoff_ms, now_ms)

    def round_done(self) -> None:
        """Everything of an answer was taken in."""

    async def settled(self) -> None:
        """Waits until what was appended may be told to the leader, by asking for what follows
        it.
        """

    # who is fetched
    def add(self, partitions: Mapping[TopicPartition, InitialFetchState]) -> None:
        """RL 6.1: a partition already here at the same epoch keeps its state; a waiting fetcher
        wakes.
        """
        for topic_partition, initial in partitions.items():
            try:
                self.state.add(
                    topic_partition,
                    initial,
                    self.latest_epoch(topic_partition),
                    self.leader.truncates_on_fetch,
                )
            except BrokerError as error:
                _log.error(
                    "{fetcher} cannot fetch {partition}: {error}",
                    fetcher=self.name,
                    partition=topic_partition,
                    error=error,
                )
                self.state.failed.add(topic_partition)
        self._runtime.clock.callLater(
            0, self._wake
        )  # later: whoever adds is in the middle of a change of roles

    def remove(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, PartitionFetchState]:
        """Those that were here, with their states. Their answers in flight will not count."""
        found = {
            name: state
            for name in topic_partitions
            if (state := self.state.remove(name)) is not None
        }
        return found

    @property
    def reaches_leader(self) -> bool:
        """As of its last request."""
        return not self._unreachable

    @property
    def is_idle(self) -> bool:
        return not self.state.partitions

    # rounds
    def start(self) -> None:
        self._running = ensureDeferred(self._run())

    def shutdown(self) -> None:
        """Asks no more, and takes no answer in any more."""
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
                _log.failure("a round of {fetcher} failed", fetcher=self.name)
                self.partitions_with_errors(self.state.partitions)
                worked = False
            if not worked and not self._stopped:
                await self._wait()

    async def _wait(self) -> None:
        pause = self._pause = Deferred()
        now_ms = self._runtime.now_ms()
        due = self.state.next_due_ms(now_ms)
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
        """RL 6.2: one round. False when there was nothing to ask."""
        truncated = await self.truncate()
        if self._stopped:
            return truncated
        self.partitions_with_errors(self.state.settle(self._runtime.now_ms(), self.ask))
        asks = self.state.asks
        if not self.leader.has_news(asks):
            return truncated
        answers = await self._fetch(asks)
        if answers is None or self._stopped:
            return True
        await self._take_in(asks.current, answers)
        await self.settled()
        return True

    async def _fetch(
        self, asks: RequestedPartitions
    ) -> dict[TopicPartition, FetchedPartition] | None:
        self.requests += 1
        try:
            answers = await self.leader.fetch(asks)
        except CancelledError:
            raise
        except Exception as error:
            self.connection_failed(error)
            return None
        if self._unreachable:
            self._unreachable = False
            _log.info(
                "{fetcher} reaches {leader} again", fetcher=self.name, leader=self.leader.endpoint
            )
        return answers

    def connection_failed(self, error: Exception) -> None:
        """RL 6.5: a lost connection delays the partitions of this fetcher only; told once until
        it works again.
        """
        if self._stopped:
            return
        if not self._unreachable:
            self._unreachable = True
            _log.warn(
                "{fetcher} does not reach {leader}, tries on: {error}",
                fetcher=self.name,
                leader=self.leader.endpoint,
                error=error,
            )
        self.partitions_with_errors(self.state.partitions)

    async def _take_in(
        self,
        asks: Mapping[TopicPartition, RequestedPartition],
        answers: Mapping[TopicPartition, FetchedPartition],
    ) -> None:
        """RL 6.4: what an answer means for each partition.

        What must ask again comes last: records live only until then.
        """
        errors: list[TopicPartition] = []
        elsewhere: list[TopicPartition] = []
        for topic_partition, answer in answers.items():
            asked = asks.get(topic_partition)
            verdict = (
                Verdict.STALE
                if asked is None
                else self.state.judge(topic_partition, asked, answer, self._runtime.now_ms())
            )
            if verdict is Verdict.STALE or asked is None:
                continue
            if verdict is Verdict.APPEND:
                if not self._append(topic_partition, asked, answer):
                    errors.append(topic_partition)
            elif verdict is Verdict.DIVERGED:
                assert answer.diverging_epoch is not None
                self.cut(topic_partition, EpochEnd(ErrorCode.NONE, *answer.diverging_epoch))
            elif verdict is Verdict.OUT_OF_RANGE:
                elsewhere.append(topic_partition)
            else:
                self.refused(topic_partition, verdict, answer.error, errors)
        self.partitions_with_errors(errors)
        self.round_done()
        for topic_partition in elsewhere:
            await self._restart(topic_partition, asks[topic_partition])

    def _append(
        self, topic_partition: TopicPartition, asked: RequestedPartition, answer: FetchedPartition
    ) -> bool:
        """False: try again later.

        Corrupt bytes may be the wire's fault; anything else that is wrong fails the partition.
        """
        try:
            info = self.process_partition_data(topic_partition, asked, answer)
        except CorruptRecordError as error:
            _log.error(
                "{partition} at {offset}: {error}",
                partition=topic_partition,
                offset=asked.fetch_offset,
                error=error,
            )
            return False
        except OutOfDescriptors:
            return False
        except Exception as error:
            if not isinstance(error, BrokerError):
                _log.failure("{partition} cannot take an answer in", partition=topic_partition)
            self.partition_failed(topic_partition, error)
            return True
        if info is None:
            self.state.appended(topic_partition, -1, -1, answer.high_watermark)
        else:
            self.bytes_fetched += info.bytes
            self.state.appended(
                topic_partition, info.last_offset, info.last_leader_epoch, answer.high_watermark
            )
        return True

    def refused(
        self,
        topic_partition: TopicPartition,
        verdict: Verdict,
        error: ErrorCode,
        errors: list[TopicPartition],
    ) -> None:
        """FENCED fails the partition until the controller's news; everything else is tried
        again.
        """
        if verdict is Verdict.FENCED:
            self.partition_failed(
                topic_partition, "the leader's epoch is newer; the controller will tell"
            )
        elif verdict is Verdict.RETRY:
            if error not in _EXPECTED:
                _log.error(
                    "{fetcher} is refused {partition}: {error}",
                    fetcher=self.name,
                    partition=topic_partition,
                    error=error.name,
                )
            errors.append(topic_partition)

    async def _restart(self, topic_partition: TopicPartition, asked: RequestedPartition) -> None:
        try:
            if not await self.out_of_range(topic_partition, asked):
                self.partitions_with_errors([topic_partition])
        except CancelledError:
            raise
        except BrokerError as error:
            errors: list[TopicPartition] = []
            if isinstance(error, LogDirFailure):
                self.partition_failed(topic_partition, error)
            else:
                self.refused(
                    topic_partition,
                    self.state.refused(topic_partition, asked.leader_epoch, error.code),
                    error.code,
                    errors,
                )
            self.partitions_with_errors(errors)
        except Exception as error:
            self.connection_failed(error)
        self.round_done()
