"""What a leader knows of one follower.

Owns the follower's log end and start as of its last fetch, when it was last caught up, and under which broker epoch it fetches.

1. Caught up now: the fetch offset reached the leader's end. Caught up then: it reached the leader's end as of its previous fetch; so a
   follower that always reads all there was stays in sync under constant load.
2. `last_caught_up_ms` never goes back within a leader epoch.

Source: RL 1.10, 2.2; Kafka's `Replica`. Times are monotonic milliseconds. Leaves out: the local log (`partition`).
"""

from __future__ import annotations

from twisted_broker.log.offset_metadata import UNKNOWN, LogOffsetMetadata


class RemoteReplica:
    """One follower as its leader sees it; offsets are -1 until it fetched under this leader."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "last_caught_up_ms",
        "last_fetch_leader_end",
        "last_fetch_ms",
        "log_end",
        "log_start_offset",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.log_start_offset = -1
        self.log_end: LogOffsetMetadata = UNKNOWN
        self.last_fetch_leader_end = -1
        self.last_fetch_ms = 0
        self.last_caught_up_ms = 0
        self.broker_epoch: int | None = None

    @property
    def log_end_offset(self) -> int:
        return self.log_end.offset

    def is_caught_up(self, leader_end: int, now_ms: int, max_lag_ms: int) -> bool:
        """RL 2.4: at the leader's end, or not behind for longer than `max_lag_ms`."""
        return leader_end == self.log_end.offset or now_ms - self.last_caught_up_ms <= max_lag_ms

    def fetched(self, log_end: LogOffsetMetadata, log_start_offset: int, now_ms: int, leader_end: int, broker_epoch: int) -> None:
        """Takes a fetch in: `log_end` is where it reads, hence its own end."""
        if log_end.offset >= leader_end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif log_end.offset >= self.last_fetch_leader_end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_start_offset = log_start_offset
        self.log_end = log_end
        self.last_fetch_leader_end = leader_end
        self.last_fetch_ms = now_ms
        self.broker_epoch = broker_epoch

    def reset(self, now_ms: int, leader_end: int, leader_is_new: bool, in_isr: bool) -> None:
        """RL 2.2: at a new leader epoch: caught up now if in the ISR, else never; offsets are forgotten when the leader is new."""
        self.last_caught_up_ms = now_ms if in_isr else 0
        self.last_fetch_ms = now_ms if in_isr and not leader_is_new else 0
        self.last_fetch_leader_end = -1 if leader_is_new else leader_end
        if leader_is_new:
            self.log_start_offset = -1
            self.log_end = UNKNOWN
            self.broker_epoch = None
