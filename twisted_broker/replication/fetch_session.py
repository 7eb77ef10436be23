"""Fetch sessions: a client names its partitions once and then only what changed.

Owns the sessions and their cache, and decides which partitions an answer shows.

1. A session is named by a positive random id; its epoch counts its requests, 1 to 2^31-1 and round
   again. A request with another epoch than the next gets INVALID_FETCH_SESSION_EPOCH and changes
   nothing.
2. An incremental answer shows a partition when it has records, an error, a diverging epoch, a
   preferred replica, or when its high watermark or log start moved. After an error or a divergence
   it is shown again when that is gone: a follower takes no marks that come beside them.
3. A partition that had records goes to the end of its session's order, so that every partition gets
   its turn under the byte limit.
4. A follower's session reads what is awake; what has nothing to tell rests (`idle_partitions`)
   until something happens to it.
5. The cache holds at most `slots` sessions. A new one takes the place of one unused for 120 s, or
   else of the least valuable one older than 120 s that is worth less than it; followers' sessions
   are worth more than consumers', large ones more than small ones. A follower may also take the
   place of a consumer's young session.
6. A session is of names or of ids: the other kind of request gets FETCH_SESSION_TOPIC_ID_ERROR.

Source: KIP-227, Kafka's `FetchSession`; RL 5.2. Leaves out: reading (`replica_manager`), permission
(`api/fetch`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from twisted_broker.interfaces import IRandom
from twisted_broker.replication.idle_partitions import IdlePartitions, IdleRead, PartitionKey
from twisted_broker.replication.partition.fetch_data import (
    FetchPartitionRequest,
    FetchPartitionResult,
)
from twisted_broker.wire.errors import BrokerError, ErrorCode

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EVICTION_MS = 120_000
_MAX_EPOCH = 2**31 - 1

IdleReadOf = Callable[[FetchPartitionResult], IdleRead | None]
Answer = tuple[ErrorCode, int, list[FetchPartitionResult]]


def next_epoch(epoch: int) -> int:
    """The epoch that follows: a final one stays final, the last one starts over at 1."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _MAX_EPOCH else epoch + 1


class CachedPartition:
    """What a session remembers of one partition: what is asked, and what its client was last
    told.
    """

    __slots__ = ("high_watermark", "log_start_offset", "request")

    def __init__(self, request: FetchPartitionRequest) -> None:
        self.request = request
        self.high_watermark = -1
        self.log_start_offset = -1

    def ask(self, request: FetchPartitionRequest) -> None:
        """Takes another request in.

        Under another leader epoch its client may have dropped the last answer, marks and all.
        """
        if request.current_leader_epoch != self.request.current_leader_epoch:
            self.high_watermark = self.log_start_offset = -1
        self.request = request

    def worth_telling(self, result: FetchPartitionResult) -> bool:
        """Whether an incremental answer must show it; remembers what it shows."""
        tell = (
            result.size > 0
            or self.high_watermark != result.high_watermark
            or self.log_start_offset != result.log_start_offset
            or result.preferred_read_replica >= 0
            or result.error != ErrorCode.NONE
            or result.diverging_epoch is not None
        )
        taken = result.error == ErrorCode.NONE and result.diverging_epoch is None
        self.high_watermark = result.high_watermark if taken else -1
        self.log_start_offset = result.log_start_offset if taken else -1
        return tell


class FetchSession:
    """One client's partitions, in the order in which they are read."""

    __slots__ = (
        "awake",
        "created_ms",
        "epoch",
        "last_used_ms",
        "partitions",
        "privileged",
        "resting",
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
    ) -> None:
        self.session_id = session_id
        self.privileged = privileged
        self.uses_topic_ids = uses_topic_ids
        self.partitions = partitions
        self.resting = IdlePartitions() if privileged else None
        self.awake = dict(partitions) if privileged else partitions
        self.created_ms = self.last_used_ms = now_ms
        self.size = len(partitions)
        self.epoch = 1

    def update(
        self, requests: Iterable[FetchPartitionRequest], forgotten: Iterable[PartitionKey]
    ) -> None:
        """Takes an incremental request in: new and changed partitions, then forgotten ones."""
        for request in requests:
            key = request.key
            known = self.partitions.get(key)
            if known is None:
                known = self.partitions[key] = CachedPartition(request)
            else:
                known.ask(request)
            self._wake(key, known)
        for key in forgotten:
            known = self.partitions.pop(key, None)
            if known is not None:
                self._wake(key, known)
                self.awake.pop(key, None)

    def _wake(self, key: PartitionKey, cached: CachedPartition) -> None:
        if self.resting is not None:
            self.resting.forget(key)
            self.awake.setdefault(key, cached)

    def to_read(self) -> list[FetchPartitionRequest]:
        """What is awake, what was woken since among it."""
        if self.resting is not None and self.resting.woken:
            for key in self.resting.take_woken():
                self.awake[key] = self.partitions[key]
        return [cached.request for cached in self.awake.values()]

    @property
    def worth(self) -> tuple[bool, int, int]:
        return (self.privileged, self.size, self.session_id)


class FetchSessionCache:
    """All sessions of a broker, the longest unused first.

    `slots` is `max.incremental.fetch.session.cache.slots`.
    """

    __slots__ = ("_partitions", "_random", "_sessions", "evictions", "slots")

    def __init__(self, slots: int, random: IRandom) -> None:
        self.slots = slots
        self._random = random
        self._sessions: dict[int, FetchSession] = {}
        self._partitions = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

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
            if session.resting is not None:
                session.resting.end()
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
        session = FetchSession(self._new_id(), privileged, uses_topic_ids, partitions, now_ms)
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
        if now_ms - longest_unused.last_used_ms > EVICTION_MS:
            return self._evict(longest_unused)
        evictable = [
            session
            for session in self._sessions.values()
            if now_ms - session.created_ms > EVICTION_MS or (privileged and not session.privileged)
        ]
        least = min(evictable, key=lambda session: session.worth, default=None)
        return least is not None and (privileged, size, 0) >= least.worth and self._evict(least)

    def _evict(self, session: FetchSession) -> bool:
        self.remove(session.session_id)
        self.evictions += 1
        return True


class FetchContext:
    """How one request's answer is made: this one is sessionless, and shows everything."""

    __slots__ = ("_requests",)

    def __init__(self, requests: Sequence[FetchPartitionRequest]) -> None:
        self._requests = requests

    @property
    def requests(self) -> Sequence[FetchPartitionRequest]:
        """What is to be read, now."""
        return self._requests

    @property
    def is_current(self) -> bool:
        """Whether its session has not heard of a later request."""
        return True

    @property
    def resting(self) -> IdlePartitions | None:
        """What rests in its session; None for one where nothing ever does."""
        return None

    def finish(
        self, results: list[FetchPartitionResult], quiet: IdleReadOf | None = None
    ) -> Answer:
        """(error, session id, results to show).

        `results` are of all of `requests`, in their order; `quiet` tells which of them may rest.
        """
        return ErrorCode.NONE, NO_SESSION, results


class FullContext(FetchContext):
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

    def finish(
        self, results: list[FetchPartitionResult], quiet: IdleReadOf | None = None
    ) -> Answer:
        partitions: dict[PartitionKey, CachedPartition] = {}
        for result in results:
            cached = partitions[result.request.key] = CachedPartition(result.request)
            cached.worth_telling(result)
        session_id = self._cache.create(
            self._privileged, self._uses_topic_ids, partitions, self._now_ms
        )
        return ErrorCode.NONE, session_id, results


class IncrementalContext(FetchContext):
    """The next request of a session."""

    __slots__ = ("_epoch", "_session")

    def __init__(self, session: FetchSession) -> None:
        super().__init__(())
        self._session = session
        self._epoch = session.epoch

    @property
    def requests(self) -> Sequence[FetchPartitionRequest]:
        return self._session.to_read()

    @property
    def is_current(self) -> bool:
        return self._session.epoch == self._epoch

    @property
    def resting(self) -> IdlePartitions | None:
        return self._session.resting

    def finish(
        self, results: list[FetchPartitionResult], quiet: IdleReadOf | None = None
    ) -> Answer:
        session = self._session
        if not self.is_current:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id, []
        shown = []
        resting = None if session.resting is None or session.resting.is_over else session.resting
        for (key, cached), result in zip(list(session.awake.items()), results, strict=True):
            if cached.worth_telling(result):
                shown.append(result)
            if result.size > 0:
                session.awake[key] = session.awake.pop(key)
            elif resting is not None and quiet is not None and (found := quiet(result)) is not None:
                del session.awake[key]
                resting.rest(found)
        return ErrorCode.NONE, session.session_id, shown


def open_context(
    cache: FetchSessionCache,
    session_id: int,
    epoch: int,
    uses_topic_ids: bool,
    privileged: bool,
    requests: Sequence[FetchPartitionRequest],
    forgotten: Iterable[PartitionKey],
    now_ms: int,
) -> FetchContext:
    """The context of a request. Raises `BrokerError` with FETCH_SESSION_ID_NOT_FOUND,
    INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR: errors of the whole request.
    """
    if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if session_id != NO_SESSION:
            cache.remove(session_id)
        return (
            FetchContext(requests)
            if epoch == FINAL_EPOCH
            else FullContext(requests, cache, privileged, uses_topic_ids, now_ms)
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
    return IncrementalContext(session)
