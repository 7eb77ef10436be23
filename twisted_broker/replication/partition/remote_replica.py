"""A leader's knowledge of one follower.

Owns the follower's log end and start as of its last fetch, when it was last caught up, and under
which broker epoch it fetches; and `LastRound`, which the replicas idle in one session share.

1. Caught up now: the fetch offset reached the leader's end. Caught up then: it reached the leader's
   end as of its previous fetch; so a follower that always reads all there was stays in sync under
   constant load.
2. `last_caught_up_ms` never goes back within a leader epoch.
3. While it shares the rounds of its fetch session, every round is a fetch at the leader's end: the
   session's last round says when.
4. A time that never was is `NEVER_MS`, not 0: a monotonic clock is near 0 after a machine's boot.

Source: RL 1.10, 2.2; Kafka's `Replica`. Times are monotonic milliseconds. Not here: the local log
(`partition`), when a session's round stands for a fetch (`idle_partitions`).
"""

from __future__ import annotations

from twisted_broker.log.offset_metadata import UNKNOWN, LogOffsetMetadata

NEVER_MS = -(1 << 62)
"""Longer ago than any limit."""


class LastRound:
    """When a follower last fetched the idle partitions of its session."""

    __slots__ = ("ms",)

    def __init__(self) -> None:
        self.ms = NEVER_MS


class RemoteReplica:
    """One follower as its leader sees it; offsets are -1 until it fetched under this leader."""

    __slots__ = (
        "_caught_up_ms",
        "_fetch_ms",
        "_last_round",
        "broker_epoch",
        "broker_id",
        "last_fetch_leader_end",
        "log_end",
        "log_start_offset",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.log_start_offset = -1
        self.log_end: LogOffsetMetadata = UNKNOWN
        self.last_fetch_leader_end = -1
        self.broker_epoch: int | None = None
        self._fetch_ms = self._caught_up_ms = NEVER_MS
        self._last_round: LastRound | None = None

    @property
    def last_fetch_ms(self) -> int:
        last = self._last_round
        return self._fetch_ms if last is None else max(self._fetch_ms, last.ms)

    @property
    def last_caught_up_ms(self) -> int:
        last = self._last_round
        return self._caught_up_ms if last is None else max(self._caught_up_ms, last.ms)

    @property
    def log_end_offset(self) -> int:
        return self.log_end.offset

    def is_caught_up(self, leader_end: int, now_ms: int, max_lag_ms: int) -> bool:
        """RL 2.4: at the leader's end, or not behind for longer than `max_lag_ms`."""
        return leader_end == self.log_end.offset or now_ms - self.last_caught_up_ms <= max_lag_ms

    def fetched(
        self,
        log_end: LogOffsetMetadata,
        log_start_offset: int,
        now_ms: int,
        leader_end: int,
        broker_epoch: int,
    ) -> None:
        """Notes a fetch: `log_end` is where it reads, hence its own end."""
        if self._last_round is not None:
            self.leave_round(self._last_round)
        if log_end.offset >= leader_end:
            self._caught_up_ms = max(self._caught_up_ms, now_ms)
        elif log_end.offset >= self.last_fetch_leader_end:
            self._caught_up_ms = max(self._caught_up_ms, self._fetch_ms)
        self.log_start_offset = log_start_offset
        self.log_end = log_end
        self.last_fetch_leader_end = leader_end
        self._fetch_ms = now_ms
        self.broker_epoch = broker_epoch

    def forget_place(self) -> None:
        """The leader's log lies in other files: of its end only the offset is known."""
        self.log_end = LogOffsetMetadata(self.log_end.offset)

    @property
    def shares_round(self) -> bool:
        return self._last_round is not None

    def share_round(self, last_round: LastRound) -> None:
        """It is at the leader's end, and fetches there whenever `last_round` says so.

        Only while it shares the rounds of no other session.
        """
        self._last_round = last_round

    def leave_round(self, last_round: LastRound) -> None:
        """`last_round` no longer counts for it; what it said until now stays."""
        if self._last_round is last_round:
            self._fetch_ms, self._caught_up_ms = self.last_fetch_ms, self.last_caught_up_ms
            self._last_round = None

    def reset(self, now_ms: int, leader_end: int, leader_is_new: bool, in_isr: bool) -> None:
        """RL 2.2: at a new leader epoch: caught up now if in the ISR, else never; offsets are
        forgotten when the leader is new.
        """
        self._last_round = None
        self._caught_up_ms = now_ms if in_isr else NEVER_MS
        self._fetch_ms = now_ms if in_isr and not leader_is_new else NEVER_MS
        self.last_fetch_leader_end = -1 if leader_is_new else leader_end
        if leader_is_new:
            self.log_start_offset = -1
            self.log_end = UNKNOWN
            self.broker_epoch = None
