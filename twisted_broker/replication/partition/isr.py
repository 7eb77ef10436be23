"""The in-sync replicas of a partition as its leader holds them, with at most one change on its way
to the controller.

Owns three sealed states:

    Committed --expand--> PendingExpand --answered--> Committed (the new ISR)
        |                      '------refused-------> Committed (the old one)
        '------shrink--> PendingShrink --(the same)

1. `isr` is what the controller last confirmed; `maximal_isr` is the union with what was asked for:
   the high watermark and "enough replicas" use it, the check before an append uses `isr` (RL 2.5).
2. A state is immutable; a pending one remembers the committed one it came from.

Source: RL 2.5; Kafka's `PartitionState`, KIP-497. Leaves out: who may join or must leave
(`partition`).
"""

from __future__ import annotations

from typing import NamedTuple, final

from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import ErrorCode

RECOVERED, RECOVERING = 0, 1


@final
class CommittedIsr:
    """What the controller confirmed."""

    __slots__ = ("isr", "leader_recovery_state", "maximal_isr")
    in_flight = False

    def __init__(self, isr: frozenset[int], leader_recovery_state: int = RECOVERED) -> None:
        self.isr = isr
        self.maximal_isr = isr
        self.leader_recovery_state = leader_recovery_state

    def __repr__(self) -> str:
        return f"<ISR {sorted(self.isr)}>"


@final
class PendingExpand:
    """`joining` was proposed; until the answer it may or may not be a member, so it counts where
    that is safer.
    """

    __slots__ = ("isr", "joining", "last_committed", "maximal_isr", "proposed")
    in_flight = True

    def __init__(self, last_committed: CommittedIsr, joining: int) -> None:
        self.last_committed = last_committed
        self.joining = joining
        self.isr = last_committed.isr
        self.proposed = self.maximal_isr = last_committed.isr | {joining}

    def __repr__(self) -> str:
        return f"<ISR {sorted(self.isr)} + {self.joining} pending>"


@final
class PendingShrink:
    """`leaving` were proposed to go; until the answer they may still be members."""

    __slots__ = ("isr", "last_committed", "leaving", "maximal_isr", "proposed")
    in_flight = True

    def __init__(self, last_committed: CommittedIsr, leaving: frozenset[int]) -> None:
        self.last_committed = last_committed
        self.leaving = leaving
        self.isr = self.maximal_isr = last_committed.isr
        self.proposed = last_committed.isr - leaving

    def __repr__(self) -> str:
        return f"<ISR {sorted(self.isr)} - {sorted(self.leaving)} pending>"


PendingIsr = PendingExpand | PendingShrink
IsrState = CommittedIsr | PendingExpand | PendingShrink
EMPTY_ISR = CommittedIsr(frozenset())


class IsrProposal(NamedTuple):
    """What AlterPartition says of one partition.

    `members` are (broker id, broker epoch; -1 unknown), by id.
    """

    topic_partition: TopicPartition
    topic_id: bytes
    leader_epoch: int
    partition_epoch: int
    members: tuple[tuple[int, int], ...]
    leader_recovery_state: int


class IsrAnswer(NamedTuple):
    """What the controller answered for one partition; with an error only `error` counts."""

    error: ErrorCode
    leader_id: int = -1
    leader_epoch: int = -1
    isr: frozenset[int] = frozenset()
    leader_recovery_state: int = RECOVERED
    partition_epoch: int = -1
