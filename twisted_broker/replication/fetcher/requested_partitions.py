"""What a leader is being asked for, and what of it the next request must say.

Owns `RequestedPartition`, one partition of a fetch, and `RequestedPartitions`, all partitions of
one fetcher.

1. `current` changes only at the start of a round, and asks are immutable: while an answer is on its
   way it holds what was asked.
2. What was said last, with `changed` put in and `gone` taken out, is `current`. Saying the news
   empties both; news not said stays.
3. Nothing is done for an ask that stays as it is; only a full request names all, in the order of
   their turns.

Source: RL 6.2, 6.4; KIP-227. Leaves out: whose ask may be another one (`fetcher_state`), the
session's id and epoch (`fetch_session_handler`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from twisted_broker.interfaces import TopicPartition


class RequestedPartition(NamedTuple):
    """One partition of a fetch. Epochs are -1 when they are not known."""

    topic_id: bytes
    fetch_offset: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class RequestDelta(NamedTuple):
    """What differs from what was said last.

    `gone` pairs each partition with the topic id under which it was asked.
    """

    changed: dict[TopicPartition, RequestedPartition]
    gone: list[tuple[TopicPartition, bytes]]


class RequestedPartitions:
    """`turns`: the partitions in the order of their turns, as they are when it is asked for; of
    others nothing is asked.
    """

    __slots__ = ("_changed", "_gone", "_turns", "current")

    def __init__(self, turns: Iterable[TopicPartition]) -> None:
        self.current: dict[TopicPartition, RequestedPartition] = {}
        self._turns = turns
        self._changed: dict[TopicPartition, RequestedPartition] = {}
        self._gone: dict[tuple[TopicPartition, bytes], None] = {}

    def put(self, topic_partition: TopicPartition, ask: RequestedPartition) -> None:
        """It is asked so from now on.

        Under another topic id it is another partition (KIP-516): the one before is gone.
        """
        before = self.current.get(topic_partition)
        if before == ask:
            return
        if before is not None and before.topic_id != ask.topic_id:
            self._gone[topic_partition, before.topic_id] = None
        self._gone.pop((topic_partition, ask.topic_id), None)
        self.current[topic_partition] = self._changed[topic_partition] = ask

    def drop(self, topic_partition: TopicPartition) -> None:
        """It is asked no more."""
        before = self.current.pop(topic_partition, None)
        if before is not None:
            self._changed.pop(topic_partition, None)
            self._gone[topic_partition, before.topic_id] = None

    @property
    def is_any_gone(self) -> bool:
        """Whether a leader that was told must be told to forget."""
        return bool(self._gone)

    def say(self) -> RequestDelta:
        """The news, for a request that says them, or all."""
        changed, self._changed = self._changed, {}
        gone, self._gone = self._gone, {}
        return RequestDelta(changed, list(gone))

    def in_turn(self) -> dict[TopicPartition, RequestedPartition]:
        """All that stands, in the order of turns."""
        current = self.current
        return {name: current[name] for name in self._turns if name in current}
