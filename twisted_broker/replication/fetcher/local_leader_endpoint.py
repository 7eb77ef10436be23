"""The log that moves, as the fetcher of its future log sees it: this broker is its own leader.

Owns `LocalLeaderEndPoint`, and `MoveThrottle`, the rate limit that all moves of a broker share.

1. One partition at a time: the one in progress while it is there, else the first by name.
2. It reads as replica -3, to the log end, whoever leads: a follower's log moves as well.
3. Each read runs in a turn of the reactor of its own; bytes that are not in memory are loaded on
   the directory's reader first. Bytes in memory are read and appended in one turn: a future log
   that reaches the log end then ends where the log ends, however fast producers write.
4. Truncation is never part of an answer: epochs are compared first.

Source: RL 1.8, 3.8; Kafka's `LocalLeaderEndPoint`, its settings
`replica.alter.log.dirs.io.max.bytes.per.second`, `alter.log.dirs.replication.quota.window.*`. Not
here: what is done with it (`future_replicas`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.internet.defer import Deferred

from twisted_broker.interfaces import Runtime, TopicPartition
from twisted_broker.log.errors import LogDirFailure
from twisted_broker.log.segment_file import FileSlice, SliceGone
from twisted_broker.replication.collaborators import IReplicas
from twisted_broker.replication.fetcher.fetch_session_handler import (
    RequestedPartition,
    RequestedPartitions,
)
from twisted_broker.replication.fetcher.fetcher_state import FetchedPartition
from twisted_broker.replication.fetcher.leader_endpoint import LATEST, BrokerEndPoint
from twisted_broker.replication.fetcher.truncation_decision import EpochEnd, LeaderEpochRequest
from twisted_broker.replication.partition.fetch_data import (
    FUTURE_LOCAL_REPLICA,
    LOG_END,
    FetchParams,
    FetchPartitionRequest,
)
from twisted_broker.replication.replication_quota import ReplicationQuota
from twisted_broker.wire.errors import BrokerError, ErrorCode

# In seconds: a limit that was raised acts after this time at the latest.
_LONGEST_WAIT = 1.0


class MoveThrottle:
    """`rate()` gives bytes per second, as set at each call; measured over `windows`."""

    __slots__ = ("_rate", "quota")

    def __init__(
        self, rate: Callable[[], int], windows: int = 11, window_ms: int = 1000, setting: str = ""
    ) -> None:
        self._rate = rate
        self.quota = ReplicationQuota(rate, windows, window_ms, setting)

    def record(self, size: int, now_ms: int) -> None:
        """Counts whole batches only: what was read of one more is read again."""
        self.quota.record(size, now_ms)

    def wait_seconds(self, now_ms: int) -> float:
        """0: read now."""
        return min(self.quota.throttle_ms(now_ms) / 1000, _LONGEST_WAIT)

    def most(self, max_bytes: int) -> int:
        """The limit of one read, in bytes: no more than one second allows."""
        return min(max_bytes, self._rate())


class LocalLeaderEndPoint:
    """`is_due(name)`: the future log has caught up, and something is left to do for it."""

    truncates_on_fetch = False

    def __init__(
        self,
        replicas: IReplicas,
        throttle: MoveThrottle,
        is_due: Callable[[TopicPartition], bool],
        response_max_bytes: int,
    ) -> None:
        self.endpoint = local_endpoint(replicas.node_id)
        self._replicas = replicas
        self._runtime: Runtime = replicas.runtime
        self._throttle = throttle
        self._is_due = is_due
        self._params = FetchParams(
            FUTURE_LOCAL_REPLICA, -1, 0, 0, response_max_bytes, LOG_END, only_leader=False
        )
        self._in_progress: TopicPartition | None = None

    def close(self) -> None:
        """A read that waits is cancelled by its fetcher."""

    def has_request(self, requested: RequestedPartitions) -> bool:
        current = requested.current
        if self._in_progress not in current:
            self._in_progress = min(current, default=None)
        name = self._in_progress
        return name is not None and self._has_news(name, current[name])

    def _has_news(self, name: TopicPartition, requested: RequestedPartition) -> bool:
        partition = self._replicas.partitions.get(name)
        log = None if partition is None else partition.log
        return (
            partition is None
            or log is None
            # Refused, or under another epoch by now: the answer says so.
            or partition.offline
            or partition.leader_epoch != requested.leader_epoch
            or log.log_end_offset != requested.fetch_offset
            or log.log_start_offset > requested.log_start_offset
            or self._is_due(name)
        )

    async def fetch(self, requested: RequestedPartitions) -> dict[TopicPartition, FetchedPartition]:
        name = self._in_progress
        assert name is not None
        await self._wait(0)
        while (seconds := self._throttle.wait_seconds(self._runtime.now_ms())) > 0:
            await self._wait(seconds)
        try:
            return {name: await self._read(name, requested.current[name])}
        except LogDirFailure as error:
            self._replicas.directory_failed(error.directory, error.cause)
            return {name: FetchedPartition(error.code)}
        except BrokerError as error:
            return {name: FetchedPartition(error.code)}
        except SliceGone:
            return {}  # truncated while it was loaded: the next round compares epochs first

    async def _wait(self, seconds: float) -> None:
        turn: Deferred[None] = Deferred(lambda _: call.cancel())
        call = self._runtime.clock.callLater(seconds, turn.callback, None)
        await turn

    async def _read(self, name: TopicPartition, requested: RequestedPartition) -> FetchedPartition:
        partition = self._replicas.partition(name)
        max_bytes = self._throttle.most(min(requested.max_bytes, self._params.max_bytes))
        request = FetchPartitionRequest(
            name,
            requested.topic_id,
            requested.fetch_offset,
            max_bytes,
            requested.leader_epoch,
        )
        result = partition.read(request, self._params, max_bytes, True, 0, False)
        answer = FetchedPartition(ErrorCode.NONE, result.high_watermark, result.log_start_offset)
        if result.slice is None:
            return answer
        partition.uncount_read(self._params, result.size)
        try:
            if not result.slice.is_resident(0, result.size):
                await self._load(result.slice)
            answer.records = result.slice.read()
        except OSError as error:
            log = partition.log
            if log is None or isinstance(error, FileNotFoundError):
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER) from error  # deleted meanwhile
            raise log.fail(error) from error
        finally:
            result.release()
        return answer

    async def _load(self, part: FileSlice) -> None:
        loaded: Deferred[None] = Deferred(lambda _: None)

        def done(error: BaseException | None) -> None:
            if loaded.called:
                return  # the fetcher was stopped meanwhile
            if error is None:
                loaded.callback(None)
            else:
                loaded.errback(error)

        part.load(0, part.length, done)
        await loaded

    async def fetch_offset(
        self, topic_partition: TopicPartition, leader_epoch: int, timestamp: int
    ) -> int:
        log = self._replicas.partition(topic_partition).log_for(leader_epoch, only_leader=False)
        return log.log_end_offset if timestamp == LATEST else log.log_start_offset

    async def fetch_epoch_ends(
        self, epochs: Mapping[TopicPartition, LeaderEpochRequest]
    ) -> dict[TopicPartition, EpochEnd]:
        ends: dict[TopicPartition, EpochEnd] = {}
        for name, request in epochs.items():
            try:
                partition = self._replicas.partition(name)
                log = partition.log_for(request.leader_epoch, only_leader=False)
                ends[name] = EpochEnd(ErrorCode.NONE, *log.end_offset_for_epoch(request.epoch))
            except BrokerError as error:
                ends[name] = EpochEnd(error.code)
        return ends


def local_endpoint(node_id: int) -> BrokerEndPoint:
    """The end point that stands for this broker itself; nothing connects to it."""
    return BrokerEndPoint(node_id, "localhost", -1)
