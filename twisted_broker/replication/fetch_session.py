"""Fetch sessions: a client names its partitions once and then only what changed.

Owns the sessions and their cache, and decides which partitions an answer shows.

1. A session is named by a positive random id; its epoch counts its requests, 1 to 2^31-1 and round
   again. A request with another epoch than the next gets INVALID_FETCH_SESSION_EPOCH and changes
   nothing.
2. An incremental answer shows a partition when it has records, an error, a diverging epoch, a
   preferred replica, or when its high watermark or log start moved. After an error or a divergence
   it is shown again with the next good result: a follower ignores watermarks that come with them.
3. A partition that had records goes to the end of its session's order, so that every partition gets
   its turn under the byte limit.
4. A session reads its active partitions; one where nothing happens is idle (`idle_partitions`)
   until something does. The client sees no difference.
5. The cache holds at most `slots` sessions. A new one takes the place of one unused for 120 s, or
   else of the least valuable one older than 120 s that is worth less than it; followers' sessions
   are worth more than consumers', large ones more than small ones. A follower may also take the
   place of a consumer's young session.
6. A session is of names or of ids: the other kind of request gets FETCH_SESSION_TOPIC_ID_ERROR.

Source: KIP-227, Kafka's `FetchSession`; RL 5.2. Not here: reading (`replica_manager`), permission
(`api/fetch`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from twisted_broker.interfaces import IRandom
from twisted_broker.replication.idle_partitions import IdlePartitions
from twisted_broker.replication.partition.fetch_data import (
    ConsumerId,
    FetchPartitionRequest,
    FetchPartitionResult,
    FollowerId,
    PartitionKey,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from twisted_broker.log.offset_metadata import LogOffsetMetadata

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
# Kafka's value: a session in use survives two minutes against a larger one.
EVICTION_MS = 120_000
FINISHED_PER_STEP = 400
"""Results per step, which takes 1 to 2 ms."""
_MAX_EPOCH = 2**31 - 1

Answer = tuple[ErrorCode, int, list[FetchPartitionResult]]


def next_epoch(epoch: int) -> int:
    """The epoch that follows: a final one stays final, the last one starts over at 1."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _MAX_EPOCH else epoch + 1


class CachedPartition:
    """What a session remembers of one partition: what is requested, and what its client was last
    sent.
    """

    __slots__ = ("high_watermark", "log_start_offset", "request")

    def __init__(self, request: FetchPartitionRequest) -> None:
        self.request = request
        self.high_watermark = -1
        self.log_start_offset = -1

    def update_request(self, request: FetchPartitionRequest) -> None:
        """Under another leader epoch the client may have dropped the last answer with its
        watermarks: they are shown again.

        The name stays that its id had: a topic that is deleted meanwhile has none any more.
        """
        if not request.topic_partition.topic:
            request.topic_partition = self.request.topic_partition
        if request.current_leader_epoch != self.request.current_leader_epoch:
            self.high_watermark = self.log_start_offset = -1
        self.request = request

    def must_respond(self, result: FetchPartitionResult) -> bool:
        """Whether an incremental answer must show it; remembers what it shows."""
        must = (
            result.size > 0
            or self.high_watermark != result.high_watermark
            or self.log_start_offset != result.log_start_offset
            or result.preferred_read_replica >= 0
            or result.error != ErrorCode.NONE
            or result.diverging_epoch is not None
        )
        # What came with an error may have been dropped: shown again with the next good answer.
        used = result.error == ErrorCode.NONE and result.diverging_epoch is None
        self.high_watermark = result.high_watermark if used else -1
        self.log_start_offset = result.log_start_offset if used else -1
        return must


class FetchSession:
    """One client's partitions. `active`: those that are read, in that order; the others are `idle`.

    `idle` is None where nothing ever is: all of its partitions are active.
    """

    __slots__ = (
        "active",
        "created_ms",
        "epoch",
        "idle",
        "last_used_ms",
        "partitions",
        "privileged",
        "session_id",
        "size",
        "uses_topic_ids",
    )

    def __init__(
        self,
        session_id: int,
        privileged: bool,
        uses_topic_ids: bool,
        partitions: dict[PartitionKey, CachedPartition],
        now_ms: int,
        idle: IdlePartitions | None = None,
    ) -> None:
        self.session_id = session_id
        self.privileged = privileged
        self.uses_topic_ids = uses_topic_ids
        self.partitions = partitions
        self.idle = idle
        self.active = partitions if idle is None else dict(partitions)
        self.created_ms = self.last_used_ms = now_ms
        self.size = len(partitions)
        self.epoch = 1

    def update(
        self, requests: Iterable[FetchPartitionRequest], forgotten: Iterable[PartitionKey]
    ) -> None:
        """What an incremental request changes: new and changed partitions, then forgotten ones."""
        for request in requests:
            key = request.key
            known = self.partitions.get(key)
            if known is None:
                known = self.partitions[key] = CachedPartition(request)
            else:
                known.update_request(request)
            if self.idle is not None:
                self.idle.forget(key)
                self.active.setdefault(key, known)
        for key in forgotten:
            self.partitions.pop(key, None)
            if self.idle is not None:
                self.idle.forget(key)
                self.active.pop(key, None)

    def begin_round(self, now_ms: int, reader: FollowerId | ConsumerId | None) -> None:
        """`reader`: who sends the next request, if something may be idle for it."""
        if self.idle is not None:
            self.idle.begin_round(now_ms, reader)
            self.activate_woken()

    def activate_woken(self) -> list[FetchPartitionRequest]:
        """Makes woken partitions active: they are read from now on."""
        if self.idle is None or not self.idle.woken:
            return []
        woken = {key: self.partitions[key] for key in self.idle.take_woken()}
        self.active |= woken
        return [cached.request for cached in woken.values()]

    @property
    def eviction_key(self) -> tuple[bool, int, int]:
        return (self.privileged, self.size, self.session_id)


class FetchSessionCache:
    """All sessions of a broker, the longest unused first.

    `slots` is `max.incremental.fetch.session.cache.slots`; `new_idle` makes the idle partitions of
    a session. Without it nothing is ever idle.
    """

    __slots__ = ("_new_idle", "_partitions", "_random", "_sessions", "evictions", "slots")

    def __init__(
        self, slots: int, random: IRandom, new_idle: Callable[[], IdlePartitions] | None = None
    ) -> None:
        self.slots = slots
        self._random = random
        self._new_idle = new_idle
        self._sessions: dict[int, FetchSession] = {}
        self._partitions = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __bool__(self) -> bool:
        return bool(self._sessions)

    @property
    def partitions(self) -> int:
        """NumIncrementalFetchPartitionsCached."""
        return self._partitions

    def get(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def remove(self, session_id: int) -> FetchSession | None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= session.size
            if session.idle is not None:
                session.idle.end()
        return session

    def touch(self, session: FetchSession, now_ms: int) -> None:
        """It was used now: to the end of the order."""
        del self._sessions[session.session_id]
        self._sessions[session.session_id] = session
        session.last_used_ms = now_ms
        self._partitions += len(session.partitions) - session.size
        session.size = len(session.partitions)

    def create(
        self,
        privileged: bool,
        uses_topic_ids: bool,
        partitions: dict[PartitionKey, CachedPartition],
        now_ms: int,
    ) -> int:
        """The new session's id, or 0 when there is no room for it."""
        if not partitions or (
            len(self._sessions) >= self.slots
            and not self._make_room(privileged, len(partitions), now_ms)
        ):
            return NO_SESSION
        idle = self._new_idle() if self._new_idle is not None else None
        session = FetchSession(self._new_id(), privileged, uses_topic_ids, partitions, now_ms, idle)
        self._sessions[session.session_id] = session
        self._partitions += session.size
        return session.session_id

    def _new_id(self) -> int:
        while True:
            session_id = self._random.randrange(1, _MAX_EPOCH)
            if session_id not in self._sessions:
                return session_id

    def _make_room(self, privileged: bool, size: int, now_ms: int) -> bool:
        if not self._sessions:
            return False
        longest_unused = next(iter(self._sessions.values()))
        # The order of `_sessions` is that of use: one look says whether any has gone unused.
        if now_ms - longest_unused.last_used_ms > EVICTION_MS:
            return self._evict(longest_unused)
        evictable = [
            session
            for session in self._sessions.values()
            if now_ms - session.created_ms > EVICTION_MS or (privileged and not session.privileged)
        ]
        least = min(evictable, key=lambda session: session.eviction_key, default=None)
        return (
            least is not None and (privileged, size, 0) >= least.eviction_key and self._evict(least)
        )

    def _evict(self, session: FetchSession) -> bool:
        self.remove(session.session_id)
        self.evictions += 1
        return True


class FetchContext:
    """What one request reads and what its answer shows: this one is sessionless, it reads what the
    request names and shows everything.
    """

    __slots__ = ("_requests",)

    def __init__(self, requests: Sequence[FetchPartitionRequest]) -> None:
        self._requests = requests

    @property
    def requests(self) -> Sequence[FetchPartitionRequest]:
        """What is to be read."""
        return self._requests

    @property
    def reads_now(self) -> bool:
        """Whether the read must follow in the same turn of the reactor: idle partitions are
        answered without a read, as they were when this was made.
        """
        return False

    # while it waits
    @property
    def has_idle(self) -> bool:
        """Whether it stands for more partitions than `requests`."""
        return False

    @property
    def idle_requests(self) -> Sequence[FetchPartitionRequest]:
        return ()

    @property
    def watch_keys(self) -> Sequence[Hashable]:
        """The keys under which it waits besides its partitions."""
        return ()

    @property
    def woken(self) -> Collection[tuple[FetchPartitionRequest, LogOffsetMetadata]]:
        """The partitions woken since it began, and where in the log its client reads them."""
        return ()

    def wake_unregistered(self) -> None:
        """Wakes all idle partitions if the follower has registered again since."""

    def take_woken(self) -> list[FetchPartitionRequest]:
        """As `woken`: from now on a part of this request, after `requests`."""
        return []

    def finish(self, results: list[FetchPartitionResult]) -> Answer:
        """(error, session id, results to show).

        `results` are of all of `requests`, in their order, then of what was woken and taken.
        """
        return ErrorCode.NONE, NO_SESSION, results

    def finish_in_steps(self, results: list[FetchPartitionResult]) -> Generator[None, None, Answer]:
        """As `finish`; may pause after every `FINISHED_PER_STEP`."""
        yield from ()
        return self.finish(results)

    def throttled(self) -> tuple[ErrorCode, int]:
        """(error, session id) of an answer without partitions, instead of `finish`: what the client
        was sent last stays as it was, and no session is opened.
        """
        return ErrorCode.NONE, NO_SESSION


SESSIONLESS = FetchContext(())


class FullFetchContext(FetchContext):
    """A full request that opens a session, if there is room."""

    __slots__ = ("_cache", "_now_ms", "_privileged", "_uses_topic_ids")

    def __init__(
        self,
        requests: Sequence[FetchPartitionRequest],
        cache: FetchSessionCache,
        privileged: bool,
        uses_topic_ids: bool,
        now_ms: int,
    ) -> None:
        super().__init__(requests)
        self._now_ms = now_ms
        self._cache = cache
        self._privileged = privileged
        self._uses_topic_ids = uses_topic_ids

    def finish(self, results: list[FetchPartitionResult]) -> Answer:
        partitions: dict[PartitionKey, CachedPartition] = {}
        for result in results:
            cached = partitions[result.request.key] = CachedPartition(result.request)
            cached.must_respond(result)
        session_id = self._cache.create(
            self._privileged, self._uses_topic_ids, partitions, self._now_ms
        )
        return ErrorCode.NONE, session_id, results


class IncrementalFetchContext(FetchContext):
    """The next request of a session."""

    __slots__ = ("_epoch", "_session")

    def __init__(self, session: FetchSession) -> None:
        super().__init__([cached.request for cached in session.active.values()])
        self._session = session
        self._epoch = session.epoch

    @property
    def _is_current(self) -> bool:
        """Whether its session has not seen a later request."""
        return self._session.epoch == self._epoch

    @property
    def reads_now(self) -> bool:
        # With nothing idle the read may pause as any other: so in the first round of a large
        # session, which reads all of it. A consumer's may always: what is woken meanwhile is as if
        # it had been read before, and its client is not told that it is caught up.
        return self._session.privileged and bool(self._session.idle)

    @property
    def has_idle(self) -> bool:
        return bool(self._session.idle)

    @property
    def idle_requests(self) -> Sequence[FetchPartitionRequest]:
        return () if self._session.idle is None else self._session.idle.requests

    @property
    def watch_keys(self) -> Sequence[Hashable]:
        return () if self._session.idle is None else (self._session.idle,)

    @property
    def woken(self) -> Collection[tuple[FetchPartitionRequest, LogOffsetMetadata]]:
        return () if self._session.idle is None else self._session.idle.woken.values()

    def wake_unregistered(self) -> None:
        if self._session.idle is not None and self._is_current:
            self._session.idle.wake_unregistered()

    def take_woken(self) -> list[FetchPartitionRequest]:
        if self._session.idle is None or not self._is_current:
            return []  # it belongs to the later request
        self._session.idle.wake_unregistered()
        return self._session.activate_woken()

    def finish(self, results: list[FetchPartitionResult]) -> Answer:
        if not self._is_current:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, self._session.session_id, []
        shown = self._finish_some(list(self._session.active.items()), results)
        return ErrorCode.NONE, self._session.session_id, shown

    def finish_in_steps(self, results: list[FetchPartitionResult]) -> Generator[None, None, Answer]:
        entries = list(self._session.active.items())
        shown: list[FetchPartitionResult] = []
        for start in range(0, max(len(entries), len(results)), FINISHED_PER_STEP):
            if start:
                yield
            # What has become idle so far stays idle; the later request reads the rest.
            if not self._is_current:
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH, self._session.session_id, []
            end = start + FINISHED_PER_STEP
            shown += self._finish_some(entries[start:end], results[start:end])
        return ErrorCode.NONE, self._session.session_id, shown

    def _finish_some(
        self,
        entries: list[tuple[PartitionKey, CachedPartition]],
        results: list[FetchPartitionResult],
    ) -> list[FetchPartitionResult]:
        active, idle = self._session.active, self._session.idle
        shown = []
        for (key, cached), result in zip(entries, results, strict=True):
            if cached.must_respond(result):
                shown.append(result)
            if result.size > 0:
                active[key] = active.pop(key)  # the others have their turn first
            elif idle is not None and idle.add(result):
                del active[key]
        return shown

    def throttled(self) -> tuple[ErrorCode, int]:
        error = ErrorCode.NONE if self._is_current else ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return error, self._session.session_id


def new_context(
    cache: FetchSessionCache,
    session_id: int,
    epoch: int,
    uses_topic_ids: bool,
    privileged: bool,
    requests: Sequence[FetchPartitionRequest],
    forgotten: Iterable[PartitionKey],
    now_ms: int,
    reader: FollowerId | ConsumerId | None = None,
) -> FetchContext:
    """The context of a request; `reader`: who sends it, if something may be idle for it. Raises
    `BrokerError` with FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or
    FETCH_SESSION_TOPIC_ID_ERROR: errors of the whole request.
    """
    if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if session_id != NO_SESSION:
            cache.remove(session_id)
        return (
            FetchContext(requests)
            if epoch == FINAL_EPOCH
            else FullFetchContext(requests, cache, privileged, uses_topic_ids, now_ms)
        )
    session = cache.get(session_id)
    if session is None:
        raise BrokerError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if session.epoch != epoch:
        raise BrokerError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    if session.uses_topic_ids != uses_topic_ids:
        raise BrokerError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
    session.update(requests, forgotten)
    if not session.partitions:
        cache.remove(session_id)
        return FetchContext(requests)
    cache.touch(session, now_ms)
    session.epoch = next_epoch(session.epoch)
    session.begin_round(now_ms, reader)
    return IncrementalFetchContext(session)
