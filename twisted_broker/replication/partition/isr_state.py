"""The in-sync replicas of a partition as its leader holds them, with at most one change on its way
to the controller.

Owns three sealed states, and what the controller's answer makes of a pending one:

    CommittedIsr --expand--> PendingExpand --confirmed--> CommittedIsr (the new ISR)
        |                      |  '------- reverted ----> CommittedIsr (the old one)
        |                      '-- sent again, or waits for the controller's next record
        '------shrink--> PendingShrink --(the same)

1. `isr` is what the controller last confirmed; `maximal_isr` is the union with what was proposed:
   the high watermark and "enough replicas" use it, the check before an append uses `isr` (RL 2.5).
2. A state is immutable; a pending one remembers the committed one it came from. Only a committed
   one can expand or shrink: one change at a time.
3. A truncation of a mirrored log (`replog mirror --follow-loss`) is a shrink to the leader alone
   that is proposed as RECOVERING; granted, it comes as metadata with a new leader epoch.

Where it changes: `Partition.maybe_expand_isr` (a follower's fetch), `Partition.maybe_shrink_isr`
(the replica manager's timer), `truncate_mirrored`, `Partition.alter_partition_answered`.

Source: RL 2.5; Kafka's `PartitionState`, `Partition.handleAlterPartitionError`; KIP-497. Not here:
who may join or must leave (`partition`), the way to the controller
(`cluster.alter_partition_manager`).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, final

from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.errors import ErrorCode

RECOVERED, RECOVERING = 0, 1


@final
class CommittedIsr:
    """What the controller confirmed."""

    __slots__ = ("isr", "leader_recovery_state", "maximal_isr", "truncation_refused")
    in_flight = False

    def __init__(self, isr: frozenset[int], leader_recovery_state: int = RECOVERED) -> None:
        self.isr = isr
        self.maximal_isr = isr
        self.leader_recovery_state = leader_recovery_state
        self.truncation_refused = False

    def expand(self, joining: int) -> PendingExpand:
        """`joining` is no member yet."""
        return PendingExpand(self, joining)

    def shrink(self, leaving: frozenset[int]) -> PendingShrink:
        """`leaving` are members."""
        return PendingShrink(self, leaving)

    def truncate(self, leader: int, offset: int) -> PendingShrink:
        """The ISR is to be the leader alone, under a new leader epoch that begins at `offset`."""
        pending = PendingShrink(self, self.isr - {leader})
        pending.truncate_to = offset
        return pending

    def refused_truncation(self) -> CommittedIsr:
        """The same, after the controller refused `truncate`."""
        found = CommittedIsr(self.isr, self.leader_recovery_state)
        found.truncation_refused = True
        return found

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
    """`leaving` were proposed to go; until the answer they may still be members.

    `truncate_to`: where the leader truncates a mirrored log when the change comes as metadata; -1:
    an ordinary change.
    """

    __slots__ = ("isr", "last_committed", "leaving", "maximal_isr", "proposed", "truncate_to")
    in_flight = True

    def __init__(self, last_committed: CommittedIsr, leaving: frozenset[int]) -> None:
        self.last_committed = last_committed
        self.leaving = leaving
        self.truncate_to = -1
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


class Reaction(Enum):
    """What a leader does about the controller's answer to its pending change."""

    CONFIRM = "the controller took it"
    REVERT = "back to the committed ISR"
    RETRY = "propose it again"
    WAIT = "the controller's next record says what is so"


# The controller decided against it: retrying as it is cannot help.
_REVERTS = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
# The controller's state is newer than this leader's: the metadata log brings it.
_WAITS = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


def reaction_to(answer: IsrAnswer, leader_epoch: int, partition_epoch: int) -> Reaction:
    """RL 2.5; the epochs are the leader's own, now."""
    if answer.error in _REVERTS:
        return Reaction.REVERT
    if answer.error in _WAITS:
        return Reaction.WAIT
    if answer.error != ErrorCode.NONE:
        return Reaction.RETRY
    # An answer that is older than what the metadata log brought meanwhile confirms nothing.
    current = answer.leader_epoch == leader_epoch and answer.partition_epoch >= partition_epoch
    return Reaction.CONFIRM if current else Reaction.WAIT
